"""Conformer simulation (Sec. 4.1, App. B.3): the second view of SiamDiff.

At atom level side chains turn by random angles, and those that clash are drawn again. At residue level only CA atoms
are left, and their coordinates get Gaussian noise.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ..conventions import PAPER, Conventions
from ..statistics import Mean
from .constants import ATOM_NAMES, ATOM_RADIUS, CHI_ATOM_INDEX, GREEK_RANK, MAX_CHI, RESIDUE_INDEX, VDW_RADIUS
from .geometry import length, normal_like, rotate_about_axis
from .neighbors import radius_pairs
from .protein import Protein

CLASH_OVERLAP = 0.8  # angstrom; spheres overlapping by more clash. Hydrogen bonds (about 0.5) do not.


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Atom names of every chi (20, 4, 4), -1 for none; Greek rank and radius of every atom name (37,)."""
    chi = torch.tensor(CHI_ATOM_INDEX, device=device)
    greek = torch.tensor(GREEK_RANK, device=device)
    return chi, greek, torch.tensor(ATOM_RADIUS, device=device)


def chi_atoms(protein: Protein) -> tuple[Tensor, Tensor]:
    """The atoms of chi 1..4 (R, 4, 4), -1 where missing; and (R, 4) whether a chi and all before have theirs."""
    device = protein.pos.device
    chi, _, _ = _tables(device)
    slots = len(ATOM_NAMES) + 1
    slot = torch.full((protein.num_residues, slots), -1, device=device)
    slot[protein.atom_residue, protein.atom_name] = torch.arange(protein.num_atoms, device=device)
    names = chi[protein.residue_type] % slots  # (R, 4, 4); the name -1 finds the last, always empty slot
    index = slot.gather(1, names.flatten(1)).view_as(names)
    complete = (index >= 0).all(-1)
    return index, complete.cumprod(1).bool()


def rotate_side_chains(protein: Protein, angles: Tensor, conventions: Conventions = PAPER) -> Protein:
    """perturb(R, eps) of Sec. 4.1 (Alg. 1, line 3): turn chi k of every residue by angles[:, k] (R, 4), radian.

    Each chi turns all atoms beyond its bond as one body, chi 1 first. So bond lengths and bond angles stay, and every
    chi changes by exactly its angle. A chi with a missing atom does not turn, nor do the later ones. Proline does not
    turn: its ring would open. Conventions may differ in both (differences.md, rows 17, 18). Disulphides are not held:
    their S-S bonds change (in 5PTI from 2.0 to 1.2 .. 3.8 angstrom, over 200 conformers).
    """
    # Which chi turn: (R, 4).
    chi, greek, _ = _tables(protein.pos.device)
    names = chi[protein.residue_type]  # (R, 4, 4)
    turns = names[..., 0] >= 0 if conventions.missing_at_origin else chi_atoms(protein)[1]
    if not conventions.proline_turns:
        is_proline = protein.residue_type == RESIDUE_INDEX["PRO"]
        turns = turns & ~is_proline[:, None]

    # One slot per residue and atom name, so that a chi finds its atoms by name: (R, 37, 3).
    pos = protein.pos.new_zeros(protein.num_residues, len(ATOM_NAMES), 3)
    pos[protein.atom_residue, protein.atom_name] = protein.pos
    row = torch.arange(protein.num_residues, device=pos.device)

    # The bond from the second to the third atom is the axis; what is as far out as the fourth, or farther, turns.
    for k in range(MAX_CHI):
        _, start, end, last = names[:, k].clamp(min=0).unbind(1)  # (R,) each
        angle = angles[:, k, None]  # (R, 1)
        beyond = greek >= greek[last][:, None]  # (R, 37)
        moves = turns[:, k, None] & (angle != 0) & beyond
        axis_start = pos[row, start][:, None]
        axis_end = pos[row, end][:, None]
        turned = rotate_about_axis(pos, axis_start, axis_end, angle)
        pos = torch.where(moves[..., None], turned, pos)
    return replace(protein, pos=pos[protein.atom_residue, protein.atom_name])


def new_clashes(native: Protein, pos: Tensor) -> Tensor:
    """Residues (R,) bool whose side chain, at coordinates `pos` (N, 3), runs into something it did not touch before.

    Two atoms of different residues clash if their spheres overlap by more than CLASH_OVERLAP. Only atoms that moved are
    blamed; if both did, both residues are.
    """
    _, _, radius = _tables(pos.device)
    farthest = 2 * max(VDW_RADIUS.values()) - CLASH_OVERLAP  # the reach of the largest two atoms, angstrom
    i, j = radius_pairs(pos, native.atom_protein, farthest)
    radius = radius[native.atom_name]  # (N,)
    reach = radius[i] + radius[j] - CLASH_OVERLAP
    now = length(pos[i] - pos[j]) < reach
    before = length(native.pos[i] - native.pos[j]) < reach
    other_residue = native.atom_residue[i] != native.atom_residue[j]
    fresh = now & ~before & other_residue  # (P,) pairs

    # Each atom of a fresh clash is blamed if it moved.
    atom = torch.cat([i, j])
    moved = (pos != native.pos).any(-1)
    blamed = fresh.repeat(2) & moved[atom]
    residue = native.atom_residue[atom]
    return torch.zeros_like(native.masked).index_put((residue,), blamed, accumulate=True)


@dataclass(frozen=True)
class TorsionalConformer:
    """Random rotamers: wrapped normal noise of `std` radian on chi 1..4 of every residue (Sec. 4.1, App. D).

    A residue whose side chain makes a new clash is drawn again with `shrink` times its standard deviation, up to
    `attempts` times: the paper has no number for either. One that still clashes keeps its native side chain. Without
    the clash check of the conventions the first draw is the conformer (differences.md, row 12).
    """

    std: float = 0.1 * torch.pi
    attempts: int = 4
    shrink: float = 0.5
    conventions: Conventions = PAPER

    def __call__(self, protein: Protein, generator: torch.Generator) -> tuple[Protein, dict[str, Mean]]:
        """The conformer, and the logged shares of residues: with new clashes as first drawn, with new clashes in the
        end, with their native side chain."""
        std = protein.pos.new_full((protein.num_residues, 1), self.std)
        angles = self.draw(protein, std, generator)
        conformer = rotate_side_chains(protein, angles, self.conventions)
        if not self.conventions.clash_check:
            return conformer, {}

        # Draw again what clashes. This ends: if all side chains were native, there would be no new clash.
        clashing_as_drawn = new_clashes(protein, conformer.pos)
        clashing = clashing_as_drawn
        attempt = 0
        while clashing.any():
            attempt += 1
            again = clashing[:, None]
            std = torch.where(again, std * self.shrink, std)
            redrawn = self.draw(protein, std, generator) if attempt <= self.attempts else torch.zeros_like(angles)
            angles = torch.where(again, redrawn, angles)
            conformer = rotate_side_chains(protein, angles, self.conventions)
            clashing = new_clashes(protein, conformer.pos)
        shares = {
            "clash_rate_drawn": clashing_as_drawn,
            "clash_rate": clashing,
            "native_side_chains": (angles == 0).all(1),
        }
        dtype = protein.pos.dtype
        return conformer, {name: Mean.of(residues.to(dtype)) for name, residues in shares.items()}

    def draw(self, protein: Protein, std: float | Tensor, generator: torch.Generator) -> Tensor:
        """Wrapped normal noise (R, 4) in [0, 2 pi) for every chi."""
        of_chi = protein.pos.new_empty(protein.num_residues, MAX_CHI)
        noise = std * normal_like(of_chi, generator)
        return noise % (2 * torch.pi)


@dataclass(frozen=True)
class GaussianConformer:
    """R_2 = R_1 + eps, eps ~ N(0, std^2), std in angstrom: the conformer of residue-level proteins (App. B.3)."""

    std: float = 0.3

    def __call__(self, protein: Protein, generator: torch.Generator) -> tuple[Protein, dict[str, Mean]]:
        """The conformer; it has nothing to log."""
        noise = self.std * normal_like(protein.pos, generator)
        return replace(protein, pos=protein.pos + noise), {}
