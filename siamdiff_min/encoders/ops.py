"""Sums over segments and relations in plain torch, and the multi-layer perceptron that all heads share.

A *segment id* says which row belongs to which group, e.g. `atom_residue` (N,) or the destination of every edge (E,).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def segment_sum(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of the rows of x (K, ...) that share an index (K,): (size, ...)."""
    return x.new_zeros(size, *x.shape[1:]).index_add_(0, index, x)


def segment_mean(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Mean of the rows of x (K, ...) that share an index (K,): (size, ...); empty segments give 0."""
    count = segment_sum(torch.ones_like(index, dtype=x.dtype), index, size).clamp(min=1)
    return segment_sum(x, index, size) / count.view(-1, *[1] * (x.dim() - 1))


@dataclass(frozen=True)
class Gather:
    """Which rows are added up into which sums, prepared once and used by every layer, forward and backward.

    Built by `Gather.build(source, target, num_sources, num_targets)`: sum t adds the rows source[k] with target[k] = t.
    """

    source: Tensor  # (K,) int32  rows to read, sorted by target
    offsets: Tensor  # (num_targets + 1,) int32  where every sum begins in `source`
    target: Tensor  # (K,) int32  the same pairs sorted by source: the backward pass
    offsets_back: Tensor  # (num_sources + 1,) int32

    @staticmethod
    def build(source: Tensor, target: Tensor, num_sources: int, num_targets: int) -> Gather:
        return Gather(*_grouped(source, target, num_targets), *_grouped(target, source, num_sources))

    def __call__(self, x: Tensor) -> Tensor:
        """Sum rows of x (num_sources, d) into (num_targets, d), in float32 or better also under autocast."""
        return _GatherSum.apply(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x, self)


def _grouped(values: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """`values` in the order of `key`, and where every key begins (num_keys + 1,), int32."""
    if (key[1:] < key[:-1]).any():  # edges and line graphs come sorted by destination: one sort of two is spared
        key, order = key.int().sort(stable=True)
        values = values.index_select(0, order)
    count = segment_sum(torch.ones_like(key, dtype=torch.int32), key, num_keys)
    return values.int(), F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))


class _GatherSum(torch.autograd.Function):
    """`embedding_bag` both ways: no message (K, d) is ever stored. Its own backward scatters, which takes ten times as
    long as another bag over the transposed index."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather) -> Tensor:
        ctx.gather = gather
        return F.embedding_bag(gather.source, x, gather.offsets, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        g = ctx.gather
        return F.embedding_bag(g.target, grad.contiguous(), g.offsets_back, mode="sum", include_last_offset=True), None


class _PairProduct(torch.autograd.Function):
    """x_i * x_j of pairs; the gathered rows (P, d) are read again in the backward pass instead of kept until then."""

    @staticmethod
    def forward(ctx, x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ctx.save_for_backward(x, i, j)
        return x[i].mul_(x[j])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        x, i, j = ctx.saved_tensors
        return torch.zeros_like(x).index_add_(0, i, x[j].mul_(grad)).index_add_(0, j, x[i].mul_(grad)), None, None


def pair_product(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Elementwise product (P, d) of the rows i and j (P,) of x (N, d)."""
    return _PairProduct.apply(x, i, j)


def of_scalars(x: Tensor, first: nn.Linear, second: nn.Linear) -> Tensor:
    """second(relu(first(x))) of numbers x (P,) that need no gradient, without a product per number: (P, d).

    It is piecewise linear in x, with a knot where each hidden unit turns on or off. One table of slopes and one of
    offsets, a row between two knots, cost a cumulative sum over the units; after that a number is looked up. Forward
    and backward of 16,000 numbers and 768 units take 0.08 s where the product takes 0.47 s (4,000 and 3,072: 0.96 s and
    1.5 s; one core).
    """
    with torch.autocast(x.device.type, enabled=False):
        weight, bias = first.weight[:, 0], first.bias
        knot, order = torch.where(weight == 0, torch.inf, -bias / weight).detach().sort()
        weight, bias, rows = weight[order], bias[order], second.weight.t()[order]  # (h,), (h,), (h, d)
        on = (weight < 0) | ((weight == 0) & (bias > 0))  # at minus infinity; at its knot a unit changes
        change = torch.where(on, -1.0, 1.0).to(weight.dtype)
        slope = torch.cat([((weight * on) @ rows)[None], (weight * change)[:, None] * rows]).cumsum(0)  # (h + 1, d)
        offset = torch.cat([((bias * on) @ rows + second.bias)[None], (bias * change)[:, None] * rows]).cumsum(0)
        place = torch.searchsorted(knot, x)
        return torch.addcmul(offset[place], slope[place], x[:, None])


class MLP(nn.Module):
    """Linear layers with ReLU between them; `MLP(2 * d, d, d, 1)` has three. Parameter names as torchdrug's."""

    def __init__(self, *dims: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x), inplace=True)  # the backward pass needs what comes out, nothing needs what went in
        return self.layers[-1](x)
