"""What is minimised in pre-training. `OBJECTIVES` is the choice of `--method`, `ABLATIONS` that of `--ablation`."""

from torch import nn

from ..protein.conformer import GaussianConformer, TorsionalConformer
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


def diffpret(encoder: nn.Module, level: str, preset: str = "paper", ablation: str = "none", conformer=None) -> SiamDiff:
    """DiffPreT (Sec. 3): joint diffusion of sequence and structure, one view."""
    stages = {k: s.only(**ABLATIONS[ablation]) for k, s in SCHEDULES[preset].items()}
    return SiamDiff(encoder, conformer, stages, official=preset == "official")


def siamdiff(encoder: nn.Module, level: str, preset: str = "paper", ablation: str = "none") -> SiamDiff:
    """SiamDiff (Sec. 4): DiffPreT on two conformers, each denoised from the other's representations."""
    atom = TorsionalConformer(official=preset == "official")
    return diffpret(encoder, level, preset, ablation, {"atom": atom, "residue": GaussianConformer()}[level])


OBJECTIVES = {"diffpret": diffpret, "siamdiff": siamdiff}
