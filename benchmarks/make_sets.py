"""Write the sets of structures and labels that are made here, not published.

    python -m benchmarks.make_sets demo [--out siamdiff_min/data/demo_sets]
    python -m benchmarks.make_sets decoys DATA OUT [--each 8]
    python -m benchmarks.make_sets environments DATA OUT [--each 24 8 48]

demo: the small sets of the five downstream tasks, which `siamdiff_min/data/demo.py` reads. Their structures are those
bundled with the package, their labels follow from the structures themselves (EC: from the headers of the entries).
They are split by protein, as the bundle is. Everything drawn depends on the name of an entry alone. A file has what the
labels are, then one line for each entry: what is to be done with which bundled structure. In the bundled complexes the
second side follows the first, so rows count both.

decoys and environments: sets in ATOM3D's layout, for `finetune.py --data OUT`; they need the package lmdb.
DATA/probe.tsv lists the chains (`benchmarks.probe_table`); one of every family is taken, so that no target has more
samples than another. OUT/index.tsv has the family of every chain.

decoys (PSR): bent chains with their true GDT_TS. A decoy is the chain after turns about backbone bonds, with every
coordinate shaken alike (0.2 angstrom), so that roughness tells nothing. The first is only shaken. Each of the others
may have more and larger turns than the one before; half of the turns are followed by their opposite at the next residue
(a crankshaft), which leaves the chain compact. GDT_TS is that of `benchmarks.superpose` for all CA against the chain.

environments (RES): the atoms around residues, and the types of these residues. Residues are drawn at random, from those
that have a CA and share their number with no other, so each type is as frequent as in proteins. Around a residue are
the atoms within 10 sqrt(3) angstrom of its CA, without its own side chain.
"""

import argparse
import gzip
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt
from pathlib import Path, PurePath

import numpy as np
import torch
from torch import Tensor

from benchmarks.probe import SPLITS as PROBE_SPLITS
from benchmarks.probe import Item, read_items, sides
from benchmarks.superpose import gdt_ts
from siamdiff_min.data.bundled import bundle_index, bundle_path
from siamdiff_min.data.demo import FOLDER, SHAKE, bend, model
from siamdiff_min.data.sources import Source, find_structures
from siamdiff_min.files import ConfigError, console, write_file
from siamdiff_min.protein.constants import (
    ATOM_INDEX,
    ATOM_NAMES,
    CA,
    ELEMENTS,
    ONE_LETTER,
    RESIDUE_INDEX,
    RESIDUES,
    C,
    N,
    O,
)
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import Protein
from siamdiff_min.protein.structure import join

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
    b, a = ca - n, c - ca
    normal = torch.nn.functional.normalize(torch.linalg.cross(b, a), dim=-1)
    middle = torch.nn.functional.normalize(
        torch.nn.functional.normalize(n - ca, dim=-1) + torch.nn.functional.normalize(c - ca, dim=-1), dim=-1
    )
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


# ---- sets in the layout of ATOM3D ------------------------------------------------------------------------------------

COLUMNS = [
    *("ensemble", "subunit", "structure", "model", "chain", "hetero", "insertion_code", "residue", "segid", "resname"),
    *("altloc", "occupancy", "bfactor", "x", "y", "z", "element", "name", "fullname", "serial_number"),
]


def frame(protein: Protein) -> dict:
    """A chain as ATOM3D's table of atoms."""
    rows = []
    for k, residue in enumerate(protein.atom_residue.tolist()):
        name, code = ATOM_NAMES[protein.atom_name[k]], chr(protein.insertion_code[residue])
        number, kind = int(protein.residue_number[residue]), RESIDUES[protein.residue_type[residue]]
        place = ["decoy", 0, "decoy", 0, "A", " ", code, number, "    ", kind, " ", 1.0, 0.0]
        pos = [round(x, 3) for x in protein.pos[k].tolist()]
        rows.append([*place, *pos, ELEMENTS[protein.element[k]], name, f" {name}", k + 1])
    return {"columns": COLUMNS, "index": list(range(len(rows))), "data": rows}


def write_split(folder: Path, samples: Iterator[dict]) -> int:
    """Write an LMDB folder as ATOM3D does; returns the number of samples."""
    import lmdb

    folder.mkdir(parents=True, exist_ok=True)
    ids = {}
    with lmdb.open(str(folder), map_size=2**34) as environment:
        for i, sample in enumerate(samples):
            with environment.begin(write=True) as transaction:
                transaction.put(str(i).encode(), gzip.compress(json.dumps(sample).encode(), 6))
            ids[sample["id"]] = i
        with environment.begin(write=True) as transaction:
            transaction.put(b"num_examples", str(len(ids)).encode())
            transaction.put(b"serialization_format", b"json")
            transaction.put(b"id_to_idx", json.dumps(ids).encode())
    return len(ids)


def one_of_each_family(items: list[Item]) -> list[Item]:
    """The first chain of every family, in the order of the names."""
    first = {item.family: item for item in reversed(items)}
    return sorted(first.values(), key=lambda item: item.name)


def write_set(data: Path, out: Path, samples: Callable[[list[Item], str], Iterator[dict]], column: str) -> None:
    """Write the three splits, and index.tsv with the name of every chain (`column`) and its family (component)."""
    torch.set_num_threads(1)
    chains = [item for item in read_items(data / "probe.tsv") if item.partner is None]
    for split in PROBE_SPLITS:
        if (out / split).exists():
            raise ConfigError(f"{out / split} is there already; remove it to write it anew")
        of_split = [item for item in chains if item.split == split]
        number = write_split(out / split, samples(of_split, split))
        print(f"{split}: {number} items of {len(one_of_each_family(of_split))} families", flush=True)
    rows = dict.fromkeys(f"{item.name}\t{item.family}" for item in chains)
    (out / "index.tsv").write_text("\n".join([f"{column}\tcomponent", *rows]) + "\n")


# ---- decoys ----------------------------------------------------------------------------------------------------------


def decoy(item: Item, number: int) -> tuple[Protein, float]:
    """Decoy `number` of a chain, always the same, and its GDT_TS."""
    protein, turns = item.protein, []
    _, random = generator_of(f"{item.name}/{number}")
    if number:
        scale = np.radians(3.0 * 1.7**number)  # 5 to 120 degrees
        hinges = random.choice(protein.num_residues - 1, size=int(random.integers(1, 3 + 2 * number)), replace=False)
        for residue in hinges.tolist():
            angle = scale * random.standard_normal()
            turns.append(turn_of(protein, residue, "psi", angle))
            if random.random() < 0.5:
                turns.append(turn_of(protein, residue + 1, "phi", -angle))
    pos = bend(protein.pos, [turn for turn in turns if turn])
    pos = pos + SHAKE * torch.from_numpy(random.standard_normal(pos.shape))
    ca = protein.atom_name == CA
    return Protein(**{**vars(protein), "pos": pos.float()}), round(gdt_ts(pos[ca], protein.pos[ca]), 4)


def decoys_of(items: list[Item], split: str, each: int) -> Iterator[dict]:
    """The decoys of one chain of every family, as items of ATOM3D."""
    for item in one_of_each_family(items):
        for number in range(each):
            protein, score = decoy(item, number)
            name = str((item.name, f"decoy{number}"))
            yield {"atoms": frame(protein), "id": name, "scores": {"gdt_ts": score}, "types": {"atoms": "DataFrame"}}


# ---- environments ----------------------------------------------------------------------------------------------------

RADIUS = 10 * 3**0.5  # angstrom, the corner of a cube of 20


def environments(item: Item, number: int) -> tuple[list[int], list[list[int]]]:
    """Residues of a chain, always the same `number` of them or all there are, and the rows of the atoms around each."""
    protein = item.protein
    numbers = protein.residue_number.tolist()
    often, ca = Counter(numbers), {}
    for atom in (protein.atom_name == CA).nonzero().flatten().tolist():
        residue = int(protein.atom_residue[atom])
        if often[numbers[residue]] == 1:  # names of environments know no insertion codes
            ca[residue] = atom
    _, random = generator_of(f"{item.name}/environments")
    chosen = sorted(random.permutation(np.array(list(ca)))[:number].tolist())
    around = []
    for residue in chosen:
        near = (protein.pos - protein.pos[ca[residue]]).norm(dim=1) <= RADIUS
        near &= (protein.atom_residue != residue) | (protein.atom_name <= O)
        around.append(near.nonzero().flatten().tolist())
    return chosen, around


def environments_of(items: list[Item], split: str, each: dict[str, int]) -> Iterator[dict]:
    """One item of ATOM3D for one chain of every family."""
    for item in one_of_each_family(items):
        chosen, around = environments(item, each[split])
        kinds, numbers = item.protein.residue_type[chosen].tolist(), item.protein.residue_number[chosen].tolist()
        rows = [[f"A_{number}_{RESIDUES[kind]}", kind] for number, kind in zip(numbers, kinds)]
        labels = {"columns": ["subunit", "label"], "index": list(range(len(rows))), "data": rows}
        types = {"atoms": "DataFrame", "labels": "DataFrame"}
        sample = {"atoms": frame(item.protein), "labels": labels, "subunit_indices": around}
        yield sample | {"id": item.name, "types": types}


def main(argv: list[str] | None = None) -> None:
    """Write the sets of one command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="the demo sets of the package")
    demo.add_argument("--out", type=Path, default=FOLDER)
    decoys = commands.add_parser("decoys", help="a PSR set of bent chains")
    decoys.add_argument("--each", type=int, default=8, help="decoys of every chain (default: 8)")
    environments = commands.add_parser("environments", help="a RES set of the surroundings of residues")
    about = "residues of every chain in training, validation and testing (default: 24 8 48)"
    environments.add_argument("--each", type=int, nargs=3, default=[24, 8, 48], help=about)
    for command in decoys, environments:
        command.add_argument("data", type=Path, help="folder with probe.tsv")
        command.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    if args.command == "demo":
        for task in _MAKERS:
            write_file(args.out / f"{task}.json", text_of(make(task)).encode())
    elif args.command == "decoys":
        write_set(args.data, args.out, partial(decoys_of, each=args.each), "target")
    else:
        each = dict(zip(PROBE_SPLITS, args.each))
        write_set(args.data, args.out, partial(environments_of, each=each), "id")


if __name__ == "__main__":
    with console():
        main()
