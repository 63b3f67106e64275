"""SiamDiff with models of the file as second views: ours, not the paper's. Batches are those of `ConformerCrops`."""

from dataclasses import replace

import torch

from ..logs import Mean
from ..protein.protein import Protein
from .siamdiff import SiamDiff


class GivenSiamDiff(SiamDiff):
    """Proteins 0, 2, 4 ... of a batch are first views; 1, 3, 5 ... are their second views (B / 2 each)."""

    def views(self, protein: Protein, generator: torch.Generator) -> tuple[list[Protein], dict[str, Mean]]:
        """Both views. A second view that equals the first is none, so it is simulated (Alg. 1, line 3)."""
        first, given = (select_side(protein, side) for side in (0, 1))
        (first, simulated), logs = super().views(first, generator)
        given = self.encoder.builder.select_nodes(given)
        moved = first.atom_protein[(given.pos != first.pos).any(1)]
        real = torch.zeros(first.num_proteins, dtype=torch.bool, device=moved.device).index_fill(0, moved, True)
        pos = torch.where(real[first.atom_protein, None], given.pos, simulated.pos)
        return [first, replace(first, pos=pos)], logs | {"real_views": Mean.of(real.float())}


def select_side(protein: Protein, side: int) -> Protein:
    """Every second protein of a batch, from number `side` on."""
    p = protein.select_residues(protein.residue_protein % 2 == side)
    return replace(p, residue_protein=p.residue_protein // 2, num_proteins=p.num_proteins // 2)
