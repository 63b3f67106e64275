"""The files of an unfinished store: appended to in order, and cut back after a kill to what is known to be whole."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np

from ..files import StoreError, StructureError, escape
from ..protein.structure import Structure
from .store import ARRAYS, FORMAT, OFFSETS, VERSION, encode_name, read_checked, write_checked
from .structures import Source

NAMES = (*(f"{name}.bin" for name in ARRAYS), "failures.tsv")
NOTE_EVERY = 512  # structures; a build that is killed reads no more than these again


class GrowingStore:
    """Appends structures to the arrays, and failures to their table; their sizes and checksums are noted at times.

    Opening it again goes on from the last note. If a file does not have the checksum that is noted, because the machine
    crashed, say, all is made anew. `done` counts the sources, `failed` and `dropped` are those of `BuildReport`.
    """

    def __init__(self, folder: Path):
        self.folder, self.notes = folder, folder.with_name("progress.json")
        folder.mkdir(exist_ok=True)
        try:
            self._go_on(read_checked(self.notes))
        except (StoreError, OSError):
            nothing = [0, hashlib.sha256().hexdigest()]
            self._go_on({"done": 0, "failed": {}, "dropped": {}, "files": dict.fromkeys(NAMES, nothing)})
        self.files = {name: open(folder / name, "ab") for name in NAMES}  # noqa: SIM115
        if not self.done and not self.sizes["failures.tsv"]:
            self.row("name", "outcome", "reason", "file", "detail")
            for name in OFFSETS:
                self.append(f"{name}.bin", bytes(8))

    def _go_on(self, noted: dict) -> None:
        self.done, self.failed, self.dropped = noted["done"], Counter(noted["failed"]), Counter(noted["dropped"])
        self.sizes, self.digests = {}, {}
        for name in NAMES:
            self.sizes[name], expected = noted["files"][name]
            self.digests[name] = _digest_of_start(self.folder / name, self.sizes[name])
            if self.digests[name].hexdigest() != expected:
                raise StoreError(f"{self.folder / name} is damaged (its checksum differs)")

    def append(self, name: str, data: bytes) -> None:
        self.files[name].write(data)
        self.digests[name].update(data)
        self.sizes[name] += len(data)

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
            self.dropped += structure.dropped
            for name, values in _columns(source.name, structure).items():
                self.append(f"{name}.bin", values.astype(ARRAYS[name]).tobytes())
            for name, counted in OFFSETS.items():
                self.append(f"{name}.bin", np.array(self.sizes[f"{counted}.bin"], ARRAYS[name]).tobytes())
        self.done += 1
        if self.done % NOTE_EVERY == 0:
            self.note()

    def sync(self) -> None:
        """Return when everything is on the disk."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def note(self) -> None:
        """Write down how far the files are whole."""
        self.sync()
        files = {name: [self.sizes[name], self.digests[name].hexdigest()] for name in NAMES}
        counted = {"done": self.done, "failed": self.failed, "dropped": self.dropped}
        write_checked(self.notes, {"format": FORMAT, "version": VERSION, **counted, "files": files})

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def _digest_of_start(file: Path, size: int):
    """SHA-256 of the first `size` bytes of a file, which is cut off behind them; there need not be such a file."""
    digest = hashlib.sha256()
    with open(file, "a+b") as content:
        content.truncate(size)
        content.seek(0)
        while piece := content.read(2**22):
            digest.update(piece)
    return digest


def _columns(name: str, structure: Structure) -> dict[str, np.ndarray]:
    """What a structure adds to the arrays that are not offsets."""
    protein = structure.protein
    columns = {key: np.frombuffer(x, np.uint8) for key, x in (("names", encode_name(name)), ("notes", structure.note))}
    columns["residue_atoms"] = np.bincount(protein.atom_residue.numpy(), minlength=protein.num_residues)
    return columns | {key: getattr(protein, key).numpy() for key in ARRAYS if key not in columns and key not in OFFSETS}
