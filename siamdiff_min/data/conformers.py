"""Real conformers as second views of SiamDiff: ours, the paper simulates all of them (docs/conformers.md).

They are the further models of a file, and other structures that a table of pairs names. A store keeps them as notes,
{"conformers": K} and K further coordinates of the protein's atoms: NaN where a conformer lacks the atom.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from Bio.Align import PairwiseAligner

from ..files import ConfigError, StructureError, sha256, structure_errors
from ..protein.constants import ATOM_NAMES, CA, ONE_LETTER
from ..protein.parse import read_models
from ..protein.protein import Protein
from ..protein.structure import Structure
from .build import open_origin
from .crops import Crops
from .samples import read_note, write_note
from .store import ProteinStore, is_store
from .structures import Listing, Origin, Source, structure_files

CONFORMERS = ("simulated", "models", "both")
LEAST_SHARED = 0.9  # of the residues of the longer one


def open_conformers(path=None, pairs=None, store=None, workers: int | None = None, build: bool = True):
    """`build.open_store`, with all conformers of every protein.

    Args:
        pairs: a table of two columns, `id_a` and `id_b`: structures of `path` that are conformers of one protein.

    Raises:
        ConfigError: a table for a finished store.
        StructureError, StoreError: as `open_store`; the table is malformed or names a structure that is not there.
    """
    if path is None or not is_store(path):
        return open_origin(_with_conformers(structure_files(path), pairs), store, workers, build)
    if pairs is not None:
        raise ConfigError(f"--pairs {pairs}: {path} is a finished store; its conformers are those it was built with")
    return ProteinStore(path)


def _with_conformers(origin: Origin, pairs) -> Origin:
    """The same structures, each with its other conformers. Raises StructureError for a malformed table."""
    partners, digest = ({}, "") if pairs is None else (_read_pairs(pairs), sha256(Path(pairs)))

    def listing() -> Listing:
        found = origin.listing()
        sources = {source.name: source for source in found.sources}
        if missing := sorted(partners.keys() - sources.keys()):
            detail = f"{len(missing)} of {len(partners)}, e.g. {', '.join(missing[:3])}"
            raise StructureError(pairs, "names that match no structure", detail)
        rows = [_Conformers(s.name, s, tuple(sources[n] for n in partners.get(s.name, ()))) for s in found.sources]
        return Listing(rows, found.skipped)

    variant = "-".join(filter(None, ("conformers", digest[:8])))
    return replace(origin, fingerprint=f"{origin.fingerprint} conformers {digest}", listing=listing, variant=variant)


def _read_pairs(path) -> dict[str, list[str]]:
    """The partners of every structure that a table names. Raises StructureError."""
    partners: dict[str, list[str]] = {}
    with structure_errors(path, "malformed table"), open(path, encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
            if len(row) != 2 or row[0] == row[1]:
                raise ValueError(f"row {number} is not two different names: {row!r:.100}")
            for a, b in (row, row[::-1]) if row != ["id_a", "id_b"] else ():
                partners.setdefault(a, []).append(b)
    return partners


@dataclass(frozen=True, slots=True)
class _Conformers:
    """A source of one structure with its further models and its partners."""

    name: str
    source: Source
    partners: tuple[Source, ...]

    @property
    def path(self) -> str:
        return self.source.path

    def read(self) -> Structure:
        first, *models = self.source.read(read_models)
        others = [(f"model {number}", lambda m=model: m) for number, model in enumerate(models, 2)]
        found, failures = [], []
        for label, read in others + [(partner.label, partner.read) for partner in self.partners]:
            try:
                found.append(matched(first.protein, read().protein, self.source.label, label))
            except StructureError as error:
                failures.append(error)
        note = write_note({"conformers": len(found)}, np.stack(found).ravel().view("<i4")) if found else b""
        return replace(first, note=note, failures=tuple(failures))


def matched(first: Protein, other: Protein, path: str, label: str) -> np.ndarray:
    """Coordinates in `other` of the atoms of `first`: (N, 3) float32, NaN for those that it lacks.

    Residues are matched by a global alignment of the sequences, chains in file order, and atoms by their names. Raises
    StructureError if fewer than LEAST_SHARED of the residues are the same; `path` and `label` are for the message.
    """
    a, b = first.residue_type.numpy(), other.residue_type.numpy()
    if np.array_equal(a, b):
        rows_a = rows_b = np.arange(len(a))
    else:
        aligner = PairwiseAligner(match_score=2, mismatch_score=-1, open_gap_score=-4, extend_gap_score=-0.5)
        blocks = aligner.align(*("".join(ONE_LETTER[t] for t in types) for types in (a, b)))[0].aligned
        rows_a, rows_b = (np.concatenate([np.arange(*block) for block in side]) for side in blocks)
        same = a[rows_a] == b[rows_b]
        rows_a, rows_b = rows_a[same], rows_b[same]
    if len(rows_a) < LEAST_SHARED * max(len(a), len(b)):
        detail = f"{label} shares {len(rows_a)} residues of {len(a)} and {len(b)}"
        raise StructureError(path, "a conformer of other residues", detail)
    residue = np.full(len(a), -1)  # of `other`; -1 is the last row of `atom`, which has no atoms
    residue[rows_a] = rows_b
    atom = np.full((len(b) + 1, len(ATOM_NAMES)), -1)  # of `other`, by residue and name; -1 is a row of NaN
    atom[other.atom_residue, other.atom_name] = np.arange(other.num_atoms)
    pos = np.concatenate([other.pos.numpy(), np.full((1, 3), np.nan, np.float32)])
    return pos[atom[residue[first.atom_residue], first.atom_name]].astype("<f4")


class ConformerCrops(Crops):
    """Crops of two views: graph 0 is the crop, graph 1 the same residues and atoms of another conformer of the protein.

    Which one is drawn, like the crop, from (seed, epoch, index). What it lacks is left out of both views, for each
    atom of one is denoised from the same atom of the other. Without another conformer, or with `both` for every
    other draw on average, both graphs are the crop: then SiamDiff simulates the second view.
    """

    def __init__(self, *args, both: bool = False, **options):
        super().__init__(*args, **options)
        self.both = both
        self.having = sum(self.conformers(i)[0] > 0 for i in range(len(self)))  # proteins with other conformers
        if not self.having:
            raise ConfigError(f"{self.store.path}: no structure has another conformer, so --conformers is simulated")

    def conformers(self, index: int) -> tuple[int, np.ndarray]:
        """Number K of further conformers of a protein, and their coordinates (K N 3,), a view of the file."""
        note = self.store.note(index)
        values, rows = read_note(note) if len(note) else ({}, note)
        return values.get("conformers", 0), rows

    def __getitem__(self, key: tuple[int, int]) -> tuple[Protein, str]:
        protein, name = super().__getitem__(key)
        epoch, index = key
        number, rows = self.conformers(index)
        random = np.random.default_rng(np.random.SeedSequence([self.seed, epoch, index, 1]))
        views = [protein, protein]
        if number and not (self.both and random.random() < 0.5):
            first = self.store.atoms_before(index, self.window(epoch, index)[0])
            pos = rows.view("<f4").reshape(number, -1, 3)[random.integers(number), first : first + protein.num_atoms]
            other = replace(protein, pos=torch.tensor(pos))
            there = ~other.pos[:, 0].isnan()
            keep = torch.zeros(protein.num_residues, dtype=torch.bool)
            keep[protein.atom_residue[there & (protein.atom_name == CA)]] = True
            if keep.any():  # else the conformer has none of these residues
                views = [view.select_atoms(there).select_residues(keep) for view in (protein, other)]
        return Protein.pack(views), name
