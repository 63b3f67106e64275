"""An encoder of one's own: means over neighbours, three times."""

from dataclasses import replace

import torch.nn.functional as F
from torch import nn

from siamdiff_min import ENCODERS, Encoding
from siamdiff_min.conventions import CONVENTIONS
from siamdiff_min.encoders import ATOM_GRAPH, RESIDUE_GRAPH, Encoder
from siamdiff_min.encoders.ops import segment_mean


class MeanOfNeighbours(Encoder):
    """x_i <- x_i + relu(W mean_j x_j) over the neighbours j of i, three times."""

    def __init__(self, level, size="paper", preset="paper"):
        super().__init__()
        graph = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
        self.builder = replace(graph, conventions=CONVENTIONS[preset])
        self.layer_dims = [{"paper": 512, "medium": 256, "small": 128, "tiny": 64}[size]]
        self.first = nn.Linear(self.builder.node_dim, self.out_dim)
        self.layers = nn.ModuleList(nn.Linear(self.out_dim, self.out_dim) for _ in range(3))

    def forward(self, protein, graph=None):
        protein, graph = self.with_graph(protein, graph)
        x = self.first(graph.node_feature)
        for layer in self.layers:
            x = x + F.relu(layer(segment_mean(x[graph.src], graph.dst, graph.num_nodes)))
        return Encoding(
            node=x,
            residue=segment_mean(x, protein.atom_residue, protein.num_residues),
            protein=segment_mean(x, protein.atom_protein, protein.num_proteins),
            residue_protein=protein.residue_protein,
        )


ENCODERS["mean-of-neighbours"] = MeanOfNeighbours
