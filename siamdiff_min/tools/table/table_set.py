"""A task of the user's own: structures, and a table of labels for them or for their residues (docs/extending.md).

`labels.py` reads the table. Here its names meet the structures. A column `split` says what is for testing; without it
a hash of the sequence decides. One store of the structures serves all tables: labels are added as it is opened.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from ...files import StoreError, StructureError, first_three, read_rows
from ...protein.constants import ONE_LETTER
from ...reading.sources import Source, find_structures, structure_files
from ...reading.store import FAILURES, ProteinStore, finished_store
from ...sets.labelled_set import SPLITS, LabelledData
from ...sets.samples import Samples, place_of
from .labels import CLASSES, Faults, Row, Table, if_changed, read_table, structure_called
from .relatives import groups_of
from .samples import TableSamples

# Titles that others give to the columns `chain` and `number`. Without these, residues look like repeats.
TELLING = re.compile("res_?(id|i|num|seq|no)|residue.*|pos(ition)?|number|chain(s|_?id)", re.IGNORECASE)
HELD_OUT = 10  # of a table without splits, one structure in ten is for validation, one for test


@dataclass(frozen=True)
class TableData(LabelledData):
    """Structures of one folder, and the rows of a table for them."""

    notes: list = field(default_factory=list)
    options: Mapping = field(default_factory=dict)  # arguments of the task
    labels: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # of every structure
    split_of: Mapping[str, str] = field(default_factory=dict)  # of every structure; "" if its sequence decides
    family_of: Mapping[str, str] = field(default_factory=dict)  # what a structure belongs to, if the table says
    samples: type[Samples] = TableSamples
    groups: list = field(default_factory=list)  # once known: for every name its near copies and its relatives
    learned: Collection[str] | None = None  # of a model that is scored: the sequences that it has learned from

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of the labelled proteins of a split (see `open_store`).

        Near copies of a sequence, and a family of the table, count as one sequence. Relatives stay together too, as far
        as every split is left some. A model is scored on all that the table sends to no other split, and that it has
        not learned from. Raises StoreError if the proteins of a table leave none for this split.
        """
        store = super().open(split, **options)
        if store is None:
            return None
        if not self.groups:  # the groups of all splits
            self.groups.extend(groups_of(store, self.labels, self.family_of))
        copies, family = self.groups
        split_of = split_by_sequence(family, self.split_of)
        if not any(self.split_of.values()) and {*split_of.values()} < {*SPLITS}:
            split_of = split_by_sequence(copies, self.split_of)
        if self.learned is not None:
            split_of = {name: side or "test" for name, side in self.split_of.items()}
            split_of |= dict.fromkeys(self.left_out(store), "train")
        chosen = {name: rows for name, rows in self.labels.items() if split_of[name] == split}
        if not chosen:
            problem = f"{len(split_of)} structures leave none for {split}"
            reason = "those of one sequence stay together, and a model is not scored on what it has learned from"
            raise StoreError(f"{store.path}: {problem}: {reason}. A column `split` of the table says which to take")
        more = {name: {"kind": self.options["kind"], "copies": copies[name], "family": family[name]} for name in copies}
        return with_labels(store, chosen, more)

    def left_out(self, store: ProteinStore) -> list[str]:
        """The structures without a split that a model has learned from; `notes` say how many."""
        learned = {*(self.learned or ())}
        known = [name for name, sequence in zip(store.names, store.sequences) if sequence in learned]
        known = [name for name in known if self.split_of.get(name) == ""]
        if known:
            which = f"{len(known)} structures that the model has learned from ({first_three(known)})"
            self.notes.append(f"left out: {which}")
        return known


def table_set(
    path, data, kind: str | None = None, needed: Sequence[str] = tuple(SPLITS), together: bool = False, **columns
) -> TableData:
    """The three splits of the structures in `data` that the table at `path` names. Those not `needed` may be empty.

    With `together` all structures are in the test split. `read_table` says what kinds and columns there are.

    Raises StructureError: the table is malformed, or its names do not match the structures in `data`.
    """
    table = read_table(path, kind, **columns)
    store = finished_store(Path(data))
    sources = [] if store else find_structures(data).sources
    there = _names_in(store) if store else {source.name for source in sources}
    files = _by_file(sources)
    rows_of = defaultdict(list)  # the rows of every structure, chain or residue
    for row in table.rows:
        name = files.get(row.name) or structure_called(row.name, there)
        rows_of[f"{name}_{row.chain}" if row.chain else name, row.place].append(row)
    labels = defaultdict(list)
    for (name, _), rows in rows_of.items():
        labels[name].append(_averaged(name, rows, table))
    repeats = [len(rows) for rows in rows_of.values() if len(rows) > 1]
    if repeats:
        of = f"{sum(repeats)} rows are repeats, of {len(repeats)} structures or residues"
        table.notes.append(f"{of}: their mean is taken")

    # Do the names meet structures? They may be those of chains, 1ABC_A, of files that are read chain by chain.
    residues = bool(table.rows[0].place)
    wanted = {name.rpartition("_")[0] for name in labels}
    each_chain = not store and not residues and wanted <= there and not labels.keys() & there
    if not each_chain:
        wanted = {*labels}
    _match(wanted, data, there, table.faults)

    # Of every structure the split and the family. If its sequence decides, that is known when it has been read.
    split_of = {}
    family_of = {}
    for name, rows in labels.items():
        split_of[name], *splits = {row.split for row in rows}
        family_of[name], *families = {row.family for row in rows}
        if splits or families:
            table.faults.add("differ", f"{name} has more than one {'split' if splits else 'family'}")
    if together:
        split_of = dict.fromkeys(labels, "test")
    empty = {*needed} - {*split_of.values()}
    if empty and "" not in split_of.values():
        table.faults.add("empty", f"{len(labels)} structures leave none for {' and '.join(sorted(empty))}")
    table.faults.check()

    # In words, for the user.
    properties = [] if table.kind in CLASSES else [*table.classes]
    of_columns = {"column": ", ".join(columns.get("value_column") or ()), "properties": properties}
    count_of_rows = f"{len(rows_of)} residues of {len(labels)}" if residues else f"{len(labels)}"
    unlabelled = sorted(there - wanted)
    if unlabelled:
        labelled = f"{len(there) - len(unlabelled)} of {len(there)} structures have a label"
        table.notes.append(f"{labelled}; without one: {first_three(unlabelled)}")
    return TableData(
        **dict.fromkeys(SPLITS, structure_files(data, each_chain)),
        classes=table.classes,
        about=f"{table.kind} on {count_of_rows} structures, {path}: {table.about}",
        notes=table.notes,
        options={"kind": table.kind, "residues": residues, "each_chain": each_chain, **of_columns},
        labels=labels,
        split_of=split_of,
        family_of=family_of,
    )


def _names_in(store: Path) -> set[str]:
    """The names of all sources of a finished store: its proteins, and what was not read or not wanted."""
    _, *failures = read_rows(store / FAILURES).values()
    return {*ProteinStore(store).names, *(name for name, *_ in failures)}


def _by_file(sources: Iterable[Source]) -> dict[str, str]:
    """The name of the structure in each file, by the file's name, alone or after some of its folders.

    A file name that several structures have is left out.
    """
    found = defaultdict(set)
    for source in sources:
        parts = (source.member or source.path).split("/")
        for k in range(len(parts)):
            found["/".join(parts[k:])].add(source.name)
    return {file: names.pop() for file, names in found.items() if len(names) == 1}


def _averaged(name: str, rows: Sequence[Row], table: Table) -> Row:
    """The rows of one structure or residue as one, with their mean value. Rows that differ otherwise are a fault."""
    first = rows[0]
    if len(rows) == 1:
        return first
    of_classes = table.kind in CLASSES
    value = first.value if of_classes else _mean([row.value for row in rows])
    said = {(row.split, row.family, str(row.value) if of_classes else "") for row in rows}
    which = f"rows {first_three([str(row.number) for row in rows])} are of {name}"
    if len(said) > 1 or (table.kind == "binary" and any(0 < x < 1 for x in np.ravel(value))):
        table.faults.add("repeats", f"{which}, but differ: keep one")
    for title in filter(TELLING.fullmatch, table.unread):
        needed = f"labels of residues need columns 'chain' and 'number', there is {title!r}"
        table.faults.add("titles", f"{which}: {needed}")
    return replace(first, value=value)


def _mean(values: Sequence) -> float | list[float]:
    """The mean of numbers, without nan; of lists of them the mean of each place."""
    if isinstance(values[0], list):
        return [_mean(of_column) for of_column in zip(*values)]
    there = [value for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else math.nan


def _match(names: Set[str], data, there: Set[str], faults: Faults) -> None:
    """It is a fault if one of these names fits several structures of `there`, or none."""
    fitting = defaultdict(list)  # a file in several folders
    for name in sorted(there):
        fitting[name.rpartition("/")[2]].append(name)
    for name, several in fitting.items():
        if name in names and len(several) > 1 and not {*several} <= names:
            faults.add("several", f"a name that fits several structures ({name}: {first_three(several)})")
    missing = sorted(names - there)
    if missing:
        of = f"{len(missing)} of {len(names)}: {first_three(missing)}"
        has = f"{data} has {len(there)}: {first_three(sorted(there))}"
        changed = next(filter(None, map(if_changed, missing)), "")
        faults.add("none", f"names that match no structure{changed} ({of}; {has})")


# ---- labels of a store -----------------------------------------------------------------------------------------------


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
    row_of = {row.place: row for row in rows}
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


# ---- splits ----------------------------------------------------------------------------------------------------------


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


def remarks(datasets: Mapping[str, Samples]) -> list[str]:
    """What to know of the splits: labels without a structure, classes that cannot be learned, or not be judged."""
    lines = [f"{split}, not found: {x.store.not_found}" for split, x in datasets.items() if x.store.not_found]
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
