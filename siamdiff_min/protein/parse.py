"""Reading and writing structure files: PDB and mmCIF, plain or gzip-compressed.

Biopython takes the files apart into rows, one per atom; the parsing policy (altlocs, modified residues, what is
skipped) is applied here to the rows, the same code for both formats, so that PDB and mmCIF of one entry give the same
`Protein`. A position is chain, residue number and insertion code; its record type (ATOM, HETATM) plays no part.
Whatever the file holds, the outcome is a `Structure` or a `StructureError`; no coordinate is ever made up.
"""

from __future__ import annotations

import gzip
import io
import string
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.PDBParser import PDBParser

from .constants import (
    ATOM_ELEMENT,
    ATOM_INDEX,
    ATOM_NAMES,
    CA,
    ELEMENTS,
    PARENT,
    PARENT_ATOM,
    RESIDUE_ATOMS,
    RESIDUE_INDEX,
    RESIDUES,
)
from .protein import Protein

MAX_BYTES = 512 * 2**20  # of decompressed text; the largest PDB entries are about half of it
MAX_COORDINATE = 1e5  # angstrom; float32 still resolves 0.01 angstrom there

WATER = frozenset(["HOH", "WAT", "DOD", "H2O", "TIP", "TP3", "SOL", "SPC"])
NUCLEOTIDES = frozenset([*"ACGUINT", *(f"D{base}" for base in "ACGUINT"), "ADE", "CYT", "GUA", "URA", "THY"])


class StructureError(ValueError):
    """A file that cannot be read as a protein.

    `path` names the file, `reason` is one of a few fixed phrases (bulk runs count them), `detail` says what was found.
    """

    def __init__(self, path, reason: str = "", detail: str = ""):
        super().__init__(str(path), reason, detail)  # all of them in `args`, so that it survives pickling
        self.path, self.reason, self.detail = str(path), reason, detail

    def __str__(self) -> str:
        text = f"{self.path}: {self.reason}" if self.reason else self.path
        return f"{text} ({self.detail})" if self.detail else text


@dataclass(frozen=True)
class Structure:
    """What was read from one file, and what was left out of it."""

    protein: Protein
    chain_names: tuple[str, ...]  # author chain ids, in the order of `protein.chain`
    dropped: Counter  # reason -> number of atoms or residues in the file that are not in `protein`


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
    chains = _apply_policy(rows, dropped)
    if not chains:
        found = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        raise StructureError(path, "no protein in it", f"skipped: {found}" if found else "")
    return Structure(_assemble(path, chains), tuple(chains), dropped)


# ---- from bytes to rows ----------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One atom of the file."""

    chain: str
    number: int
    code: str
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str


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
        self.rows: list[_Row] = []
        self.chain, self.position = "", (0, " ", "")

    def init_chain(self, chain):
        self.chain = chain.strip()

    def init_residue(self, name, field, number, code):
        self.position = number, code, name

    def init_atom(self, name, xyz, b_factor, occupancy, altloc, fullname, serial, element):
        number, code, residue = self.position
        occupancy = 1.0 if occupancy is None else occupancy
        self.rows.append(_Row(self.chain, number, code, residue, name, altloc, occupancy, xyz, element))

    def _ignore(self, *args):
        pass

    init_structure = init_model = init_seg = set_line_counter = set_header = get_structure = _ignore


def _pdb_rows(path: str, content: bytes, model: int) -> list[_Row]:
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


class _MMCIF(MMCIF2Dict):
    """Biopython's tokenizer with a short cut for lines without quotes or comments, i.e. nearly all."""

    def _splitline(self, line):
        if "'" in line or '"' in line or "#" in line:
            return super()._splitline(line)
        return line.split()


def _mmcif_rows(path: str, content: bytes, model: int, dropped: Counter) -> list[_Row]:
    """Rows of one model of an mmCIF file, with the author's chain ids and residue numbers."""
    table = _MMCIF(_lines(content))
    count = len(table.get("_atom_site.Cartn_x", ()))
    if not count:
        raise StructureError(path, "no atoms in it")

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
        code, altloc = blank.get(code, code), blank.get(altloc, altloc)
        occupancy = 1.0 if occupancy in blank else float(occupancy)
        xyz = float(x), float(y), float(z)
        rows.append(_Row(chain, int(number), code, residue, atom, altloc, occupancy, xyz, element.upper()))
    return rows


# ---- the parsing policy ----------------------------------------------------------------------------------------------

_PARENT = {name: name for name in RESIDUES} | PARENT
_ATOMS = {name: {a: ATOM_INDEX[a] for a in [*RESIDUE_ATOMS[parent], "OXT"]} for name, parent in _PARENT.items()}
for (_name, _atom), _parent_atom in PARENT_ATOM.items():
    _ATOMS[_name][_atom] = ATOM_INDEX[_parent_atom]


def _apply_policy(rows: list[_Row], dropped: Counter) -> dict[str, list]:
    """Residues of every chain as (number, code, type, {atom: xyz}), in file order; what is left out goes to `dropped`.

    All rows with the same chain, number and insertion code are one position, wherever they stand in the file and
    whatever their record type: alternative residues at one position cannot become two residues.
    """
    chains: dict[str, dict[tuple, dict[str, list[_Row]]]] = {}
    last, group = None, []
    for row in rows:
        key = row[:4]
        if key != last:
            position = chains.setdefault(row.chain, {}).setdefault((row.number, row.code), {})
            last, group = key, position.setdefault(row.residue, [])
        group.append(row)

    kept = {}
    for chain, positions in chains.items():
        residues = []
        for (number, code), names in positions.items():
            candidates = []
            for name, group in names.items():
                if name not in _PARENT:
                    dropped[_not_a_residue(name)] += 1
                    continue
                atoms = _one_conformation(group, _ATOMS[name], dropped)
                if CA in atoms:
                    candidates.append((name, atoms))
                else:
                    dropped["residues without CA"] += 1
            if candidates:
                name, atoms = max(candidates, key=lambda c: _number(c[1][CA].occupancy))  # the first of equals
                dropped["alternative residues"] += len(candidates) - 1
                xyz = {index: row.xyz for index, row in atoms.items()}
                residues.append((number, code, RESIDUE_INDEX[_PARENT[name]], xyz))
        if residues:
            kept[chain] = residues
    for reason in [reason for reason, count in dropped.items() if count == 0]:
        del dropped[reason]
    return kept


def _not_a_residue(name: str) -> str:
    """What a residue is called that is not an amino acid of this package."""
    if name in WATER:
        return "waters"
    return "nucleotides" if name in NUCLEOTIDES else "ligands and unknown residues"


def _one_conformation(group: list[_Row], known: dict[str, int], dropped: Counter) -> dict[int, _Row]:
    """One row for every known atom of a residue: the altloc with the highest occupancy, ties by order.

    The altloc is chosen once for the residue (mean over the atoms that have a choice), so that conformations are not
    mixed; an atom that lacks it takes its own highest.
    """
    options: dict[int, dict[str, _Row]] = {}
    for row in group:
        index = known.get(row.atom)
        if index is None:
            hydrogen = row.element in ("H", "D") or row.atom.lstrip(string.digits)[:1] in ("H", "D")
            dropped["hydrogens" if hydrogen else "unknown atom names"] += 1
        elif row.altloc in options.setdefault(index, {}):
            dropped["duplicate atoms"] += 1
        else:
            options[index][row.altloc] = row
    occupancies: dict[str, list[float]] = {}
    for rows in options.values():
        if len(rows) > 1:
            dropped["alternative locations"] += len(rows) - 1
            for altloc, row in rows.items():
                occupancies.setdefault(altloc, []).append(_number(row.occupancy))
    best = max(occupancies, key=lambda a: round(sum(occupancies[a]) / len(occupancies[a]), 6), default="")
    return {
        index: rows[best] if best in rows else max(rows.values(), key=lambda row: _number(row.occupancy))
        for index, rows in options.items()
    }


def _number(occupancy: float) -> float:
    """Occupancies that cannot be compared or rounded count as zero."""
    return occupancy if abs(occupancy) < 1e6 else 0.0


def _assemble(path: str, chains: dict[str, list]) -> Protein:
    """The residues of all chains as a `Protein` of one graph."""
    residues = [residue for chain in chains.values() for residue in chain]
    numbers, codes, types, atoms = zip(*residues)
    if max(map(abs, numbers)) >= 2**31:
        raise StructureError(path, "residue number out of range", str(max(numbers, key=abs)))
    if any(len(code) != 1 or ord(code) > 126 for code in codes):
        raise StructureError(path, "unreadable", "insertion code of more than one ASCII character")
    pos = np.array([xyz for named in atoms for xyz in named.values()], dtype=np.float64)
    if not (np.abs(pos) <= MAX_COORDINATE).all():  # also False for NaN
        raise StructureError(path, "coordinates out of range", f"not finite or beyond {MAX_COORDINATE:.0f} angstrom")
    name = np.array([index for named in atoms for index in named])
    lengths = [len(chain) for chain in chains.values()]
    return Protein(
        pos=torch.from_numpy(pos.astype(np.float32)),
        element=torch.from_numpy(np.array(ATOM_ELEMENT)[name]),
        atom_name=torch.from_numpy(name),
        atom_residue=torch.from_numpy(np.repeat(np.arange(len(residues)), [len(named) for named in atoms])),
        residue_type=torch.tensor(types),
        masked=torch.zeros(len(residues), dtype=torch.bool),
        residue_number=torch.tensor(numbers),
        insertion_code=torch.tensor([ord(code) for code in codes]),
        residue_index=torch.cat([torch.arange(length) for length in lengths]),
        chain=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        residue_graph=torch.zeros(len(residues), dtype=torch.long),
    )


# ---- writing ---------------------------------------------------------------------------------------------------------

CHAIN_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits


def write_pdb(path_or_file, protein: Protein, chain_names: tuple[str, ...] | None = None) -> None:
    """Write one protein as a PDB file. `read_structure` gives it back with coordinates rounded to 0.001 angstrom.

    Residues that lost their CA are written, but not read back. `chain_names` are single characters, one for every value
    of `protein.chain`; A, B, C, ... where it is not given.

    Raises:
        ValueError: for a batch, and for values that the fixed columns of the format cannot hold.
    """
    if protein.num_graphs != 1:
        raise ValueError(f"a PDB file holds one protein, got a batch of {protein.num_graphs}")
    names = CHAIN_LETTERS if chain_names is None else [name or " " for name in chain_names]
    count = int(protein.chain.max()) + 1 if protein.num_residues else 0
    if count > len(names) or any(len(name) != 1 for name in names[:count]):
        raise ValueError(f"{count} chains need as many one-character names, got {chain_names or len(names)}")
    if not bool(((protein.pos > -999.9995) & (protein.pos < 9999.9995)).all()):
        raise ValueError("the PDB format holds coordinates between -999.999 and 9999.999 angstrom")
    if not bool(((protein.residue_number > -1000) & (protein.residue_number < 10000)).all()):
        raise ValueError("the PDB format holds residue numbers between -999 and 9999")
    chains = protein.chain.tolist()
    per_residue = protein.residue_type, protein.residue_number, protein.insertion_code
    labels = [
        f"{RESIDUES[kind]} {names[chain]}{number:4d}{chr(code)}"
        for chain, kind, number, code in zip(chains, *(x.tolist() for x in per_residue))
    ]
    lines, serial, previous = [], 0, None
    per_atom = zip(protein.atom_residue.tolist(), protein.atom_name.tolist(), protein.pos.tolist())
    for residue, atom, (x, y, z) in per_atom:
        if previous is not None and chains[residue] != chains[previous]:
            serial += 1
            lines.append(f"TER   {serial % 100000:5d}      {labels[previous]}")
        serial, previous = serial + 1, residue
        element = ELEMENTS[ATOM_ELEMENT[atom]]
        lines.append(
            f"ATOM  {serial % 100000:5d}  {ATOM_NAMES[atom]:<3} {labels[residue]}   "
            f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00          {element:>2}"
        )
    text = "\n".join([*lines, "TER", "END", ""])
    if hasattr(path_or_file, "write"):
        path_or_file.write(text)
    else:
        Path(path_or_file).write_text(text, encoding="ascii")
