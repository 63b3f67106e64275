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
    u = a - b
    v = c - b
    sine = length(torch.linalg.cross(u, v))  # times |u| |v|, as is the cosine
    cosine = (u * v).sum(-1)
    return torch.atan2(sine, cosine)


def dihedral(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Dihedral angle a-b-c-d, points (..., 3) -> (...) in (-pi, pi], positive clockwise along b -> c (IUPAC)."""
    u = b - a
    v = c - b
    w = d - c
    normal = torch.linalg.cross(v, w)
    sine = (u * normal).sum(-1) * length(v)
    cosine = (torch.linalg.cross(u, v) * normal).sum(-1)
    return torch.atan2(sine, cosine)


def rotate_about_axis(point: Tensor, start: Tensor, end: Tensor, theta: Tensor) -> Tensor:
    """Rotate points (..., 3) by theta (...) radian about start -> end, right-hand rule; no length, no rotation."""
    axis = torch.nn.functional.normalize(end - start, dim=-1)
    r = point - end
    cos = theta.cos()[..., None]
    sin = theta.sin()[..., None]
    along = axis * (axis * r).sum(-1, keepdim=True)
    moved = end + along + (r - along) * cos + torch.linalg.cross(axis, r) * sin
    no_axis = (axis == 0).all(-1, keepdim=True)
    return torch.where(no_axis, point, moved)


def normal_like(x: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise in the shape, type and place of x."""
    return torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
