"""GearNet-Edge: relational graph convolution on nodes, and message passing between edges on the line graph.

Zhang et al. (2022), "Protein Representation Learning by Geometric Structure Pretraining", Sec. 3.2-3.3; sizes in App. D
of the paper. Parameter names are torchdrug's, so that released encoders load with `strict=True`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.protein import Protein
from .graph import Graph, GraphBuilder, edge_lengths, line_graph
from .ops import BatchNorm, Gather, segment_mean, segment_sum


@dataclass(frozen=True)
class Encoding:
    """What an encoder returns: representations of atoms, residues and proteins."""

    node: Tensor  # (N, d)   a in the paper
    residue: Tensor  # (R, d)   h in the paper: the mean over the atoms of the residue
    graph: Tensor  # (B, d)


class RelationalConv(nn.Module):
    """h_i <- relu(BN(W_self h_i + sum_r W_r sum_{j in N_r(i)} h_j)), with all W_r side by side in one `linear`."""

    def __init__(self, in_dim: int, out_dim: int, num_relations: int):
        super().__init__()
        self.num_relations = num_relations
        self.self_loop = nn.Linear(in_dim, out_dim)
        self.linear = nn.Linear(num_relations * in_dim, out_dim)
        self.batch_norm = BatchNorm(out_dim)

    def update(self, x: Tensor, message: Tensor) -> Tensor:
        """x (N, in_dim), message (N, out_dim): what the neighbours send, already transformed; it is overwritten."""
        return F.relu(self.batch_norm(message.add_(self.self_loop(x))), inplace=True)

    def transform_sums(self, x: Tensor, by_relation: Gather) -> Tensor:
        """Sum first, then transform: by_relation sums into slots (target * num_relations + relation)."""
        return by_relation.linear(x, self.linear.weight, self.linear.bias)

    def sum_transforms(self, x: Tensor, from_relation: Gather) -> Tensor:
        """Transform first, then sum: from_relation reads slots (source * num_relations + relation).

        The same numbers. With 8 relations between 17 times more line-graph edges than edges it moves an eighth of the
        sums through memory.
        """
        weight = self.linear.weight.view(self.linear.out_features, self.num_relations, -1).transpose(0, 1)
        return from_relation.of_linear(x, weight).add_(self.linear.bias)


class GearNet(nn.Module):
    """GearNet-Edge; without message passing between edges (`num_angle_bins=0`) it is GearNet.

    `node_dim` is the width of the node features where they are others than the builder's.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        dims: list[int],
        num_angle_bins: int = 8,
        readout: str = "mean",
        concat: bool = True,
        node_dim: int | None = None,
    ):
        super().__init__()
        self.builder, self.num_angle_bins, self.concat = builder, num_angle_bins, concat
        self.readout = {"mean": segment_mean, "sum": segment_sum}[readout]
        self.layer_dims = dims if concat else dims[-1:]  # widths of the layers, side by side in the output
        self.out_dim = sum(self.layer_dims)
        node = [node_dim or builder.node_dim, *dims]
        self.layers = nn.ModuleList(RelationalConv(a, b, builder.num_relations) for a, b in pairwise(node))
        if num_angle_bins:
            edge = [builder.edge_dim, *node[:-1]]
            self.edge_layers = nn.ModuleList(RelationalConv(a, b, num_angle_bins) for a, b in pairwise(edge))
        self.batch_norms = nn.ModuleList(BatchNorm(d) for d in dims)

    def forward(self, protein: Protein, graph: Graph | None = None) -> Encoding:
        """Encode a batch. `graph` (default: built from the builder's view of the protein) gives edges and one-hots,
        and lengths where it has them; other lengths, and all angles, are those of `protein.pos`."""
        if graph is None:
            protein = self.builder.view(protein)
            graph = self.builder(protein)
        n, num_relations = graph.num_nodes, graph.num_relations
        slot = graph.dst * num_relations + graph.relation
        from_nodes = Gather.build(graph.src, slot, n, n * num_relations)
        if self.num_angle_bins:
            edge_id = torch.arange(graph.num_edges, device=slot.device)
            from_edges = Gather.build(edge_id, slot, graph.num_edges, n * num_relations)
            edge_in, edge_out, angle_bin = line_graph(graph, protein.pos, self.num_angle_bins)
            between_edges = Gather.build(
                edge_in * self.num_angle_bins + angle_bin,
                edge_out,
                graph.num_edges * self.num_angle_bins,
                graph.num_edges,
            )
            m = torch.cat([graph.edge_feature, edge_lengths(graph, protein.pos)[:, None]], dim=-1)  # (E, edge_dim)

        x, hidden = graph.node_feature, []
        for i, (conv, norm) in enumerate(zip(self.layers, self.batch_norms)):
            h = conv.update(x, conv.transform_sums(x, from_nodes))  # (N, d)
            h = h + x if h.shape == x.shape else h  # short cut where the widths agree
            if self.num_angle_bins:
                edge_conv = self.edge_layers[i]
                m = edge_conv.update(m, edge_conv.sum_transforms(m, between_edges))  # (E, width of x)
                h = h + F.relu(conv.transform_sums(m, from_edges), inplace=True)
            x = norm(h)
            hidden.append(x)
        node = torch.cat(hidden, dim=-1) if self.concat else x
        return Encoding(
            node=node,
            residue=segment_mean(node, protein.atom_residue, protein.num_residues),
            graph=self.readout(node, protein.atom_graph, protein.num_graphs),
        )
