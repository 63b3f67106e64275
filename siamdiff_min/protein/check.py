"""Does this look like a protein? One check for files, for arrays and for a `Protein` of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..files import StructureError
from .constants import ATOM_NAMES, CA, RESIDUES

if TYPE_CHECKING:
    from .protein import Protein

# What 1,727 real files have stands behind each bound. All are in angstrom.
MAX_COORDINATE = 1e5  # float32 still resolves 0.01 there
MAX_SPACING, FEWEST = 10.0, 10  # between neighbours in a chain, from CA to CA (median 3.73 to 3.88); of so many or more
MAX_REACH = 12.0  # from an atom to the CA of its residue; 10.0
# Side of a cube, and the most that may be in it. Of 797,000 atoms in 433 chains at most 14, 14 and 1 are.
MAX_DENSITY = ((4.5, 40, "atoms"), (10.0, 50, "CA atoms"), (1.0, 3, "CA atoms"))
# From CA to the CA with the next number: the median of every one of 1,500 real structures lies in 3.73 to 3.88.
USUAL_STEP, MIN_STEP, MAX_STEP, FEWEST_STEPS = 3.8, 3.3, 4.4, 5
DENSE_STEP = 1.0  # a shorter one is first looked at as what is too dense: nanometres, padding
BOHR = 1.8897  # of them make an angstrom
COPY_SIDE, MAX_COPIES = 2.0, 0.05  # side of a cube, and share of the CA that have another in theirs: 0 in 432 chains


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

    # How many atoms, or CA, are in one place.
    for side, most, what in MAX_DENSITY:
        _, count = np.unique(_cubes(pos if what == "atoms" else alpha, side), return_counts=True)
        if count.max(initial=0) > most:
            detail = f"over {most} {what} in a cube of {side} angstrom: nanometres? padding?"
            raise StructureError(path, "denser than matter", detail)

    _check_scale(path, step)
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


def _cubes(points: np.ndarray, side: float) -> np.ndarray:
    """The cube of a grid that each of the points (N, 3) is in, as a number."""
    cube = np.floor(points / side).astype(np.int64)
    return cube @ [1, 2**20, 2**40]  # MAX_COORDINATE is below 2^19 cubes away


def _check_copies(path, alpha: np.ndarray, chain: np.ndarray, chain_names: Sequence[str]) -> None:
    """Chains that lie on each other are the output of an aligner, or models that somebody joined."""
    if len(alpha) <= FEWEST_STEPS:
        return
    _, cube, count = np.unique(_cubes(alpha, COPY_SIDE), return_inverse=True, return_counts=True)
    doubled = count[cube] > 1
    share = doubled.mean()
    if share > MAX_COPIES:
        pair = sorted({*chain[cube == cube[doubled.argmax()]].tolist()})
        names = " and ".join(repr(chain_names[c]) if chain_names else str(c) for c in pair)
        detail = f"{share:.0%} of the CA have another in a cube of {COPY_SIDE} angstrom (chain {names}): joined models?"
        raise StructureError(path, "copies of a chain in one place", detail)
