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
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch

from ..files import ConfigError, StoreError, lock, write_file, write_rows
from ..machine import Bar, cores, memory, read_nothing_ahead
from ..protein.constants import ATOM_ELEMENT
from ..protein.protein import Protein
from .pool import read_all
from .shards import TABLES, content_hash, damaged, load_shard, pack_shard, sequence_hashes, shard_file
from .sources import ARCHIVES, ENDINGS, LOCK, Listing, Origin, ending_of, structure_files

FORMAT = "siamdiff_min store, version 10"
SUFFIX, META, FAILURES = ".store", "meta.json", "failures.tsv"
SHARD = 512  # sources; after a kill, a build reads at most so many again
_ELEMENT = torch.tensor(ATOM_ELEMENT)


class ProteinStore(torch.utils.data.Dataset):
    """Proteins of a store by index. Picklable: every process maps a shard when it first reads from it.

    Raises StoreError: not a store, another version; on use a shard that is missing or damaged.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.meta = read_meta(self.path)
        names = [shard["names"] for shard in self.meta["shards"]]
        self.first = [0, *accumulate(map(len, names))]  # row of every shard's first protein
        self.names = [name for of_shard in names for name in of_shard]
        self.sequences = [hashed for shard in self.meta["shards"] for hashed in shard["sequences"]]  # of every protein
        self.rows: Sequence[int] = range(len(self.names))  # the proteins that are handed out, see `subset`
        self.own_labels: list[dict] | None = None  # their labels, if these are not in the store
        self.not_found = ""  # structures and residues of these labels that the store lacks
        self.mapped: dict[int, dict] = {}  # shards by number

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Protein:
        return self.read(range(len(self))[index])

    def __getstate__(self) -> dict:
        return self.__dict__ | {"mapped": {}}

    @property
    def checksum(self) -> str:
        """Two stores with equal proteins, names and labels have the same one."""
        text = "".join(shard["content"] for shard in self.meta["shards"])
        text += "" if self.own_labels is None else f"{[*self.rows]} {self.own_labels}"
        return hashlib.sha256(text.encode()).hexdigest()

    def labels(self, index: int) -> dict:
        """The labels of a protein; empty for plain structures."""
        if self.own_labels is not None:
            return self.own_labels[index]
        shard, row = self._find(index)
        return shard["labels"][row] if shard["labels"] else {}

    def subset(self, labels: Mapping[int, dict], not_found: str = "") -> "ProteinStore":
        """The same store with some of its proteins only, and with labels of the caller's: row -> labels.

        `not_found` says in words which structures and residues of these labels the store lacks.
        """
        other = copy(self)
        other.rows = [*labels]
        other.own_labels = [*labels.values()]
        other.names = [self.names[row] for row in other.rows]
        other.sequences = [self.sequences[row] for row in other.rows]
        other.not_found = not_found
        return other

    def positions(self, index: int) -> list[tuple[str, int, str]]:
        """The author's chain, number and insertion code of every residue."""
        shard, row = self._find(index)
        residues, names = shard["residues"][slice(*shard["first_residue"][row : row + 2])], shard["chains"][row]
        numbers, codes = residues["residue_number"].tolist(), map(chr, residues["insertion_code"])
        return list(zip([names[chain] for chain in residues["chain"]], numbers, codes, strict=True))

    def num_residues(self, index: int) -> int:
        """Number of residues of one protein."""
        shard, row = self._find(index)
        return int(np.diff(shard["first_residue"][row : row + 2])[0])

    def read(self, index: int, start: int = 0, length: int | None = None) -> Protein:
        """The residues start .. start + length - 1 of a protein (all from `start` on without a length).

        Equal to `store[index].crop(start, length)`, but reads no more than that from disk. Raises ValueError if the
        protein has no such residues.
        """
        shard, row = self._find(index)
        first, last = shard["first_residue"][row : row + 2].tolist()
        length = last - first - start if length is None else length
        if start < 0 or length < 0 or first + start + length > last:
            raise ValueError(f"residues {start} to {start + length} of {self.names[index]}, which has {last - first}")
        residues = shard["residues"][first + start : first + start + length]
        edges = shard["residues"]["first_atom"][first + start : first + start + length + 1]
        atoms = shard["atoms"][edges[0] : edges[-1]]
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

        def total(counts: dict[str, int]) -> str:
            listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
            return f"{sum(counts.values())} ({listed})" if counts else "0"

        skipped, failed, dropped = (total(self.meta[name]) for name in ("skipped", "failed", "dropped"))
        sentence = f"seen {self.meta['seen']} = used {len(self)} + skipped {skipped} + failed {failed}; "
        sentence += f"{self.meta['residues']} residues, {self.meta['atoms']} atoms, left out or replaced {dropped}"
        return sentence + (f"; what failed: {self.path / FAILURES}" if self.meta["failed"] else "")

    def verify(self) -> None:
        """Read everything and compare the checksums. Raises StoreError that names the first damaged file."""
        for number, described in enumerate(self.meta["shards"]):
            file = shard_file(self.path, number)
            if content_hash(load_shard(file)) != described["content"]:
                raise damaged(file, "its checksum differs")

    def _find(self, index: int) -> tuple[dict, int]:
        """The shard of a protein, and its row there. Raises StoreError."""
        number = bisect_right(self.first, self.rows[index]) - 1
        if number not in self.mapped:
            shard = load_shard(shard_file(self.path, number))
            if self.meta["bytes"] > memory():
                read_nothing_ahead([shard[name] for name in TABLES])
            tables = {name: shard[name].numpy().view(dtype)[:, 0] for name, dtype in TABLES.items()}
            self.mapped[number] = shard | tables
        return self.mapped[number], self.rows[index] - self.first[number]


# ---- finding and building --------------------------------------------------------------------------------------------


def open_store(
    path=None, store=None, workers: int | None = None, build: bool = True, beside: bool = True
) -> ProteinStore | None:
    """Open the store of some data. If there is none, build it first.

    Args:
        path: a folder, archive, structure file or finished store; None for the structures bundled with the package; an
            Origin for a labelled set.
        store: folder of its stores. By default `<path>.store` beside the data, or in the cache if that cannot be
            written: `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`. Stores of the bundle and of a single
            structure file are always there.
        workers: processes that read; the result does not depend on it. By default one for every 500 structures, up to
            one per core and 8. Without fork (not on Linux), a script needs `if __name__ == "__main__":`.
        build: False to change nothing on the disk. If there is no store, None is returned.
        beside: False to build nothing beside the data. A store that is there is used all the same.

    Files that cannot be read are counted, and listed in the store's `failures.tsv`; they do not stop the build. Several
    processes may call this at once: one builds, the others wait.

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
    homes, name = [Path(store)] if store else _homes(origin), origin.fingerprint(FORMAT)
    folders = [home / name for home in homes]
    folder = next((folder for folder in folders if os.path.isfile(folder / META)), None)
    if folder is None and build:
        place = homes[0] if homes[0].exists() else homes[0].parent
        local = store or (beside and not origin.in_cache and os.access(place, os.W_OK))
        folder = folders[0 if local else -1]
        with lock(folder.parent / LOCK):
            if not os.path.isfile(folder / META):  # another process may have built it in the meantime
                _build(folder, origin, workers)
    return folder and ProteinStore(folder)


def _homes(origin: Origin) -> list[Path]:
    """The folders where a store of these data may lie: beside them, and in the cache."""
    path = origin.path.resolve()
    cache = Path(os.environ.get("SIAMDIFF_CACHE") or Path.home() / ".cache" / "siamdiff_min")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # several folders may be called `data`
    homes = [path.with_name(path.name + SUFFIX), cache / f"{path.name}-{digest}{SUFFIX}"]
    return homes[1:] if path.is_file() and ending_of(path.name) else homes


def finished_store(path: Path) -> Path | None:
    """The finished store that a path is, or the only one in a folder of stores. Raises StoreError for several."""
    if not os.path.isfile(path / LOCK):
        head = (path / META).read_bytes()[:99] if os.path.isfile(path / META) else b""
        return path if b"siamdiff_min store" in head else None
    stores = [file.parent for file in sorted(path.glob(f"*/{META}"))]
    if len(stores) != 1:
        names = ", ".join(folder.name for folder in stores)
        raise StoreError(f"{path} has {len(stores)} finished stores{names and ', give one of them: '}{names}")
    return stores[0]


def _build(folder: Path, origin: Origin, workers: int | None) -> None:
    """Read the structures of `origin` in other processes, write the shards that are missing, and finish the store.

    Raises StoreError if nothing could be read.
    """
    listing = origin.listing()
    parts = [listing.sources[first : first + SHARD] for first in range(0, len(listing.sources), SHARD)]
    todo = [(shard_file(folder, n), part) for n, part in enumerate(parts) if not shard_file(folder, n).exists()]
    wanted = [source for _, part in todo for source in part]
    structures = read_all(wanted, workers or min(cores(), 8, 1 + len(wanted) // 500))
    with contextlib.closing(structures), Bar(total=len(wanted), unit="protein", disable=None) as bar:
        for file, part in todo:
            content = io.BytesIO()  # torch itself does not say that a disk is full
            torch.save(pack_shard(part, list(islice(structures, len(part))), origin.each_chain), content)
            write_file(file, content.getbuffer())
            bar.update(len(part))
    _finish(folder, origin.path, listing, len(parts))


def _finish(folder: Path, data: Path, listing: Listing, count: int) -> None:
    """Write `failures.tsv`, then `meta.json`, and print the counts. Now the folder is a finished store."""
    rows, described, total, dropped = [], [], Counter(), Counter()
    for number in range(count):
        shard = load_shard(shard_file(folder, number))
        rows += shard["failures"]
        dropped += shard["dropped"]
        found = {"names": shard["names"], "sequences": sequence_hashes(shard), "content": content_hash(shard)}
        described.append(found)
        sizes = {"residues": len(shard["residues"]) - 1, "atoms": len(shard["atoms"])}
        total.update(proteins=len(shard["names"]), bytes=shard_file(folder, number).stat().st_size, **sizes)
    rows += [("", "skipped", reason, file, "") for file, reason in listing.skipped]
    counts = {name: Counter(row[2] for row in rows if row[1] == name) for name in ("skipped", "failed")}
    write_rows(folder / FAILURES, [("name", "outcome", "reason", "file", "detail"), *rows])
    if not total["proteins"]:
        reasons = ", ".join(f"{reason} {n}" for x in counts.values() for reason, n in x.items()) or "it is empty"
        looked_for = f"looked for {', '.join(ENDINGS)}, in folders, {', '.join(ARCHIVES)}"
        raise StoreError(f"no protein that can be read in {data} ({reasons}); {looked_for}; see {folder / FAILURES}")
    meta = {"format": FORMAT, **total, **counts, "dropped": dropped, "seen": total["proteins"] + len(rows)}
    write_file(folder / META, json.dumps(meta | {"path": str(data.resolve()), "shards": described}, indent=1).encode())
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
