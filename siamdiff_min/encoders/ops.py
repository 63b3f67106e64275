"""Sums over segments, the layers that all encoders and heads share, and `Links`, along which messages go.

A *segment id* says which row belongs to which group, e.g. `atom_residue` (N,) or the destination of every edge (E,).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
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
    return sums / count.view(-1, *[1] * (x.dim() - 1))


class MLP(nn.Module):
    """Linear layers with ReLU between them; `MLP(2 * d, d, d, 1)` has three. Parameter names as torchdrug's."""

    def __init__(self, *dims: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x), inplace=True)  # in place: ReLU's backward pass needs only its output
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

    source: Tensor  # (K,) long   0 .. num_sources - 1
    target: Tensor  # (K,) long   0 .. num_targets - 1
    relation: Tensor  # (K,) long   0 .. num_relations - 1
    num_sources: int
    num_targets: int
    num_relations: int
    prepared: dict = field(default_factory=dict, init=False, repr=False)  # sorted indices, kept here by fast.py


@dataclass(frozen=True, eq=False)
class Gather:
    """Sums of rows: sum t adds the rows source[k] for which target[k] = t. Its transpose is the backward pass.

    All layers share one. Raises ValueError if `target` is not sorted (on a CPU; the check would make a GPU wait).
    """

    source: Tensor  # (K,) int32   rows to read
    target: Tensor  # (K,) int32   ascending
    num_sources: int
    num_targets: int
    weight: Tensor | None = None  # (K,)   factor of each row; None: 1

    def __post_init__(self):
        if self.target.device.type == "cpu" and (self.target[1:] < self.target[:-1]).any():
            raise ValueError("links come sorted by target, those between nodes also by relation")

    def __call__(self, x: Tensor) -> Tensor:
        """Sum rows of x (num_sources, d) into (num_targets, d)."""
        return _RowSum.apply(x, self)

    @cached_property
    def offsets(self) -> Tensor:
        """Where every sum begins in `source` (num_targets + 1,), int32."""
        count = segment_sum(torch.ones_like(self.target), self.target, self.num_targets)
        return F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))

    @cached_property
    def transposed(self) -> Gather:
        """From targets to sources, as gradients go: made when the first backward pass asks for it."""
        source, order = self.source.sort(stable=True)
        weight = None if self.weight is None else self.weight.index_select(0, order)
        return Gather(self.target.index_select(0, order), source, self.num_targets, self.num_sources, weight)


class _RowSum(torch.autograd.Function):
    """Rows added up: no message (K, d) is ever stored. The backward pass of torch's own takes ten times as long."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather) -> Tensor:
        ctx.gather = gather
        how = {"mode": "sum", "include_last_offset": True, "per_sample_weights": gather.weight}
        return F.embedding_bag(gather.source, x, gather.offsets, **how)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.gather.transposed(grad.contiguous()), None
