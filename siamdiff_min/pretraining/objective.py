"""What all objectives share. An objective is a module (Protein, generator) -> (loss, logs).

Logs are sums and counts as tensors, not means, so that means over batches and over processes are exact. Beside each
loss stands its `..._constant`: that of the best prediction that looks at nothing, or enough to compute it.
"""

import torch
from torch import Tensor, nn

LossAndLogs = tuple[Tensor, dict[str, Tensor]]


class Objective(nn.Module):
    """An encoder, and heads that are thrown away after pre-training."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def set_stage(self, stage: int) -> None:
        """Stage 1 or 2 begins (Sec. 3.4). Only DiffPreT and SiamDiff have stages."""


def mean_or_zero(x: Tensor) -> Tensor:
    """Mean of the entries of x, 0 of none: a batch may hold nothing that can be predicted."""
    return x.sum() / max(x.numel(), 1)


def sum_and_count(x: Tensor) -> Tensor:
    """(2,), to log a mean."""
    x = x.detach().flatten()
    return torch.stack([x.sum(), x.new_full((), len(x))])


def class_counts(target: Tensor, size: int, weight: Tensor | None = None) -> Tensor:
    """How often each of `size` classes is the target (1, size): logged, it gives the loss of the best constant.
    `weight` is that of every target in the loss, if they differ."""
    weight = torch.ones_like(target.float()) if weight is None else weight
    return torch.zeros(size, device=target.device).index_add_(0, target, weight)[None]
