"""Helpers shared by the tests."""

from pathlib import Path

import numpy as np
import torch

from siamdiff_min.protein.constants import ATOM_ELEMENT, ATOM_INDEX
from siamdiff_min.protein.protein import Protein

GOLDEN = Path(__file__).parent / "golden"


class Golden(dict):
    """Arrays of a fixture made with the official implementation (see golden/README.md), as tensors where numeric."""

    def protein(
        self, prefix: str = "in_", atom_residue: str = "atom2residue", position: str = "node_position"
    ) -> Protein:
        """The fixture's packed proteins. `residue_index` is the row, as the official code counts."""
        names = [ATOM_INDEX.get(n, ATOM_INDEX["OXT"]) for n in self[f"{prefix}atom_name_str"]]
        residues = self[f"{prefix}num_residues"] if f"{prefix}num_residues" in self else None
        types = self[f"{prefix}residue_type"]
        sizes = torch.tensor([len(types)]) if residues is None else residues
        graph = torch.arange(len(sizes)).repeat_interleave(sizes)
        return Protein(
            pos=self[position if position.startswith("graph") else f"{prefix}{position}"],
            element=torch.tensor([ATOM_ELEMENT[n] for n in names]),
            atom_name=torch.tensor(names),
            atom_residue=self[f"{prefix}{atom_residue}"],
            residue_type=types,
            masked=torch.zeros_like(types, dtype=torch.bool),
            residue_number=self[f"{prefix}residue_number"],
            insertion_code=torch.full_like(types, 32),
            residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]),
            chain=self[f"{prefix}chain_id"],
            residue_graph=graph,
            num_graphs=len(sizes),
        )

    def state(self, prefix: str = "sd/") -> dict[str, torch.Tensor]:
        """The weights stored under `prefix`."""
        return {k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)}


def load_golden(name: str) -> Golden:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as arrays:
        return Golden((k, torch.from_numpy(a) if a.dtype.kind in "fiub" else a) for k, a in arrays.items())


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest deviation relative to the largest magnitude of `expected`."""
    return float((actual - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def random_rotation(generator: torch.Generator) -> torch.Tensor:
    """A uniformly random proper rotation (3, 3), float64."""
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator))
    q = q * torch.sign(torch.diagonal(r))
    return q * torch.sign(torch.linalg.det(q))
