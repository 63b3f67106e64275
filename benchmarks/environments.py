"""A RES set: the atoms around residues, and the types of these, in ATOM3D's layout, for `finetune.py --task res`.

    python -m benchmarks.environments DATA OUT [--each 24 8 48]

DATA/probe.tsv lists the chains (`benchmarks.probe_table`); one of every family is taken. Its residues are drawn at
random, from those that have a CA and share their number with no other, so each type is as frequent as in proteins.
Around a residue are the atoms within 10 sqrt(3) angstrom of its CA, without its own side chain. OUT/index.tsv has the
family of every chain. It needs the package lmdb.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.decoys import frame, one_of_each_family, write_set
from benchmarks.make_demo import generator_of
from benchmarks.probe import SPLITS, Item
from siamdiff_min.files import console
from siamdiff_min.protein.constants import CA, RESIDUES, O

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


def samples_of(items: list[Item], split: str, each: dict[str, int]) -> Iterator[dict]:
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
    """Write the set of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environments", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with probe.tsv")
    parser.add_argument("out", type=Path)
    about = "residues of every chain in training, validation and testing (default: 24 8 48)"
    parser.add_argument("--each", type=int, nargs=3, default=[24, 8, 48], help=about)
    args = parser.parse_args(argv)
    write_set(args.data, args.out, partial(samples_of, each=dict(zip(SPLITS, args.each))), "id")


if __name__ == "__main__":
    with console():
        main()
