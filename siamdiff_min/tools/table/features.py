"""Vectors of a user's own in place of an encoder's: `finetune --features vectors.npz`."""

import numpy as np
import torch
from torch import Tensor, nn

from ...downstream.sample import Sample
from ...files import ConfigError, first_three, structure_errors


class GivenFeatures(nn.Module):
    """The vectors of an .npz as `siamdiff embed` writes it: `id` and `mean`, or of residues `per_residue`.

    Raises StructureError for another file.
    """

    def __init__(self, path: str, residues: bool):
        super().__init__()
        self.path = path
        with structure_errors(path, "no vectors as siamdiff embed writes them"):
            content = dict(np.load(path, allow_pickle=False))
            name = "per_residue" if residues else "mean"
            if "id" not in content or name not in content:
                raise ValueError(f"it needs id and {name}, and has {', '.join(content)}")
            self.vectors = np.asarray(content[name], dtype=np.float32)
            names = of_residues(content) if residues else content["id"].tolist()
            if self.vectors.ndim != 2 or len(names) != len(self.vectors):
                raise ValueError(f"{name} is {self.vectors.shape}, expected a row for each of {len(names)}")
        self.row_of = {name: row for row, name in enumerate(names)}
        self.out_dim = self.vectors.shape[1]

    def represent(self, sample: Sample) -> Tensor:
        """The vectors (B, out_dim) of the samples. Raises ConfigError if one has none, or one that is not finite."""
        absent = [name for name in sample.names if name not in self.row_of]
        if absent:
            raise ConfigError(f"--features {self.path} has no vector of {first_three(absent)}")
        found = self.vectors[[self.row_of[name] for name in sample.names]]
        if not np.isfinite(found).all():
            raise ConfigError(f"--features {self.path}: a vector of {first_three(sample.names)} is not finite")
        return torch.from_numpy(found).to(sample.target.device)


def of_residues(content: dict[str, np.ndarray]) -> list[str]:
    """The names of all residues as samples have them: NAME:CHAIN:NUMBER and insertion code."""
    count = np.diff(content["residue_offset"])
    owner = np.repeat(content["id"], count)
    columns = (owner, content["residue_chain"], content["residue_number"], content["residue_insertion_code"])
    return [f"{name}:{chain}:{number}{str(code).strip()}" for name, chain, number, code in zip(*columns)]
