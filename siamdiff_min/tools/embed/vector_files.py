"""The files that `siamdiff embed` writes: .npz, or .csv of means; and what it gathers until then."""

import contextlib
import itertools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ... import __version__
from ...embedding import Embedding
from ...files import ConfigError, checksum, replacing, write_rows, writing


def write_table(out: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz without pickles, or a .csv of the means. Raises WriteError.

    An older file is then unchanged.
    """
    if out.suffix == ".npz":
        with replacing(out) as file:
            np.savez(file, **arrays)
        return
    encoder = " ".join(arrays["encoder"])
    titles = ["name", *(f"v{k + 1}" for k in range(arrays["mean"].shape[1])), "encoder"]
    rows = ([name, *vector, encoder] for name, vector in zip(arrays["id"], arrays["mean"]))
    write_rows(out, itertools.chain([titles], rows), ",")


def check_out(out: Path) -> None:
    """Raises ConfigError for a file that this command did not write: it is never replaced."""
    ours = not out.exists()
    with contextlib.suppress(Exception):  # what another program wrote may be anything
        if out.suffix == ".csv":
            with open(out, "rb") as file:
                ours = file.readline().startswith(b"name,v1,")
        else:
            with np.load(out, allow_pickle=False) as arrays:
                ours = {"id", "failed", "failed_reason"} <= {*arrays.files}
    if not ours:
        raise ConfigError(f"--out {out} exists and holds no vectors of siamdiff embed, so it is not replaced")


class Vectors:
    """What a command has embedded so far. Vectors lie in nameless files beside OUT, not in memory."""

    def __init__(self, out: Path, include: Sequence[str], width: int):
        self.out = out
        self.width = width
        self.columns: dict[str, list[np.ndarray]] = defaultdict(list)
        self.incomplete: dict[str, str] = {}  # name of a structure -> what the encoder did not see of it
        self.dropped: Counter = Counter()  # what the reader left out of all of them
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            names = dict.fromkeys(include)
            self.files = {name: tempfile.TemporaryFile(dir=out.parent) for name in names}  # noqa: SIM115

    def __enter__(self) -> "Vectors":
        return self

    def __exit__(self, *_) -> None:
        for file in self.files.values():
            file.close()

    def add(self, e: Embedding) -> None:
        """Add a structure. Raises WriteError."""
        self.incomplete[e.id] = e.incomplete
        self.dropped.update(e.dropped)
        size = [len(e.sequence)]
        row = {"id": [e.id], "incomplete": [e.incomplete], "residues": size, "chains": [len(set(e.chain))]}
        row["plddt"] = [np.nan if e.plddt is None else e.plddt]
        if {"per_residue", "per_atom"} & self.files.keys():
            row |= {"residue_chain": e.chain, "residue_number": e.residue_number}
            row |= {"residue_type": [*e.sequence], "residue_insertion_code": e.insertion_code}
            row |= {"residue_plddt": e.residue_plddt, "residue_offset": size}
        if "per_atom" in self.files:
            row |= {"atom_name": e.atom_name, "atom_residue": e.atom_residue, "atom_offset": [len(e.atom_name)]}
        for name, values in row.items():
            self.columns[name].append(np.array(values))
        for name, file in self.files.items():
            with writing(self.out):
                file.write(getattr(e, name).tobytes())

    def arrays(self) -> dict[str, np.ndarray]:
        """All columns. Raises WriteError.

        Structure i has the rows `residue_offset[i]` to `residue_offset[i + 1]` of `per_residue`, and so on for
        `per_atom`.
        """
        arrays = {name: np.concatenate(values) for name, values in self.columns.items()}
        arrays |= {name: np.append(0, x.cumsum()) for name, x in arrays.items() if name.endswith("_offset")}
        for name, file in self.files.items():
            with writing(self.out):
                file.flush()
            arrays[name] = np.memmap(file, np.float32, "r").reshape(-1, self.width)
        return arrays


def identity(name: str, weights: Path) -> list[str]:
    """What a file of vectors says of the weights it was made with: name, checksum, our version."""
    return [name, checksum(weights), __version__]
