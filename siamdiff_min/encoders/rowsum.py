"""Sums of rows through sorted indices, so that no message is stored: what `fast.py` is built on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from .ops import segment_sum


@dataclass(frozen=True, eq=False)
class Gather:
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
