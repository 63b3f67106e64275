"""The store: proteins and their labels in a few memory-mapped files, shared by all processes of a machine.

A store is a folder of shards, and `meta.json`, which says how many there are and is written last. A shard is a dict
that `torch.save` wrote. It has the proteins of up to SHARD sources, one after the other as in `Protein.pack`:

    names, labels     B names, and B dicts of whatever belongs to the proteins (`samples.py` says what)
    chains            for every protein a line of its author chain ids, with tabs between them
    first_residue     (B + 1,) row of the first residue of every protein
    first_atom        (R + 1,) row of the first atom of every residue
    pos, chain, ...   the tensors of `Protein` in KINDS
    failures          rows of `failures.tsv`: sources of this shard that could not be read
    dropped           reason -> number of atoms or residues that the parsing policy left out
    plan              what the shard was made from; `build.py` makes it again where this differs

It is mapped into memory: reading a crop touches only the bytes of its residues, and no code in a shard is ever run.
"""

import hashlib
import io
import json
import pickle
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch

from ..files import StoreError, StructureError, checksum, escape, unescape, write_file
from ..protein.constants import ATOM_ELEMENT
from ..protein.protein import ATOM_FIELDS, Protein
from ..protein.structure import Structure

FORMAT, VERSION = "siamdiff_min store", 4
STORE_SUFFIX = ".store"
SHARD = 512  # sources; a build that is killed reads no more than these again
KINDS = {  # what is kept of a `Protein`, and in how many bytes; the rest follows from it
    "pos": torch.float32,
    "atom_name": torch.uint8,
    "residue_type": torch.uint8,
    "residue_number": torch.int32,
    "insertion_code": torch.uint8,
    "residue_index": torch.int32,
    "chain": torch.int32,
}
_ELEMENT = torch.tensor(ATOM_ELEMENT)


class ProteinStore(torch.utils.data.Dataset):
    """Proteins of a store by index. Opening it checks `meta.json` and the sizes of the files, not their content.

    Picklable (DataLoader workers): the shards are mapped on first use, in each process.

    Raises:
        StoreError: not a store, another version, a damaged `meta.json`, a shard that is missing or of the wrong size;
            on first use, where another store has taken its place since.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.meta = read_meta(self.path)
        self.first = [0, *accumulate(shard["proteins"] for shard in self.meta["shards"])]  # index in every shard
        for file, shard in zip(self.files, self.meta["shards"]):
            size = file.stat().st_size if file.is_file() else "no"
            if size != shard["size"]:
                raise StoreError(f"{file} has {size} bytes, expected {shard['size']}")

    @property
    def files(self) -> list[Path]:
        return [shard_file(self.path, i) for i in range(len(self.meta["shards"]))]

    @cached_property
    def shards(self) -> list[dict]:
        """All shards, mapped. Raises StoreError where one is damaged, or of another store."""
        shards = [load_shard(file) for file in self.files]
        if any(shard.get("plan") != about["plan"] for shard, about in zip(shards, self.meta["shards"])):
            raise StoreError(f"{self.path} is damaged, or was replaced while it was in use: its data have changed")
        return shards

    @cached_property
    def names(self) -> list[str]:
        """Names of the proteins, in order."""
        return [name for shard in self.shards for name in shard["names"]]

    def __len__(self) -> int:
        return self.first[-1]

    def __getitem__(self, index: int) -> Protein:
        return self.read(range(len(self))[index])

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name not in ("shards", "names")}

    @property
    def checksum(self) -> str:
        """The same where all proteins, their names and their labels are."""
        return hashlib.sha256("".join(shard["sha256"] for shard in self.meta["shards"]).encode()).hexdigest()

    def labels(self, index: int) -> dict:
        """What is kept beside a protein; empty for plain structures."""
        shard, row = self._find(index)
        return shard["labels"][row]

    def chains(self, index: int) -> list[str]:
        """Author chain ids of one protein, in the order of `Protein.chain`."""
        shard, row = self._find(index)
        return [unescape(chain) for chain in shard["chains"].split("\n")[row].split("\t")]

    def num_residues(self, index: int) -> int:
        """Number of residues of one protein."""
        shard, row = self._find(index)
        first, last = shard["first_residue"][row : row + 2].tolist()
        return last - first

    def atoms_before(self, index: int, start: int) -> int:
        """Number of atoms of a protein before its residue `start`."""
        shard, row = self._find(index)
        first = int(shard["first_residue"][row])
        return int(shard["first_atom"][first + start] - shard["first_atom"][first])

    def read(self, index: int, start: int = 0, length: int | None = None) -> Protein:
        """The residues start .. start + length - 1 of a protein (all from `start` on without a length).

        Equal to `store[index].crop(start, length)`, but reads no more than that from disk. Raises ValueError if the
        protein has no such residues.
        """
        shard, row = self._find(index)
        first, last = shard["first_residue"][row : row + 2].tolist()
        length = last - first - start if length is None else length
        if start < 0 or length < 0 or first + start + length > last:
            raise ValueError(f"residues {start} to {start + length} of {shard['names'][row]}, which has {last - first}")
        residues = slice(first + start, first + start + length)
        edges = shard["first_atom"][residues.start : residues.stop + 1].long()
        atoms = slice(int(edges[0]), int(edges[-1]))
        kept = {name: shard[name][atoms if name in ATOM_FIELDS else residues].long() for name in KINDS if name != "pos"}
        return Protein(
            **kept,
            pos=shard["pos"][atoms].clone(),
            element=_ELEMENT[kept["atom_name"]],
            atom_residue=torch.arange(length).repeat_interleave(edges.diff()),
            masked=torch.zeros(length, dtype=torch.bool),
            residue_protein=torch.zeros(length, dtype=torch.long),
        )

    def verify(self) -> None:
        """Read everything and compare the checksums. Raises StoreError that names the first damaged file."""
        for file, shard in zip(self.files, self.meta["shards"]):
            if checksum(file) != shard["sha256"]:
                raise StoreError(f"{file} is damaged (its checksum differs)")

    def _find(self, index: int) -> tuple[dict, int]:
        """The shard of a protein, and its row there."""
        number = bisect_right(self.first, index) - 1
        return self.shards[number], index - self.first[number]


# ---- shards ----------------------------------------------------------------------------------------------------------


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.pt"


def load_shard(file: Path) -> dict:
    """The content of a shard, its tensors mapped. Raises StoreError."""
    try:
        return torch.load(file, mmap=True, weights_only=True)
    except (OSError, RuntimeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
        raise StoreError(f"{file} is missing or damaged ({str(error).splitlines()[0]:.100})") from error


def write_shard(file: Path, plan: str, entries: Iterable[tuple[str, Structure | StructureError]]) -> None:
    """Write a shard of named structures, or why there is none. Raises WriteError; the old file is then as it was."""
    names, labels, chains, failures, dropped, columns = [], [], [], [], Counter(), {name: [] for name in KINDS}
    residues, atoms = [0], [0]  # how many there are in every protein, and in every residue; before the first, none
    for name, found in entries:
        if isinstance(found, StructureError):
            failures.append((name, "failed", found.reason, found.path, found.detail))
            continue
        failures += [(name, "no conformer", error.reason, error.path, error.detail) for error in found.unmatched]
        names.append(name)
        labels.append(found.labels)
        chains.append("\t".join(map(escape, found.chain_names)))
        dropped += found.dropped
        for column, kind in KINDS.items():
            columns[column].append(getattr(found.protein, column).to(kind))
        residues.append(found.protein.num_residues)
        atoms += torch.bincount(found.protein.atom_residue, minlength=residues[-1]).tolist()
    tensors = {name: torch.cat(parts) for name, parts in columns.items() if parts}
    tensors["first_residue"] = torch.tensor(residues).cumsum(0).int()
    tensors["first_atom"] = torch.tensor(atoms).cumsum(0).int()
    about = {"plan": plan, "names": names, "labels": labels, "failures": failures, "dropped": dict(dropped)}
    about["chains"] = "\n".join(chains)  # one text: opening a large store unpickles every object in it
    content = io.BytesIO()  # of a full disk torch would say something else
    torch.save(about | tensors, content)
    write_file(file, content.getbuffer())


# ---- meta.json -------------------------------------------------------------------------------------------------------


def read_meta(folder: Path) -> dict:
    """The content of `meta.json` of a finished store. Raises StoreError."""
    try:
        meta = json.loads((folder / "meta.json").read_bytes())
        found = meta["format"], meta["version"]
    except OSError as error:
        raise StoreError(f"{folder} is not a store: {error.strerror} (meta.json)") from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise StoreError(f"{folder}: meta.json is damaged ({error})") from error
    if found != (FORMAT, VERSION):
        raise StoreError(f"{folder} is a {found[0]}, version {found[1]}; this is {FORMAT}, version {VERSION}")
    if "shards" not in meta:
        raise StoreError(f"{folder} is not a finished store")
    return meta


def is_ours(folder) -> bool:
    """True for a store, finished or not, of any version; anything else is not ours."""
    try:
        return json.loads(Path(folder, "meta.json").read_bytes())["format"] == FORMAT
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
