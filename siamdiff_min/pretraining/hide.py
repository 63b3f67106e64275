"""What an encoder sees if coordinates would tell the answer: the edges that are left, and nothing else."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..encoders.encoder import Encoder
from ..encoders.encoding import Encoding
from ..encoders.graph import Graph, edge_vectors
from ..files import ConfigError
from ..protein.protein import Protein


def remove_edges(graph: Graph, edge: Tensor, repetitions: bool = True) -> Graph:
    """The graph without some edges (K,), and without all others between their ends too if `repetitions`."""
    pair = graph.pair
    if repetitions:
        gone = torch.isin(pair, pair[edge])
    else:
        gone = torch.zeros_like(pair, dtype=torch.bool).index_fill(0, edge, True)
    return graph.select_edges(~gone)


def encode_edges(encoder: Encoder, protein: Protein, graph: Graph, shown_length: Tensor | None = None) -> Encoding:
    """The encoding of the edges' vectors; `pos` is nan. With `shown_length` (E,) of that length and the direction.

    Raises ConfigError for an encoder that reads `pos` all the same.
    """
    vector = edge_vectors(graph, protein.pos)
    vector = vector if shown_length is None else F.normalize(vector, dim=-1)
    hidden = replace(protein, pos=torch.full_like(protein.pos, torch.nan))
    encoding = encoder(hidden, replace(graph, shown_length=shown_length, shown_vector=vector))
    if encoding.node.isnan().any():
        advice = "an encoder has to read edge_vectors(graph, protein.pos) (docs/extending.md)"
        raise ConfigError(f"this objective hides the coordinates, and the representations are nan: {advice}")
    return encoding
