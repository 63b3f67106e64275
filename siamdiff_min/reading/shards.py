"""A shard, one file of a store: proteins and their labels, mapped into memory.

It is a dict that `torch.save` wrote, of the proteins of some hundred sources, one after the other as in `Protein.pack`:

    names, chains     names of the B proteins, and for each the author's ids of its chains
    labels            B dicts of labels (`samples.py` lists them); empty for plain structures
    failures          rows of `failures.tsv`: sources that could not be read
    dropped           reason -> number of atoms or residues that the parsing policy left out
    first_residue     (B + 1,) row of the first residue of every protein
    residues, atoms   (R + 1,) and (N,) the fields of `Protein` in RESIDUE and ATOM, row by row, as bytes

`torch.load` maps it into memory: a crop reads only the bytes of its residues, and no code is ever run.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from ..files import StoreError, StructureError, UnwantedError
from ..protein.protein import Protein
from .structure import Structure

# The fields of a `Protein` that are kept, and their types on the disk; the other fields follow from them.
ATOM = np.dtype([("pos", "<f4", 3), ("atom_name", "u1")])
RESIDUE = np.dtype(
    [(name, "<i4") for name in ("first_atom", "residue_number", "residue_index", "chain")]
    + [(name, "u1") for name in ("residue_type", "insertion_code")]
)
TABLES = {"first_residue": np.dtype("<i4"), "residues": RESIDUE, "atoms": ATOM}


def shard_file(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.pt"


def damaged(file: Path, reason) -> StoreError:
    """The error about a file of a store whose content cannot be what was written."""
    return StoreError(f"{file} is damaged ({reason}): remove {file.parent}, and it is built again")


def load_shard(file: Path) -> dict:
    """The content of a shard, its tensors mapped. Raises StoreError."""
    try:
        return torch.load(file, mmap=True, weights_only=True)
    except UnicodeEncodeError as error:
        help = "Set PYTHONUTF8=1, or a locale of UTF-8 such as LC_ALL=C.UTF-8, or choose another folder"
        raise StoreError(f"{file}: torch takes only paths in UTF-8. {help}") from error
    except Exception as error:  # torch finds many kinds of damage
        raise damaged(file, f"{str(error).partition(chr(10))[0]:.100}") from error


def content_hash(shard: dict) -> str:
    """A hash of proteins, names and labels, whatever version of torch wrote them. Paths of failures are not in it."""
    labels = [{key: x.tolist() if torch.is_tensor(x) else x for key, x in of.items()} for of in shard["labels"]]
    text = repr([shard["names"], shard["chains"], labels, shard["dropped"]])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape"))
    for name in TABLES:
        digest.update(shard[name].numpy())
    return digest.hexdigest()


def sequence_hashes(shard: dict) -> list[str]:
    """For every protein a hash of its sequence; of several chains, of all that differ. So it does not count copies."""
    residues, hashes = shard["residues"].numpy().view(RESIDUE)[:, 0], []
    for first, last in pairwise(shard["first_residue"].numpy().view("<i4")[:, 0].tolist()):
        chain, types = (residues[name][first:last] for name in ("chain", "residue_type"))
        chains = {part.tobytes() for part in np.split(types, np.flatnonzero(np.diff(chain)) + 1)}
        hashes.append(hashlib.sha256(b"\xff".join(sorted(chains))).hexdigest()[:16])
    return hashes


def pack_shard(sources: Sequence, answers: Sequence[Structure | StructureError], each_chain: bool = False) -> dict:
    """The shard of sources that became structures, or could not be read."""
    named = [(source.name, x) for source, x in zip(sources, answers, strict=True) if isinstance(x, Structure)]
    if each_chain:
        named = [(f"{name}_{chain}", part) for name, x in named for chain, part in x.chains().items()]
    failures = [
        (source.name, "skipped" if isinstance(x, UnwantedError) else "failed", x.reason, x.path, x.detail)
        for source, x in zip(sources, answers)
        if not isinstance(x, Structure)
    ]
    structures = [structure for _, structure in named]
    proteins, labels = [s.protein for s in structures], [s.labels for s in structures]
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
        "names": [name for name, _ in named],
        "chains": [list(s.chain_names) for s in structures],
        "labels": labels if any(labels) else [],
        "failures": failures,
        "dropped": dict(sum((s.dropped for s in structures), Counter())),
    }
    for name, array in zip(TABLES, (first, residues, atoms), strict=True):
        shard[name] = torch.from_numpy(array.view("u1").reshape(len(array), array.itemsize))
    return shard
