"""What an encoder returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Encoding:
    """Representations of atoms, residues and proteins."""

    node: Tensor  # (N, d)   a in the paper
    residue: Tensor  # (R, d)   h in the paper: the mean over the atoms of the residue
    protein: Tensor  # (B, d)
