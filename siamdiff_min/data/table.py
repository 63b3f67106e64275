"""A task of the user's own: structures, and a table of labels for them or for their residues (docs/extending.md).

    name    value           name    chain   number  value
    1abc    3.2             1abc    A       52      0.7
    2def    -1.5            1abc    A       52A     0.1

The table is text with tabs, commas or semicolons; cells may be in quotes. A column `split` may say train, valid or
test; without it a hash of the sequence decides. One store of the structures serves all tables: labels are added as it
is opened.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import Path

from ..files import StructureError, first_three, read_rows, structure_errors, unescape
from .labelled import SPLITS, LabelledData
from .sources import find_structures, structure_files, without_ending
from .store import FAILURES, ProteinStore, finished_store

SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names} | {"": ""}
SMALLEST, LARGEST = 1.2e-38, 3.4e38  # sizes of numbers in float32, in which targets are kept


def table_set(table, data, kind: str | None = None, needed: Sequence[str] = tuple(SPLITS)) -> LabelledData:
    """The three splits of the structures in `data` that the file `table` names. Splits not `needed` may be empty.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of classes at
            once, with commas); by default what the values look like.

    Raises:
        StructureError: the table is malformed, or names a structure that is not in `data`.
    """
    rows = read_table(table)
    with structure_errors(table, "malformed table"):
        kind = kind or _looks_like([row["value"] for row in rows])
        classes, values = _values([row["value"] for row in rows], kind)
    residues, listed = "number" in rows[0], {}
    for row, value in zip(rows, values, strict=True):
        name = f"{row['name']}_{row['chain']}" if "chain" in row and not residues else row["name"]
        listed.setdefault(name, []).append(row | {"value": value})
    store = finished_store(Path(data))
    there = _names_in(store) if store else {source.name for source in find_structures(data).sources}
    files = {name.rpartition("_")[0] for name in listed}
    each_chain = not store and not residues and files <= there and not listed.keys() & there
    _match(table, files if each_chain else listed.keys(), data, there)
    origin, split_of = structure_files(data, each_chain=each_chain), _splits(table, listed, needed)
    labels = {
        name: [(line.get("chain"), line.get("number"), line["value"]) for line in lines]
        for name, lines in listed.items()
    }
    count = f"{len(rows)} residues of {len(listed)}" if residues else f"{len(listed)}"
    about = f"{kind} on {count} structures, {table}" + (f"; {len(classes)} classes" if classes else "")
    if unlabelled := sorted(there - listed.keys() - (files if each_chain else set())):
        about += f"; {len(unlabelled)} structures have no label ({first_three(unlabelled)})"
    options = {"kind": kind, "residues": residues}
    return LabelledData(origin, origin, origin, classes, about, options=options, labels=labels, split_of=split_of)


def _match(table, names: Set[str], data, there: Set[str]) -> None:
    """Raise StructureError if one of these names fits several structures of `there`, or none."""
    fitting = defaultdict(list)  # a file in several folders
    for name in sorted(there):
        fitting[name.rpartition("/")[2]].append(name)
    for name in sorted(names & fitting.keys()):
        if len(fitting[name]) > 1 and not names >= {*fitting[name]}:
            raise StructureError(table, "a name that fits several structures", f"{name}: {first_three(fitting[name])}")
    if missing := sorted(names - there):
        written = {name.casefold(): name for name in there}
        others = [f"; {name} is {written[name.casefold()]} there" for name in missing if name.casefold() in written]
        detail = f"{len(missing)} of {len(names)}: {first_three(missing)}; {data} has {len(there)}"
        detail += f": {first_three(sorted(there))}{''.join(others[:1])}"
        raise StructureError(table, "names that match no structure", detail)


def _names_in(store: Path) -> set[str]:
    """The names of all sources of a finished store: its proteins, and what was not read or not wanted."""
    failures = (store / FAILURES).read_text("utf-8").split("\n")[1:-1]
    return {*ProteinStore(store).names, *(unescape(row.partition("\t")[0]) for row in failures)}


def read_table(path) -> list[dict[str, str]]:
    """The rows of a table of labels as text, by column; names without extensions. Raises StructureError."""
    header, *lines = read_rows(path, "\t,;") or [[]]
    with structure_errors(path, "malformed table"):
        columns = {"name", "value"}, {"name", "chain", "value"}, {"name", "chain", "number", "value"}
        if set(header) - {"split"} not in columns or len(header) != len(set(header)):
            raise ValueError(f"columns {header!r:.100}, expected name, value; of residues name, chain, number, value")
        rows, seen = [], set()
        for number, line in enumerate(lines, 1):
            if len(line) != len(header):
                raise ValueError(f"row {number} has {len(line)} columns of {len(header)}: {line!r:.100}")
            row = dict(zip(header, line, strict=True))
            row["name"] = without_ending(row["name"])
            key = row["name"], row.get("chain"), row.get("number")
            wrong = {
                "a second one of its name": key in seen,
                "without a residue number": not re.fullmatch("-?[0-9]+[A-Za-z]?", row.get("number", "0")),
                "of no split, expected train, valid or test": row.get("split", "") not in SPLIT_OF,
            }
            for reason, applies in wrong.items():
                if applies:
                    raise ValueError(f"row {number} is {reason}: {line!r:.100}")
            seen.add(key)
            rows.append(row)
        if not rows:
            raise ValueError("no rows in it")
    return rows


def _values(texts: list[str], kind: str) -> tuple[tuple[str, ...], list]:
    """The names of the classes, and the values in the rows. Raises ValueError if a value is not of this kind."""
    if kind in ("classes", "labels"):
        listed = [[name for part in text.split(",") if (name := part.strip())] for text in texts]
        values = listed if kind == "labels" else texts
        names = sorted(set().union(*values) if kind == "labels" else {*values})
        if "" in names:
            raise ValueError(f"row {texts.index('') + 1} is without a value")
        if len(names) < 2:
            raise ValueError(f"one class only: {names!r:.100}")
        return tuple(names), values
    values = [_number(text) for text in texts]
    for number, (text, value) in enumerate(zip(texts, values, strict=True), 1):
        if value is None or not math.isfinite(value) or (kind == "binary" and value not in (0, 1)):
            raise ValueError(f"row {number}: {text!r:.50} is no value for {kind}")
        if value and not SMALLEST <= abs(value) <= LARGEST:
            raise ValueError(f"row {number}: float32 cannot hold {text!r:.50}; rescale the values")
    return (), values


def _number(text: str) -> float | None:
    """The number that a text stands for, or None. Python alone would also read 1_000."""
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _looks_like(texts: Sequence[str]) -> str:
    """The kind of these values. Raises ValueError if some are numbers, and others are not."""
    others = [row for row, text in enumerate(texts, 1) if _number(text) is None]
    if not others:
        return "binary" if {*map(float, texts)} == {0, 1} else "regression"
    first = texts[others[0] - 1]
    if len(others) < len(texts) or all(re.fullmatch(r"-?\d+ ?[,_][\d,_. ]*", text) for text in texts):
        reason = f"row {others[0]}: {first!r:.50} is no number, and other values look like numbers"
        raise ValueError(f"{reason}; names need --kind classes or labels")
    return "labels" if any("," in text for text in texts) else "classes"


def _splits(path, listed: dict[str, list[dict]], needed: Sequence[str]) -> dict[str, str]:
    """The split of every structure; "" if its sequence decides, which is known when the structures are read.

    Raises StructureError if a structure has several splits, or a split that is `needed` has none.
    """
    splits = {}
    for name, rows in listed.items():
        splits[name], *others = {SPLIT_OF[row.get("split", "")] for row in rows}
        if others:
            raise StructureError(path, "malformed table", f"{name:.100} is in several splits")
    if "" not in splits.values() and (empty := set(needed) - set(splits.values())):
        detail = f"{len(listed)} structures leave none for {' and '.join(sorted(empty))}"
        raise StructureError(path, "a split without structures", detail)
    return splits
