"""From rows of atoms to a `Structure`: the parsing policy (altlocs, modified residues, what is left out).

Every format ends here: PDB, mmCIF and the data frames of ATOM3D are rows, one per atom. A position is chain, residue
number and insertion code; its record type (ATOM, HETATM) plays no part. No coordinate is ever made up.
"""

import string
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from ..files import StructureError
from .constants import ATOM_ELEMENT, ATOM_INDEX, CA, PARENT, PARENT_ATOM, RESIDUE_ATOMS, RESIDUE_INDEX, RESIDUES
from .protein import Protein

MAX_COORDINATE = 1e5  # angstrom; float32 still resolves 0.01 angstrom there
MAX_CHAIN_ID = 32  # characters; the longest of the PDB has four, a table of ids takes the width of the longest
_NUCLEOTIDES = [*"ACGUINT", *(f"D{base}" for base in "ACGUINT"), "ADE", "CYT", "GUA", "URA", "THY"]
_NOT_A_RESIDUE = dict.fromkeys(["HOH", "WAT", "DOD", "H2O", "TIP", "TP3", "SOL", "SPC"], "waters")
_NOT_A_RESIDUE |= dict.fromkeys(_NUCLEOTIDES, "nucleotides")


@dataclass(frozen=True)
class Structure:
    """What was read from one file, and what was left out of it."""

    protein: Protein
    chain_names: tuple[str, ...]  # author chain ids, in the order of `protein.chain`
    dropped: Counter  # reason -> number of atoms or residues in the file that are not in `protein`
    labels: dict = field(default_factory=dict)  # kept beside the protein in a store: plain values and tensors
    unmatched: tuple[StructureError, ...] = ()  # why others are not among its conformers

    @property
    def positions(self) -> list[tuple[str, int, str]]:
        """Chain, number and insertion code of every residue."""
        chains = [self.chain_names[chain] for chain in self.protein.chain.tolist()]
        return list(zip(chains, self.protein.residue_number.tolist(), map(chr, self.protein.insertion_code.tolist())))


class AtomRow(NamedTuple):
    """One atom of a file, as it stands there."""

    chain: str
    number: int
    code: str
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str


def assemble(path: str, rows: Iterable[AtomRow], dropped: Counter) -> Structure:
    """Apply the parsing policy; `dropped` counts what was left out already, `path` is for error messages.

    Raises StructureError: no protein in the rows, or numbers that no structure has.
    """
    chains = _apply_policy(rows, dropped)
    dropped = +dropped  # without zeros
    if not chains:
        found = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        raise StructureError(path, "no protein in it", f"skipped: {found}" if found else "")
    longest = max(chains, key=len)
    if len(longest) > MAX_CHAIN_ID:
        raise StructureError(path, "chain id too long", f"{longest[:MAX_CHAIN_ID]}..., {len(longest)} characters")
    return Structure(_protein(path, chains), tuple(chains), dropped)


def join(structures: list[Structure], **labels) -> Structure:
    """Several structures as one of a single protein, their chains kept apart: residues and atoms follow in order."""
    packed = Protein.pack([structure.protein for structure in structures])
    first_chain = torch.tensor([0, *(len(structure.chain_names) for structure in structures)]).cumsum(0)
    chain = packed.chain + first_chain[packed.residue_protein]
    protein = replace(packed, chain=chain, residue_protein=torch.zeros_like(packed.residue_protein), num_proteins=1)
    names = tuple(name for structure in structures for name in structure.chain_names)
    return Structure(protein, names, sum((structure.dropped for structure in structures), Counter()), labels)


# ---- the parsing policy ----------------------------------------------------------------------------------------------

_PARENT = {name: name for name in RESIDUES} | PARENT
_ATOMS = {name: {a: ATOM_INDEX[a] for a in [*RESIDUE_ATOMS[parent], "OXT"]} for name, parent in _PARENT.items()}
for (_name, _atom), _parent_atom in PARENT_ATOM.items():
    _ATOMS[_name][_atom] = ATOM_INDEX[_parent_atom]


def _apply_policy(rows: list[AtomRow], dropped: Counter) -> dict[str, list]:
    """Residues of every chain as (number, code, type, {atom: xyz}), in file order; counts what it leaves out.

    All rows with the same chain, number and insertion code are one position, wherever they stand in the file and
    whatever their record type: alternative residues at one position cannot become two residues.
    """
    positions: dict[tuple, dict[str, list[AtomRow]]] = {}  # chain, number, code -> name of the residue -> its rows
    for (*position, residue), group in groupby(rows, key=itemgetter(0, 1, 2, 3)):
        positions.setdefault(tuple(position), {}).setdefault(residue, []).extend(group)

    chains: dict[str, list] = {chain: [] for chain, _, _ in positions}
    for (chain, number, code), names in positions.items():
        candidates = []
        for name, group in names.items():
            if name not in _PARENT:
                dropped[_NOT_A_RESIDUE.get(name, "ligands and unknown residues")] += 1
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
            chains[chain].append((number, code, RESIDUE_INDEX[_PARENT[name]], xyz))
    return {chain: residues for chain, residues in chains.items() if residues}


def _one_conformation(group: list[AtomRow], known: dict[str, int], dropped: Counter) -> dict[int, AtomRow]:
    """One row for every known atom of a residue: the altloc with the highest occupancy, ties by order.

    The altloc is chosen once for the residue, by the mean over the atoms that have a choice, so that conformations do
    not mix. An atom that lacks it takes its own highest.
    """
    options: dict[int, dict[str, AtomRow]] = {}
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


def _protein(path: str, chains: dict[str, list]) -> Protein:
    """The residues of all chains as a `Protein` of one."""
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
        residue_protein=torch.zeros(len(residues), dtype=torch.long),
    )
