"""What an embedding is, and the files that hold embeddings: one .npz, a folder of many, or .csv.

A large set goes to a folder: every GROUP structures are one .npz, written as soon as they are made; in the end
`index.tsv` says where each structure is. The same command continues a folder that was interrupted.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .files import ConfigError, StructureError, WriteError, escape, replacing, write_file, writing

INCLUDE = ("mean", "per_residue", "per_atom")
GROUP = 256  # structures of one file in a folder; batches are made of those of similar size among them


@dataclass(frozen=True)
class Embedding:
    """Representations of one structure, and whose they are. What was not asked for has no rows."""

    id: str
    mean: np.ndarray  # (d,)    mean over the residues
    per_residue: np.ndarray  # (R, d)
    per_atom: np.ndarray  # (N, d)   at residue level the atoms are the CA, so N = R
    chain: list[str]  # (R,)   author chain
    number: np.ndarray  # (R,) int   author residue number
    insertion_code: list[str]  # (R,)   "" where there is none
    sequence: str  # (R,)   one letter each
    atom_name: list[str]  # (N,)
    atom_residue: np.ndarray  # (N,) int   row in per_residue


def save(
    path: Path, embeddings: list[Embedding], width: int, include: Sequence[str], failures: list[StructureError]
) -> None:
    """Write a .csv of the means, or an .npz without pickles. Rows of structure i in an .npz: `residue_offset[i]` to
    `residue_offset[i + 1]`. Raises WriteError; an older file is then unchanged."""
    with replacing(path) as file:
        if path.suffix == ".csv":
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            table = csv.writer(text)
            table.writerow(["id", *range(width)])
            table.writerows([escape(e.id), *(f"{x:.9g}" for x in e.mean.tolist())] for e in embeddings)
            text.detach()
        else:
            np.savez(file, **_arrays(embeddings, width, include, failures))


def _arrays(embeddings: list[Embedding], width: int, include: Sequence[str], failures) -> dict[str, np.ndarray]:
    def rows(name: str) -> np.ndarray:
        return np.concatenate([np.zeros((0, width), np.float32), *(getattr(e, name) for e in embeddings)])

    def column(name: str, kind: type) -> np.ndarray:
        return np.array([x for e in embeddings for x in getattr(e, name)], dtype=kind)

    arrays = {"id": np.array([e.id for e in embeddings], dtype=str)}
    if "mean" in include:
        arrays["mean"] = np.array([e.mean for e in embeddings], dtype=np.float32).reshape(-1, width)
    if "per_residue" in include or "per_atom" in include:
        arrays["residue_offset"] = np.cumsum([0, *(len(e.number) for e in embeddings)])
        arrays["residue_chain"] = column("chain", str)
        arrays["residue_number"] = column("number", np.int64)
        arrays["residue_insertion_code"] = column("insertion_code", str)
        arrays["residue_type"] = column("sequence", str)
    if "per_residue" in include:
        arrays["per_residue"] = rows("per_residue")
    if "per_atom" in include:
        arrays["atom_offset"] = np.cumsum([0, *(len(e.atom_name) for e in embeddings)])
        arrays["atom_name"] = column("atom_name", str)
        arrays["atom_residue"] = column("atom_residue", np.int64)  # counted within the structure
        arrays["per_atom"] = rows("per_atom")
    arrays["failed"] = np.array([error.path for error in failures], dtype=str)
    arrays["failed_reason"] = np.array([error.reason for error in failures], dtype=str)
    return arrays


def read_outcome(path: Path) -> tuple[list[str], list[StructureError]] | None:
    """Ids and failures in a file of a folder; None if it is not there, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            failed = zip(arrays["failed"].tolist(), arrays["failed_reason"].tolist())
            return arrays["id"].tolist(), [StructureError(*pair) for pair in failed]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def check_place(out: Path, folder: bool) -> None:
    """Make the folder that `out` is or lies in. Raises WriteError if nothing can be written there, ConfigError for a
    folder of the user's."""
    place = out if folder else out.parent
    with writing(out):
        if out.is_dir() and not folder:
            raise IsADirectoryError(f"{out} is a folder")
        place.mkdir(parents=True, exist_ok=True)
        begun = {"lock", "plan.json.tmp"}  # what a kill leaves behind before there is a plan
        if folder and {path.name for path in out.iterdir()} - begun and not (out / "plan.json").is_file():
            raise ConfigError(f"{out} is not empty and not a folder of embeddings; choose another --out")
        tempfile.TemporaryFile(dir=place).close()


def start_or_continue(folder: Path, plan: dict) -> None:
    """Note in a folder what its embeddings are made of, and how. Raises ConfigError if it was something else before."""
    file, text = folder / "plan.json", json.dumps(plan, indent=1)
    try:
        before = json.loads(file.read_bytes()) if file.exists() else plan
        other = [name for name in plan if before[name] != plan[name]]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file} is not one of siamdiff-embed; choose another --out") from error
    if other:
        raise ConfigError(f"{folder} holds embeddings of another run ({', '.join(other)}); choose another --out")
    write_file(file, text.encode())


def write_index(folder: Path, paths: list[Path]) -> None:
    """Write `index.tsv` (id, file, row in it) and `failures.tsv` (structure file, reason) of a finished folder."""
    with replacing(folder / "index.tsv") as index, replacing(folder / "failures.tsv") as failures:
        index.write(b"id\tfile\trow\n")
        failures.write(b"file\treason\n")
        for path in paths:
            outcome = read_outcome(path)
            if outcome is None:
                raise WriteError(f"{path} is damaged; remove it and give the same command again")
            for row, name in enumerate(outcome[0]):
                index.write(f"{escape(name)}\t{path.name}\t{row}\n".encode())
            for error in outcome[1]:
                failures.write(f"{escape(error.path)}\t{escape(error.reason)}\n".encode())
