"""The self-prediction objectives of the paper (App. D) and App. F: hide a part, encode the rest, predict the part.

Residue types (Hu et al. 2020), distances, angles and dihedrals (Zhang et al. 2022). They differ in what they hide;
`SelfPrediction.forward` is the skeleton of all, and of their combinations.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..conventions import PAPER, Conventions
from ..encoders.encoder import Encoder
from ..encoders.graph import Graph
from ..encoders.ops import MLP, raised
from ..protein.constants import NUM_RESIDUE_TYPES
from ..protein.geometry import angle, dihedral, length
from ..protein.protein import Protein
from ..statistics import Entropy, Mean, Variance
from .diffusion import hide_residues, random_mask
from .hide import encode_edges, remove_edges
from .objective import LossAndLogs, Objective, mean_or_zero
from .walks import sample_walks, walk_nodes

MASK_RATE = 0.15  # App. D
NUM_BINS = 8  # of angles in [0, pi]
GEOMETRY = {  # what is measured, along how many edges, how often per protein (App. D)
    "distance": (length, 1, 256),
    "angle": (angle, 2, 512),
    "dihedral": (dihedral, 3, 512),
}


def cross_entropy(name: str, logits: Tensor, target: Tensor) -> LossAndLogs:
    """The mean cross-entropy of the classes target (M,) under logits (M, classes); logged with the accuracy."""
    loss = F.cross_entropy(raised(logits), target, reduction="none")
    return mean_or_zero(loss), {
        f"{name}_loss": Mean.of(loss),
        f"{name}_loss_constant": Entropy.of(target, logits.shape[-1]),
        f"{name}_accuracy": Mean.of((logits.argmax(-1) == target).float()),
    }


class ResidueTypes(nn.Module):
    """CE(s_i, MLP(h_i)) over 15 % of the residues: their types are hidden, at atom level their side chains too."""

    def __init__(self, d: int, conventions: Conventions = PAPER):
        super().__init__()
        self.mlp = MLP(d, d, NUM_RESIDUE_TYPES)
        self.conventions = conventions

    def hide(self, protein: Protein, generator: torch.Generator) -> tuple[Protein, Tensor]:
        """The protein without these types, and the residues (M,) that have lost theirs."""
        rate = torch.full((protein.num_proteins,), MASK_RATE, device=protein.pos.device)
        chosen = random_mask(protein, rate, generator, self.conventions.mask_with_replacement)
        return hide_residues(protein, chosen, self.conventions.backbone), chosen

    def loss(self, target: Tensor, h: Tensor) -> LossAndLogs:
        """Types (M,) from representations (M, d)."""
        return cross_entropy("residue_type", self.mlp(h), target)


class Geometry(nn.Module):
    """(d - MLP(a_1, a_2))^2 of two atoms, or CE over 8 bins of the angle of three or the |dihedral| of four.

    These atoms follow each other on walks along the graph whose edges are hidden. With an edge go its reverse and its
    repetitions in other relations, which show the same length; conventions may keep them (differences.md, row 26).
    """

    def __init__(self, d: int, quantity: str, conventions: Conventions = PAPER):
        super().__init__()
        self.quantity = quantity
        self.conventions = conventions
        self.measure, self.edges, self.num = GEOMETRY[quantity]
        outputs = 1 if quantity == "distance" else NUM_BINS
        self.mlp = MLP((self.edges + 1) * d, d, outputs)

    def hide(self, protein: Protein, graph: Graph, generator: torch.Generator) -> tuple[Graph, Tensor]:
        """The graph without the edges of these walks, and the nodes (M, edges + 1) they visit."""
        walks = sample_walks(graph, protein.atom_protein, self.num, self.edges, generator)
        left = remove_edges(graph, walks.flatten(), self.conventions.hide_repetitions)
        return left, walk_nodes(graph, walks)

    def target(self, points: Tensor) -> Tensor:
        """Of points (M, edges + 1, 3): angstrom, or the bin of an angle in [0, pi] (M,)."""
        if self.quantity == "distance":
            return length(points[:, 1] - points[:, 0])
        angle = self.measure(*points.unbind(1)).abs()
        return (angle * (NUM_BINS / torch.pi)).long().clamp(max=NUM_BINS - 1)

    def loss(self, target: Tensor, a: Tensor) -> LossAndLogs:
        """Targets (M,) from the representations of all atoms of a walk (M, edges + 1, d)."""
        output = self.mlp(a.flatten(1))
        if self.quantity != "distance":
            return cross_entropy(self.quantity, output, target)
        loss = (raised(output).squeeze(-1) - target).square()
        return mean_or_zero(loss), {
            "distance_squared_error": Mean.of(loss),
            "distance_squared_error_constant": Variance.of(target),
        }


class SelfPrediction(Objective):
    """Residue types, one geometric quantity, or both, whose losses are added (App. F): one pass through the encoder."""

    def __init__(self, encoder: Encoder, types: ResidueTypes | None, geometry: Geometry | None):
        super().__init__(encoder)
        self.types = types
        self.geometry = geometry

    def forward(self, protein: Protein, generator: torch.Generator) -> LossAndLogs:
        protein = self.encoder.builder.select_nodes(protein)

        # Draw and hide. The graph is that of what the masked residues have left.
        left = protein
        if self.types is not None:
            left, chosen = self.types.hide(protein, generator)
        graph = self.encoder.builder(left)
        if self.geometry is not None:
            graph, nodes = self.geometry.hide(left, graph, generator)

        # Encode. Coordinates would tell what hidden edges do not.
        encoding = self.encoder(left, graph) if self.geometry is None else encode_edges(self.encoder, left, graph)

        # Predict and compare.
        loss = 0.0
        logs = {}
        if self.types is not None:
            loss, logs = self.types.loss(protein.residue_type[chosen], encoding.residue.index_select(0, chosen))
        if self.geometry is not None:
            target = self.geometry.target(left.pos[nodes])
            visited = encoding.node.index_select(0, nodes.flatten()).unflatten(0, nodes.shape)
            geometry_loss, geometry_logs = self.geometry.loss(target, visited)
            loss = loss + geometry_loss
            logs = logs | geometry_logs
        return loss, logs  # type: ignore[return-value]  # 0.0 of nothing
