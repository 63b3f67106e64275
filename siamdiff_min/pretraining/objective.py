"""The base of all objectives. An objective is a module (Protein, generator) -> (loss, logs).

Beside each loss the logs have its `..._constant`: the loss of the best prediction that looks at nothing.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoders.encoder import Encoding
from ..encoders.graph import Graph, edge_vectors
from ..files import ConfigError
from ..protein.protein import Protein
from ..statistics import Statistic

LossAndLogs = tuple[Tensor, dict[str, Statistic]]


class Objective(nn.Module):
    """An encoder, and heads that are thrown away after pre-training."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def encode_edges(self, protein: Protein, graph: Graph, shown_length: Tensor | None = None) -> Encoding:
        """Encode what the edges show, not the coordinates, which hold the answer: `pos` is nan.

        The graph has the vector of every edge; with `shown_length` (E,) that length, and the direction alone. Raises
        ConfigError for an encoder that reads `pos` all the same.
        """
        vector = edge_vectors(graph, protein.pos)
        vector = vector if shown_length is None else F.normalize(vector, dim=-1)
        hidden = replace(protein, pos=torch.full_like(protein.pos, torch.nan))
        encoding = self.encoder(hidden, replace(graph, shown_length=shown_length, shown_vector=vector))
        if encoding.node.isnan().any():
            advice = "an encoder has to read edge_vectors(graph, protein.pos) (docs/extending.md)"
            raise ConfigError(f"this objective hides the coordinates, and the representations are nan: {advice}")
        return encoding


def mean_or_zero(x: Tensor) -> Tensor:
    """Mean of the entries of x, 0 of none: a batch may hold nothing that can be predicted."""
    return x.sum() / max(x.numel(), 1)
