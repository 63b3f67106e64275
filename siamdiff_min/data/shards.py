"""The files of a store: shards, memory-mapped and shared by all processes of a machine, and two that describe them.

A store is a folder of shards, `failures.tsv`, and `meta.json`, which is written last. A shard is a dict that
`torch.save` wrote. It has the proteins of up to SHARD sources, one after the other as in `Protein.pack`:

    format            that the file is ours
    names, chains     names of the B proteins, and for each the author's ids of its chains; JSON
    labels            B dicts of labels (`samples.py` lists them); empty for plain structures
    failures          rows of `failures.tsv`: sources of this shard that could not be read
    dropped           reason -> number of atoms or residues that the parsing policy left out
    first_residue     (B + 1,) row of the first residue of every protein
    residues, atoms   (R + 1,) and (N,) the fields of `Protein` in RESIDUE and ATOM, row by row, as bytes

`torch.load` maps a shard into memory: reading a crop touches only the bytes of its residues, and no code is ever run.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
import zipfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ..files import StoreError, StructureError, UnwantedError, checksum, escape, write_file
from ..machine import memory, read_nothing_ahead
from ..protein.constants import ATOM_ELEMENT, RESIDUES
from ..protein.protein import Protein
from ..protein.structure import Structure
from .pool import read_all

FORMAT, VERSION = "siamdiff_min store", 8
META, FAILURES = "meta.json", "failures.tsv"
HEADER = "name\toutcome\treason\tfile\tdetail\n"
SHARD = 512  # sources; after a kill, a build reads at most so many again
# The fields of a `Protein` that are kept, and their types on the disk; the other fields follow from them.
ATOM = np.dtype([("pos", "<f4", 3), ("atom_name", "u1")])
RESIDUE = np.dtype(
    [(name, "<i4") for name in ("first_atom", "residue_number", "residue_index", "chain")]
    + [(name, "u1") for name in ("residue_type", "insertion_code")]
)
TABLES = {"first_residue": np.dtype("<i4"), "residues": RESIDUE, "atoms": ATOM}
KEYS = "format", "names", "chains", "labels", "failures", "dropped", *TABLES
_ELEMENT, _TYPES = torch.tensor(ATOM_ELEMENT), bytes(range(len(RESIDUES)))


class ProteinStore(torch.utils.data.Dataset):
    """Proteins of a store by index. Opening it checks `meta.json` and the sizes of the files, not their content.

    Picklable (DataLoader workers): every process maps a shard when it first reads from it.

    Raises:
        StoreError: not a store, another version, a damaged `meta.json`, a shard that is missing or of the wrong size;
            on use, if the content of a shard cannot be right.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.meta = read_meta(self.path)
        shards = self.meta["shards"]
        self.first = [0, *accumulate(len(shard["names"]) for shard in shards)]  # row of every shard's first protein
        self.names = [name for shard in shards for name in shard["names"]]
        self.rows: Sequence[int] = range(len(self.names))  # the proteins that are handed out, see `with_labels`
        self.own_labels: list[dict] | None = None  # their labels, if these are not in the store
        self.not_found = ""  # structures and residues of these labels that the store lacks
        self.mapped: dict[int, dict] = {}  # shards by number
        self.size = sum(shard["size"] for shard in shards)  # bytes on the disk
        for file, shard in zip(self.files, shards, strict=True):
            size = file.stat().st_size if file.is_file() else "no"
            if size != shard["size"]:
                raise damaged(file, f"{size} bytes, expected {shard['size']}")

    @property
    def files(self) -> list[Path]:
        return [shard_file(self.path, i) for i in range(len(self.meta["shards"]))]

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

    def rows_of(self, index: int, rows: torch.Tensor, size: int) -> torch.Tensor:
        """`rows` from the labels of an entry, checked: 0 <= row < size. They come from a disk: StoreError."""
        if rows.numel() and not 0 <= rows.min() <= rows.max() < size:
            raise damaged(self._file(index), f"labels of {self.names[index]} for rows that are not there")
        return rows

    def with_labels(self, label_of: Mapping[str, Callable[[list], dict]]) -> "ProteinStore":
        """The same store with these proteins only. Each function makes the labels of one from its `positions`.

        Proteins that the store lacks, and those without any value, are left out; `not_found` says how many.
        """
        row_of = {name: row for row, name in enumerate(self.names)}
        made = {row_of[n]: label_of[n](self.positions(row_of[n])) for n in sorted(label_of.keys() & row_of.keys())}
        missing = sum(labels.pop("missing", 0) for labels in made.values())
        other = copy(self)  # as for another process: nothing is mapped yet
        other.own_labels = [labels for labels in made.values() if labels["values"]]
        other.rows = [row for row, labels in made.items() if labels["values"]]
        other.names = [self.names[row] for row in other.rows]
        left_out = {"structures": len(label_of) - len(other), "labels of residues that are not in theirs": missing}
        other.not_found = ", ".join(f"{count} {noun}" for noun, count in left_out.items() if count)
        return other

    def positions(self, index: int) -> list[tuple[str, int, str]]:
        """The author's chain, number and insertion code of every residue."""
        shard, row = self._find(index)
        residues = shard["residues"][slice(*shard["first_residue"][row : row + 2])]
        names = dict(enumerate(json.loads(shard["chains"])[row]))
        try:
            chains = [names[chain] for chain in residues["chain"].tolist()]
        except KeyError as error:
            raise damaged(self._file(index), f"chain {error} of {self.names[index]}") from error
        numbers, codes = (residues[name].tolist() for name in ("residue_number", "insertion_code"))
        return list(zip(chains, numbers, map(chr, codes), strict=True))

    def num_residues(self, index: int) -> int:
        """Number of residues of one protein."""
        shard, row = self._find(index)
        first, last = shard["first_residue"][row : row + 2]
        return int(last - first)

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
        begin, end = int(edges[0]), int(edges[-1])
        atoms = shard["atoms"][begin:end]
        kept = {  # in numpy: for so few numbers torch would mostly wait for its threads
            name: torch.from_numpy(table[name].astype(np.int64))
            for table in (atoms, residues)
            for name in table.dtype.names
            if name not in ("pos", "first_atom")
        }
        try:
            if not 0 <= begin <= end <= len(shard["atoms"]):
                raise ValueError("rows that are not there")
            if residues["residue_type"].tobytes().translate(None, _TYPES):
                raise ValueError("an unknown type of residue")
            atom_residue = np.repeat(np.arange(length), np.diff(edges))
            element = _ELEMENT[kept["atom_name"]]
        except (ValueError, IndexError) as error:
            raise damaged(self._file(index), f"{self.names[index]}: {error}") from error
        return Protein(
            **kept,
            pos=torch.from_numpy(atoms["pos"].astype(np.float32)),
            element=element,
            atom_residue=torch.from_numpy(atom_residue),
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
        for file, shard in zip(self.files, self.meta["shards"], strict=True):
            if checksum(file) != shard["sha256"]:
                raise damaged(file, "its checksum differs")

    def _find(self, index: int) -> tuple[dict, int]:
        """The shard of a protein, and its row there. Raises StoreError."""
        number = bisect_right(self.first, self.rows[index]) - 1
        if number not in self.mapped:
            shard = load_shard(shard_file(self.path, number))
            if self.size > memory():
                read_nothing_ahead([shard[name] for name in TABLES])
            self.mapped[number] = shard | arrays(shard)
        return self.mapped[number], self.rows[index] - self.first[number]

    def _file(self, index: int) -> Path:
        return shard_file(self.path, bisect_right(self.first, self.rows[index]) - 1)


# ---- shards ----------------------------------------------------------------------------------------------------------


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.pt"


def damaged(file: Path, reason: str) -> StoreError:
    """The error about a file of a store whose content cannot be what was written."""
    advice = f"siamdiff build with the path of the data makes it again; or remove {file.parent}, and start again"
    return StoreError(f"{file} is damaged ({reason}): {advice}")


def load_shard(file: Path) -> dict:
    """The content of a shard, its tensors mapped. Checksums of the small parts are compared. Raises StoreError."""
    try:
        with zipfile.ZipFile(file) as content:  # torch compares no checksums, zipfile does
            root, tensors = content.namelist()[0].partition("/")[0], sum("/data/" in x for x in content.namelist())
            for name in ("data.pkl", f"data/{tensors - len(TABLES)}"):  # all but tensors; `first_residue`
                content.read(f"{root}/{name}")
        shard = torch.load(file, mmap=True, weights_only=True)
        if tuple(shard) != KEYS or not all(shard[name].is_contiguous() for name in TABLES):
            raise ValueError("its contents are not a shard")
        first, residues = (arrays(shard)[name] for name in ("first_residue", "residues"))
        if first[0] != 0 or first[-1] != len(residues) - 1 or not (np.diff(first) > 0).all():
            raise ValueError("its proteins have no residues")
        return shard
    except Exception as error:  # torch finds many kinds of damage
        raise damaged(file, f"{str(error).partition(chr(10))[0]:.100}") from error


def is_whole(file: Path) -> bool:
    """True for a shard whose checksums are all right: a build that was killed has left such shards."""
    try:
        with zipfile.ZipFile(file) as content:
            return content.testzip() is None and load_shard(file)["format"] == FORMAT
    except Exception:  # zipfile finds many kinds of damage
        return False


def arrays(shard: dict) -> dict[str, np.ndarray]:
    """The tables of a shard, as views of its bytes."""
    return {name: shard[name].numpy().view(dtype)[:, 0] for name, dtype in TABLES.items()}


def describe_shard(file: Path, shard: dict) -> dict:
    """The entry of a shard in `meta.json`: its names, its size, and checksums."""
    same = io.BytesIO()  # without the paths of files that could not be read
    torch.save({name: value for name, value in shard.items() if name != "failures"}, same)
    digests = {"sha256": checksum(file), "content": hashlib.sha256(same.getbuffer()).hexdigest()}
    return digests | {"size": file.stat().st_size, "names": json.loads(shard["names"])}


def pack_shard(entries: Iterable[tuple[str, Structure | StructureError]]) -> dict:
    """The shard of named structures and failures."""
    names, structures, failures = [], [], []
    for name, answer in entries:
        if isinstance(answer, StructureError):
            outcome = "skipped" if isinstance(answer, UnwantedError) else "failed"
            failures.append((name, outcome, answer.reason, answer.path, answer.detail))
        else:
            names.append(name)
            structures.append(answer)
    proteins, labels = [s.protein for s in structures], [s.labels for s in structures]
    dropped = sum((s.dropped for s in structures), Counter())
    first = np.cumsum([0, *(protein.num_residues for protein in proteins)], dtype=np.int32)
    atoms = np.zeros(sum(protein.num_atoms for protein in proteins), ATOM)
    residues = np.zeros(first[-1] + 1, RESIDUE)
    if proteins:
        packed = Protein.pack(proteins)
        for table, rows in ((atoms, len(atoms)), (residues, first[-1])):
            for field in {*table.dtype.names} - {"first_atom"}:
                table[field][:rows] = getattr(packed, field)
        residues["first_atom"][1:] = torch.bincount(packed.atom_residue, minlength=first[-1]).cumsum(0)
    shard = {
        "format": FORMAT,
        "names": json.dumps(names),
        "chains": json.dumps([s.chain_names for s in structures]),
        "labels": labels if any(labels) else [],
        "failures": failures,
        "dropped": dict(dropped),
    }
    for name, array in zip(TABLES, (first, residues, atoms), strict=True):
        shard[name] = torch.from_numpy(array.view("u1").reshape(len(array), array.itemsize))
    return shard


def write_shard(file: Path, shard: dict) -> None:
    """Write a shard. Raises WriteError; the old file is then as it was."""
    content = io.BytesIO()  # torch itself does not say that a disk is full
    torch.save(shard, content)
    write_file(file, content.getbuffer())


# ---- the whole store -------------------------------------------------------------------------------------------------


def write_store(
    folder: Path,
    data: Path,
    sources: Sequence,
    skipped: Iterable[tuple[str, str]],
    check_unchanged: Callable[[set[str]], None],
    workers: int | None = None,
) -> None:
    """Read the `sources` of `data` in other processes, write the shards that are missing, and finish the store.

    `skipped` has (file, reason) of what is no source. `check_unchanged` is asked about the files of a shard before it
    gets its name; it raises StoreError if they have changed since they were listed. Raises MachineError and WriteError
    too; finished shards are kept.
    """
    parts = [sources[first : first + SHARD] for first in range(0, len(sources), SHARD)]
    files = [shard_file(folder, number) for number in range(len(parts))]
    todo = [(file, part) for file, part in zip(files, parts, strict=True) if not is_whole(file)]
    wanted = [source for _, part in todo for source in part]
    workers = workers or min(os.cpu_count() or 1, 8, 1 + len(wanted) // 500)
    with (
        contextlib.closing(read_all(wanted, workers)) as structures,
        tqdm(total=len(wanted), unit="protein", disable=None) as bar,
    ):
        for file, part in todo:
            shard = pack_shard(zip([s.name for s in part], islice(structures, len(part)), strict=True))
            check_unchanged({source.path for source in part})
            write_shard(file, shard)
            bar.update(len(part))
    finish_store(folder, files, data, skipped)


def finish_store(folder: Path, files: Sequence[Path], data: Path, skipped: Iterable[tuple[str, str]]) -> None:
    """Write `failures.tsv`, then `meta.json`, and print the counts. Now the folder is a finished store of `data`.

    Raises StoreError if no source could be read.
    """
    rows, described, total, dropped = [], [], Counter(), Counter()
    for file in files:
        shard = load_shard(file)
        rows += shard["failures"]
        dropped += shard["dropped"]
        described.append(describe_shard(file, shard))
        sizes = {"residues": len(shard["residues"]) - 1, "atoms": len(shard["atoms"])}
        total.update(proteins=len(described[-1]["names"]), **sizes)
    rows += [("", "skipped", reason, file, "") for file, reason in skipped]
    counts = {name: Counter(row[2] for row in rows if row[1] == name) for name in ("skipped", "failed")}
    write_file(folder / FAILURES, (HEADER + "".join("\t".join(map(escape, row)) + "\n" for row in rows)).encode())
    if not total["proteins"]:
        reasons = ", ".join(f"{reason} {count}" for counted in counts.values() for reason, count in counted.items())
        raise StoreError(f"no protein that can be read in {data} ({reasons}); see {folder / FAILURES}")
    meta = {**total, **counts, "dropped": dropped, "seen": total["proteins"] + len(rows)}
    write_meta(folder, meta | {"path": str(data.resolve()), "shards": described})
    print(f"{folder}: {ProteinStore(folder).report_counts()}", file=sys.stderr)


def read_meta(folder: Path) -> dict:
    """The content of `meta.json` of a store. Raises StoreError."""
    file = folder / META
    try:
        meta = json.loads(file.read_bytes())
        written = meta.pop("format"), meta.pop("version")
        expected = meta.pop("sha256", None)
    except OSError as error:
        raise StoreError(f"{folder} is not a finished store: {error.strerror} ({META})") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(file, str(error)) from error
    if written != (FORMAT, VERSION):
        versions = f"{folder} is a {written[0]}, version {written[1]}; this is {FORMAT}, version {VERSION}"
        raise StoreError(f"{versions}: give the structures that it was made from")
    if expected != _digest(meta):
        raise damaged(file, "its checksum differs")
    return meta


def write_meta(folder: Path, meta: dict) -> None:
    """Write the description that makes a folder a store. Raises WriteError."""
    head = {"format": FORMAT, "version": VERSION, "sha256": _digest(meta)}
    write_file(folder / META, json.dumps(head | meta, indent=1, sort_keys=True).encode())


def _digest(meta: dict) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
