"""The base of all objectives. An objective is a module (Protein, generator) -> (loss, logs).

`forward` has the same five steps in all of them: draw, hide or noise, encode, predict, compare. Beside each loss the
logs have its `..._constant`: the loss of the best prediction that looks at nothing.
"""

from torch import Tensor, nn

from ..encoders.encoder import Encoder
from ..statistics import Statistic

LossAndLogs = tuple[Tensor, dict[str, Statistic]]


class Objective(nn.Module):
    """An encoder, and heads that are thrown away after pre-training."""

    compared = 1  # proteins that a held-out one is measured with: more than one if a loss compares proteins

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def kept_heads(self) -> dict[str, nn.Module]:
        """The heads that `encoder.pt` keeps all the same, and that a run from such a file goes on with.

        By the names of their attributes.
        """
        return {}


def mean_or_zero(x: Tensor) -> Tensor:
    """Mean of the entries of x, 0 of none: a batch may hold nothing that can be predicted."""
    return x.sum() / max(x.numel(), 1)
