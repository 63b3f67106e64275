"""Does this look like a protein? One check for files, for arrays and for a `Protein` of one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..files import StructureError
from .constants import ATOM_NAMES, CA, RESIDUES
from .neighbors import candidates, radius_pairs, ranges

if TYPE_CHECKING:
    from .protein import Protein

# What 1,727 real files have stands behind each bound. All are in angstrom.
MAX_COORDINATE = 1e5  # float32 still resolves 0.01 there
MAX_SPACING, FEWEST = 10.0, 10  # between neighbours in a chain, from CA to CA (median 3.73 to 3.88); of so many or more
MAX_REACH = 12.0  # from an atom to the CA of its residue; 10.0
# Radius, and how many others may be so near to one: 39, 57 and 1.
MAX_DENSITY = ((4.5, 100, "atoms"), (10.0, 150, "CA atoms"), (1.0, 3, "CA atoms"))
# From CA to the CA with the next number: the median of every one of 1,500 real structures lies in 3.73 to 3.88.
USUAL_STEP, MIN_STEP, MAX_STEP, FEWEST_STEPS = 3.8, 3.3, 4.4, 5
DENSE_STEP = 1.0  # a shorter one is first looked at as what is too dense: nanometres, padding
BOHR = 1.8897  # of them make an angstrom
COPY_DISTANCE, MAX_COPIES = 2.0, 0.2  # share of the CA with another so near: .022 at most in real structures
MATRIX = 1500  # up to so many CA the matrix of their distances is sooner made than the list of neighbours
NARROWEST = 1.5  # of the cells that atoms are counted in: narrower ones are more than pay


def check_protein(path, protein: Protein, chain_names: Sequence[str] = ()) -> Protein:
    """The protein as it is. Raises StructureError if it does not look like one; `path` is its name in the message."""
    if protein.pos.dtype in (torch.float16, torch.bfloat16):
        detail = "it moves atoms by up to .25 angstrom: give float32, and compute under torch.autocast"
        raise StructureError(path, "coordinates in half precision", detail)
    pos = protein.pos.detach().cpu().numpy().astype(float)  # float32 is too coarse for squares of large coordinates
    chain = protein.chain.cpu().numpy()
    owner = protein.atom_residue.cpu().numpy()
    carbon = np.flatnonzero(protein.atom_name.cpu().numpy() == CA)
    alpha = pos[carbon]
    residue = owner[carbon]

    # Numbers that no coordinate has.
    inside = np.abs(pos) <= MAX_COORDINATE  # also False for nan
    if not inside.all():
        atom = int((~inside).any(1).argmax())
        of_residue = _residue_name(protein, int(owner[atom]), chain_names)
        name = ATOM_NAMES[protein.atom_name[atom]]
        detail = f"not finite or beyond {MAX_COORDINATE:.0f} angstrom: {name} of {of_residue}"
        raise StructureError(path, "coordinates out of range", detail)

    # From CA to CA in a chain.
    of_alpha = chain[residue]
    same_chain = of_alpha[1:] == of_alpha[:-1]
    steps = _length(alpha[1:] - alpha[:-1])
    of_chain = steps[same_chain]
    if len(of_chain) >= FEWEST and (spacing := _median(of_chain)) > MAX_SPACING:
        detail = f"{spacing:.1f} angstrom from CA to CA in a chain (median), 3.8 in proteins: another unit or order?"
        raise StructureError(path, "thinner than a protein", detail)

    # The same between residues that follow each other in number: are these angstrom?
    number = protein.residue_number.cpu().numpy()[residue]
    following = steps[same_chain & (number[1:] == number[:-1] + 1)]
    step = _median(following) if len(following) >= FEWEST_STEPS else USUAL_STEP
    if step >= DENSE_STEP:
        _check_scale(path, step)

    # From every atom to the CA of its residue.
    of_residue = np.full(protein.num_residues, -1)
    of_residue[residue] = carbon
    centre = of_residue[owner]
    reach = _length(pos - pos[centre])
    reach[centre < 0] = 0
    if len(reach) and reach.max() > MAX_REACH:
        name = _residue_name(protein, int(owner[reach.argmax()]), chain_names)
        raise StructureError(path, "torn residue", f"{name}, {reach.max():.0f} angstrom from an atom to its CA")

    # How many atoms, or CA, stand around one.
    apart = _lie_apart(alpha)
    for radius, most, what in MAX_DENSITY:
        known = apart and radius < COPY_DISTANCE
        if not known and _crowded(pos if what == "atoms" else alpha, radius, most):
            detail = f"over {most} {what} within {radius} angstrom of one: nanometres? padding?"
            raise StructureError(path, "denser than matter", detail)

    _check_scale(path, step)
    if not apart:
        _check_copies(path, alpha, of_alpha, chain_names)
    return protein


def _length(vector: np.ndarray) -> np.ndarray:
    """Euclidean norm (N, 3) -> (N,). That of geometry.py would start torch's threads in every process that reads."""
    return np.sqrt(np.einsum("ij,ij->i", vector, vector))


def _median(values: np.ndarray) -> float:
    """The lower one of the two in the middle."""
    middle = (len(values) - 1) // 2
    return float(np.partition(values, middle)[middle])


def _residue_name(protein: Protein, row: int, chain_names: Sequence[str]) -> str:
    """A residue as a message calls it: its type, its number and, if chains have names, its chain."""
    words = f"{RESIDUES[protein.residue_type[row]]} {int(protein.residue_number[row])}"
    if chain_names:
        words += f" of chain {chain_names[protein.chain[row]]!r}"
    return words


def _check_scale(path, step: float) -> None:
    """`step` leads from CA to the CA with the next number; the median, as breaks in a chain are no sign."""
    if not MIN_STEP <= step <= MAX_STEP:
        scale = step / USUAL_STEP
        guess = f"bohr? {BOHR:.2f} times too large" if abs(scale / BOHR - 1) < 0.03 else f"scaled by {scale:.2f}?"
        detail = f"{step:.2f} angstrom from CA to the next CA (median), {USUAL_STEP} in proteins: {guess}"
        raise StructureError(path, "not the size of a protein", detail)


def _lie_apart(alpha: np.ndarray) -> bool:
    """Whether so few CA (R, 3) have another within COPY_DISTANCE that no check of near ones can fail.

    All distances by one product. False, too, of so many CA that a list of neighbours is sooner made.
    """
    if len(alpha) > MATRIX:
        return False
    centred = alpha - alpha.mean(0) if len(alpha) else alpha
    square = np.einsum("ij,ij->i", centred, centred)
    turned = np.ascontiguousarray(-2 * centred.T)
    distance_squared = np.einsum("ik,kj->ij", centred, turned)  # `@` would start threads in every process that reads
    distance_squared += square
    distance_squared += square[:, None]
    near = np.count_nonzero(distance_squared < (COPY_DISTANCE + 1e-3) ** 2) - len(alpha)  # each pair twice
    return near <= min(MAX_DENSITY[-1][1], MAX_COPIES * len(alpha))


def _check_copies(path, alpha: np.ndarray, chain: np.ndarray, chain_names: Sequence[str]) -> None:
    """Chains that lie on each other are the output of an aligner, or models that somebody joined."""
    if len(alpha) <= FEWEST_STEPS:
        return
    pairs = radius_pairs(torch.from_numpy(alpha), torch.zeros(len(alpha), dtype=torch.long), COPY_DISTANCE)
    i, j = (pair.numpy() for pair in pairs)
    apart = (chain[i] != chain[j]) | (np.abs(i - j) > 1)  # what stands side by side in a chain is no copy
    i = i[apart]
    j = j[apart]
    doubled = np.unique([i, j])
    share = len(doubled) / len(alpha)
    if share > MAX_COPIES:
        pair = sorted({int(chain[i[0]]), int(chain[j[0]])})
        names = " and ".join(repr(chain_names[c]) if chain_names else str(c) for c in pair)
        detail = f"{share:.0%} of the CA have another within {COPY_DISTANCE} angstrom (chain {names}): joined models?"
        raise StructureError(path, "copies of a chain in one place", detail)


def _crowded(points: np.ndarray, radius: float, most: int) -> bool:
    """Whether one of the points (N, 3) has more than `most` others within `radius`. 2,000 are compared at a time.

    If none has, at most 20 * most pairs are compared for each point. That bounds the memory.
    """
    if len(points) <= most or _spread(points, radius, most):
        return False
    pos = torch.from_numpy(points)
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

    The cells around the one of a point hold its ball; their counts are added up along each axis in turn. (Sums that run
    over the end of a row are no larger than others: cells at both ends are empty.) False, too, where points lie so far
    apart that nearly all cells are empty.
    """
    side = max(radius / 3 * (1 + 1e-6), NARROWEST)  # a hair wider, for rounding
    reach = math.ceil(radius / side)  # so many cells to each side: 3, or 1
    cell = ((pos - pos.min(0)) / side).astype(np.int64) + reach
    shape = cell.max(0) + reach + 1
    if shape.prod(dtype=float) > 100 * len(pos) + 100_000:
        return False
    place = (cell[:, 0] * shape[1] + cell[:, 1]) * shape[2] + cell[:, 2]
    count = np.bincount(place, minlength=shape.prod())
    count = count.astype(np.int16 if len(pos) < 2**15 else np.int32)
    for step in (1, shape[2], shape[1] * shape[2]):  # from a cell to the next along each axis
        left = len(count) - 2 * reach * step
        sums = count[:left].copy()
        for k in range(1, 2 * reach + 1):
            sums += count[k * step : k * step + left]
        count = sums
    return bool(count.max() <= most + 1)
