"""A downstream set before it is read: the origins of its three splits, its labels and its classes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..files import StoreError, StructureError, first_three
from ..protein.constants import ONE_LETTER
from ..reading.sources import Origin
from ..reading.store import ProteinStore, open_store
from .label_table import SPLITS as SPLITS
from .label_table import Row, residue_labels
from .samples import Samples, ValueSamples

HELD_OUT = 10  # of a table without splits, one structure in ten is for validation, one for test


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
    options: Mapping = field(default_factory=dict)  # arguments of the task (table)
    labels: Mapping = field(default_factory=dict)  # name -> its labels, see `with_labels` (table)
    split_of: Mapping = field(default_factory=dict)  # name -> its split; "" if its sequence decides (table)

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`); if its labels come from a table, of the proteins that have some.

        Raises StoreError if the proteins of a table leave none for this split.
        """
        store = open_store(getattr(self, split), **options)
        if store is None or not self.labels:
            return store
        split_of = split_by_sequence(store, self.split_of)
        chosen = {name: labels for name, labels in self.labels.items() if split_of[name] == split}
        if not chosen:
            problem = f"{len(split_of)} structures leave none for {split}, as those of one sequence stay together"
            raise StoreError(f"{store.path}: {problem}. A column `split` of the table says which to take")
        return with_labels(store, self.options["kind"], chosen)


def with_labels(store: ProteinStore, kind: str, table: Mapping[str, Sequence[Row]]) -> ProteinStore:
    """The proteins of a store that a table names, with its labels: name -> the rows of the table.

    Proteins that the store lacks, and those without any label, are left out; `not_found` says how many. `samples.py`
    lists what labels are made of. Raises StructureError if a residue is of another type in the table.
    """
    row_of = {name: row for row, name in enumerate(store.names)}
    made: dict[int, dict] = {}
    lost_residues = 0
    numbered_from_one = 0  # structures without a residue 1, though the table has one
    for name in sorted(table.keys() & row_of.keys()):
        rows = table[name]
        row = row_of[name]
        if rows[0].place:
            types = [ONE_LETTER[index] for index in store.read(row).residue_type.tolist()]
            labels = residue_labels(name, rows, store.positions(row), types)
            lost_residues += len(rows) - len(labels["values"])
            numbered_from_one += any(x.place == "1" and f"{x.chain}:1" not in labels["places"] for x in rows)
        else:
            labels = {"values": [rows[0].value]}
        if labels["values"]:
            made[row] = {"kind": kind, **labels}

    # What the table has and the store has not, in words.
    absent = sorted(table.keys() - {store.names[row] for row in made})
    lost = []
    if absent:
        lost.append(f"{len(absent)} structures ({first_three(absent)})")
    if lost_residues:
        lost.append(f"{lost_residues} labels of residues that are not in theirs")
    not_found = ", ".join(lost)
    if numbered_from_one:
        not_found += f". {numbered_from_one} structures have no residue 1, but the table has: are its numbers theirs?"
    return store.subset(made, not_found)


def split_by_sequence(store: ProteinStore, split_of: Mapping[str, str]) -> dict[str, str]:
    """The split of every name; a hash of its sequence decides if `split_of` has "". Copies are on one side.

    A tenth each is for validation and test, and at least one protein if no split was named. Sequences with more copies
    than that are for training.
    """
    sequence = {name: key for name, key in zip(store.names, store.sequences) if name in split_of}
    copies = Counter(key for name, key in sequence.items() if not split_of[name])
    size = copies.total() // HELD_OUT or int(not any(split_of.values()))
    largest, room, side = max(size, min(copies.values(), default=0)), {"test": size, "valid": size}, {}
    for key in sorted(copies):
        side[key] = next((split for split in room if room[split] > 0 and copies[key] <= largest), "train")
        if side[key] != "train":
            room[side[key]] -= copies[key]
    return {name: split or side.get(sequence.get(name), "train") for name, split in split_of.items()}


def remarks(datasets: Mapping[str, Samples]) -> list[str]:
    """What a user should know about the splits: labels without a structure, copies across splits, absent classes."""
    lines = [f"{split}, not found: {x.store.not_found}" for split, x in datasets.items() if x.store.not_found]
    known = {*datasets["train"].store.sequences} if "train" in datasets else {}
    for split, x in datasets.items():
        copies = sum(key in known for key in x.store.sequences)
        if copies and split != "train":
            lines.append(f"{copies} of {len(x.store)} structures in {split} have the sequence of one in train")
    for split in [split for split in ("train", "valid") if split in datasets]:
        classes = datasets[split].class_index
        targets = datasets[split].targets() if classes else np.zeros(0)
        there = targets.any(0) if targets.ndim == 2 else np.isin(range(len(classes)), targets)
        if absent := [name for name, occurs in zip(classes, there) if not occurs]:
            lines.append(f"{len(absent)} of {len(classes)} classes do not occur in {split}: {first_three(absent)}")
    return lines


def find_part(root, folders: Sequence[str], names: Sequence[str], what: str) -> Path:
    """The first of these files or folders, in the first of these folders of a set. Raises StructureError."""
    for path in (Path(root, folder, name) for folder in folders for name in names):
        if path.exists():
            return path
    raise StructureError(root, f"no {what}", f"expected {' or '.join(names)} there or in {folders[-1]}")
