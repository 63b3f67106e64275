"""A shard, one file of a store: proteins and their labels, mapped into memory.

It is a dict that `torch.save` wrote, of the proteins of some hundred sources, one after the other as in `Protein.pack`:

    names, chains     names of the B proteins, and for each the author's ids of its chains
    labels            B dicts of labels (`samples.py` lists them); empty for plain structures
    failures          rows of `failures.tsv`: sources that could not be read
    dropped           reason -> number of atoms or residues that the parsing policy left out
    first_residue     (B + 1,) row of the first residue of every protein
    residues, atoms   (R + 1,) and (N,) the fields of `Protein` in RESIDUE and ATOM, row by row, as bytes

A crop needs the three tables alone: `map_tables` maps them where they lie in the file, in 0.05 ms. No code is run.
"""

import hashlib
import zipfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..files import StoreError, StructureError, UnwantedError, part
from ..protein.constants import BACKBONE, MAX_MISSING
from ..protein.protein import Protein
from .columns import changes
from .structure import Structure

# The fields of a `Protein` that are kept, and their types on the disk; the other fields follow from them.
ATOM = np.dtype([("pos", "<f4", 3), ("atom_name", "u1")])
RESIDUE = np.dtype(
    [(name, "<i4") for name in ("first_atom", "residue_number", "residue_index", "chain")]
    + [(name, "u1") for name in ("residue_type", "insertion_code")]
)
TABLES = {"first_residue": np.dtype("<i4"), "residues": RESIDUE, "atoms": ATOM}  # in the order of the file
ZIP_HEADER = 30  # bytes before the name of a member; the last four are the lengths of its name and of what follows


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


def map_tables(file: Path) -> tuple[Tensor, dict[str, np.ndarray]]:
    """The bytes of a shard, mapped into memory, and its TABLES in them, the last tensors. Raises StoreError."""
    try:
        with zipfile.ZipFile(file) as archive:
            storages = [member for member in archive.infolist() if "/data/" in member.filename]
        storages.sort(key=lambda member: int(member.filename.rpartition("/")[2]))
        whole = torch.from_file(str(file), size=file.stat().st_size, dtype=torch.uint8)
        data = whole.numpy()
        tables = {}
        for (name, dtype), member in zip(TABLES.items(), storages[-len(TABLES) :], strict=True):
            # Between the header and the bytes of a tensor lie its name, and what torch fills in to align them.
            header = member.header_offset + ZIP_HEADER
            lengths = data[header - 4 : header].view("<u2")
            start = header + int(lengths.sum())
            tables[name] = data[start : start + member.file_size].view(dtype)
    except Exception as error:  # another file than was written: anything may be wrong with it
        raise damaged(file, f"{str(error).partition(chr(10))[0]:.100}") from error
    return whole, tables


def describe(shard: dict) -> dict:
    """What `meta.json` says of a shard."""
    return {"names": shard["names"], "sequences": sequence_hashes(shard), "content": content_hash(shard)}


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
    residues = shard["residues"].numpy().view(RESIDUE)[:, 0]
    rows = shard["first_residue"].numpy().view("<i4")[:, 0]
    hashes = []
    for first, last in pairwise(rows.tolist()):
        starts = changes(residues["chain"][first:last])
        chains = np.split(residues["residue_type"][first:last], starts[1:])
        different = {types.tobytes() for types in chains}
        digest = hashlib.sha256(b"\xff".join(sorted(different)))
        hashes.append(digest.hexdigest()[:16])
    return hashes


def missing_backbone(shard: dict) -> list[int]:
    """How many backbone atoms each protein lacks of which over 1 % are missing. In 215 of 217 bundled ones none is."""
    rows = shard["first_residue"].numpy().view("<i4")[:, 0]
    first_atom = shard["residues"].numpy().view(RESIDUE)["first_atom"][rows, 0]
    of_backbone = shard["atoms"].numpy().view(ATOM)["atom_name"][:, 0] < len(BACKBONE)
    before = np.append(0, of_backbone.cumsum())
    expected = len(BACKBONE) * np.diff(rows)
    missing = expected - np.diff(before[first_atom])
    return missing[missing > MAX_MISSING * expected].tolist()


def pack_shard(sources: Sequence, answers: Sequence[Structure | StructureError], each_chain: bool = False) -> dict:
    """The shard of sources that became structures, or could not be read."""
    named = []  # (name, structure)
    failures = []
    for source, answer in zip(sources, answers, strict=True):
        if not isinstance(answer, Structure):
            outcome = "skipped" if isinstance(answer, UnwantedError) else "failed"
            failures.append((source.name, outcome, answer.reason, answer.path, answer.detail))
        elif each_chain:
            named += [(f"{source.name}_{chain}", part_of) for chain, part_of in part("chains_of")(answer).items()]
        else:
            named.append((source.name, answer))
    structures = [structure for _, structure in named]
    labels = [structure.labels for structure in structures]
    shard = {
        "names": [name for name, _ in named],
        "chains": [list(structure.chain_names) for structure in structures],
        "labels": labels if any(labels) else [],
        "failures": failures,
        "dropped": dict(sorted(sum((structure.dropped for structure in structures), Counter()).items())),
    }
    for name, array in _tables([structure.protein for structure in structures]).items():
        shard[name] = torch.from_numpy(array.view("u1").reshape(len(array), array.itemsize))
    return shard


def _tables(proteins: list[Protein]) -> dict[str, np.ndarray]:
    """The TABLES of these proteins."""
    first = np.cumsum([0, *(protein.num_residues for protein in proteins)], dtype=np.int32)
    atoms = np.zeros(sum(protein.num_atoms for protein in proteins), ATOM)
    residues = np.zeros(first[-1] + 1, RESIDUE)  # the last row only says where the atoms end
    if proteins:
        packed = Protein.pack(proteins)
        for name in ATOM.names:
            atoms[name] = getattr(packed, name)
        for name in {*RESIDUE.names} - {"first_atom"}:
            residues[name][:-1] = getattr(packed, name)
        atoms_of_each = torch.bincount(packed.atom_residue, minlength=packed.num_residues)
        residues["first_atom"][1:] = atoms_of_each.cumsum(0)
    return {"first_residue": first, "residues": residues, "atoms": atoms}
