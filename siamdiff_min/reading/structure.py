"""What a reader returns: a `Structure`, which is a protein with the names and counts that its file gave."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from ..protein.check import check_protein
from ..protein.protein import Protein

KEPT = " (kept)"  # behind the reason of what is counted and not left out


@dataclass(frozen=True)
class Structure:
    """A protein read from one file, and counts of everything left out."""

    protein: Protein
    chain_names: tuple[str, ...]  # author chain ids, in the order of `protein.chain`
    # reason -> how many atoms or residues were left out or replaced
    dropped: Counter = field(default_factory=Counter)
    labels: dict = field(default_factory=dict)  # kept beside the protein in a store: plain values and tensors
    # mean over residues of a predicted model, 0 to 100; None of an experiment (or without tools/), nan if untold
    plddt: float | None = None
    residue_plddt: np.ndarray | None = None  # (R,) the same of every residue, nan without; None of none

    @property
    def positions(self) -> list[tuple[str, int, str]]:
        """Chain, number and insertion code of every residue."""
        chains = [self.chain_names[chain] for chain in self.protein.chain.tolist()]
        return list(zip(chains, self.protein.residue_number.tolist(), map(chr, self.protein.insertion_code.tolist())))

    def check(self, path) -> None:
        """Raise StructureError if it looks like no protein. The two sides of a pair may lie in one place."""
        sides = [self.protein]
        if "first" in self.labels:  # so many residues are of the first side: `join`
            first = int(self.labels["first"])
            sides = [self.protein.crop(0, first), self.protein.crop(first, self.protein.num_residues)]
        for side in sides:
            check_protein(path, side, self.chain_names)


def counted(counts: Mapping[str, int]) -> str:
    """A total, and the count of each reason: `3 (waters 2, metals 1)`."""
    listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    return f"{sum(counts.values())} ({listed})" if listed else "0"


def left_out(dropped: Mapping[str, int]) -> str:
    """What was left out or replaced, in a line; then the reasons of what is (kept)."""
    there = {reason: count for reason, count in dropped.items() if count}
    kept = {reason.removesuffix(KEPT): count for reason, count in there.items() if reason.endswith(KEPT)}
    gone = {reason: count for reason, count in there.items() if not reason.endswith(KEPT)}
    return f"left out or replaced {counted(gone)}" + (f"; kept {counted(kept)}" if kept else "")


def join(structures: list[Structure], **labels) -> Structure:
    """Several structures as one protein, in order; their chains stay apart. `labels` become its labels."""
    packed = Protein.pack([structure.protein for structure in structures])
    first_chain = torch.tensor([0, *(len(structure.chain_names) for structure in structures)]).cumsum(0)
    chain = packed.chain + first_chain[packed.residue_protein]
    protein = replace(packed, chain=chain, residue_protein=torch.zeros_like(packed.residue_protein), num_proteins=1)
    names = tuple(name for structure in structures for name in structure.chain_names)
    return Structure(protein, names, sum((structure.dropped for structure in structures), Counter()), labels)
