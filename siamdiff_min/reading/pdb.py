"""PDB files to rows: by columns, with numbers and chain ids that are too long for their columns."""

import re
from collections import Counter
from collections.abc import Iterator

from ..files import StructureError
from ..protein.constants import PARENT, UNMODIFIED
from .rows import NO_NUMBER, OTHER_MODELS, AtomRow, Model, text_lines

# The residue number of an atom (hybrid-36; a fifth digit takes the insertion code's column), then its coordinates.
_POINTS = r".{3}([- \d]{4}\.\d{3}){3}"
_NUMBERS = re.compile(r".{22}([-\d]\d{4}|[- \d]{4}\D|[A-Z][\dA-Z]{3}\D|[a-z][\da-z]{3}\D)" + _POINTS, re.ASCII)
_NO_NUMBER = re.compile(".{27}" + _POINTS, re.ASCII)
# Lines that look like atoms but would be skipped: `atom`, an indented ATOM, coordinates after an unknown record name.
_STRAY = re.compile(
    r"[^A-Z]*(ATOM  |ATOM *\d|HETATM)|(?!SIGATM|REMARK).{29,31}((?= *-?\d+\.)[- \d]{4}\.\d{3}){3}",
    re.IGNORECASE | re.ASCII,
)


def pdb_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of a PDB file after the other; a later model is only read if it is asked for."""
    parts = re.split(rb"\n(?:MODEL|ENDMDL|END)\b", b"\n" + content)
    others = sum(b"\nATOM" in part or b"\nHETATM" in part for part in parts) - 1
    rows: list[AtomRow] | None = None  # None between models
    explicit, dropped, predicted = False, Counter({OTHER_MODELS: others}), None
    ends, pairs = Counter(), set()  # TER records behind each chain; ids of two letters, in columns 21 and 22
    for number, line in enumerate(text_lines(content), 1):
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
