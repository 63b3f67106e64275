"""The store: proteins and their labels, read once, then mapped into memory. `open_store` is its one door.

    PATH.store/siamdiff-lock    held by the process that builds
    PATH.store/FINGERPRINT/     a store: `00000.pt`, ... (`shards.py`), `failures.tsv`; `meta.json` comes last

FINGERPRINT is a hash of the format and of the names, sizes and times of all files that the store is made from, so data
that change get another folder. A build that was killed goes on with the shards that are there.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch

from ..files import ConfigError, StoreError, WriteError, lock, write_file, write_rows
from ..machine import Bar, cores, memory, read_nothing_ahead
from ..protein.constants import ATOM_ELEMENT
from ..protein.protein import Protein
from .pool import read_all
from .shards import describe, load_shard, map_tables, missing_backbone, pack_shard, shard_file
from .sources import LOCK, Listing, Origin, is_archive, structure_files
from .structure import counted, left_out

FORMAT = "siamdiff_min store, version 11"
SUFFIX, META, FAILURES = ".store", "meta.json", "failures.tsv"
SHARD = 512  # sources; after a kill, a build reads at most so many again
SOURCES_PER_READER = 500  # a process takes a second to begin, in which it would read about so many
_ELEMENT = torch.tensor(ATOM_ELEMENT)


class ProteinStore(torch.utils.data.Dataset):
    """Proteins of a store by index. Picklable: every process maps a shard when it first reads from it.

    Names and hashes of sequences are in arrays: lists of a million texts would be copied into every process. Raises
    StoreError: not a store, another version; on use a shard that is missing or damaged.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.meta = read_meta(self.path)  # without what goes into the arrays
        names, keys, counts = [], [], []
        for shard in self.meta["shards"]:
            names += [name.encode("utf-8", "surrogateescape") for name in shard.pop("names")]
            keys += shard.pop("sequences")
            counts.append(len(names))
        self.first = [0, *counts]  # row of every shard's first protein
        self.name_bytes = b"".join(names)
        self.name_ends = np.array([0, *accumulate(map(len, names))])
        self.sequence_keys = np.array(keys, dtype="S16")  # of every protein, see `sequence_hashes`
        self.rows: Sequence[int] = range(len(names))  # the proteins that are handed out, see `subset`
        self.own_labels: list[dict] | None = None  # their labels, if these are not in the store
        self.not_found = ""  # structures and residues of these labels that the store lacks
        self.mapped: dict[int, dict] = {}  # tables of shards, by number
        self.loaded: dict[int, dict] = {}  # whole shards: for labels and ids of chains

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Protein:
        return self.read(range(len(self))[index])

    def __getstate__(self) -> dict:
        return self.__dict__ | {"mapped": {}, "loaded": {}}

    @property
    def checksum(self) -> str:
        """Two stores with equal proteins, names and labels have the same one."""
        text = "".join(shard["content"] for shard in self.meta["shards"])
        if self.own_labels is not None:
            text += f"{[*self.rows]} {self.own_labels}"
        return hashlib.sha256(text.encode()).hexdigest()

    def name(self, index: int) -> str:
        """The name of a protein."""
        row = self.rows[index]
        first, last = self.name_ends[row : row + 2]
        return self.name_bytes[first:last].decode("utf-8", "surrogateescape")

    @cached_property
    def names(self) -> list[str]:
        """The names of all proteins. A process that reads a few of them calls `name`."""
        return [self.name(index) for index in range(len(self))]

    @property
    def sequences(self) -> list[str]:
        """The hashes of all sequences."""
        return self.sequence_keys[self.rows].astype(str).tolist()

    def labels(self, index: int) -> dict:
        """The labels of a protein; empty for plain structures."""
        if self.own_labels is not None:
            return self.own_labels[index]
        shard, row = self._load(index)
        return shard["labels"][row] if shard["labels"] else {}

    def subset(self, labels: Mapping[int, dict], not_found: str = "") -> "ProteinStore":
        """The proteins of `labels` alone: row -> labels of the caller's. `not_found` says which the store lacks."""
        other = copy(self)
        vars(other).pop("names", None)
        other.rows = [*labels]
        other.own_labels = [*labels.values()]
        other.not_found = not_found
        return other

    def positions(self, index: int) -> list[tuple[str, int, str]]:
        """The author's chain, number and insertion code of every residue."""
        tables, row = self._map(index)
        shard, _ = self._load(index)
        first, last = tables["first_residue"][row : row + 2]
        residues = tables["residues"][first:last]
        chains = [shard["chains"][row][chain] for chain in residues["chain"]]
        codes = map(chr, residues["insertion_code"])
        return list(zip(chains, residues["residue_number"].tolist(), codes, strict=True))

    def num_residues(self, index: int) -> int:
        """Number of residues of one protein."""
        tables, row = self._map(index)
        return int(np.diff(tables["first_residue"][row : row + 2])[0])

    def read(self, index: int, start: int = 0, length: int | None = None) -> Protein:
        """The residues start .. start + length - 1 of a protein (all from `start` on without a length).

        `store[index].crop(start, length)`, but no more is read from disk. ValueError if there are no such residues.
        """
        tables, row = self._map(index)
        first, last = tables["first_residue"][row : row + 2].tolist()
        size = last - first
        if length is None:
            length = size - start
        if start < 0 or length < 0 or start + length > size:
            raise ValueError(f"residues {start} to {start + length} of {self.name(index)}, which has {size}")

        # the rows of these residues and of their atoms; the row after the last residue says where its atoms end
        first += start
        residues = tables["residues"][first : first + length]
        edges = tables["residues"]["first_atom"][first : first + length + 1]
        atoms = tables["atoms"][edges[0] : edges[-1]]

        kept = {  # in numpy: for so few numbers torch would mostly wait for its threads
            name: torch.from_numpy(table[name].astype(np.int64))
            for table in (atoms, residues)
            for name in table.dtype.names
            if name not in ("pos", "first_atom")
        }
        return Protein(
            **kept,
            pos=torch.from_numpy(atoms["pos"].astype(np.float32)),
            element=_ELEMENT[kept["atom_name"]],
            atom_residue=torch.from_numpy(np.repeat(np.arange(length), np.diff(edges))),
            masked=torch.zeros(length, dtype=torch.bool),
            residue_protein=torch.zeros(length, dtype=torch.long),
        )

    def report_counts(self) -> str:
        """A sentence that counts the files that the store was built from: seen = used + skipped + failed."""
        skipped, failed = counted(self.meta["skipped"]), counted(self.meta["failed"])
        files = f"seen {self.meta['seen']} = used {len(self)} + skipped {skipped} + failed {failed}"
        content = f"{self.meta['residues']} residues, {self.meta['atoms']} atoms"
        sentence = f"{files}; {content}, {left_out(self.meta['dropped'])}"
        if lacking := self.lacking_backbone():
            sentence += f"; {lacking}"
        if self.meta["failed"]:
            sentence += f"; what failed: {self.path / FAILURES}"
        return sentence

    def lacking_backbone(self) -> str:
        """A sentence about structures in which over 1 % of the backbone atoms are missing; "" if there are none."""
        number, atoms = self.meta.get("lacking_backbone", (0, 0))  # none in a store of an older version
        return f"{number} structures lack {atoms} atoms of the backbone" if number else ""

    def _find(self, index: int) -> tuple[int, int]:
        """Number of a protein's shard, and its row there."""
        row = self.rows[index]
        number = bisect_right(self.first, row) - 1
        return number, row - self.first[number]

    def _map(self, index: int) -> tuple[dict, int]:
        """The tables of a protein's shard, mapped; and its row there. Raises StoreError."""
        number, row = self._find(index)
        if number not in self.mapped:
            whole, tables = map_tables(shard_file(self.path, number))
            if self.meta["bytes"] > memory():
                read_nothing_ahead([whole])
            self.mapped[number] = tables
        return self.mapped[number], row

    def _load(self, index: int) -> tuple[dict, int]:
        """All of a protein's shard, and its row there. Raises StoreError."""
        number, row = self._find(index)
        if number not in self.loaded:
            self.loaded[number] = load_shard(shard_file(self.path, number))
        return self.loaded[number], row


def open_store(
    path=None, store=None, workers: int | None = None, build: bool = True, beside: bool = True
) -> ProteinStore | None:
    """Open the store of some data. If there is none, build it first.

    Args:
        path: a folder, archive, structure file or finished store; None for the bundled structures; an Origin.
        store: folder of its stores; by default `<path>.store` beside the data, or in the cache (docs/data.md).
        workers: processes that read, with the same result; by default one for every 500 structures, up to one per core.
        build: False to change nothing on the disk. If there is no store, None is returned.
        beside: False to build nothing beside the data. A store that is there is used all the same.

    Files that cannot be read are counted, and listed in `failures.tsv`. Of several processes one builds, others wait.

    Raises:
        ConfigError: `store` or a pLDDT for a finished store.
        StructureError: nothing at `path`, or a damaged archive.
        StoreError: no readable protein, a damaged store.
        MachineError, WriteError: no room or no rights, on the disk or elsewhere. Finished shards are kept.
    """
    origin = path if isinstance(path, Origin) else structure_files(path)
    if finished := finished_store(origin.path):
        if store is not None or origin.key:
            raise ConfigError(f"{finished} is a finished store: nothing is built from it, give its structures")
        return ProteinStore(finished)

    # a store that is there is used, wherever it lies
    near_data, cache = (Path(store), None) if store else _homes(origin)
    name = origin.fingerprint(FORMAT)
    for home in (near_data, cache):
        if home and os.path.isfile(home / name / META):
            return ProteinStore(home / name)
    if not build:
        return None

    # build it: beside the data if that is wanted and can be done, else in the cache
    can_be = beside and near_data and not origin.in_cache
    can_be = can_be and os.access(near_data if near_data.exists() else near_data.parent, os.W_OK)
    home = near_data if store or can_be else _made(cache, origin)
    folder = home / name
    with lock(folder.parent / LOCK):
        if not os.path.isfile(folder / META):  # another process may have built it in the meantime
            _build(folder, origin, workers)
    return ProteinStore(folder)


def _homes(origin: Origin) -> tuple[Path | None, Path | None]:
    """The folders where a store of some data may lie: beside them, and in the cache. None: there is no such place."""
    path = origin.path.resolve()
    alone = path.is_file() and not is_archive(path)
    beside = None if alone else path.with_name(path.name + SUFFIX)
    cache = os.environ.get("SIAMDIFF_CACHE")
    if not cache:
        shared = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if shared.startswith("~"):  # a user without a name, in a container
            return beside, None
        cache = os.path.join(shared, "siamdiff_min")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # several folders may be called `data`
    return beside, Path(cache) / f"{path.name}-{digest}{SUFFIX}"


def _made(cache: Path | None, origin: Origin) -> Path:
    """The folder in the cache, made. Raises ConfigError, WriteError if it is not to be had."""
    advice = "give a folder for stores with --store, or set SIAMDIFF_CACHE"
    if cache is None:
        raise ConfigError(f"no place for the store of {origin.path}: this user has no home folder (HOME); {advice}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / LOCK).touch()
    except OSError as error:
        raise WriteError(f"no store can be built in {cache}: {error.strerror}; {advice}") from error
    return cache


def finished_store(path: Path) -> Path | None:
    """The finished store that a path is, or the only one in a folder of stores. Raises StoreError for several."""
    if not os.path.isfile(path / LOCK):
        head = (path / META).read_bytes()[:99] if os.path.isfile(path / META) else b""
        return path if b"siamdiff_min store" in head else None
    stores = [file.parent for file in sorted(path.glob(f"*/{META}"))]
    if len(stores) != 1:
        raise StoreError(f"{path} has {len(stores)} finished stores, give the folder of one")
    return stores[0]


def _build(folder: Path, origin: Origin, workers: int | None) -> None:
    """Write the shards of `origin` that are missing, and finish the store. StoreError if nothing could be read."""
    # what is still to be read
    listing = origin.listing()
    parts = [listing.sources[first : first + SHARD] for first in range(0, len(listing.sources), SHARD)]
    files = [shard_file(folder, number) for number in range(len(parts))]
    todo = [(file, part) for file, part in zip(files, parts) if not file.exists()]
    wanted = [source for _, part in todo for source in part]
    if workers is None:
        workers = min(cores(), 1 + len(wanted) // SOURCES_PER_READER)

    # other processes read, this one writes
    structures = read_all(wanted, workers)
    with contextlib.closing(structures), Bar(total=len(wanted), unit="protein", disable=None) as bar:
        for file, part in todo:
            answers = list(islice(structures, len(part)))
            content = io.BytesIO()  # torch itself does not say that a disk is full
            torch.save(pack_shard(part, answers, origin.each_chain), content)
            write_file(file, content.getbuffer())
            bar.update(len(part))
    _finish(folder, origin.path, listing, files)


def _finish(folder: Path, data: Path, listing: Listing, files: list[Path]) -> None:
    """Write `failures.tsv`, then `meta.json`, and print the counts. Now the folder is a finished store."""
    # what the shards hold
    failures = []
    described = []
    missing = []
    dropped = Counter()
    total = Counter()
    for file in files:
        shard = load_shard(file)
        failures += shard["failures"]
        dropped += shard["dropped"]
        missing += missing_backbone(shard)
        total["proteins"] += len(shard["names"])
        total["bytes"] += file.stat().st_size
        total["residues"] += len(shard["residues"]) - 1
        total["atoms"] += len(shard["atoms"])
        described.append(describe(shard))

    # what was not used
    failures += [("", "skipped", reason, file, "") for file, reason in listing.skipped]
    counts = {}
    for outcome in ("skipped", "failed"):
        counts[outcome] = Counter(row[2] for row in failures if row[1] == outcome)
    write_rows(folder / FAILURES, [("name", "outcome", "reason", "file", "detail"), *failures])
    if not total["proteins"]:
        reasons = [f"{reason} {count}" for counted in counts.values() for reason, count in counted.items()]
        why = ", ".join(reasons) or "it is empty"
        raise StoreError(f"no protein that can be read in {data} ({why}); see {folder / FAILURES}")

    # all of it in one file, whose presence says that the store is whole
    meta = {"format": FORMAT, **total, **counts, "dropped": dropped, "seen": total["proteins"] + len(failures)}
    meta |= {"path": str(data.resolve()), "shards": described, "lacking_backbone": (len(missing), sum(missing))}
    write_file(folder / META, json.dumps(meta, indent=1).encode())
    print(f"{folder}: {ProteinStore(folder).report_counts()}", file=sys.stderr)


def read_meta(folder: Path) -> dict:
    """The content of `meta.json` of a store. Raises StoreError."""
    try:
        meta = json.loads((folder / META).read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{folder} is not a finished store ({META}: {error})") from error
    if meta.get("format") != FORMAT:
        raise StoreError(f"{folder} is not a {FORMAT}: give the structures that it was made from")
    return meta
