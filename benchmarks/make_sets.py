"""Write the small sets of the five downstream tasks, which `siamdiff_min/sets/demo.py` reads.

    python -m benchmarks.make_sets [--out siamdiff_min/sets/demo_sets.zip]

Their structures are those bundled with the package, their labels follow from the structures themselves (EC: from the
headers of the entries). They are split by protein, as the bundle is. Everything drawn depends on the name of an entry
alone. Each file in the archive
has what the labels are, then one line for each entry: what is to be done with which bundled structure. In
the bundled complexes the second side follows the first, so rows count both.
"""

import argparse
import hashlib
import io
import itertools
import json
import zipfile
from math import sqrt
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.alike import gdt_ts
from benchmarks.probe import sides
from siamdiff_min.files import console, write_file
from siamdiff_min.protein.constants import ATOM_INDEX, CA, ONE_LETTER, RESIDUE_INDEX, C, N, O
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import Source, bundle_index, bundle_path, find_structures
from siamdiff_min.reading.structure import join
from siamdiff_min.sets.demo import FILE, SHAKE, model

CONTACT = 5.0  # angstrom between heavy atoms, MSP
SPLITS = ("train", "valid", "test")
ABOUT = {
    "ec": "Demo: top-level EC class of the bundled chains whose PDB header names one (about 30; far too few to learn "
    "from).",
    "psr": "Demo: models of bundled chains of 40 to 130 residues, bent by random rotations about backbone bonds (bond "
    f"lengths and angles stay, atoms may overlap) and shaken by {SHAKE:g} angstrom; GDT_TS against the native, by our "
    "own search for superpositions. The worse ones tend to be less compact, which alone ranks them well.",
    "res": "Demo: about 16 residues of every bundled chain at its natural frequencies; surroundings are atoms within "
    "10 sqrt(3) angstrom of an ideal CB.",
    "pip": "Demo: pairs of residues across the interfaces of the bundled complexes; positive where any two heavy atoms "
    "are closer than 6 angstrom.",
    "msp": "Demo: an alanine scan of the interfaces of the bundled complexes, side chains being cut behind CB, one at "
    f"a time. Negative where the side chain had many contacts (below {CONTACT:g} angstrom) across the interface, "
    "positive where it is near and had none: a geometric rule, not an experiment.",
}


def make(task: str) -> dict:
    """The content of the file of a task."""
    sources = {source.name: source for source in find_structures(bundle_path()).sources}
    entries = []
    for row in bundle_index():
        name, is_complex = PurePath(row["file"]).name.removesuffix(".pdb.gz"), row["set"] != "structure"
        if is_complex == (task in ("pip", "msp")):
            made = _MAKERS[task](sources[name], row)
            entries += [{"name": name, "split": row["split"], "structure": name} | recipe for recipe in made]
    if task == "psr":  # 20 proteins are enough of every split, the first by name
        names = {split: sorted({e["structure"] for e in entries if e["split"] == split})[:20] for split in SPLITS}
        entries = [entry for entry in entries if entry["structure"] in names[entry["split"]]]
        for entry in entries:
            entry["labels"]["values"] = [score(entry, sources[entry["structure"]])]
    labels = sorted({label for entry in entries for label in entry["labels"]["values"][0]}) if task == "ec" else []
    return {"about": ABOUT[task], "labels": labels, "entries": sorted(entries, key=lambda entry: entry["name"])}


def text_of(content: dict) -> str:
    """The file: JSON with one line for each entry."""
    entries = ",\n".join(json.dumps(entry) for entry in content["entries"])
    return json.dumps(content | {"entries": []}).replace('"entries": []', f'"entries": [\n{entries}\n]') + "\n"


def generator_of(name: str) -> tuple[int, np.random.Generator]:
    """A seed that depends on the name alone, and its generator."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return seed, np.random.default_rng(seed)


def atoms_named(protein: Protein, name: int) -> Tensor:
    """The atom of that name of every residue (R,), -1 where it is missing."""
    index = torch.full((protein.num_residues,), -1)
    chosen = protein.atom_name == name
    index[protein.atom_residue[chosen]] = chosen.nonzero().squeeze(1)
    return index


# ---- EC --------------------------------------------------------------------------------------------------------------


def _ec(source: Source, row: dict) -> list[dict]:
    return [{"labels": {"kind": "labels", "values": [[row["ec"].rpartition("=")[2][0]]]}}] if row["ec"] else []


# ---- PSR -------------------------------------------------------------------------------------------------------------

MODELS = 8  # of every protein; number 0 is only shaken


def _psr(source: Source, row: dict) -> list[dict]:
    if not 40 <= int(row["n_residues"]) <= 130:
        return []
    protein, made = source.read().protein, []
    for number in range(MODELS):
        name = f"{source.name}/{number}"
        (seed, random), turns = generator_of(name), []
        if number:
            size = int(random.integers(1, 3 + 2 * number))
            hinges = random.choice(protein.num_residues, size=size, replace=False)
            scale = np.radians(3.0 * 1.7**number)  # 5 to 120 degrees
            angles = {(int(r), str(random.choice(["phi", "psi"]))): scale * random.standard_normal() for r in hinges}
            turns = [turn_of(protein, *bond, angle) for bond, angle in angles.items()]
        noise, labels = [seed, numbers_drawn(seed, random)], {"target": source.name, "kind": "regression"}
        made.append({"name": name, "turns": [turn for turn in turns if turn], "noise": noise, "labels": labels})
    return made


def turn_of(protein: Protein, residue: int, bond: str, angle: float) -> list:
    """A turn about a backbone bond, phi or psi, as `demo.bend` takes it: all atoms behind the bond move.

    Empty if the residue lacks the atoms of the bond, and for phi of proline, which its ring holds. For a single chain.
    """
    n, ca, c = (int(atoms_named(protein, name)[residue]) for name in (N, CA, C))
    start, end = (n, ca) if bond == "phi" else (ca, c)
    if min(start, end) < 0 or (bond == "phi" and protein.residue_type[residue] == RESIDUE_INDEX["PRO"]):
        return []
    own, name = protein.atom_residue == residue, protein.atom_name
    own &= (name != N) & (name != CA) if bond == "phi" else (name == O) | (name == ATOM_INDEX["OXT"])
    moves = own | (protein.atom_residue > residue)
    first = int((~moves).nonzero().max()) + 1
    return [start, end, angle, first, *moves[:first].nonzero().flatten().tolist()]


def numbers_drawn(seed: int, random: np.random.Generator) -> int:
    """How many numbers were drawn since the seed."""
    generator = np.random.PCG64(seed)
    for number in itertools.count():
        if generator.state["state"] == random.bit_generator.state["state"]:
            return number
        generator.advance(1)


def score(entry: dict, source: Source) -> float:
    """GDT_TS of a model."""
    protein = source.read().protein
    ca = protein.atom_name == CA
    return round(gdt_ts(model(protein.pos, entry)[ca], protein.pos[ca]), 4)


# ---- RES -------------------------------------------------------------------------------------------------------------

ENVIRONMENTS = 16  # per chain


def ideal_cb(n: Tensor, ca: Tensor, c: Tensor) -> Tensor:
    """Where the CB of an L amino acid lies, from its backbone (..., 3): tetrahedral, 1.53 angstrom from CA."""
    normal = F.normalize(torch.linalg.cross(ca - n, c - ca), dim=-1)
    middle = F.normalize(F.normalize(n - ca, dim=-1) + F.normalize(c - ca, dim=-1), dim=-1)
    return ca - 1.53 * (middle / sqrt(3) + normal * sqrt(2 / 3))


def _res(source: Source, row: dict) -> list[dict]:
    protein = source.read().protein
    n, ca, c, o = (atoms_named(protein, name) for name in (N, CA, C, O))
    whole = ((n >= 0) & (c >= 0) & (o >= 0)).nonzero().squeeze(1)
    chosen = whole[torch.linspace(0, len(whole) - 1, min(ENVIRONMENTS, len(whole))).round().long()].tolist()
    centres = []
    for r in chosen:
        cb = ideal_cb(*(protein.pos[atom[r]] for atom in (n, ca, c)))
        centres.append([r, *(float(str(x)) for x in cb.numpy())])  # few digits, the same float32
    return [{"centres": centres}]


# ---- PIP and MSP: two sides of a complex -----------------------------------------------------------------------------

INTERFACE = 6.0  # angstrom between heavy atoms, PIP


def _pip(source: Source, row: dict) -> list[dict]:
    one, two = (side.protein for side in sides(source.read(), row["partners"]))
    near = (length(one.pos[:, None] - two.pos) < INTERFACE).nonzero()
    pairs = torch.stack([one.atom_residue[near[:, 0]], two.atom_residue[near[:, 1]] + one.num_residues], 1)
    labels = {"first": one.num_residues, "ambiguous": [], "pairs": pairs.unique(dim=0).tolist()}
    return [{"labels": labels}]


def behind_cb(protein: Protein) -> Tensor:
    """The atoms (N,) bool of side chains without their CB."""
    name = protein.atom_name
    return (name > O) & (name != ATOM_INDEX["CB"]) & (name != ATOM_INDEX["OXT"])


PER_COMPLEX = 4  # mutations, half of them positive
MANY = 10  # contacts


def contacts(protein: Protein, first: int) -> Tensor:
    """For every residue (R,) the pairs of an atom of its side chain, behind CB, and an atom of the other side of the
    complex that are closer than 5 angstrom; the first side has `first` residues."""
    side = protein.atom_residue < first
    near = (length(protein.pos[:, None] - protein.pos) < CONTACT) & (side[:, None] != side)
    count = (near.sum(1) * behind_cb(protein)).to(protein.pos)
    return protein.pos.new_zeros(protein.num_residues).index_add(0, protein.atom_residue, count).long()


def _msp(source: Source, row: dict) -> list[dict]:
    """Mutations to alanine, positives first: for each a residue of many contacts, and the one without any that is
    nearest to the other side."""
    if int(row["n_residues"]) > 400:
        return []
    one, two = sides(source.read(), row["partners"])
    protein, first, (_, random) = join([one, two]).protein, one.protein.num_residues, generator_of(source.name)
    count, cb = contacts(protein, first), atoms_named(protein, ATOM_INDEX["CB"])
    size = torch.zeros_like(count).index_add(0, protein.atom_residue, behind_cb(protein).long())
    pos = protein.pos[cb]  # of residues without CB any atom: they are not chosen
    side = torch.arange(protein.num_residues) < first
    away = length(pos[:, None] - pos).masked_fill(side[:, None] == side, torch.inf).amin(1)
    candidates = (size > 1) & (cb >= 0)
    many = (candidates & (count >= MANY)).nonzero().flatten().tolist()
    away = away.masked_fill(~candidates | (count > 0), torch.inf)
    none = [r for r in away.argsort(stable=True).tolist() if away[r] < torch.inf]
    half = min(PER_COMPLEX // 2, len(many), len(none))
    chosen = [(r, 1) for r in none[:half]] + [(r, 0) for r in random.permutation(many)[:half].tolist()]
    return [
        {
            "name": f"{source.name}_{ONE_LETTER[protein.residue_type[residue]]}{residue}A",
            "labels": {"first": len(side), "mutated": [[residue], [len(side) + residue]], "label": label},
            "cut": (behind_cb(protein) & (protein.atom_residue == residue)).nonzero().flatten().tolist(),
        }
        for residue, label in chosen
    ]


_MAKERS = {"ec": _ec, "psr": _psr, "res": _res, "pip": _pip, "msp": _msp}


def main(argv: list[str] | None = None) -> None:
    """Write the sets of the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args(argv)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for task in _MAKERS:
            info = zipfile.ZipInfo(f"{task}.json")  # without a date
            archive.writestr(info, text_of(make(task)), zipfile.ZIP_DEFLATED, 9)
    write_file(args.out, content.getvalue())


if __name__ == "__main__":
    with console():
        main()
