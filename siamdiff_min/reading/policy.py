"""From columns of atoms to a `Structure`: the parsing policy (altlocs, modified residues, what is left out or refused).

Every format ends here: PDB, mmCIF, BinaryCIF and the data frames of ATOM3D are columns, one row per atom. A position is
chain, residue number and insertion code, whatever the type of its records (ATOM, HETATM). No coordinate is ever made
up. The columns are worked on as a whole; rows are looked at one by one only where there is something to choose.
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..files import StructureError, part_or_none
from ..protein.check import check_protein
from ..protein.constants import ATOM_INDEX, ATOM_NAMES, CA, PARENT, PARENT_ATOM, RESIDUE_ATOMS
from .columns import Atoms, Column, changes, groups_of, one_key
from .residues import Residues
from .structure import Structure

MAX_ALTERNATIVE = 1.0  # angstrom from CA to CA; beyond it is another residue, unless an altloc says otherwise
_NUCLEOTIDES = [*"ACGUINT", *(f"D{base}" for base in "ACGUINT"), "ADE", "CYT", "GUA", "URA", "THY"]
_NOT_A_RESIDUE = dict.fromkeys(["HOH", "WAT", "DOD", "H2O", "TIP", "TP3", "SOL", "SPC"], "waters")
_NOT_A_RESIDUE |= dict.fromkeys(_NUCLEOTIDES, "nucleotides")
_ATOMS = {name: {a: ATOM_INDEX[a] for a in [*RESIDUE_ATOMS[parent], "OXT"]} for name, parent in PARENT.items()}
for (_name, _atom), _parent_atom in PARENT_ATOM.items():
    _ATOMS[_name][_atom] = ATOM_INDEX[_parent_atom]


def assemble(
    path: str,
    atoms: Atoms,
    dropped: Mapping[str, int],
    chain: str | Sequence[str] | None = None,
    predicted: bool | None = False,
) -> Structure:
    """Apply the parsing policy. `dropped` counts what the reader left out; `path` is the file's name in errors.

    With `chain` only these chains: a name, or several as a list.
    `predicted` says if the file calls itself a prediction, None if it says nothing.
    """
    atoms = told_apart(path, atoms, chain)
    if chain is not None:
        atoms = atoms.take(_chosen_chains(path, atoms.chain, chain))
    counts = Counter(dropped)
    residues = apply_policy(atoms, counts).in_chains(counts)
    counts = +counts  # without zeros
    if not len(residues.alpha):
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
        raise StructureError(path, "no protein in it", f"skipped: {reasons}" if reasons else "")
    protein, chain_names = residues.protein(path)
    plddt, of_residues = None, None
    if predicted is not False and (plddt_of := part_or_none("plddt_of")):
        plddt, of_residues = plddt_of(residues, predicted)
    check_protein(path, protein, chain_names)
    return Structure(protein, chain_names, counts, plddt=plddt, residue_plddt=of_residues)


def told_apart(path: str, atoms: Atoms, chain: str | Sequence[str] | None = None) -> Atoms:
    """The atoms with each residue once in its chain.

    A residue that is there twice belongs to two molecules. `repair` of tools/ tells them apart; without it, and if it
    finds no reason in the file, StructureError is raised.
    """
    if repair := part_or_none("repair"):
        return repair(path, atoms, chain)
    refuse_repeated(path, atoms, repeated(atoms, atoms.chain), chain)
    return atoms


def repeated(atoms: Atoms, molecule: Column) -> Iterator[int]:
    """Rows of CA whose residue came before in the same molecule, at another place: not an alternative location."""
    of_protein = atoms.residue.where(PARENT.__contains__)
    alpha = np.flatnonzero(of_protein & atoms.atom.where("CA".__eq__))
    columns = molecule.index, atoms.number, atoms.code.index, atoms.altloc.index
    place = one_key(*(column[alpha] for column in columns))
    often = np.bincount(place)[place] > 1
    first: dict[int, int] = {}
    for row, key in zip(alpha[often].tolist(), place[often].tolist()):
        before = first.setdefault(key, row)
        if math.dist(atoms.xyz[before], atoms.xyz[row]) > MAX_ALTERNATIVE:
            yield row


def refuse_repeated(path: str, atoms: Atoms, rows: Iterable[int], chain: str | Sequence[str] | None) -> None:
    """Raise StructureError if one of these rows is of a chain that is asked for."""
    for row in rows:
        name = atoms.chain.values[atoms.chain.index[row]]
        if chain is None or name in ([chain] if isinstance(chain, str) else chain):
            code = atoms.code.values[atoms.code.index[row]].strip()
            raise StructureError(path, "the same residue twice", f"chain {name} {atoms.number[row]}{code}")


def _chosen_chains(path: str, column: Column, chain: str | Sequence[str]) -> np.ndarray:
    """(N,) which atoms are of the chains that are asked for. Raises StructureError if one is not there."""
    names = dict.fromkeys(column.texts(changes(column.index)))
    wanted = {chain} if isinstance(chain, str) else set(chain)
    if missing := wanted - names.keys():
        detail = f"asked for {', '.join(sorted(missing))}, has {', '.join(names)}"
        raise StructureError(path, "no such chain", detail)
    return column.where(wanted.__contains__)


class _Groups:
    """The rows by chain, by position, and by the name of the residue there; each group in one piece.

    All rows with the same chain, number and insertion code are one position, wherever they stand in the file and
    whatever their record type: alternative residues at one position cannot become two residues.
    """

    def __init__(self, atoms: Atoms):
        # A run is what stands together. Runs are sorted by the first run of their chain, position and group.
        columns = atoms.chain.index, atoms.number, atoms.code.index, atoms.residue.index
        start = changes(*columns)
        chain, number, code, residue = (column[start] for column in columns)
        position = _first_with(one_key(chain, number, code))
        group = _first_with(one_key(position, residue))
        order = np.lexsort((group, position, _first_with(one_key(chain))))  # the last key is the first to sort by
        if (order[1:] < order[:-1]).any():
            size = np.diff(start, append=len(atoms))[order]
            shift = start[order] - (size.cumsum() - size)
            atoms = atoms.take(np.repeat(shift, size) + np.arange(len(atoms)))
            start = size.cumsum() - size

        heads = changes(group[order])
        self.atoms = atoms
        self.first = start[heads]  # row of each group
        self.size = np.diff(self.first, append=len(atoms))
        self.position = position[order][heads]  # rank of its position in the file
        self.of_row = groups_of(self.first, len(atoms))
        self.name = atoms.residue.index[self.first]
        self.is_protein = atoms.residue.where(PARENT.__contains__)[self.first]


def _first_with(key: np.ndarray) -> np.ndarray:
    """For every row, the first row with its key; keys count from 0."""
    rows = np.arange(len(key))
    first = np.zeros(len(key), np.int64)
    first[key[::-1]] = rows[::-1]  # the last one that is written stays
    return first[key]


def _known_atoms(residue: Column, atom: Column) -> np.ndarray:
    """Index into ATOM_NAMES of every row (N,), -1 for what its residue does not have."""
    names = {name: i for i, name in enumerate(atom.values)}
    table = np.full((len(residue.values), len(names)), -1)
    for row, name in enumerate(residue.values):
        for atom_name, index in _ATOMS.get(name, {}).items():
            if atom_name in names:
                table[row, names[atom_name]] = index
    return table[residue.index, atom.index]


def apply_policy(atoms: Atoms, counts: Counter) -> Residues:
    """The residues of every chain, in file order. `counts` is told what is left out."""
    groups = _Groups(atoms)
    atoms = groups.atoms
    _count_others(groups, counts)

    # Atoms that are no part of their residue.
    known = _known_atoms(atoms.residue, atoms.atom)
    unknown = groups.is_protein[groups.of_row] & (known < 0)
    hydrogen = atoms.element.where(("H", "D").__contains__)
    hydrogen |= atoms.atom.where(lambda name: name.lstrip(string.digits)[:1] in ("H", "D"))
    counts["hydrogens"] += int((unknown & hydrogen).sum())
    counts["unknown atom names"] += int((unknown & ~hydrogen).sum())

    source = _one_conformation(groups, known, counts)
    kept = source >= 0

    # A residue needs a CA. If a position has several residues, the one whose CA has the highest occupancy is taken.
    alpha = np.full(len(groups.first), -1)
    rows = np.flatnonzero(kept & (known == CA))
    alpha[groups.of_row[rows]] = source[rows]
    of_heavy = np.zeros(len(alpha), bool)  # programs write the hydrogens of inserted residues apart
    of_heavy[groups.of_row[~(unknown & hydrogen)]] = True
    counts["residues without CA"] += int((groups.is_protein & of_heavy & (alpha < 0)).sum())
    chosen = _one_residue(groups.position, alpha, atoms.occupancy)
    counts["alternative residues"] += int((alpha >= 0).sum() - chosen.sum())
    kept &= chosen[groups.of_row]
    size = np.bincount(groups.of_row[kept], minlength=len(chosen))[chosen]
    return Residues(atoms, alpha[chosen], size, source[kept], known[kept])


def _count_others(groups: _Groups, counts: Counter) -> None:
    """Count the groups that are no residue of a protein."""
    atoms = groups.atoms
    others = np.flatnonzero(~groups.is_protein)
    backbone = np.zeros((3, len(groups.first)), bool)
    for has, name in zip(backbone, ("N", "CA", "C")):
        has[groups.of_row[atoms.atom.where(name.__eq__)]] = True
    by_name = others[groups.name[others].argsort(kind="stable")]
    starts = changes(groups.name[by_name])
    for same in np.split(by_name, starts[1:]) if len(others) else ():
        name = atoms.residue.values[groups.name[same[0]]]
        amino_acids = backbone[:, same].all(0) & (name.isalnum() and len(name) < 6)
        counts[f"residues of unknown parent ({name})"] += int(amino_acids.sum())
        counts[_NOT_A_RESIDUE.get(name, "ligands and unknown residues")] += int((~amino_acids).sum())


def _one_conformation(groups: _Groups, known: np.ndarray, counts: Counter) -> np.ndarray:
    """For every row (N,) the row that is taken in its place: usually itself, -1 if none is.

    The altloc with the highest occupancy is taken, the first of equals. It is chosen once for the residue, by the mean
    over the atoms that have several. An atom that lacks it takes its own highest.
    """
    source = np.where(known >= 0, np.arange(len(known)), -1)
    slot = groups.of_row * len(ATOM_NAMES) + known  # of an atom in its residue
    count = np.bincount(slot[known >= 0])
    to_choose = np.unique(np.flatnonzero(count > 1) // len(ATOM_NAMES))
    for group in to_choose.tolist():
        begin = int(groups.first[group])
        rows = slice(begin, begin + int(groups.size[group]))
        chosen, duplicates, alternatives = _chosen_altlocs(groups.atoms, known, rows)
        source[rows] = -1
        for first, row in chosen:
            source[first] = row
        counts["duplicate atoms"] += duplicates
        counts["alternative locations"] += alternatives
    return source


def _chosen_altlocs(atoms: Atoms, known: np.ndarray, rows: slice) -> tuple[list[tuple[int, int]], int, int]:
    """Of a residue: the first row of every atom, with the row that is taken; numbers of duplicates and alternatives."""
    options: dict[int, dict[str, int]] = {}  # atom -> altloc -> row
    duplicates = 0
    for row, index, altloc in zip(range(rows.start, rows.stop), known[rows].tolist(), atoms.altloc.texts(rows)):
        if index >= 0:
            first = options.setdefault(index, {}).setdefault(altloc, row)
            duplicates += first != row
    occupancies: dict[str, list[float]] = {}
    for row_of in options.values():
        for altloc, row in row_of.items() if len(row_of) > 1 else ():
            occupancies.setdefault(altloc, []).append(float(atoms.occupancy[row]))
    best = max(occupancies, key=lambda a: round(sum(occupancies[a]) / len(occupancies[a]), 6), default="")
    chosen = []
    for row_of in options.values():
        highest = max(row_of.values(), key=lambda row: atoms.occupancy[row])
        chosen.append((min(row_of.values()), row_of.get(best, highest)))
    return chosen, duplicates, sum(len(row_of) - 1 for row_of in options.values())


def _one_residue(position: np.ndarray, alpha: np.ndarray, occupancy: np.ndarray) -> np.ndarray:
    """Which groups (G,) are taken: at each position the one whose CA (row `alpha`, or -1) has the highest occupancy."""
    groups = np.flatnonzero(alpha >= 0)
    groups = groups[np.lexsort((-occupancy[alpha[groups]], position[groups]))]  # the first of equals stays first
    chosen = np.zeros(len(alpha), bool)
    chosen[groups[changes(position[groups])]] = True
    return chosen
