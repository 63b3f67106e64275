"""How often the nearest chain is a relative: of chains that no encoder has seen, in families of two or more.

    python -m studies.2026-12-scale.neighbours CHAINS TABLE ENCODER... [--split val] [--out neighbours.tsv]
    python -m studies.2026-12-scale.neighbours --report neighbours.tsv

CHAINS holds SPLIT/ID.pdb, TABLE their cluster. An ENCODER is one of `benchmarks.probe`; two rows more are always made:
`composition`, the shares of the residue types, and `alignment`, the best local alignment (BLOSUM62) by its score over
that of the shorter chain with itself. All chains of the split are candidates, those with a relative among them are
asked. Vectors are means over residues, centred and scaled over the split, compared by cosine as in `benchmarks.probe`.
A line of the table: chain, cluster, and its nearest chain by every row. Intervals draw clusters.
"""

import argparse
import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.families import local_aligner
from benchmarks.probe import cosines, load, read_items, short
from benchmarks.probe_report import weights
from benchmarks.probe_table import rows_of
from siamdiff_min.files import ConfigError, console
from siamdiff_min.protein.constants import NUM_RESIDUE_TYPES, ONE_LETTER
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.protein import Protein


def alignments(proteins: list[Protein]) -> np.ndarray:
    """Score of the best local alignment over the shorter chain's with itself (K, K)."""
    aligner = local_aligner()
    letters = ["".join(ONE_LETTER[k] for k in protein.residue_type.tolist()) for protein in proteins]
    own, found = [aligner.score(x, x) for x in letters], np.eye(len(letters))
    for i, one in enumerate(letters):
        for j in range(i):
            found[i, j] = found[j, i] = aligner.score(one, letters[j]) / min(own[i], own[j])
    return found


def composition(protein: Protein) -> torch.Tensor:
    """One-hot types (R, 20)."""
    return F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES).double()


@torch.inference_mode()
def means_of(features, proteins: list[Protein]) -> np.ndarray:
    """The mean vector of every chain (K, d)."""
    return torch.stack([features(protein).double().mean(0) for protein in proteins]).numpy()


def report(path: Path) -> list[str]:
    """A line for every row of the table: share of chains whose nearest is a relative, with its interval."""
    rows = rows_of(path)
    cluster = {row["chain"]: row["cluster"] for row in rows}
    size = Counter(cluster.values())
    lines = ["| | chains | a relative is nearest | share |", "|---|---|---|---|"]
    for name in [column for column in rows[0] if column not in ("chain", "cluster")]:
        hits = defaultdict(list)
        for row in rows:
            if size[row["cluster"]] > 1:
                hits[row["cluster"]].append(row["cluster"] == cluster[row[name]])
        right, asked = np.array([[sum(x), len(x)] for x in hits.values()]).T
        drawn = weights(tuple(hits))[1:]
        low, high = np.quantile(drawn @ right / (drawn @ asked), (0.025, 0.975))
        share = f"{right.sum() / asked.sum():.3f} ({low:.3f} to {high:.3f})"
        lines.append(f"| {name} | {asked.sum()} | {right.sum()} | {share} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Make the rows of one command line, or their report."""
    program = "python -m studies.2026-12-scale.neighbours"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("chains", nargs="?", type=Path)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("encoders", nargs="*")
    parser.add_argument("--split", default="val", choices=["val", "test"])
    parser.add_argument(
        "--calibrate", type=Path, help="probe.tsv, for random encoders: their batch norm sees its chains"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/neighbours.tsv"))
    parser.add_argument("--report", type=Path)
    args = parser.parse_args(argv)
    if args.report:
        print("\n".join(report(args.report)))
        return
    if not args.table:
        raise ConfigError("CHAINS and TABLE are needed, or --report")
    torch.set_num_threads(1)
    cluster = {row["id"]: row["cluster"] for row in rows_of(args.table) if row["split"] == args.split}
    proteins = {path.stem: read_structure(path).protein for path in sorted((args.chains / args.split).glob("*.pdb"))}
    names = [name for name in proteins if name in cluster]
    chosen = [proteins[name] for name in names]
    items = read_items(args.calibrate) if args.calibrate else []
    rows = {"alignment": lambda: alignments(chosen), "composition": lambda: cosines(means_of(composition, chosen))}
    rows |= {short(name): lambda name=name: cosines(means_of(load(name, items), chosen)) for name in args.encoders}
    nearest = {}
    for row, alike in rows.items():
        nearest[row] = [names[k] for k in (alike() - 2 * np.eye(len(names))).argmax(1)]
        print(f"{row} done", file=sys.stderr, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with open(args.out, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["chain", "cluster", *nearest])
        writer.writerows(zip(names, map(cluster.get, names), *nearest.values()))
    print("\n".join(report(args.out)))


if __name__ == "__main__":
    with console():
        main()
