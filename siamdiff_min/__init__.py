"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen.
"""

from .encoders import ENCODERS, Encoding, GearNet, Graph
from .pretraining import ABLATIONS, OBJECTIVES, SiamDiff
from .protein.conformer import GaussianConformer, TorsionalConformer
from .protein.protein import Protein

__version__ = "0.2.0"
__all__ = [
    "ABLATIONS",
    "ENCODERS",
    "OBJECTIVES",
    "Encoding",
    "GaussianConformer",
    "GearNet",
    "Graph",
    "Protein",
    "SiamDiff",
    "TorsionalConformer",
    "load_encoder",
]


def __getattr__(name: str):
    """`load_encoder` on demand: `python -m siamdiff_min.embed` would otherwise find its module imported already."""
    if name == "load_encoder":
        from .embed import load_encoder

        return load_encoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
