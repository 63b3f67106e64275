"""Vectors of a user's own in place of an encoder's: `finetune --features vectors.npz`."""

from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ...downstream.sample import Sample
from ...files import ConfigError, first_three, structure_errors
from ...sets.samples import place_of
from .labels import structure_called


class GivenFeatures(nn.Module):
    """The vectors of an .npz as `siamdiff embed` writes it: `id` and `mean`, or of residues `per_residue`.

    An id may be the file name of one of the structures that are `there`. Raises StructureError for another file, and
    for one that has a name twice.
    """

    def __init__(self, path: str, residues: bool, there: Collection[str] = ()):
        super().__init__()
        self.path = path
        title = "per_residue" if residues else "mean"
        reason = "no vectors as siamdiff embed --out NAME.npz writes them"
        with structure_errors(path, reason), np.load(path, allow_pickle=False) as content:
            self.vectors = content[title].astype(np.float32)
            names = np.char.decode(content["id"]) if content["id"].dtype.kind == "S" else content["id"].astype(str)
            names = [structure_called(name, there) if there else name for name in names.tolist()]
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"{len(twice)} structures are there twice: {first_three(twice)}")
            if residues:
                names = of_residues(names, content)
            if self.vectors.ndim != 2 or len(names) != len(self.vectors):
                raise ValueError(f"{title} is {self.vectors.shape}, expected a row for each of {len(names)}")
        self.row_of = {name: row for row, name in enumerate(names)}
        self.out_dim = self.vectors.shape[1]

    def represent(self, sample: Sample) -> Tensor:
        """The vectors (B, out_dim) of the samples. Raises ConfigError as `of`."""
        return self.of(sample.names).to(sample.target.device)

    def of(self, names: Collection[str]) -> Tensor:
        """The vectors (B, out_dim) of these names. Raises ConfigError if one has none, or one that is not finite."""
        none = np.full(self.out_dim, np.nan, dtype=np.float32)
        found = [self.vectors[self.row_of[name]] if name in self.row_of else none for name in names]
        absent = [name for name, vector in zip(names, found) if not np.isfinite(vector).all()]
        if absent:
            raise ConfigError(f"--features {self.path} has no finite vector of {first_three(absent)}")
        return torch.from_numpy(np.stack(found))


def of_residues(names: list[str], content: Mapping[str, np.ndarray]) -> list[str]:
    """The names of all residues as samples have them: NAME:CHAIN:NUMBER and insertion code."""
    owner = np.repeat(names, np.diff(content["residue_offset"]))
    positions = zip(*(content[f"residue_{column}"] for column in ("chain", "number", "insertion_code")))
    return [f"{name}:{place_of(*position)}" for name, position in zip(owner, positions)]
