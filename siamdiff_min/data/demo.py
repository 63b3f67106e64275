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

from ..protein.constants import ATOM_INDEX, CA, ONE_LETTER, RESIDUE_INDEX, C, N, O
from ..protein.geometry import length, rotate_about_axis
from ..protein.protein import Protein
from ..protein.structure import Structure, join
from ..protein.superpose import gdt_ts
from .samples import LabelledData, write_note
from .structures import Listing, Origin, Source, bundle_index, bundle_path, find_structures, fingerprint

RECIPE = 4  # counts up where the sets change
CB, OXT = ATOM_INDEX["CB"], ATOM_INDEX["OXT"]
CONTACT = 5.0  # angstrom between heavy atoms, MSP
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
    "msp": "Demo: an alanine scan of the interfaces of the bundled complexes, side chains being cut behind CB, one at "
    f"a time. Negative where the side chain had many contacts (below {CONTACT:g} angstrom) across the interface, "
    "positive where it is near and had none: a geometric rule, not an experiment.",
}


def demo_set(task: str) -> LabelledData:
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
            for k, (residue, wild, _) in enumerate(_mutations(sources[name], row["partners"])):
                made.append(Made(f"{name}_{ONE_LETTER[wild]}{residue}A", task, sources[name], k, row["partners"]))
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
MANY = 10  # contacts


def to_alanine(protein: Protein, residue: int) -> Protein:
    """The protein with the side chain of a residue cut behind CB."""
    kinds = protein.residue_type.clone()
    kinds[residue] = RESIDUE_INDEX["ALA"]
    kept = (protein.atom_residue != residue) | ~_behind_cb(protein)
    return replace(protein.select_atoms(kept), residue_type=kinds)


def _behind_cb(protein: Protein) -> Tensor:
    return (protein.atom_name > O) & (protein.atom_name != CB) & (protein.atom_name != OXT)


def contacts(protein: Protein, first: int) -> Tensor:
    """For every residue (R,) the pairs of an atom of its side chain, behind CB, and an atom of the other side of the
    complex that are closer than 5 angstrom; the first side has `first` residues."""
    side = protein.atom_residue < first
    near = (length(protein.pos[:, None] - protein.pos) < CONTACT) & (side[:, None] != side)
    count = (near.sum(1) * _behind_cb(protein)).to(protein.pos)
    return protein.pos.new_zeros(protein.num_residues).index_add(0, protein.atom_residue, count).long()


@cache
def _mutations(source: Source, partners: str) -> list[tuple[int, int, int]]:
    """Mutations of a complex to alanine (residue, wild type, label), positives first: for each a residue of many
    contacts, and the one without any that is nearest to the other side."""
    one, two = sides(source.read(), partners)
    protein, first, random = join([one, two]).protein, one.protein.num_residues, _random(source.name)
    count, cb = contacts(protein, first), _atoms(protein, CB)
    size = torch.zeros_like(count).index_add(0, protein.atom_residue, _behind_cb(protein).long())
    pos = protein.pos[cb]  # of residues without CB any atom: they are not chosen
    side = torch.arange(protein.num_residues) < first
    away = length(pos[:, None] - pos).masked_fill(side[:, None] == side, torch.inf).amin(1)
    candidates = (size > 1) & (cb >= 0)
    many = (candidates & (count >= MANY)).nonzero().flatten().tolist()
    away = away.masked_fill(~candidates | (count > 0), torch.inf)
    none = [r for r in away.argsort(stable=True).tolist() if away[r] < torch.inf]
    half = min(PER_COMPLEX // 2, len(many), len(none))
    chosen = [(r, 1) for r in none[:half]] + [(r, 0) for r in random.permutation(many)[:half].tolist()]
    return [(residue, int(protein.residue_type[residue]), label) for residue, label in chosen]


def _msp(entry: Made, structure: Structure) -> Structure:
    wild = join(sides(structure, entry.fact))
    residue, _, label = _mutations(entry.source, entry.fact)[entry.number]
    size = wild.protein.num_residues
    note = write_note({"first": size, "mutated": [[residue], [size + residue]], "label": label})
    return join([wild, replace(wild, protein=to_alanine(wild.protein, residue))], note)


_MAKERS = {"ec": _ec, "psr": _psr, "res": _res, "pip": _pip, "msp": _msp}
