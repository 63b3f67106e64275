"""Geometry against Biopython, neighbour search against brute force."""

import math

import numpy as np
import pytest
import torch
from Bio.PDB.vectors import Vector, calc_angle, calc_dihedral, rotaxis
from conftest import generator

from siamdiff_min.protein import geometry, neighbors


def random_points(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, 3, dtype=torch.float64, generator=generator(seed))


def test_angle_and_dihedral_equal_biopython():
    a, b, c, d = random_points(4, 50)
    for k in range(50):
        vectors = [Vector(*p[k].tolist()) for p in (a, b, c, d)]
        assert geometry.angle(a, b, c)[k] == pytest.approx(calc_angle(*vectors[:3]), abs=1e-6)
        assert geometry.dihedral(a, b, c, d)[k] == pytest.approx(calc_dihedral(*vectors), abs=1e-6)


def test_rotation_equals_biopython_and_leaves_the_axis():
    point, start, end = random_points(3, 20)
    theta = torch.linspace(-3, 3, 20, dtype=torch.float64)
    turned = geometry.rotate_about_axis(point, start, end, theta)
    for k in range(20):
        matrix = rotaxis(theta[k].item(), Vector(*(end - start)[k].tolist()))
        expected = Vector(*(point - start)[k].tolist()).left_multiply(matrix).get_array() + start[k].numpy()
        assert np.allclose(turned[k].numpy(), expected, atol=1e-9)
    assert torch.allclose(geometry.rotate_about_axis(end, start, end, theta), end, atol=1e-12)
    assert torch.equal(geometry.rotate_about_axis(point, start, start, theta), point)


# ---- neighbours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [0.0, -1000.0, 1e5])
@pytest.mark.parametrize("count", [0, 1, 2, 40, 700])
def test_radius_pairs_equal_brute_force(count, origin):
    pos = torch.rand(count, 3, generator=generator(count)) * 25 + origin
    protein = torch.randint(0, 3, (count,), generator=generator(1)).sort().values
    i, j = neighbors.radius_pairs(pos, protein, 4.5)
    near = (pos[:, None] - pos[None]).norm(dim=-1) < 4.5
    expected = (near & (protein[:, None] == protein[None])).triu(1).nonzero().tolist()
    assert sorted([min(a, b), max(a, b)] for a, b in zip(i.tolist(), j.tolist())) == expected


def test_radius_pairs_on_a_lattice_are_strictly_inside():
    """Points exactly at the cutoff, and on cell borders, where rounding could move them into the wrong cell."""
    axis = torch.arange(-4, 5).double() * 1.5
    pos = torch.cartesian_prod(axis, axis, axis)
    i, _ = neighbors.radius_pairs(pos, torch.zeros(len(pos), dtype=torch.long), 4.5)
    distance = torch.cdist(pos, pos, compute_mode="donot_use_mm_for_euclid_dist")
    assert len(i) == int(((distance < 4.5).sum() - len(pos)) // 2)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e20])
def test_a_coordinate_that_is_none_is_refused(value):
    """It would decide on the cells of all points, of other proteins too."""
    pos = torch.rand(4, 3)
    pos[2, 1] = value
    with pytest.raises(ValueError, match="not finite, or too large"):
        neighbors.radius_pairs(pos, torch.tensor([0, 0, 1, 1]), 4.5)


def test_radius_pairs_at_100_000_atoms_needs_no_square_memory():
    """Protein-like density; an N x N matrix of floats would take 40 GB."""
    side = 100_000 ** (1 / 3) * 2.7  # angstrom: about one heavy atom per 20 cubic angstrom
    pos = torch.rand(100_000, 3, generator=generator()) * side
    i, j = neighbors.radius_pairs(pos, torch.zeros(100_000, dtype=torch.long), 4.5)
    sample = torch.randint(0, 100_000, (50,), generator=generator(2))
    count = torch.bincount(torch.cat([i, j]), minlength=100_000)
    for k in sample.tolist():
        assert count[k] == ((pos - pos[k]).norm(dim=-1) < 4.5).sum() - 1


@pytest.mark.parametrize("decimals", [3, 0], ids=["apart", "ties"])
@pytest.mark.parametrize("sizes", [[30], [1, 2, 25, 11], [5, 0, 40]])
def test_nearest_neighbors_equal_brute_force(sizes, decimals):
    """Of points equally far the lower index is the nearer one, whatever k is."""
    pos = random_points(sum(sizes), seed=3).round(decimals=decimals)
    protein = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for k in (1, 3, 10):
        neighbour, point = neighbors.nearest_neighbors(pos, protein, len(sizes), k)
        for p in range(len(pos)):
            others = [q for q in range(len(pos)) if protein[q] == protein[p] and q != p]
            nearest = sorted(others, key=lambda q, p=p: math.dist(pos[p].tolist(), pos[q].tolist()))[:k]
            assert neighbour[point == p].tolist() == nearest


def test_nearest_neighbors_in_blocks_equal_one_block():
    pos = random_points(3000, seed=4)
    protein = torch.zeros(3000, dtype=torch.long)
    neighbour, _ = neighbors.nearest_neighbors(pos, protein, 1, 5)  # 9e6 distances, more than one block of 4e6
    distance = (pos[:50, None] - pos[None]).norm(dim=-1)
    distance[torch.arange(50), torch.arange(50)] = torch.inf
    assert torch.equal(neighbour.view(-1, 5)[:50], distance.topk(5, largest=False).indices)
