"""Files that lost what tells residues apart: their insertion codes, or the chain ids of several molecules.

A row is moved to another residue or chain only for a reason that is in the file. Without one the file is refused.
"""

import math
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from ..files import StructureError
from ..protein.constants import PARENT
from .rows import AtomRow

# All in angstrom.
MAX_ALTERNATIVE = 1.0  # from CA to CA; beyond it is another residue, unless an altloc says otherwise
MAX_BOND = 1.8  # from C to the next N; 1.33 in proteins
MIN_CA_STEP, MAX_CA_STEP = 2.6, 4.2  # from CA to the next CA; nearer are alternatives. 2.9 (cis) and 3.8 in proteins


def repair(path: str, rows: list[AtomRow], chain: str | Sequence[str] | None, restore_codes: bool) -> list[AtomRow]:
    """The rows, with each residue once in its chain. With `restore_codes` lost insertion codes are made anew.

    Raises StructureError if nothing tells two residues apart, but only for chains that are asked for.
    """
    if not any(_again(rows, lambda row: row.chain)):
        return rows
    return _tell_apart(path, _with_codes(rows) if restore_codes else rows, chain)


def _again(rows: list[AtomRow], molecule: Callable[[AtomRow], object]) -> Iterator[AtomRow]:
    """CA rows whose residue came before in the same molecule, at another place: not an alternative location."""
    first: dict[tuple, tuple] = {}
    for row in rows:
        if row.atom == "CA" and row.residue in PARENT:
            xyz = first.setdefault((molecule(row), row.number, row.code, row.altloc), row.xyz)
            if xyz is not row.xyz and math.dist(xyz, row.xyz) > MAX_ALTERNATIVE:
                yield row


def _tell_apart(path: str, rows: list[AtomRow], chain: str | Sequence[str] | None) -> list[AtomRow]:
    """The rows, with one molecule in each chain. If a chain has a residue twice, a mark of its rows splits it.

    That is the first mark that tells all its residues apart, or else all marks together.
    """
    twice: dict[str, AtomRow] = {}
    for row in _again(rows, lambda row: row.chain):
        twice.setdefault(row.chain, row)
    parts: dict[str, list[AtomRow]] = defaultdict(list)
    for row in rows if twice else ():
        parts[row.chain].append(row)
    taken, names = set(parts), {}
    for mixed, (_, number, code, *_) in twice.items():
        for k in [*range(len(parts[mixed][0].marks)), slice(None)]:
            if not any(_again(parts[mixed], lambda row, k=k: row.marks[k])):
                break
        else:
            if chain is None or mixed in [chain, *chain]:
                raise StructureError(path, "the same residue twice", f"chain {mixed} {number}{code.strip()}")
            continue
        taken.remove(mixed)
        name_of: dict = dict.fromkeys(row.marks[k] for row in parts[mixed])
        for i, mark in enumerate(name_of, 1):
            if isinstance(mark, str):  # a name: a segment's, or the label column's
                name = mixed if mark in ("", mixed) else f"{mixed}_{mark}" if mixed else mark
            else:
                name = mixed if i == 1 else f"{mixed}_{i}"
            while name in taken:
                name += "_"
            taken.add(name)
            name_of[mark] = name
        names |= {(mixed, row.marks): name_of[row.marks[k]] for row in parts[mixed]}
    return [row._replace(chain=names.get((row.chain, row.marks), row.chain)) for row in rows]


def _with_codes(rows: list[AtomRow]) -> list[AtomRow]:
    """The rows, with free codes for residues that share a number: some programs write 27, 27, 27 for 27, 27A, 27B."""
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: (row[:3], row.marks))]
    often = Counter((block[0][:3], block[0].marks) for block in blocks if any(row.residue in PARENT for row in block))
    taken, found = {(row[:3], row.marks) for row in rows}, []
    for block in blocks:
        (chain, number, code, *_), marks = block[0], block[0].marks
        alone = not code.strip() and often[block[0][:3], marks] == 1
        first, *others = _bonded_parts(block) if alone else [block]
        letters = [c for c in string.ascii_uppercase if ((chain, number, c), marks) not in taken]
        if len(others) > len(letters):
            first, others = block, []
        found += first
        for part, letter in zip(others, letters):
            found += [row._replace(code=letter, lost_code=True) for row in part]
    return found


def _bonded_parts(block: list[AtomRow]) -> list[list[AtomRow]]:
    """The residues of a block, each a whole one that begins with N and is bonded to the next; else the block alone."""
    parts: list[list[AtomRow]] = []
    for row in block:
        again = parts and (row.residue != parts[-1][0].residue or row.atom == parts[-1][0].atom == "N")
        if not parts or again:
            parts.append([])
        parts[-1].append(row)
    backbones = [{row.atom: row for row in part if row.atom in ("N", "CA", "C")} for part in parts]
    for part, backbone in zip(parts, backbones):
        atoms = [(row.atom, row.altloc) for row in part]
        whole = len(backbone) == 3 == sum(row.atom in backbone for row in part) and part[0].atom == "N"
        plain = not any(row.altloc.strip() for row in backbone.values()) and part[0].residue in PARENT
        if not (whole and plain and len(set(atoms)) == len(atoms)):
            return [block]
    for a, b in pairwise(backbones):
        bond, step = math.dist(a["C"].xyz, b["N"].xyz), math.dist(a["CA"].xyz, b["CA"].xyz)
        if not (bond < MAX_BOND and MIN_CA_STEP < step < MAX_CA_STEP):
            return [block]
    return parts
