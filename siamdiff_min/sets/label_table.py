"""A table of labels: from text to checked values, before torch is loaded or a structure is read.

    name    value           name    chain   number  residue  value
    1abc    3.2             1abc    A       52      W        0.7
    2def    -1.5            1abc    A       52A     GLY      0.1

Cells are set apart by tabs, semicolons or commas, and may be in quotes (docs/extending.md). A column `split` may say
train, valid or test. Rows are numbered as in a spreadsheet, in which the titles are row 1.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..files import StructureError, read_rows, structure_errors
from ..protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX

SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}  # split -> its names in data sets
SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names} | {"": ""}
NOT_MEASURED = {"", "na", "n/a", "#n/a", "nan"}  # among numbers, in any case. Among classes, NA may be sodium
UNIT = re.compile(r"[-+]?\d*[.,]?\d+(?:e[-+]?\d+)?\s*([^\d.,\s-].*)", re.IGNORECASE)  # of 12.5 °C, 30% or 4 ± 1
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # as Excel may write 1830, or a number with three decimals
LARGEST = 3.4e38  # in float32, in which targets are kept
FEW, SHOWN = 10, 12  # whole numbers that may be names of classes; classes to list


@dataclass(frozen=True)
class Row:
    """The label of a structure, of a chain, or of a residue."""

    number: int  # as in a spreadsheet
    name: str
    chain: str  # "" if the table does not say
    place: str  # number and insertion code of the residue, "52A"; "" if the label is of a structure or chain
    residue: str  # type of the residue, one letter; "" if the table does not say
    split: str  # train, valid, test; "" if the table does not say
    value: float | str | list  # a number, a class, or a list of classes; of several properties a list of numbers


@dataclass(frozen=True)
class Table:
    """The labels of a table."""

    kind: str
    rows: list[Row]  # those with a value
    classes: tuple[str, ...]  # in the order of the outputs; of several properties their names
    options: dict  # of the task: the title of the values, and the names of several properties
    about: str  # the values in words
    notes: list[str]  # for the user: what is not read, or looks odd


def read_table(
    path,
    kind: str | None = None,
    name_column: str | None = None,
    value_column: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
) -> Table:
    """Read and check a table of labels.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of classes at once,
            with commas); by default what the values look like.
        name_column: title of the names; by default `name`, else the first column.
        value_column: titles of the values, several of numbers; by default `value`.
        missing: words for a value that was not measured, beside NOT_MEASURED.

    Raises StructureError, which names the row.
    """
    rows = read_rows(path, "\t;,")
    with structure_errors(path, "malformed table"):
        titles, lines = _by_title(rows)
        title_of = {title.lower(): title for title in reversed(titles) if title}
        names = _found(name_column, titles) if name_column else title_of.get("name", titles[0])
        columns = [_found(title, titles) for title in value_column or [title_of.get("value", "value")]]
        cells = {column: {number: line[column] for number, line in lines.items()} for column in columns}
        words = {_squeezed(word) for word in missing or ()}
        kind = kind or _kind_of(cells, words)
        if kind not in ("classes", "labels"):
            values, about, notes = _numbers(cells, kind, words)
            classes = tuple(columns) if len(columns) > 1 else ()
        elif len(columns) > 1:
            raise ValueError(f"several value columns must hold numbers, {kind} cannot be in {', '.join(columns)}")
        else:
            values, classes, about, notes = _classes(cells[columns[0]], kind, words)
        used = {key: title_of[key] for key in ("chain", "number", "residue", "split") if key in title_of}
        if not {"chain", "number"} <= {*used}:  # of whole structures: a column `number` counts something else
            used = {key: title for key, title in used.items() if key not in ("number", "residue")}
        labelled = [_row(number, lines[number], names, used, value) for number, value in values.items()]
    if unread := [title for title in titles if title and title not in (names, *columns, *used.values())]:
        notes.insert(0, f"columns that are not read: {', '.join(unread)}")
    options = {"column": ", ".join(columns)} if value_column else {}
    options |= {"properties": columns} if len(columns) > 1 else {}
    return Table(kind, labelled, classes, options, about, notes)


def _by_title(rows: Mapping[int, Sequence[str]]) -> tuple[list[str], dict[int, dict[str, str]]]:
    """The titles, and the cells of every other row by them. Excel may write empty cells at the end of a row."""
    if len(rows) < 2:
        raise ValueError("no rows below the titles; expected columns name and value")
    (_, titles), *others = rows.items()
    for number, cells in others:
        if len(cells) < len(titles) or any(cells[len(titles) :]):
            raise ValueError(f"row {number} has {len(cells)} columns of {len(titles)}: {cells!r:.100}")
    return list(titles), {number: dict(zip(titles, cells)) for number, cells in others}


def _found(title: str, titles: Sequence[str]) -> str:
    """A column that is there once."""
    if titles.count(title) != 1:
        count = "several columns are" if title in titles else "no column is"
        raise ValueError(f"{count} called {title!r}, there are {', '.join(filter(None, titles))}; see --value-column")
    return title


def _row(number: int, line: Mapping[str, str], names: str, used: Mapping[str, str], value) -> Row:
    """A row with its label. Raises ValueError."""
    name, split = line[names], line[used["split"]].lower() if "split" in used else ""
    chain, place, residue = (line[used[key]] if key in used else "" for key in ("chain", "number", "residue"))
    residue = residue.upper()
    letter = ONE_LETTER[RESIDUE_INDEX[PARENT[residue]]] if residue in PARENT else residue
    wrong = {
        "without a name": not name,
        "of no residue that we know": letter and letter not in ONE_LETTER,
        "without a residue number": "number" in used and not re.fullmatch("-?[0-9]+[A-Za-z]?", place),
        "of no split, expected train, valid or test": split not in SPLIT_OF,
    }
    for reason, applies in wrong.items():
        if applies:
            raise ValueError(f"row {number} is {reason}: {[*line.values()]!r:.100}")
    return Row(number, name, chain, place, letter, SPLIT_OF[split], value)


def residue_labels(name: str, rows: Sequence[Row], positions: Sequence[tuple], types: Sequence[str]) -> dict[str, list]:
    """The labels of a structure's residues in file order, see `samples.py`; without rows for residues that it lacks.

    `positions` are the chain, number and insertion code of every residue, `types` their letters. Raises StructureError
    if the table has another type.
    """
    residue_of = {(chain, f"{number}{code}".strip()): i for i, (chain, number, code) in enumerate(positions)}
    found = {residue_of[key]: row for row in rows if (key := (row.chain, row.place)) in residue_of}
    found = dict(sorted(found.items()))
    for i, row in found.items():
        if row.residue not in ("", types[i]):
            reason = f"{row.chain}:{row.place} is {types[i]}, but {row.residue} in row {row.number} of the table"
            raise StructureError(name, "residues are numbered differently", reason)
    places = [f"{row.chain}:{row.place}" for row in found.values()]
    return {"values": [row.value for row in found.values()], "rows": [*found], "places": places}


# ---- values ----------------------------------------------------------------------------------------------------------


def _squeezed(text: str) -> str:
    """A word as it is compared: `N. D.` is `n.d.`."""
    return re.sub(r"\s", "", text).lower()


def _number(text: str) -> float | None:
    """The number that a text stands for, also with a decimal comma; else None. Python alone would also read 1_000."""
    text = text.replace("\N{MINUS SIGN}", "-")
    if re.fullmatch(r"[+-]?\d*,\d+(e[+-]?\d+)?", text, re.IGNORECASE):
        text = text.replace(",", ".")
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _kind_of(cells: Mapping[str, Mapping[int, str]], words: Collection[str]) -> str:
    """The kind that the values look like. Raises ValueError if some are numbers, and others are not."""
    texts = [(n, x) for column in cells.values() for n, x in column.items() if _squeezed(x) not in NOT_MEASURED | words]
    others = [(n, text) for n, text in texts if _number(text) is None]
    if not others:
        return "binary" if {_number(text) for _, text in texts} == {0, 1} else "regression"
    number, text = others[0]
    if len(others) < len(texts) or all(re.fullmatch(r"-?\d+ ?[,_][\d,_. ]*", text) for _, text in others):
        reason = f"row {number}: {text!r:.50} is no number, and other values look like numbers"
        raise ValueError(
            f'{reason}. If it was not measured: --missing "{text:.50}". Names need --kind classes or labels'
        )
    units = [UNIT.fullmatch(text) for _, text in others]
    if all(units) and len({re.sub(r"[\d.,]+", "", match[1]) for match in units}) == 1:
        raise ValueError(f"row {number}: {text!r:.50} has a unit: write numbers alone. Names need --kind classes")
    return "labels" if any("," in text for _, text in others) else "classes"


def _numbers(cells: Mapping[str, Mapping[int, str]], kind: str, words: Collection[str]) -> tuple[dict, str, list[str]]:
    """Values by row, of several columns as lists with nan in the gaps; the values in words; notes."""
    values, about, notes = {}, [], []
    for i, (title, column) in enumerate(cells.items()):
        commas = [text for text in column.values() if "," in text and _number(text) is not None]
        known, gaps = [], Counter()
        for number, text in column.items():
            if _squeezed(text) in NOT_MEASURED | words:
                gaps[text or "empty"] += 1
                continue
            value = _number(text)
            if value is None or not abs(value) <= LARGEST or (kind == "binary" and value not in (0, 1)):
                advice = f'; if it was not measured: --missing "{text:.50}"' if value is None else ""
                advice = "; write numbers alone" if UNIT.fullmatch(text) else advice
                raise ValueError(f"row {number}: {text!r:.50} is no value for {kind}{advice}")
            if commas and "." in text:
                mixed = f"{text!r:.50} has a decimal point, but {commas[0]!r:.50} a decimal comma"
                raise ValueError(f"row {number}: {mixed}")
            values.setdefault(number, [math.nan] * len(cells))[i] = value
            known.append(value)
        of = f"{title}: " if len(cells) > 1 else ""
        if not known:
            raise ValueError(f"column {title} has no value")
        if commas and len(commas) < len(known) and all(map(THOUSANDS.fullmatch, commas)):
            plain, decimal = commas[0].replace(",", ""), commas[0].replace(",", ".")
            raise ValueError(f"is {commas[0]!r} {plain} or {decimal}? Some numbers are whole: write all without commas")
        different, size = len({*known}), f"{min(known):g} to {max(known):g}"
        about.append(of + (f"{known.count(1)} of {len(known)} are 1" if kind == "binary" else size))
        notes += [f"{of}decimal commas, {commas[0]} is read as {_number(commas[0]):g}"] if commas else []
        if gaps:
            kinds = ", ".join(f"{text} {count}" for text, count in gaps.most_common())
            notes.append(f"{of}{gaps.total()} of {len(column)} rows were not measured ({kinds})")
        if kind == "regression" and 1 < different <= FEW < len(known) and all(x == int(x) for x in known):
            notes.append(f"{of}only {different} different whole numbers: --kind classes if they are names")
    values = {number: row if len(row) > 1 else row[0] for number, row in sorted(values.items())}
    return values, ", ".join(about), notes


def _classes(
    column: Mapping[int, str], kind: str, words: Collection[str]
) -> tuple[dict, tuple[str, ...], str, list[str]]:
    """Classes by row, a name or a list of names; all names; how many there are of each; notes."""
    words = words if kind == "labels" else words | {""}
    there = {number: text for number, text in column.items() if _squeezed(text) not in words}
    split = {number: [part.strip() for part in text.split(",") if part.strip()] for number, text in there.items()}
    count = Counter(name for names in split.values() for name in names) if kind == "labels" else Counter(there.values())
    if len(count) < 2:
        raise ValueError(f"one class only: {[*count]!r:.100}")
    about = ", ".join(f"{name} {number}" for name, number in count.most_common(SHOWN))
    notes = [f"{gaps} of {len(column)} rows have no class"] if (gaps := len(column) - len(there)) else []
    if (once := [*count.values()].count(1)) > len(count) / 2:
        notes.append(f"{once} of {len(count)} classes are named once: is this the right column?")
    about = f"{len(count)} classes: {about}{', ...' if len(count) > SHOWN else ''}"
    return split if kind == "labels" else there, tuple(sorted(count)), about, notes
