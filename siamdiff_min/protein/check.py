"""Coordinates that no protein has: one check for files, for arrays and for a `Protein` of one's own.

That they are numbers, and not too large, is looked at here; whether they look like a protein, in tools/.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..files import StructureError, part_or_none
from .constants import ATOM_NAMES, RESIDUES

if TYPE_CHECKING:
    from .protein import Protein

MAX_COORDINATE = 1e5  # angstrom; float32 still resolves 0.01 there


def check_protein(path, protein: Protein, chain_names: Sequence[str] = ()) -> Protein:
    """The protein as it is. Raises StructureError if it does not look like one; `path` is its name in the message."""
    if protein.pos.dtype in (torch.float16, torch.bfloat16):
        detail = "it moves atoms by up to .25 angstrom: give float32, and compute under torch.autocast"
        raise StructureError(path, "coordinates in half precision", detail)
    inside = np.abs(protein.pos.detach().cpu().numpy()) <= MAX_COORDINATE  # also False for nan
    if not inside.all():
        atom = int((~inside).any(1).argmax())
        of_residue = residue_name(protein, int(protein.atom_residue[atom]), chain_names)
        name = ATOM_NAMES[protein.atom_name[atom]]
        detail = f"not finite or beyond {MAX_COORDINATE:.0f} angstrom: {name} of {of_residue}"
        raise StructureError(path, "coordinates out of range", detail)
    if check_plausible := part_or_none("check_plausible"):
        check_plausible(path, protein, chain_names)
    return protein


def residue_name(protein: Protein, row: int, chain_names: Sequence[str]) -> str:
    """A residue as a message calls it: its type, its number and, if chains have names, its chain."""
    words = f"{RESIDUES[protein.residue_type[row]]} {int(protein.residue_number[row])}"
    if chain_names:
        words += f" of chain {chain_names[protein.chain[row]]!r}"
    return words
