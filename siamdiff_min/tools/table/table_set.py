"""A task of the user's own: structures, and a table of labels for them or for their residues (docs/extending.md).

`labels.py` reads the table. Here its names meet the structures. A column `split` says what is for testing;
without it a hash of the sequence decides. One store of the structures serves all tables: labels are added as it is
opened.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from ...files import first_three, read_rows
from ...reading.sources import Source, find_structures, structure_files
from ...reading.store import FAILURES, ProteinStore, finished_store
from ...sets.labelled_set import SPLITS
from .faults import Faults
from .labelled import TableData
from .labels import Row, read_table, structure_called
from .values import DATE, POWER


def table_set(
    path,
    data,
    kind: str | None = None,
    needed: Sequence[str] = tuple(SPLITS),
    together: bool = False,
    **columns,
) -> TableData:
    """The three splits of the structures in `data` that the table at `path` names. Those not `needed` may be empty.

    With `together` all structures are in the test split. `read_table` says what kinds and columns there are.

    Raises StructureError: the table is malformed, or its names do not match the structures in `data`.
    """
    faults = Faults(path)
    table = read_table(path, kind, faults=faults, **columns)
    residues = bool(table.rows[0].place)
    store = finished_store(Path(data))
    sources = [] if store else find_structures(data).sources
    there = _names_in(store) if store else {source.name for source in sources}
    labels = _by_name(table.rows, residues, there, _by_file(sources), faults)

    # Do the names meet structures? Those of a table with chains may be files, of which each chain is read.
    files = {name.rpartition("_")[0] for name in labels}
    each_chain = not store and not residues and files <= there and not labels.keys() & there
    wanted = files if each_chain else {*labels}
    _match(wanted, data, there, faults)

    # What stays together, and the splits. If the sequence decides, that is known when the structures are read.
    family_of = _same_for_all(labels, "family", faults)
    split_of = dict.fromkeys(labels, "test") if together else _same_for_all(labels, "split", faults)
    empty = {*needed} - {*split_of.values()}
    if empty and "" not in split_of.values():
        faults.add("empty", f"{len(labels)} structures leave none for {' and '.join(sorted(empty))}")
    faults.check()

    # In words, for the user.
    count = f"{len(table.rows)} residues of {len(labels)}" if residues else f"{len(labels)}"
    unlabelled = sorted(there - wanted)
    if unlabelled:
        labelled = f"{len(there) - len(unlabelled)} of {len(there)} structures have a label"
        table.notes.append(f"{labelled}; without one: {first_three(unlabelled)}")
    splits = dict.fromkeys(SPLITS, structure_files(data, each_chain=each_chain))
    return TableData(
        **splits,
        classes=table.classes,
        about=f"{table.kind} on {count} structures, {path}: {table.about}",
        notes=table.notes,
        options={"kind": table.kind, "residues": residues, "each_chain": each_chain, **table.options},
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


def _by_name(
    rows: Sequence[Row], residues: bool, there: Set[str], files: Mapping[str, str], faults: Faults
) -> dict[str, list[Row]]:
    """The rows of every structure, or chain. It is a fault if two are of the same structure or residue.

    A row is of the structure in the file that it names, see `_by_file`, or else of one that is `there`.
    """
    labels = defaultdict(list)
    known = {}
    for row in rows:
        name = files.get(row.name) or structure_called(row.name, there)
        if row.chain and not residues:
            name += f"_{row.chain}"
        labels[name].append(row)
        first = known.setdefault((name, row.chain, row.place), row)
        if first is not row:
            faults.add("twice", f"row {row.number} is of {name}, like row {first.number}: give their mean in one")
    return labels


def _match(names: Set[str], data, there: Set[str], faults: Faults) -> None:
    """It is a fault if one of these names fits several structures of `there`, or none."""
    fitting = defaultdict(list)  # a file in several folders
    for name in sorted(there):
        fitting[name.rpartition("/")[2]].append(name)
    for name, several in fitting.items():
        if name in names and len(several) > 1 and not {*several} <= names:
            faults.add("several", f"a name that fits several structures ({name}: {first_three(several)})")

    missing = sorted(names - there)
    if not missing:
        return
    has = f"{data} has {len(there)}: {first_three(sorted(there))}"
    made = [name for name in missing if DATE.fullmatch(name) or POWER.fullmatch(name)]
    if made:
        has += f"; {made[0]} looks like what a spreadsheet made of a name: format its column as text"
    of = f"{len(missing)} of {len(names)}: {first_three(missing)}"
    faults.add("none", f"names that match no structure ({of}; {has})")


def _same_for_all(labels: Mapping[str, Sequence[Row]], field: str, faults: Faults) -> dict[str, str]:
    """The `split` or `family` of every structure; "" if none is said. It is a fault if its rows say different ones."""
    found = {}
    for name, rows in labels.items():
        found[name], *others = {getattr(row, field) for row in rows}
        if others:
            faults.add(field, f"{name} has more than one {field}")
    return found
