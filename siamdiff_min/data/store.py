"""The store: proteins as a few flat memory-mapped arrays, shared by all processes of a machine.

Reading a crop touches only the bytes of its residues, nothing is ever unpickled, and every array has a checksum.
`build.py` makes a store from structure files, once; this module reads it. On disk a store is a folder with one `.bin`
file for each of ARRAYS (N atoms, R residues, B proteins, all concatenated), `failures.tsv`, and `meta.json`, which is
written last: a folder without it is no store.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..files import StoreError, sha256, write_file
from ..protein.constants import ATOM_ELEMENT
from ..protein.protein import Protein

FORMAT, VERSION = "siamdiff_min store", 2
ARRAYS = {
    "pos": "<f4",  # (N, 3) angstrom
    "atom_name": "u1",  # (N,)
    "residue_atoms": "u1",  # (R,) number of atoms
    "residue_type": "u1",  # (R,)
    "residue_number": "<i4",  # (R,)
    "insertion_code": "u1",  # (R,)
    "residue_index": "<i4",  # (R,)
    "chain": "<i2",  # (R,)
    "names": "u1",  # UTF-8 text of all names, one after the other
    "notes": "u1",  # whatever belongs to the proteins, one after the other: labels of downstream samples
    "atom_offset": "<i8",  # (B + 1,) where the atoms of each protein begin
    "residue_offset": "<i8",  # (B + 1,)
    "name_offset": "<i8",  # (B + 1,)
    "note_offset": "<i8",  # (B + 1,)
}
OFFSETS = {  # and the array of which they count the rows
    "atom_offset": "atom_name",
    "residue_offset": "residue_type",
    "name_offset": "names",
    "note_offset": "notes",
}
_ELEMENT = torch.tensor(ATOM_ELEMENT)


class ProteinStore(torch.utils.data.Dataset):
    """Proteins of a store by index. Opening it checks `meta.json` and the size of every array, not their content.

    Picklable (DataLoader workers): the arrays are mapped on first use, in each process.

    Raises:
        StoreError: not a store, another version, a damaged `meta.json`, an array that is missing or of the wrong size;
            on first use, where another store has taken its place since.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.meta = read_meta(self.path)
        self._maps: dict[str, np.ndarray] = {}
        self.size = 0  # bytes
        for name, entry in self.meta["arrays"].items():
            file = self.path / f"{name}.bin"
            if not file.is_file():
                raise StoreError(f"{self.path}: array {name} is missing")
            size = file.stat().st_size
            expected = int(np.prod(entry["shape"])) * np.dtype(entry["dtype"]).itemsize
            if size != expected:
                raise StoreError(f"{self.path}: array {name} has {size} bytes, expected {expected}")
            self.size += size

    def __len__(self) -> int:
        return self.meta["proteins"]

    def __getitem__(self, index: int) -> Protein:
        return self.read(range(len(self))[index])

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_maps": {}}

    @property
    def names(self) -> Sequence[str]:
        """Names of the proteins, in order; read from disk as they are asked for."""
        return _Names(self._map("names"), self._map("name_offset"))

    def note(self, index: int) -> np.ndarray:
        """The bytes kept beside a protein (uint8, a view of the file); empty for plain structures."""
        first, last = self._map("note_offset")[index : index + 2]
        return self._map("notes")[first:last]

    @property
    def checksum(self) -> str:
        """SHA-256 over those of all arrays: the same where all proteins, their names and their notes are."""
        return checksum_of({name: entry["sha256"] for name, entry in self.meta["arrays"].items()})

    def num_residues(self, index: int) -> int:
        """Number of residues of one protein."""
        first, last = self._map("residue_offset")[index : index + 2]
        return int(last - first)

    def atoms_before(self, index: int, start: int) -> int:
        """Number of atoms of a protein before its residue `start`."""
        head = int(self._map("residue_offset")[index])
        return int(self._map("residue_atoms")[head : head + start].sum(dtype=np.int64))

    def read(self, index: int, start: int = 0, length: int | None = None) -> Protein:
        """The residues start .. start + length - 1 of a protein (all from `start` on without a length).

        Equal to `store[index].crop(start, length)`, but reads no more than that from disk. Raises ValueError if the
        protein has no such residues.
        """
        size = self.num_residues(index)
        length = size - start if length is None else length
        if start < 0 or length < 0 or start + length > size:
            raise ValueError(f"residues {start} to {start + length} of {self.names[index]}, which has {size}")
        head = int(self._map("residue_offset")[index])
        residues = slice(head + start, head + start + length)
        residue_atoms = self._map("residue_atoms")[residues].astype(np.int64)
        head = int(self._map("atom_offset")[index]) + self.atoms_before(index, start)
        atoms = slice(head, head + int(residue_atoms.sum()))
        atom_name = self._long("atom_name", atoms)
        return Protein(
            pos=torch.from_numpy(self._map("pos")[atoms].astype(np.float32)),
            element=_ELEMENT[atom_name],
            atom_name=atom_name,
            atom_residue=torch.from_numpy(np.repeat(np.arange(length), residue_atoms)),
            residue_type=self._long("residue_type", residues),
            masked=torch.zeros(length, dtype=torch.bool),
            residue_number=self._long("residue_number", residues),
            insertion_code=self._long("insertion_code", residues),
            residue_index=self._long("residue_index", residues),
            chain=self._long("chain", residues),
            residue_graph=torch.zeros(length, dtype=torch.long),
        )

    def verify(self) -> None:
        """Read everything and compare the checksums. Raises StoreError that names the first damaged array."""
        for name, entry in self.meta["arrays"].items():
            if sha256(self.path / f"{name}.bin") != entry["sha256"]:
                raise StoreError(f"{self.path}: array {name} is damaged (its checksum differs)")

    def _map(self, name: str) -> np.ndarray:
        if not self._maps:
            try:
                maps = {array: self._open(array) for array in ARRAYS}
                replaced = read_meta(self.path) != self.meta  # asked when the arrays are open: from then on they stay
            except (OSError, ValueError):
                replaced = True
            if replaced:
                raise StoreError(f"{self.path} was replaced while it was in use: its data, or their options, changed")
            self._maps = maps
        return self._maps[name]

    def _open(self, name: str) -> np.ndarray:
        entry = self.meta["arrays"][name]
        kind, shape = entry["dtype"], tuple(entry["shape"])
        if 0 in shape:  # which cannot be mapped
            return np.zeros(shape, kind)
        with open(self.path / f"{name}.bin", "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # Else the kernel reads megabytes around every crop, which soon holds the whole store. Windows has no madvise.
        if hasattr(mmap, "MADV_RANDOM") and self.size > memory():
            content.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(content, kind).reshape(shape)

    def _long(self, name: str, rows: slice) -> torch.Tensor:
        return torch.from_numpy(self._map(name)[rows].astype(np.int64))


class _Names(Sequence):
    """Names as a sequence of str without holding them in memory."""

    def __init__(self, text: np.ndarray, offset: np.ndarray):
        self.text, self.offset = text, offset

    def __len__(self) -> int:
        return len(self.offset) - 1

    def __getitem__(self, index):
        index = range(len(self))[index]
        name = self.text[self.offset[index] : self.offset[index + 1]].tobytes()
        return name.decode("utf-8", "surrogateescape")  # see `encode_name`


def encode_name(name: str) -> bytes:
    """File names need not be valid UTF-8: their odd bytes pass through."""
    return name.encode("utf-8", "surrogateescape")


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_store(path) -> bool:
    """True where `path` is a finished store (of any version)."""
    return has_format(Path(path) / "meta.json")


def has_format(file: Path) -> bool:
    """True where a JSON file says that it belongs to a store, finished or not; anything else is not ours."""
    try:
        return _read_json(file)["format"] == FORMAT
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def _read_json(file: Path):
    with open(file, "rb") as content:
        return json.loads(content.read(2**20))  # ours have some kilobytes


def read_meta(path: Path) -> dict:
    """The checked content of `meta.json`. Raises StoreError."""
    meta = read_checked(path / "meta.json")
    if set(meta["arrays"]) != set(ARRAYS):
        raise StoreError(f"{path}: meta.json names other arrays")
    return meta


def read_checked(file: Path) -> dict:
    """What `write_checked` wrote. Raises StoreError."""
    try:
        content = _read_json(file)
        found = content["format"], content["version"]
        checksum = content.pop("sha256", None)
    except OSError as error:
        raise StoreError(f"{file.parent} is not a store: {error.strerror} ({file.name})") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{file.parent}: {file.name} is damaged ({error})") from error
    if found != (FORMAT, VERSION):
        raise StoreError(f"{file.parent} is a {found[0]}, version {found[1]}; this is {FORMAT}, version {VERSION}")
    if checksum != checksum_of(content):
        raise StoreError(f"{file.parent}: {file.name} is damaged (its checksum differs)")
    return content


def write_checked(file: Path, content: dict) -> None:
    """A file of JSON that says its format and has a checksum of its content. Raises WriteError."""
    content = {"format": FORMAT, "version": VERSION} | content
    text = json.dumps(content | {"sha256": checksum_of(content)}, indent=1, sort_keys=True)
    write_file(file, text.encode())


def checksum_of(content: dict) -> str:
    """SHA-256 of a dict as JSON; of `meta.json`, without the checksum itself."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
