"""The forward process q(P^t | P^0) (Sec. 3.2, Eq. 2, Eq. 3) and the two-stage noise schedule (Sec. 3.4, App. D).

Time steps t run from 1 to T as in the paper. Structure: Gaussian noise on the coordinates. Sequence: residues are
replaced by [MASK] with a cumulative probability that grows linearly in t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..encoders.ops import segment_mean
from ..files import ConfigError
from ..machine import warn_once
from ..protein.geometry import normal_like
from ..protein.protein import Protein
from .held_out import HeldOutNoise

FAINT = 1e-3  # of alpha_bar; both presets end at 5e-3, with noise of 14 angstrom
MASK_RATE = (0.15, 1.0)  # at t = 0 and t = T (App. D)


def sigmoid_betas(steps: int, low: float, high: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Variances beta_1 .. beta_T (T,) on a sigmoid from low to high: sigmoid(-6 .. 6) (high - low) + low (App. D)."""
    return torch.linspace(-6, 6, steps, dtype=dtype).sigmoid() * (high - low) + low


@dataclass(frozen=True, eq=False)
class Schedule:
    """One stage of pre-training: the noise steps t it draws from, and how its losses are weighed.

    Raises ConfigError for a t that has no beta, and if nothing is left of a structure. Warns if hardly anything is.
    """

    betas: Tensor  # (T,)   variances; in float32, 1 - alpha_bar of the official stage 2 has a relative error of 2e-4
    t_range: tuple[int, int]  # first and last t that are drawn
    weight_structure: float = 1.0
    weight_sequence: float = 1.0

    def __post_init__(self):
        first, last = self.t_range
        if not 1 <= first <= last <= self.steps:
            raise ConfigError(f"t_range is {self.t_range}, but t counts from 1 to {self.steps}, the number of betas")

        reached = self.alpha_bar[last - 1].item()
        if not reached > 0:
            raise ConfigError(f"alpha_bar is {reached:.3g} at t = {last}: no structure is left. Let t_range end before")
        if reached < FAINT:
            noise = ((1 - reached) / reached) ** 0.5
            warn_once(f"alpha_bar is {reached:.2g} at t = {last}: noise of {noise:,.0f} angstrom, and losses as large")

    def __str__(self) -> str:
        first, last = self.t_range
        weights = f"weights {self.weight_structure:g}, {self.weight_sequence:g}"
        return f"t {first}..{last}, beta {self.betas[0]:.3g}..{self.betas[-1]:.3g}, {weights}"

    @property
    def steps(self) -> int:
        """T."""
        return len(self.betas)

    @property
    def alpha_bar(self) -> Tensor:
        """prod_{s <= t} (1 - beta_s), which joins t steps of Eq. 1, for t = 1 .. T at the indices 0 .. T - 1: (T,)."""
        return (1 - self.betas).cumprod(0)

    def mask_rate(self, t: Tensor) -> Tensor:
        """Cumulative probability of [MASK] at step t (B,), linear in t from t = 0 (App. D), so .1585 at t = 1."""
        low, high = MASK_RATE
        return low + (high - low) * t / self.steps

    def draw_t(self, num: int, generator: torch.Generator) -> Tensor:
        """One time step t per protein (B,), uniform over the t of this stage (Alg. 1, line 4)."""
        first, last = self.t_range
        if isinstance(generator, HeldOutNoise):
            return first + (generator.shares(num) * (last - first + 1)).long()
        return torch.randint(first, last + 1, (num,), generator=generator, device=generator.device)

    def ablated(self, structure: bool = True, sequence: bool = True, t: int | None = None) -> Schedule:
        """The ablations of Table 3: one of the two diffusions alone, with weight 1, or one fixed t (-1: the last)."""
        changed = self
        if t is not None:
            step = t if t > 0 else self.steps + 1 + t
            changed = replace(changed, t_range=(step, step))
        if not (structure and sequence):
            changed = replace(changed, weight_structure=float(structure), weight_sequence=float(sequence))
        return changed


SCHEDULES = {  # preset -> stage -> schedule (differences.md, rows 1, 2, 11)
    "paper": {  # the text's variances in the code's formula: beta_1 comes out as 3.47e-4
        1: Schedule(sigmoid_betas(100, 1e-4, 0.1), t_range=(10, 100)),
        2: Schedule(sigmoid_betas(100, 1e-4, 0.1), t_range=(1, 9)),
    },
    "official": {
        1: Schedule(sigmoid_betas(100, 1e-3, 0.1, torch.float32), (1, 100), 0.5, 0.5),
        2: Schedule(torch.full((5,), 1e-4), (1, 5), 0.2, 0.8),
    },
}


def random_mask(protein: Protein, rate: Tensor, generator: torch.Generator, with_replacement: bool = False) -> Tensor:
    """random_mask(S, rho) of Eq. 3 (Alg. 1, line 7): each residue with its protein's rate (B,), at least one of each.

    Returns the residues to mask (M,), increasing. With replacement, floor(n rate) of n residues are drawn, and some may
    be drawn twice (differences.md, row 3).
    """
    if with_replacement:
        size = protein.residues_per_protein
        first = size.cumsum(0) - size
        draws = (size * rate.float()).long().clamp(min=1)
        drawn_from = torch.arange(len(size), device=rate.device).repeat_interleave(draws)
        u = torch.rand(len(drawn_from), generator=generator, device=rate.device)
        return (u * size[drawn_from]).long() + first[drawn_from]
    protein_of = protein.residue_protein
    u = torch.rand(protein.num_residues, generator=generator, device=rate.device)
    smallest = u.new_ones(protein.num_proteins).scatter_reduce_(0, protein_of, u, "amin")
    masked = (u < rate[protein_of]) | (u == smallest[protein_of])
    return masked.nonzero().squeeze(1)


def add_gaussian_noise(pos: Tensor, alpha_bar: Tensor, generator: torch.Generator) -> Tensor:
    """R^t = R + sqrt((1 - abar) / abar) eps (Alg. 1, lines 5-6): Eq. 3 divided by sqrt(abar), as in GeoDiff.

    So lengths keep their scale in angstrom (differences.md, row 4). pos (N, 3) and alpha_bar (N,) -> (N, 3).
    """
    return pos + ((1 - alpha_bar) / alpha_bar).sqrt()[:, None] * normal_like(pos, generator)


def hide_residues(protein: Protein, chosen: Tensor, backbone: int) -> Protein:
    """Apply [MASK] to the residues `chosen` (M,): erase their types and discard their side chains (App. D).

    The atoms kept are the first `backbone` of N, CA, C, O. An encoder must not find the answer: every type becomes 0.
    """
    masked = protein.masked.index_fill(0, chosen, True)
    keep = (protein.atom_name < backbone) | ~masked[protein.atom_residue]
    erased = protein.residue_type.masked_fill(masked, 0)
    return replace(protein, masked=masked, residue_type=erased).select_atoms(keep)


def edges_to_vectors(m: Tensor, pos: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """The sum in Eq. 5, here two means: invariant numbers m of each edge (E, ...) -> vectors (N, ..., 3).

    By the chain rule of GeoDiff: the gradient of a distance is the unit vector along the edge. Each atom takes the mean
    over the edges that leave it minus the mean over those that reach it (differences.md, row 6).
    """
    edge = pos.index_select(0, src) - pos.index_select(0, dst)
    direction = torch.nn.functional.normalize(edge, dim=-1, eps=1e-10)
    ones = [1] * (m.dim() - 1)
    vector = direction.view(len(m), *ones, 3) * m[..., None]
    return segment_mean(vector, src, len(pos)) - segment_mean(vector, dst, len(pos))
