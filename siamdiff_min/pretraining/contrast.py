"""Multiview contrast (Zhang et al. 2022; App. D): tell two random crops of a protein from crops of other proteins."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..encoders.encoder import Encoder
from ..encoders.graph import Graph
from ..encoders.ops import MLP
from ..protein.geometry import length
from ..protein.protein import Protein
from ..statistics import Mean
from .objective import LossAndLogs, Objective

MAX_RESIDUES = 50  # of a subsequence (App. D, as the three below)
RADIUS = 15.0  # of a ball around a residue, angstrom
EDGE_MASK_RATE = 0.15
TEMPERATURE = 0.07


def draw_below(number: Tensor, generator: torch.Generator) -> Tensor:
    """One of 0 .. n - 1 for every n of `number` (B,), all equally likely."""
    u = torch.rand(len(number), generator=generator, device=number.device)
    return (u * number).long().clamp(max=number - 1)


def subsequence(protein: Protein, generator: torch.Generator) -> Tensor:
    """Residues (R,) bool of a random window of at most 50 residues of every protein, every window equally likely."""
    size = protein.residues_per_protein
    first = size.cumsum(0) - size
    windows = (size - MAX_RESIDUES).clamp(min=0) + 1
    start = first + draw_below(windows, generator)  # (B,)
    offset = torch.arange(protein.num_residues, device=start.device) - start[protein.residue_protein]
    return (offset >= 0) & (offset < MAX_RESIDUES)


def ball(protein: Protein, ca: Tensor, generator: torch.Generator) -> Tensor:
    """Residues (R,) bool within 15 angstrom of a random residue of their protein, by their CA; ca is (R, 3)."""
    size = protein.residues_per_protein
    centre = size.cumsum(0) - size + draw_below(size, generator)  # (B,)
    return length(ca - ca[centre][protein.residue_protein]) <= RADIUS


def info_nce(z: Tensor, other: Tensor, all_crops: bool = True) -> tuple[Tensor, Tensor]:
    """InfoNCE as in SimCLR (Chen et al. 2020): for each crop, find the other crop of its protein among all crops.

    z and other (B, d) represent two crops of the same proteins. Returns the loss of every crop (2B,), -log softmax of
    the cosine over the temperature, and whether the right crop was the most similar (2B,). Without `all_crops` only the
    second crops are candidates, and only first crops are asked: (B,) (differences.md, row 28).
    """
    crops = F.normalize(torch.cat([z, other]).float(), dim=-1)  # (2B, d)
    with torch.autocast(crops.device.type, enabled=False):  # --amp would make it bfloat16 again
        similarity = (crops @ crops.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    num = len(z)
    target = torch.arange(2 * num, device=crops.device).roll(num)
    if not all_crops:
        similarity = similarity[:num, num:]
        target = target[num:]
    loss = F.cross_entropy(similarity, target, reduction="none")
    correct = similarity.argmax(-1) == target
    return loss, correct


class MultiviewContrast(Objective):
    """InfoNCE between two crops of every protein: a subsequence or a ball, with all edges or 85 % of them.

    Two coins per protein and crop decide.
    """

    compared = 8  # held-out proteins are measured eight at a time, whatever the batch size

    def __init__(self, encoder: Encoder, conventions: Conventions = PAPER):
        super().__init__(encoder)
        self.all_crops = conventions.contrast_all_crops
        self.mlp = MLP(encoder.out_dim, encoder.out_dim, encoder.out_dim)

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        """One protein alone has nothing to contrast."""
        ca = protein.alpha_carbons().pos
        protein = self.encoder.builder.select_nodes(protein)
        crops = [self.draw(protein, ca, generator) for _ in range(2)]  # draw and hide: (Protein, Graph) of each
        h = [self.encoder(*crop).protein for crop in crops]  # encode
        z = [self.mlp(x) for x in h]  # predict
        loss, correct = info_nce(z[0], z[1], self.all_crops)  # compare
        candidates = 2 * protein.num_proteins - 1 if self.all_crops else protein.num_proteins
        baseline = torch.full_like(loss, candidates).log()
        seen = slice(None) if protein.num_proteins > 1 else slice(0)  # alone it finds itself
        return loss.mean(), {
            "contrastive_loss": Mean.of(loss[seen]),
            "contrastive_loss_constant": Mean.of(baseline[seen]),
            "contrastive_accuracy": Mean.of(correct[seen].float()),
        }

    def draw(self, protein: Protein, ca: Tensor, generator: torch.Generator) -> tuple[Protein, Graph]:
        """A crop of every protein, and its graph without some edges."""
        crop = self.crop(protein, ca, generator)
        return crop, self.hide_edges(crop, self.encoder.builder(crop), generator)

    def crop(self, protein: Protein, ca: Tensor, generator: torch.Generator) -> Protein:
        """A subsequence or a ball of every protein."""
        coin = torch.rand(protein.num_proteins, generator=generator, device=ca.device) < 0.5
        window = subsequence(protein, generator)
        near = ball(protein, ca, generator)
        return protein.select_residues(torch.where(coin[protein.residue_protein], window, near))

    def hide_edges(self, protein: Protein, graph: Graph, generator: torch.Generator) -> Graph:
        """Hide each edge with probability 0.15, in the half of the proteins that a coin picks."""
        coin = torch.rand(protein.num_proteins, generator=generator, device=graph.src.device) < 0.5
        u = torch.rand(graph.num_edges, generator=generator, device=graph.src.device)
        keep = (u >= EDGE_MASK_RATE) | coin[protein.atom_protein[graph.dst]]
        return graph.select_edges(keep)
