"""Reading structure files: PDB and mmCIF, plain or gzip-compressed.

Biopython takes the files apart into rows, one per atom; `structure.assemble` makes a protein of them, the same code for
both formats, so that PDB and mmCIF of one entry give the same `Protein`. Whatever the file holds, the outcome is a
`Structure` or a `StructureError`.
"""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections import Counter, deque
from collections.abc import Iterable
from typing import IO

import numpy as np
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.PDBParser import PDBParser

from ..files import StructureError
from .structure import AtomRow, Structure, assemble

MAX_BYTES = 512 * 2**20  # of decompressed text; the largest PDB entries are about half of it
MAX_ATOMS = 5_000_000  # of one model of PDB, of all models of mmCIF; memory grows with them


def read_structure(path_or_name, data: bytes | None = None, model: int = 0) -> Structure:
    """Read a PDB or mmCIF file, plain or gzip-compressed; the content decides which, not the extension.

    Args:
        path_or_name: the file; with `data`, only its name for error messages.
        data: the bytes of the file, where they have been read already.
        model: which model to take, counted from 0 in file order.

    Raises:
        StructureError: whatever is wrong with the file, including that it does not exist or holds no protein.
    """
    path = str(path_or_name)
    content = _content(path, data)
    dropped: Counter = Counter()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            rows = _mmcif_rows(path, content, model, dropped) if _is_mmcif(content) else _pdb_rows(path, content, model)
        except StructureError:
            raise
        except Exception as error:  # on junk Biopython raises half a dozen types, one of its own derived from Exception
            raise StructureError(path, "unreadable", f"{type(error).__name__}: {error}"[:200]) from error
    return assemble(path, rows, dropped)


# ---- from bytes to rows ----------------------------------------------------------------------------------------------


def _content(path: str, data: bytes | None) -> bytes:
    """The decompressed bytes, after a first look at them."""
    try:
        with open(path, "rb") if data is None else io.BytesIO(data) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = _read_bounded(path, gzip.GzipFile(fileobj=raw) if packed else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StructureError(path, "damaged or truncated gzip data", str(error)) from error
    except OSError as error:
        raise StructureError(path, "cannot be opened", error.strerror or str(error)) from error
    content = content.removeprefix(b"\xef\xbb\xbf")  # byte order mark
    if not content or content.isspace():
        raise StructureError(path, "empty")
    if content[:1000].lstrip().startswith(b"<"):
        raise StructureError(path, "an HTML or XML page, not a PDB or mmCIF file")
    return content


def _read_bounded(path: str, file: IO[bytes]) -> bytes:
    """Read in pieces: a small archive can decompress to anything."""
    pieces, size = [], 0
    while piece := file.read(2**20):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise StructureError(path, "too large", f"more than {MAX_BYTES >> 20} MB")
    return b"".join(pieces)


def _lines(content: bytes) -> Iterable[str]:
    """Lines with any line end. One character per byte, because the columns of a PDB file are bytes."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="latin-1")


def _is_mmcif(content: bytes) -> bool:
    """True where the first line that is neither blank nor a comment opens a data block."""
    for line in _lines(content):
        if line.strip() and not line.startswith("#"):
            return line.lower().startswith("data_")
    return False


class _Rows:
    """Takes the place of Biopython's StructureBuilder and keeps the rows as they come.

    The policy needs all rows of a residue at once. Biopython's own builder would instead drop residues with a warning,
    and split a position that is part ATOM and part HETATM into two residues.
    """

    def __init__(self):
        self.rows: list[AtomRow] = []
        self.chain, self.position = "", (0, " ", "")

    def init_chain(self, chain):
        self.chain = chain.strip()

    def init_residue(self, name, field, number, code):
        self.position = number, code, name

    def init_atom(self, name, xyz, b_factor, occupancy, altloc, fullname, serial, element):
        number, code, residue = self.position
        occupancy = 1.0 if occupancy is None else occupancy
        self.rows.append(AtomRow(self.chain, number, code, residue, name, altloc, occupancy, xyz, element))

    def _ignore(self, *args):
        pass

    init_structure = init_model = init_seg = set_line_counter = set_header = get_structure = _ignore


def _pdb_rows(path: str, content: bytes, model: int) -> list[AtomRow]:
    """Rows of one model of a PDB file."""
    lines: list[str] = []
    current, inside, explicit = -1, False, False
    for number, line in enumerate(_lines(content), 1):
        record = line[:6].rstrip()
        if line.startswith("ATOM") or record == "HETATM":
            if not inside:
                current, inside = current + 1, True
            if current == model:
                if len(line.rstrip("\n")) < 54:  # x, y and z end in column 54
                    raise StructureError(path, "truncated", f"the atom in line {number} has no coordinates")
                if "_" in line[22:60]:  # Python would read 1_2 as twelve
                    raise StructureError(path, "unreadable", f"the atom in line {number} has a number with _")
                if len(lines) == MAX_ATOMS:
                    raise StructureError(path, "too large", f"more than {MAX_ATOMS} atoms")
                lines.append("ATOM  " + line[6:])  # from atom 100,000 on the serial number may run into the record name
        elif record == "MODEL":
            current, inside, explicit = current + 1, True, True
        elif record in ("ENDMDL", "END"):  # some programs separate models by END
            inside = explicit = False
    if explicit and current == model:
        raise StructureError(path, "truncated", "MODEL without ENDMDL")
    if not lines:
        if current < 0 or 0 <= model <= current:
            raise StructureError(path, "no atoms in it")
        raise StructureError(path, "no such model", f"{current + 1} models, asked for number {model}")
    builder = _Rows()
    PDBParser(structure_builder=builder, QUIET=True).get_structure("", io.StringIO("".join(lines)))
    return builder.rows


_NOTHING: deque = deque(maxlen=0)  # stays empty, whatever is appended


class _MMCIF(MMCIF2Dict):
    """Biopython's parser, which keeps the columns of the atoms only, and not more rows than allowed.

    It has a short cut for lines without quotes or comments, i.e. nearly all.
    """

    def __setitem__(self, key, value):
        super().__setitem__(key, deque(value, MAX_ATOMS + 1) if key.startswith("_atom_site.") else _NOTHING)

    def _splitline(self, line):
        if "'" in line or '"' in line or "#" in line:
            return super()._splitline(line)
        return line.split()


def _mmcif_rows(path: str, content: bytes, model: int, dropped: Counter) -> list[AtomRow]:
    """Rows of one model of an mmCIF file, with the author's chain ids and residue numbers."""
    table = _MMCIF(_lines(content))
    count = len(table.get("_atom_site.Cartn_x", ()))
    if not count:
        raise StructureError(path, "no atoms in it")
    if count > MAX_ATOMS:
        raise StructureError(path, "too large", f"more than {MAX_ATOMS} atoms")

    def column(*names, default=None):
        for name in names:
            if f"_atom_site.{name}" in table:
                values = table[f"_atom_site.{name}"]
                if len(values) != count:
                    raise StructureError(path, "truncated", f"{name} has {len(values)} values for {count} atoms")
                return values
        if default is None:
            raise StructureError(path, "unreadable", f"no column {names[0]}")
        return [default] * count

    models = column("pdbx_PDB_model_num", default="1")
    order = list(dict.fromkeys(models))
    if not 0 <= model < len(order):
        raise StructureError(path, "no such model", f"{len(order)} models, asked for number {model}")
    columns = (
        column("auth_asym_id", "label_asym_id"),
        column("auth_seq_id", "label_seq_id"),
        column("pdbx_PDB_ins_code", default="?"),
        column("label_comp_id", "auth_comp_id"),
        column("label_atom_id", "auth_atom_id"),
        column("label_alt_id", default="."),
        column("occupancy", default="?"),
        column("Cartn_x"),
        column("Cartn_y"),
        column("Cartn_z"),
        column("type_symbol", default="?"),
    )
    blank = {".": " ", "?": " "}
    rows = []
    for m, chain, number, code, residue, atom, altloc, occupancy, x, y, z, element in zip(models, *columns):
        if m != order[model]:
            continue
        if number in blank:
            dropped["atoms without a residue number"] += 1
            continue
        if "_" in f"{number}{x}{y}{z}{occupancy}":  # Python would read 1_2 as twelve
            raise StructureError(path, "unreadable", f"a number with _ in residue {residue} {number}")
        code, altloc = blank.get(code, code), blank.get(altloc, altloc)
        occupancy = 1.0 if occupancy in blank else float(occupancy)
        xyz = float(x), float(y), float(z)
        rows.append(AtomRow(chain, int(number), code, residue, atom, altloc, occupancy, xyz, element.upper()))
    return rows
