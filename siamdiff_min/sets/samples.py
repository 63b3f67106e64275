"""Labelled samples of the downstream tasks: from a store to `Sample`s (Sec. 5.1).

A sample is a pure function of (epoch, index). Beside every protein a store keeps a dict of labels. Rows in it count the
residues, or atoms, of the entry from 0:

    ec      kind "labels" (several classes at once); values: the classes of the protein as a list, in a list
    psr     kind "regression"; values: GDT_TS in [0, 1], in a list; target: the protein that this is a model of
    msp     first: number of residues of the wild type, which come before those of the mutant; mutated: rows of the
            mutated residues, [wild type, mutant]; label: 1 if the mutation stabilises the complex, else 0
    pip     first: number of residues of the first protein; pairs (K, 2): rows of the positive pairs; ambiguous: rows of
            residues never taken for negatives
    res     residues: rows of the central residues; ends, packed: rows of the atoms around each (`pack_lists`)
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..downstream.sample import Sample, pack_samples
from ..files import StoreError
from ..protein.constants import CA, O
from ..protein.geometry import length
from ..protein.protein import Protein
from ..reading.store import ProteinStore


class Samples(torch.utils.data.Dataset):
    """`samples[epoch, index] -> Sample`; `len(samples)` is the same in every epoch.

    Args:
        store: entries with the labels of this task.
        classes: their names, in the order of the outputs (EC).
        max_residues: of each structure, only so many residues: those nearest to the mutation (MSP), or a window that is
            drawn anew in every epoch (EC, PSR). None for all.

    Raises StoreError if there is no sample.
    """

    collate = staticmethod(pack_samples)

    def __init__(self, store: ProteinStore, classes: Sequence[str] = (), max_residues: int | None = None):
        self.store = store
        self.max_residues = max_residues
        self.checksum = store.checksum
        self.class_index = {name: i for i, name in enumerate(classes)}

        # Of every sample, its entry in the store and its number there.
        counts = [self.count(i) for i in range(len(store))]
        if not sum(counts):
            reason = f"not found: {store.not_found}" if store.not_found else f"{len(store)} structures give none"
            raise StoreError(f"{store.path}: a split without any sample ({reason})")
        self.entry = np.repeat(np.arange(len(store)), counts)
        first_of_entry = np.cumsum([0, *counts[:-1]])
        self.within = np.arange(len(self.entry)) - first_of_entry[self.entry]

    def __len__(self) -> int:
        return len(self.entry)

    @property
    def num_targets(self) -> int:
        """How many things are predicted: one for every sample, or several of a structure."""
        return len(self)

    def count(self, index: int) -> int:
        """How many samples an entry of the store gives."""
        return 1

    def labels(self, index: int) -> dict:
        """The labels of an entry. Raises StoreError if it has none."""
        labels = self.store.labels(index)
        if not labels:
            raise StoreError(f"{self.store.path}: {self.store.names[index]} has no labels, it is a plain structure")
        return labels

    def group(self, index: int) -> str:
        """The structure that an entry is of: what is drawn again as a whole."""
        return self.store.names[index]

    def targets(self) -> np.ndarray:
        """All targets (K, ...), for `Task.fit`; empty for tasks that do not need them."""
        return np.zeros(0)

    def sides(self, index: int, first: int) -> list[Protein]:
        """The two structures of an entry: its `first` residues, and the others."""
        return [self.store.read(index, 0, first), self.store.read(index, first)]

    def whole(self, index: int, target: Tensor, group: str, start: int = 0, length: int | None = None) -> Sample:
        """A sample that is one whole structure, or `length` residues of it."""
        protein = self.store.read(index, start, length)
        focus = torch.ones(protein.num_residues, dtype=torch.bool)
        return Sample(protein, focus, target, (self.store.names[index],), (group,))


class Unlabelled(Samples):
    """Structures without labels, from any store."""

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        return self.whole(key[1], torch.full((1,), torch.nan), "")


def place_of(chain: str, number: int, code: str) -> str:
    """A residue in the words of its author: chain, number and insertion code."""
    return f"{chain}:{number}{code.strip()}"


class ValueSamples(Samples):
    """EC and PSR: a structure and its value."""

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, index = key  # one sample per entry
        target = torch.tensor(self.target(self.labels(index)).tolist())
        return self.whole(index, target, self.group(index), *self.window(epoch, index))

    def group(self, index: int) -> str:
        return self.labels(index).get("target", self.store.names[index])

    def window(self, epoch: int, index: int) -> tuple[int, int]:
        """First residue and length of what is kept of an entry: at most `max_residues`."""
        size = self.store.num_residues(index)
        if self.max_residues is None or size <= self.max_residues:
            return 0, size
        random = np.random.default_rng([0, epoch, index])
        return self.first_row(index, size - self.max_residues, random), self.max_residues

    def first_row(self, index: int, last: int, random: np.random.Generator) -> int:
        """Where a window begins, `last` at most."""
        return int(random.integers(last + 1))

    def target(self, labels: dict) -> np.ndarray:
        """The values of an entry: (K,) numbers or indices of classes, (K, C) 0 or 1 for several classes at once."""
        kind, values = labels["kind"], labels["values"]
        if kind == "classes":
            return np.array([self.class_index[name] for name in values])
        if kind != "labels":
            return np.array(values, dtype=np.float64)
        target = np.zeros((len(values), len(self.class_index)), dtype=np.float32)
        for row, present in zip(target, values):
            row[[self.class_index[name] for name in present if name in self.class_index]] = 1
        return target

    def targets(self) -> np.ndarray:
        """The values of all structures."""
        return np.concatenate([self.target(self.labels(i)) for i in range(len(self))])


class MutationSamples(Samples):
    """MSP: a complex and its mutant, and whether the mutation stabilises it (1.0) or not."""

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        _, index = key
        labels = self.labels(index)
        name = self.store.names[index]
        first = labels["first"]
        sides = []
        for protein, start, rows in zip(self.sides(index, first), (0, first), labels["mutated"], strict=True):
            focus = torch.zeros(protein.num_residues, dtype=torch.bool)
            focus[torch.tensor(rows) - start] = True
            sides.append(self._around(protein, focus))
        return _pair(sides, labels["label"], name, self.group(index))

    def group(self, index: int) -> str:
        """The complex: its mutations are not independent."""
        return re.sub(r"_[^_]+$", "", self.store.names[index].partition("#")[0])

    def targets(self) -> np.ndarray:
        return np.array([float(self.labels(i)["label"]) for i in range(len(self))])

    def _around(self, protein: Protein, focus: Tensor) -> tuple[Protein, Tensor]:
        """The `max_residues` residues nearest to those in focus (by CA), file order."""
        if self.max_residues is None or protein.num_residues <= self.max_residues:
            return protein, focus
        ca = protein.pos[protein.atom_name == CA]
        distance = length(ca[:, None] - ca[focus]).amin(1)
        keep = torch.zeros_like(focus)
        keep[distance.argsort(stable=True)[: self.max_residues]] = True
        return protein.select_residues(keep), focus[keep]


class EnvironmentSamples(Samples):
    """RES: the surroundings of a residue that shows its backbone alone (differences.md, row 24), and its type."""

    def count(self, index: int) -> int:
        return len(self.labels(index)["residues"])

    def targets(self) -> np.ndarray:
        types = []
        for i in range(len(self.store)):
            centres = self.labels(i)["residues"]
            types.append(self.store.read(i).residue_type[centres])
        return torch.cat(types).numpy()

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        _, sample = key
        index = int(self.entry[sample])
        number = int(self.within[sample])
        labels = self.labels(index)
        centre = labels["residues"][number]

        # The atoms around it, and its own backbone.
        protein = self.store.read(index)
        near = torch.zeros(protein.num_atoms, dtype=torch.bool)
        near[unpack_list(labels, number)] = True
        central = protein.atom_residue == centre
        keep = torch.where(central, protein.atom_name <= O, near)
        protein, focus = _with_atoms(protein, keep, centre)

        # Hidden twice: marked as masked, and without a type that anything could read.
        target = protein.residue_type[focus]
        hidden = protein.residue_type.masked_fill(focus, 0)
        protein = replace(protein, masked=focus, residue_type=hidden)
        group = self.store.names[index]
        name = f"{group}:{place_of(*self.store.positions(index)[centre])}"
        return Sample(protein, focus, target, (name,), (group,))


class InterfaceSamples(Samples):
    """PIP: do two residues touch (1.0)? Each in 30 angstrom of surroundings; up to 10 pairs and others an epoch."""

    positives = 10  # of a complex and epoch (App. D)
    radius = 30.0  # angstrom around the CA

    def count(self, index: int) -> int:
        """Twice the smallest of three numbers: `positives`, positive pairs, all other pairs."""
        labels = self.labels(index)
        positive = labels["pairs"].numpy()
        never = np.array(labels["ambiguous"], dtype=int)

        # Pairs of a residue of each side, without the ambiguous ones, that do not touch.
        left = labels["first"]
        right = self.store.num_residues(index) - left
        left_ambiguous = (never < left).sum()
        pairs = (left - left_ambiguous) * (right - (len(never) - left_ambiguous))
        others = pairs - (~np.isin(positive, never).any(1)).sum()
        return 2 * int(min(self.positives, len(positive), others))

    def targets(self) -> np.ndarray:
        return np.tile([1.0, 0.0], len(self) // 2)

    def pairs(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of residues (K, 2) and whether they touch (K,), positives first: the same in runs of any seed."""
        labels = self.labels(index)
        first = labels["first"]
        size = self.store.num_residues(index)
        half = self.count(index) // 2
        random = np.random.default_rng([0, epoch, index])
        positive = labels["pairs"].numpy().astype(np.int64)
        chosen = positive[random.permutation(len(positive))[:half]]

        # As many others are drawn until they neither touch nor are ambiguous.
        taken = set(map(tuple, positive.tolist()))
        never = set(labels["ambiguous"])
        negative = []
        while len(negative) < half:
            i = int(random.integers(first))
            j = int(random.integers(first, size))
            if (i, j) not in taken and i not in never and j not in never:
                taken.add((i, j))
                negative.append((i, j))
        pairs = np.concatenate([chosen, np.array(negative, dtype=np.int64).reshape(-1, 2)])
        return pairs, np.repeat([1.0, 0.0], half)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        epoch, sample = key
        index = int(self.entry[sample])
        number = int(self.within[sample])
        pairs, touch = self.pairs(epoch, index)
        left, right = pairs[number].tolist()
        first = self.labels(index)["first"]
        name = self.store.names[index]
        sides = []
        for protein, residue in zip(self.sides(index, first), (left, right - first), strict=True):
            ca = protein.pos[(protein.atom_residue == residue) & (protein.atom_name == CA)]
            sides.append(_with_atoms(protein, length(protein.pos - ca) <= self.radius, residue))
        return _pair(sides, touch[number], f"{name}:{left}-{right}", name)


def _pair(sides: list[tuple[Protein, Tensor]], target: float, name: str, group: str) -> Sample:
    """A sample of two structures, each with its residues in focus."""
    proteins, focus = zip(*sides, strict=True)
    return Sample(Protein.pack([*proteins]), torch.cat(focus), torch.tensor([float(target)]), (name,), (group,))


def _with_atoms(protein: Protein, keep: Tensor, centre: int) -> tuple[Protein, Tensor]:
    """The protein of the atoms for which `keep` (N,) is True; and (R,), True for the residue that was `centre`."""
    focus = torch.arange(protein.num_residues) == centre
    kept = torch.zeros(protein.num_residues, dtype=torch.bool)
    kept[protein.atom_residue[keep]] = True
    return protein.select_atoms(keep).select_residues(kept), focus[kept]


def pack_lists(lists: Sequence[np.ndarray]) -> dict:
    """Labels `ends` and `packed` of lists of atoms (rows): nearly all steps are 1, so 440 atoms take 80 bytes."""
    packed = [zlib.compress(np.diff(rows, prepend=0).astype("<i4").tobytes()) for rows in lists]
    together = np.frombuffer(bytearray(b"".join(packed)), np.uint8)
    return {"ends": list(accumulate(map(len, packed))), "packed": torch.from_numpy(together)}


def unpack_list(labels: dict, number: int) -> Tensor:
    """The rows of list `number`."""
    first, last = [0, *labels["ends"]][number : number + 2]
    steps = np.frombuffer(zlib.decompress(labels["packed"][first:last].numpy()), "<i4")
    return torch.from_numpy(steps.cumsum())


SAMPLES = {
    "ec": ValueSamples,
    "psr": ValueSamples,
    "msp": MutationSamples,
    "pip": InterfaceSamples,
    "res": EnvironmentSamples,
}
