"""The EC set (Sec. 5.1, App. D): chains of the PDB and their enzyme numbers, in the splits of DeepFRI.

The structures are folders or zips (read in place, nothing is unpacked) of files named by PDB id and chain, as in
`1ABC-A.pdb`; two tables give the labels, and how near the test chains are to the training split. Every file that is
not used is listed with the reason.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import zipfile
from collections import Counter
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


def ec_set(root, cutoff: int = 95, ids=None) -> LabelledData:
    """The three splits of the EC set.

    Args:
        root: folder with train, valid (or val) and test, each a folder or a zip, and the two tables of the official
            archive.
        cutoff: percent; the test split keeps the chains whose identity to the training split is below, as the table
            says (30, 40, 50, 70 or 95).
        ids: a text file; only the chains listed in it are used, in all splits.

    Raises:
        StructureError: a split or table that is missing or malformed, a cutoff that the table does not have.
    """
    root = Path(root)
    root = next((place for place in (root, root / "EnzymeCommission") if _first(place, ANNOTATION)), root)
    annotation, table = _table(root, ANNOTATION), _table(root, TEST_TABLE)
    labels, annotated = _read_annotation(annotation)
    cutoffs = _read_cutoffs(table, cutoff)
    listed = None if ids is None else _read_ids(ids)
    known = hashlib.sha256(annotation.read_bytes() + repr(listed and sorted(listed)).encode()).hexdigest()
    identity = hashlib.sha256(table.read_bytes()).hexdigest() + f" {cutoff}"
    origins, seen = {}, Counter()
    for split, names in SPLITS.items():
        place = _first(root, [*names, *(f"{name}.zip" for name in names)])
        if place is None:
            raise StructureError(root, f"no {split} split of EC", f"expected {names[0]} or {names[0]}.zip")
        state = place.stat()
        version = fingerprint(place) if place.is_dir() else f"{state.st_size} {state.st_mtime_ns}"
        listing = _listing(place, annotated, listed, cutoffs if split == "test" else None, cutoff, seen)
        state = f"ec {version} {known} {identity if split == 'test' else ''}"
        digest = hashlib.sha256(state.encode()).hexdigest()
        # Of the same files another choice is another store: runs with different ones may go on at the same time.
        variant = [str(cutoff)] if split == "test" and cutoff != 95 else []
        variant += [] if listed is None else [f"ids-{known[:8]}"]
        origins[split] = Origin(place, digest, lambda listing=listing: listing, variant="-".join(variant))
    about = f"EC, {root}: {len(labels)} labels, {len(annotated)} chains with labels"
    wanted = annotated.keys() if listed is None else listed
    if listed is not None:
        about += f", {len(listed)} chains listed in {ids}"
    for chains, what in (
        (sorted(set(wanted) - set(seen)), "without a file"),
        (sorted(chain for chain, count in seen.items() if count > 1), "in more than one split"),
    ):
        if chains:
            about += f"; {len(chains)} {what}, e.g. {chains[0]}"
    return LabelledData(**origins, labels=labels, about=about)


@dataclass(frozen=True, slots=True)
class Chain:
    """The file of a chain, and what is to be kept beside its protein."""

    name: str  # PDB id in capitals, and chain: "2FOR-A"
    file: Source | ZipMember
    note: bytes

    @property
    def path(self) -> str:
        return self.file.path

    def read(self) -> Structure:
        """Parse the structure. Raises StructureError."""
        return replace(self.file.read(), note=self.note)


def _listing(place: Path, annotated: dict, listed: set | None, cutoffs: dict | None, cutoff: int, seen: Counter):
    """The chains of a split that are to be used, sorted by name; counts in `seen` all that have a file."""
    found = find_structures(place) if place.is_dir() else _find_members(place)
    chains: dict[str, Chain] = {}
    names, skipped = set(), list(found.skipped)
    for file in found.sources:
        name = chain_id(file.name.rpartition("/")[2])
        reason = _reason(name, annotated, listed, cutoffs, cutoff)
        if name is not None and name in names:
            reason = "another file of the same chain"
        names.add(name)
        if reason:
            skipped.append((file.label, reason))
        else:
            values = {"ec": annotated[name]} | ({} if cutoffs is None else {"cutoffs": cutoffs[name]})
            chains[name] = Chain(name, file, write_note(values))
    seen.update(names - {None})
    return Listing([chains[name] for name in sorted(chains)], skipped)


def _reason(name: str | None, annotated: dict, listed: set | None, cutoffs: dict | None, cutoff: int) -> str | None:
    """Why a chain is not used, None where it is."""
    if name is None:
        return "no PDB id and chain in the name"
    if name not in annotated:
        return "no EC annotation"
    if listed is not None and name not in listed:
        return "not in the list of ids"
    if cutoffs is not None and name not in cutoffs:
        return "not in the table of the test split"
    if cutoffs is not None and cutoff not in cutoffs[name]:
        return f"identity to the training split not below {cutoff} %"
    return None


def chain_id(text: str) -> str | None:
    """PDB id and chain as the tables write them: "2FOR-A" for 2for_A, 2FOR-A_0001 and the like.

    Chains keep their case: 3H4P has an A and an a.
    """
    match = re.match(r"([0-9][A-Za-z0-9]{3})[-_.]([A-Za-z0-9]+)", text)
    return f"{match[1].upper()}-{match[2]}" if match else None


# ---- the tables ------------------------------------------------------------------------------------------------------


def _first(root: Path, names) -> Path | None:
    return next((root / name for name in names if (root / name).exists()), None)


def _table(root: Path, names: tuple[str, ...]) -> Path:
    found = _first(root, names)
    if found is None:
        raise StructureError(root, "no EC set in it", f"expected {' or '.join(names)}")
    return found


def _lines(path) -> list[str]:
    """The lines of a text file that are not blank."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise StructureError(path, "cannot be opened", error.strerror or str(error)) from error
    return [line for line in text.splitlines() if line.strip()]


def _read_annotation(path: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """All labels in order, and those of every chain."""
    lines = _lines(path)
    if len(lines) < 3 or not lines[0].startswith("### EC-numbers") or not lines[2].startswith("### PDB-chain"):
        raise StructureError(path, "malformed table", "no lines '### EC-numbers' and '### PDB-chain'")
    labels = tuple(lines[1].strip().split("\t"))
    known, annotated = set(labels), {}
    for line in lines[3:]:
        text, _, numbers = line.partition("\t")
        name, numbers = chain_id(text), [number for number in numbers.strip().split(",") if number]
        if name is None or name in annotated or not known.issuperset(numbers):
            problem = "a second line" if name in annotated else "a chain or label that does not exist"
            raise StructureError(path, "malformed table", f"{problem}: {line[:100]!r}")
        annotated[name] = numbers
    return labels, annotated


def _read_cutoffs(path: Path, cutoff: int) -> dict[str, list[int]]:
    """For every chain of the test split the identities to training (percent) that it is below."""
    try:
        header, *rows = list(csv.reader(_lines(path))) or [[]]
    except csv.Error as error:
        raise StructureError(path, "malformed table", str(error)) from error
    columns = [re.fullmatch(r"\s*<?([0-9]{1,3})%?\s*", name) for name in header[1:]]
    if not columns or None in columns:
        raise StructureError(path, "malformed table", f"columns {header!r:.100}, expected PDB-chain, <30%, ...")
    percent = [int(match[1]) for match in columns]
    if cutoff not in percent:
        raise StructureError(path, "no such cutoff", f"{cutoff}, there are {percent}")
    cutoffs = {}
    for row in rows:
        name, flags = chain_id(row[0]), [flag.strip() for flag in row[1:]]
        if name is None or name in cutoffs or len(flags) != len(percent) or set(flags) - {"0", "1"}:
            raise StructureError(path, "malformed table", f"{row!r:.100}")
        cutoffs[name] = [value for value, flag in zip(percent, flags) if flag == "1"]
    return cutoffs


def _read_ids(path) -> set[str]:
    """The chains named in a text file, one or more in a line."""
    names = {text: chain_id(text) for line in _lines(path) for text in re.split(r"[\s,]+", line.strip()) if text}
    wrong = [text for text, name in names.items() if name is None]
    if wrong or not names:
        raise StructureError(path, "malformed list", f"{wrong[0][:50]!r} is no PDB id and chain" if wrong else "empty")
    return set(names.values())


# ---- zips ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)  # of each process: reading the list of contents takes a while
def _opened(path: str, changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@dataclass(frozen=True, slots=True)
class ZipMember:
    """One structure file inside a zip."""

    name: str  # the file name without extension
    path: str  # the archive
    info: zipfile.ZipInfo

    @property
    def label(self) -> str:
        """Archive and member, for messages."""
        return f"{self.path}:{self.info.filename}"

    def read(self) -> Structure:
        """Parse the structure. Raises StructureError."""
        size = self.info.file_size
        if max(size, self.info.compress_size) > MAX_BYTES:
            raise StructureError(self.label, "too large", f"{size} bytes")
        with structure_errors(self.label, "damaged archive"):
            data = _opened(self.path, os.stat(self.path).st_mtime_ns).read(self.info)  # compares the checksum
        return read_structure(self.label, data)


def _find_members(path: Path) -> Listing:
    """The structure files of a zip, sorted by name, the kind to be preferred first. Raises StructureError."""
    with structure_errors(path, "damaged archive"), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.filename.endswith("/")]
    found, skipped = [], []
    for member in members:
        base = member.filename.rpartition("/")[2]
        kind = kind_of(base)
        reason = refused(member) or ("not a structure file" if kind in (None, base) else None)
        if reason:
            skipped.append((f"{path}:{member.filename}", reason))
        else:
            file = ZipMember(base[: -len(kind)], str(path), member)
            found.append(((file.name, KINDS.index(kind), member.filename), file))
    return Listing([file for _, file in sorted(found, key=lambda pair: pair[0])], skipped)
