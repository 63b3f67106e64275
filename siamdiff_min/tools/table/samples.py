"""The samples of a table: its structures, or those of their residues that have labels; and structures to apply it to.

Beside every structure its store keeps `kind` and `values`: one of the structure, or of some residues, and then also
`rows`, which residues these are, and `places`, what their author calls them: chain and number.
"""

from dataclasses import replace

import numpy as np
import torch

from ...downstream.sample import Sample
from ...sets.samples import Unlabelled, ValueSamples, place_of


class TableSamples(ValueSamples):
    """A structure and its value, or K of its residues and their values."""

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, index = key
        labels = self.labels(index)
        if "places" not in labels:
            return super().__getitem__(key)
        name = self.store.names[index]
        start, length = self.window(epoch, index)
        sample = self.whole(index, torch.tensor(self.target(labels).tolist()), name, start, length)

        # Of labelled residues, those in the window.
        rows = torch.tensor(labels["rows"], dtype=torch.long)
        inside = ((rows >= start) & (rows < start + length)).nonzero()[:, 0]
        focus = torch.zeros_like(sample.focus)
        focus[rows[inside] - start] = True
        names = tuple(f"{name}:{labels['places'][i]}" for i in inside.tolist())
        return replace(sample, focus=focus, target=sample.target[inside], names=names, groups=(name,) * len(names))

    def first_row(self, index: int, last: int, random: np.random.Generator) -> int:
        """Where a window begins; a residue with a label is in it."""
        rows = self.labels(index).get("rows", ())
        if not len(rows):
            return super().first_row(index, last, random)
        row = int(rows[random.integers(len(rows))])
        first = max(0, row - self.max_residues + 1)
        return int(random.integers(first, min(last, row) + 1))

    @property
    def num_targets(self) -> int:
        return len(self.targets())


class UnlabelledResidues(Unlabelled):
    """Structures without labels, every residue with a name of its own."""

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        sample = super().__getitem__(key)
        (name,) = sample.names
        names = tuple(f"{name}:{place_of(*position)}" for position in self.store.positions(key[1]))
        target = sample.target.expand(len(names))
        return replace(sample, target=target, names=names, groups=(name,) * len(names))
