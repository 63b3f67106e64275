"""Demo sets for the five downstream tasks, made from the structures bundled with the package.

They let `finetune.py` run, and its parts be tested, where there is no data set: real proteins, with labels that follow
from the structures themselves (EC: from the headers of the entries). They are split by protein, as the bundle is, and
say nothing about how good an encoder is. Everything drawn depends on the name of an entry alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache, partial
from math import sqrt
from pathlib import PurePath

import numpy as np
import torch
from torch import Tensor

from ..protein.constants import ATOM_INDEX, CA, ONE_LETTER, RESIDUE_ATOMS, RESIDUE_INDEX, RESIDUES, C, N, O
from ..protein.geometry import length, rotate_about_axis
from ..protein.protein import Protein
from ..protein.structure import Structure, join
from ..protein.superpose import gdt_ts, superpose
from .samples import LabelledData, write_note
from .structures import Listing, Origin, Source, bundle_index, bundle_path, find_structures, fingerprint

RECIPE = 3  # counts up where the sets change
OXT = ATOM_INDEX["OXT"]
CONTACT, CLASH = 5.0, 2.5  # angstrom between heavy atoms, MSP
ABOUT = {
    "ec": "Demo: top-level EC class of the bundled chains whose PDB header names one (about 30; far too few to learn "
    "from).",
    "psr": "Demo: models of bundled chains of 40 to 130 residues, bent by random rotations about backbone bonds (bond "
    "lengths and angles stay, atoms may overlap) and shaken by 0.2 angstrom; GDT_TS against the native, by our own "
    "search for superpositions. The worse ones tend to be less compact, which alone ranks them well.",
    "res": "Demo: about 16 residues of every bundled chain at its natural frequencies; surroundings are atoms within "
    "10 sqrt(3) angstrom of an ideal CB.",
    "pip": "Demo: pairs of residues across the interfaces of the bundled complexes; positive where any two heavy atoms "
    "are closer than 6 angstrom.",
    "msp": "Demo: side chains at the interfaces of the bundled complexes replaced by those of other residues, one at a "
    f"time. Positive where the new one has more contacts (below {CONTACT:g} angstrom) across the interface and no "
    f"clash (below {CLASH:g}), negative where it has fewer or clashes: a geometric rule, not "
    "an experiment, and the size of the residues alone tells much of it.",
}


def find(task: str) -> LabelledData:
    """The demo set of a task: ec, pip, msp, res or psr."""
    index = hashlib.sha256((bundle_path() / "index.tsv").read_bytes()).hexdigest()  # splits, EC numbers, partners
    state = f"{fingerprint(bundle_path())} {index}"
    origins = {}
    for split in ("train", "valid", "test"):
        version = hashlib.sha256(f"{state} {RECIPE} {task} {split}".encode()).hexdigest()
        place = bundle_path() / f"demo-{task}-{split}"
        origins[split] = Origin(place, version, partial(_listing, task, split), in_cache=True)
    labels = sorted({row["ec"].rpartition("=")[2][0] for row in bundle_index() if row["ec"]}) if task == "ec" else ()
    return LabelledData(**origins, labels=tuple(labels), about=ABOUT[task])


@dataclass(frozen=True, slots=True)
class Made:
    """One entry of a demo set: how it is made from a bundled structure."""

    name: str
    task: str
    source: Source
    number: int  # of the model (PSR) or mutation (MSP) made from this structure
    fact: str  # what the bundle's index says: EC number, or the sides of a complex

    @property
    def path(self) -> str:
        return f"{self.source.path}:{self.source.member}"

    def read(self) -> Structure:
        """Make it. Raises StructureError where the bundle is damaged."""
        return _MAKERS[self.task](self, self.source.read())


def _listing(task: str, split: str) -> Listing:
    """The entries of a split, sorted by name."""
    sources = {source.name: source for source in find_structures(bundle_path()).sources}
    made = []
    for row in bundle_index():
        name, size = PurePath(row["file"]).name.removesuffix(".pdb.gz"), int(row["n_residues"])
        complex_ = row["set"] != "structure"
        if row["split"] != split or complex_ != (task in ("pip", "msp")) or (task == "ec" and not row["ec"]):
            continue
        if task == "psr" and 40 <= size <= 130:
            made += [Made(f"{name}/{k}", task, sources[name], k, "") for k in range(MODELS)]
        elif task == "msp" and size <= 400:
            for k, (residue, wild, mutant) in enumerate(_mutations(sources[name], row["partners"])):
                label = f"{ONE_LETTER[wild]}{residue}{ONE_LETTER[mutant]}"
                made.append(Made(f"{name}_{label}", task, sources[name], k, row["partners"]))
        elif task in ("ec", "res", "pip"):
            made.append(Made(name, task, sources[name], 0, row["ec"] if task == "ec" else row["partners"]))
    if task == "psr":  # 20 proteins are enough, the first by name
        names = sorted({entry.source.name for entry in made})[:20]
        made = [entry for entry in made if entry.source.name in names]
    return Listing(sorted(made, key=lambda entry: entry.name), [])


def _random(name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))


def _atoms(protein: Protein, name: int) -> Tensor:
    """The atom of that name of every residue (R,), -1 where it is missing."""
    index = torch.full((protein.num_residues,), -1)
    chosen = protein.atom_name == name
    index[protein.atom_residue[chosen]] = chosen.nonzero().squeeze(1)
    return index


# ---- EC --------------------------------------------------------------------------------------------------------------


def _ec(entry: Made, structure: Structure) -> Structure:
    return replace(structure, note=write_note({"ec": [entry.fact.rpartition("=")[2][0]]}))


# ---- PSR -------------------------------------------------------------------------------------------------------------

MODELS = 8  # of every protein; number 0 is only shaken
SHAKE = 0.2  # angstrom, of every coordinate of every model


def bend(protein: Protein, angles: dict[tuple[int, str], float]) -> Tensor:
    """Coordinates (N, 3) after turning about backbone bonds by angles (radian): all atoms behind the bond move.

    Keys are (residue, "phi" or "psi"). Residues without the atoms of the bond do not turn, nor does phi of proline,
    which its ring holds. For a single chain.
    """
    pos, n, ca, c = protein.pos, *(_atoms(protein, name) for name in (N, CA, C))
    carboxyl = (protein.atom_name == O) | (protein.atom_name == OXT)
    for (residue, bond), angle in angles.items():
        start, end = (n, ca) if bond == "phi" else (ca, c)
        held = bond == "phi" and protein.residue_type[residue] == RESIDUE_INDEX["PRO"]
        if held or min(start[residue], end[residue]) < 0:
            continue
        behind = protein.atom_residue > residue
        own = protein.atom_residue == residue
        if bond == "phi":
            behind = behind | (own & (protein.atom_name != N) & (protein.atom_name != CA))
        else:
            behind = behind | (own & carboxyl)
        axis = pos[start[residue]][None], pos[end[residue]][None]
        turned = rotate_about_axis(pos, *axis, pos.new_full((len(pos),), angle))
        pos = torch.where(behind[:, None], turned, pos)
    return pos


def _psr(entry: Made, structure: Structure) -> Structure:
    protein, random = structure.protein, _random(entry.name)
    pos = protein.pos.double()
    if entry.number:
        hinges = random.choice(protein.num_residues, size=int(random.integers(1, 3 + 2 * entry.number)), replace=False)
        scale = np.radians(3.0 * 1.7**entry.number)  # 5 to 120 degrees
        angles = {(int(r), str(random.choice(["phi", "psi"]))): scale * random.standard_normal() for r in hinges}
        pos = bend(replace(protein, pos=pos), angles)
    pos = pos + SHAKE * torch.from_numpy(random.standard_normal(pos.shape))
    ca = protein.atom_name == CA
    score = round(gdt_ts(pos[ca], protein.pos[ca]), 4)
    note = write_note({"target": entry.source.name, "gdt_ts": score})
    return replace(structure, protein=replace(protein, pos=pos.float()), note=note)


# ---- RES -------------------------------------------------------------------------------------------------------------

ENVIRONMENTS = 16  # per chain
ENVIRONMENT_RADIUS = 10 * sqrt(3)  # angstrom


def ideal_cb(n: Tensor, ca: Tensor, c: Tensor) -> Tensor:
    """Where the CB of an L amino acid lies, from its backbone (..., 3): tetrahedral, 1.53 angstrom from CA."""
    b, a = ca - n, c - ca
    normal = torch.nn.functional.normalize(torch.linalg.cross(b, a), dim=-1)
    middle = torch.nn.functional.normalize(
        torch.nn.functional.normalize(n - ca, dim=-1) + torch.nn.functional.normalize(c - ca, dim=-1), dim=-1
    )
    return ca - 1.53 * (middle / sqrt(3) + normal * sqrt(2 / 3))


def _res(entry: Made, structure: Structure) -> Structure:
    protein = structure.protein
    n, ca, c, o = (_atoms(protein, name) for name in (N, CA, C, O))
    whole = ((n >= 0) & (c >= 0) & (o >= 0)).nonzero().squeeze(1)
    centres = whole[torch.linspace(0, len(whole) - 1, min(ENVIRONMENTS, len(whole))).round().long()].tolist()
    counts, rows = [], []
    for r in centres:
        cb = ideal_cb(*(protein.pos[atom[r]] for atom in (n, ca, c)))
        own = protein.atom_residue == r
        near = (length(protein.pos - cb) <= ENVIRONMENT_RADIUS) & ~own | own & (protein.atom_name <= O)
        counts.append(int(near.sum()))
        rows += near.nonzero().squeeze(1).tolist()
    return replace(structure, note=write_note({"residues": centres, "counts": counts}, rows))


# ---- PIP and MSP: two sides of a complex -----------------------------------------------------------------------------

INTERFACE = 6.0  # angstrom between heavy atoms, PIP


def sides(structure: Structure, partners: str) -> list[Structure]:
    """The two sides of a complex; `partners` names their chains, as in "A:B"."""
    result = []
    for names in partners.split(":"):
        chains = [i for i, chain in enumerate(structure.chain_names) if chain in names]
        protein = structure.protein.select_residues(torch.isin(structure.protein.chain, torch.tensor(chains)))
        order = {chain: i for i, chain in enumerate(chains)}
        chain = torch.tensor([order[c] for c in protein.chain.tolist()])
        picked = tuple(structure.chain_names[i] for i in chains)
        result.append(Structure(replace(protein, chain=chain), picked, structure.dropped))
    return result


def _pip(entry: Made, structure: Structure) -> Structure:
    one, two = sides(structure, entry.fact)
    near = (length(one.protein.pos[:, None] - two.protein.pos) < INTERFACE).nonzero()
    first = one.protein.num_residues
    pairs = torch.stack([one.protein.atom_residue[near[:, 0]], two.protein.atom_residue[near[:, 1]] + first], 1)
    return join([one, two], write_note({"first": first, "ambiguous": []}, pairs.unique(dim=0).flatten().tolist()))


PER_COMPLEX = 4  # mutations, half of them positive
ROTAMERS = 6  # side chains of every type to choose from


@cache
def side_chains() -> dict[int, list[Protein]]:
    """Complete residues of every type from bundled training chains, to take side chains from."""
    train = {PurePath(row["file"]).name.removesuffix(".pdb.gz") for row in bundle_index() if row["split"] == "train"}
    found: dict[int, list[Protein]] = {i: [] for i in range(len(RESIDUES))}
    for source in find_structures(bundle_path()).sources:
        if source.name not in train or all(len(x) == ROTAMERS for x in found.values()):
            continue
        protein = source.read().protein
        size = torch.bincount(protein.atom_residue, minlength=protein.num_residues)
        for i, kind in list(enumerate(protein.residue_type.tolist()))[::7]:
            if len(found[kind]) < ROTAMERS and size[i] == len(RESIDUE_ATOMS[RESIDUES[kind]]):
                found[kind].append(protein.crop(i, 1))
    return found


def mutate(protein: Protein, residue: int, side_chain: Protein) -> Protein:
    """The protein with the side chain, and the type, of a residue replaced by those of another (one residue).

    The other is laid onto N, CA and C; the backbone stays.
    """
    own = protein.atom_residue == residue
    place = torch.cat([protein.pos[own & (protein.atom_name == name)] for name in (N, CA, C)]).double()
    template = torch.cat([side_chain.pos[side_chain.atom_name == name] for name in (N, CA, C)]).double()
    rotation, shift = superpose(template, place)
    moved = replace(side_chain, pos=(side_chain.pos.double() @ rotation.T + shift).float())
    moved = moved.select_atoms(moved.atom_name > O)
    keep = ~own | (protein.atom_name <= O)
    last = int((keep & (protein.atom_residue <= residue)).sum())  # the new atoms come after the backbone
    rest = protein.select_atoms(keep)
    pieces = {}
    for name in ("pos", "element", "atom_name", "atom_residue"):
        old, new = getattr(rest, name), getattr(moved, name)
        new = torch.full_like(new, residue) if name == "atom_residue" else new
        pieces[name] = torch.cat([old[:last], new, old[last:]])
    kinds = protein.residue_type.clone()
    kinds[residue] = side_chain.residue_type[0]
    return replace(rest, residue_type=kinds, **pieces)


def contacts(protein: Protein, residue: int, other_side: Tensor) -> tuple[int, bool]:
    """Pairs below 5 angstrom between a side chain and the other side of the complex, and whether it clashes at all.

    other_side (R,) bool says which residues are there. A clash is an atom of any other residue below 2.5 angstrom.
    """
    own = (protein.atom_residue == residue) & (protein.atom_name > O)
    rest = protein.atom_residue != residue
    distance = length(protein.pos[own][:, None] - protein.pos[rest])
    across = other_side[protein.atom_residue[rest]]
    return int((distance[:, across] < CONTACT).sum()), bool((distance < CLASH).any())


@cache
def _mutants(source: Source, partners: str) -> list[tuple[int, int, int, Protein, int]]:
    """Mutations of a complex: (residue, wild type, mutant type, mutant complex, label), positives first."""
    whole = join(sides(source.read(), partners))
    first = sides(source.read(), partners)[0].protein.num_residues
    protein, random = whole.protein, _random(source.name)
    other = torch.arange(protein.num_residues) >= first
    side_chain = protein.atom_name > O
    near = length(protein.pos[:, None] - protein.pos) < CONTACT
    near = near & (other[protein.atom_residue][:, None] != other[protein.atom_residue]) & side_chain[:, None]
    backbone = torch.stack([_atoms(protein, name) for name in (N, CA, C, O)]).amin(0) >= 0
    interface = [r for r in protein.atom_residue[near.any(1)].unique().tolist() if backbone[r]]
    found: dict[int, list] = {0: [], 1: []}
    for residue in random.permutation(interface).tolist():
        across = other if residue < first else ~other
        wild = int(protein.residue_type[residue])
        before, _ = contacts(protein, residue, across)
        for kind in random.permutation(len(RESIDUES)).tolist():
            wanted = 1 if len(found[1]) <= len(found[0]) else 0
            if kind in (wild, RESIDUE_INDEX["PRO"]) or not side_chains()[kind]:
                continue
            template = side_chains()[kind][int(random.integers(len(side_chains()[kind])))]
            mutant = mutate(protein, residue, template)
            after, clash = contacts(mutant, residue, across)
            label = int(after > before) if not clash else 0
            if label == wanted and after != before and len(found[label]) < PER_COMPLEX // 2:
                found[label].append((residue, wild, kind, mutant, label))
                break
        if len(found[0]) + len(found[1]) == PER_COMPLEX:
            break
    return found[1] + found[0]


def _mutations(source: Source, partners: str) -> list[tuple[int, int, int]]:
    return [mutation[:3] for mutation in _mutants(source, partners)]


def _msp(entry: Made, structure: Structure) -> Structure:
    wild = join(sides(structure, entry.fact))
    residue, _, _, mutant, label = _mutants(entry.source, entry.fact)[entry.number]
    size = wild.protein.num_residues
    note = write_note({"first": size, "mutated": [[residue], [size + residue]], "label": label})
    return join([wild, replace(wild, protein=mutant)], note)


_MAKERS = {"ec": _ec, "psr": _psr, "res": _res, "pip": _pip, "msp": _msp}
