"""Sums over segments, the multi-layer perceptron that all heads share, and fast forms of both, in plain torch.

`segment_sum` and `MLP` come first. The rest saves time and memory and changes numbers by rounding alone: sums of rows
(`Gather`), a linear layer on products of pairs (`pair_linear`), layers on single numbers (`ScalarLayers`). Plain
formulas of the same sums and layers are in `benchmarks/plain.py`.

A *segment id* says which row belongs to which group, e.g. `atom_residue` (N,) or the destination of every edge (E,).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def raised(x: Tensor) -> Tensor:
    """x in float32 or better: sums of many rows go astray in bfloat16, which cannot count beyond 256."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def segment_sum(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum of the rows of x (K, ...) that share an index (K,): (size, ...), in float32 or better."""
    x = raised(x)
    return x.new_zeros(size, *x.shape[1:]).index_add_(0, index, x)


def segment_mean(x: Tensor, index: Tensor, size: int) -> Tensor:
    """Mean of the rows of x (K, ...) that share an index (K,): (size, ...), like their sum; empty segments give 0."""
    sums = segment_sum(x, index, size)
    count = segment_sum(torch.ones_like(index, dtype=sums.dtype), index, size).clamp(min=1)
    return sums / count.view(-1, *[1] * (x.dim() - 1))


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of any number of rows. One row, or none, has no variance: it is normalised by the running statistics,
    as in evaluation, and leaves them as they are."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) < 2:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)


class MLP(nn.Module):
    """Linear layers with ReLU between them; `MLP(2 * d, d, d, 1)` has three. Parameter names as torchdrug's."""

    def __init__(self, *dims: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x), inplace=True)  # the backward pass needs what comes out, nothing needs what went in
        return self.layers[-1](x)


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
        return _GatherSum.apply(raised(x), self)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Sums, every r = in / d of them as one row, through a linear layer, weight (out, in): (num_targets / r, out).

        The sums are computed again in the backward pass, not kept until then.
        """
        return _GatherLinear.apply(raised(x), self, lowered(weight), lowered(bias))

    def of_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """Sums of what r linear maps, weight (r, out, in), make of x (num_sources / r, in): (num_targets, out).

        Row i of x gives the rows r i .. r i + r - 1 that are added up.
        """
        return _LinearGather.apply(lowered(x), self, lowered(weight))

    def add_up(self, x: Tensor) -> Tensor:
        """The sums (num_targets, d) of rows of x (num_sources, d), without a gradient."""
        return F.embedding_bag(self.source, x, self.offsets, mode="sum", include_last_offset=True)

    def spread(self, grad: Tensor) -> Tensor:
        """The backward pass of `add_up`, (num_targets, d) -> (num_sources, d): the same over the transposed index, as
        torch's own takes ten times as long."""
        return F.embedding_bag(self.target, grad, self.offsets_back, mode="sum", include_last_offset=True)


def _grouped(values: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """`values` in the order of `key`, and where every key begins (num_keys + 1,), int32."""
    if (key[1:] < key[:-1]).any():  # edges and line graphs come sorted by destination: one sort of two is spared
        key, order = key.int().sort(stable=True)
        values = values.index_select(0, order)
    count = segment_sum(torch.ones_like(key, dtype=torch.int32), key, num_keys)
    return values.int(), F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))


class _GatherSum(torch.autograd.Function):
    """Rows added up: no message (K, d) is ever stored."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather) -> Tensor:
        ctx.gather = gather
        return gather.add_up(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.gather.spread(grad.contiguous()), None


class _GatherLinear(torch.autograd.Function):
    """Rows added up, then a linear layer: the sums (num_targets, d) are not kept either."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.gather = gather
        ctx.save_for_backward(x, weight)
        return F.linear(gather.add_up(x).view(-1, weight.shape[1]).to(weight.dtype), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        of_weight = grad.t() @ ctx.gather.add_up(x).view(-1, weight.shape[1]).to(weight.dtype)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = ctx.gather.spread((grad @ weight).view(-1, x.shape[1]).to(x.dtype))
        return of_x, None, of_weight, grad.sum(0)


class _LinearGather(torch.autograd.Function):
    """Linear maps, then rows added up; these are made and used some columns at a time.

    Of 8 maps for every edge of a batch they would take 200 MB, fresh pages each time: in blocks that stay in the cache
    and are used again, forward and backward take 170 ms instead of 242 ms (128 wide), 400 instead of 483 (512 wide), on
    2 cores.
    """

    block = 48 << 20  # bytes

    @staticmethod
    def columns(x: Tensor, weight: Tensor) -> Iterator[slice]:
        size = weight.shape[1]
        if x.device.type == "cpu":
            fit = _LinearGather.block // (4 * max(1, len(x)) * len(weight))
            size = max(16, fit // 16 * 16)
        return (slice(start, start + size) for start in range(0, weight.shape[1], size))

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather, weight: Tensor) -> Tensor:
        ctx.gather = gather
        ctx.save_for_backward(x, weight)
        sums = []
        for part in _LinearGather.columns(x, weight):
            of_part = weight[:, part]
            rows = x @ of_part.flatten(0, 1).t()
            sums.append(gather.add_up(raised(rows.view(-1, of_part.shape[1]))))
        return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = torch.zeros_like(x, dtype=grad.dtype) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight)
        for part in _LinearGather.columns(x, weight):
            of_part = weight[:, part].flatten(0, 1)
            rows = ctx.gather.spread(grad[:, part].contiguous()).view(len(x), len(of_part)).to(x.dtype)
            of_weight[:, part] = (rows.t() @ x).view_as(of_weight[:, part])
            if of_x is not None:
                of_x += rows @ of_part
        return of_x if of_x is None else of_x.to(x.dtype), None, of_weight


def lowered(x: Tensor) -> Tensor:
    """x in the type of matrix products under autocast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


class _PairLinear(torch.autograd.Function):
    """(x_i * x_j) W^T; the products (P, d) are computed again in the backward pass, not kept until then."""

    @staticmethod
    def forward(ctx, x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, i, j, weight)
        return x.index_select(0, i).mul_(x.index_select(0, j)) @ weight.t()  # x[i] takes three times as long

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, Tensor]:
        x, i, j, weight = ctx.saved_tensors
        left, right, of_product = x.index_select(0, i), x.index_select(0, j), grad @ weight
        of_weight = grad.t() @ (left * right)
        of_x = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        of_x.index_add_(0, i, right.mul_(of_product).to(of_x.dtype))
        of_x.index_add_(0, j, left.mul_(of_product).to(of_x.dtype))
        return of_x.to(x.dtype), None, None, of_weight


def pair_linear(x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
    """A linear map of the elementwise products of the rows i and j (P,) of x (N, d): (P, out), weight (out, d)."""
    return _PairLinear.apply(lowered(x), i, j, lowered(weight))


@dataclass(frozen=True)
class ScalarLayers:
    """second(relu(first(x))) of numbers x, without a product per number.

    It is piecewise linear in x, with a knot where each of the h hidden units turns on or off. A table of slopes and one
    of offsets, a row for every piece, cost a cumulative sum over the units; after that a number is looked up. Forward
    and backward of 16,000 numbers and 768 units take 0.08 s where the product takes 0.47 s (one core).
    """

    knot: Tensor  # (h,)
    slope: Tensor  # (h + 1, d)
    offset: Tensor  # (h + 1, d)

    @staticmethod
    def build(first: nn.Linear, second: nn.Linear) -> ScalarLayers:
        with torch.autocast(first.weight.device.type, enabled=False):
            weight, bias = first.weight[:, 0], first.bias
            knot, order = torch.where(weight == 0, torch.inf, -bias / weight).detach().sort()
            weight, bias, rows = weight[order], bias[order], second.weight.t()[order]  # (h,), (h,), (h, d)
            on = (weight < 0) | ((weight == 0) & (bias > 0))  # at minus infinity; at its knot a unit changes
            change = torch.where(on, -1.0, 1.0).to(weight.dtype)
            slope = torch.cat([((weight * on) @ rows)[None], (weight * change)[:, None] * rows]).cumsum(0)
            offset = torch.cat([((bias * on) @ rows + second.bias)[None], (bias * change)[:, None] * rows]).cumsum(0)
            return ScalarLayers(knot, slope, offset)

    def relu_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """relu(second(relu(first(x)))) W^T of numbers x (P,) that need no gradient, weight (out, d): (P, out)."""
        return _LookedUpLinear.apply(x, torch.searchsorted(self.knot, x), self.slope, self.offset, lowered(weight))


class _LookedUpLinear(torch.autograd.Function):
    """relu(slope_k x + offset_k) W^T, k the piece of x; what is looked up (P, d) is not kept for the backward pass."""

    @staticmethod
    def look_up(x: Tensor, piece: Tensor, slope: Tensor, offset: Tensor, kind: torch.dtype) -> Tensor:
        hidden = offset.index_select(0, piece).addcmul_(slope.index_select(0, piece), x[:, None])
        return F.relu(hidden, inplace=True).to(kind)

    @staticmethod
    def forward(ctx, x: Tensor, piece: Tensor, slope: Tensor, offset: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, piece, slope, offset, weight)
        return _LookedUpLinear.look_up(x, piece, slope, offset, weight.dtype) @ weight.t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        x, piece, slope, offset, weight = ctx.saved_tensors
        hidden = _LookedUpLinear.look_up(x, piece, slope, offset, weight.dtype)
        of_weight = grad.t() @ hidden
        of_hidden = (grad @ weight).mul_(hidden > 0).to(slope.dtype)
        of_offset = torch.zeros_like(offset).index_add_(0, piece, of_hidden)
        of_slope = torch.zeros_like(slope).index_add_(0, piece, of_hidden.mul_(x[:, None]))
        return None, None, of_slope, of_offset, of_weight
