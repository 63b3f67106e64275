"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen.
"""

import importlib
import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # before torch: threads that wait soon sleep
# With bf16 a CPU keeps no plan of every shape it has seen: gigabytes, as no two batches have one (docs/performance.md).
os.environ.update({"LRU_CACHE_CAPACITY": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"} | dict(os.environ))
from .encoders import ENCODERS, GVPGNN, Encoding, ESMGearNet, GearNet
from .files import CheckpointError, ConfigError, SiamDiffError, StoreError, StructureError, WriteError
from .pretraining import OBJECTIVES, SCHEDULES, Schedule, SiamDiff
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure

__version__ = "0.2.0"
ON_DEMAND = dict.fromkeys(("Embedder", "Embedding", "load_encoder"), ".embed")
ON_DEMAND |= dict.fromkeys(("TASKS", "Task"), ".downstream.tasks")
__all__ = [
    "ENCODERS",
    "GVPGNN",
    "OBJECTIVES",
    "SCHEDULES",
    "CheckpointError",
    "ConfigError",
    "ESMGearNet",
    "Encoding",
    "GearNet",
    "Protein",
    "Schedule",
    "SiamDiff",
    "SiamDiffError",
    "StoreError",
    "Structure",
    "StructureError",
    "WriteError",
    "read_structure",
    *ON_DEMAND,
]


def __getattr__(name: str):
    """On demand: scikit-learn loads slowly, and `python -m siamdiff_min.embed` must not find its module imported."""
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(ON_DEMAND[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
