"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: threads that wait must not keep a core busy
from .encoders import ENCODERS, GVPGNN, Encoding, ESMGearNet, GearNet
from .pretraining import OBJECTIVES, SCHEDULES, Schedule, SiamDiff
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure

__version__ = "0.2.0"
__all__ = [
    "ENCODERS",
    "GVPGNN",
    "OBJECTIVES",
    "SCHEDULES",
    "TASKS",
    "ESMGearNet",
    "Embedder",
    "Embedding",
    "Encoding",
    "GearNet",
    "Protein",
    "Schedule",
    "SiamDiff",
    "Structure",
    "Task",
    "load_encoder",
    "read_structure",
]


def __getattr__(name: str):
    """On demand: scikit-learn loads slowly, and `python -m siamdiff_min.embed` must not find its module imported."""
    if name in ("load_encoder", "Embedder", "Embedding"):
        from . import embed as module
    elif name in ("TASKS", "Task"):
        from .downstream import tasks as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
