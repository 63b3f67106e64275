"""Distances, angles, dihedrals, rotations about an axis, and normal noise.

Coordinates (..., 3) in angstrom, angles in radian.
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
