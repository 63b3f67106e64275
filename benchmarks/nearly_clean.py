"""Pre-training on nearly clean structures: DiffPreT or SiamDiff with a schedule that is ours, not the paper's.

    python train.py --plugin benchmarks/nearly_clean.py --method diffpret-clean --level residue --size small --epochs 10

More than half of the paper's first stage has noise of 0.8 angstrom or more and hides most types. Features are read from
clean structures with all types, so here the noise is log-normal around 0.1 angstrom, and 10 to 40 % are masked.
studies/2026-11-benchmarks/results.md has what it gains.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from siamdiff_min import OBJECTIVES
from siamdiff_min.pretraining import Schedule, SiamDiff
from siamdiff_min.protein.conformer import GaussianConformer, TorsionalConformer
from siamdiff_min.training.config import TABLE_5


@dataclass(frozen=True, eq=False)
class NearlyClean(Schedule):
    """sigma_t = median * exp(spread * z), where z is the (t - 1/2) / T quantile of the normal distribution: with t
    uniform, sigma is log-normal. The rate of masking grows linearly in t, as the paper's does."""

    median: float = 0.1  # angstrom
    spread: float = 1.0
    mask_rates: tuple[float, float] = (0.1, 0.4)  # at t = 0 and t = T

    @property
    def alpha_bar(self) -> Tensor:
        """1 / (1 + sigma_t^2) (T,): R^t = R + sigma_t eps."""
        quantile = (torch.arange(self.steps, dtype=self.betas.dtype) + 0.5) / self.steps
        return 1 / (1 + (self.median * (self.spread * torch.special.ndtri(quantile)).exp()).square())

    def mask_rate(self, t: Tensor) -> Tensor:
        """Cumulative probability of [MASK] at step t (B,)."""
        low, high = self.mask_rates
        return low + (high - low) * t / self.steps


SCHEDULE = NearlyClean(torch.zeros(100, dtype=torch.float64), t_range=(1, 100))  # only their number and type count


def build(encoder, level: str, preset: str = "paper", siamese: bool = False) -> SiamDiff:
    """DiffPreT, or SiamDiff, with this schedule throughout."""
    conformers = {"atom": TorsionalConformer, "residue": GaussianConformer}
    return SiamDiff(encoder, conformers[level]() if siamese else None, {1: SCHEDULE})


OBJECTIVES["diffpret-clean"] = build
OBJECTIVES["siamdiff-clean"] = lambda *args: build(*args, siamese=True)
for name in ("diffpret", "siamdiff"):
    TABLE_5[f"{name}-clean"] = TABLE_5[name]
