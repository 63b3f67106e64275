"""Sums of rows through sorted indices, so that no message is stored: what `fast.py` is built on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .ops import segment_sum

BLOCK = 1024  # rows of sums that a CPU makes at a time


@dataclass(frozen=True, eq=False)
class RowSum:
    """Sums of rows: sum t adds the rows source[k] for offsets[t] <= k < offsets[t + 1], as a sparse matrix in CSR form.

    Its transpose is the backward pass. All layers share one.
    """

    source: Tensor  # (K,) int32   rows to read
    offsets: Tensor  # (num_targets + 1,) int32   where every sum begins
    num_sources: int
    weight: Tensor | None = None  # (K,)   factor of each row; None: 1

    @staticmethod
    def of(source: Tensor, target: Tensor, num_sources: int, num_targets: int, weight: Tensor | None = None) -> RowSum:
        """Row source[k] goes into sum target[k], both (K,). On a GPU targets must ascend: a check would make it wait.

        On a CPU scipy sorts them by counting, in a quarter of the time of torch's sort (545,000 links).
        """
        if target.device.type != "cpu":
            count = segment_sum(torch.ones_like(target, dtype=torch.int32), target, num_targets)
            offsets = F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))
            return RowSum(source.int(), offsets, num_sources, weight)

        with warnings.catch_warnings():  # scipy leaves a filter of its own
            from scipy.sparse import coo_matrix

        entry = np.ones(len(source), np.int8) if weight is None else weight.numpy()
        matrix = coo_matrix((entry, (target.int().numpy(), source.int().numpy())), (num_targets, num_sources))
        matrix.has_canonical_format = True  # a row that goes into a sum twice stays two entries
        matrix = matrix.tocsr()
        weight = None if weight is None else torch.from_numpy(matrix.data)
        return RowSum(torch.from_numpy(matrix.indices), torch.from_numpy(matrix.indptr), num_sources, weight)

    @property
    def num_targets(self) -> int:
        return len(self.offsets) - 1

    def __call__(self, x: Tensor) -> Tensor:
        """Sum rows of x (num_sources, d) into (num_targets, d)."""
        return _AddRows.apply(x, self)

    def blocks(self, x: Tensor, r: int) -> Iterator[tuple[slice, Tensor]]:
        """Sums of x without gradients, r of them side by side: slices of rows and their sums (rows, r d).

        A CPU makes few at a time, so that they stay in its cache. A GPU makes all.
        """
        rows = self.num_targets // r
        width = r * x.shape[1]
        if rows <= BLOCK or x.device.type != "cpu":
            yield slice(rows), add_rows(x, self.source, self.offsets).view(-1, width)
            return
        for first in range(0, rows, BLOCK):
            offsets = self.offsets[first * r : (first + BLOCK) * r + 1]
            source = self.source[offsets[0] : offsets[-1]]
            sums = add_rows(x, source, offsets - offsets[0])
            yield slice(first, first + BLOCK), sums.view(-1, width)

    @cached_property
    def transposed(self) -> RowSum:
        """From targets to sources, as gradients go: made when the first backward pass asks for it."""
        source, weight = self.source, self.weight
        target = torch.arange(self.num_targets, dtype=torch.int32, device=source.device)
        target = target.repeat_interleave(self.offsets.diff(), output_size=len(source))
        if source.device.type != "cpu":
            source, order = source.sort(stable=True)
            target = target.index_select(0, order)
            weight = None if weight is None else weight.index_select(0, order)
        return RowSum.of(target, source, self.num_targets, self.num_sources, weight)


def add_rows(x: Tensor, source: Tensor, offsets: Tensor, weight: Tensor | None = None) -> Tensor:
    """Sum t of the rows source[k] of x for offsets[t] <= k < offsets[t + 1]."""
    how = {"mode": "sum", "include_last_offset": True, "per_sample_weights": weight}
    return F.embedding_bag(source, x, offsets, **how)


class _AddRows(torch.autograd.Function):
    """`RowSum` of x: no message (K, d) is ever stored. The backward pass of torch's own takes ten times as long."""

    @staticmethod
    def forward(ctx, x: Tensor, row_sum: RowSum) -> Tensor:
        ctx.row_sum = row_sum
        return add_rows(x, row_sum.source, row_sum.offsets, row_sum.weight)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.row_sum.transposed(grad.contiguous()), None
