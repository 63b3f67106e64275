"""Real conformers as second views of SiamDiff: ours, the paper simulates all of them (docs/data.md).

They are the further models of a file, and other structures that a table of pairs names. A store keeps them beside the
protein: its label `conformers` is (K, N, 3), other coordinates of its atoms, NaN where a conformer lacks the atom.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from Bio.Align import PairwiseAligner
from torch import Tensor

from ..files import ConfigError, StructureError, checksum, read_rows
from ..protein.constants import ATOM_NAMES, CA, ONE_LETTER
from ..protein.parse import read_models
from ..protein.protein import Protein
from ..protein.structure import Structure
from .crops import Crops
from .sources import Listing, Origin, Source

CONFORMERS = ("simulated", "models", "both")
LEAST_SHARED = 0.9  # of the residues of the longer one
UNMATCHED = "conformers that do not match"


def with_conformers(origin: Origin, pairs=None) -> Origin:
    """The same structures, each with its other conformers.

    `pairs` is a table of two columns, `id_a` and `id_b`: names of structures that are conformers of one protein. Raises
    StructureError if the table is malformed; its listing does if a name matches no structure.
    """
    partners, digest = ({}, "") if pairs is None else (_read_pairs(pairs), checksum(Path(pairs)))

    def listing() -> Listing:
        found = origin.listing()
        sources = {source.name: source for source in found.sources}
        if missing := sorted(partners.keys() - sources.keys()):
            detail = f"{len(missing)} of {len(partners)}, e.g. {missing[0]!r}; there is {next(iter(sources), 'none')!r}"
            raise StructureError(pairs, "names that match no structure", detail)
        others = {name: [sources[other] for other in sorted(partners.get(name, ()))] for name in sources}
        rows = [replace(s, label=partial(_add_conformers, s, others[name])) for name, s in sources.items()]
        return Listing(rows, found.skipped)

    variant = "-".join(filter(None, ("conformers", digest[:8])))
    return replace(origin, fingerprint=f"{origin.fingerprint} conformers {digest}", listing=listing, variant=variant)


def _read_pairs(path) -> dict[str, set[str]]:
    """The partners of every structure that a table names. Raises StructureError."""
    partners: dict[str, set[str]] = {}
    for row in read_rows(path):
        if row == ["id_a", "id_b"]:
            continue
        if len(row) != 2 or not all(row) or row[0] == row[1]:
            raise StructureError(path, "malformed table", f"not two different names: {row!r:.100}")
        for a, b in (row, row[::-1]):
            partners.setdefault(a, set()).add(b)
    return partners


def _add_conformers(source: Source, partners: list[Source], first: Structure) -> Structure:
    """The structure of a source with its further models and its partners."""
    models = enumerate(islice(source.parse(read_models), 1, None), 2)
    others = [(f"model {i}", model) for i, model in models] + [(str(partner), partner) for partner in partners]
    found, unmatched = [], []
    for label, other in others:
        try:
            other = other.read() if isinstance(other, Source) else other
            if isinstance(other, StructureError):
                raise other
            found.append(matched(first, other, str(source), label))
        except StructureError as error:
            unmatched.append(error)
    labels = {"conformers": torch.stack(found)} if found else {}
    dropped = first.dropped + Counter({UNMATCHED: len(unmatched)})
    return replace(first, labels=labels, dropped=dropped, unmatched=tuple(unmatched))


def matched(first: Structure, other: Structure, path: str, label: str) -> Tensor:
    """Coordinates in `other` of the atoms of `first`: (N, 3) float32, NaN for those that it lacks.

    Residues are matched by global alignments of the sequences, never by their numbers: chains of the same name or in
    file order, whichever shares more. Atoms are matched by their names. Raises StructureError if fewer than
    LEAST_SHARED of the residues are the same each way; `path` and `label` are for the message.
    """
    a, b = first.protein.residue_type, other.protein.residue_type
    orders = [range(len(other.chain_names))]
    if {*first.chain_names} == {*other.chain_names}:
        orders.insert(0, [other.chain_names.index(name) for name in first.chain_names])
    found = [torch.tensor(_aligned(first, other, order), dtype=torch.long).reshape(-1, 2) for order in orders]
    rows = max((rows[a[rows[:, 0]] == b[rows[:, 1]]] for rows in found), key=len)  # the first of equals
    if len(rows) < LEAST_SHARED * max(len(a), len(b)):
        detail = f"{label} shares {len(rows)} residues of {len(a)} and {len(b)}"
        raise StructureError(path, "a conformer of other residues", detail)
    slots = [torch.full((len(types), len(ATOM_NAMES), 3), torch.nan) for types in (a, b)]  # by residue and atom name
    slots[1][other.protein.atom_residue, other.protein.atom_name] = other.protein.pos
    slots[0][rows[:, 0]] = slots[1][rows[:, 1]]
    return slots[0][first.protein.atom_residue, first.protein.atom_name]


def _aligned(first: Structure, other: Structure, order: Sequence[int]) -> list[tuple[int, int]]:
    """Rows of the residues that global alignments put together.

    Each chain of `first` is aligned with that at its place in `order`. If their numbers differ, all chains are one.
    """
    aligner = PairwiseAligner(match_score=2, mismatch_score=-1, open_gap_score=-4, extend_gap_score=-0.5)
    ours, theirs = _chains(first), _chains(other)
    theirs, pairs = [theirs[i] for i in order], []
    if len(ours) != len(theirs):
        ours, theirs = ([[*chain.from_iterable(chains)]] for chains in (ours, theirs))
    for chains in zip(ours, theirs, strict=True):
        texts = ["".join(letter for _, letter in rows) for rows in chains]
        blocks = [[(0, len(x))] for x in texts] if texts[0] == texts[1] else aligner.align(*texts)[0].aligned.tolist()
        for block, fitting in zip(*blocks, strict=True):
            same = zip(chains[0][slice(*block)], chains[1][slice(*fitting)], strict=True)
            pairs += ((row, there) for (row, _), (there, _) in same)
    return pairs


def _chains(structure: Structure) -> list[list[tuple[int, str]]]:
    """Row and letter of the residues of every chain."""
    chains = [[] for _ in structure.chain_names]
    places, types = structure.protein.chain.tolist(), structure.protein.residue_type.tolist()
    for row, (place, kind) in enumerate(zip(places, types, strict=True)):
        chains[place].append((row, ONE_LETTER[kind]))
    return chains


class ConformerCrops(Crops):
    """Crops of two views: protein 0 is the crop, protein 1 the same residues and atoms in another conformer.

    The conformer is drawn, like the crop, from (seed, epoch, index). Atoms that it lacks are left out of both views, as
    each atom of one view is denoised from the same atom of the other. Without another conformer, or with `both` for
    every other draw on average, both proteins are the crop: then SiamDiff simulates the second view.
    """

    def __init__(self, *args, both: bool = False, **options):
        super().__init__(*args, **options)
        self.both = both
        having = sum(len(self.conformers(i)) > 0 for i in range(len(self)))
        if not having:
            reason = "no structure has another conformer (a store that was built without --conformers keeps none)"
            raise ConfigError(f"{self.store.path}: {reason}")
        unmatched = self.store.meta["dropped"].get(UNMATCHED, 0)
        self.about = f"{having} of {len(self)} proteins have others; {unmatched} do not match"
        self.about += f", see {self.store.path / 'failures.tsv'}" if unmatched else ""

    def conformers(self, index: int) -> Tensor:
        """Coordinates (K, N, 3) of a protein's K other conformers, a view of the file; none where K is 0."""
        return self.store.labels(index).get("conformers", torch.zeros(0))

    def __getitem__(self, key: tuple[int, int]) -> tuple[Protein, str]:
        protein, name = super().__getitem__(key)
        epoch, index = key
        found, views = self.conformers(index), [protein, protein]
        random = np.random.default_rng([self.seed, epoch, index, 1])
        if len(found) and not (self.both and random.random() < 0.5):
            first = self.store.atoms_before(index, self.window(epoch, index)[0])
            pos = found[int(random.integers(len(found))), first : first + protein.num_atoms].clone()
            there = ~pos[:, 0].isnan()
            keep = torch.zeros(protein.num_residues, dtype=torch.bool)
            keep[protein.atom_residue[there & (protein.atom_name == CA)]] = True
            if keep.any():  # else the conformer has none of these residues
                both = protein, replace(protein, pos=pos)
                views = [view.select_atoms(there).select_residues(keep) for view in both]
        return Protein.pack(views), name
