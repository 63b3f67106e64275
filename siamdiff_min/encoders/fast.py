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

# How much is made at a time. Results depend on these numbers by rounding alone.
BLOCK = 48 << 20  # bytes of results in `map_then_sum` on a CPU
TARGETS = 512  # whose sums `sum_then_map` holds
LANES = 16  # results that a product makes side by side: with 39 it takes 1.7 times as long as with 48
EVEN = 8  # rows of 39 are made 40 long: the products of `map_then_sum` and their gradients take .83 of the time
ONE_HOTS = 1024  # rows of `few_entries` that share a copy of the weight
MOST_ENTRIES = 8  # one entry in so many, at most, is not 0 in the rows of `few_entries`


# ---- sums and linear maps --------------------------------------------------------------------------------------------


class _SumLinear(torch.autograd.Function):
    """A linear layer on sums of rows. Sums are recomputed in the backward pass, which saves 0.06 GB per protein."""

    @staticmethod
    def forward(ctx, x: Tensor, row_sum: RowSum, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.row_sum = row_sum
        ctx.save_for_backward(x, weight)
        sums = row_sum(x).view(-1, weight.shape[1])
        return F.linear(sums, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_sums = (grad @ weight).view(-1, x.shape[1])
            grad_x = ctx.row_sum.transposed(grad_sums)
        sums = ctx.row_sum(x).view(-1, weight.shape[1])
        return grad_x, None, grad.t() @ sums, grad.sum(0)


def sum_then_map(x: Tensor, row_sum: RowSum, weight: Tensor, bias: Tensor) -> Tensor:
    """`_SumLinear` without gradients on a CPU: the sums of a few targets at a time, so that they stay in the cache."""
    sums_per_target = weight.shape[1] // x.shape[1]  # one for every relation
    size = TARGETS * sums_per_target
    width = len(weight)
    padding = -width % LANES
    weight = F.pad(weight, (0, 0, 0, padding))
    bias = F.pad(bias, (0, padding))
    results = []
    for first in range(0, max(1, row_sum.num_targets), size):
        offsets = row_sum.offsets[first : first + size + 1]
        source = row_sum.source[offsets[0] : offsets[-1]]
        sums = F.embedding_bag(source, x, offsets - offsets[0], mode="sum", include_last_offset=True)
        sums = sums.view(-1, weight.shape[1])
        results.append(F.linear(sums, weight, bias)[:, :width])
    return torch.cat(results)


def begins_with_few_entries(x: Tensor) -> bool:
    """Whether the first rows are such as `few_entries` takes."""
    rows = x[:ONE_HOTS]
    return len(rows) == ONE_HOTS and rows.count_nonzero().item() <= rows.numel() // MOST_ENTRIES


def few_entries(x: Tensor) -> Callable[[Tensor], Tensor] | None:
    """r linear maps of rows that are nearly all 0, such as one-hots: add up the columns of the weights they point to.

    From x (S, in) a function of the weights (r, out, in), with results (S, r out). Returns None if a matrix product is
    as fast: for dense rows, on a GPU, in bfloat16. Each ONE_HOTS rows use a copy of the weight of their own. The
    gradient of each copy then fits into the cache. That halves its time. Forward and backward take 0.4 times as long as
    products (28,000 edges, 312 results).
    """
    if x.device.type != "cpu" or x.dtype == torch.bfloat16 or x.requires_grad or len(x) < ONE_HOTS:
        return None
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
    row_sum = RowSum(source.int(), row.int(), copies * width, len(x), entry)

    def maps(weight: Tensor) -> Tensor:
        columns = weight.flatten(0, 1).t()  # (in, r out)
        return row_sum(columns.expand(copies, -1, -1).flatten(0, 1))

    return maps


def map_then_sum(x: Tensor, row_sum: RowSum, weight: Tensor) -> Tensor:
    """Apply r linear maps, weight (r, out, in), to every row of x (S, in), then sum the results that share a target.

    The results of row s are the rows r s .. r s + r - 1. A CPU computes a few columns of them at a time: all 8 maps of
    every edge would take 200 MB of fresh memory, but a block stays in the cache.
    """
    size = weight.shape[1]
    if x.device.type == "cpu":
        bytes_of_a_column = 4 * max(1, len(x)) * len(weight)
        size = max(16, BLOCK // bytes_of_a_column // 16 * 16)  # in steps of 16 float32, a line of the cache
    maps = few_entries(x)
    if maps is None and x.device.type == "cpu":
        padding = (0, -x.shape[1] % EVEN)
        x = F.pad(x, padding)
        weight = F.pad(weight, padding)
    sums = []
    for part in weight.split(size, dim=1):
        results = maps(part) if maps else F.linear(x, part.flatten(0, 1))
        sums.append(row_sum(results.view(-1, part.shape[1])))
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=1)


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
    """Between edges the maps come before the sums, which then need one row per edge, not one per edge and relation.

    From edges to nodes, or with one relation, the sums come first. On a CPU without gradients they always do, but for
    the one-hots of the first layer: to look their maps up saves a sixth of a validation (atom level, `tiny`).
    """
    in_blocks = x.device.type == "cpu" and not torch.is_grad_enabled()
    between_edges = links.num_relations > 1 and links.num_sources <= links.num_targets
    maps_first = between_edges and (not in_blocks or begins_with_few_entries(x))
    if maps_first not in links.prepared:
        links.prepared[maps_first] = prepare(links, maps_first, in_blocks and not maps_first)  # once for all layers
    row_sum = links.prepared[maps_first]
    weight = lowered(linear.weight)
    if maps_first:
        weight = weight.view(len(weight), links.num_relations, -1).transpose(0, 1)  # (r, out, in)
        return map_then_sum(lowered(x), row_sum, weight).add_(linear.bias)
    sum_linear = sum_then_map if in_blocks else _SumLinear.apply
    return sum_linear(lowered(x), row_sum, weight, lowered(linear.bias))


def prepare(links: Links, maps_first: bool, sort: bool) -> RowSum:
    """Sums over the results of all maps of all sources, or over the sources for every relation of every target.

    The latter must be sorted by target and relation. Links between edges are not: `sort` them. Raises ValueError if
    links are in no order (on a CPU; the check would make a GPU wait).
    """
    r = links.num_relations
    source = links.source.int()
    relation = links.relation.int()
    sums = links.target.int()
    if not maps_first:
        sums = sums * r + relation
    if sort and r > 1:
        sums, order = sums.sort(stable=True)
        source = source.index_select(0, order)
    elif sums.device.type == "cpu" and (sums[1:] < sums[:-1]).any():
        raise ValueError("links come sorted by target, those between nodes also by relation")
    if maps_first:
        return RowSum(source * r + relation, sums, links.num_sources * r, links.num_targets)
    return RowSum(source, sums, links.num_sources, links.num_targets * r)
