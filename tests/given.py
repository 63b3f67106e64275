"""Small labelled sets from two real structures: 1LCD chain A (51 residues) and the five chains of 2BEG (130)."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from conftest import generator, real_protein

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.protein.constants import CA, RESIDUE_INDEX
from siamdiff_min.protein.geometry import length
from siamdiff_min.reading.sources import Listing, Origin
from siamdiff_min.reading.store import open_store
from siamdiff_min.reading.structure import Structure, join
from siamdiff_min.sets.samples import SAMPLES, pack_lists

CLASSES = ("1", "2", "3")


@dataclass(frozen=True)
class Given:
    """A structure that has been read already, in the place of a `Source`."""

    name: str
    structure: Structure
    path: str = "given"

    def read(self) -> Structure:
        return self.structure


def structure(name="1LCD_A", noise=0.0, seed=0, **labels) -> Structure:
    """A real structure, moved by some noise (angstrom)."""
    protein = real_protein(name, torch.float32)
    chains, chain = protein.chain.unique(return_inverse=True)
    pos = protein.pos + noise * torch.randn(protein.pos.shape, generator=generator(seed))
    protein = replace(protein, pos=pos, chain=chain)
    return Structure(protein, tuple("ABCDE"[: len(chains)]), Counter(), labels)


def surroundings(protein, centre: int) -> list[int]:
    ca = protein.pos[(protein.atom_residue == centre) & (protein.atom_name == CA)]
    near = (length(protein.pos - ca) < 10) & (protein.atom_residue != centre)
    return near.nonzero().squeeze(1).tolist()


def entries(task: str, num: int) -> list[Given]:
    """`num` samples of a task; for PIP and RES as many as there are in two entries."""
    if task == "ec":
        labels = [{"kind": "labels", "values": [[CLASSES[i % 3]]]} for i in range(num)]
        return [Given(f"e{i}", structure(noise=i % 3 / 4, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "psr":
        scores = [round(1 - 0.8 * i / max(num - 1, 1), 3) for i in range(num)]
        labels = [{"kind": "regression", "values": [s], "target": f"t{i % 2}"} for i, s in enumerate(scores)]
        return [Given(f"m{i}", structure(noise=0.5 * i / num, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "table":
        labels = [{"kind": "regression", "values": [round(1 - 0.8 * i / num, 3)]} for i in range(num)]
        return [Given(f"v{i}", structure(noise=0.5 * i / num, seed=i, **found)) for i, found in enumerate(labels)]
    if task == "msp":
        made = []
        for i in range(num):
            wild = structure(noise=0.1, seed=i)
            types = wild.protein.residue_type.clone()
            types[7 + i % 9] = RESIDUE_INDEX["TRP" if i % 2 else "GLY"]
            mutant = replace(wild, protein=replace(wild.protein, residue_type=types))
            size = wild.protein.num_residues
            mutated = [[7 + i % 9], [size + 7 + i % 9]]
            made.append(Given(f"x{i}", join([wild, mutant], first=size, mutated=mutated, label=i % 2)))
        return made
    if task == "pip":
        one, two = structure(), structure("2BEG")
        first = one.protein.num_residues
        pairs = [(i, first + 3 * i) for i in range(2, 2 + num // 2)]
        return [Given("c", join([one, two], first=first, ambiguous=[0, first], pairs=torch.tensor(pairs)))]
    whole = structure("2BEG")
    centres = list(range(5, 5 + num))
    around = [surroundings(whole.protein, centre) for centre in centres]
    labels = {"residues": centres, **pack_lists([*map(np.array, around)])}
    return [Given("r", replace(whole, labels=labels))]


def dataset(task: str, folder, num: int = 4, **options):
    """`num` samples of a task from a store in `folder`."""
    origin = Origin(folder / task, "given", lambda: Listing(entries(task, num), []))
    store = open_store(origin, store=folder / f"{task}-{num}.store")
    return SAMPLES[task](store, classes=CLASSES if task == "ec" else (), **options)


def encoder(task: str, level: str | None = None):
    torch.manual_seed(0)
    return ENCODERS["gearnet"](level or ("residue" if task == "ec" else "atom"), "tiny")
