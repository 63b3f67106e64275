"""A PSR set of bent chains with their true GDT_TS, in ATOM3D's layout, for `finetune.py --task psr --data OUT`.

    python -m benchmarks.decoys DATA OUT [--each 8]

DATA/probe.tsv lists the chains (`benchmarks.probe_table`); one of every family is taken, so that no target has more
samples than another. A decoy is the chain after turns about backbone bonds, with every coordinate shaken alike (0.2
angstrom), so that roughness tells nothing. The first is only shaken. Each of the others may have more and larger turns
than the one before; half of the turns are followed by their opposite at the next residue (a crankshaft), which leaves
the chain compact. GDT_TS is that of `benchmarks.superpose` for all CA against the chain. OUT/index.tsv has the family
of every chain. It needs the package lmdb.
"""

import argparse
import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.make_demo import generator_of, turn_of
from benchmarks.probe import SPLITS, Item, read_items
from benchmarks.superpose import gdt_ts
from siamdiff_min.data.demo import SHAKE, bend
from siamdiff_min.files import ConfigError, console
from siamdiff_min.protein.constants import ATOM_NAMES, CA, ELEMENTS, RESIDUES
from siamdiff_min.protein.protein import Protein

COLUMNS = [
    *("ensemble", "subunit", "structure", "model", "chain", "hetero", "insertion_code", "residue", "segid", "resname"),
    *("altloc", "occupancy", "bfactor", "x", "y", "z", "element", "name", "fullname", "serial_number"),
]


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


def samples_of(items: list[Item], split: str, each: int) -> Iterator[dict]:
    """The decoys of one chain of every family, as items of ATOM3D."""
    for item in one_of_each_family(items):
        for number in range(each):
            protein, score = decoy(item, number)
            name = str((item.name, f"decoy{number}"))
            yield {"atoms": frame(protein), "id": name, "scores": {"gdt_ts": score}, "types": {"atoms": "DataFrame"}}


def write_set(data: Path, out: Path, samples: Callable[[list[Item], str], Iterator[dict]], column: str) -> None:
    """Write the three splits, and index.tsv with the name of every chain (`column`) and its family (component)."""
    torch.set_num_threads(1)
    chains = [item for item in read_items(data / "probe.tsv") if item.partner is None]
    for split in SPLITS:
        if (out / split).exists():
            raise ConfigError(f"{out / split} is there already; remove it to write it anew")
        of_split = [item for item in chains if item.split == split]
        number = write_split(out / split, samples(of_split, split))
        print(f"{split}: {number} items of {len(one_of_each_family(of_split))} families", flush=True)
    rows = dict.fromkeys(f"{item.name}\t{item.family}" for item in chains)
    (out / "index.tsv").write_text("\n".join([f"{column}\tcomponent", *rows]) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Write the set of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoys", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with probe.tsv")
    parser.add_argument("out", type=Path)
    parser.add_argument("--each", type=int, default=8, help="decoys of every chain (default: 8)")
    args = parser.parse_args(argv)
    write_set(args.data, args.out, partial(samples_of, each=args.each), "target")


if __name__ == "__main__":
    with console():
        main()
