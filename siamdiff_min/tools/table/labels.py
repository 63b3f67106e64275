"""A table of labels: from text to checked values, before torch is loaded or a structure is read.

    name    value           name    chain   number  residue  value
    1abc    3.2             1abc    A       52      W        0.7
    2def    -1.5            1abc    A       52A     GLY      0.1

Cells are set apart by tabs, semicolons or commas, and may be in quotes (docs/extending.md). A column `split` may say
train, valid or test, a column `family` which structures stay together. Rows are numbered as in a spreadsheet, in which
the titles are row 1.
"""

import codecs
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...files import StructureError, first_three, read_rows, structure_errors
from ...protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ...reading.endings import without_ending

MALFORMED = "malformed table"
SPLIT_OF = {"": "", "train": "train", "valid": "valid", "val": "valid", "test": "test"}
NOT_MEASURED = {"", "na", "n/a", "#n/a", "nan"}  # among numbers, in any case. Among classes, NA may be sodium
# 5, -1e-3, 0,5, >= 100
NUMBER = re.compile(r"(?:[<>\u2264\u2265]=?\s*)?([-+\u2212]?(\d+\.?|\d*[.,]\d+)(e[-+]?\d+)?)", re.IGNORECASE)
THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")  # as Excel may write 1830, or a number with three decimals
# What a spreadsheet makes of a number or a name, in any language: 2026-03-01, 1.3.26, 2-Mar, 1. Mrz, Mar-02, 1.00E+10.
CHANGED = re.compile(
    r"\d{1,4}([-./])\d\d?\1\d{1,4}([ T].*)?|\d\d?[-. ]+[^\W\d_]{3,9}\.?|[^\W\d_]{3}[- ]\d\d|"
    r"\d\d?\u6708\d\d?\u65e5|\d[.,]\d+E\+\d+"
)
LARGEST = 3.4e38  # in float32, in which targets are kept
CLASSES = ("classes", "labels")  # the kinds that are not numbers: one name, or any number of them
ADVICE = "numbers stand alone, as 0.5; --missing takes words for no value, --kind classes or labels names"
SHOWN = 12  # classes to list: about two lines
SHOWN_FAULTS = 3  # of each kind
LONGEST = 300  # letters of a fault: a cell may hold any text


@dataclass(frozen=True)
class Row:
    """The label of a structure, of a chain, or of a residue."""

    number: int  # as in a spreadsheet
    name: str
    place: str  # chain, number and insertion code of the residue, "A:52A"; "" if the label is of a structure
    residue: str  # type of the residue, one letter; "" if the table does not say
    split: str  # train, valid, test; "" if the table does not say
    value: float | str | list  # a number, a class, or a list of classes; of several columns the number of each, or nan
    family: str = ""  # structures of one family stay together; "" if the table does not say
    chain: str = ""  # of a file with several, if the label is of this chain alone


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
    classes: tuple[str, ...]  # in the order of the outputs; of several columns of numbers their titles
    about: str  # the values in words
    unread: list[str]  # titles of columns that are not read
    notes: list[str]  # for the user: these, and what may not be meant
    faults: Faults  # the caller may look for more, and then checks them


def structure_called(written: str, there: Collection[str]) -> str:
    """The structure of `there` that a name in a table, an id or a file name means, or that name without its ending.

    A name that is there counts as it is, so that of `p.pdb` and `p.cif`, which are the structures `p` and `p.cif`, each
    file name means its own.
    """
    return next((name for name in (written, f"{written}.gz") if name in there), without_ending(written))


def if_changed(text: str) -> str:
    """For an error, what may have happened to a cell; else nothing."""
    return " (a date? a spreadsheet may have changed it)" if CHANGED.fullmatch(text) else ""


def read_spreadsheet(path) -> dict[int, list[str]]:
    """The cells of a table of the user's by row, see `read_rows`; set apart by tabs, or what line 1 has most of.

    The text may be in UTF-8 or as Excel writes it: UTF-16, or the code page of Western Windows. Raises StructureError.
    """
    with structure_errors(path, "cannot be opened"):
        data = Path(path).read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if b"\0" in data and not wide:
        raise StructureError(path, "not a table of text", "a spreadsheet saves one as CSV")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    first = text.strip().partition("\n")[0]
    return read_rows(path, "\t" if "\t" in first else max(";,", key=first.count), text)


def read_table(
    path,
    kind: str | None = None,
    name_column: str | None = None,
    value_column: str | Sequence[str] | None = None,
    missing: Iterable[str] | None = None,
) -> Table:
    """Read a table of labels.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of classes at once,
            with commas); by default what the values look like.
        name_column: title of the names; by default `name`, else the first column.
        value_column: title of the values, or of several columns of numbers; by default `value`.
        missing: words for a value that was not measured, beside NOT_MEASURED.

    Raises StructureError for other titles, or if a column has no value; what is wrong with single rows is in `faults`.
    """
    faults = Faults(path)
    columns = [value_column] if isinstance(value_column, str) else [*(value_column or ())]
    columns, unread, lines = _columns(path, name_column, columns, faults)

    # Which cells have a value? By default the values decide on the kind: numbers, 0 and 1, or names.
    words = {word.lower() for word in missing or ()}
    texts = [line[str(i)] for line in lines.values() for i in range(len(columns))]
    kind = kind or _kind_of([text for text in texts if text.lower() not in NOT_MEASURED | words])
    gaps = {"classes": {"", *words}, "labels": words}.get(kind, NOT_MEASURED | words)
    several = len(columns) > 1
    if several and kind in CLASSES:
        raise StructureError(path, MALFORMED, f"several columns must hold numbers, no {kind}: {', '.join(columns)}")

    # The values of every column, and what to say of them.
    notes = [f"columns that are not read: {', '.join(unread)}"] if unread else []
    about = []
    known: list[dict] = []  # of every column the values by row
    for i, title in enumerate(columns):
        column = {number: line[str(i)] for number, line in lines.items() if line[str(i)].lower() not in gaps}
        if not column:
            faults.add("column", f"column {title} has no value")
            faults.check()
        known.append({number: _value(number, text, kind, faults) for number, text in column.items()})
        said = [] if kind in CLASSES else _remarks([*column.values()], faults)
        if len(column) < len(lines):
            said.append(f"{len(lines) - len(column)} of {len(lines)} rows were not measured")
        of = f"{title}: " if several else ""
        notes += [of + remark for remark in said]
        about.append(of + _in_words([*known[i].values()], kind))

    # A row has at least one value.
    rows = []
    for number, line in lines.items():
        values = [of_column.get(number, math.nan) for of_column in known]
        if any(number in of_column for of_column in known):
            rows.append(_row(number, line, values if several else values[0], faults))
    classes = tuple(sorted(_count_classes(row.value for row in rows))) if kind in CLASSES else ()
    return Table(kind, rows, tuple(columns) if several else classes, ", ".join(about), unread, notes, faults)


def _columns(
    path, name_column: str | None, columns: Sequence[str], faults: Faults
) -> tuple[Sequence[str], list[str], dict[int, dict[str, str]]]:
    """Titles of the values, and of what is not read; the cells of every row by their meaning, of values by a number."""
    rows = read_spreadsheet(path)
    if len(rows) < 2:
        raise StructureError(path, MALFORMED, "no rows below the titles; expected columns name and value")
    (_, titles), *others = rows.items()
    title_of = {title.lower(): title for title in reversed(titles) if title}
    names = name_column or title_of.get("name", titles[0])
    columns = columns or [title_of.get("value", "value")]
    for title in (names, *columns):
        if titles.count(title) != 1:
            there = ", ".join(filter(None, titles))
            advice = "see --name-column and --value-column"
            raise StructureError(path, MALFORMED, f"expected one column {title!r}, there are {there}; {advice}")

    # Labels are of residues if there are chains and numbers. Else a column `number` counts something else.
    of_residues = ("number", "residue") if {"chain", "number"} <= title_of.keys() else ()
    known = ("split", "family", "chain", *of_residues)
    used = {key: title_of[key] for key in known if title_of.get(key) not in (None, names, *columns)}
    used |= {"name": names, **{str(i): title for i, title in enumerate(columns)}}
    unread = [title for title in titles if title and title not in used.values()]

    # Excel may write empty cells at the end of a row.
    lines = {}
    for number, cells in others:
        if len(cells) < len(titles) or any(cells[len(titles) :]):
            faults.add("width", f"row {number} has {len(cells)} columns of {len(titles)}: {cells!r}")
            continue
        by_title = dict(zip(titles, cells))
        lines[number] = {key: by_title[title] for key, title in used.items()}
    return columns, unread, lines


def _row(number: int, line: Mapping[str, str], value: float | str | list, faults: Faults) -> Row:
    """A row with its label."""
    cell = defaultdict(str, line)
    place = cell["number"].removesuffix(".0")  # as pandas writes whole numbers beside a gap
    residue = cell["residue"].upper()
    letter = ONE_LETTER[RESIDUE_INDEX[PARENT[residue]]] if residue in PARENT else residue
    split = cell["split"].lower()
    wrong = {
        "without a name": not cell["name"],
        "of no residue that we know": letter and letter not in ONE_LETTER,
        "without a residue number": "number" in line and not re.fullmatch("-?[0-9]+[A-Za-z]?", place),
        "of no split, expected train, valid or test": split not in SPLIT_OF,
    }
    for reason, applies in wrong.items():
        if applies:
            faults.add(reason, f"row {number} is {reason}: {[*line.values()]!r}")
    chain = cell["chain"]
    if "number" in line:
        place = f"{chain}:{place}"
        chain = ""
    return Row(number, cell["name"], place, letter, SPLIT_OF.get(split, ""), value, cell["family"], chain)


# ---- values ----------------------------------------------------------------------------------------------------------


def _number(text: str) -> float:
    """The number that a text stands for, also with a decimal comma, or behind `>` or `<`; nan if it is none."""
    found = NUMBER.fullmatch(text)
    return float(found[1].replace(",", ".").replace("\N{MINUS SIGN}", "-")) if found else math.nan


def _kind_of(texts: Sequence[str]) -> str:
    """The kind that values look like."""
    values = [_number(text) for text in texts]
    if not any(map(math.isnan, values)):
        return "binary" if {*values} == {0, 1} else "regression"

    # A name among numbers is a mistake, and so may be a value that begins with a digit, such as 30 % or 1.234,5.
    if any(re.match(r"\W*\d", text) for text in texts):
        return "regression"
    return "labels" if any("," in text for text in texts) else "classes"


def _value(number: int, text: str, kind: str, faults: Faults) -> float | str | list[str]:
    """The value of a cell: a number, a class, or some."""
    if kind == "classes":
        return text
    if kind == "labels":
        return [part.strip() for part in text.split(",") if part.strip()]
    value = _number(text)
    if not abs(value) <= LARGEST or (kind == "binary" and value not in (0, 1)):
        faults.add("value", f"row {number}: {text!r} is no value for {kind}{if_changed(text)}")
        faults.found["advice"] = [ADVICE]  # once
    return value


def _remarks(texts: Sequence[str], faults: Faults) -> list[str]:
    """What may not be meant by the numbers of a column: commas, bounds, and names that are numbers."""
    notes = []
    commas = [text for text in texts if "," in text]
    points = [text for text in texts if "." in text]
    if commas:
        notes.append(f"decimal commas: {commas[0]} is read as {_number(commas[0]):g}")
    if commas and points:
        faults.add("commas", f"{points[0]!r} has a decimal point, but {commas[0]!r} a decimal comma")
    elif commas and len(commas) < len(texts) and all(map(THOUSANDS.fullmatch, commas)):
        faults.add("commas", f"is {commas[0]!r} a decimal comma? Some numbers are whole: write all without commas")
    bounds = [text for text in texts if text[0] in "<>\u2264\u2265"]
    if bounds:
        notes.append(f"{len(bounds)} bounds ({first_three(bounds)}) are read as the number behind the sign")

    # 1.1 and 1.10 of a classification.
    last = {_number(text): text for text in points}
    alike = [text for text in points if last[_number(text)] != text]
    if alike:
        notes.append(f"{alike[0]} and {last[_number(alike[0])]} are one number: --kind classes if they are names")
    return notes


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
