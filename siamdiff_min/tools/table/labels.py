"""A table of labels: from text to checked values, before a structure is read.

    name    value           name    chain   number  residue  value
    1abc    3.2             1abc    A       52      W        0.7
    2def    -1.5            1abc    A       52A     GLY      0.1

Cells are set apart by tabs, semicolons or commas, and may be in quotes (docs/extending.md). A column `split` may say
train, valid or test, a column `family` which structures stay together. Rows are numbered as in a spreadsheet, in which
the titles are row 1.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...files import StructureError, read_rows, structure_errors
from ...protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ...reading.endings import without_ending

MALFORMED = "malformed table"
SPLIT_OF = {"": "", "train": "train", "valid": "valid", "val": "valid", "test": "test"}
OF_RESIDUES = ("chain", "number", "residue")
NOT_MEASURED = {"", "na", "n/a", "#n/a", "nan"}  # among numbers, in any case. Among classes, NA may be sodium
LARGEST = 3.4e38  # in float32, in which targets are kept
CLASSES = ("classes", "labels")  # the kinds that are not numbers: one name, or any number of them
ADVICE = "numbers are plain, as 0.5; --missing takes words for no value, --kind classes or labels names"
SHOWN = 12  # classes to list: about two lines
SHOWN_FAULTS = 3  # of each kind
LONGEST = 300  # letters of a fault: a cell may hold any text


@dataclass(frozen=True)
class Row:
    """The label of a structure or of a residue."""

    number: int  # as in a spreadsheet
    name: str
    place: str  # chain, number and insertion code of the residue, "A:52A"; "" if the label is of a structure
    residue: str  # type of the residue, one letter; "" if the table does not say
    split: str  # train, valid, test; "" if the table does not say
    value: float | str | list[str]  # a number, a class, or a list of classes
    family: str = ""  # structures of one family stay together; "" if the table does not say


class Faults:
    """What is wrong with the table of a file: all is named at once, the first three faults of each kind."""

    def __init__(self, path):
        self.path = path
        self.found: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, fault: str) -> None:
        """Keep a fault, to go on with others."""
        self.found[kind].append(fault[:LONGEST])

    def check(self) -> None:
        """Raise StructureError if there are any."""
        said = []
        for faults in self.found.values():
            said += faults[:SHOWN_FAULTS]
            if len(faults) > SHOWN_FAULTS:
                said.append(f"and {len(faults) - SHOWN_FAULTS} more of this kind")
        if said:
            raise StructureError(self.path, MALFORMED, "; ".join(said))


@dataclass(frozen=True)
class Table:
    """The labels of a table."""

    kind: str
    rows: list[Row]  # those with a value
    classes: tuple[str, ...]  # in the order of the outputs
    about: str  # the values in words
    notes: list[str]  # for the user: what is not read
    faults: Faults  # the caller may look for more, and then checks them


def structure_called(written: str, there: Collection[str]) -> str:
    """The structure of `there` that a name in a table, an id or a file name means, or that name without its ending.

    A name that is there counts as it is, so that of `p.pdb` and `p.cif`, which are the structures `p` and `p.cif`, each
    file name means its own.
    """
    return next((name for name in (written, f"{written}.gz") if name in there), without_ending(written))


def read_spreadsheet(path) -> dict[int, list[str]]:
    """The cells of a table of the user's by row, see `read_rows`; set apart by tabs, or what line 1 has most of.

    Raises StructureError.
    """
    with structure_errors(path, "not a table of text in UTF-8 (a spreadsheet saves it as CSV UTF-8)"):
        text = Path(path).read_text("utf-8-sig")
    first = text.strip().partition("\n")[0]
    return read_rows(path, "\t" if "\t" in first else max(";,", key=first.count), text)


def read_table(
    path,
    kind: str | None = None,
    name_column: str | None = None,
    value_column: str | None = None,
    missing: Iterable[str] | None = None,
) -> Table:
    """Read a table of labels.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of classes at once,
            with commas); by default what the values look like.
        name_column: title of the names; by default `name`, else the first column.
        value_column: title of the values; by default `value`.
        missing: words for a value that was not measured, beside NOT_MEASURED.

    Raises StructureError for other titles, or if no row has a value; what is wrong with single rows is in `faults`.
    """
    faults = Faults(path)
    used, unread, lines = _columns(path, name_column, value_column, faults)

    # Which rows have a value? By default the kind is that of all numbers, of 0 and 1, or of names.
    words = {word.lower() for word in missing or ()}
    measured = [line["value"] for line in lines.values() if line["value"].lower() not in NOT_MEASURED | words]
    kind = kind or _kind_of(measured)
    gaps = {"classes": {"", *words}, "labels": words}.get(kind, NOT_MEASURED | words)
    rows = []
    for number, line in lines.items():
        if line["value"].lower() not in gaps:
            rows.append(_row(number, line, kind, faults))
    if not rows:
        faults.add("column", f"column {used['value']} has no value")
        faults.check()

    # In words, for the user.
    notes = [f"columns that are not read: {', '.join(unread)}"] if unread else []
    if len(rows) < len(lines):
        notes.append(f"{len(lines) - len(rows)} of {len(lines)} rows were not measured")
    values = [row.value for row in rows]
    classes = tuple(sorted(_count_classes(values))) if kind in CLASSES else ()
    return Table(kind, rows, classes, _in_words(values, kind), notes, faults)


def _columns(
    path, name_column: str | None, value_column: str | None, faults: Faults
) -> tuple[dict[str, str], list[str], dict[int, dict[str, str]]]:
    """The titles that are read by what they mean, those that are not read, and the cells of every row by meaning."""
    rows = read_spreadsheet(path)
    if len(rows) < 2:
        raise StructureError(path, MALFORMED, "no rows below the titles; expected columns name and value")
    (_, titles), *others = rows.items()
    title_of = {title.lower(): title for title in reversed(titles) if title}
    names = name_column or title_of.get("name", titles[0])
    values = value_column or title_of.get("value", "value")
    for title in (names, values):
        if titles.count(title) != 1:
            there = ", ".join(filter(None, titles))
            advice = "see --name-column and --value-column"
            raise StructureError(path, MALFORMED, f"expected one column {title!r}, there are {there}; {advice}")

    # Labels are of residues if there are chains and numbers. Else a column `number` counts something else.
    known = ["split", "family", *OF_RESIDUES] if {"chain", "number"} <= title_of.keys() else ["split", "family"]
    used = {key: title_of[key] for key in known if title_of.get(key) not in (None, names, values)}
    used |= {"name": names, "value": values}
    unread = [title for title in titles if title and title not in used.values()]

    # Excel may write empty cells at the end of a row.
    lines = {}
    for number, cells in others:
        if len(cells) < len(titles) or any(cells[len(titles) :]):
            faults.add("width", f"row {number} has {len(cells)} columns of {len(titles)}: {cells!r}")
            continue
        by_title = dict(zip(titles, cells))
        lines[number] = {key: by_title[title] for key, title in used.items()}
    return used, unread, lines


def _row(number: int, line: Mapping[str, str], kind: str, faults: Faults) -> Row:
    """A row with its label."""
    cell = defaultdict(str, line)
    residue = cell["residue"].upper()
    letter = ONE_LETTER[RESIDUE_INDEX[PARENT[residue]]] if residue in PARENT else residue
    split = cell["split"].lower()
    wrong = {
        "without a name": not cell["name"],
        "of no residue that we know": letter and letter not in ONE_LETTER,
        "without a residue number": "number" in line and not re.fullmatch("-?[0-9]+[A-Za-z]?", cell["number"]),
        "of no split, expected train, valid or test": split not in SPLIT_OF,
    }
    for reason, applies in wrong.items():
        if applies:
            faults.add(reason, f"row {number} is {reason}: {[*line.values()]!r}")
    try:
        value = _value(cell["value"], kind)
    except ValueError:
        value = math.nan
        faults.add("value", f"row {number}: {cell['value']!r} is no value for {kind}")
        faults.found["advice"] = [ADVICE]  # once
    place = f"{cell['chain']}:{cell['number']}" if "number" in line else ""
    return Row(number, cell["name"], place, letter, SPLIT_OF.get(split, ""), value, cell["family"])


# ---- values ----------------------------------------------------------------------------------------------------------


def _kind_of(texts: Sequence[str]) -> str:
    """The kind that values look like."""
    try:
        return "binary" if {*map(float, texts)} == {0, 1} else "regression"
    except ValueError:
        pass

    # A name among numbers is a mistake, and so may be a value that begins with a digit, such as 1,5 or >100 or 30 %.
    if any(re.match(r"\W*\d", text) for text in texts):
        return "regression"
    return "labels" if any("," in text for text in texts) else "classes"


def _value(text: str, kind: str) -> float | str | list[str]:
    """The value of a cell: a number, a class, or some. Raises ValueError if it is none of this kind."""
    if kind == "classes":
        return text
    if kind == "labels":
        return [part.strip() for part in text.split(",") if part.strip()]
    value = float(text)
    if not abs(value) <= LARGEST or (kind == "binary" and value not in (0, 1)):
        raise ValueError
    return value


def _count_classes(values: Iterable) -> Counter[str]:
    """How often each class is named."""
    return Counter(name for value in values for name in ([value] if isinstance(value, str) else value))


def _in_words(values: list, kind: str) -> str:
    """The range of numbers, or how many there are of each class."""
    if kind in CLASSES:
        count = _count_classes(values)
        sizes = ", ".join(f"{name} {size}" for name, size in count.most_common(SHOWN))
        return f"{len(count)} classes: {sizes}" + (", ..." if len(count) > SHOWN else "")
    if kind == "binary":
        return f"{values.count(1)} of {len(values)} are 1"
    return f"{min(values):g} to {max(values):g}"
