"""PDB files to columns of atoms, with chain ids that are too long for their column.

The lines of atoms are one table of bytes. Lines that are not as usual are read one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..files import StructureError
from ..protein.constants import PARENT, UNMODIFIED
from .columns import NO_NUMBER, OTHER_MODELS, Atoms, Column, Model, changes, decimals, groups_of, pieces, whole_numbers

WIDTH = 80  # letters of a line
# The residue number of an atom and its insertion code, then its coordinates.
_POINTS = r".{3}([- \d]{4}\.\d{3}){3}"
_NUMBERS = re.compile(r".{22}[- \d]{4}\D" + _POINTS, re.ASCII)
_NO_NUMBER = re.compile(".{27}" + _POINTS, re.ASCII)
# Lines that look like atoms but would be skipped: `atom`, an indented ATOM, coordinates after an unknown record name.
_STRAY = re.compile(
    rb"\n(?!(?-i:ATOM|HETA|EXPDTA|TER|SIGATM|REMARK))"
    rb"([^A-Z\n]*(ATOM  |ATOM *\d|HETATM)|.{29,31}((?= *-?\d+\.)[- \d]{4}\.\d{3}){3})",
    re.IGNORECASE,
)
ENDS = ("TER", "END")  # of a molecule
_MARKS = re.compile(rb"\n(TER|EXPDTA|MODEL|ENDMDL|END|ROOT|BRANCH)(?= {0,3}(?:\n|(?<=\n.{6})))")  # whole records


def pdb_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of a PDB file after the other; a later model is only read if it is asked for."""
    lines = _Lines(content)
    borders = _borders_of_models(lines)
    parts = np.diff(lines.atoms_before([0, *borders, len(lines.start)]))
    others = max(0, int(np.count_nonzero(parts)) - 1)
    predicted = None
    explicit = False  # a MODEL record has begun this model
    begin = 0
    for border in [*borders, len(lines.start)]:
        record = lines.marks.get(border, "")  # "" at the end of the file
        found = lines.is_atom[begin:border].any()
        atoms, dropped, measured = _read_model(path, lines, begin, border)
        predicted = False if measured else predicted
        if explicit and record in ("MODEL", ""):
            raise StructureError(path, "truncated", "MODEL without ENDMDL")
        if explicit or found:
            yield atoms, Counter({OTHER_MODELS: others}) + dropped, predicted
        explicit = record == "MODEL"
        begin = border + 1


def _borders_of_models(lines: _Lines) -> list[int]:
    """The lines between models. Without MODEL and ENDMDL, some programs write END between them.

    Behind END there may also be another molecule (`cat receptor.pdb ligand.pdb`). It belongs to the model before, if
    at most half of its residues were there already, by chain, number and name.
    """
    records = {number: record for number, record in lines.marks.items() if record in ("MODEL", "ENDMDL", "END")}
    if {*records.values()} != {"END"}:
        return [*records]
    borders = []
    seen: set[bytes] = set()
    edges = [0, *records, len(lines.start)]
    for begin, end in pairwise(edges):
        first, last = lines.atoms_before([begin, end])
        here: set[bytes] = set()
        if 0 < last - first < len(lines.atoms):  # not all of them are between the same two
            residues = lines.letters(lines.atoms[first:last])[:, 17:27]
            here = {*np.unique(np.ascontiguousarray(residues).view("S10")).tolist()}
        if 2 * len(here & seen) > len(here):
            borders.append(begin)
            seen = set()
        seen |= here
    return borders


class _Lines:
    """The lines of a PDB file."""

    def __init__(self, content: bytes):
        if b"\r" in content:
            content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        content = b"\n" + content.removesuffix(b"\n") + b"\n"
        self.buffer = np.frombuffer(content + b" " * WIDTH, np.uint8)
        edges = np.flatnonzero(self.buffer == ord("\n"))
        self.start = edges[:-1] + 1
        self.end = edges[1:]
        head = pieces(self.buffer, self.start, 4).view("<u4").ravel()
        self.is_atom = np.isin(head, np.frombuffer(b"ATOMHETA", "<u4"))
        self.atoms = np.flatnonzero(self.is_atom)
        # Numbers of lines: those that look like an atom and are none, and those of records.
        stray = [found.start() for found in _STRAY.finditer(content)]
        self.stray = np.searchsorted(edges, stray).tolist()
        marks = list(_MARKS.finditer(content))
        line = np.searchsorted(edges, [found.start() for found in marks]).tolist()
        self.marks = dict(zip(line, [found[1].decode() for found in marks]))

    def atoms_before(self, numbers: list[int]) -> np.ndarray:
        """How many lines of atoms there are before each of these lines."""
        return np.searchsorted(self.atoms, numbers)

    def text(self, number: int) -> str:
        """A line. One character per byte, because the columns of a PDB file are bytes."""
        return self.buffer[self.start[number] : self.end[number]].tobytes().decode("latin-1")

    def letters(self, numbers: np.ndarray) -> np.ndarray:
        """Some lines as bytes (N, WIDTH), short ones with blanks behind."""
        start = self.start[numbers]
        length = self.end[numbers] - start
        letters = pieces(self.buffer, start, WIDTH)
        if len(length) and length.min() < WIDTH:
            letters[np.arange(WIDTH) >= length[:, None]] = ord(" ")
        return letters


def _read_model(path: str, lines: _Lines, begin: int, end: int) -> tuple[Atoms, Counter, bool]:
    """The atoms in lines `begin` to `end`, what is left out, and whether an experiment is named. May raise."""
    numbers = lines.atoms[slice(*np.searchsorted(lines.atoms, (begin, end)))]  # of the lines with atoms
    marks = {number: record for number, record in lines.marks.items() if begin <= number < end}
    if {"ROOT", "BRANCH"} & {*marks.values()}:
        detail = "its atoms stand in the order of branches, not of residues: take the PDB file it was made from"
        raise StructureError(path, "PDBQT with a torsion tree", detail)
    experiments = [n for n, record in marks.items() if record == "EXPDTA" and "THEORETICAL" not in lines.text(n)]

    # Columns of usual lines. A run is what stands together with one residue and number.
    letters = lines.letters(numbers)
    place = letters[:, 17:27]
    first = changes(place[:, :8].view("u8")[:, 0], place[:, 8:].view("u2")[:, 0])
    run = groups_of(first, len(numbers))
    size, sign, usual = whole_numbers(place[first, 5:9].T)
    five_digits = place[first, 9] - ord("0") < 10
    usual &= (place[first, 8] - ord("0") < 10) & ~five_digits & (place[first, 9] < 128)
    residue_number = (size * sign).astype(np.int64)[run]
    code = letters[:, 26].copy()
    points = letters[:, 30:54].reshape(-1, 3, 8)
    xyz, sound = decimals(np.ascontiguousarray(points.transpose(2, 0, 1)), 3)

    # Lines that are no atoms but look so, and those that are not usual: the first of them counts.
    for number in lines.stray:
        if begin <= number < end:
            raise ValueError(f"line {number + 1} looks like an atom, but is no ATOM or HETATM record")
    kept = np.ones(len(numbers), bool)
    for row in np.flatnonzero(~(sound.all(1) & usual[run])).tolist():
        number = int(numbers[row])
        read = _odd_atom(path, number + 1, lines.text(number))
        kept[row] = read is not None
        if read is not None:
            residue_number[row], code[row], xyz[row] = read
    dropped = Counter({NO_NUMBER: int((~kept).sum())})

    # Names. TER, or an END between two molecules, counts for the chain of the atom before it.
    names = Column.of_letters(place[first, :5]).take(run[kept])
    letters = letters[kept]
    row_of_end = {int(kept[: np.searchsorted(numbers, n)].sum()) for n, record in marks.items() if record in ENDS}
    residue, chain, ends = _named(names, sorted(row_of_end))
    segment = Column.of_letters(letters[:, 72:76]).map(lambda text: "" if "." in text else text.strip())
    atoms = Atoms(
        chain=chain,
        number=residue_number[kept],
        code=Column.of_letters(code[kept][:, None]),
        residue=residue,
        atom=Column.of_letters(letters[:, 12:16]).map(str.strip),
        altloc=Column.of_letters(letters[:, 16:17]),
        occupancy=Column.of_letters(letters[:, 54:60]).numbers(_occupancy),
        xyz=xyz[kept],
        element=Column.of_letters(letters[:, 76:78]).map(lambda text: text.strip().upper()),
        hetero=letters[:, 0] == ord("H"),
        b_factor=Column.of_letters(letters[:, 60:66]),
        place=numbers[kept],
        marks=(segment, ends),
    )
    return atoms, dropped, bool(experiments)


def _odd_atom(path: str, number: int, line: str) -> tuple[int, int, tuple[float, ...]] | None:
    """Residue number, insertion code, coordinates. None: they are no numbers, an error in an amino acid."""
    if len(line) < 54:  # x, y and z end in column 54
        raise StructureError(path, "truncated", f"the atom in line {number} has no coordinates")
    residue, _ = _residue_and_chain(line[17:22])
    try:
        if not _NUMBERS.match(line):
            raise ValueError("its residue number or the points of its coordinates are not in their columns")
        residue_number = int(line[22:26])
        xyz = float(line[30:38]), float(line[38:46]), float(line[46:54])
    except ValueError as error:
        if residue not in PARENT and _NO_NUMBER.match(line):
            return None
        raise ValueError(f"the atom in line {number}: {error}") from error
    return residue_number, ord(line[26]), xyz


def _residue_and_chain(columns: str) -> tuple[str, str]:
    """Of columns 18 to 22. The fourth letter is of the residue's name, or the first of a chain id of two letters."""
    residue, chain = columns[:3].strip(), columns[4:].strip()
    if columns[3] == " ":
        return residue, chain
    if residue in UNMODIFIED and columns[:4] not in PARENT:
        return residue, columns[3:].strip()
    return columns[:4].strip(), chain


def _residues_and_chains(texts: list[str]) -> list[tuple[str, str]]:
    """The same of several. If one chain id has two letters, four letters that may be a residue and such an id are."""
    pairs = [_residue_and_chain(columns) for columns in texts]
    two_letters = {
        chain for columns, (_, chain) in zip(texts, pairs) if columns[3] != " " and chain == columns[3:].strip()
    }
    for i, (residue, letter) in enumerate(pairs):
        if len(residue) == 4 and residue[3:] + letter in two_letters:
            pairs[i] = residue[:3], residue[3:] + letter
    return pairs


def _named(names: Column, row_of_end: list[int]) -> tuple[Column, Column, Column]:
    """Residues, chains, and the number of TER before an atom in its chain. Blank ids become "", "_2", ... by TER."""
    pairs = _residues_and_chains(names.values)
    residue = Column.of([residue for residue, _ in pairs], names.index)
    chain = Column.of([chain for _, chain in pairs], names.index)
    ends = np.zeros(len(chain.index), np.int64)
    before_end = np.array([row - 1 for row in row_of_end if row], np.int64)  # the atoms before TER
    for i in np.unique(chain.index[before_end]).tolist():
        of_chain = np.flatnonzero(chain.index == i)
        ends[of_chain] = np.searchsorted(before_end[chain.index[before_end] == i], of_chain)
    ends_by_number = Column([*range(int(ends.max(initial=0)) + 1)], ends)
    blank = chain.where(lambda text: not text)
    if blank.any():
        chain = chain.or_else(blank, ends_by_number.map(lambda number: f"_{number + 1}" if number else ""))
    return residue, chain, ends_by_number


def _occupancy(text: str) -> float:
    """A missing one counts as 1."""
    try:
        return float(text)
    except ValueError:
        return 1.0
