"""Which residues of a protein move? What the features of one structure tell of its difference to another one.

    python -m studies.2026-11.mobility PAIRS.tsv FOLDER ENCODER... [--out runs/mobility]
    python -m studies.2026-11.mobility PAIRS.tsv FOLDER ENCODER --figure mobility.png
    python -m studies.2026-11.mobility --report OUT...

PAIRS.tsv has the columns file_a, file_b (in FOLDER), split (train, val, test), cluster, n_a and n_b (residues). Both
structures of a pair take part. The label of a residue is the distance of its CA in the two, in angstrom, after
superposition of all residues that both have. ENCODERs are those of `benchmarks.probe`, or `neighbours`: minus the
number of CA within 10 angstrom, with nothing to fit. Ridge regression of log(label + 0.1), minus its mean over the
chain; the penalty that is best on validation. The score is Spearman's rho over the residues of a chain, averaged over
chains. OUT/NAME.npz has the rho of every chain of the test split. The report compares runs called conf-KIND-SEED. The
figure shows the test chain whose rho is the median of those that move: CA RMSD of 2 angstrom or more.
"""

import argparse
import csv
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from benchmarks.probe import SPLITS, Item, load, save, short, solve
from benchmarks.probe_report import cell, difference, weights
from benchmarks.residue_labels import atoms_of
from benchmarks.superpose import superpose
from siamdiff_min.data.conformers import matched
from siamdiff_min.files import console
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.protein import Protein
from siamdiff_min.protein.structure import Structure

LONGEST = 500  # residues
NEAR = 10.0  # angstrom
MOVING = 2.0  # angstrom, CA RMSD of the chains that the figure is chosen from
FLOOR = 0.1  # angstrom, about the error of a coordinate
RANDOM = "random-gearnet"


def displacement(structure: Structure, other: Structure, name: str = "", label: str = "") -> np.ndarray:
    """Distance of every CA to that of another conformer (R,) in angstrom, NaN where that one has no such residue."""
    protein = structure.protein
    ca = protein.atom_name == CA
    mine, theirs = protein.pos[ca], matched(structure, other, name, label)[ca]
    both = ~theirs[:, 0].isnan()
    rotation, shift = superpose(theirs[both].double(), mine[both].double())
    return (theirs.double() @ rotation.T + shift - mine).norm(dim=1).numpy()


def read_pairs(table: Path, folder: Path) -> tuple[list[Item], list[np.ndarray]]:
    """Both structures of every pair, and the displacements of their residues."""
    items, labels = [], []
    with open(table, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if max(int(row["n_a"]), int(row["n_b"])) > LONGEST:
                continue
            files = row["file_a"], row["file_b"]
            for name, partner in (files, files[::-1]):
                own, other = (read_structure(folder / file) for file in (name, partner))
                items.append(Item(name, row["split"], row["cluster"], row["cluster"], own.protein))
                labels.append(displacement(own, other, name, partner))
    return items, labels


def neighbours(protein: Protein) -> np.ndarray:
    """Minus the number of CA near to each (R,)."""
    ca = atoms_of(protein, CA)
    return -(torch.cdist(ca, ca, compute_mode="donot_use_mm_for_euclid_dist") < NEAR).sum(1).double().numpy()


def rho(answers: list[np.ndarray], labels: list[np.ndarray]) -> np.ndarray:
    """Spearman's correlation of every chain; 0 where all residues have one rank."""
    known = [~np.isnan(label) for label in labels]
    ranks = [(stats.rankdata(a[k]), stats.rankdata(y[k])) for a, y, k in zip(answers, labels, known)]
    return np.array([np.corrcoef(*pair)[0, 1] if min(map(np.ptp, pair)) else 0.0 for pair in ranks])


@torch.inference_mode()
def predict(name: str, items: list[Item], labels: list[np.ndarray]) -> list[np.ndarray]:
    """A number for every residue of the test chains: the more, the more it moves."""
    train, val, test = ([i for i, item in enumerate(items) if item.split == split] for split in SPLITS)
    if name == "neighbours":
        return [neighbours(items[i].protein) for i in test]
    features = load(name, items)
    x = [features(item.protein).numpy() for item in items]
    rows, targets = [], []
    for i in train:
        known, value = ~np.isnan(labels[i]), np.log(labels[i] + FLOOR)
        rows.append(x[i][known].astype(float))
        targets.append(value[known] - value[known].mean())
    best, found = -np.inf, None
    for answer in solve(np.concatenate(rows), np.concatenate(targets)[:, None]):
        value = rho([answer(x[i])[:, 0] for i in val], [labels[i] for i in val]).mean()
        if value > best:
            best, found = value, [answer(x[i])[:, 0] for i in test]
    return found


def figure(path: Path, items: list[Item], labels: list[np.ndarray], answers: list[np.ndarray]) -> None:
    """Trace of the CA of one chain, coloured by the ranks of displacement and prediction; and both along the chain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    moving = np.array([np.sqrt(np.nanmean(label**2)) >= MOVING for label in labels])
    found = np.where(moving, rho(answers, labels), np.inf)
    chosen = np.argsort(found)[moving.sum() // 2]
    item, label, answer = items[chosen], labels[chosen], answers[chosen]
    ca = atoms_of(item.protein, CA).numpy()
    _, _, axes = np.linalg.svd(ca - ca.mean(0), full_matrices=False)
    x, y, depth = ((ca - ca.mean(0)) @ axes.T).T
    canvas, panels = plt.subplots(1, 3, figsize=(10, 3.2), width_ratios=(1, 1, 1.4), layout="constrained")
    name = Path(item.name).stem
    true = np.log(label + FLOOR)
    titles = (f"{name}: true", f"predicted, rho = {found[chosen]:.2f}")
    for panel, values, title in zip(panels, (true, answer), titles):
        panel.plot(x, y, color="0.8", zorder=0)
        order = np.argsort(depth)
        panel.scatter(x[order], y[order], c=stats.rankdata(values)[order], cmap="viridis", s=14)
        panel.set(title=title, aspect="equal")
        panel.axis("off")
    for values, text in ((true, "true"), (answer + np.nanmean(true), "predicted, true mean")):
        panels[2].semilogy(np.exp(values), label=text)
    panels[2].set(xlabel="residue", ylabel="displacement + 0.1 (angstrom)", title="along the chain")
    panels[2].legend()
    canvas.savefig(path, dpi=110)
    print(f"{path}: {name}, rho {found[chosen]:.3f}, the median of {moving.sum()} chains that move")


def report(folders: list[Path]) -> None:
    """Mean correlations; and what real conformers change, with intervals as in `probe_report.difference`."""
    methods = defaultdict(dict)
    for path in sorted(path for folder in folders for path in folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as kept:
            known, own = np.unique(kept["family"], return_inverse=True)
            total = np.stack([np.bincount(own, kept["rho"]), np.bincount(own)], axis=1)
        drawn = weights(tuple(known.tolist())) @ total
        match = re.fullmatch(rf"(conf-\w+|{RANDOM})-(?:residue-tiny-)?(\d+)", path.stem)
        method, seed = match.groups() if match else (path.stem, 0)
        methods[method][int(seed)] = drawn[:, 0] / drawn[:, 1]
    print("| features | runs | mean rho |\n|---|---|---|")
    for name, runs in methods.items():
        print(f"| {name} | {len(runs)} | {cell(runs, np.asarray)} |")
    print("\n| | difference | 95 % interval | p |\n|---|---|---|---|")
    tried = [name for name in ("conf-simulated", "conf-models", "conf-both") if name in methods]
    pairs = [(name, "conf-simulated") for name in tried[1:]] + [(name, RANDOM) for name in tried if RANDOM in methods]
    compared = {name: runs for name, runs in methods.items() if name.startswith("conf-") or name == RANDOM}
    for one, other in pairs:
        value, low, high, p = difference(compared, one, other, np.asarray)
        print(f"| {one} minus {other} | {value:+.3f} | {low:+.3f} .. {high:+.3f} | {p:.2g} |")


def main(argv: list[str] | None = None) -> None:
    """Probe the encoders of one command line, or print the report."""
    parser = argparse.ArgumentParser(prog="python -m studies.2026-11.mobility", description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, nargs="?", help="PAIRS.tsv")
    parser.add_argument("folder", type=Path, nargs="?", help="of its files")
    parser.add_argument("encoders", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/mobility"))
    parser.add_argument("--figure", type=Path, help="draw one chain")
    parser.add_argument("--report", type=Path, nargs="+")
    args = parser.parse_args(argv)
    if args.report:
        report(args.report)
        return
    if not args.encoders:
        parser.error("PAIRS.tsv, FOLDER and ENCODERs, or --report")
    torch.set_num_threads(1)
    items, labels = read_pairs(args.table, args.folder)
    tested = [(item, label) for item, label in zip(items, labels) if item.split == "test"]
    tested, known = zip(*tested)
    about = {"item": np.array([item.name for item in tested]), "family": np.array([item.family for item in tested])}
    for name in args.encoders:
        answers = predict(name, items, labels)
        if args.figure:
            figure(args.figure, tested, known, answers)
            continue
        found = rho(answers, known)
        save(args.out / f"{short(name)}.npz", **about, rho=found.astype(np.float32))
        print(f"{short(name):32}  rho {found.mean():.3f} over {len(found)} chains", flush=True)


if __name__ == "__main__":
    with console():
        main()
