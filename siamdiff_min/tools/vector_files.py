"""The files of vectors that `siamdiff embed` writes: .npz, or .csv of the means or of the residues."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..files import ConfigError, replacing, write_rows

RESIDUE_TITLES = ("name", "chain", "number", "code", "type", "plddt")  # before the vector


def write_table(out: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz without pickles, or a .csv of the means or of the residues. Raises WriteError.

    An older file is then unchanged.
    """
    if out.suffix == ".npz":
        with replacing(out) as file:
            np.savez(file, **arrays)
        return
    if "per_residue" in arrays:
        write_rows(out, residue_rows(arrays), ",")
        return
    encoder = " ".join(arrays["encoder"])
    titles = ["name", *(f"v{k + 1}" for k in range(arrays["mean"].shape[1])), "encoder"]
    rows = ([name, *vector, encoder] for name, vector in zip(arrays["id"], arrays["mean"]))
    write_rows(out, [titles, *rows], ",")


def residue_rows(arrays: Mapping[str, np.ndarray]) -> Iterator[list]:
    """A row for every residue, after the titles: name of the structure, where it stands, type, pLDDT, vector."""
    vectors = arrays["per_residue"]
    yield [*RESIDUE_TITLES, *(f"v{k + 1}" for k in range(vectors.shape[1])), "encoder"]
    encoder = " ".join(arrays["encoder"])
    names = np.repeat(arrays["id"], np.diff(arrays["residue_offset"]))
    columns = [arrays[f"residue_{title}"] for title in ("chain", "number", "insertion_code", "type", "plddt")]
    for *place, vector in zip(names, *columns, vectors):
        yield [*place, *vector, encoder]


def check_out(out: Path, include: Sequence[str]) -> None:
    """Raises ConfigError for another ending, and for a file that this command did not write: it is never replaced."""
    if out.suffix not in (".npz", ".csv") or out.is_dir():
        raise ConfigError(f"--out {out} is not the name of an .npz or .csv file")
    if out.suffix == ".csv" and [*include] not in (["mean"], ["per_residue"]):
        raise ConfigError(f"--out {out}: a .csv holds the mean of every structure, or per_residue; both an .npz")
    ours = not out.exists()
    with contextlib.suppress(Exception):  # what another program wrote may be anything
        if out.suffix == ".csv":
            with open(out, "rb") as file:
                ours = file.readline().startswith((b"name,v1,", f"{','.join(RESIDUE_TITLES)},v1,".encode()))
        else:
            with np.load(out, allow_pickle=False) as arrays:
                ours = {"id", "failed", "failed_reason"} <= {*arrays.files}
    if not ours:
        raise ConfigError(f"--out {out} exists and holds no vectors of siamdiff embed, so it is not replaced")
