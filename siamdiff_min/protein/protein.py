"""`Protein`, the one data structure of the package: one *or more* proteins as flat tensors.

Atoms and residues of all proteins are concatenated and index vectors say who belongs to whom: there is no padding and
no batch class, a batch is a `Protein` with B > 1. Nothing is written to in place; a change is `dataclasses.replace`.

Shape letters of the whole package: **N** atoms, **R** residues, **B** proteins, **E** edges, **L** line-graph edges,
**M** masked or sampled items, **d** width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..files import ConfigError, part
from .check import check_protein
from .constants import CA
from .neighbors import histogram


@dataclass(frozen=True, eq=False, repr=False)
class Protein:
    """P = (S, R) of Sec. 3.1: the sequence is `residue_type`, the structure is `pos`. `==` asks for the same object."""

    pos: Tensor  # (N, 3) float   coordinates in angstrom
    element: Tensor  # (N,)   long    index into ELEMENTS, i.e. the atomic number
    atom_name: Tensor  # (N,)   long    index into ATOM_NAMES
    atom_residue: Tensor  # (N,)   long    residue of every atom, non-decreasing
    residue_type: Tensor  # (R,)   long    index into RESIDUES
    masked: Tensor  # (R,)   bool    True where the residue type is hidden ([MASK])
    residue_number: Tensor  # (R,)   long    author numbering
    insertion_code: Tensor  # (R,)   long    character code of the insertion code, 32 (a blank) without one
    residue_index: Tensor  # (R,)   long    place of the residue in its chain, in file order; selections keep it
    chain: Tensor  # (R,)   long    chain of every residue, counted from 0 in file order within its protein
    residue_protein: Tensor  # (R,)   long    protein of every residue, non-decreasing
    num_proteins: int = 1

    @staticmethod
    def from_ca(pos, sequence, chain=None) -> Protein:
        """One protein of CA atoms pos (R, 3) in angstrom, numpy or a tensor.

        `sequence` has letters, or indices into RESIDUES (R,). `chain` has a name or number for every residue (R,), by
        default there is one chain. Raises StructureError.
        """
        return check_protein("pos", Protein(**part("from_ca")(pos, sequence, chain)))

    @staticmethod
    def from_atom37(pos, mask, sequence, chain=None) -> Protein:
        """One protein in the layout of AlphaFold and OpenFold: pos (R, 37, 3) in angstrom, mask (R, 37), 0 for no atom.

        `sequence` has letters, or the numbers (R,) called `aatype` there; `chain` is as in `from_ca`. Every residue
        needs its CA. Raises StructureError.
        """
        return check_protein("pos", Protein(**part("from_atom37")(pos, mask, sequence, chain)))

    def __repr__(self) -> str:
        return f"Protein(B={self.num_proteins}, R={self.num_residues}, N={self.num_atoms})"

    @property
    def num_atoms(self) -> int:
        return len(self.pos)

    @property
    def num_residues(self) -> int:
        return len(self.residue_type)

    @property
    def atom_protein(self) -> Tensor:
        """Protein of every atom (N,), non-decreasing."""
        return self.residue_protein[self.atom_residue]

    @property
    def residues_per_protein(self) -> Tensor:
        """Number of residues of every protein (B,)."""
        return histogram(self.residue_protein, self.num_proteins)

    def map(self, function) -> Protein:
        """Apply `function` to every tensor."""
        return replace(self, **{name: function(getattr(self, name)) for name in TENSOR_FIELDS})

    def to(self, device, non_blocking: bool = False) -> Protein:
        """The same protein on another device."""
        return self.map(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Protein:
        """Page-locked copy, which goes to a GPU while others compute."""
        return self.map(torch.Tensor.pin_memory)

    def select_atoms(self, keep: Tensor) -> Protein:
        """Keep the atoms where `keep` (N,) is True. Residues stay, even those that lose every atom."""
        kept = keep.nonzero().squeeze(1)
        return replace(self, **{name: getattr(self, name)[kept] for name in ATOM_FIELDS})

    def select_residues(self, keep: Tensor) -> Protein:
        """Keep the residues where `keep` (R,) is True, with their atoms. Proteins stay, even empty ones."""
        new_index, kept = keep.cumsum(0) - 1, keep.nonzero().squeeze(1)
        atoms = self.select_atoms(keep[self.atom_residue])
        residues = {name: getattr(self, name)[kept] for name in RESIDUE_FIELDS}
        return replace(atoms, atom_residue=new_index[atoms.atom_residue], **residues)

    def crop(self, start: int, length: int) -> Protein:
        """The residues start .. start + length - 1 (rows of a single protein, file order)."""
        if self.num_proteins != 1:
            raise ValueError(f"crop works on one protein, got a batch of {self.num_proteins}")
        row = torch.arange(self.num_residues, device=self.pos.device)
        return self.select_residues((row >= start) & (row < start + length))

    def alpha_carbons(self) -> Protein:
        """CA atoms only (residue level, App. B.3): atom i is residue i. ValueError unless each residue has one."""
        carbons = self.select_atoms(self.atom_name == CA)
        if not torch.equal(carbons.atom_residue, torch.arange(self.num_residues, device=self.pos.device)):
            raise ValueError("residue level needs exactly one CA per residue")
        return carbons

    @staticmethod
    def pack(proteins: list[Protein]) -> Protein:
        """Concatenate proteins (or batches) into one batch, in order. Raises ConfigError if there is none."""
        if not proteins:
            raise ConfigError("Protein.pack needs at least one protein; its list is empty")
        residues = count = 0
        shifted = []
        for p in proteins:
            atom_residue, residue_protein = p.atom_residue + residues, p.residue_protein + count
            shifted.append(replace(p, atom_residue=atom_residue, residue_protein=residue_protein))
            residues, count = residues + p.num_residues, count + p.num_proteins
        joined = {name: torch.cat([getattr(p, name) for p in shifted]) for name in TENSOR_FIELDS}
        return Protein(**joined, num_proteins=count)

    def unpack(self) -> list[Protein]:
        """The inverse of `pack`: a list of B single proteins."""
        singles = [self.select_residues(self.residue_protein == b) for b in range(self.num_proteins)]
        return [replace(p, residue_protein=torch.zeros_like(p.residue_protein), num_proteins=1) for p in singles]


TENSOR_FIELDS = tuple(f.name for f in fields(Protein) if f.name != "num_proteins")
ATOM_FIELDS = ("pos", "element", "atom_name", "atom_residue")
RESIDUE_FIELDS = tuple(name for name in TENSOR_FIELDS if name not in ATOM_FIELDS)
