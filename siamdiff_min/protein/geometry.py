"""Distances, angles, dihedrals, rotations about an axis, normal noise, and exact neighbour search.

Coordinates (..., 3) in angstrom, angles in radian. `torch.cdist` goes through a matrix product, inexact near a cutoff.
"""

import torch
from torch import Tensor


def length(vector: Tensor) -> Tensor:
    """Euclidean norm (..., 3) -> (...), with gradient zero instead of nan at the zero vector."""
    return torch.linalg.vector_norm(vector, dim=-1)


def angle(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Angle a-b-c at b, points (..., 3) -> (...) in [0, pi]; 0 if a point coincides with b."""
    u, v = a - b, c - b
    return torch.atan2(length(torch.linalg.cross(u, v)), (u * v).sum(-1))


def dihedral(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Dihedral angle a-b-c-d, points (..., 3) -> (...) in (-pi, pi], positive clockwise along b -> c (IUPAC)."""
    u, v, w = b - a, c - b, d - c
    n = torch.linalg.cross(v, w)
    return torch.atan2((u * n).sum(-1) * length(v), (torch.linalg.cross(u, v) * n).sum(-1))


def rotate_about_axis(point: Tensor, start: Tensor, end: Tensor, theta: Tensor) -> Tensor:
    """Rotate points (..., 3) by theta (...) radian about start -> end, right-hand rule; no length, no rotation."""
    axis, r = torch.nn.functional.normalize(end - start, dim=-1), point - end
    cos, sin = theta.cos()[..., None], theta.sin()[..., None]
    along = axis * (axis * r).sum(-1, keepdim=True)
    moved = end + along + (r - along) * cos + torch.linalg.cross(axis, r) * sin
    return torch.where((axis == 0).all(-1, keepdim=True), point, moved)


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise in the shape, type and place of x."""
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)


def radius_pairs(pos: Tensor, protein: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """All unordered pairs of points closer than `radius` (angstrom) within one protein, each once: two index vectors.

    pos (N, 3), protein (N,) the protein of every point. Exact, with memory linear in N. Up to their order equal to
    ((distance < radius) & (protein[:, None] == protein)).triu(1).nonzero(), where distance is the (N, N) matrix.
    """
    if len(pos) == 0:
        return protein, protein
    order, first, last = candidates(pos, protein, radius)
    i, j = ranges(first.flatten(), last.flatten())
    i, j = order.index_select(0, i // first.shape[1]), order.index_select(0, j)
    near = (length(pos.index_select(0, i) - pos.index_select(0, j)) < radius).nonzero().squeeze(1)
    return i.index_select(0, near), j.index_select(0, near)


def candidates(pos: Tensor, protein: Tensor, radius: float) -> tuple[Tensor, Tensor, Tensor]:
    """Skip on first reading: order[k] may be near order[first[k, c] : last[k, c]] for c in 0 .. 4; each pair once.

    Cells are a hair wider than the radius, so all partners of a point lie in the 27 cells around it.      . + +
    `order` sorts points by cell, z last: the three cells of a column along z are one range. Seen along     . * +
    z, a point in column * looks at the columns + and at what follows it in *; the others look at it.      . . +
    """
    cell = (pos.detach().double() / (radius * (1 + 1e-6))).floor().long()
    cell = cell - cell.amin(0) + 1  # one empty layer below, one above: neighbours never wrap round
    size = cell.amax(0) + 2
    key = ((protein * size[0] + cell[:, 0]) * size[1] + cell[:, 1]) * size[2] + cell[:, 2]
    key, order = key.sort(stable=True)
    line, layer = size[2], size[1] * size[2]
    column = key[:, None] + torch.stack([line, layer - line, layer, layer + line])  # (N, 4)
    row = torch.arange(len(pos), device=pos.device)[:, None]
    first = torch.cat([row + 1, torch.searchsorted(key, column - 1)], dim=1)
    last = torch.searchsorted(key, torch.cat([key[:, None] + 1, column + 1], dim=1), right=True)
    return order, first, last


def radius_neighbors(pos: Tensor, protein: Tensor, radius: float, most: int | None) -> tuple[Tensor, Tensor]:
    """Directed pairs (neighbour, point); with `most`, only that many nearest neighbours of each point."""
    i, j = radius_pairs(pos, protein, radius)
    neighbour, point = torch.cat([i, j]), torch.cat([j, i])
    if most is None:
        return neighbour, point
    order = length(pos[neighbour] - pos[point]).argsort(stable=True)
    order = order[point[order].argsort(stable=True)]  # by point, nearest first
    count = histogram(point, len(pos))
    order = order[ranges(torch.zeros_like(count), count)[1] < most]  # the rank among the neighbours of one point
    return neighbour[order], point[order]


def ranges(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Write out the half-open ranges first[k] .. last[k] (K,): for every element its k and its value."""
    count = last - first
    k = torch.arange(len(count), device=count.device).repeat_interleave(count)
    return k, torch.arange(len(k), device=count.device) + (first - (count.cumsum(0) - count)).index_select(0, k)


def histogram(index: Tensor, size: int) -> Tensor:
    """How often each of 0 .. size - 1 occurs; unlike `bincount` deterministic on a GPU, and without a host sync."""
    return torch.zeros(size, dtype=torch.long, device=index.device).index_add_(0, index, torch.ones_like(index))


def nearest_neighbors(pos: Tensor, protein: Tensor, num_proteins: int, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest other points of every point within its protein: (neighbour, point), at most N * k entries.

    pos (N, 3), protein (N,) non-decreasing. Exact, in blocks of rows; a protein of k points or fewer gives what it has.
    """
    count = histogram(protein, num_proteins)
    start = count.cumsum(0) - count
    width = int(count.max())
    column = torch.arange(width, device=pos.device)
    pairs = []
    for row in torch.arange(len(pos), device=pos.device).split(max(1, 2**22 // max(width, 1))):
        other = start[protein[row]][:, None] + column  # (rows, width)
        valid = (column < count[protein[row]][:, None]) & (other != row[:, None])
        distance = length(pos[row][:, None] - pos[other.clamp(max=len(pos) - 1)]).masked_fill(~valid, torch.inf)
        nearest = distance.topk(min(k, width), largest=False)
        found = nearest.values.isfinite().nonzero(as_tuple=True)
        pairs.append((other.gather(1, nearest.indices)[found], row[found[0]]))
    return tuple(map(torch.cat, zip(*pairs)))
