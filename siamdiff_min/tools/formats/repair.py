"""Files that lost what tells residues apart: several molecules under one chain id, an OXT under another number.

An atom is moved to another residue or chain only for a reason that is in the file. Without one the file is refused.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...reading.columns import Atoms, Column, changes
from ...reading.policy import refuse_repeated, repeated

MAX_BOND = 1.8  # angstrom from C to the next N; 1.33 in proteins


def repair(path: str, atoms: Atoms, chain: str | Sequence[str] | None) -> Atoms:
    """The atoms, with each residue once in its chain.

    Raises StructureError if nothing tells two residues apart, but only for chains that are asked for.
    """
    atoms = _last_oxygens(atoms)
    if not any(repeated(atoms, atoms.chain)):
        return atoms
    carbon, nitrogen = _bonds(atoms)
    # A mark that changes between bonded residues tells no molecules apart: mdtraj writes insertion codes as segments.
    marks = tuple(mark for mark in atoms.marks if (mark.index[carbon] == mark.index[nitrogen]).all())
    atoms = replace(atoms, marks=marks)
    return replace(atoms, chain=_tell_apart(path, atoms, chain))


def _rows(atoms: Atoms, name: str) -> np.ndarray:
    """The rows of atoms with this name."""
    return np.flatnonzero(atoms.atom.where(name.__eq__))


def _near(atoms: Atoms, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which pairs of rows are bonded: in one chain, and close."""
    step = atoms.xyz[a] - atoms.xyz[b]
    return (atoms.chain.index[a] == atoms.chain.index[b]) & ((step**2).sum(1) < MAX_BOND**2)


def _bonds(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """The rows of C and of N of all peptide bonds, by the next N behind each C."""
    nitrogen = _rows(atoms, "N")
    carbon = _rows(atoms, "C")
    carbon = carbon[carbon < nitrogen.max(initial=-1)]
    behind = nitrogen[np.searchsorted(nitrogen, carbon)]
    bonded = _near(atoms, carbon, behind)
    return carbon[bonded], behind[bonded]


def _last_oxygens(atoms: Atoms) -> Atoms:
    """The atoms, with each OXT that is alone under its number in the residue whose C, the last one before, it is at.

    Foldcomp numbers the last OXT of a chain by the count of residues.
    """
    starts = changes(atoms.chain.index, atoms.number, atoms.code.index)
    alone = starts[np.diff(starts, append=len(atoms)) == 1]
    oxygen = alone[atoms.atom.take(alone).where("OXT".__eq__)]
    carbon = _rows(atoms, "C")
    if not (len(oxygen) and len(carbon)):
        return atoms
    before = carbon[np.searchsorted(carbon, oxygen) - 1]
    bonded = _near(atoms, before, oxygen)
    home = np.arange(len(atoms))
    home[oxygen[bonded]] = before[bonded]
    return replace(atoms, number=atoms.number[home], code=atoms.code.take(home), residue=atoms.residue.take(home))


def _tell_apart(path: str, atoms: Atoms, chain: str | Sequence[str] | None) -> Column:
    """The chains, with one molecule in each. If a chain has a residue twice, a mark of its atoms splits it."""
    twice: dict[str, int] = {}
    for row in repeated(atoms, atoms.chain):
        twice.setdefault(atoms.chain.values[atoms.chain.index[row]], row)
    names = atoms.chain.texts()
    taken = set(names)
    for mixed, row in twice.items():
        rows = np.flatnonzero(atoms.chain.where(mixed.__eq__))
        mark = _mark_that_tells_apart(atoms.take(rows))
        if mark is None:
            refuse_repeated(path, atoms, [row], chain)
            continue
        taken.remove(mixed)
        marks = mark.texts()
        name_of: dict = {}
        for number, value in enumerate(dict.fromkeys(marks), 1):
            name = _molecule_name(mixed, value, number)
            while name in taken:
                name += "_"
            taken.add(name)
            name_of[value] = name
        for place, value in zip(rows.tolist(), marks):
            names[place] = name_of[value]
    return Column.of(names)


def _mark_that_tells_apart(atoms: Atoms) -> Column | None:
    """The first mark that tells all residues of a chain apart, or else all marks together, if these do."""
    together = Column.of(list(zip(*(mark.texts() for mark in atoms.marks))) or [()] * len(atoms))
    for mark in (*atoms.marks, together):
        if not any(repeated(atoms, mark)):
            return mark
    return None


def _molecule_name(chain: str, mark: str | int | tuple, number: int) -> str:
    """A chain id for the `number`-th molecule of a chain. A mark that is a text is a name: a segment, a label."""
    if not isinstance(mark, str):
        return chain if number == 1 else f"{chain}_{number}"
    if mark in ("", chain):
        return chain
    return f"{chain}_{mark}" if chain else mark
