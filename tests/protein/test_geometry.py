"""Geometry against Biopython."""

import numpy as np
import pytest
import torch
from Bio.PDB.vectors import Vector, calc_angle, calc_dihedral, rotaxis
from conftest import generator

from siamdiff_min.protein import geometry


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
