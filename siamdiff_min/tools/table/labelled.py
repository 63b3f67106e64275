"""The data of a table: a store of structures, of which some have labels, and their splits."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from ...files import StoreError, StructureError, first_three
from ...protein.constants import ONE_LETTER
from ...reading.store import ProteinStore
from ...sets.labelled_set import SPLITS, LabelledData
from ...sets.samples import Samples, place_of
from .labels import Row
from .relatives import groups_of
from .samples import TableSamples

HELD_OUT = 10  # of a table without splits, one structure in ten is for validation, one for test


@dataclass(frozen=True)
class TableData(LabelledData):
    """Structures of one folder, and the rows of a table for them."""

    notes: list = field(default_factory=list)
    options: Mapping = field(default_factory=dict)  # arguments of the task
    labels: Mapping = field(default_factory=dict)  # name -> its labels, see `with_labels`
    split_of: Mapping = field(default_factory=dict)  # name -> its split; "" if its sequence decides
    family_of: Mapping = field(default_factory=dict)  # name -> what it belongs to, if the table says
    samples: type[Samples] = TableSamples
    groups: list = field(default_factory=list)  # once they are known, of every name its near copies, and its relatives
    learned: Collection[str] | None = None  # of a model that is scored: the sequences that it has learned from

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`), of the proteins that have labels.

        Near copies of a sequence, and a family of the table, count as one sequence. Relatives stay together too, as far
        as every split is left some. A model is scored on all that the table sends to no other split, and that it has
        not learned from. Raises StoreError if the proteins of a table leave none for this split.
        """
        store = super().open(split, **options)
        if store is None:
            return None
        if not self.groups:  # those of all splits
            self.groups.extend(groups_of(store, self.labels, self.family_of))
        copies, family = self.groups
        if self.learned is None:
            split_of = split_by_sequence(family, self.split_of)
            if not any(self.split_of.values()) and {*split_of.values()} < {*SPLITS}:
                split_of = split_by_sequence(copies, self.split_of)
        else:
            split_of = self.not_learned(store)
        chosen = {name: rows for name, rows in self.labels.items() if split_of[name] == split}
        if not chosen:
            problem = f"{len(split_of)} structures leave none for {split}, as those of one sequence stay together"
            raise StoreError(f"{store.path}: {problem}. A column `split` of the table says which to take")
        more = {name: {"kind": self.options["kind"], "copies": copies[name], "family": family[name]} for name in copies}
        return with_labels(store, chosen, more)

    def not_learned(self, store: ProteinStore) -> dict[str, str]:
        """The split of every name: without one in the table it is test, but for what a model has learned from.

        `notes` say how many that are. Raises StoreError if it is all.
        """
        learned = {*(self.learned or ())}
        known = [name for name, sequence in zip(store.names, store.sequences) if sequence in learned]
        known = [name for name in known if self.split_of.get(name) == ""]
        if len(known) == len(self.split_of):
            problem = f"the model has learned from all {len(known)} structures that have a label here"
            advice = "With a column `split` that says test they are scored all the same"
            raise StoreError(f"{store.path}: {problem}. {advice}")
        if known:
            which = f"{len(known)} structures that the model has learned from ({first_three(known)})"
            self.notes.append(f"left out: {which}")
        return {name: split or "test" for name, split in self.split_of.items()} | dict.fromkeys(known, "train")


def with_labels(
    store: ProteinStore, table: Mapping[str, Sequence[Row]], more: Mapping[str, Mapping[str, str]]
) -> ProteinStore:
    """The proteins of a store that a table names, with the labels of its rows, and `more` of each.

    Proteins that the store lacks, and those without any label, are left out; `not_found` says how many. `samples.py`
    lists what labels are made of. Raises StructureError if a residue is of another type in the table.
    """
    made: dict[int, dict] = {}
    absent = {*table}
    lost: list[str] = []
    for index, name in sorted(enumerate(store.names), key=itemgetter(1)):
        if name in table:
            labels = labels_of(store, index, table[name], lost)
            if labels["values"]:
                made[index] = {**more[name], **labels}
                absent.remove(name)
    not_found = []
    if absent:
        not_found.append(f"{len(absent)} structures ({first_three(sorted(absent))})")
    if lost:
        not_found.append(f"{len(lost)} labels of residues that are not in theirs ({first_three(lost)})")
    return store.subset(made, ", ".join(not_found))


def labels_of(store: ProteinStore, index: int, rows: Sequence[Row], lost: list[str]) -> dict[str, list]:
    """The labels of a protein, from the rows of its name. Residues that it lacks are added to what is `lost`."""
    if not rows[0].place:
        return {"values": [rows[0].value]}
    name = store.names[index]
    types = store.read(index).residue_type.tolist()
    row_of = {f"{row.chain}:{row.place}": row for row in rows}
    labels: dict[str, list] = {"values": [], "rows": [], "places": []}
    for i, position in enumerate(store.positions(index)):
        place = place_of(*position)
        row = row_of.pop(place, None)
        if row is None:
            continue
        letter = ONE_LETTER[types[i]]
        if row.residue not in ("", letter):
            reason = f"{place} is {letter}, but {row.residue} in row {row.number} of the table"
            raise StructureError(name, "residues are numbered differently", reason)
        labels["values"].append(row.value)
        labels["rows"].append(i)
        labels["places"].append(place)
    lost += [f"{name}:{place}" for place in row_of]
    return labels


def split_by_sequence(sequence_of: Mapping[str, str], split_of: Mapping[str, str]) -> dict[str, str]:
    """The split of every name; a hash of its sequence decides if `split_of` has "". Copies are on one side.

    A tenth each is for validation and test, and at least one protein if no split was named. Sequences with more copies
    than that are for training.
    """
    copies = Counter(sequence_of[name] for name, split in split_of.items() if not split and name in sequence_of)
    size = copies.total() // HELD_OUT
    if not any(split_of.values()):
        size = max(size, 1)
    largest = max(size, min(copies.values(), default=0))

    # In the order of the hashes: the first fill the test split, the next validation.
    room = {"test": size, "valid": size}
    side = {}
    for key in sorted(copies):
        split = next((split for split in room if room[split] > 0), None)
        if split and copies[key] <= largest:
            side[key] = split
            room[split] -= copies[key]
    return {name: split or side.get(sequence_of.get(name, ""), "train") for name, split in split_of.items()}


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
