"""The files that `siamdiff embed` writes: .npz, or .csv of means or residues; and what it keeps until then."""

import contextlib
import itertools
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ... import __version__
from ...embedding import Embedding
from ...files import ConfigError, StructureError, UnwantedError, checksum, lock, replacing, write_rows, writing

# Columns of a .csv of residues, behind the name of the structure -> what an .npz calls them
RESIDUE = {"chain": "chain", "number": "number", "code": "insertion_code", "type": "type", "plddt": "plddt"}


def write_table(out: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz without pickles, or a .csv of the means or of the residues. Raises WriteError.

    An older file is then unchanged.
    """
    if out.suffix == ".npz":
        with replacing(out) as file:
            np.savez(file, **arrays)
        return
    columns = {"name": arrays["id"]}
    vectors = arrays.get("per_residue", arrays.get("mean"))
    if "per_residue" in arrays:
        columns["name"] = np.repeat(arrays["id"], np.diff(arrays["residue_offset"]))
        columns |= {title: arrays[f"residue_{name}"] for title, name in RESIDUE.items()}
    encoder = " ".join(arrays["encoder"])
    titles = [*columns, *(f"v{k + 1}" for k in range(vectors.shape[1])), "encoder"]
    rows = ([*place, *vector, encoder] for *place, vector in zip(*columns.values(), vectors))
    write_rows(out, itertools.chain([titles], rows), ",")


def check_out(out: Path) -> None:
    """Raises ConfigError for a file that this command did not write: it is never replaced."""
    ours = not out.exists()
    with contextlib.suppress(Exception):  # what another program wrote may be anything
        if out.suffix == ".csv":
            with open(out, "rb") as file:
                titles = file.readline()
            ours = titles.startswith(b"name,") and b",v1," in titles
        else:
            with np.load(out, allow_pickle=False) as arrays:
                ours = {"id", "failed", "failed_reason"} <= {*arrays.files}
    if not ours:
        raise ConfigError(f"--out {out} exists and holds no vectors of siamdiff embed, so it is not replaced")


# ---- until then ------------------------------------------------------------------------------------------------------


class Kept:
    """What a command has embedded so far: a file beside OUT, with a record for each of its structures.

    A record is a line of JSON and then the vectors, whose sizes it has. An interrupted command goes on after the last
    whole record. The first line tells commands apart: it is a hash of all that decides on the vectors.
    """

    def __init__(self, out: Path, include: Sequence[str]):
        self.path = out.with_name(f"{out.name}.siamdiff-part")
        self.include = [*dict.fromkeys(include)]
        self.done = 0  # structures
        self.dropped: Counter = Counter()  # what the reader left out of them, see `read`

    @contextlib.contextmanager
    def open(self, command: str) -> Iterator[None]:
        """Keep other commands away, which get a SiamDiffError. Records of another command are removed."""
        with lock(self.path, f"another siamdiff embed writes to {self.path}: wait for its end") as self.file:
            try:
                with writing(self.path):
                    first = f"{command}\n".encode()
                    self.file.seek(0)
                    if self.file.readline() != first:
                        self.file.seek(0)
                        self.file.truncate()
                        self.file.write(first)
                    self.done = sum(1 for _ in self.records())
                    self.file.truncate()
                yield
            finally:
                if not self.done:
                    with writing(self.path):
                        self.path.unlink(missing_ok=True)

    def records(self) -> Iterator[list[dict]]:
        """What each structure gave: a row for each embedding or error. The file then stands behind the last one."""
        self.file.seek(0)
        self.file.readline()
        whole = True
        while whole:
            start = self.file.tell()
            line = self.file.readline()
            whole = line.endswith(b"\n")
            rows = json.loads(line) if whole else []
            for row in rows:
                for name in self.include if "id" in row else ():
                    size = row[name]
                    row[name] = self.file.read(size)
                    whole &= len(row[name]) == size
            if whole:
                yield rows
        self.file.seek(start)

    def add(self, found: Sequence[Embedding | StructureError]) -> None:
        """Write the record of a structure, from all it gave. Raises WriteError."""
        rows = []
        vectors = []
        for e in found:
            if isinstance(e, StructureError):
                rows.append({"error": e.args, "unwanted": isinstance(e, UnwantedError)})
                continue
            size = [len(e.sequence)]
            row = {"id": [e.id], "incomplete": [e.incomplete], "dropped": e.dropped, "residues": size}
            row["chains"] = [len(set(e.chain))]
            if {"per_residue", "per_atom"} & {*self.include}:
                row |= {"residue_chain": e.chain, "residue_number": e.residue_number.tolist()}
                row |= {"residue_type": [*e.sequence], "residue_insertion_code": e.insertion_code}
                row |= {"residue_plddt": e.residue_plddt.tolist(), "residue_offset": size}
            if "per_atom" in self.include:
                row |= {"atom_name": e.atom_name, "atom_residue": e.atom_residue.tolist()}
                row["atom_offset"] = [len(e.atom_name)]
            for name in self.include:
                vectors.append(getattr(e, name).tobytes())
                row[name] = len(vectors[-1])
            rows.append(row)
        with writing(self.path):
            self.file.writelines([json.dumps(rows).encode(), b"\n", *vectors])
            self.file.flush()
        self.done += 1

    def read(self, width: int, files: contextlib.ExitStack) -> tuple[dict, list]:
        """All columns, and all errors. Vectors lie in nameless files, which `files` closes, and not in memory.

        Structure i has the rows `residue_offset[i]` to `residue_offset[i + 1]` of `per_residue`, and so on for
        `per_atom`. Raises WriteError.
        """
        columns = defaultdict(list)
        errors = []
        with writing(self.path):
            nameless = partial(tempfile.TemporaryFile, dir=self.path.parent)
            vectors = {name: files.enter_context(nameless()) for name in self.include}
            for row in itertools.chain.from_iterable(self.records()):
                if "error" in row:
                    errors.append((UnwantedError if row["unwanted"] else StructureError)(*row["error"]))
                    continue
                self.dropped.update(row.pop("dropped"))
                for name, values in row.items():
                    if name in vectors:
                        vectors[name].write(values)
                    else:
                        columns[name].append(np.array(values))
            arrays = {name: np.concatenate(values) for name, values in columns.items()}
            arrays |= {name: np.append(0, x.cumsum()) for name, x in arrays.items() if name.endswith("_offset")}
            for name, file in vectors.items() if arrays else ():
                file.flush()
                arrays[name] = np.memmap(file, np.float32, "r").reshape(-1, width)
        return arrays, errors


def identity(name: str, weights: Path) -> list[str]:
    """What a file of vectors or log-odds says of the weights it was made with: name, checksum, our version."""
    return [name, checksum(weights), __version__]
