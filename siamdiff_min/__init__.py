"""DiffPreT and SiamDiff: pre-training protein structure encoders by sequence-structure diffusion, in plain PyTorch.

Start reading at `siamdiff_min/pretraining/siamdiff.py`, which is Algorithm 1 of the paper on one screen.
"""

from .embed import load_encoder
from .embed import load_encoder
from .encoders import ENCODERS, Encoding, GearNet, Graph
from .pretraining import ABLATIONS, OBJECTIVES, SiamDiff
from .protein import GaussianConformer, Protein, TorsionalConformer

__version__ = "0.1.0"
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
