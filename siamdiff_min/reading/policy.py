"""From rows of atoms to a `Structure`: the parsing policy (altlocs, modified residues, what is left out or refused).

Every format ends here: PDB, mmCIF and the data frames of ATOM3D are rows, one per atom. A position is chain, residue
number and insertion code, whatever the type of its records (ATOM, HETATM). No coordinate is ever made up.
"""

import math
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch

from ..files import StructureError
from ..protein.check import check_protein
from ..protein.constants import (
    ATOM_ELEMENT,
    ATOM_INDEX,
    CA,
    MODIFIED,
    PARENT,
    PARENT_ATOM,
    RESIDUE_ATOMS,
    RESIDUE_INDEX,
    C,
    N,
)
from ..protein.protein import Protein
from .repair import MAX_CA_STEP, repair
from .rows import AtomRow
from .structure import Structure

MAX_PEPTIDE_BOND = 2.5  # angstrom from C to the next N; beyond it is no neighbour in a chain
_NUCLEOTIDES = [*"ACGUINT", *(f"D{base}" for base in "ACGUINT"), "ADE", "CYT", "GUA", "URA", "THY"]
_NOT_A_RESIDUE = dict.fromkeys(["HOH", "WAT", "DOD", "H2O", "TIP", "TP3", "SOL", "SPC"], "waters")
_NOT_A_RESIDUE |= dict.fromkeys(_NUCLEOTIDES, "nucleotides")


def assemble(
    path: str,
    rows: Iterable[AtomRow],
    dropped: Mapping[str, int],
    chain: str | Sequence[str] | None = None,
    restore_codes: bool = True,
    predicted: bool | None = False,
) -> Structure:
    """Apply the parsing policy. `dropped` counts what the reader left out; `path` is the file's name in errors.

    With `chain` only these chains: a name, or several as a list. A text that is no name stands for its letters. Lost
    insertion codes are made anew, unless the caller finds residues by their codes. `predicted` says if the file calls
    itself a prediction, None if it says nothing.
    """
    rows = repair(path, list(rows), chain, restore_codes)
    if chain is not None:
        names = dict.fromkeys(row.chain for row in rows)
        wanted = {chain} if isinstance(chain, str) and (chain in names or not chain) else set(chain)
        if missing := wanted - names.keys():
            detail = f"asked for {', '.join(sorted(missing))}, has {', '.join(names)}"
            raise StructureError(path, "no such chain", detail)
        rows = [row for row in rows if row.chain in wanted]
    counts = Counter(dropped)
    numbered_twice = sum(row.atom == "CA" and row.lost_code for row in rows)
    counts["numbers already taken (the residue is given an insertion code)"] += numbered_twice
    chains = {name: _in_chain(residues, counts) for name, residues in _apply_policy(rows, counts).items()}
    chains, counts = {name: residues for name, residues in chains.items() if residues}, +counts  # without zeros
    if not chains:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
        raise StructureError(path, "no protein in it", f"skipped: {reasons}" if reasons else "")
    structure = Structure(_protein(path, chains), tuple(chains), counts, plddt=_mean_plddt(chains, predicted))
    check_protein(path, structure.protein, structure.chain_names)
    return structure


_ATOMS = {name: {a: ATOM_INDEX[a] for a in [*RESIDUE_ATOMS[parent], "OXT"]} for name, parent in PARENT.items()}
for (_name, _atom), _parent_atom in PARENT_ATOM.items():
    _ATOMS[_name][_atom] = ATOM_INDEX[_parent_atom]
Residue = dict[int, AtomRow]  # index into ATOM_NAMES -> atom; each atom has the residue's name and position


def _apply_policy(rows: Iterable[AtomRow], dropped: Counter) -> dict[str, list[Residue]]:
    """The residues of every chain, in file order. `dropped` counts what is left out.

    All rows with the same chain, number and insertion code are one position, wherever they stand in the file and
    whatever their record type: alternative residues at one position cannot become two residues.
    """
    positions: dict[tuple, dict[str, list[AtomRow]]] = {}  # chain, number, code -> name of the residue -> its rows
    for (*position, residue), group in groupby(rows, key=itemgetter(0, 1, 2, 3)):
        positions.setdefault(tuple(position), {}).setdefault(residue, []).extend(group)

    chains: dict[str, list[Residue]] = {chain: [] for chain, _, _ in positions}
    for (chain, _, _), names in positions.items():
        options = []
        for name, group in names.items():
            if name in PARENT:
                atoms, reasons = _one_conformation(group, _ATOMS[name])
                options.append(atoms)
                if reasons:  # most residues have none
                    dropped.update(reasons)
            elif {"N", "CA", "C"} <= {row.atom for row in group} and name.isalnum() and len(name) < 6:
                dropped[f"residues of unknown parent ({name})"] += 1
            else:
                dropped[_NOT_A_RESIDUE.get(name, "ligands and unknown residues")] += 1
        with_ca = [atoms for atoms in options if CA in atoms]
        dropped["residues without CA"] += len(options) - len(with_ca)
        if with_ca:
            chains[chain].append(max(with_ca, key=lambda atoms: atoms[CA].occupancy))  # the first of equals
            dropped["alternative residues"] += len(with_ca) - 1
    return chains


def _in_chain(residues: list[Residue], dropped: Counter) -> list[Residue]:
    """The residues without free amino acids. `dropped` counts these, and modified residues.

    A HETATM or a modified residue must be bonded to a residue next to it, in the file or by number.
    """
    by_number, kept = {residue[CA].number: residue for residue in residues}, []
    for i, residue in enumerate(residues):
        number, name, hetero = residue[CA].number, residue[CA].residue, residue[CA].hetero
        beside = [*residues[max(i - 1, 0) : i + 2], by_number.get(number - 1), by_number.get(number + 1)]
        if not (hetero or name in MODIFIED) or any(_bonded(residue, b) for b in beside if b not in (None, residue)):
            dropped["modified residues (read as their parent)"] += name in MODIFIED
            kept.append(residue)
        else:
            dropped["free amino acids"] += 1
    return kept


def _bonded(a: Residue, b: Residue) -> bool:
    """Whether a peptide bond joins two residues. If N or C is missing, the distance of their CA decides."""
    if {N, C} <= a.keys() & b.keys():
        return min(math.dist(a[C].xyz, b[N].xyz), math.dist(b[C].xyz, a[N].xyz)) < MAX_PEPTIDE_BOND
    return math.dist(a[CA].xyz, b[CA].xyz) < MAX_CA_STEP


def _one_conformation(group: list[AtomRow], known: dict[str, int]) -> tuple[dict[int, AtomRow], list[str]]:
    """One row for every known atom of a residue, and a reason for every row that is left out.

    The altloc with the highest occupancy is taken, the first of equals. It is chosen once for the residue, by the mean
    over the atoms that have several. An atom that lacks it takes its own highest.
    """
    options: dict[int, dict[str, AtomRow]] = {}
    reasons: list[str] = []
    for row in group:
        index = known.get(row.atom)
        if index is None:
            hydrogen = row.element in ("H", "D") or row.atom.lstrip(string.digits)[:1] in ("H", "D")
            reasons.append("hydrogens" if hydrogen else "unknown atom names")
        elif row.altloc in options.setdefault(index, {}):
            reasons.append("duplicate atoms")
        else:
            options[index][row.altloc] = row
    occupancies: dict[str, list[float]] = {}
    for rows in options.values():
        if len(rows) > 1:
            reasons += ["alternative locations"] * (len(rows) - 1)
            for altloc, row in rows.items():
                occupancies.setdefault(altloc, []).append(row.occupancy)
    best = max(occupancies, key=lambda a: round(sum(occupancies[a]) / len(occupancies[a]), 6), default="")
    chosen = {
        index: rows[best] if best in rows else max(rows.values(), key=lambda row: row.occupancy)
        for index, rows in options.items()
    }
    return chosen, reasons


def _mean_plddt(chains: dict[str, list[Residue]], predicted: bool | None) -> float | None:
    """The mean over residues, 0 to 100; None of an experiment, nan if it cannot be told.

    A file that does not say what it is holds a prediction if each residue has one B factor for its atoms, and not all
    residues have the same. If no value is above 1, the scale was 0 to 1.
    """
    if predicted is False:
        return None
    residues = [[row.b_factor for row in residue.values()] for chain in chains.values() for residue in chain]
    alike = all(len({*residue}) == 1 for residue in residues) and max(map(len, residues)) > 1
    if not predicted and not (alike and len({residue[0] for residue in residues}) > 1):
        return math.nan
    try:
        values = [[float(value) for value in residue] for residue in residues]
    except (TypeError, ValueError):  # None, "?", "******"
        return math.nan
    lowest, highest = min(map(min, values)), max(map(max, values))
    mean = math.fsum(sum(residue) / len(residue) for residue in values) / len(values)
    return mean * (100 if highest <= 1 else 1) if 0 <= lowest <= highest <= 100 and highest else math.nan


def _protein(path: str, chains: dict[str, list[Residue]]) -> Protein:
    """All chains as one `Protein`."""
    residues = [residue for chain in chains.values() for residue in chain]
    _, numbers, codes, names, *_ = zip(*(residue[CA] for residue in residues))
    if any(len(code) != 1 or ord(code) > 126 for code in codes):
        raise StructureError(path, "unreadable", "insertion code of more than one ASCII character")
    name = np.array([index for residue in residues for index in residue])
    lengths = [len(chain) for chain in chains.values()]
    return Protein(
        pos=torch.from_numpy(np.array([row.xyz for residue in residues for row in residue.values()], np.float32)),
        element=torch.from_numpy(np.array(ATOM_ELEMENT)[name]),
        atom_name=torch.from_numpy(name),
        atom_residue=torch.from_numpy(np.repeat(np.arange(len(residues)), list(map(len, residues)))),
        residue_type=torch.tensor([RESIDUE_INDEX[PARENT[name]] for name in names]),
        masked=torch.zeros(len(residues), dtype=torch.bool),
        residue_number=torch.tensor(numbers),
        insertion_code=torch.tensor([ord(code) for code in codes]),
        residue_index=torch.cat([torch.arange(length) for length in lengths]),
        chain=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        residue_protein=torch.zeros(len(residues), dtype=torch.long),
    )
