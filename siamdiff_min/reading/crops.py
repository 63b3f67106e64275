"""Random crops of the proteins of a store, their batches, and the split into training and validation.

A crop is a contiguous window of residues (App. D). It is a pure function of (seed, epoch, index): the number of loader
workers changes nothing, and a resumed run draws what the uninterrupted one would have drawn.
"""

from pathlib import PurePath

import numpy as np
import torch

from ..protein.protein import Protein
from .sources import bundle_index
from .store import ProteinStore


class Crops(torch.utils.data.Dataset):
    """Windows of at most `max_length` residues: `crops[epoch, index] -> (Protein, name)`.

    Args:
        store: the proteins.
        max_length: residues, at least 1; None for whole proteins.
        seed: not negative.
        draw_last_window: False for the official code's behaviour, which never draws the last window of a protein
            (differences.md, row 19); every window is equally likely either way.
    """

    def __init__(self, store: ProteinStore, max_length: int | None, seed: int, draw_last_window: bool = True):
        self.store, self.max_length, self.seed, self.draw_last_window = store, max_length, seed, draw_last_window
        self.checksum = store.checksum

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Protein, str]:
        epoch, index = key
        start, length = self.window(epoch, index)
        return self.store.read(index, start, length), self.store.name(index)

    def window(self, epoch: int, index: int) -> tuple[int, int]:
        """First residue and length of the crop."""
        size = self.store.num_residues(index)
        if self.max_length is None or size <= self.max_length:
            return 0, size
        windows = size - self.max_length + self.draw_last_window
        random = np.random.default_rng([self.seed, epoch, index])
        return int(random.integers(windows)), self.max_length

    @staticmethod
    def collate(items: list[tuple[Protein, str]]) -> tuple[Protein, list[str]]:
        """A batch: the proteins packed into one `Protein`, and their names."""
        proteins, names = zip(*items, strict=True)
        return Protein.pack(list(proteins)), list(names)


def split(store: ProteinStore, valid_fraction: float) -> tuple[list[int], list[int]]:
    """Indices for training and for validation, both sorted.

    The bundled structures have a split of their own (by groups of 30 % sequence identity, complexes included; their
    test entries are in neither). In other stores a hash of the sequence decides, so that copies are on one side, and
    stay there when others come or go; about `valid_fraction` of all sequences are for validation.
    """
    sides = []
    bundle = bundle_index()
    if len(store) == len(bundle):  # a list of the names of a large store would take memory
        side_of = {PurePath(row["file"]).name.removesuffix(".pdb.gz"): row["split"] for row in bundle}
        if side_of.keys() == {*store.names}:
            sides = [side_of[name] for name in store.names]
    if not sides:
        sides = ["valid" if int(key, 16) < valid_fraction * 16 ** len(key) else "train" for key in store.sequences]
    train, valid = ([row for row, of_row in enumerate(sides) if of_row == side] for side in ("train", "valid"))
    return train, valid
