"""Reading structures: PDB and mmCIF files, plain or gzip-compressed, and objects of Biopython.

Each becomes rows, one per atom: PDB by its columns, mmCIF by Biopython's parser. One function, `structure.assemble`,
makes a protein of them, so PDB and mmCIF of one entry give the same `Protein`. Whatever the file holds, the outcome is
a `Structure` or a `StructureError`.
"""

import gzip
import io
import re
import sys
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import dropwhile, groupby, islice, takewhile
from operator import itemgetter

import numpy as np
from Bio.PDB.Entity import Entity
from Bio.PDB.MMCIF2Dict import MMCIF2Dict

from ..files import StructureError, blame_machine, structure_errors
from .constants import PARENT, UNMODIFIED
from .structure import AtomRow, Structure, assemble

MAX_BYTES = 512 * 2**20  # of decompressed text; the largest PDB entries are about half of it
# The residue number of an atom (hybrid-36; a fifth digit takes the insertion code's column), then its coordinates.
_POINTS = r".{3}([- \d]{4}\.\d{3}){3}"
_NUMBERS = re.compile(r".{22}([-\d]\d{4}|[- \d]{4}\D|[A-Z][\dA-Z]{3}\D|[a-z][\da-z]{3}\D)" + _POINTS, re.ASCII)
_NO_NUMBER = re.compile(".{27}" + _POINTS, re.ASCII)
# Lines that look like atoms but would be skipped: `atom`, an indented ATOM, coordinates after an unknown record name.
_STRAY = re.compile(
    r"[^A-Z]*(ATOM  |ATOM *\d|HETATM)|(?!SIGATM|REMARK).{29,31}((?= *-?\d+\.)[- \d]{4}\.\d{3}){3}",
    re.IGNORECASE | re.ASCII,
)


def read_structure(source, data: str | bytes | None = None, model: int = 0, chain=None) -> Structure:
    """Read a PDB or mmCIF file, plain or gzip-compressed. Its content tells which, not its extension.

    Args:
        source: a path, an open file, or a Structure, Model or Chain of Biopython.
        data: the text or bytes of the file, if they have been read; then `source` only names it in messages.
        model: counts from 0, in file order.
        chain: "A" or "AB" keeps these chains, in file order. A list takes ids of several letters. A text that is itself
            an id is that chain.

    Raises StructureError, whatever is wrong, a missing file too.
    """
    path = name_of(source)
    if isinstance(source, Entity):
        models = _biopython_models(source)
    else:
        with structure_errors(path, "unreadable"):
            data = source.read(MAX_BYTES + 1) if data is None and hasattr(source, "read") else data
        content = _content(path, data)
        models = _mmcif_models(path, content) if _is_mmcif(content) else _pdb_models(path, content)
    with warnings.catch_warnings(), np.errstate(all="ignore"), structure_errors(path, "unreadable"):
        warnings.simplefilter("ignore")
        models = list(islice(models, None if model < 0 else model + 1))  # later models are not looked at
    if models and not 0 <= model < len(models):
        raise StructureError(path, "no such model", f"{len(models)} models, asked for number {model}")
    if not models or not any(models[model]):
        raise StructureError(path, "no atoms in it")
    return assemble(path, *models[model], chain)


def name_of(source) -> str:
    """How messages call a structure: by its path, by an open file's, or by Biopython's ids, as in 1abc_A."""
    if isinstance(source, Entity):
        return "_".join(str(part) for part in source.get_full_id() if not isinstance(part, int))
    return str(getattr(source, "name", "open file") if hasattr(source, "read") else source)


def _biopython_models(entity: Entity) -> Iterator[tuple[list[AtomRow], Counter]]:
    """Rows of one model after the other. Biopython's parser has left out what it took for duplicates."""
    for chains in {"S": list(entity), "M": [entity], "C": [[entity]]}.get(entity.level, []):
        rows = []
        for chain in chains:
            for residue in chain.get_unpacked_list():
                hetero, number, code = residue.id
                of_residue = chain.id.strip(), number, code, residue.resname.strip()
                marks = (residue.segid.strip(),)
                for atom in residue.get_unpacked_list():
                    occupancy = 1.0 if atom.occupancy is None else float(atom.occupancy)
                    xyz, element = tuple(atom.coord.tolist()), (atom.element or "").upper()
                    of_atom = atom.name, atom.altloc, occupancy, xyz, element
                    rows.append(AtomRow(*of_residue, *of_atom, hetero != " ", marks))
        yield rows, Counter()


def _content(path: str, data: str | bytes | None) -> bytes:
    """The decompressed bytes, after a first look at them."""
    if isinstance(data, str):
        data = data.removeprefix("\ufeff").encode("latin-1", "replace")  # a byte for each character keeps the columns
    try:
        with open(path, "rb") if data is None else io.BytesIO(data) as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            content = (gzip.GzipFile(fileobj=raw) if packed else raw).read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StructureError(path, "damaged or truncated gzip data", str(error)) from error
    except OSError as error:
        blame_machine(path, error)
        raise StructureError(path, "cannot be opened", error.strerror or str(error)) from error
    content = content.removeprefix(b"\xef\xbb\xbf")  # byte order mark
    if len(content) > MAX_BYTES:
        raise StructureError(path, "too large", f"more than {MAX_BYTES >> 20} MB")
    content = content.rstrip(b"\0")  # some tools fill the last block of a file
    if not content or content.isspace():
        raise StructureError(path, "empty")
    if content[:1000].lstrip().startswith(b"<"):
        raise StructureError(path, "an HTML or XML page, not a PDB or mmCIF file")
    if b"\0" in content:  # a tar, say: its header would hide the first line of a structure in it
        raise StructureError(path, "not a text file", "zero bytes in it, as in an archive")
    return content


def _lines(content: bytes) -> Iterable[str]:
    """Lines with any line end. One character per byte, because the columns of a PDB file are bytes."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="latin-1")


def _is_mmcif(content: bytes) -> bool:
    """Whether the first line that is neither blank nor a comment opens a data block."""
    lines = (line for line in _lines(content) if line.strip() and not line.startswith("#"))
    return next(lines, "").lower().startswith("data_")


def _pdb_models(path: str, content: bytes) -> Iterator[tuple[list[AtomRow], Counter]]:
    """Rows of one model of a PDB file after the other; a later model is only read if it is asked for."""
    rows: list[AtomRow] | None = None  # None between models
    explicit, dropped = False, Counter()
    ends, pairs = Counter(), set()  # TER records behind each chain; ids of two letters, in columns 21 and 22
    for number, line in enumerate(_lines(content), 1):
        record = line[:6].rstrip()
        # From atom 100,000 on the serial number may run into the name of the record.
        if line.startswith("ATOM") or record == "HETATM":
            rows = [] if rows is None else rows
            row = _pdb_row(path, number, line, ends)
            if row is None:
                dropped[NO_NUMBER] += 1
                continue
            rows.append(row)
            if line[20] != " " and row.chain == line[20:22].strip():
                pairs.add(row.chain)
        elif record == "TER" and rows:
            ends[rows[-1].chain] += 1
        elif record == "MODEL" and explicit:
            break  # the model before it has no end
        elif record in ("MODEL", "ENDMDL", "END"):  # some programs separate models by END
            if rows is not None:
                yield _named(rows, ends, pairs), dropped
            explicit, dropped = record == "MODEL", Counter()
            ends, pairs = Counter(), set()
            rows = [] if explicit else None
        elif _STRAY.match(line):
            raise ValueError(f"line {number} looks like an atom, but is no ATOM or HETATM record")
    if explicit:
        raise StructureError(path, "truncated", "MODEL without ENDMDL")
    if rows is not None:
        yield _named(rows, ends, pairs), dropped


def _pdb_row(path: str, number: int, line: str, ends: Counter) -> AtomRow | None:
    """The atom in a line, by columns. A missing occupancy counts as 1.

    None for an atom without a residue number, unless it belongs to an amino acid: then that is an error.
    """
    if len(line.rstrip("\n")) < 54:  # x, y and z end in column 54
        raise StructureError(path, "truncated", f"the atom in line {number} has no coordinates")
    residue, chain, atom = line[17:20].strip(), line[21].strip(), line[12:16].strip()
    if line[20] != " ":  # the fourth letter of a name, or the first of a chain
        if residue in UNMODIFIED and line[17:21] not in PARENT:
            chain = line[20:22].strip()
        else:
            residue = line[17:21].strip()
    try:
        if not _NUMBERS.match(line):
            raise ValueError("its residue number or the points of its coordinates are not in their columns")
        five = line[26].isdigit()
        residue_number = _integer(line[22 : 26 + five])
        xyz = float(line[30:38]), float(line[38:46]), float(line[46:54])
    except ValueError as error:
        if residue not in PARENT and _NO_NUMBER.match(line):
            return None
        raise ValueError(f"the atom in line {number}: {error}") from error
    try:
        occupancy = float(line[54:60])
    except ValueError:
        occupancy = 1.0
    code, element, hetero = " " if five else line[26], line[76:78].strip().upper(), line.startswith("HETATM")
    segment = line[72:76].strip()
    marks = "" if "." in segment else segment, ends[chain]  # numbers with points are no names
    return AtomRow(chain, residue_number, code, residue, atom, line[16], occupancy, xyz, element, hetero, marks)


def _integer(text: str) -> int:
    """A residue number in four or five columns: decimal or, from 10,000 on, hybrid-36 (A000, A001, ...)."""
    if not text[0].isalpha():
        return int(text)
    return int(text, 36) + (10_000 - 10 * 36**3 if text[0].isupper() else 10_000 + 16 * 36**3)


def _named(rows: list[AtomRow], ends: Counter, pairs: set[str]) -> list[AtomRow]:
    """The rows with their chain ids, if these have two letters or none. Blank ids become "", "_2", "_3", ... by TER."""
    if not (pairs or ends[""]):
        return rows
    named = []
    for row in rows:
        pair, blank = row.residue[3:] + row.chain, f"_{row.marks[1] + 1}" * (row.marks[1] > 0)
        if len(row.residue) == 4 and pair in pairs:
            row = row._replace(residue=row.residue[:3], chain=pair)
        named.append(row if row.chain else row._replace(chain=blank))
    return named


NO_NUMBER = "atoms without a residue number"
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
}
BLANK = {".": " ", "?": " "}  # how mmCIF writes that there is no value


class _Tables(MMCIF2Dict):
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


def _atom_site(path: str, content: bytes) -> dict[str, list[str]]:
    """The columns of `_atom_site`, of equal length, from the first data block with rows. All blocks must be whole."""
    text, first = "".join(_lines(content)), {}
    starts = [match.start() for match in re.finditer("^data_", text, re.MULTILINE | re.IGNORECASE)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        tables = _Tables(io.StringIO("data_" + text[start + 5 : end]))
        columns = {name[11:].lower(): tables[name] for name in tables if name.lower().startswith("_atom_site.")}
        sizes = sorted(map(len, columns.values()))
        if sizes and sizes[0] != sizes[-1]:
            raise StructureError(path, "truncated or damaged table", f"{sizes[0]} to {sizes[-1]} values in its columns")
        others = (column for name, column in tables.items() if not name.lower().startswith(("_atom_site.", "data_")))
        if any("ATOM" in column or "HETATM" in column for column in others):
            raise ValueError("rows of atoms in a table of something else")
        first = first or (columns if any(columns.values()) else {})
    return first


def _mmcif_models(path: str, content: bytes) -> Iterator[tuple[list[AtomRow], Counter]]:
    """Rows of one model of an mmCIF file after the other. Chain ids and residue numbers are the author's."""
    table = _atom_site(path, content)
    if not table:
        return

    def column(*names, default):
        columns = [table[name] for name in names if name in table]
        if not columns and default is None:
            raise StructureError(path, "unreadable", f"no column {names[0]}")
        if len(columns) == 2 and any(blank in columns[0] for blank in BLANK):
            return [second if first in BLANK else first for first, second in zip(*columns)]
        return columns[0] if columns else [default] * len(next(iter(table.values())))

    models, *others = (column(*names, default=default) for *names, default in COLUMNS.values())
    order = {name: i for i, name in enumerate(dict.fromkeys(models))}
    if not all(name.isdigit() or name in BLANK for name in order):  # a token too many or too few in some rows
        raise ValueError(f"models {', '.join(order)[:50]} in place of numbers")
    rows = zip(models, *others)
    if sum(1 for _ in groupby(models)) > len(order):  # the rows of a model are not together
        rows = sorted(rows, key=lambda row: order[row[0]])
    for _, atoms in groupby(rows, key=itemgetter(0)):
        kept, dropped = [], Counter()
        for _, chain, number, code, residue, atom, altloc, occupancy, x, y, z, element, group, label in atoms:
            if number in BLANK:
                dropped[f"amino acids: {NO_NUMBER}" if residue in PARENT else NO_NUMBER] += 1
                continue
            if "_" in f"{number}{x}{y}{z}{occupancy}":  # Python would read 1_2 as twelve
                raise StructureError(path, "unreadable", f"a number with _ in residue {residue} {number}")
            code, altloc = BLANK.get(code, code), BLANK.get(altloc, altloc)
            occupancy = 1.0 if occupancy in BLANK else float(occupancy)
            xyz, element, hetero = (float(x), float(y), float(z)), element.upper(), group.upper() == "HETATM"
            number, marks = int(number), ("" if label in BLANK else label,)
            kept.append(AtomRow(chain, number, code, residue, atom, altloc, occupancy, xyz, element, hetero, marks))
        yield kept, dropped


# ---- predicted structures -------------------------------------------------------------------------------------------


def mean_plddt(source, data: str | bytes | None = None) -> float | None:
    """The mean over residues of the pLDDT of a predicted model, 0 to 100; None for any other structure.

    A predicted model is known by its B factors: equal within every residue, different between residues. If all are at
    most 1, they are multiplied by 100. Only the first model of a file is looked at. `source` and `data` are a path and
    its bytes, as in `read_structure`. Raises StructureError.
    """
    path = name_of(source)
    content = _content(path, data)
    with structure_errors(path, "unreadable"):
        rows = _mmcif_rows(path, content) if _is_mmcif(content) else _pdb_rows(content)
        b_factors = defaultdict(list)  # of every residue
        for residue, b_factor in rows:
            try:
                b_factors[residue].append(float(b_factor))
            except ValueError:  # "?" or "******"
                return None
    each = [set(values) for values in b_factors.values()]
    different = set().union(*each)
    if len(different) < 2 or max(map(len, each)) > 1 or max(map(len, b_factors.values())) == 1:
        return None
    mean = sum(min(values) for values in each) / len(each) * (100 if max(different) <= 1 else 1)
    return mean if min(different) >= 0 and max(different) <= 100 else None


def _pdb_rows(content: bytes) -> list[tuple]:
    """Residue and B factor of every atom of the first model."""
    lines = dropwhile(lambda line: not line.startswith("ATOM"), _lines(content))
    lines = takewhile(lambda line: line[:6].rstrip() not in ("MODEL", "ENDMDL", "END"), lines)
    return [(line[20:27], line[60:66].strip() or "0") for line in lines if line.startswith("ATOM")]


def _mmcif_rows(path: str, content: bytes) -> list[tuple]:
    table = _atom_site(path, content)
    chain, number = (next((x for x in COLUMNS[what][:2] if x in table), "") for what in ("chain", "number"))
    names = chain, number, "pdbx_pdb_ins_code", "b_iso_or_equiv", "group_pdb", "pdbx_pdb_model_num"
    if not table.keys() >= {chain, number, "b_iso_or_equiv"}:
        return []
    blank = ["?"] * len(table["b_iso_or_equiv"])
    *rows, models = (table.get(name, blank) for name in names)
    return [
        ((chain, number, code), b_factor)
        for chain, number, code, b_factor, group, model in zip(*rows, models)
        if group != "HETATM" and model == models[0]
    ]
