"""Multiview contrast (Zhang et al. 2022, Sec. 3.4; App. D): two random parts of a protein against those of others."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..encoders.graph import Graph
from ..encoders.ops import MLP
from ..protein.geometry import length
from ..protein.protein import Protein
from .objective import LossAndLogs, Objective, sum_and_count

MAX_RESIDUES = 50  # of a subsequence
RADIUS = 15.0  # angstrom, of a ball around a residue
EDGE_MASK_RATE = 0.15
TEMPERATURE = 0.07


def subsequence(protein: Protein, generator: torch.Generator) -> Tensor:
    """Residues (R,) bool of a random window of at most 50 residues of every protein, every window equally likely."""
    size = protein.residues_per_graph
    first = size.cumsum(0) - size
    windows = (size - MAX_RESIDUES).clamp(min=0) + 1
    u = torch.rand(protein.num_graphs, generator=generator, device=protein.pos.device)
    start = (u * windows).long().clamp(max=windows - 1)  # (B,)
    row = torch.arange(protein.num_residues, device=u.device) - (first + start)[protein.residue_graph]
    return (row >= 0) & (row < MAX_RESIDUES)


def ball(protein: Protein, ca: Tensor, generator: torch.Generator) -> Tensor:
    """Residues (R,) bool whose CA is within 15 angstrom of that of a random residue of their protein; ca is (R, 3)."""
    size = protein.residues_per_graph
    u = torch.rand(protein.num_graphs, generator=generator, device=protein.pos.device)
    centre = (size.cumsum(0) - size) + (u * size).long().clamp(max=size - 1)  # (B,)
    return length(ca - ca[centre][protein.residue_graph]) <= RADIUS


def info_nce(z: Tensor, other: Tensor, all_views: bool = True) -> tuple[Tensor, Tensor]:
    """-log softmax of the similarity to the other view of the same protein, among all views of the batch but itself.

    z and other are (B, d), two views of the same proteins. Returns the loss of every view (2B,), and whether the right
    one was the most similar (2B,). Similarity is the cosine over the temperature (Chen et al. 2020, SimCLR). Without
    `all_views` the loss is that of the first views, among the second views alone: (B,) (differences.md, row 28).
    """
    views = F.normalize(torch.cat([z, other]).float(), dim=-1)  # (2B, d)
    similarity = (views @ views.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    target = torch.arange(len(views), device=views.device).roll(len(z))
    if not all_views:
        similarity, target = similarity[: len(z), len(z) :], target[len(z) :]
    return F.cross_entropy(similarity, target, reduction="none"), similarity.argmax(-1) == target


class MultiviewContrast(Objective):
    """InfoNCE on projections of two views, each a crop of the protein from which 15 % of the edges may be missing.

    For every protein and view a coin decides between subsequence and ball, and another whether edges are hidden.
    """

    def __init__(self, encoder: nn.Module, conventions: Conventions = PAPER):
        super().__init__(encoder)
        self.all_views = conventions.contrast_all_views
        self.mlp = MLP(encoder.out_dim, encoder.out_dim, encoder.out_dim)

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        """The loss of a batch, and what to log. One protein alone has nothing to contrast."""
        ca = protein.alpha_carbons().pos
        protein = self.encoder.builder.view(protein)
        views = [self.view(protein, ca, generator) for _ in range(2)]
        z = (self.mlp(self.encoder(*view).graph) for view in views)
        loss, correct = info_nce(*z, self.all_views)
        candidates = 2 * protein.num_graphs - 1 if self.all_views else protein.num_graphs
        return loss.mean(), {
            "contrastive_loss": sum_and_count(loss),
            "contrastive_loss_constant": sum_and_count(torch.full_like(loss, candidates).log()),
            "contrastive_accuracy": sum_and_count(correct.float()),
        }

    def view(self, protein: Protein, ca: Tensor, generator: torch.Generator) -> tuple[Protein, Graph]:
        """A crop of every protein, and its graph without some edges."""
        view = self.crop(protein, ca, generator)
        return view, self.hide_edges(view, self.encoder.builder(view), generator)

    def crop(self, protein: Protein, ca: Tensor, generator: torch.Generator) -> Protein:
        """Of every protein either a subsequence or a ball."""
        coin = torch.rand(protein.num_graphs, generator=generator, device=ca.device) < 0.5
        window, near = subsequence(protein, generator), ball(protein, ca, generator)
        return protein.select_residues(torch.where(coin[protein.residue_graph], window, near))

    def hide_edges(self, protein: Protein, graph: Graph, generator: torch.Generator) -> Graph:
        """A coin per protein says whether each of its edges is hidden, with probability 0.15, or none."""
        coin = torch.rand(protein.num_graphs, generator=generator, device=graph.src.device) < 0.5
        u = torch.rand(graph.num_edges, generator=generator, device=graph.src.device)
        keep = (u >= EDGE_MASK_RATE) | coin[protein.atom_graph[graph.dst]]
        return graph.select_edges(keep)
