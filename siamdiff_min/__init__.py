"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen.
"""

import importlib
import sys

if sys.version_info < (3, 10):  # noqa: UP036  # a clone asks nobody; only pip reads what pyproject.toml needs
    sys.exit("error: siamdiff_min needs Python 3.10 or newer, and this is %d.%d" % sys.version_info[:2])  # noqa: UP031
from .encoders import ENCODERS, GVPGNN, Encoder, Encoding, ESMGearNet, GearNet
from .encoders.weights import list_encoders, load_encoder
from .files import (
    CheckpointError,
    ConfigError,
    MachineError,
    SiamDiffError,
    StoreError,
    StructureError,
    UnwantedError,
    WriteError,
)
from .pretraining import OBJECTIVES, SCHEDULES, Schedule, SiamDiff
from .protein.parse import read_structure
from .protein.protein import Protein
from .protein.structure import Structure

__version__ = "0.3.0"
ON_DEMAND = dict.fromkeys(("Embedder", "Embedding"), ".encoders.embedding")
ON_DEMAND |= dict.fromkeys(("TASKS", "Task"), ".downstream.tasks") | {"bundled": ".data.bundled"}
__all__ = [
    "ENCODERS",
    "GVPGNN",
    "OBJECTIVES",
    "SCHEDULES",
    "CheckpointError",
    "ConfigError",
    "ESMGearNet",
    "Encoder",
    "Encoding",
    "GearNet",
    "MachineError",
    "Protein",
    "Schedule",
    "SiamDiff",
    "SiamDiffError",
    "StoreError",
    "Structure",
    "StructureError",
    "UnwantedError",
    "WriteError",
    "list_encoders",
    "load_encoder",
    "read_structure",
    *ON_DEMAND,
]


def __getattr__(name: str):
    """On demand: scikit-learn loads slowly, and few need to embed or to fine-tune."""
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(ON_DEMAND[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
