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
from .crops import Crops
from .samples import read_note, write_note
from .structures import Listing, Origin, Source

CONFORMERS = ("simulated", "models", "both")
LEAST_SHARED = 0.9  # of the residues of the longer one


def with_conformers(origin: Origin, pairs=None) -> Origin:
    """The same structures, each with its other conformers.

    `pairs` is a table of two columns, `id_a` and `id_b`: names of structures that are conformers of one protein. Raises
    StructureError where it is malformed; its listing does, where a name matches no structure.
    """
    partners, digest = ({}, "") if pairs is None else (_read_pairs(pairs), sha256(Path(pairs)))

    def listing() -> Listing:
        found = origin.listing()
        sources = {source.name: source for source in found.sources}
        if missing := sorted(partners.keys() - sources.keys()):
            detail = f"{len(missing)} of {len(partners)}, e.g. {', '.join(missing[:3])}"
            raise StructureError(pairs, "names that match no structure", detail)
        rows = [_Conformers(n, s, tuple(sources[m] for m in sorted(partners.get(n, ())))) for n, s in sources.items()]
        return Listing(rows, found.skipped)

    variant = "-".join(filter(None, ("conformers", digest[:8])))
    return replace(origin, fingerprint=f"{origin.fingerprint} conformers {digest}", listing=listing, variant=variant)


def _read_pairs(path) -> dict[str, set[str]]:
    """The partners of every structure that a table names. Raises StructureError."""
    partners: dict[str, set[str]] = {}
    with structure_errors(path, "malformed table"), open(path, encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if any(row)]
        for number, row in enumerate(rows, 1):
            if len(row) != 2 or row[0] == row[1]:
                raise ValueError(f"row {number} is not two different names: {row!r:.100}")
            for a, b in (row, row[::-1]) if row != ["id_a", "id_b"] else ():
                partners.setdefault(a, set()).add(b)
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
    aligner = PairwiseAligner(match_score=2, mismatch_score=-1, open_gap_score=-4, extend_gap_score=-0.5)
    blocks = aligner.align(*("".join(ONE_LETTER[t] for t in types) for types in (a, b)))[0].aligned
    rows_a, rows_b = (np.concatenate([np.arange(*block) for block in side]) for side in blocks)
    same = a[rows_a] == b[rows_b]
    if same.sum() < LEAST_SHARED * max(len(a), len(b)):
        detail = f"{label} shares {same.sum()} residues of {len(a)} and {len(b)}"
        raise StructureError(path, "a conformer of other residues", detail)
    slots = [np.full((len(types), len(ATOM_NAMES), 3), np.nan, "<f4") for types in (a, b)]  # by residue and atom name
    slots[1][other.atom_residue, other.atom_name] = other.pos
    slots[0][rows_a[same]] = slots[1][rows_b[same]]
    return slots[0][first.atom_residue, first.atom_name]


class ConformerCrops(Crops):
    """Crops of two views: graph 0 is the crop, graph 1 the same residues and atoms of another conformer of the protein.

    Which one is drawn, like the crop, from (seed, epoch, index). What it lacks is left out of both views, for each
    atom of one is denoised from the same atom of the other. Without another conformer, or with `both` for every
    other draw on average, both graphs are the crop: then SiamDiff simulates the second view.
    """

    def __init__(self, *args, both: bool = False, **options):
        super().__init__(*args, **options)
        self.both = both
        self.having = sum(len(self.conformers(i)) > 0 for i in range(len(self)))  # proteins with other conformers
        if not self.having:
            raise ConfigError(f"{self.store.path}: no structure has another conformer, so --conformers is simulated")

    def conformers(self, index: int) -> np.ndarray:
        """Coordinates (K, N, 3) of a protein's K other conformers, a view of the file."""
        note = self.store.note(index)
        values, rows = read_note(note) if len(note) else ({}, note)
        return rows.view("<f4").reshape(values["conformers"], -1, 3) if "conformers" in values else np.zeros(0)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Protein, str]:
        protein, name = super().__getitem__(key)
        epoch, index = key
        found, views = self.conformers(index), [protein, protein]
        random = np.random.default_rng(np.random.SeedSequence([self.seed, epoch, index, 1]))
        if len(found) and not (self.both and random.random() < 0.5):
            first = self.store.atoms_before(index, self.window(epoch, index)[0])
            pos = torch.tensor(found[random.integers(len(found)), first : first + protein.num_atoms])
            there = ~pos[:, 0].isnan()
            keep = torch.zeros(protein.num_residues, dtype=torch.bool)
            keep[protein.atom_residue[there & (protein.atom_name == CA)]] = True
            if keep.any():  # else the conformer has none of these residues
                shared = (
                    view.select_atoms(there).select_residues(keep) for view in (protein, replace(protein, pos=pos))
                )
                views = list(shared)
        return Protein.pack(views), name
