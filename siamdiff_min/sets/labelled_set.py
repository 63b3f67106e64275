"""A downstream set before it is read: the origins of its three splits and its classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..files import StructureError, first_three
from ..reading.sources import Origin
from ..reading.store import ProteinStore, open_store
from .samples import Samples, ValueSamples

SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}  # split -> its names in data sets


@dataclass(frozen=True)
class LabelledData:
    """A downstream set: where its three splits come from. A split that was not asked for is None."""

    train: Origin | None = None
    valid: Origin | None = None
    test: Origin | None = None
    classes: tuple[str, ...] = ()  # their names, in the order of the outputs; empty for tasks without classes
    about: str = ""  # where the labels come from, for the user
    notes: Sequence[str] = ()  # what else to say of them
    samples: type[Samples] = ValueSamples  # from a store, the classes and --max-residues

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`)."""
        return open_store(getattr(self, split), **options)


def remarks(datasets: Mapping[str, Samples], learned: Sequence[str] = ("train",)) -> list[str]:
    """What to know of the splits: labels without a structure, copies of what is `learned`, absent classes."""
    lines = [f"{split}, not found: {x.store.not_found}" for split, x in datasets.items() if x.store.not_found]

    # Copies of what is learned.
    known = set()
    for split in learned:
        known |= {*datasets[split].store.sequences} if split in datasets else set()
    for split, x in datasets.items():
        copies = sum(key in known for key in x.store.sequences)
        if copies and split not in learned:
            where = " or ".join(learned)
            lines.append(f"{copies} of {len(x.store)} structures in {split} have the sequence of one in {where}")

    # Classes that cannot be learned, or not be judged.
    for split in ("train", "valid"):
        classes = datasets[split].class_index if split in datasets else ()
        if not classes:
            continue
        targets = datasets[split].targets()
        there = targets.any(0) if targets.ndim == 2 else np.isin(range(len(classes)), targets)
        absent = [name for name, occurs in zip(classes, there) if not occurs]
        if absent:
            lines.append(f"{len(absent)} of {len(classes)} classes do not occur in {split}: {first_three(absent)}")
    return lines


def alpha_carbons_alone(store: ProteinStore) -> str:
    """A sentence about the structures of alpha carbons alone, if there are some, for a model of all atoms; else ""."""
    found = []
    for index, name in enumerate(store.names):
        protein = store.read(index)
        if protein.num_atoms == protein.num_residues:
            found.append(name)
    lacking = store.lacking_backbone()
    if not found:
        return lacking and f"{lacking}, and this model reads all atoms"
    problem = f"{len(found)} of {len(store)} structures have alpha carbons alone ({first_three(found)})"
    advice = "and this model reads all atoms: its numbers mean nothing there. --level residue reads them"
    others = store.meta["lacking_backbone"][0] > len(found) if lacking else False
    return f"{problem}, {advice}; with these {lacking}" if others else f"{problem}, {advice}"


def find_part(root, folders: Sequence[str], names: Sequence[str], what: str) -> Path:
    """The first of these files or folders, in the first of these folders of a set. Raises StructureError."""
    for path in (Path(root, folder, name) for folder in folders for name in names):
        if path.exists():
            return path
    raise StructureError(root, f"no {what}", f"expected {' or '.join(names)} there or in {folders[-1]}")
