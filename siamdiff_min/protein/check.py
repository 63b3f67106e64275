"""Does this look like a protein? One check for files, for arrays and for a `Protein` of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    if not len(pos):
        return False
    order, first, last = candidates(pos, torch.zeros(len(pos), dtype=torch.long), radius)
    if (last - first).sum(1).max() > 20 * most:
        return True
    pos, count = pos.index_select(0, order), torch.zeros(len(pos), dtype=torch.long)
    for rows in torch.arange(len(pos)).split(2000):
        k, j = ranges(first[rows].flatten(), last[rows].flatten())
        i = rows[0] + k // first.shape[1]
        near = (pos.index_select(0, i) - pos.index_select(0, j)).square().sum(1) < radius**2
        count += torch.cat([i[near], j[near]]).bincount(minlength=len(pos))
    return bool(count.max() > most)
