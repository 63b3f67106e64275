"""Exact neighbour search in linear memory; skip it on first reading, the docstrings say the result.

Coordinates in angstrom. `torch.cdist` goes through a matrix product, which is inexact near a cutoff.
"""

import torch
from torch import Tensor

from .geometry import length

FARTHEST = 0x7F800000 << 32  # the key of an infinite distance in `nearest_neighbors`


def radius_pairs(pos: Tensor, protein: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """All unordered pairs of points closer than `radius` (angstrom) within one protein, each once: two index vectors.

    pos (N, 3), protein (N,) the protein of every point. Exact, with memory linear in N. Up to their order equal to
    ((distance < radius) & (protein[:, None] == protein)).triu(1).nonzero(), where distance is the (N, N) matrix.
    """
    if len(pos) == 0:
        return protein, protein
    order, first, last = candidates(pos, protein, radius)
    k, other = ranges(first.flatten(), last.flatten())
    i = order.index_select(0, k // first.shape[1])
    j = order.index_select(0, other)
    vector = pos.index_select(0, i) - pos.index_select(0, j)
    near = (length(vector) < radius).nonzero().squeeze(1)
    return i.index_select(0, near), j.index_select(0, near)


def candidates(pos: Tensor, protein: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """order[k] may be near order[first[k, c] : last[k, c]] for c in 0 .. 4; each pair once.

    Cells are a hair wider than the radius, so all partners of a point lie in the 27 cells around it.      . + +
    `order` sorts points by cell, z last: the three cells of a column along z are one range. Seen along     . * +
    z, a point in column * looks at the columns + and at what follows it in *; the others look at it.      . . +
    """
    # The cell of every point, with one empty layer below and one above: neighbours never wrap round.
    cell = (pos.detach().double() / (radius * (1 + 1e-6))).floor()
    if cell.device.type == "cpu" and not (cell.abs() < 2**31).all():  # one nan would lose the neighbours of all
        raise ValueError("coordinates that are not finite, or too large")
    cell = cell.long()
    cell = cell - cell.amin(0) + 1
    size = cell.amax(0) + 2
    size_x, size_y, size_z = size.unbind()

    # Sort by protein, then x, y, z.
    x, y, z = cell.unbind(1)
    plane = protein * size_x + x
    key = (plane * size_y + y) * size_z + z
    key, order = key.sort(stable=True)

    # The four columns +, as the keys of their middle cells; `line` and `layer` are one step along y and along x.
    line = size_z
    layer = size_y * size_z
    steps = torch.stack([line, layer - line, layer, layer + line])
    column = key[:, None] + steps  # (N, 4)

    # Their ranges, after that of the point's own column.
    row = torch.arange(len(pos), device=pos.device)[:, None]
    lowest = torch.searchsorted(key, column - 1)
    first = torch.cat([row + 1, lowest], dim=1)
    highest = torch.cat([key[:, None] + 1, column + 1], dim=1)
    last = torch.searchsorted(key, highest, right=True)
    return order, first, last


def radius_neighbors(pos: Tensor, protein: Tensor, radius: float, most: int | None) -> tuple[Tensor, Tensor]:
    """Directed pairs (neighbour, point); with `most`, only that many nearest neighbours of each point."""
    i, j = radius_pairs(pos, protein, radius)
    neighbour = torch.cat([i, j])
    point = torch.cat([j, i])
    if most is None:
        return neighbour, point
    distance = length(pos[neighbour] - pos[point])
    order = distance.argsort(stable=True)
    by_point = point[order].argsort(stable=True)
    order = order[by_point]  # by point, nearest first
    count = histogram(point, len(pos))
    _, rank = ranges(torch.zeros_like(count), count)  # among the neighbours of one point
    order = order[rank < most]
    return neighbour[order], point[order]


def ranges(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Write out the half-open ranges first[k] .. last[k] (K,): for every element its k and its value."""
    count = last - first
    k = torch.arange(len(count), device=count.device).repeat_interleave(count)
    before = count.cumsum(0) - count  # (K,) elements of earlier ranges
    element = torch.arange(len(k), device=count.device)
    return k, element + (first - before).index_select(0, k)


def histogram(index: Tensor, size: int) -> Tensor:
    """How often each of 0 .. size - 1 occurs; unlike `bincount` deterministic on a GPU, and without a host sync."""
    return torch.zeros(size, dtype=torch.long, device=index.device).index_add_(0, index, torch.ones_like(index))


def nearest_neighbors(pos: Tensor, protein: Tensor, num_proteins: int, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest other points of every point within its protein: (neighbour, point), at most N * k entries.

    pos (N, 3), protein (N,) non-decreasing. Of points equally far (in float32) the lower index is the nearer one. So
    the neighbours of a protein are the same alone and beside others. Exact, in blocks of rows; a protein of k points or
    fewer gives what it has.
    """
    count = histogram(protein, num_proteins)
    start = count.cumsum(0) - count
    width = int(count.max())
    column = torch.arange(width, device=pos.device)
    rows_at_a_time = max(1, 2**22 // max(width, 1))  # 2^22 distances are 16 MB in float32, their vectors 48 MB
    rows = torch.arange(len(pos), device=pos.device)
    neighbours = []
    points = []
    for row in rows.split(rows_at_a_time):
        # All points of the same protein, padded to the width of the largest.
        own = protein[row][:, None]
        other = start[own] + column  # (rows, width)
        valid = (column < count[own]) & (other != row[:, None])
        existing = other.clamp(max=len(pos) - 1)
        there = pos.index_select(0, existing.flatten()).view(*other.shape, 3)
        here = pos[row][:, None]
        distance = length(here - there).masked_fill(~valid, torch.inf)

        # `topk` breaks ties by no rule. So no two keys are equal: the bits of a distance, which ascend with it, then
        # the column. Whole numbers are also sorted faster.
        bits = distance.float().view(torch.int32).long()
        key = bits << 32 | column
        nearest = key.topk(min(k, width), largest=False).values

        # Less the padding where there are fewer.
        point, rank = (nearest < FARTHEST).nonzero(as_tuple=True)
        neighbours.append(start[own[point, 0]] + (nearest[point, rank] & 2**32 - 1))
        points.append(row[point])
    return torch.cat(neighbours), torch.cat(points)
