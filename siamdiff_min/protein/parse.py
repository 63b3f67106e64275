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
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
from Bio.PDB.Entity import Entity
from Bio.PDB.MMCIF2Dict import MMCIF2Dict

from ..files import StructureError, blame_machine, structure_errors
from .constants import PARENT, UNMODIFIED
from .structure import AtomRow, Structure, assemble

NO_NUMBER, OTHER_MODELS = "atoms without a residue number", "other models"
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
            data = source.read() if data is None and hasattr(source, "read") else data
        content = _content(path, data)
        models = _mmcif_models(path, content) if _is_mmcif(content) else _pdb_models(path, content)
    with warnings.catch_warnings(), np.errstate(all="ignore"), structure_errors(path, "unreadable"):
        warnings.simplefilter("ignore")
        models = list(islice(models, None if model < 0 else model + 1))  # later models are not looked at
    if models and not 0 <= model < len(models):
        raise StructureError(path, "no such model", f"{len(models)} models, asked for number {model}")
    rows, dropped, predicted = models[model] if models else ([], {}, None)
    if not rows and not dropped.keys() - {OTHER_MODELS}:
        raise StructureError(path, "no atoms in it")
    return assemble(path, rows, dropped, chain, predicted=predicted)


def name_of(source) -> str:
    """How messages call a structure: by its path, by an open file's, or by Biopython's ids, as in 1abc_A."""
    if isinstance(source, Entity):
        return "_".join(str(part) for part in source.get_full_id() if not isinstance(part, int))
    return str(getattr(source, "name", "open file") if hasattr(source, "read") else source)


# Its rows, counts of what is left out, and whether the file calls itself a prediction: None if it does not say.
Model = tuple[list[AtomRow], Counter, bool | None]


def _biopython_models(entity: Entity) -> Iterator[Model]:
    """One model after the other. Biopython's parser has left out what it took for duplicates."""
    models = {"S": list(entity), "M": [entity], "C": [[entity]]}.get(entity.level, [])
    for chains in models:
        rows = []
        for chain in chains:
            for residue in chain.get_unpacked_list():
                hetero, number, code = residue.id
                of_residue = chain.id.strip(), number, code, residue.resname.strip()
                marks = (residue.segid.strip(),)
                for atom in residue.get_unpacked_list():
                    occupancy = 1.0 if atom.occupancy is None else float(atom.occupancy)
                    xyz, element = tuple(atom.coord.tolist()), (atom.element or "").upper()
                    of_atom = atom.name, atom.altloc, occupancy, xyz, element, atom.bfactor
                    rows.append(AtomRow(*of_residue, *of_atom, hetero != " ", marks))
        yield rows, Counter({OTHER_MODELS: len(models) - 1}), None


def _content(path: str, data: str | bytes | None) -> bytes:
    """The decompressed bytes, after a first look at them."""
    if isinstance(data, str):
        data = data.removeprefix("\ufeff").encode("latin-1", "replace")  # a byte for each character keeps the columns
    try:
        content = Path(path).read_bytes() if data is None else bytes(data)
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StructureError(path, "damaged or truncated gzip data", str(error)) from error
    except OSError as error:
        blame_machine(path, error)
        raise StructureError(path, "cannot be opened", error.strerror or str(error)) from error
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0")  # byte order mark; a last block that a tool filled
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


def _pdb_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of a PDB file after the other; a later model is only read if it is asked for."""
    parts = re.split(rb"\n(?:MODEL|ENDMDL|END)\b", b"\n" + content)
    others = sum(b"\nATOM" in part or b"\nHETATM" in part for part in parts) - 1
    rows: list[AtomRow] | None = None  # None between models
    explicit, dropped, predicted = False, Counter({OTHER_MODELS: others}), None
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
        elif record == "EXPDTA" and "THEORETICAL" not in line:
            predicted = False
        elif record == "MODEL" and explicit:
            break  # the model before it has no end
        elif record in ("MODEL", "ENDMDL", "END"):  # some programs separate models by END
            if rows is not None:
                yield _named(rows, ends, pairs), dropped, predicted
            explicit, dropped = record == "MODEL", Counter({OTHER_MODELS: others})
            ends, pairs = Counter(), set()
            rows = [] if explicit else None
        elif _STRAY.match(line):
            raise ValueError(f"line {number} looks like an atom, but is no ATOM or HETATM record")
    if explicit:
        raise StructureError(path, "truncated", "MODEL without ENDMDL")
    if rows is not None:
        yield _named(rows, ends, pairs), dropped, predicted


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
    of_atom = atom, line[16], occupancy, xyz, element, line[60:66]
    return AtomRow(chain, residue_number, code, residue, *of_atom, hetero, marks)


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


def _tables(path: str, content: bytes) -> dict[str, list[str]]:
    """The columns of the first data block with atoms, whose `_atom_site` is complete. All blocks must be whole."""
    text, first = "".join(_lines(content)), {}
    starts = [match.start() for match in re.finditer("^data_", text, re.MULTILINE | re.IGNORECASE)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        block = _Tables(io.StringIO("data_" + text[start + 5 : end]))
        tables = {name.lower(): column for name, column in block.items()}
        columns = {name: column for name, column in tables.items() if name.startswith("_atom_site.")}
        sizes = sorted(map(len, columns.values()))
        if sizes and sizes[0] != sizes[-1]:
            raise StructureError(path, "truncated or damaged table", f"{sizes[0]} to {sizes[-1]} values in its columns")
        others = (column for name, column in block.items() if not name.lower().startswith(("_atom_site.", "data_")))
        if any("ATOM" in column or "HETATM" in column for column in others):
            raise ValueError("rows of atoms in a table of something else")
        first = first or (tables if any(columns.values()) else {})
    return first


def _mmcif_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of an mmCIF file after the other. Chain ids and residue numbers are the author's."""
    tables = _tables(path, content)
    if not tables:
        return
    size = next(len(column) for name, column in tables.items() if name.startswith("_atom_site."))
    confidence, predicted = _confidence(tables)

    def column(*names, default):
        columns = [tables[f"_atom_site.{name}"] for name in names if f"_atom_site.{name}" in tables]
        if not columns and default is None:
            raise StructureError(path, "unreadable", f"no column {names[0]}")
        if len(columns) == 2 and any(blank in columns[0] for blank in BLANK):
            return [second if first in BLANK else first for first, second in zip(*columns)]
        return columns[0] if columns else [default] * size

    models, *others = (column(*names, default=default) for *names, default in COLUMNS.values())
    order = {name: i for i, name in enumerate(dict.fromkeys(models))}
    if not all(name.isdigit() or name in BLANK for name in order):  # a token too many or too few in some rows
        raise ValueError(f"models {', '.join(order)[:50]} in place of numbers")
    rows = sorted(zip(models, *others), key=lambda row: order[row[0]])  # a model's rows may lie apart
    for model, atoms in groupby(rows, key=itemgetter(0)):
        kept, dropped = [], Counter({OTHER_MODELS: len(order) - 1})
        for _, chain, number, code, residue, atom, altloc, occupancy, x, y, z, element, group, label, place, b in atoms:
            if number in BLANK:
                dropped[f"amino acids: {NO_NUMBER}" if residue in PARENT else NO_NUMBER] += 1
                continue
            code, altloc = BLANK.get(code, code), BLANK.get(altloc, altloc)
            occupancy = 1.0 if occupancy in BLANK else float(occupancy)
            xyz, element, hetero = (float(x), float(y), float(z)), element.upper(), group.upper() == "HETATM"
            number, marks = int(number), ("" if label in BLANK else label,)
            of_atom = atom, altloc, occupancy, xyz, element, confidence.get((model, label, place), b)
            kept.append(AtomRow(chain, number, code, residue, *of_atom, hetero, marks))
        yield kept, dropped, predicted


# Names of programs in `_software`, such as "AlphaFold2" and "Boltz-1".
_PREDICTORS = re.compile(
    "(alphafold|colabfold|esmfold|openfold|omegafold|helixfold|rosettafold|boltz|chai|protenix)(?![a-z])", re.IGNORECASE
)


def _confidence(tables: dict[str, list[str]]) -> tuple[dict[tuple, str], bool | None]:
    """The pLDDT by model, `label_asym_id` and `label_seq_id`, and what the third part of a `Model` says."""

    def rows(table: str, *names: str) -> Iterator[tuple[str, ...]]:
        columns = [tables.get(f"_{table}.{name}", []) for name in names]
        return zip(*(column or [""] * len(columns[0]) for column in columns))

    metrics = {metric: f"{name} {kind}".lower() for metric, name, kind in rows("ma_qa_metric", "id", "name", "type")}
    plddt = {metric for metric, words in metrics.items() if "plddt" in words}
    local = rows("ma_qa_metric_local", "metric_id", "model_id", "label_asym_id", "label_seq_id", "metric_value")
    found = {tuple(place): value for metric, *place, value in local if metric in plddt or not metrics}
    if found or plddt:
        return found, True
    methods = tables.get("_exptl.method", ())
    if any(method not in BLANK and "THEORETICAL" not in method.upper() for method in methods):
        return {}, False
    return {}, True if any(map(_PREDICTORS.search, tables.get("_software.name", ()))) else None
