"""GearNet-Edge: relational graph convolution on nodes, and message passing between edges on the line graph.

Zhang et al. (2022), "Protein Representation Learning by Geometric Structure Pretraining", Sec. 3.2-3.3; sizes in App. D
of the paper. Parameter names are torchdrug's, so that released encoders load with `strict=True`.
"""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.protein import Protein
from . import formulas
from .encoder import Encoder
from .encoding import Encoding
from .graph import Graph, GraphBuilder, edge_lengths, line_graph
from .ops import BatchNorm, Links, segment_mean, segment_sum


class RelationalConv(nn.Module):
    """h_i <- relu(BN(W_self h_i + sum_r W_r sum_{j in N_r(i)} h_j)), with all W_r side by side in one `linear`."""

    def __init__(self, in_dim: int, out_dim: int, num_relations: int):
        super().__init__()
        self.self_loop = nn.Linear(in_dim, out_dim)
        self.linear = nn.Linear(num_relations * in_dim, out_dim)
        self.batch_norm = BatchNorm(out_dim)

    def forward(self, x: Tensor, links: Links) -> Tensor:
        """x (N, in_dim) -> (N, out_dim); links from node to node."""
        message = formulas.aggregate(x, links, self.linear)  # sum_r W_r sum_{j in N_r(i)} h_j
        return F.relu(self.batch_norm(message + self.self_loop(x)))


class GearNet(Encoder):
    """GearNet-Edge; without message passing between edges (`num_angle_bins=0`) it is GearNet.

    `node_dim` is the width of the node features if they are not the builder's.
    """

    def __init__(
        self, builder: GraphBuilder, dims: list[int], num_angle_bins: int = 8, readout: str = "mean", node_dim: int = 0
    ):
        super().__init__()
        self.builder = builder
        self.num_angle_bins = num_angle_bins
        self.layer_dims = dims
        self.readout = {"mean": segment_mean, "sum": segment_sum}[readout]
        node = [node_dim or builder.node_dim, *dims]
        self.layers = nn.ModuleList(RelationalConv(a, b, builder.num_relations) for a, b in pairwise(node))
        if num_angle_bins:
            edge = [builder.edge_dim, *node[:-1]]
            self.edge_layers = nn.ModuleList(RelationalConv(a, b, num_angle_bins) for a, b in pairwise(edge))
        self.batch_norms = nn.ModuleList(BatchNorm(d) for d in dims)

    def forward(self, protein: Protein, graph: Graph | None = None) -> Encoding:
        """Encode a batch. `graph` (or the builder's) gives edges and one-hots, `protein.pos` lengths and angles."""
        protein, graph = self.with_graph(protein, graph)
        node_links = graph.once("nodes", lambda: graph.links)

        # Messages between edges: along the line graph, and from every edge to the node where it ends.
        if self.num_angle_bins:
            edge_to_node = graph.once("edges to nodes", lambda: from_edges(graph))
            edge_links = graph.once("edges", lambda: line_links(graph, protein.pos, self.num_angle_bins))
            length = edge_lengths(graph, protein.pos)
            m = torch.cat([graph.edge_feature, length[:, None]], dim=-1)  # (E, edge_dim)

        # The layers; the output has all of them side by side.
        x = graph.node_feature
        hidden = []
        for i, (conv, norm) in enumerate(zip(self.layers, self.batch_norms)):
            h = conv(x, node_links)  # (N, d)
            if h.shape == x.shape:
                h = h + x  # short cut
            if self.num_angle_bins:
                m = self.edge_layers[i](m, edge_links)  # (E, width of x)
                # Nodes and edges share the W_r of `conv.linear`, as in GearNet-Edge.
                h = h + F.relu(formulas.aggregate(m, edge_to_node, conv.linear))
            x = norm(h)
            hidden.append(x)
        node = torch.cat(hidden, dim=-1)
        return Encoding(
            node=node,
            residue=segment_mean(node, protein.atom_residue, protein.num_residues),
            protein=self.readout(node, protein.atom_protein, protein.num_proteins),
            residue_protein=protein.residue_protein,
        )


def from_edges(graph: Graph) -> Links:
    """A message from every edge to the node where it ends."""
    edge = torch.arange(graph.num_edges, device=graph.src.device)
    return replace(graph.links, source=edge, num_sources=graph.num_edges)


def line_links(graph: Graph, pos: Tensor, num_bins: int) -> Links:
    """A message along every edge of the line graph."""
    edge_in, edge_out, angle_bin = line_graph(graph, pos, num_bins)
    return Links(edge_in.int(), edge_out.int(), angle_bin.int(), graph.num_edges, graph.num_edges, num_bins)
