"""The self-prediction objectives the paper compares with (App. D, F): hide a part, encode the rest, predict the part.

Residue types (Hu et al. 2020; Zhang et al. 2022), distances, angles and dihedrals (Zhang et al. 2022, App. C). They
differ in what they hide and what they predict of it; `SelfPrediction.forward` is the skeleton of all, and of their
combinations. None of them is trained in stages.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..encoders.graph import Graph
from ..encoders.ops import MLP
from ..protein.constants import NUM_RESIDUE_TYPES
from ..protein.geometry import angle, dihedral, length
from ..protein.protein import Protein
from .diffusion import hide_residues, random_mask
from .objective import Objective, class_counts, mean_or_zero, sum_and_count
from .walks import sample_walks, walk_nodes

MASK_RATE = 0.15  # App. D
NUM_BINS = 8  # of angles in [0, pi]
GEOMETRY = {  # what is measured, along how many edges, how often per protein (App. D)
    "distance": (length, 1, 256),
    "angle": (angle, 2, 512),
    "dihedral": (dihedral, 3, 512),
}


class ResidueTypes(nn.Module):
    """CE(s_i, MLP(h_i)) over 15 % of the residues: their types are hidden, at atom level their side chains too."""

    def __init__(self, d: int, conventions: Conventions = PAPER):
        super().__init__()
        self.mlp, self.conventions = MLP(d, d, NUM_RESIDUE_TYPES), conventions

    def hide(self, protein: Protein, generator: torch.Generator) -> tuple[Protein, Tensor]:
        """The protein without these types, and the residues (M,) that have lost theirs."""
        rate = torch.full((protein.num_graphs,), MASK_RATE, device=protein.pos.device)
        masked = random_mask(protein, rate, generator, self.conventions.mask_with_replacement)
        return hide_residues(protein, masked, self.conventions.backbone), masked

    def loss(self, target: Tensor, h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Types (M,) from representations (M, d)."""
        logits = self.mlp(h).float()  # (M, 20)
        loss = F.cross_entropy(logits, target, reduction="none")
        correct = (logits.argmax(-1) == target).float()
        return mean_or_zero(loss), {
            "residue_type_loss": sum_and_count(loss),
            "residue_type_loss_constant": class_counts(target, NUM_RESIDUE_TYPES),
            "residue_type_accuracy": sum_and_count(correct),
        }


class Geometry(nn.Module):
    """Distances (2 atoms), angles (3) or dihedrals (4) along walks whose edges are hidden, from their atoms' a_i.

    (d - MLP(a_1, a_2))^2, or CE over 8 bins of the angle or of the absolute dihedral. Where an edge is hidden, so are
    its reverse and its repetitions in other relations, which show the same length, or not (differences.md, row 26).
    """

    def __init__(self, d: int, kind: str, conventions: Conventions = PAPER):
        super().__init__()
        self.kind, self.conventions = kind, conventions
        self.measure, self.edges, self.num = GEOMETRY[kind]
        self.mlp = MLP((self.edges + 1) * d, d, 1 if kind == "distance" else NUM_BINS)

    def hide(self, protein: Protein, graph: Graph, generator: torch.Generator) -> tuple[Graph, Tensor]:
        """The graph without the edges of these walks, and the nodes (M, edges + 1) they visit."""
        walk = sample_walks(graph, protein.atom_graph, self.num, self.edges, generator)
        return without(graph, walk.flatten(), self.conventions.hide_repetitions), walk_nodes(graph, walk)

    def target(self, points: Tensor) -> Tensor:
        """Of points (M, edges + 1, 3): angstrom, or the bin of an angle in [0, pi] (M,)."""
        if self.kind == "distance":
            return length(points[:, 1] - points[:, 0])
        return (self.measure(*points.unbind(1)).abs() * (NUM_BINS / torch.pi)).long().clamp(max=NUM_BINS - 1)

    def loss(self, target: Tensor, a: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Targets (M,) from the representations of all atoms of a walk (M, edges + 1, d)."""
        output = self.mlp(a.flatten(1)).float()
        if self.kind == "distance":
            loss = (output.squeeze(-1) - target).square()
            sums = torch.stack([target.sum(), target.new_full((), len(target)), target.square().sum()])
            return mean_or_zero(loss), {
                "distance_squared_error": sum_and_count(loss),
                "distance_squared_error_constant": sums,
            }
        loss = F.cross_entropy(output, target, reduction="none")
        correct = (output.argmax(-1) == target).float()
        return mean_or_zero(loss), {
            f"{self.kind}_loss": sum_and_count(loss),
            f"{self.kind}_loss_constant": class_counts(target, NUM_BINS),
            f"{self.kind}_accuracy": sum_and_count(correct),
        }


class SelfPrediction(Objective):
    """Residue types, one kind of geometry, or both, whose losses are added (App. F): one pass through the encoder."""

    def __init__(self, encoder: nn.Module, types: ResidueTypes | None, geometry: Geometry | None):
        super().__init__(encoder)
        self.types, self.geometry = types, geometry

    def forward(self, protein: Protein, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a batch, and what to log as tensors (total, count)."""
        protein = left = self.encoder.builder.view(protein)
        if self.types is not None:
            left, masked = self.types.hide(protein, generator)
        graph = self.encoder.builder(left)
        if self.geometry is not None:
            graph, nodes = self.geometry.hide(left, graph, generator)
        encoding = self.encoder(left, graph)
        loss, logs = 0.0, {}
        if self.types is not None:
            loss, logs = self.types.loss(protein.residue_type[masked], encoding.residue[masked])
        if self.geometry is not None:
            value, more = self.geometry.loss(self.geometry.target(left.pos[nodes]), encoding.node[nodes])
            loss, logs = loss + value, logs | more
        return loss, logs


def without(graph: Graph, edge: Tensor, repetitions: bool = True) -> Graph:
    """The graph without some edges (K,), and without all others between their ends too if `repetitions`."""
    pair = graph.pair
    gone = torch.isin(pair, pair[edge]) if repetitions else torch.zeros_like(pair).index_fill(0, edge, 1).bool()
    return graph.select_edges(~gone)
