"""What an encoder returns."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..files import ConfigError
from ..protein.neighbors import histogram


@dataclass(frozen=True)
class Encoding:
    """Representations of atoms, residues and proteins."""

    node: Tensor  # (N, d)   a in the paper
    residue: Tensor  # (R, d)   h in the paper: the mean over the atoms of the residue
    protein: Tensor  # (B, d)
    residue_protein: Tensor | None = None  # (R,) long   protein of every residue; `padded` needs it

    def to(self, device) -> Encoding:
        """The same on another device."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return Encoding(**{name: x if x is None else x.to(device) for name, x in tensors.items()})

    def padded(self) -> tuple[Tensor, Tensor]:
        """A row for every protein, as attention wants it: its residues (B, L, d), then zeros; and a mask (B, L), True
        for a residue. L is the length of the longest protein.

        Raises ConfigError for an encoding without `residue_protein`.
        """
        if self.residue_protein is None:
            raise ConfigError("padded needs Encoding(..., residue_protein=protein.residue_protein) from the encoder")
        size = histogram(self.residue_protein, len(self.protein))
        first = size.cumsum(0) - size
        row = torch.arange(len(self.residue), device=first.device)
        place = (self.residue_protein, row - first[self.residue_protein])
        shape = (len(size), int(size.max()))
        residue = self.residue.new_zeros(*shape, self.residue.shape[1]).index_put(place, self.residue)
        mask = torch.zeros(shape, dtype=torch.bool, device=first.device)
        mask[place] = True
        return residue, mask
