"""The files of an unfinished store: appended to in order, and cut back after a kill to what is known to be whole."""

import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np

from ..files import StoreError, StructureError, escape
from ..protein.structure import Structure
from .store import ARRAYS, OFFSETS, encode_name, read_checked, write_checked
from .structures import Source

NAMES = (*(f"{name}.bin" for name in ARRAYS), "failures.tsv")
NOTE_EVERY = 512  # structures; a build that is killed reads no more than these again


class GrowingStore:
    """Appends structures to the arrays and failures to their table, and notes now and then how far it is.

    A note has the length and checksum of every file. Opening the same folder again with the same `plan` goes on from
    the last note; if a checksum differs, after a crash of the machine, say, it begins anew. `done` counts the sources;
    `failed` and `dropped` are those of `BuildReport`.
    """

    def __init__(self, folder: Path, plan: str):
        self.plan, self.notes = plan, folder / "progress.json"
        folder.mkdir(exist_ok=True)
        try:
            noted = read_checked(self.notes)
            if noted["plan"] != plan:
                raise StoreError(f"{folder} is of other data")
            self.digests = {name: _cut_back(folder / name, *noted["files"][name]) for name in NAMES}
        except StoreError:
            nothing = 0, hashlib.sha256().hexdigest()
            noted = {"plan": plan, "done": 0, "failed": {}, "dropped": {}, "files": dict.fromkeys(NAMES, nothing)}
            write_checked(self.notes, noted)
            (folder / "meta.json").unlink(missing_ok=True)
            self.digests = {name: _cut_back(folder / name, *nothing) for name in NAMES}
        self.done, self.failed, self.dropped = noted["done"], Counter(noted["failed"]), Counter(noted["dropped"])
        self.files = {name: open(folder / name, "ab") for name in NAMES}  # noqa: SIM115
        if not self.files["failures.tsv"].tell():
            self.row("name", "outcome", "reason", "file", "detail")
            for name in OFFSETS:
                self.append(f"{name}.bin", bytes(8))

    def rows(self, name: str) -> int:
        """Rows of an array; of `pos`, three for each atom."""
        return self.files[f"{name}.bin"].tell() // np.dtype(ARRAYS[name]).itemsize

    def append(self, name: str, data: bytes) -> None:
        self.files[name].write(data)
        self.digests[name].update(data)

    def row(self, *cells: str) -> None:
        """A line of the table of what is not in the store."""
        self.append("failures.tsv", ("\t".join(map(escape, cells)) + "\n").encode())

    def add(self, source: Source, structure: Structure | StructureError) -> None:
        """The next structure, or why there is none."""
        if isinstance(structure, Structure) and len(structure.chain_names) > np.iinfo(ARRAYS["chain"]).max:
            structure = StructureError(source.path, "too many chains", str(len(structure.chain_names)))
        if isinstance(structure, StructureError):
            self.failed[structure.reason] += 1
            self.row(source.name, "failed", structure.reason, structure.path, structure.detail)
        else:
            for error in structure.unmatched:
                self.row(source.name, "no conformer", error.reason, error.path, error.detail)
            self.dropped += structure.dropped
            for name, values in _columns(source.name, structure).items():
                self.append(f"{name}.bin", values.astype(ARRAYS[name]).tobytes())
            for name, counted in OFFSETS.items():
                self.append(f"{name}.bin", np.array(self.rows(counted), ARRAYS[name]).tobytes())
        self.done += 1
        if self.done % NOTE_EVERY == 0:
            self.note()

    def sync(self) -> None:
        """Return when everything is on the disk."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def note(self) -> None:
        """Write down how long the files are, once everything up to there is on the disk."""
        self.sync()
        files = {name: [file.tell(), self.digests[name].hexdigest()] for name, file in self.files.items()}
        noted = {"plan": self.plan, "done": self.done, "failed": self.failed, "dropped": self.dropped, "files": files}
        write_checked(self.notes, noted)

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def _cut_back(file: Path, size: int, expected: str):
    """SHA-256 of the first `size` bytes of a file, which is cut off behind them. Raises StoreError if it is another."""
    digest = hashlib.sha256()
    with open(file, "a+b") as content:
        content.truncate(size)
        content.seek(0)
        while piece := content.read(2**22):
            digest.update(piece)
    if digest.hexdigest() != expected:
        raise StoreError(f"{file} is damaged (its checksum differs)")
    return digest


def _columns(name: str, structure: Structure) -> dict[str, np.ndarray]:
    """What a structure adds to the arrays that are not offsets."""
    protein = structure.protein
    columns = {key: np.frombuffer(x, np.uint8) for key, x in (("names", encode_name(name)), ("notes", structure.note))}
    columns["residue_atoms"] = np.bincount(protein.atom_residue.numpy(), minlength=protein.num_residues)
    return columns | {key: getattr(protein, key).numpy() for key in ARRAYS if key not in columns and key not in OFFSETS}
