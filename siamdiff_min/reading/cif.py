"""mmCIF files to columns of atoms. Chain ids and residue numbers are the author's.

Biopython's parser reads what is not simple. A simple table has no text of several lines and no comment among its rows:
blanks alone tell where its values are.
"""

from __future__ import annotations

import io
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
from Bio.PDB.MMCIF2Dict import MMCIF2Dict

from ..files import StructureError, part, part_or_none
from ..protein.constants import PARENT
from .columns import BLANK, NO_NUMBER, OTHER_MODELS, WIDEST, Atoms, Column, Model, changes, decimals, pieces

COLUMNS = {  # of `_atom_site`: possible names, the first with a value counts; then the default of a missing column
    "model": ("pdbx_pdb_model_num", "1"),
    "chain": ("auth_asym_id", "label_asym_id", None),
    "number": ("auth_seq_id", "label_seq_id", None),
    "code": ("pdbx_pdb_ins_code", "?"),
    "residue": ("label_comp_id", "auth_comp_id", None),
    "atom": ("label_atom_id", "auth_atom_id", None),
    "altloc": ("label_alt_id", "."),
    "occupancy": ("occupancy", "?"),
    "x": ("cartn_x", None),
    "y": ("cartn_y", None),
    "z": ("cartn_z", None),
    "element": ("type_symbol", "?"),
    "group": ("group_pdb", "ATOM"),
    "label": ("label_asym_id", "."),
    "label_number": ("label_seq_id", "."),
    "b_factor": ("b_iso_or_equiv", "?"),
}
SITE = "_atom_site."
_HEADER = re.compile(r"\nloop_[ \t]*\n((?:_\S+[ \t]*\n)+)")  # of a table
_LAST_ROW = re.compile(r"\n(?:[#_;]|loop_|data_)")
SMALL = 2000  # letters of a table that is left to the parser


class Values:
    """The values of a column of a table: places in a text."""

    def __init__(self, buffer: np.ndarray, start: np.ndarray, end: np.ndarray):
        self.buffer = buffer  # bytes, with WIDEST others before the first and behind the last place
        self.start = start
        self.end = end

    @staticmethod
    def of(texts: list[str]) -> Values:
        encoded = [text.encode("latin-1", "replace") for text in texts]
        length = np.array([*map(len, encoded)], np.int64)
        end = length.cumsum() + WIDEST
        filling = b" " * WIDEST
        return Values(np.frombuffer(filling + b"".join(encoded) + filling, np.uint8), end - length, end)

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows) -> Values:
        """Some rows: their numbers, a mask or a slice."""
        return Values(self.buffer, self.start[rows], self.end[rows])

    def texts(self) -> list[str]:
        text = self.buffer.tobytes()
        return [text[i:j].decode("latin-1") for i, j in zip(self.start.tolist(), self.end.tolist())]

    def column(self) -> Column:
        """The texts as a column."""
        length = self.end - self.start
        width = int(length.max(initial=0))
        if width > WIDEST:
            return Column.of(self.texts())
        letters = pieces(self.buffer, self.start, width)
        letters[np.arange(width) >= length[:, None]] = 0
        return Column.of_letters(letters)

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers with a point (N,), and which of them can be read in this way."""
        length = self.end - self.start
        width = min(int(length.max(initial=0)), 15)  # so many digits are exact in a float
        letters = np.ascontiguousarray(pieces(self.buffer, self.end - width, width).T)
        letters[np.arange(width)[:, None] < width - length] = ord(" ")
        found = np.full(len(length), np.nan)
        sound = np.zeros(len(length), bool)
        for places in range(width - 1):
            rows = np.flatnonzero((letters[width - 1 - places] == ord(".")) & (length <= width))
            if len(rows):
                found[rows], sound[rows] = decimals(letters[:, rows], places)
        return found, sound


class _Parser(MMCIF2Dict):
    """Biopython's parser. Lines without quotes or comments, nearly all, take a short cut."""

    def __setitem__(self, key, value):
        # To Biopython a value with _ at the start of a row ends the table; keys and values follow in turn.
        if key in self or not (key.startswith("_") or key == "data_"):
            raise ValueError(f"{key!r:.40} stands where a new key should be: a table ends too early")
        super().__setitem__(key, value)

    def _splitline(self, line):
        if "'" in line or '"' in line or "#" in line:
            return super()._splitline(line)
        return map(sys.intern, line.split())  # most values occur again and again: a third of the memory


def tables_in(text: str) -> Iterator[tuple[list[str], int, int]]:
    """Names of columns of every table in a text, and where its rows, on lines of their own, begin and end."""
    done = 0
    in_text = False  # between two lines that begin with ;
    for header in _HEADER.finditer(text):
        begin = header.end()
        last = _LAST_ROW.search(text, begin - 1)
        in_text ^= text.count("\n;", max(done - 1, 0), begin) % 2 == 1
        if not in_text:
            yield header[1].split(), begin, last.start() if last else len(text)
        done = begin


def _without_tables(block: str) -> tuple[str, dict[str, Values]]:
    """A data block without its large simple tables, for Biopython's parser; and the columns of these by their names."""
    parts: list[str] = []
    columns: dict[str, Values] = {}
    done = 0
    for names, begin, end in tables_in(block):
        other_atoms = "ATOM" in block[begin:end] and not names[0].lower().startswith(SITE)
        if end - begin <= SMALL or other_atoms or block.startswith(";", end + 1):
            continue
        values = simple_values(block[begin:end], len(names))
        if values is not None:
            parts.append(block[done : block.rindex("\nloop_", done, begin)])
            done = end
            for i, name in enumerate(names):
                if name.lower() in columns:
                    raise ValueError(f"{name} stands where a new key should be: it is there twice")
                columns[name.lower()] = values.take(slice(i, None, len(names)))
    return "".join([*parts, block[done:]]), columns


def simple_values(rows: str, width: int) -> Values | None:
    """The values of a table with `width` columns, or None if blanks alone do not tell where they are."""
    if not rows.isascii() or ("_" in rows and "loop_" in rows.lower()):
        return None
    filling = b" " * WIDEST
    buffer = np.frombuffer(filling + rows.encode() + filling, np.uint8)
    if np.count_nonzero(buffer < ord(" ")) > rows.count("\n") + rows.count("\t"):
        return None
    is_text = buffer > ord(" ")
    borders = np.flatnonzero(is_text[1:] != is_text[:-1]) + 1
    start, end = borders[::2], borders[1::2]
    if not len(start) or len(start) % width:
        return None
    first = buffer[start]
    if "#" in rows and (first == ord("#")).any():
        return None
    if "'" in rows or '"' in rows:
        quoted = (first == ord("'")) | (first == ord('"'))
        closed = (first == buffer[end - 1]) & (end - start > 1)
        if (quoted & ~closed).any():
            return None
        start, end = start + quoted, end - quoted
    names_again = buffer[start[::width]] == ord("_")  # to Biopython these end the table
    return None if names_again.any() else Values(buffer, start, end)


def rows_of_atoms(path: str, tables: Mapping) -> int:
    """How many rows `_atom_site` has; its columns must have equally many. Raises StructureError."""
    sizes = sorted(len(column) for name, column in tables.items() if name.startswith(SITE))
    if sizes and sizes[0] != sizes[-1]:
        raise StructureError(path, "truncated or damaged table", f"{sizes[0]} to {sizes[-1]} values in its columns")
    return sizes[0] if sizes else 0


def _blocks(path: str, content: bytes) -> list[dict[str, Values | list[str]]]:
    """The columns of every data block with atoms. All blocks must be whole."""
    text = content.decode("latin-1")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    _, *blocks = re.split("\n[Dd][Aa][Tt][Aa]_", "\n" + text)
    found = []
    for block in blocks:
        rest, large = _without_tables(f"data_{block}\n")
        parser = _Parser(io.StringIO(rest))
        tables: dict[str, Values | list[str]] = {name.lower(): column for name, column in parser.items()}
        if twice := tables.keys() & large.keys():
            raise ValueError(f"{min(twice)} stands where a new key should be: it is there twice")
        tables |= large
        others = (column for name, column in parser.items() if not name.lower().startswith((SITE, "data_")))
        if any("ATOM" in column or "HETATM" in column for column in others):
            raise ValueError("rows of atoms in a table of something else")
        if rows_of_atoms(path, tables):
            found.append(tables)
    return found


def mmcif_models(path: str, content: bytes) -> Iterator[Model]:
    """One model after the other of the data block with atoms. Raises StructureError if several have some."""
    return models_of(path, _blocks(path, content))


def models_of(path: str, blocks: list[dict]) -> Iterator[Model]:
    """The same of blocks with atoms, whose columns are texts, `Values` or as of BinaryCIF, by lower-case names."""
    if not blocks:
        return
    if len(blocks) > 1:
        raise StructureError(path, "several data blocks with atoms", "give each a file of its own")
    (tables,) = blocks
    for name, column in tables.items():
        if name.startswith(SITE) and isinstance(column, list):
            tables[name] = Values.of(column)
    size = rows_of_atoms(path, tables)
    told_by_tables = part_or_none("told_by_tables")
    plddt, predicted = told_by_tables(tables) if told_by_tables else ({}, False)
    columns_to_come = dict(COLUMNS)
    if predicted is False:
        columns_to_come["b_factor"] = ("", "?")  # nobody looks at it
    if not plddt:
        columns_to_come["label_number"] = ("", ".")
    texts = {}
    for key, (*names, default) in columns_to_come.items():
        if key not in "xyz":
            texts[key] = _column(path, tables, names, default, size)
    coordinates = [_given(path, tables, COLUMNS[axis][0]) for axis in "xyz"]

    model = texts.pop("model")
    order = list(dict.fromkeys(model.texts(changes(model.index))))
    if not all(name.isdigit() or name in BLANK for name in order):  # a token too many or too few in some rows
        raise ValueError(f"models {', '.join(order)[:50]} in place of numbers")
    for name in order:
        columns, xyz = texts, coordinates
        rows = np.arange(size)
        if len(order) > 1:  # a model's rows may lie apart
            rows = np.flatnonzero(model.where(name.__eq__))
            columns = {key: column.take(rows) for key, column in texts.items()}
            xyz = [column.take(rows) for column in coordinates]
        atoms, dropped = _atoms(columns, xyz, rows, plddt.get(name, {}))
        others = Counter({OTHER_MODELS: len(order) - 1})
        yield atoms, others + dropped, predicted


def _given(path: str, tables: Mapping, name: str):
    """A column of `_atom_site`. Raises StructureError if it is not there."""
    if SITE + name not in tables:
        raise StructureError(path, "unreadable", f"no column {name}")
    return tables[SITE + name]


def _column(path: str, tables: Mapping, names: list[str], default: str | None, size: int) -> Column:
    """The first of some columns that is there; where it has no value, that of the second."""
    found = [tables[SITE + name] for name in names if SITE + name in tables]
    if not found:
        return _given(path, tables, names[0]) if default is None else Column.constant(default, size)
    first = found[0].column()
    blank = first.where(BLANK.__contains__)
    return first.or_else(blank, found[1].column()) if len(found) == 2 and blank.any() else first


def _atoms(columns: dict[str, Column], xyz: list, place: np.ndarray, plddt: dict) -> tuple[Atoms, Counter]:
    """The atoms of a model, and counts of those without a residue number. Raises ValueError of the first wrong row."""
    # Atoms of waters may have no number.
    number, residue = columns["number"], columns["residue"]
    numbered = ~number.where(BLANK.__contains__)
    dropped: Counter = Counter()
    if not numbered.all():
        for name in residue.texts(~numbered):
            dropped[f"amino acids: {NO_NUMBER}" if name in PARENT else NO_NUMBER] += 1
        columns = {key: column.take(numbered) for key, column in columns.items()}
        xyz = [axis.take(numbered) for axis in xyz]
        place = place[numbered]

    label = columns["label"].map(lambda text: "" if text in BLANK else text)
    atoms = Atoms(
        chain=columns["chain"],
        number=columns["number"].numbers(int),
        code=columns["code"].map(lambda text: BLANK.get(text, text)),
        residue=columns["residue"],
        atom=columns["atom"],
        altloc=columns["altloc"].map(lambda text: BLANK.get(text, text)),
        occupancy=columns["occupancy"].map(lambda text: "1" if text in BLANK else text).numbers(),
        xyz=np.stack([_coordinates(axis) for axis in xyz], axis=1),
        element=columns["element"].map(str.upper),
        hetero=columns["group"].where(lambda text: text.upper() == "HETATM"),
        b_factor=part("plddt_by_residue")(columns, plddt) if plddt else columns["b_factor"],
        place=place,
        marks=(label,),
    )
    return atoms, dropped


def _coordinates(axis) -> np.ndarray:
    """The numbers of a column. Raises ValueError of the first row that has none."""
    values, sound = axis.numbers()
    others = np.flatnonzero(~sound)
    values[others] = [float(text) for text in axis.take(others).texts()]
    return values


def is_mmcif(content: bytes) -> bool:
    """Whether the first line that is neither blank nor a comment opens a data block."""
    lines = (line for line in io.TextIOWrapper(io.BytesIO(content), "latin-1") if line.strip() and line[0] != "#")
    return next(lines, "").lower().startswith("data_")
