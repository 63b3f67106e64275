"""A table of labels: from text to checked values, before torch is loaded or a structure is read.

    name    value           name    chain   number  residue  value
    1abc    3.2             1abc    A       52      W        0.7
    2def    -1.5            1abc    A       52A     GLY      0.1

Cells are set apart by tabs, semicolons or commas, and may be in quotes (docs/extending.md). A column `split` may say
train, valid or test, a column `family` or `group` which structures stay together. Rows are numbered as in a
spreadsheet, in which the titles are row 1.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...files import StructureError, read_rows, structure_errors
from ...protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ...reading.endings import without_ending
from .faults import Faults
from .values import kind_of, odd_values, read_classes, read_numbers, squeezed

SPLIT_OF = {"": "", "train": "train", "valid": "valid", "val": "valid", "test": "test"}
# What a spreadsheet makes of a name: 2026-03-01, 1.3.26, 2-Mar, Mar-02, 1. Mrz; of 1E10 the number 1.00E+10. Months
# begin so in English, German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Polish, Turkish and Russian.
MONTHS = (
    "jan feb fe[bv] fév mar mär mrz mrt apr avr abr ma[ijyg] mei jun jui jul ju[nil] giu lug aug ago aoû sep set okt "
)
MONTHS += (
    "oct ott nov dec dez déc des dic gen ene sty lut kwi cze lip sie wrz paź lis gru oca şub nis haz tem ağu eyl eki "
)
MONTHS += "kas ara янв фев мар апр мая май июн июл авг сен окт ноя дек"
MONTH = f"({'|'.join(MONTHS.split())})[^\\W\\d_]{{0,7}}\\.?"
DATE = re.compile(
    rf"\d{{1,4}}[-./](\d\d?|{MONTH})[-./]\d{{1,4}}( .*)?|\d{{1,2}}[-./ ]{{1,2}}{MONTH}([-./ ]+\d{{2,4}})?"
    rf"|{MONTH}[-./ ]\d{{1,4}}|\d\d?[月월] ?\d\d?[日일]",
    re.IGNORECASE,
)
POWER = re.compile(r"\d([.,]\d+)?E\+\d+")
TELLING = {  # titles that people give to a column -> the title that it needs
    **dict.fromkeys(("resid", "resi", "resnum", "res_num", "residue_number", "position", "pos", "resseq"), "number"),
    **dict.fromkeys(("chains", "chain_id", "chainid"), "chain"),
}
OPTIONS = {  # of `finetune --task table`, as arguments of argparse, for `read_table`
    "labels": {"help": "file of labels for the structures of --data"},
    "name_column": {"help": "column of the names (default: name, or the first)"},
    "value_column": {"help": "columns of the values (default: value)", "nargs": "+"},
    "missing": {"help": "further words for a value that was not measured, such as n.d.", "nargs": "+"},
}


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
    family: str = ""  # structures of one family stay together; "" if the table does not say


@dataclass(frozen=True)
class Table:
    """The labels of a table."""

    kind: str
    rows: list[Row]  # those with a value
    classes: tuple[str, ...]  # in the order of the outputs; of several properties their names
    options: dict  # of the task: the title of the values, and the names of several properties
    about: str  # the values in words
    notes: list[str]  # for the user: what is not read, or looks odd


def structure_called(written: str, there: Collection[str]) -> str:
    """The structure of `there` that a name in a table, an id or a file name means, or that name without its ending.

    A name that is there counts as it is, so that of `p.pdb` and `p.cif`, which are the structures `p` and `p.cif`, each
    file name means its own.
    """
    return next((name for name in (written, f"{written}.gz") if name in there), without_ending(written))


def read_table(
    path,
    kind: str | None = None,
    name_column: str | None = None,
    value_column: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
    keep_repeats: bool = False,
    fewest: int = 2,
) -> Table:
    """Read and check a table of labels.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of classes at once,
            with commas); by default what the values look like.
        name_column: title of the names; by default `name`, else the first column.
        value_column: titles of the values, several of numbers; by default `value`.
        missing: words for a value that was not measured, beside NOT_MEASURED.
        keep_repeats: a row for each measurement, in place of the mean over those of one structure or residue; the
            caller looks for odd values.
        fewest: so many classes there must be.

    Raises StructureError, which names the rows: all faults, the first three of each kind.
    """
    rows = read_rows(path, "\t;,")
    faults = Faults(path)
    with structure_errors(path, "malformed table"):
        # Which columns hold names and values?
        titles, lines = _by_title(rows, faults)
        title_of = {title.lower(): title for title in reversed(titles) if title}
        names = _found(name_column, titles) if name_column else title_of.get("name", titles[0])
        wanted = value_column or [title_of.get("value", "value")]
        columns = []
        for title in wanted:
            with faults.of("columns"):
                columns.append(_found(title, titles))
        if len(columns) < len(wanted):
            faults.check()

        # The values of every row.
        cells = {}
        for column in columns:
            cells[column] = {number: line[column] for number, line in lines.items()}
        words = {squeezed(word) for word in missing or ()}
        kind = kind or kind_of(cells, words)
        if kind not in ("classes", "labels"):
            values, about, notes = read_numbers(cells, kind, words, faults)
            if kind == "regression" and not keep_repeats:
                notes += _odd_of_columns(columns, values)
            classes = tuple(columns) if len(columns) > 1 else ()
        elif len(columns) > 1:
            raise ValueError(f"several value columns must hold numbers, {kind} cannot be in {', '.join(columns)}")
        else:
            values, classes, about, notes = read_classes(cells[columns[0]], kind, words, fewest)

        # What the values are of.
        used = {key: title_of[key] for key in ("chain", "number", "residue", "split") if key in title_of}
        family = [title_of[title] for title in ("family", "group") if title in title_of]
        if family and family[0] not in (names, *columns):
            used["family"] = family[0]
        if not {"chain", "number"} <= used.keys():  # of whole structures: a column `number` counts something else
            used.pop("number", None)
            used.pop("residue", None)
        labelled = []
        for number, value in values.items():
            labelled += _row(number, lines[number], names, used, value, faults)
        read = {names, *columns, *used.values()}
        unread = [title for title in titles if title and title not in read]
        if unread:
            notes.insert(0, f"columns that are not read: {', '.join(unread)}")
        if not keep_repeats:
            labelled, averaged = _merge_repeats(labelled, unread, kind, faults)
            notes += averaged
        faults.check()
    options = {}
    if value_column:
        options["column"] = ", ".join(columns)
    if len(columns) > 1:
        options["properties"] = columns
    return Table(kind, labelled, classes, options, about, notes)


def _odd_of_columns(columns: Sequence[str], values: Mapping[int, float | list[float]]) -> list[str]:
    """What is odd about the numbers of each column, by their rows."""
    names = [f"row {number}" for number in values]
    table = np.array(list(values.values()), dtype=float).reshape(len(names), len(columns))
    notes = []
    for title, y in zip(columns, table.T):
        there = np.flatnonzero(~np.isnan(y))
        of = f"{title}: " if len(columns) > 1 else ""
        notes += [of + note for note in odd_values([names[i] for i in there], y[there])]
    return notes


def _by_title(rows: Mapping[int, Sequence[str]], faults: Faults) -> tuple[list[str], dict[int, dict[str, str]]]:
    """The titles, and the cells of every other row by them. Excel may write empty cells at the end of a row."""
    if len(rows) < 2:
        raise ValueError("no rows below the titles; expected columns name and value")
    (_, titles), *others = rows.items()
    width = len(titles)
    text, *more = [*filter(None, titles), ""]
    below = others[0][1]
    if more == [""] and (len([*filter(None, below)]) > 1 or re.search("[\t;,]", below[0])):
        raise ValueError(f"row 1 has one cell, {text!r:.50}: delete what stands above the titles of the columns")
    lines = {}
    for number, cells in others:
        if len(cells) < width or any(cells[width:]):
            faults.add("width", f"row {number} has {len(cells)} columns of {width}: {cells!r:.100}")
        else:
            lines[number] = dict(zip(titles, cells))
    if not lines:
        faults.check()
    return list(titles), lines


def _found(title: str, titles: Sequence[str]) -> str:
    """A column that is there once."""
    if titles.count(title) != 1:
        count = "several columns are" if title in titles else "no column is"
        raise ValueError(f"{count} called {title!r}, there are {', '.join(filter(None, titles))}; see --value-column")
    return title


def _row(number: int, line: Mapping[str, str], names: str, used: Mapping[str, str], value, faults: Faults) -> list[Row]:
    """A row with its label, if there are no faults."""
    cell = {key: line[title] for key, title in used.items()}
    name = line[names]
    split = cell.get("split", "").lower()
    place = cell.get("number", "").removesuffix(".0")  # as pandas writes whole numbers beside a gap
    residue = cell.get("residue", "").upper()
    letter = ONE_LETTER[RESIDUE_INDEX[PARENT[residue]]] if residue in PARENT else residue
    wrong = {
        "without a name": not name,
        "of no residue that we know": letter and letter not in ONE_LETTER,
        "without a residue number": "number" in used and not re.fullmatch("-?[0-9]+[A-Za-z]?", place),
        "of no split, expected train, valid or test": split not in SPLIT_OF,
    }
    for reason, applies in wrong.items():
        if applies:
            faults.add(reason, f"row {number} is {reason}: {[*line.values()]!r:.100}")
    if any(wrong.values()):
        return []
    return [Row(number, name, cell.get("chain", ""), place, letter, SPLIT_OF[split], value, cell.get("family", ""))]


def _merge_repeats(
    rows: Sequence[Row], unread: Sequence[str], kind: str, faults: Faults
) -> tuple[list[Row], list[str]]:
    """One row for each structure or residue, in place of several the mean of their numbers; a note.

    Faults are repeats with different classes or splits, 0 and 1. Raises ValueError if a column that is not read may
    tell them apart.
    """
    together = defaultdict(list)
    for row in rows:
        together[row.name, row.chain, row.place].append(row)
    repeated = [same for same in together.values() if len(same) > 1]
    if not repeated:
        return list(rows), []

    # Are they repeats at all?
    one, two, *_ = repeated[0]
    problem = f"row {two.number} is of {two.name:.100} {two.place}".rstrip() + f", like row {one.number}"
    for title in unread:
        if title.lower() == "number":  # it is read beside a column `chain` only
            raise ValueError(f"{problem}: numbers of residues need a column 'chain' too")
        if title.lower() in TELLING:
            meant = TELLING[title.lower()]
            raise ValueError(f"{problem}: is {title!r} the {meant}? Call it {meant!r}")

    merged = []
    for same in together.values():
        with faults.of("repeats"):
            merged.append(_merged(same, kind))
    count = sum(map(len, repeated))
    return merged, [f"{count} rows are repeats, of {len(repeated)} structures or residues: their mean is taken"]


def _merged(same: Sequence[Row], kind: str) -> Row:
    """One row for some of the same structure or residue. Raises ValueError if they contradict each other."""
    first, *others = same
    of = f"{first.name:.100} {first.place}".rstrip()
    alike = all(row.value == first.value for row in others)
    numbers = kind in ("regression", "binary")
    for row in others:
        if (row.split, row.family) != (first.split, first.family) or not (numbers or alike):
            raise ValueError(f"row {row.number} is of {of}, like row {first.number}, but says otherwise: keep one")
    value = first.value if alike else _mean([row.value for row in same])
    if kind == "binary" and any(0 < x < 1 for x in np.ravel(value)):
        both = ", ".join(str(row.number) for row in same[:5])
        raise ValueError(f"{of} is 0 and 1, in rows {both}: keep one, or --kind regression to learn the mean")
    return replace(first, value=value)


def _mean(values: Sequence[float | list]) -> float | list:
    """The mean of numbers, without nan; of lists of them, the mean of each place."""
    if isinstance(values[0], list):
        return [_mean(of_property) for of_property in zip(*values)]
    there = [value for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else math.nan


def residue_labels(name: str, rows: Sequence[Row], positions: Sequence[tuple], types: Sequence[str]) -> dict[str, list]:
    """The labels of a structure's residues in file order, see `samples.py`; without rows for residues that it lacks.

    `positions` are the chain, number and insertion code of every residue, `types` their letters. Raises StructureError
    if the table has another type.
    """
    residue_of = {}
    for i, (chain, number, code) in enumerate(positions):
        residue_of[chain, f"{number}{code}".strip()] = i

    # The row of every residue, in the order of the file.
    row_of = {}
    for row in rows:
        i = residue_of.get((row.chain, row.place))
        if i is None:
            continue
        if row.residue not in ("", types[i]):
            reason = f"{row.chain}:{row.place} is {types[i]}, but {row.residue} in row {row.number} of the table"
            raise StructureError(name, "residues are numbered differently", reason)
        row_of[i] = row
    found = dict(sorted(row_of.items()))
    return {
        "values": [row.value for row in found.values()],
        "rows": [*found],
        "places": [f"{row.chain}:{row.place}" for row in found.values()],
    }
