"""Superposition against Horn's quaternions, GDT_TS against cases worked out by hand and against all subsets."""

from itertools import combinations

import pytest
import torch
from conftest import generator, real_protein, rigid_motion

from benchmarks.superpose import CUTOFFS, gdt_ts, superpose
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.geometry import length


def alpha_carbons(name="1LCD_A") -> torch.Tensor:
    protein = real_protein(name)
    return protein.pos[protein.atom_name == CA]


def moved(points: torch.Tensor, seed: int) -> torch.Tensor:
    rotation, shift = rigid_motion(seed)
    return points @ rotation.T + shift


def randn(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def smallest_error(mobile, fixed, weight) -> torch.Tensor:
    """Weighted sum of squares after the best superposition, from the largest eigenvalue of Horn's 4 x 4 matrix."""
    x, y = (p - (weight[:, None] * p).sum(0) / weight.sum() for p in (mobile, fixed))
    s = (x * weight[:, None]).T @ y
    off = torch.stack([s[1, 2] - s[2, 1], s[2, 0] - s[0, 2], s[0, 1] - s[1, 0]])
    quaternion = torch.zeros(4, 4, dtype=torch.float64)
    quaternion[0, 0], quaternion[0, 1:], quaternion[1:, 0] = s.trace(), off, off
    quaternion[1:, 1:] = s + s.T - s.trace() * torch.eye(3, dtype=torch.float64)
    return (weight[:, None] * (x**2 + y**2)).sum() - 2 * torch.linalg.eigvalsh(quaternion)[-1]


@pytest.mark.parametrize("points", [3, 4, 20])
@pytest.mark.parametrize("seed", range(10))
def test_superposition_is_the_best_one(points, seed):
    mobile, fixed = 10 * randn(2, points, 3, seed=seed)
    weight = randn(points, seed=seed + 50).abs()
    if seed % 2:
        fixed = mobile * fixed.new_tensor([1.0, 1.0, -1.0])  # a mirror image, which must not be used
    rotation, shift = superpose(mobile, fixed, weight)
    assert torch.linalg.det(rotation) == pytest.approx(1, abs=1e-10)
    assert (rotation @ rotation.T - torch.eye(3)).abs().max() < 1e-10
    error = (weight[:, None] * (mobile @ rotation.T + shift - fixed) ** 2).sum()
    assert error == pytest.approx(float(smallest_error(mobile, fixed, weight)), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 51])
def test_gdt_of_the_structure_itself_is_one(size):
    native = alpha_carbons()[:size]
    assert gdt_ts(native, native) == gdt_ts(moved(native, 1), native) == 1.0


@pytest.mark.parametrize("stretch, shares", [(6, (30, 30, 51, 51)), (20, (30, 30, 30, 30)), (1, (51, 51, 51, 51))])
def test_gdt_of_two_domains_pulled_apart(stretch, shares):
    """30 and 21 residues, far apart on the x axis; the second is pulled further along it, or not.

    Every distance between the domains changes by `stretch`, so atoms of both are within a cutoff c at once if and only
    if stretch <= 2 c; a superposition of the whole chain leaves the first 0.41, the second 0.59 of it.
    """
    native = alpha_carbons()
    native[30:, 0] += 1e6
    model = native.clone()
    model[30:, 0] += stretch
    assert gdt_ts(moved(model, 4), native) == pytest.approx(sum(shares) / 51 / 4, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_gdt_is_at_least_that_of_the_ordinary_superposition(seed):
    native = alpha_carbons("2XHE")[:120]
    model = native + (0.5 * seed * randn(*native.shape, seed=seed)).cumsum(0) / 4
    rotation, shift = superpose(model, native)
    distance = length(model @ rotation.T + shift - native)
    ordinary = sum(float((distance <= cutoff).double().mean()) for cutoff in CUTOFFS) / 4
    assert ordinary - 1e-12 <= gdt_ts(model, native) <= 1


def test_gdt_is_close_to_the_best_over_all_subsets():
    """Ten atoms: every subset of three or more is superposed, which the search can reach but not exceed."""
    subsets = [s for k in range(3, 11) for s in combinations(range(10), k)]
    weight = torch.zeros(len(subsets), 10, dtype=torch.float64)
    for row, subset in zip(weight, subsets):
        row[list(subset)] = 1
    found, best = [], []
    for seed in range(12):
        native = alpha_carbons()[seed : seed + 10]
        model = native + 1.5 * randn(10, 3, seed=seed)
        rotation, shift = superpose(model, native, weight)
        distance = length(model @ rotation.mT + shift[:, None] - native)
        best.append(sum(float((distance <= cutoff).sum(1).max()) for cutoff in CUTOFFS) / 40)
        found.append(gdt_ts(model, native))
        assert found[-1] <= best[-1] + 1e-12
    assert sum(found) > 0.95 * sum(best)
