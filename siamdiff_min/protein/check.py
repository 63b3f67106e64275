"""Does this look like a protein? One check for files, for arrays and for a `Protein` of one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..files import StructureError
from .constants import CA, RESIDUES
from .geometry import length
from .neighbors import candidates, ranges

if TYPE_CHECKING:
    from .protein import Protein

# What 1,727 real files have stands behind each bound. All are in angstrom.
MAX_COORDINATE = 1e5  # float32 still resolves 0.01 there
MAX_SPACING, FEWEST = 10.0, 10  # between neighbours in a chain, from CA to CA (median 3.73 to 3.88); of so many or more
MAX_REACH = 12.0  # from an atom to the CA of its residue; 10.0
# Radius, and how many others may be so near to one: 39, 57 and 1.
MAX_DENSITY = ((4.5, 100, "atoms"), (10.0, 150, "CA atoms"), (1.0, 3, "CA atoms"))
NARROWEST = 1.5  # of the cells that atoms are counted in: narrower ones are more than pay


def check_protein(path, protein: Protein, chain_names: Sequence[str] = ()) -> Protein:
    """The protein as it is. Raises StructureError if it does not look like one; `path` is its name in the message."""
    pos, chain = protein.pos.detach().cpu(), protein.chain.cpu()
    carbon = (protein.atom_name == CA).nonzero().squeeze(1).cpu()
    owner = protein.atom_residue.cpu()
    alpha, residue = pos[carbon], owner[carbon]
    if not (pos.abs() <= MAX_COORDINATE).all():  # also False for nan
        raise StructureError(path, "coordinates out of range", f"not finite or beyond {MAX_COORDINATE:.0f} angstrom")
    steps = length(alpha[1:] - alpha[:-1])[chain[residue[1:]] == chain[residue[:-1]]]
    if len(steps) >= FEWEST and (spacing := steps.median()) > MAX_SPACING:
        detail = f"{spacing:.1f} angstrom from CA to CA in a chain (median), 3.8 in proteins: another unit or order?"
        raise StructureError(path, "thinner than a protein", detail)
    of_residue = torch.full((protein.num_residues,), -1).index_copy(0, residue, carbon)[owner]
    reach = length(pos - pos[of_residue]).where(of_residue >= 0, 0)  # (N,)
    if len(reach) and reach.max() > MAX_REACH:
        row = int(owner[reach.argmax()])
        number, name = int(protein.residue_number[row]), RESIDUES[protein.residue_type[row]]
        of_chain = f" of chain {chain_names[chain[row]]!r}" if chain_names else ""
        detail = f"{name} {number}{of_chain}, {reach.max():.0f} angstrom from an atom to its CA"
        raise StructureError(path, "torn residue", detail)
    for radius, most, what in MAX_DENSITY:
        if _crowded(pos if what == "atoms" else alpha, radius, most):
            detail = f"over {most} {what} within {radius} angstrom of one: nanometres? padding?"
            raise StructureError(path, "denser than matter", detail)
    return protein


def _crowded(pos: Tensor, radius: float, most: int) -> bool:
    """Whether a point of pos (N, 3) has more than `most` others within `radius`. 2,000 points are compared at a time.

    If none has, at most 20 * most pairs are compared for each point. That bounds the memory.
    """
    if len(pos) <= most or _spread(pos.double().numpy(), radius, most):
        return False
    order, first, last = candidates(pos, torch.zeros(len(pos), dtype=torch.long), radius)
    if (last - first).sum(1).max() > 20 * most:
        return True
    pos = pos.index_select(0, order)
    count = torch.zeros(len(pos), dtype=torch.long)
    for rows in torch.arange(len(pos)).split(2000):
        k, j = ranges(first[rows].flatten(), last[rows].flatten())
        i = rows[0] + k // first.shape[1]
        step = pos.index_select(0, i) - pos.index_select(0, j)
        near = step.square().sum(1) < radius**2
        count += torch.cat([i[near], j[near]]).bincount(minlength=len(pos))
    return bool(count.max() > most)


def _spread(pos: np.ndarray, radius: float, most: int) -> bool:
    """Whether counts in cells show that no point of pos (N, 3) has over `most` others within `radius`.

    The cells around the one of a point hold its ball; their counts are added up along each axis in turn. False, too,
    where points lie so far apart that nearly all cells are empty.
    """
    side = max(radius / 3 * (1 + 1e-6), NARROWEST)  # a hair wider, for rounding
    reach = math.ceil(radius / side)  # so many cells to each side: 3, or 1
    cell = ((pos - pos.min(0)) / side).astype(np.int64) + reach
    shape = cell.max(0) + reach + 1
    if shape.prod(dtype=float) > 100 * len(pos) + 100_000:
        return False
    place = (cell[:, 0] * shape[1] + cell[:, 1]) * shape[2] + cell[:, 2]
    count = np.bincount(place, minlength=shape.prod()).reshape(shape)
    count = count.astype(np.int16 if len(pos) < 2**15 else np.int32)
    for _ in range(3):
        sums = count[: -2 * reach].copy()
        for k in range(1, 2 * reach + 1):
            sums += count[k : len(count) - 2 * reach + k]
        count = sums.transpose(1, 2, 0)  # the next axis
    return bool(count.max() <= most + 1)
