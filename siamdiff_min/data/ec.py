"""The EC set (Sec. 5.1, App. D): chains of the PDB and their enzyme numbers, in the splits of DeepFRI.

The structures are folders or zips (read in place) of files named by PDB id and chain, as in `1ABC-A.pdb`. Two tables
give the labels, and how near the test chains are to the training split. Every file that is not used is listed with the
reason.
"""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import StructureError, structure_errors
from .samples import SPLITS, Labelled, LabelledData, find_part, write_note
from .structures import Listing, Origin, find_structures, fingerprint

FOLDERS = ("", "EnzymeCommission")
ANNOTATION = ("nrPDB-EC_annot.tsv", "nrPDB-EC_2020.04_annot.tsv")
TEST_TABLE = ("nrPDB-EC_test.csv", "nrPDB-EC_2020.04_test.csv")


def ec_set(root, cutoff: int = 95, ids=None, needed: Sequence[str] = tuple(SPLITS)) -> LabelledData:
    """The three splits of the EC set.

    Args:
        root: folder with train, valid (or val) and test, each a folder or a zip, and the two tables of the official
            archive.
        cutoff: percent; the test split keeps the chains whose identity to the training split is below, as the table
            says (30, 40, 50, 70 or 95).
        ids: a text file; only the chains listed in it are used, in all splits.
        needed: the splits that must be there; no others are looked for.

    Raises:
        StructureError: a split or table that is missing or malformed, a cutoff that the table does not have.
    """
    annotation = find_part(root, FOLDERS, ANNOTATION, "labels of EC")
    table = find_part(root, FOLDERS, TEST_TABLE, "table of the test split of EC")
    labels, annotated = _read_annotation(annotation)
    cutoffs, listed = _read_cutoffs(table, cutoff), None if ids is None else _read_ids(ids)
    known = hashlib.sha256(annotation.read_bytes() + repr(listed and sorted(listed)).encode()).hexdigest()
    identity = hashlib.sha256(table.read_bytes()).hexdigest() + f" {cutoff}"
    chosen = annotated if listed is None else listed
    origins, seen = {}, Counter()
    for split in needed:
        test = split == "test"
        names = [f"{name}{kind}" for kind in ("", ".zip") for name in SPLITS[split]]
        place = find_part(root, FOLDERS, names, f"{split} split of EC")
        digest = hashlib.sha256(f"ec {fingerprint(place)} {known} {identity if test else ''}".encode()).hexdigest()
        listing, chains = _listing(place, annotated, chosen, cutoffs if test else None, cutoff)
        seen.update(chains)
        # Of the same files another choice is another store: runs with different ones may go on at the same time.
        variant = [str(cutoff)] * (test and cutoff != 95) + [f"ids-{known[:8]}"] * (listed is not None)
        origins[split] = Origin(place, digest, lambda listing=listing: listing, variant="-".join(variant))
    about = f"EC, {root}: {len(labels)} labels, {len(annotated)} chains with labels"
    about += "" if listed is None else f", {len(listed)} chains listed in {ids}"
    missing = sorted({*chosen} - {*seen}) if len(origins) == len(SPLITS) else []
    shared = sorted(chain for chain, count in seen.items() if count > 1)
    for some, what in ((missing, "without a file"), (shared, "in more than one split")):
        about += f"; {len(some)} {what}, e.g. {some[0]}" if some else ""
    return LabelledData(**origins, labels=labels, about=about)


def _listing(place: Path, annotated: dict, chosen, cutoffs: dict | None, cutoff: int) -> tuple[Listing, set[str]]:
    """The chains of a split that are used, sorted by name, and all with a file. Only the test split has `cutoffs`."""
    found, test = find_structures(place), cutoffs is not None
    used, skipped, seen = [], list(found.skipped), set()
    for file in found.sources:
        name = chain_id(file.name.rpartition("/")[2])
        reasons = {
            "no PDB id and chain in the name": name is None,
            "another file of the same chain": name in seen,
            "no EC annotation": name not in annotated,
            "not in the list of ids": name not in chosen,
            "not in the table of the test split": test and name not in cutoffs,
            f"identity to the training split not below {cutoff} %": test and cutoff not in cutoffs.get(name, ()),
        }
        if reason := next((reason for reason, applies in reasons.items() if applies), None):
            skipped.append((file.label, reason))
        else:
            values = {"ec": annotated[name]} | ({"cutoffs": cutoffs[name]} if test else {})
            used.append(Labelled(name, file, partial(replace, note=write_note(values))))
        seen.add(name)
    return Listing(sorted(used, key=lambda chain: chain.name), skipped), seen - {None}


def chain_id(text: str) -> str | None:
    """PDB id and chain as the tables write them: "2FOR-A" for 2for_A, 2FOR-A_0001 and the like.

    Chains keep their case: 3H4P has an A and an a.
    """
    match = re.match(r"([0-9][A-Za-z0-9]{3})[-_.]([A-Za-z0-9]+)", text)
    return f"{match[1].upper()}-{match[2]}" if match else None


# ---- the tables ------------------------------------------------------------------------------------------------------


def _lines(path) -> list[str]:
    """The lines of a text file that are not blank."""
    with structure_errors(path, "cannot be opened"):
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _by_chain(rows: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Rows by the chain in their first cell. Raises ValueError if that is none, or has a row already."""
    chains = {}
    for text, *cells in rows:
        name = chain_id(text)
        if name is None or name in chains:
            raise ValueError(f"{'no chain' if name is None else 'a second row of a chain'}: {text!r:.100}")
        chains[name] = cells
    return chains


def _read_annotation(path: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """All labels in order, and those of every chain."""
    lines = _lines(path)
    with structure_errors(path, "malformed table"):
        if not lines[0].startswith("### EC-numbers") or not lines[2].startswith("### PDB-chain"):
            raise ValueError("no lines '### EC-numbers' and '### PDB-chain'")
        labels = tuple(lines[1].strip().split("\t"))
        rows = _by_chain(line.partition("\t")[::2] for line in lines[3:])
        annotated = {name: [label for label in text.strip().split(",") if label] for name, (text,) in rows.items()}
        if unknown := sorted(set().union(*annotated.values()) - {*labels}):
            raise ValueError(f"{unknown[0]!r:.100} is not among the labels")
    return labels, annotated


def _read_cutoffs(path: Path, cutoff: int) -> dict[str, list[int]]:
    """For every chain of the test split the identities to training (percent) that it is below."""
    with structure_errors(path, "malformed table"):
        (_, first, *others), *rows = csv.reader(_lines(path))
        percent = [int(re.fullmatch(r"\s*<?([0-9]{1,3})%?\s*", name)[1]) for name in (first, *others)]  # "<30%"
        if cutoff not in percent:
            raise StructureError(path, "no such cutoff", f"{cutoff}, there are {percent}")
        flags = {name: [("0", "1").index(cell.strip()) for cell in cells] for name, cells in _by_chain(rows).items()}
        return {name: [p for p, below in zip(percent, row, strict=True) if below] for name, row in flags.items()}


def _read_ids(path) -> set[str]:
    """The chains named in a text file, one or more in a line."""
    names = {text: chain_id(text) for line in _lines(path) for text in re.split(r"[\s,]+", line.strip()) if text}
    wrong = [text for text, name in names.items() if name is None]
    if wrong or not names:
        raise StructureError(path, "malformed list", f"{wrong[0][:50]!r} is no PDB id and chain" if wrong else "empty")
    return set(names.values())
