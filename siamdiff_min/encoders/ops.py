"""Sums over segments, the layers that all encoders and heads share, and `Links`, along which messages go.

A *segment id* says which row belongs to which group, e.g. `atom_residue` (N,) or the destination of every edge (E,).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def raised(x: Tensor) -> Tensor:
    """x in float32 or better: sums of many rows go astray in bfloat16, which cannot count beyond 256."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def lowered(x: Tensor) -> Tensor:
    """x in the type of matrix products under autocast.

    Under bf16, products and the rows they are made of are bfloat16. `embedding_bag` adds such rows in float32, then
    rounds. Coordinates, lengths, angles, the tables of fast.py, segment sums, the statistics of batch norm,
    softmax and losses stay in float32.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def segment_sum(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of the rows of x (K, ...) that share an index (K,): (size, ...), in float32 or better."""
    x = raised(x)
    return x.new_zeros(size, *x.shape[1:]).index_add_(0, index, x)


def segment_mean(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Mean of the rows of x (K, ...) that share an index (K,): (size, ...), like their sum; empty segments give 0."""
    sums = segment_sum(x, index, size)
    count = segment_sum(torch.ones_like(index, dtype=sums.dtype), index, size).clamp(min=1)
    ones = [1] * (x.dim() - 1)
    return sums / count.view(-1, *ones)


class MLP(nn.Module):
    """Linear layers with ReLU between them; `MLP(2 * d, d, d, 1)` has three. Parameter names as torchdrug's."""

    def __init__(self, *dims: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that also takes one row or none. These have no variance, so they are normalised by the running
    statistics, as in evaluation, and do not change them."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


@dataclass(frozen=True, eq=False)
class Links:
    """K messages: row source[k] of one table goes to row target[k] of another, in the role relation[k].

    They come sorted by target, those between nodes also by relation: fast.py relies on it.
    """

    source: Tensor  # (K,) long or int   0 .. num_sources - 1
    target: Tensor  # (K,) long or int   0 .. num_targets - 1
    relation: Tensor  # (K,) long or int   0 .. num_relations - 1
    num_sources: int
    num_targets: int
    num_relations: int
    prepared: dict = field(default_factory=dict, init=False, repr=False)  # made by `once`, for all layers

    def once(self, name: str, make: Callable):
        """What `make()` returned when this name was asked for first, such as sorted indices."""
        if name not in self.prepared:
            self.prepared[name] = make()
        return self.prepared[name]
