"""The residues that the parsing policy keeps, and the `Protein` that is made of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from ..files import StructureError
from ..protein.constants import ATOM_ELEMENT, CA, MODIFIED, PARENT, RESIDUE_INDEX, C, N
from ..protein.protein import Protein
from .columns import Atoms, changes, groups_of

MAX_CA_STEP = 4.2  # angstrom from CA to the next CA; 2.9 (cis) and 3.8 in proteins
MAX_PEPTIDE_BOND = 2.5  # angstrom from C to the next N; beyond it is no neighbour in a chain


class Residues:
    """R residues with n atoms, by chain, in file order."""

    def __init__(self, atoms: Atoms, alpha: np.ndarray, size: np.ndarray, row: np.ndarray, known: np.ndarray):
        self.atoms = atoms
        self.alpha = alpha  # (R,) row of CA: what holds for the residue stands there
        self.size = size  # (R,) how many atoms it has
        self.row = row  # (n,) row of the atom
        self.known = known  # (n,) index into ATOM_NAMES
        self.name = atoms.residue.take(alpha)
        self.number = atoms.number[alpha]
        self.chain = atoms.chain.index[alpha]

    def in_chains(self, counts: Counter) -> Residues:
        """Those bonded in file or by number, if HETATM or modified. `counts` is told of modified and free ones."""
        modified = self.name.where(MODIFIED.__contains__)
        doubtful = np.flatnonzero(modified | self.atoms.hetero[self.alpha])
        if not len(doubtful):
            return self
        kept = np.ones(len(self.alpha), bool)
        size = len(kept)
        places = zip(self.chain.tolist(), self.number.tolist())
        by_place = {place: i for i, place in enumerate(places)}

        # Where N, CA and C are.
        backbone = np.full((size, 3, 3), np.nan)
        rows = np.flatnonzero(self.known <= C)
        residue = np.repeat(np.arange(size), self.size)[rows]
        backbone[residue, self.known[rows]] = self.atoms.xyz[self.row[rows]]
        for i in doubtful.tolist():
            chain, number = self.chain[i], self.number[i]
            by_number = [by_place.get((chain, number + step), i) for step in (-1, 1)]
            in_file = [j for j in (i - 1, i + 1) if 0 <= j < size and self.chain[j] == chain]
            beside = [*{*in_file, *by_number} - {i}]
            kept[i] = _bonded(backbone[i], backbone[beside]).any()

        counts["modified residues (read as their parent)"] += int((modified & kept).sum())
        counts["free amino acids"] += int((~kept).sum())
        of_row = np.repeat(kept, self.size)
        return Residues(self.atoms, self.alpha[kept], self.size[kept], self.row[of_row], self.known[of_row])

    def protein(self, path: str) -> tuple[Protein, tuple[str, ...]]:
        """All of them as one `Protein`, and the names of its chains."""
        code = self.atoms.code.take(self.alpha)
        if not code.where(lambda text: len(text) == 1 and ord(text) <= 126).all():
            raise StructureError(path, "unreadable", "insertion code of more than one ASCII character")
        letters = np.array([ord(text[:1] or " ") for text in code.values])
        types = np.array([RESIDUE_INDEX.get(PARENT.get(name, ""), -1) for name in self.name.values])
        starts = changes(self.chain)
        chain = groups_of(starts, len(self.chain))
        with np.errstate(over="ignore"):  # `check_protein` refuses what is infinite
            pos = self.atoms.xyz[self.row].astype(np.float32)
        protein = Protein(
            pos=torch.from_numpy(pos),
            element=torch.from_numpy(np.array(ATOM_ELEMENT)[self.known]),
            atom_name=torch.from_numpy(self.known),
            atom_residue=torch.from_numpy(np.repeat(np.arange(len(self.size)), self.size)),
            residue_type=torch.from_numpy(types[self.name.index]),
            masked=torch.zeros(len(self.size), dtype=torch.bool),
            residue_number=torch.from_numpy(self.number),
            insertion_code=torch.from_numpy(letters[code.index]),
            residue_index=torch.from_numpy(np.arange(len(chain)) - starts[chain]),
            chain=torch.from_numpy(chain),
            residue_protein=torch.zeros(len(self.size), dtype=torch.long),
        )
        return protein, tuple(self.atoms.chain.values[i] for i in self.chain[starts].tolist())


def _bonded(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Which of some residues a peptide bond joins to one, from N, CA and C. If N or C is missing, CA decides."""
    behind = np.linalg.norm(others[:, N] - one[C], axis=1)
    before = np.linalg.norm(others[:, C] - one[N], axis=1)
    step = np.linalg.norm(others[:, CA] - one[CA], axis=1)
    bond = np.minimum(behind, before)
    return np.where(np.isnan(bond), step < MAX_CA_STEP, bond < MAX_PEPTIDE_BOND)
