"""Sums of rows through sorted indices, so that no message is stored: what `fast.py` is built on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from .ops import segment_sum


@dataclass(frozen=True, eq=False)
class RowSum:
    """Sums of rows: sum t adds the rows source[k] for which target[k] = t. Its transpose is the backward pass.

    All layers share one.
    """

    source: Tensor  # (K,) int32   rows to read
    target: Tensor  # (K,) int32   ascending
    num_sources: int
    num_targets: int
    weight: Tensor | None = None  # (K,)   factor of each row; None: 1

    def __call__(self, x: Tensor) -> Tensor:
        """Sum rows of x (num_sources, d) into (num_targets, d)."""
        return _AddRows.apply(x, self)

    @cached_property
    def offsets(self) -> Tensor:
        """Where every sum begins in `source` (num_targets + 1,), int32."""
        count = segment_sum(torch.ones_like(self.target), self.target, self.num_targets)
        return F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))

    @cached_property
    def transposed(self) -> RowSum:
        """From targets to sources, as gradients go: made when the first backward pass asks for it."""
        source, order = self.source.sort(stable=True)
        target = self.target.index_select(0, order)
        weight = None if self.weight is None else self.weight.index_select(0, order)
        return RowSum(target, source, self.num_targets, self.num_sources, weight)


class _AddRows(torch.autograd.Function):
    """`RowSum` of x: no message (K, d) is ever stored. The backward pass of torch's own takes ten times as long."""

    @staticmethod
    def forward(ctx, x: Tensor, row_sum: RowSum) -> Tensor:
        ctx.row_sum = row_sum
        how = {"mode": "sum", "include_last_offset": True, "per_sample_weights": row_sum.weight}
        return F.embedding_bag(row_sum.source, x, row_sum.offsets, **how)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.row_sum.transposed(grad.contiguous()), None
