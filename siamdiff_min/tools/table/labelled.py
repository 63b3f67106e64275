"""The data of a table: a store of structures, of which some have labels, and their splits."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...files import StoreError, first_three
from ...protein.constants import ONE_LETTER
from ...reading.store import ProteinStore
from ...sets.labelled_set import SPLITS, LabelledData
from ...sets.samples import Samples, place_of
from .labels import Row, residue_labels
from .relatives import groups_of
from .samples import TableSamples

HELD_OUT = 10  # of a table without splits, one structure in ten is for validation, one for test


@dataclass(frozen=True)
class TableData(LabelledData):
    """Structures of one folder, and the rows of a table for them."""

    options: Mapping = field(default_factory=dict)  # arguments of the task
    labels: Mapping = field(default_factory=dict)  # name -> its labels, see `with_labels`
    split_of: Mapping = field(default_factory=dict)  # name -> its split; "" if its sequence decides
    family_of: Mapping = field(default_factory=dict)  # name -> what it belongs to, if the table says
    samples: type[Samples] = TableSamples
    groups: list = field(default_factory=list)  # once they are known, of every name its near copies, and its relatives

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`), of the proteins that have labels.

        Near copies of a sequence, and a family of the table, count as one sequence. Relatives stay together too, as far
        as every split is left some. Raises StoreError if the proteins of a table leave none for this split.
        """
        store = super().open(split, **options)
        if store is None:
            return None
        if not self.groups:  # those of all splits
            found = groups_of(store, self.labels, self.family_of)
            self.groups.extend(dict(zip(store.names, names)) for names in found)
        copies, family = self.groups
        split_of = split_by_sequence(family, self.split_of)
        if len(set(split_of.values())) < len(SPLITS) and not any(self.split_of.values()):
            split_of = split_by_sequence(copies, self.split_of)
        chosen = {name: labels for name, labels in self.labels.items() if split_of[name] == split}
        if not chosen:
            problem = f"{len(split_of)} structures leave none for {split}, as those of one sequence stay together"
            raise StoreError(f"{store.path}: {problem}. A column `split` of the table says which to take")
        more = {name: {"copies": copies[name], "family": family[name]} for name in store.names}
        return with_labels(store, self.options["kind"], chosen, more)


def with_labels(
    store: ProteinStore, kind: str, table: Mapping[str, Sequence[Row]], more: Mapping[str, Mapping]
) -> ProteinStore:
    """The proteins of a store that a table names, with its labels: name -> the rows of the table, and `more`.

    Proteins that the store lacks, and those without any label, are left out; `not_found` says how many. `samples.py`
    lists what labels are made of. Raises StructureError if a residue is of another type in the table.
    """
    made: dict[int, dict] = {}
    places_of = {}
    for index, name in sorted(enumerate(store.names), key=lambda item: item[1]):
        if name in table:
            labels = labels_of(store, index, table[name])
            places_of[name] = [place_of(*position) for position in store.positions(index)]
            if labels["values"]:
                made[index] = {"kind": kind, **more[name], **labels}
    absent = table.keys() - {store.names[index] for index in made}
    return store.subset(made, not_found(table, places_of, sorted(absent)))


def labels_of(store: ProteinStore, index: int, rows: Sequence[Row]) -> dict:
    """The labels of a protein of the store, from the rows of its name."""
    if not rows[0].place:
        return {"values": [rows[0].value]}
    types = [ONE_LETTER[residue] for residue in store.read(index).residue_type.tolist()]
    return residue_labels(store.names[index], rows, store.positions(index), types)


def not_found(table: Mapping[str, Sequence[Row]], places_of: Mapping[str, Sequence[str]], absent: Sequence[str]) -> str:
    """What the table has and the structures have not, in words.

    `places_of` has the residues of every structure that is there; `absent` are structures without any label.
    """
    lost = 0
    no_residue_one = set()
    other_case = {}
    for name in sorted(places_of):
        places = {*places_of[name]}
        chains = {place.partition(":")[0] for place in places}
        for row in table[name]:
            if not row.place or f"{row.chain}:{row.place}" in places:
                continue
            lost += 1
            if row.chain not in chains and row.chain.swapcase() in chains:
                other_case.setdefault(name, row.chain)
            elif row.place == "1":
                no_residue_one.add(name)

    parts = []
    if absent:
        parts.append(f"{len(absent)} structures ({first_three(absent)})")
    if lost:
        parts.append(f"{lost} labels of residues that are not in theirs")
    words = ", ".join(parts)
    if no_residue_one:
        words += f". {len(no_residue_one)} structures have no residue 1, but the table has: are its numbers theirs?"
    if other_case:
        name, chain = next(iter(other_case.items()))
        words += f". {len(other_case)} structures have no chain {chain!r}, but {chain.swapcase()!r} ({name})"
    return words


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
        open_splits = [split for split in room if room[split] > 0]
        if open_splits and copies[key] <= largest:
            side[key] = open_splits[0]
            room[side[key]] -= copies[key]

    by_sequence = {name: side.get(sequence_of.get(name, ""), "train") for name in split_of}
    return {name: split or by_sequence[name] for name, split in split_of.items()}
