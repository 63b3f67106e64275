"""Files that lost what tells residues apart: their insertion codes, or the chain ids of several molecules.

An atom is moved to another residue or chain only for a reason that is in the file. Without one the file is refused.
"""

import math
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
    atoms = replace(atoms, marks=tuple(mark for mark in atoms.marks if not _cuts_a_bond(atoms, mark)))
    if restore_codes:
        code = _with_codes(atoms)
        given_code = np.array(code.texts()) != np.array(atoms.code.texts())
        atoms = replace(atoms, code=code)
    return replace(atoms, chain=_tell_apart(path, atoms, chain)), given_code


def _cuts_a_bond(atoms: Atoms, mark: Column) -> bool:
    """Whether a mark changes between two bonded residues: then it tells no molecules apart.

    mdtraj writes insertion codes as segments, for instance.
    """
    chain = atoms.chain.index
    starts = changes(chain, atoms.number, atoms.code.index, atoms.residue.index, mark.index)
    names = atoms.atom.texts()
    residues = list(pairwise([*starts.tolist(), len(atoms)]))
    for (first, border), (_, last) in pairwise(residues):
        new_mark = mark.index[first] != mark.index[border]
        before = names[first:border]
        behind = names[border:last]
        if new_mark and chain[first] == chain[border] and "C" in before and "N" in behind:
            carbon = atoms.xyz[first + before.index("C")]
            nitrogen = atoms.xyz[border + behind.index("N")]
            if math.dist(carbon, nitrogen) < MAX_BOND:
                return True
    return False


def _last_oxygens(atoms: Atoms) -> Atoms:
    """The atoms, with each OXT in the residue whose C it is bonded to.

    Foldcomp numbers the last OXT of a chain by the count of residues. So an OXT that stands alone under its number, and
    whose C is in the residue before it, takes the place of that residue.
    """
    oxygens = np.flatnonzero(atoms.atom.where("OXT".__eq__))
    if not len(oxygens):
        return atoms
    chain = atoms.chain.index
    begins = np.zeros(len(atoms) + 1, bool)  # a position, and the end
    begins[changes(chain, atoms.number, atoms.code.index)] = True
    begins[-1] = True
    alone = oxygens[begins[oxygens] & begins[oxygens + 1]]
    if not len(alone):
        return atoms
    position = one_key(chain, atoms.number, atoms.code.index)
    moved = np.arange(len(atoms))
    for row in alone[alone > 0].tolist():
        if chain[row - 1] == chain[row]:
            rows = np.flatnonzero(position[:row] == position[row - 1])
            carbons = rows[atoms.atom.take(rows).where("C".__eq__)]
            if any(math.dist(atoms.xyz[carbon], atoms.xyz[row]) < MAX_BOND for carbon in carbons.tolist()):
                moved[row] = row - 1
    code, residue = atoms.code.take(moved), atoms.residue.take(moved)
    return replace(atoms, number=atoms.number[moved], code=code, residue=residue)


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
    molecule = [mark.index for mark in atoms.marks]
    position = one_key(atoms.chain.index, atoms.number, atoms.code.index, *molecule)
    numbered = one_key(atoms.chain.index, atoms.number, *molecule)
    first = changes(position)
    last = np.append(first[1:], len(atoms))

    # A block is what stands together under one number. It has several residues if names change, or N comes again.
    of_protein = np.logical_or.reduceat(atoms.residue.where(PARENT.__contains__), first)
    often = np.bincount(position[first][of_protein], minlength=len(atoms))
    changed = np.append(False, atoms.residue.index[1:] != atoms.residue.index[:-1])
    changed[first] = False
    several = np.add.reduceat(changed | atoms.atom.where("N".__eq__), first) > 1
    several |= np.logical_or.reduceat(changed, first)
    blank = atoms.code.where(lambda code: not code.strip())[first]
    blocks = np.flatnonzero(several & blank & (often[position[first]] == 1))

    codes = atoms.code.texts()
    for block in blocks.tolist():
        others = _bonded_parts(atoms, first[block], last[block])[1:]
        there = atoms.code.texts(numbered == numbered[first[block]])
        free = [letter for letter in string.ascii_uppercase if letter not in there]
        if len(others) <= len(free):
            for (begin, end), letter in zip(others, free):
                codes[begin:end] = [letter] * (end - begin)
    return Column.of(codes)


def _bonded_parts(atoms: Atoms, first: int, last: int) -> list[tuple[int, int]]:
    """The residues of a block as ranges of rows, each a whole one that begins with N and is bonded to the next.

    If that is not so, the block alone.
    """
    rows = slice(first, last)
    names = list(zip(atoms.residue.texts(rows), atoms.atom.texts(rows), atoms.altloc.texts(rows)))
    starts = [0]
    for i, (residue, atom, _) in enumerate(names):
        residue_before, atom_before, _ = names[starts[-1]]
        if residue != residue_before or (i > 0 and atom == atom_before == "N"):
            starts.append(i)
    parts = list(pairwise([*starts, len(names)]))

    backbones = []
    for begin, end in parts:
        here = names[begin:end]
        backbone = {atom: begin + i for i, (_, atom, _) in enumerate(here) if atom in ("N", "CA", "C")}
        whole = len(backbone) == 3 == sum(atom in backbone for _, atom, _ in here) and here[0][1] == "N"
        plain = here[0][0] in PARENT and not any(names[row][2].strip() for row in backbone.values())
        if not (whole and plain and len(set(here)) == len(here)):
            return [(first, last)]
        backbones.append({atom: atoms.xyz[first + row] for atom, row in backbone.items()})
    for a, b in pairwise(backbones):
        bond = math.dist(a["C"], b["N"])
        step = math.dist(a["CA"], b["CA"])
        if not (bond < MAX_BOND and MIN_CA_STEP < step < MAX_CA_STEP):
            return [(first, last)]
    return [(first + begin, first + end) for begin, end in parts]
