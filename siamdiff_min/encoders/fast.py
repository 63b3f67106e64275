"""The formulas of `formulas.py`, faster and in less memory; numbers differ by rounding alone.

`edge_scores` and `aggregate` come last. They rest on three ideas: add rows up through sorted indices, so that no
message is stored (`rowsum.py`); compute what is cheap again in the backward pass; apply a linear map to as few rows as
possible. The boldest case of the third: layers that see one number become a table (`piecewise.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..protein.geometry import length
from .encoding import Encoding
from .ops import MLP, Links, lowered
from .piecewise import scalar_layers
from .rowsum import RowSum

LANES = 8  # rows of 39 are made 40 long: products with them and their gradients take .8 of the time
ONE_HOTS = 1024  # rows of `few_entries` that share a copy of the weight
MOST_ENTRIES = 8  # one entry in so many, at most, is not 0 in the rows of `few_entries`


# ---- sums and linear maps --------------------------------------------------------------------------------------------


class _SumLinear(torch.autograd.Function):
    """A linear layer on sums of rows. Sums are recomputed in the backward pass, which saves 0.06 GB per protein."""

    @staticmethod
    def forward(ctx, x: Tensor, links: Links, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.links = links
        ctx.save_for_backward(x, weight)
        result = x.new_empty(links.num_targets, len(weight))
        for rows, sums in at_targets(links).blocks(x, links.num_relations):
            torch.addmm(bias, sums, weight.t(), out=result[rows])
        return result

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        row_sum = at_targets(ctx.links)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_sums = (grad @ weight).view(-1, x.shape[1])
            grad_x = row_sum.transposed(grad_sums)
        sums = row_sum(x).view(-1, weight.shape[1])
        return grad_x, None, grad.t() @ sums, grad.sum(0)


class _EdgeSumLinear(_SumLinear):
    """The same between edges on a CPU, whose gradients are summed at the sources, a block at a time too.

    Both take .7 of the time of maps before sums (48,832 edges, 8 relations, width 32), .86 at width 128.
    """

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        r = ctx.links.num_relations
        w_r = weight.unflatten(1, (r, -1))  # (out, r, in)
        grad_x = torch.empty_like(x)
        grad_w = torch.zeros_like(w_r.permute(2, 1, 0).flatten(1), dtype=torch.promote_types(x.dtype, torch.float32))
        below = w_r.transpose(0, 1).flatten(0, 1)  # (r out, in), one W_r below the other
        for rows, sums in at_results(ctx.links).transposed.blocks(grad, r):
            torch.mm(sums, below, out=grad_x[rows])
            grad_w += x[rows].t() @ sums
        grad_w = grad_w.unflatten(1, (r, -1)).permute(2, 1, 0).flatten(1)
        return grad_x, None, grad_w.to(weight.dtype), grad.sum(0)


def few_entries(x: Tensor) -> Callable[[Tensor], Tensor] | None:
    """r linear maps of rows that are nearly all 0, such as one-hots: add up the columns of the weights they point to.

    From x (S, in) a function of the weights (r, out, in), with results (S, r out). Returns None if a matrix product is
    as fast: for dense rows, on a GPU, in bfloat16. Each ONE_HOTS rows use a copy of the weight of their own. The
    gradient of each copy then fits into the cache. That halves its time. Forward and backward take 0.4 times as long as
    products (28,000 edges, 312 results).
    """
    if x.device.type != "cpu" or x.dtype == torch.bfloat16 or x.requires_grad or len(x) < ONE_HOTS:
        return None
    if x[:ONE_HOTS].count_nonzero() > ONE_HOTS * x.shape[1] // MOST_ENTRIES:
        return None  # dense rows, as their beginning shows
    place = x.bool().flatten().nonzero().squeeze(1)
    if len(place) > x.numel() // MOST_ENTRIES:
        return None

    # Every entry adds the column of the weights that it points to, in the copy for its row.
    width = x.shape[1]
    row = place // width
    column = place % width
    copy = row // ONE_HOTS
    copies = math.ceil(len(x) / ONE_HOTS)
    source = copy * width + column  # the copies lie one below the other
    entry = x.flatten().index_select(0, place)
    row_sum = RowSum.of(source, row, copies * width, len(x), entry)

    def maps(weight: Tensor) -> Tensor:
        columns = weight.flatten(0, 1).t()  # (in, r out)
        return row_sum(columns.expand(copies, -1, -1).flatten(0, 1))

    return maps


# ---- the score of a pair ---------------------------------------------------------------------------------------------


class _PairLinear(torch.autograd.Function):
    """(x_i * x_j) W^T. The products (P, d) are not kept for the backward pass but computed again there.

    A step of four proteins at atom level takes 1.5 GB, and 0.1 to 0.3 GB more if they are kept.
    """

    @staticmethod
    def forward(ctx, x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, i, j, weight)
        product = x.index_select(0, i).mul_(x.index_select(0, j))  # x[i] takes three times as long
        return product @ weight.t()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, Tensor]:
        x, i, j, weight = ctx.saved_tensors
        left = x.index_select(0, i)
        right = x.index_select(0, j)
        grad_product = grad @ weight
        grad_weight = grad.t() @ (left * right)
        grad_x = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
        grad_x.index_add_(0, i, right.mul_(grad_product).to(grad_x.dtype))
        grad_x.index_add_(0, j, left.mul_(grad_product).to(grad_x.dtype))
        return grad_x.to(x.dtype), None, None, grad_weight


def pair_linear(x: Tensor, i: Tensor, j: Tensor, weight: Tensor) -> Tensor:
    """A linear map of the elementwise products of the rows i and j (P,) of x (N, d): (P, out), weight (out, d)."""
    return _PairLinear.apply(lowered(x), i, j, lowered(weight))


# ---- the two formulas ------------------------------------------------------------------------------------------------


def edge_scores(noisy: list, crossed: list[Encoding], dist_mlp: MLP, struct_mlp: MLP) -> list[Tensor]:
    """The score is symmetric and the same for all relations: compute it once per unordered pair, then copy it.

    This head is most of a training step. Two of the published five products of d x d per pair are left: a table made
    once for all views replaces dist_mlp and its part of the first layer of struct_mlp, since no activation separates
    them.
    """
    # The pairs of each view, and their lengths.
    pairs = [view.graph.once("pairs", lambda view=view: pairs_of(view)) for view in noisy]
    lengths = [distance for *_, distance in pairs]

    # The third layer of dist_mlp, and what the first of struct_mlp makes of it, are one map.
    first, second, third = dist_mlp.layers
    mix, *rest = struct_mlp.layers
    product_weight, distance_weight = mix.weight.tensor_split([mix.in_features - third.out_features], dim=1)
    weight = distance_weight @ third.weight
    bias = distance_weight @ third.bias + mix.bias
    of_length = scalar_layers(torch.cat(lengths), first, second, weight, bias)

    # The score of every pair, copied to its edges.
    scores = []
    for encoding, (i, j, edge_pair, distance) in zip(crossed, pairs):
        x = pair_linear(encoding.node, i, j, product_weight).add_(of_length(distance))  # (P, hidden)
        for layer in rest:
            x = layer(F.relu(x, inplace=True))
        of_pair = x.squeeze(-1).to(distance.dtype)
        scores.append(of_pair.index_select(0, edge_pair))
    return scores


def pairs_of(view) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The two atoms of every pair that an edge joins (P,), the pair of every edge (E,), and their distances (P,)."""
    pos = view.protein.pos
    pair, edge_pair = torch.unique(view.graph.pair, return_inverse=True)
    i = pair // len(pos)
    j = pair % len(pos)
    return i, j, edge_pair, length(pos.index_select(0, i) - pos.index_select(0, j))


def aggregate(x: Tensor, links: Links, linear: nn.Linear) -> Tensor:
    """Sums come first, a block of them at a time on a CPU, so that they stay in its cache.

    Between edges a GPU maps first: then it needs one row per edge, not one per edge and relation. So does a CPU with
    one-hots, which it looks up: that saves a sixth of a validation (atom level, `tiny`).
    """
    x = lowered(x)
    weight = lowered(linear.weight)
    bias = lowered(linear.bias)
    if links.num_relations == 1 or links.num_sources > links.num_targets:
        return _SumLinear.apply(x, links, weight, bias)

    # Between edges, or between nodes with several relations.
    w_r = weight.unflatten(1, (links.num_relations, -1))  # (out, r, in)
    maps = few_entries(x)
    if maps or x.device.type != "cpu":
        w_r = w_r.transpose(0, 1)
        results = maps(w_r) if maps else F.linear(x, w_r.flatten(0, 1))
        return at_results(links)(results.view(-1, len(weight))).add_(linear.bias)
    padding = (0, -x.shape[1] % LANES)
    return _EdgeSumLinear.apply(F.pad(x, padding), links, F.pad(w_r, padding).flatten(1), bias)


def at_results(links: Links) -> RowSum:
    """For every target, the results of all maps that go there: those of source s are the rows r s .. r s + r - 1.

    Transposed, it leads from every source and relation to the targets.
    """

    def make() -> RowSum:
        row = links.source.int() * links.num_relations + links.relation.int()
        return RowSum.of(row, links.target, links.num_sources * links.num_relations, links.num_targets)

    return links.once("results", make)


def at_targets(links: Links) -> RowSum:
    """For every target and relation, the sources."""

    def make() -> RowSum:
        sums = links.target.int() * links.num_relations + links.relation.int()
        return RowSum.of(links.source, sums, links.num_sources, links.num_targets * links.num_relations)

    return links.once("targets", make)
