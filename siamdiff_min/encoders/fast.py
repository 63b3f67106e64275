"""The formulas of `kernels.py`, faster and in less memory; numbers differ by rounding alone.

`edge_scores` and `relational_sum` come last. They rest on three ideas: add rows up through sorted indices, so that no
message is stored (`Gather`); compute what is cheap again in the backward pass; apply a linear map to as few rows as
possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.geometry import length
from .ops import MLP, Links, segment_sum

BLOCK = 48 << 20  # bytes of results that `map_then_sum` makes at a time on a CPU


def lowered(x: Tensor) -> Tensor:
    """x in the type of matrix products under autocast.

    Under bf16, products and the rows they are made of are bfloat16. `embedding_bag` adds such rows in float32, then
    rounds. Coordinates, lengths, angles, the tables of `ScalarLayers`, `segment_sum`, the statistics of batch norm,
    softmax and losses stay in float32.
    """
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


# ---- sums of rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gather:
    """Sums of rows: sum t adds the rows source[k] for which target[k] = t. Its transpose is the backward pass.

    `Gather.build` sorts these pairs once; every layer uses them, forward and backward.
    """

    source: Tensor  # (K,) int32  rows to read, sorted by target
    offsets: Tensor  # (num_targets + 1,) int32  where every sum begins in `source`
    target: Tensor  # (K,) int32  the same pairs sorted by source: the backward pass
    offsets_back: Tensor  # (num_sources + 1,) int32

    @staticmethod
    def build(source: Tensor, target: Tensor, num_sources: int, num_targets: int) -> Gather:
        return Gather(*_grouped(source, target, num_targets), *_grouped(target, source, num_sources))

    def __call__(self, x: Tensor) -> Tensor:
        """Sum rows of x (num_sources, d) into (num_targets, d)."""
        return _RowSum.apply(x, self)

    @property
    def transposed(self) -> Gather:  # from targets to sources, as gradients go
        return Gather(self.target, self.offsets_back, self.source, self.offsets)


def _grouped(values: Tensor, key: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """`values` in the order of `key`, and where every key begins (num_keys + 1,), int32."""
    key, order = key.int().sort(stable=True)
    count = segment_sum(torch.ones_like(key), key, num_keys)
    return values.index_select(0, order).int(), F.pad(count.cumsum(0, dtype=torch.int32), (1, 0))


class _RowSum(torch.autograd.Function):
    """Rows added up: no message (K, d) is ever stored. The backward pass of torch's own takes ten times as long."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather) -> Tensor:
        ctx.gather = gather
        return F.embedding_bag(gather.source, x, gather.offsets, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.gather.transposed(grad.contiguous()), None


class _SumLinear(torch.autograd.Function):
    """A linear layer on sums of rows, made again in the backward pass: 0.06 GB less a protein (with `_MapRows`)."""

    @staticmethod
    def forward(ctx, x: Tensor, gather: Gather, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.gather = gather
        ctx.save_for_backward(x, weight)
        return F.linear(gather(x).view(-1, weight.shape[1]), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = ctx.gather.transposed((grad @ weight).view(-1, x.shape[1])) if ctx.needs_input_grad[0] else None
        grad_weight = grad.t() @ ctx.gather(x).view(-1, weight.shape[1])
        return grad_x, None, grad_weight, grad.sum(0)


class _MapRows(torch.autograd.Function):
    """r linear maps of x (S, in), weight (r, out, in), side by side: (S, r out). The copy of `weight` is not kept."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.flatten(0, 1).t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight.flatten(0, 1) if ctx.needs_input_grad[0] else None
        return grad_x, (grad.t() @ x).view_as(weight)


def map_then_sum(x: Tensor, gather: Gather, weight: Tensor) -> Tensor:
    """Apply r linear maps, weight (r, out, in), to every row of x (S, in), then sum the results that share a target.

    The results of row s are the rows r s .. r s + r - 1. A CPU computes a few columns of them at a time: all 8 maps of
    every edge would take 200 MB of fresh memory, but a block stays in the cache. Forward and backward take 170 ms, not
    242 (128 wide), and 400 ms, not 483 (512 wide), on 2 cores.
    """
    size = weight.shape[1]
    if x.device.type == "cpu":
        size = max(16, BLOCK // (4 * max(1, len(x)) * len(weight)) // 16 * 16)
    sums = [gather(_MapRows.apply(x, part).view(-1, part.shape[1])) for part in weight.split(size, dim=1)]
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)


# ---- the score of a pair ---------------------------------------------------------------------------------------------


class _PairLinear(torch.autograd.Function):
    """(x_i * x_j) W^T. The products (P, d) are not kept for the backward pass but computed again there.

    A step of four proteins at atom level takes 1.5 GB, and 0.1 to 0.3 GB more if they are kept; so in _LookedUpLinear.
    """

    @staticmethod
    def forward(ctx, x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, i, j, weight)
        return x.index_select(0, i).mul_(x.index_select(0, j)) @ weight.t()  # x[i] takes three times as long

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, Tensor]:
        x, i, j, weight = ctx.saved_tensors
        left, right, grad_product = x.index_select(0, i), x.index_select(0, j), grad @ weight
        grad_weight = grad.t() @ (left * right)
        grad_x = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        grad_x.index_add_(0, i, right.mul_(grad_product).to(grad_x.dtype))
        grad_x.index_add_(0, j, left.mul_(grad_product).to(grad_x.dtype))
        return grad_x.to(x.dtype), None, None, grad_weight


def pair_linear(x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
    """A linear map of the elementwise products of the rows i and j (P,) of x (N, d): (P, out), weight (out, d)."""
    return _PairLinear.apply(lowered(x), i, j, lowered(weight))


def sums_so_far(x: Tensor) -> Tensor:
    """Of every row of x (h, d) the sum with all rows above. A GPU has no deterministic `cumsum` of floats."""
    if x.device.type != "cpu" and torch.are_deterministic_algorithms_enabled():
        return x.new_ones(len(x), len(x)).tril() @ x
    return x.cumsum(0)


@dataclass(frozen=True)
class ScalarLayers:
    """second(relu(first(x))) of numbers x, without a product per number.

    It is piecewise linear in x: at a knot one of the h hidden units turns on or off. A cumulative sum over the units
    gives the slope and the offset of every piece; then each number is looked up. Forward and backward of 16,000 numbers
    and 768 units take 0.08 s, the product 0.47 s (one core).
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
            slope = torch.cat([((weight * on) @ rows)[None], (weight * change)[:, None] * rows])
            offset = torch.cat([((bias * on) @ rows + second.bias)[None], (bias * change)[:, None] * rows])
            return ScalarLayers(knot, sums_so_far(slope), sums_so_far(offset))

    def relu_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """relu(second(relu(first(x)))) W^T of numbers x (P,) that need no gradient, weight (out, d): (P, out)."""
        return _LookedUpLinear.apply(x, torch.searchsorted(self.knot, x), self.slope, self.offset, lowered(weight))


class _LookedUpLinear(torch.autograd.Function):
    """relu(slope_k x + offset_k) W^T, k the piece of x. What is looked up (P, d) is not kept but looked up again."""

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
        grad_weight = grad.t() @ hidden
        grad_hidden = (grad @ weight).mul_(hidden > 0).to(slope.dtype)
        grad_offset = torch.zeros_like(offset).index_add_(0, piece, grad_hidden)
        grad_slope = torch.zeros_like(slope).index_add_(0, piece, grad_hidden.mul_(x[:, None]))
        return None, None, grad_slope, grad_offset, grad_weight


# ---- the two formulas ------------------------------------------------------------------------------------------------


def edge_scores(views: list[tuple], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """The score is symmetric and the same for all relations: compute it once per unordered pair, then copy it.

    This head is most of a training step. Three of the published five products of d x d per pair are left: a lookup
    table replaces the first two layers of dist_mlp, and its third is folded into the first layer of struct_mlp, since
    no activation separates them. Both are made once for all views.
    """
    *first, third = dist_mlp.layers
    mix, *rest = struct_mlp.layers
    product_weight, distance_weight = mix.weight.tensor_split([mix.in_features - third.out_features], dim=1)
    table = ScalarLayers.build(*first)
    weight, bias = distance_weight @ third.weight, distance_weight @ third.bias + mix.bias
    scores = []
    for a, graph, pos in views:
        pair, edge_pair = torch.unique(graph.pair, return_inverse=True)
        i, j = pair // len(pos), pair % len(pos)
        x = pair_linear(a, i, j, product_weight)  # (P, hidden)
        x.add_(table.relu_linear(length(pos[i] - pos[j]), weight)).add_(bias)
        for layer in rest:
            x = layer(F.relu(x, inplace=True))
        scores.append(x.squeeze(-1).to(pos.dtype)[edge_pair])
    return scores


def relational_sum(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """Between edges the maps come before the sums, which then need one row per edge, not one per edge and relation.

    From edges to nodes, or with one relation, the sums come first.
    """
    if not links.prepared:
        links.prepared["gather"] = prepare(links)  # once for all layers
    gather = links.prepared["gather"]
    if maps_first(links):
        weight = linear.weight.view(len(linear.weight), links.num_relations, -1).transpose(0, 1)  # (r, out, in)
        return map_then_sum(lowered(x), gather, lowered(weight)).add_(linear.bias)
    return _SumLinear.apply(lowered(x), gather, lowered(linear.weight), lowered(linear.bias))


def maps_first(links: Links) -> bool:
    """Whether the maps come before the sums."""
    return links.num_relations > 1 and links.num_sources <= links.num_targets


def prepare(links: Links) -> Gather:
    """Sums over the results of all maps of all sources, or over the sources for every relation of every target."""
    r = links.num_relations
    if maps_first(links):
        row = links.source * r + links.relation
        return Gather.build(row, links.target, links.num_sources * r, links.num_targets)
    slot = links.target * r + links.relation
    return Gather.build(links.source, slot, links.num_sources, links.num_targets * r)
