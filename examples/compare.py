"""Where do two structures of one protein differ? `python compare.py first.cif second.cif` (docs/python.md).

Residues are matched by chain and number, or by their sequences if the numbers do not fit. Of each pair the distance of
the vectors is divided by the level of noise: that to the first structure with errors of 0.2 angstrom
on every coordinate. Writes compare.csv (for `siamdiff color first.cif compare.csv`) and compare.png.
"""

import csv
import sys
from dataclasses import replace

import numpy as np
import torch
from Bio.Align import PairwiseAligner

import siamdiff_min

ERROR = 0.2  # angstrom: that of coordinates at a resolution of 2
DRAWS = 5
SAME = 0.9  # share of the residues with equal numbers that have equal types, if the numbers mean the same


def matched(first, second) -> list[tuple[int, int]]:
    """Pairs of rows of two embeddings."""
    rows = []
    for of_one in (first, second):
        keys = zip(of_one.chain, of_one.residue_number.tolist(), of_one.insertion_code)
        rows.append({key: row for row, key in enumerate(keys)})
    pairs = [(rows[0][key], rows[1][key]) for key in rows[0] if key in rows[1]]
    same = [first.sequence[i] == second.sequence[j] for i, j in pairs]
    if pairs and np.mean(same) >= SAME:
        return pairs

    # Another numbering, or other names of chains.
    aligner = PairwiseAligner(match_score=2, mismatch_score=-1, open_gap_score=-5, extend_gap_score=-0.5)
    aligner.end_gap_score = 0
    pairs = []
    for (start, end), (other, _) in zip(*aligner.align(first.sequence, second.sequence)[0].aligned):
        pairs += [(start + k, other + k) for k in range(end - start)]
    return pairs


def noise_level(encoder, structure) -> np.ndarray:
    """The mean distance (R,) of a residue's vector from itself after errors of the coordinates."""
    whole = encoder.embed(structure).per_residue
    generator = torch.Generator().manual_seed(0)
    distances = []
    for _ in range(DRAWS):
        pos = structure.protein.pos
        shaken = pos + ERROR * torch.randn(pos.shape, generator=generator)
        vectors = encoder.embed(replace(structure, protein=replace(structure.protein, pos=shaken))).per_residue
        distances.append(np.linalg.norm(vectors - whole, axis=1))
    return np.mean(distances, axis=0)


def main(one: str, other: str) -> None:
    encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")  # the robust one: it sees no side chains
    structure = siamdiff_min.read_structure(one)
    first = encoder.embed(structure)
    second = encoder.embed(other)
    noise = noise_level(encoder, structure)
    pairs = matched(first, second)
    if not pairs:
        sys.exit(f"{one} and {other} have no residues in common")
    i, j = np.array(pairs).T
    change = np.linalg.norm(first.per_residue[i] - second.per_residue[j], axis=1) / noise[i]

    with open("compare.csv", "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["chain", "number", "code", "type", "value"])
        for row, value in zip(i, change):
            place = first.chain[row], first.residue_number[row], first.insertion_code[row]
            table.writerow([*place, first.sequence[row], f"{value:.4f}"])
    print(f"{len(pairs)} of {len(first.sequence)} and {len(second.sequence)} residues matched; times the noise:")
    for k in np.argsort(-change)[:10]:
        place = f"{first.residue_number[i[k]]}{first.insertion_code[i[k]]}"
        print(f"{first.chain[i[k]]}:{place:6}{change[k]:6.1f}")

    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("compare.png needs matplotlib: pip install matplotlib")

    figure = Figure((8, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(np.arange(len(change)), change, width=1)
    axes.axhline(1, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel=f"residues of {one}, in file order", ylabel="change / noise", xlim=(-0.5, len(change) - 0.5))
    figure.savefig("compare.png", dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
