"""The EC set (Sec. 5.1, App. D): chains of the PDB and their enzyme numbers, in the splits of DeepFRI.

The structures are folders or zips (read in place, nothing is unpacked) of files named by PDB id and chain, as in
`1ABC-A.pdb`. Two tables give the labels, and how near the test chains are to the training split. Every file that is
not used is listed with the reason.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ..files import StructureError, structure_errors
from ..protein.parse import MAX_BYTES, read_structure
from ..protein.structure import Structure
from .archives import refused
from .samples import LabelledData, write_note
from .structures import KINDS, Listing, Origin, Source, find_structures, fingerprint, kind_of

ANNOTATION = ("nrPDB-EC_annot.tsv", "nrPDB-EC_2020.04_annot.tsv")
TEST_TABLE = ("nrPDB-EC_test.csv", "nrPDB-EC_2020.04_test.csv")
SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}


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
    root = Path(root)
    root = next((place for place in (root, root / "EnzymeCommission") if _first(place, ANNOTATION)), root)
    annotation, table = (_first(root, names) for names in (ANNOTATION, TEST_TABLE))
    if annotation is None or table is None:
        raise StructureError(
            root, "no EC set in it", f"expected {' or '.join(TEST_TABLE if annotation else ANNOTATION)}"
        )
    labels, annotated = _read_annotation(annotation)
    cutoffs, listed = _read_cutoffs(table, cutoff), None if ids is None else _read_ids(ids)
    known = hashlib.sha256(annotation.read_bytes() + repr(listed and sorted(listed)).encode()).hexdigest()
    identity = hashlib.sha256(table.read_bytes()).hexdigest() + f" {cutoff}"
    origins, seen = dict.fromkeys(SPLITS), Counter()
    for split, names in ((split, SPLITS[split]) for split in needed):
        place, test = _first(root, [*names, *(f"{name}.zip" for name in names)]), split == "test"
        if place is None:
            raise StructureError(root, f"no {split} split of EC", f"expected {names[0]} or {names[0]}.zip")
        state = place.stat()
        version = fingerprint(place) if place.is_dir() else f"{state.st_size} {state.st_mtime_ns}"
        digest = hashlib.sha256(f"ec {version} {known} {identity if test else ''}".encode()).hexdigest()
        listing = _listing(place, annotated, listed, cutoffs if test else None, cutoff, seen)
        # Of the same files another choice is another store: runs with different ones may go on at the same time.
        variant = [str(cutoff)] * (test and cutoff != 95) + [f"ids-{known[:8]}"] * (listed is not None)
        origins[split] = Origin(place, digest, lambda listing=listing: listing, variant="-".join(variant))
    about = f"EC, {root}: {len(labels)} labels, {len(annotated)} chains with labels"
    about += "" if listed is None else f", {len(listed)} chains listed in {ids}"
    missing = sorted({*(annotated if listed is None else listed)} - {*seen}) if None not in origins.values() else []
    shared = sorted(chain for chain, count in seen.items() if count > 1)
    for chains, what in ((missing, "without a file"), (shared, "in more than one split")):
        about += f"; {len(chains)} {what}, e.g. {chains[0]}" if chains else ""
    return LabelledData(**origins, labels=labels, about=about)


@dataclass(frozen=True, slots=True)
class Chain:
    """The file of a chain, and what is to be kept beside its protein."""

    name: str  # PDB id in capitals, and chain: "2FOR-A"
    file: Source  # in a zip it has no offset
    note: bytes

    @property
    def path(self) -> str:
        return self.file.path

    def read(self) -> Structure:
        """Parse the structure. Raises StructureError."""
        if not self.path.endswith(".zip"):
            return replace(self.file.read(), note=self.note)
        with structure_errors(self.file.label, "damaged archive"):
            data = _opened(self.path, os.stat(self.path).st_mtime_ns).read(self.file.member)  # compares the checksum
        return replace(read_structure(self.file.label, data), note=self.note)


@lru_cache(maxsize=4)  # of each process: reading the list of contents takes a while
def _opened(path: str, changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


def _find_in_zip(path: Path) -> Listing:
    """The structure files of a zip, sorted by name, the kind to be preferred first. Raises StructureError."""
    found, skipped = [], []
    with structure_errors(path, "damaged archive"), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    for member in members:
        base = member.filename.rpartition("/")[2]
        kind = kind_of(base)
        reason = refused(member) or ("not a structure file" if kind in (None, base) else None)
        if reason or member.file_size > MAX_BYTES:
            skipped.append((f"{path}:{member.filename}", reason or "too large"))
        else:
            name = base[: -len(kind)]
            found.append((name, KINDS.index(kind), Source(name, str(path), member.filename)))
    return Listing([source for *_, source in sorted(found, key=lambda f: (*f[:2], f[2].member))], skipped)


def _listing(place: Path, annotated: dict, listed: set | None, cutoffs: dict | None, cutoff: int, seen: Counter):
    """The chains of a split that are to be used, sorted by name; counts in `seen` all that have a file."""
    found = find_structures(place) if place.is_dir() else _find_in_zip(place)
    chains, names, skipped = [], set(), list(found.skipped)
    for file in found.sources:
        name, reason = chain_id(file.name.rpartition("/")[2]), None
        if name is None:
            reason = "no PDB id and chain in the name"
        elif name in names:
            reason = "another file of the same chain"
        elif name not in annotated:
            reason = "no EC annotation"
        elif listed is not None and name not in listed:
            reason = "not in the list of ids"
        elif cutoffs is not None and name not in cutoffs:
            reason = "not in the table of the test split"
        elif cutoffs is not None and cutoff not in cutoffs[name]:
            reason = f"identity to the training split not below {cutoff} %"
        if reason:
            skipped.append((file.label, reason))
        else:
            values = {"ec": annotated[name]} | ({} if cutoffs is None else {"cutoffs": cutoffs[name]})
            chains.append(Chain(name, file, write_note(values)))
        names.add(name)
    seen.update(names - {None})
    return Listing(sorted(chains, key=lambda chain: chain.name), skipped)


def chain_id(text: str) -> str | None:
    """PDB id and chain as the tables write them: "2FOR-A" for 2for_A, 2FOR-A_0001 and the like.

    Chains keep their case: 3H4P has an A and an a.
    """
    match = re.match(r"([0-9][A-Za-z0-9]{3})[-_.]([A-Za-z0-9]+)", text)
    return f"{match[1].upper()}-{match[2]}" if match else None


# ---- the tables ------------------------------------------------------------------------------------------------------


def _first(root: Path, names) -> Path | None:
    return next((root / name for name in names if (root / name).exists()), None)


def _lines(path) -> list[str]:
    """The lines of a text file that are not blank."""
    with structure_errors(path, "cannot be opened"):
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _read_annotation(path: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """All labels in order, and those of every chain."""
    lines, annotated = _lines(path), {}
    with structure_errors(path, "malformed table"):
        if not lines[0].startswith("### EC-numbers") or not lines[2].startswith("### PDB-chain"):
            raise ValueError("no lines '### EC-numbers' and '### PDB-chain'")
        labels = tuple(lines[1].strip().split("\t"))
        for line in lines[3:]:
            text, _, numbers = line.partition("\t")
            name, numbers = chain_id(text), [number for number in numbers.strip().split(",") if number]
            if name is None or name in annotated or not {*labels}.issuperset(numbers):
                problem = "a second line" if name in annotated else "a chain or label that does not exist"
                raise ValueError(f"{problem}: {line[:100]!r}")
            annotated[name] = numbers
    return labels, annotated


def _read_cutoffs(path: Path, cutoff: int) -> dict[str, list[int]]:
    """For every chain of the test split the identities to training (percent) that it is below."""
    cutoffs = {}
    with structure_errors(path, "malformed table"):
        (_, first, *others), *rows = csv.reader(_lines(path))
        percent = [int(re.fullmatch(r"\s*<?([0-9]{1,3})%?\s*", name)[1]) for name in (first, *others)]  # "<30%"
        if cutoff not in percent:
            raise StructureError(path, "no such cutoff", f"{cutoff}, there are {percent}")
        for text, *flags in rows:
            name, flags = chain_id(text), [("0", "1").index(flag.strip()) for flag in flags]
            if name is None or name in cutoffs:
                raise ValueError(f"no chain, or a second line of one: {text[:100]!r}")
            cutoffs[name] = [value for value, flag in zip(percent, flags, strict=True) if flag]
    return cutoffs


def _read_ids(path) -> set[str]:
    """The chains named in a text file, one or more in a line."""
    names = {text: chain_id(text) for line in _lines(path) for text in re.split(r"[\s,]+", line.strip()) if text}
    wrong = [text for text, name in names.items() if name is None]
    if wrong or not names:
        raise StructureError(path, "malformed list", f"{wrong[0][:50]!r} is no PDB id and chain" if wrong else "empty")
    return set(names.values())
