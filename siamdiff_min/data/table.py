"""A task of the user's own: structures, and a table of labels for them or for their residues (docs/extending.md).

    name    value           name    chain   number  value
    1abc    3.2             1abc    A       52      0.7
    2def    -1.5            1abc    A       52A     0.1

The table is text with tabs. A column `split` may say train, valid or test; otherwise a hash of the name does.
"""

import csv
import hashlib
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import StructureError, sha256, structure_errors
from ..protein.structure import Structure
from .samples import SPLITS, Labelled, LabelledData, write_note
from .structures import Listing, Origin, find_structures, fingerprint, kind_of

COLUMNS = {  # where the first line does not name them
    2: ("name", "value"),
    3: ("name", "value", "split"),
    4: ("name", "chain", "number", "value"),
    5: ("name", "chain", "number", "value", "split"),
}
SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names} | {"": ""}
HELD_OUT = 10  # a tenth of the structures each for validation and test


def table_set(labels, data, kind: str | None = None, needed: Sequence[str] = tuple(SPLITS)) -> LabelledData:
    """The three splits of the structures in `data` that the table `labels` names; those not `needed` may be empty.

    Args:
        kind: "regression", "binary" (0 or 1), "classes" (one name each) or "labels" (any number of names, with commas);
            by default what the values look like.

    Raises:
        StructureError: the table is malformed, or names a structure that is not in `data`.
    """
    kind, classes, rows = _values(labels, read_table(labels), kind)
    residues, listed = "number" in rows[0], {}
    for row in rows:
        listed.setdefault(row["name"], []).append(row)
    found = find_structures(data)
    sources = {source.name: source for source in found.sources}
    if missing := listed.keys() - sources.keys():
        names, there = (", ".join(sorted(n)[:3]) for n in (missing, sources))
        detail = f"{len(missing)} of {len(listed)}, e.g. {names}; {data} has {len(sources)}, e.g. {there or None}"
        if rows[0]["name"] in missing:
            detail += "; columns that are named on the first line are called name and value"
        raise StructureError(labels, "names that match no structure", detail)
    skipped = [*found.skipped, *((sources[name].label, "no label in the table") for name in sources.keys() - listed)]
    content = f"{fingerprint(data)} {sha256(Path(labels))} {kind}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    origins, split_of = {}, _splits(labels, listed, needed)
    for split in SPLITS:
        chosen = [
            Labelled(name, sources[name], partial(_label, sources[name].label, kind, listed[name]))
            for name in sorted(listed)
            if split_of[name] == split
        ]
        listing = Listing(chosen, skipped if split == "train" else [])
        variant = f"labels-{digest[:8]}-{split}"
        origins[split] = Origin(Path(data), f"{digest} {split}", lambda listing=listing: listing, variant=variant)
    what = f"{len(rows)} residues of {len(listed)}" if residues else f"{len(listed)}"
    about = f"{kind} on {what} structures, {labels}" + (f"; {len(classes)} names" if classes else "")
    return LabelledData(**origins, labels=classes, about=about, options={"kind": kind, "residues": residues})


def _label(path: str, kind: str, rows: list[dict], structure: Structure) -> Structure:
    """Add the value of a structure, or those of its residues. Raises StructureError if it has none of these."""
    if "number" not in rows[0]:
        return replace(structure, note=write_note({"kind": kind, "values": [rows[0]["value"]]}))
    place = {(chain, f"{n}{code}".strip()): row for row, (chain, n, code) in enumerate(structure.positions)}
    keys = [(row["chain"], row["number"], row["value"]) for row in rows]
    found = sorted((place[key[:2]], *key) for key in keys if key[:2] in place)
    if not found:
        chain, number, _ = keys[0]
        raise StructureError(path, "no labelled residue in it", f"e.g. chain {chain}, number {number}")
    values = {"kind": kind, "values": [v for *_, v in found], "places": [f"{c}:{n}" for _, c, n, _ in found]}
    dropped = Counter({"labels of residues that are not in the structure": len(rows) - len(found)})
    note = write_note(values, [row for row, *_ in found])
    return replace(structure, dropped=structure.dropped + dropped, note=note)


def read_table(path) -> list[dict[str, str]]:
    """The rows of a table of labels as text, by column; names without extensions. Raises StructureError."""
    with structure_errors(path, "cannot be opened"):
        content = Path(path).read_bytes()
    with structure_errors(path, "malformed table"):
        file = io.StringIO(content.decode("utf-8-sig"), newline="")
        lines = [line for line in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if any(line)]
        if not lines:
            raise ValueError("it is empty")
        header = lines.pop(0) if "name" in lines[0] else COLUMNS.get(len(lines[0]), ())
        if set(header) - {"split"} not in ({"name", "value"}, {"name", "chain", "number", "value"}):
            raise ValueError(f"columns {header!r:.100}, expected name, value; of residues name, chain, number, value")
        rows, seen = [], set()
        for number, line in enumerate(lines, 1):
            if len(line) != len(header):
                raise ValueError(f"row {number} has {len(line)} columns of {len(header)}: {line!r:.100}")
            row = {column: text.strip() for column, text in zip(header, line)}
            row["name"] = row["name"][: len(row["name"]) - len(kind_of(row["name"]) or "")]
            key = row["name"], row.get("chain"), row.get("number")
            if key in seen:
                raise ValueError(f"row {number} is a second one of {' '.join(filter(None, key)):.100}")
            if not re.fullmatch("-?[0-9]+[A-Za-z]?", row.get("number", "0")):
                raise ValueError(f"row {number}: {row['number']!r:.50} is no residue number")
            if row.get("split", "") not in SPLIT_OF:
                raise ValueError(f"row {number}: {row['split']!r:.50} is no split, expected train, valid or test")
            seen.add(key)
            rows.append(row)
        if not rows:
            raise ValueError("no rows in it")
    return rows


def _values(path, rows: list[dict], kind: str | None) -> tuple[str, tuple[str, ...], list[dict]]:
    """The kind of the labels, the names of the classes, and the rows with values of that kind."""
    values, names = [row["value"] for row in rows], []
    with structure_errors(path, "malformed table"):
        kind = kind or _looks_like(values)
        if kind == "classes":
            names = sorted({*values})
            if "" in names:
                raise ValueError(f"row {values.index('') + 1}: no value")
        elif kind == "labels":
            values = [[name for name in text.split(",") if name] for text in values]
            names = sorted(set().union(*values))
        else:
            values = [float(text) for text in values]
            for number, value in enumerate(values, 1):
                if not math.isfinite(value) or (kind == "binary" and value not in (0, 1)):
                    raise ValueError(f"row {number}: {value} is no value for {kind}")
        if kind in ("classes", "labels") and len(names) < 2:
            raise ValueError(f"one class only: {names}")
    return kind, tuple(names), [row | {"value": value} for row, value in zip(rows, values)]


def _looks_like(texts: Sequence[str]) -> str:
    """The kind of the labels. Raises ValueError where it might be numbers, but some of them are none."""
    numbers, others = set(), []
    for row, text in enumerate(texts, 1):
        try:
            numbers.add(float(text))
        except ValueError:
            others.append((row, text))
    if not others:
        return "binary" if numbers == {0, 1} else "regression"
    decimals = all(re.fullmatch(r"-?\d+,\d+", text) for _, text in others)
    if decimals or 2 * len(others) < len(texts):
        row, text = others[0]
        why = "decimals are written with a point" if decimals else "most others are"
        raise ValueError(f"row {row}: {text!r:.50} is no number, and {why}; names need --kind classes or labels")
    return "labels" if any("," in text for text in texts) else "classes"


def _splits(path, listed: dict[str, list[dict]], needed: Sequence[str]) -> dict[str, str]:
    """The split of every structure. Raises StructureError if it has several, or a split that is `needed` has none."""
    splits = {}
    for name, rows in listed.items():
        splits[name], *others = {SPLIT_OF[row.get("split", "")] for row in rows}
        if others:
            raise StructureError(path, "malformed table", f"{name:.100} is in several splits")
    rest = sorted((hashlib.sha256(name.encode()).digest(), name) for name in splits if not splits[name])
    size = len(rest) // HELD_OUT or int(len(rest) == len(splits))  # one at least, if the table has no splits
    for place, (_, name) in enumerate(rest):
        splits[name] = "test" if place < size else "valid" if place < 2 * size else "train"
    if empty := set(needed) - set(splits.values()):
        detail = f"{len(listed)} structures leave none for {' and '.join(sorted(empty))}"
        raise StructureError(path, "a split without structures", detail)
    return splits
