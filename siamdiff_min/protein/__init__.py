"""What a protein is: vocabularies, the frozen `Protein`, reading and writing files, geometry, conformers (Sec. 4.1)."""

from .conformer import GaussianConformer, TorsionalConformer
from .protein import Protein

__all__ = ["GaussianConformer", "Protein", "TorsionalConformer"]
