"""Demo sets for the five downstream tasks: structures bundled with the package, and labels of our own.

They let `finetune.py` run, and its parts be tested, without a data set. `TASK.json` in demo_sets.zip says what the
labels are, and for every entry its labels and how to make it from a bundled structure (`benchmarks/make_sets.py`).
"""

import hashlib
import json
import zipfile
from dataclasses import replace
from functools import partial
from math import sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..protein.constants import RESIDUE_INDEX, O
from ..protein.geometry import length, rotate_about_axis
from ..protein.protein import Protein
from ..reading.sources import Listing, Origin, bundle_path, find_structures
from ..reading.structure import Structure, join
from .labelled_set import SPLITS, LabelledData
from .samples import SAMPLES, pack_lists

FILE = Path(__file__).with_name("demo_sets.zip")
SHAKE = 0.2  # angstrom by which every coordinate of a model moves (PSR)
ENVIRONMENT_RADIUS = 10 * sqrt(3)  # angstrom around an ideal CB (RES)


def demo_set(task: str) -> LabelledData:
    """The demo set of a task: ec, pip, msp, res or psr."""
    with zipfile.ZipFile(FILE) as archive:
        text = archive.read(f"{task}.json")
    content = json.loads(text)
    digest = hashlib.sha256(text, usedforsecurity=False).hexdigest()
    origins = {}
    for split in SPLITS:
        entries = [entry for entry in content["entries"] if entry["split"] == split]
        path = bundle_path() / f"demo-{task}-{split}"
        origins[split] = Origin(path, f"{digest} {split}", partial(_listing, entries), bundle_path(), in_cache=True)
    return LabelledData(**origins, classes=tuple(content["labels"]), about=content["about"], samples=SAMPLES[task])


def _listing(entries: list[dict]) -> Listing:
    source_of = {source.name: source for source in find_structures(bundle_path()).sources}
    sources = []
    for entry in entries:
        source = source_of[entry["structure"]]
        sources.append(replace(source, name=entry["name"], label=partial(make, entry)))
    return Listing(sources, [])


def make(entry: dict, structure: Structure) -> Structure:
    """The structure of an entry: as bundled, bent (PSR), or followed by its mutant (MSP); and its labels."""
    if "turns" in entry:
        pos = model(structure.protein.pos, entry).float()
        structure = replace(structure, protein=replace(structure.protein, pos=pos))
    if "cut" in entry:
        structure = join([structure, _alanine(structure, entry["labels"]["mutated"][0], entry["cut"])])
    labels = _environments(structure.protein, entry["centres"]) if "centres" in entry else dict(entry["labels"])
    if "pairs" in labels:
        labels["pairs"] = torch.tensor(labels["pairs"], dtype=torch.int32)
    return replace(structure, labels=labels)


def model(pos: Tensor, entry: dict) -> Tensor:
    """Coordinates (N, 3) bent and shaken, float64. `noise` of an entry is (seed, numbers to skip)."""
    seed, drawn = entry["noise"]
    random = np.random.Generator(np.random.PCG64(seed).advance(drawn))
    return bend(pos, entry["turns"]) + SHAKE * torch.from_numpy(random.standard_normal(pos.shape))


def bend(pos: Tensor, turns: list[list]) -> Tensor:
    """Coordinates (N, 3), float64, turned about bonds: (start, end, radian, first row that moves, earlier rows)."""
    pos = pos.double()
    row = torch.arange(len(pos))
    for start, end, angle, first, *others in turns:
        moves = (row >= first) | torch.isin(row, torch.tensor(others, dtype=torch.long))
        angles = pos.new_full((len(pos),), angle)
        turned = rotate_about_axis(pos, pos[start][None], pos[end][None], angles)
        pos = torch.where(moves[:, None], turned, pos)
    return pos


def _alanine(structure: Structure, residues: list[int], cut: list[int]) -> Structure:
    """The structure with these residues cut down to alanine; `cut` has the rows of the atoms that go."""
    protein = structure.protein
    types = protein.residue_type.clone()
    types[residues] = RESIDUE_INDEX["ALA"]
    keep = torch.ones(protein.num_atoms, dtype=torch.bool)
    keep[cut] = False
    return replace(structure, protein=replace(protein.select_atoms(keep), residue_type=types))


def _environments(protein: Protein, centres: list[list]) -> dict:
    """The labels of RES: the atoms around some residues. A centre is (row of the residue, ideal CB in angstrom)."""
    rows = []
    for residue, *ideal_cb in centres:
        near = length(protein.pos - torch.tensor(ideal_cb)) <= ENVIRONMENT_RADIUS
        near = torch.where(protein.atom_residue == residue, protein.atom_name <= O, near)
        rows.append(near.nonzero().flatten().numpy())
    return {"residues": [centre[0] for centre in centres], **pack_lists(rows)}
