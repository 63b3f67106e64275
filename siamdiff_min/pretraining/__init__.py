"""What is minimised in pre-training. `OBJECTIVES` is the choice of `--method`, `ABLATIONS` that of `--ablation`."""

from torch import nn

from ..protein.conformer import Conformer, GaussianConformer, TorsionalConformer
from .diffusion import SCHEDULES, Schedule
from .siamdiff import SiamDiff

__all__ = ["ABLATIONS", "OBJECTIVES", "SCHEDULES", "Schedule", "SiamDiff"]

ABLATIONS = {  # Sec. 5.3 and App. G, as arguments of Schedule.only
    "none": {},
    "no-sequence": {"sequence": False},
    "no-structure": {"structure": False},
    "small-noise": {"level": 1},
    "large-noise": {"level": 100},
}


def build_diffpret(encoder: nn.Module, level: str, preset: str = "paper", ablation: str = "none") -> SiamDiff:
    """DiffPreT (Sec. 3): joint diffusion of sequence and structure, one view."""
    return _build(encoder, None, preset, ablation)


def build_siamdiff(encoder: nn.Module, level: str, preset: str = "paper", ablation: str = "none") -> SiamDiff:
    """SiamDiff (Sec. 4): DiffPreT on two conformers, each denoised from the other's representations."""
    conformers = {"atom": TorsionalConformer(official=preset == "official"), "residue": GaussianConformer()}
    return _build(encoder, conformers[level], preset, ablation)


def _build(encoder: nn.Module, conformer: Conformer | None, preset: str, ablation: str) -> SiamDiff:
    stages = {stage: schedule.only(**ABLATIONS[ablation]) for stage, schedule in SCHEDULES[preset].items()}
    return SiamDiff(encoder, conformer, stages, official=preset == "official")


OBJECTIVES = {"diffpret": build_diffpret, "siamdiff": build_siamdiff}
