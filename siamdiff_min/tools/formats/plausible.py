"""Does this look like a protein? Four searches: its scale, its residues, how dense it is, and copies of chains.

    CA ---- 3.8 ---- CA    between residues that follow in number: is this angstrom?
    |
    +- 12 at most - atom   from the CA to the atoms of its residue
    cubes of a grid        too many atoms in one are padding; too many with two CA are joined models

What 1,727 real files have stands behind each bound. All are in angstrom.
"""

from collections.abc import Sequence

import numpy as np

from ...files import StructureError
from ...protein.check import residue_name
from ...protein.constants import CA
from ...protein.protein import Protein

MAX_REACH = 12.0  # from an atom to the CA of its residue; 10.0
# Side of a cube, and the most that may be in it. Of 797,000 atoms in 433 chains at most 14 and 1 are.
MAX_DENSITY = ((4.5, 40, "atoms"), (1.0, 3, "CA atoms"))
# From CA to the CA with the next number: the median of every one of 1,500 real structures lies in 3.73 to 3.88.
USUAL_STEP, MIN_STEP, MAX_STEP, FEWEST_STEPS = 3.8, 3.3, 4.4, 5
COPY_SIDE, MAX_COPIES = 2.0, 0.05  # side of a cube, and share of the CA that have another in theirs: 0 in 432 chains


def check_plausible(path, protein: Protein, chain_names: Sequence[str]) -> None:
    """Raise StructureError with the first problem; `path` is the protein's name in the message."""
    pos = protein.pos.detach().cpu().numpy().astype(float)  # float32 is too coarse for squares of large coordinates
    owner = protein.atom_residue.cpu().numpy()
    carbon = np.flatnonzero(protein.atom_name.cpu().numpy() == CA)
    alpha = pos[carbon]
    residue = owner[carbon]
    chain = protein.chain.cpu().numpy()[residue]
    number = protein.residue_number.cpu().numpy()[residue]

    # From CA to CA between residues that follow each other in number, as breaks in a chain are no sign.
    follows = (chain[1:] == chain[:-1]) & (number[1:] == number[:-1] + 1)
    steps = _length(alpha[1:] - alpha[:-1])[follows]
    step = float(np.quantile(steps, 0.5, method="lower")) if len(steps) >= FEWEST_STEPS else USUAL_STEP
    if not MIN_STEP <= step <= MAX_STEP:
        found = f"{step:.2f} angstrom from CA to the next CA (median), {USUAL_STEP} in proteins"
        detail = f"{found}: scaled by {step / USUAL_STEP:.2f}? another order? padding?"
        raise StructureError(path, "not the size of a protein", detail)

    # From every atom to the CA of its residue.
    carbon_of = np.full(protein.num_residues, -1)
    carbon_of[residue] = carbon
    centre = carbon_of[owner]
    reach = np.where(centre < 0, 0, _length(pos - pos[centre]))
    if reach.max(initial=0) > MAX_REACH:
        name = residue_name(protein, int(owner[reach.argmax()]), chain_names)
        raise StructureError(path, "torn residue", f"{name}, {reach.max():.0f} angstrom from an atom to its CA")

    # How many atoms, or CA, are in one place.
    for side, most, kind in MAX_DENSITY:
        _, count = _in_cubes(pos if kind == "atoms" else alpha, side)
        if count.max(initial=0) > most:
            detail = f"over {most} {kind} in a cube of {side} angstrom: nanometres? padding?"
            raise StructureError(path, "denser than matter", detail)

    # Chains that lie on each other are the output of an aligner, or models that somebody joined.
    cube, count = _in_cubes(alpha, COPY_SIDE)
    doubled = count > 1
    if len(alpha) > FEWEST_STEPS and doubled.mean() > MAX_COPIES:
        pair = sorted({*chain[cube == cube[doubled.argmax()]].tolist()})
        names = " and ".join(repr(chain_names[c]) if chain_names else str(c) for c in pair)
        share = f"{doubled.mean():.0%} of the CA have another in a cube of {COPY_SIDE} angstrom"
        raise StructureError(path, "copies of a chain in one place", f"{share} (chain {names}): joined models?")


def _length(vector: np.ndarray) -> np.ndarray:
    """Euclidean norm (N, 3) -> (N,). That of geometry.py would start torch's threads in every process that reads."""
    return np.sqrt(np.einsum("ij,ij->i", vector, vector))


def _in_cubes(points: np.ndarray, side: float) -> tuple[np.ndarray, np.ndarray]:
    """Of each point (N, 3) the cube of a grid that it is in, and how many are in that cube."""
    cube = np.floor(points / side).astype(np.int64) @ [1, 2**20, 2**40]  # no coordinate is 2^19 cubes away
    _, place, count = np.unique(cube, return_inverse=True, return_counts=True)
    return cube, count[place]
