"""Files that lost what tells residues apart: their insertion codes, or the chain ids of several molecules.

An atom is moved to another residue or chain only for a reason that is in the file. Without one the file is refused.
"""

import string
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...protein.constants import PARENT
from ...reading.columns import Atoms, Column, changes, one_key
from ...reading.policy import refuse_repeated, repeated
from ...reading.residues import MAX_CA_STEP

# All in angstrom.
MAX_BOND = 1.8  # from C to the next N; 1.33 in proteins
MIN_CA_STEP = 2.6  # from CA to the next CA; nearer are alternatives. 2.9 (cis) and 3.8 in proteins


def repair(path: str, atoms: Atoms, chain: str | Sequence[str] | None, restore_codes: bool) -> tuple[Atoms, np.ndarray]:
    """The atoms, with each residue once in its chain, and which of them (N,) are given an insertion code here.

    Codes are made anew with `restore_codes` alone. Raises StructureError if nothing tells two residues apart, but only
    for chains that are asked for.
    """
    atoms = _last_oxygens(atoms)
    given_code = np.zeros(len(atoms), bool)
    if not any(repeated(atoms, atoms.chain)):
        return atoms, given_code
    carbon, nitrogen = _bonds(atoms)
    # A mark that changes between bonded residues tells no molecules apart: mdtraj writes insertion codes as segments.
    marks = tuple(mark for mark in atoms.marks if (mark.index[carbon] == mark.index[nitrogen]).all())
    atoms = replace(atoms, marks=marks)
    if restore_codes:
        code = _with_codes(atoms)
        given_code = np.array(code.texts()) != np.array(atoms.code.texts())
        atoms = replace(atoms, code=code)
    return replace(atoms, chain=_tell_apart(path, atoms, chain)), given_code


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


def _with_codes(atoms: Atoms) -> Column:
    """The column of insertion codes, with free codes for residues that share a number.

    Some programs write 27, 27, 27 for 27, 27A, 27B.
    """
    molecule = [atoms.chain.index, atoms.number, *(mark.index for mark in atoms.marks)]
    numbered = one_key(*molecule)
    position = one_key(*molecule, atoms.code.index)
    of_protein = atoms.residue.where(PARENT.__contains__)
    blank = atoms.code.where(lambda code: not code.strip())
    codes = atoms.code.texts()

    # A block is what stands together under one number. It has to be the only one of its number.
    starts = changes(position)
    often = np.bincount(position[starts], np.logical_or.reduceat(of_protein, starts))
    for first, last in pairwise([*starts.tolist(), len(atoms)]):
        if not blank[first] or often[position[first]] != 1:
            continue
        others = _bonded_parts(atoms, first, last)[1:]
        there = atoms.code.texts(numbered == numbered[first]) if others else ()
        free = [letter for letter in string.ascii_uppercase if letter not in there]
        if len(others) <= len(free):
            for (begin, end), letter in zip(others, free):
                codes[begin:end] = [letter] * (end - begin)
    return Column.of(codes)


def _bonded_parts(atoms: Atoms, first: int, last: int) -> list[tuple[int, int]]:
    """The residues of a block as ranges of rows, each a whole one that begins with N and is bonded to the next.

    None, if that is not so.
    """
    rows = np.arange(first, last)
    name, residue, altloc = (np.array(x.texts(rows)) for x in (atoms.atom, atoms.residue, atoms.altloc))
    starts = np.flatnonzero(name == "N")
    if not len(starts) or starts[0]:
        return []
    part = np.cumsum(name == "N") - 1  # of every row

    # Each is a whole residue of a known type, with one place for every atom.
    alpha = np.flatnonzero(name == "CA")
    carbon = np.flatnonzero(name == "C")
    each = np.arange(len(starts))
    whole = np.array_equal(part[alpha], each) and np.array_equal(part[carbon], each)
    of_backbone = altloc[np.isin(name, ("N", "CA", "C"))]
    alternatives = any(map(str.strip, of_backbone)) or len({*zip(part, name, altloc)}) < len(rows)
    known = {*residue} <= PARENT.keys() and (residue == residue[starts][part]).all()
    if alternatives or not (whole and known):
        return []

    # Each is bonded to the next.
    xyz = atoms.xyz[first:last]
    bond = np.linalg.norm(xyz[carbon[:-1]] - xyz[starts[1:]], axis=1)
    step = np.linalg.norm(np.diff(xyz[alpha], axis=0), axis=1)
    bonded = (bond < MAX_BOND) & (step > MIN_CA_STEP) & (step < MAX_CA_STEP)
    ends = [*(first + starts), last]
    return list(pairwise(ends)) if bonded.all() else []
