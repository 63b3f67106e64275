"""Demo sets for the five downstream tasks: structures bundled with the package, and labels of our own.

They let `finetune.py` run, and its parts be tested, without a data set. `demo_sets/TASK.json` says what the labels are,
then for every entry its labels and how it is made of a bundled structure; `benchmarks/make_demo.py` wrote these files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..files import sha256
from ..protein.constants import RESIDUE_INDEX, O
from ..protein.geometry import length, rotate_about_axis
from ..protein.structure import Structure, join
from .samples import LabelledData, write_note
from .structures import Listing, Origin, Source, bundle_path, find_structures, fingerprint

FOLDER = Path(__file__).parent / "demo_sets"
SHAKE = 0.2  # angstrom, of every coordinate of a model (PSR)
ENVIRONMENT_RADIUS = 10 * sqrt(3)  # angstrom around an ideal CB (RES)


def demo_set(task: str) -> LabelledData:
    """The demo set of a task: ec, pip, msp, res or psr."""
    content = json.loads((FOLDER / f"{task}.json").read_text(encoding="utf-8"))
    state = f"{fingerprint(bundle_path())} {sha256(FOLDER / f'{task}.json')}"
    origins = {}
    for split in ("train", "valid", "test"):
        version = hashlib.sha256(f"{state} {split}".encode()).hexdigest()
        recipes = [recipe for recipe in content["entries"] if recipe["split"] == split]
        listing = partial(_listing, task, recipes)
        origins[split] = Origin(bundle_path() / f"demo-{task}-{split}", version, listing, in_cache=True)
    return LabelledData(**origins, labels=tuple(content["labels"]), about=content["about"])


def _listing(task: str, recipes: list[dict]) -> Listing:
    sources = {source.name: source for source in find_structures(bundle_path()).sources}
    return Listing([Made(recipe["name"], task, sources[recipe["structure"]], recipe) for recipe in recipes], [])


@dataclass(frozen=True, slots=True)
class Made:
    """One entry of a demo set."""

    name: str
    task: str
    source: Source  # the bundled structure
    recipe: dict  # what `demo_sets` says of it

    @property
    def path(self) -> str:
        return f"{self.source.path}:{self.source.member}"

    def read(self) -> Structure:
        """Make it. Raises StructureError if the bundle is damaged."""
        return _MAKERS[self.task](self.source.read(), self.recipe)


def _ec(structure: Structure, recipe: dict) -> Structure:
    return replace(structure, note=write_note({"ec": recipe["ec"]}))


def _psr(structure: Structure, recipe: dict) -> Structure:
    protein = replace(structure.protein, pos=model(structure.protein.pos, recipe).float())
    note = write_note({"target": recipe["structure"], "gdt_ts": recipe["gdt_ts"]})
    return replace(structure, protein=protein, note=note)


def model(pos: Tensor, recipe: dict) -> Tensor:
    """Coordinates (N, 3) bent and shaken, float64. The noise begins so many numbers after the seed of the generator."""
    seed, drawn = recipe["noise"]
    random = np.random.Generator(np.random.PCG64(seed).advance(drawn))
    return bend(pos, recipe["turns"]) + SHAKE * torch.from_numpy(random.standard_normal(pos.shape))


def bend(pos: Tensor, turns: list[list]) -> Tensor:
    """Coordinates (N, 3) after turns about bonds, float64.

    A turn: the rows of the two atoms of the bond, an angle (radian), the row from which on all atoms move, and rows
    before that which move too.
    """
    pos, row = pos.double(), torch.arange(len(pos))
    for start, end, angle, first, *others in turns:
        moves = (row >= first) | torch.isin(row, torch.tensor(others, dtype=torch.long))
        turned = rotate_about_axis(pos, pos[start][None], pos[end][None], pos.new_full((len(pos),), angle))
        pos = torch.where(moves[:, None], turned, pos)
    return pos


def _res(structure: Structure, recipe: dict) -> Structure:
    protein, residues, counts, rows = structure.protein, [], [], []
    for residue, *ideal_cb in recipe["centres"]:
        own = protein.atom_residue == residue
        near = length(protein.pos - torch.tensor(ideal_cb)) <= ENVIRONMENT_RADIUS
        near = torch.where(own, protein.atom_name <= O, near)
        residues.append(residue)
        counts.append(int(near.sum()))
        rows += near.nonzero().flatten().tolist()
    return replace(structure, note=write_note({"residues": residues, "counts": counts}, rows))


def sides(structure: Structure, partners: str) -> list[Structure]:
    """The two sides of a complex; `partners` names their chains, as in "A:B"."""
    parts = []
    for names in partners.split(":"):
        chosen = torch.tensor([name in names for name in structure.chain_names])
        protein = structure.protein.select_residues(chosen[structure.protein.chain])
        protein = replace(protein, chain=protein.chain.unique(return_inverse=True)[1])  # counted from 0
        parts.append(Structure(protein, tuple(n for n in structure.chain_names if n in names), structure.dropped))
    return parts


def _pip(structure: Structure, recipe: dict) -> Structure:
    one, two = sides(structure, recipe["partners"])
    return join([one, two], write_note({"first": one.protein.num_residues, "ambiguous": []}, recipe["pairs"]))


def _msp(structure: Structure, recipe: dict) -> Structure:
    """A complex, and with one residue cut down to alanine."""
    wild, residue = join(sides(structure, recipe["partners"])), recipe["residue"]
    kinds, keep = wild.protein.residue_type.clone(), torch.ones(wild.protein.num_atoms, dtype=torch.bool)
    kinds[residue], keep[recipe["cut"]] = RESIDUE_INDEX["ALA"], False
    mutant = replace(wild.protein.select_atoms(keep), residue_type=kinds)
    size = wild.protein.num_residues
    note = write_note({"first": size, "mutated": [[residue], [size + residue]], "label": recipe["label"]})
    return join([wild, replace(wild, protein=mutant)], note)


_MAKERS = {"ec": _ec, "psr": _psr, "res": _res, "pip": _pip, "msp": _msp}
