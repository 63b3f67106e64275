"""The base of all encoders: `Encoder` turns a `Protein` into an `Encoding`."""

from dataclasses import dataclass

from torch import Tensor, nn

from ..protein.protein import Protein
from .graph import Graph, GraphBuilder


@dataclass(frozen=True)
class Encoding:
    """Representations of atoms, residues and proteins."""

    node: Tensor  # (N, d)   a in the paper
    residue: Tensor  # (R, d)   h in the paper: the mean over the atoms of the residue
    protein: Tensor  # (B, d)


class Encoder(nn.Module):
    """(Protein) -> Encoding, on graphs of `builder`."""

    builder: GraphBuilder
    layer_dims: list[int]  # widths of the layers, side by side in the output
    has_esm = False  # whether there is an ESM-2 inside, called `esm`

    @property
    def out_dim(self) -> int:
        """Width d of all representations."""
        return sum(self.layer_dims)

    def seen(self, protein: Protein, graph: Graph | None) -> tuple[Protein, Graph]:
        """The protein and graph as given. Without a graph: the nodes of this level, and their graph."""
        if graph is None:
            protein = self.builder.select_nodes(protein)
            graph = self.builder(protein)
        return protein, graph

    def lr_factors(self) -> dict[str, float]:
        """Learning rates relative to the run's, for the parameters that have their own."""
        return {}
