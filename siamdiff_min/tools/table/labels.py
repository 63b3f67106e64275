"""A table of labels: from text to checked values, before torch is loaded or a structure is read.

    name    value           name    chain   number  residue  value
    1abc    3.2             1abc    A       52      W        0.7
    2def    -1.5            1abc    A       52A     GLY      0.1

Cells are set apart by tabs, semicolons or commas, and may be in quotes (docs/extending.md). A column `split` may say
train, valid or test, a column `family` or `group` which structures stay together. Rows are numbered as in a
spreadsheet, in which the titles are row 1.
"""

import codecs
import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...files import StructureError, read_rows, structure_errors
from ...protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ...reading.endings import without_ending
from .faults import Faults
from .values import CLASSES, DATE, count_classes, kind_of, read_values, squeezed

SPLIT_OF = {"": "", "train": "train", "valid": "valid", "val": "valid", "test": "test"}
# Titles that others give to the columns `chain` and `number`. A column `number` alone counts something else.
TELLING = ("resid", "resi", "resnum", "res_num", "residue_number", "position", "pos", "resseq", "number")
TELLING += ("chains", "chain_id", "chainid")
RESIDUE_ID = re.compile(r"(.+):([^:]*):(-?\d+[A-Za-z]?)")  # 1abc:A:52, as predictions.tsv names residues


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


def read_spreadsheet(path) -> dict[int, list[str]]:
    """The cells of a table of the user's by row, see `read_rows`; set apart by tabs, or what line 1 has most of.

    The text may be in UTF-8 or as Excel writes it: UTF-16, or the code page of Western Windows. Raises StructureError.
    """
    with structure_errors(path, "cannot be opened"):
        data = Path(path).read_bytes()
    if data.startswith((b"PK\3\4", b"\xd0\xcf\x11\xe0")):
        raise StructureError(path, "a workbook, not text", "save it as CSV")
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    first = re.split("[\r\n]", text.strip(), maxsplit=1)[0]
    return read_rows(path, "\t" if "\t" in first else max("\t;,", key=first.count), text)


def read_table(
    path,
    kind: str | None = None,
    name_column: str | None = None,
    value_column: Sequence[str] | None = None,
    missing: Sequence[str] | None = None,
    keep_repeats: bool = False,
    faults: Faults | None = None,
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
        faults: takes the faults, for a caller who looks for more and then raises all.

    Raises StructureError, which names the rows: all faults, the first three of each kind.
    """
    rows = read_spreadsheet(path)
    only_ours = faults is None
    faults = faults or Faults(path)
    with structure_errors(path, "malformed table"):
        # Which columns hold names and values?
        titles, lines = _by_title(rows, faults)
        title_of = {title.lower(): title for title in reversed(titles) if title}
        names = name_column or title_of.get("name", titles[0])
        columns = value_column or [title_of.get("value", "value")]
        wrong = [title for title in (names, *columns) if titles.count(title) != 1]
        for title in wrong:
            there = ", ".join(filter(None, titles))
            faults.add("columns", f"expected one column called {title!r}, there are {there}; see --value-column")
        if wrong:
            faults.check()

        # And what these are of? Names may be ids of residues. Without chains a column `number` counts something else.
        ids = {number: RESIDUE_ID.fullmatch(line[names]) for number, line in lines.items()}
        dates = any(DATE.fullmatch(line[names]) for line in lines.values())  # 2026-03-01 00:00:00
        if lines and all(ids.values()) and not dates and not {"chain", "number"} & title_of.keys():
            title_of |= {"chain": "chain", "number": "number"}
            parts = (names, "chain", "number")
            lines = {number: line | dict(zip(parts, ids[number].groups())) for number, line in lines.items()}
        others = {key: title for key, title in title_of.items() if title not in (names, *columns)}
        if "group" in others:
            others.setdefault("family", others["group"])
        known = ["chain", "split", "family"]
        if {"chain", "number"} <= others.keys():
            known += ["number", "residue"]
        used = {"name": names} | {key: others[key] for key in known if key in others}
        unread = [title for title in titles if title and title not in {*columns, *used.values()}]
        if unread:
            faults.notes.append(f"columns that are not read: {', '.join(unread)}")

        # The values of every row, and what each is of.
        cells = {column: {number: line[column] for number, line in lines.items()} for column in columns}
        words = {squeezed(word) for word in missing or ()}
        kind = kind or kind_of(cells, words)
        classes = tuple(columns) if len(columns) > 1 else ()
        if kind in CLASSES and classes:
            raise ValueError(f"several value columns must hold numbers, {kind} cannot be in {', '.join(columns)}")
        values, about = read_values(cells, kind, words, faults, odd=not keep_repeats)
        if kind in CLASSES:
            classes = tuple(sorted(count_classes(values.values())))
        labelled = []
        for number, value in values.items():
            labelled += _row(number, lines[number], used, value, faults)
        if not keep_repeats:
            labelled = _merge_repeats(labelled, unread, kind, faults)
        if only_ours or not labelled:
            faults.check()
    options: dict = {"column": ", ".join(columns)} if value_column else {}
    if len(columns) > 1:
        options["properties"] = columns
    return Table(kind, labelled, classes, options, about, faults.notes)


def _by_title(rows: Mapping[int, Sequence[str]], faults: Faults) -> tuple[Sequence[str], dict[int, dict[str, str]]]:
    """The titles, and the cells of every other row by them. Excel may write empty cells at the end of a row."""
    if len(rows) < 2:
        raise ValueError("no rows below the titles; expected columns name and value")
    (_, titles), *others = rows.items()
    width = len(titles)
    lines = {}
    for number, cells in others:
        if len(cells) < width or any(cells[width:]):
            faults.add("width", f"row {number} has {len(cells)} columns of {width}: {cells!r}")
        else:
            lines[number] = dict(zip(titles, cells))
    return titles, lines


def _row(number: int, line: Mapping[str, str], used: Mapping[str, str], value, faults: Faults) -> list[Row]:
    """A row with its label; none if it does not say what it is of."""
    cell = defaultdict(str, {key: line[title] for key, title in used.items()})
    place = cell["number"].removesuffix(".0")  # as pandas writes whole numbers beside a gap
    residue = cell["residue"].upper()
    letter = ONE_LETTER[RESIDUE_INDEX[PARENT[residue]]] if residue in PARENT else residue
    split = cell["split"].lower()
    wrong = {
        "without a name": not cell["name"],
        "of no residue that we know": letter and letter not in ONE_LETTER,
        "without a residue number": "number" in used and not re.fullmatch("-?[0-9]+[A-Za-z]?", place),
        "of no split, expected train, valid or test": split not in SPLIT_OF,
    }
    for reason, applies in wrong.items():
        if applies:
            faults.add(reason, f"row {number} is {reason}: {[*line.values()]!r}")
    if wrong["without a name"] or wrong["without a residue number"]:
        return []
    return [Row(number, cell["name"], cell["chain"], place, letter, SPLIT_OF.get(split, ""), value, cell["family"])]


def _merge_repeats(rows: Sequence[Row], unread: Sequence[str], kind: str, faults: Faults) -> list[Row]:
    """One row for each structure or residue, in place of several the mean of their numbers.

    Faults are repeats with different classes or splits, 0 and 1, and a column that is not read but may tell them apart.
    """
    together = defaultdict(list)
    for row in rows:
        together[row.name, row.chain, row.place].append(row)
    telling = [title for title in unread if title.lower() in TELLING]
    merged = []
    repeats = []
    for same in together.values():
        first = same[0]
        value = first.value if kind in CLASSES else _mean([row.value for row in same])
        merged.append(replace(first, value=value))
        if len(same) == 1:
            continue
        repeats += same
        which = f"rows {', '.join(str(row.number) for row in same)} are of {first.name} {first.place}".rstrip()
        said = {(row.split, row.family, str(row.value) if kind in CLASSES else "") for row in same}
        if len(said) > 1 or (kind == "binary" and any(0 < x < 1 for x in np.ravel(value))):
            faults.add("repeats", f"{which}, but differ: keep one (--kind regression learns the mean of 0 and 1)")
        for title in telling:
            faults.add("titles", f"{which}: labels of residues need columns 'chain' and 'number', there is {title!r}")
    if repeats:
        count = len(merged) - len(rows) + len(repeats)
        of = f"{len(repeats)} rows are repeats, of {count} structures or residues"
        faults.notes.append(f"{of}: their mean is taken")
    return merged


def _mean(values: Sequence[float | list]) -> float | list:
    """The mean of numbers, without nan; of lists of them, the mean of each place."""
    if isinstance(values[0], list):
        return [_mean(of_property) for of_property in zip(*values)]
    there = [value for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else math.nan
