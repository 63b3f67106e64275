"""RES on families that no probe has read: which type has a residue whose side chain is hidden?

    python -m studies.2026-12-scale.residue_types table OUT/probe.tsv FOLDER TABLE SEEN
    python -m benchmarks.make_sets environments OUT RES --each 6 8 64
    python -m studies.2026-12-scale.residue_types linear OUT RESULTS FEATURES...
    python -m studies.2026-12-scale.residue_types keep RESULTS/NAME.npz predictions.tsv
    python -m studies.2026-12-scale.residue_types report RESULTS

table: chains of families that SEEN (a probe.tsv) does not name. FOLDER holds SPLIT/ID.pdb, TABLE has the columns id,
split, group, cluster. linear: ridge regression of FEATURES of `benchmarks.probe` that do not see a residue's own type,
for the same residues as in RES. keep: what `finetune.py --task res` answered. report: accuracies and differences;
NAME-SEED is one of several seeds.
"""

import argparse
import csv
import os
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.make_sets import environments, one_of_each_family
from benchmarks.probe import SPLITS, Rows, fit, load, read_items, save, short
from benchmarks.probe_report import weights
from benchmarks.probe_table import COLUMNS, chosen, rows_of
from siamdiff_min.files import ConfigError, console

from .report import interval

FAMILIES = {"train": 400, "val": 50, "test": 10**6}
EACH = {"train": 6, "val": 8, "test": 64}  # residues of a chain


def table(out: Path, folder: Path, chains: Path, seen: Path) -> None:
    """Write the chains of the set, in the form of `benchmarks.probe_table`."""
    known, usable, lines = {row["family"] for row in rows_of(seen)}, [], ["\t".join(COLUMNS)]
    for row in rows_of(chains):
        file = folder / row["split"] / f"{row['id']}.pdb"
        if row["group"] not in known and file.is_file():
            usable.append({**row, "partners": "", "file": os.path.relpath(file, out.parent)})
    for split, number in FAMILIES.items():
        for row in chosen(usable, split, number):
            lines.append("\t".join([row["file"], split, row["group"], row["cluster"], ""]))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


@torch.inference_mode()
def linear(data: Path, out: Path, names: list[str]) -> None:
    """Fit the rows of some features, and keep how many residues of every test chain are right."""
    items = read_items(data / "probe.tsv")
    chains = [item for split in SPLITS for item in one_of_each_family([i for i in items if i.split == split])]
    residues = [environments(item, EACH[item.split])[0] for item in chains]
    y = np.concatenate([item.protein.residue_type[rows].numpy() for item, rows in zip(chains, residues)])
    lengths = [len(rows) for rows in residues]
    split = np.repeat([SPLITS.index(item.split) for item in chains], lengths)
    of, constant = np.repeat(np.arange(len(chains)), lengths), np.bincount(y[split == 0]).argmax()
    right = {"constant": np.bincount(of, y == constant)}
    for name in names:
        features = load(name, items)
        x = np.concatenate([features(item.protein)[rows].double().numpy() for item, rows in zip(chains, residues)])
        right[short(name)] = fit(Rows(x, y, split, of), "class", 100, len(chains))["sums"][:, 0]
    for name, number in right.items():
        found = zip(chains, np.stack([number, lengths], axis=1))
        write(out / f"{name}.npz", {item.name: sums for item, sums in found if item.split == "test"})


def keep(out: Path, predictions: Path) -> None:
    """How many residues of every test chain a fine-tuned model has right."""
    found = defaultdict(lambda: np.zeros(2))
    with open(predictions, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            found[row["group"]] += [row["class"] == row["target"], 1]
    write(out, found)


def write(path: Path, sums: dict[str, np.ndarray]) -> None:
    """Keep right and asked residues of every chain."""
    names = sorted(sums)
    save(path, names=np.array(names), sums=np.array([sums[name] for name in names], dtype=np.int32))


def report(folder: Path) -> list[str]:
    """A line for every row: accuracy, and minus the row from scratch; intervals draw families (one chain each)."""
    rows, asked = defaultdict(list), set()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as kept:
            asked.add((tuple(kept["names"].tolist()), tuple(kept["sums"][:, 1].tolist())))
            right, total = (weights(tuple(kept["names"].tolist())) @ kept["sums"].astype(float)).T
        rows[re.sub(r"-\d$", "", path.stem)].append(right / total)
    if len(asked) != 1:
        raise ConfigError(f"{folder}: its rows are not all of the same residues")
    mean = {name: np.mean(runs, axis=0) for name, runs in rows.items()}
    lines = ["| | runs | accuracy | minus scratch |", "|---|---|---|---|"]
    for name, drawn in sorted(mean.items(), key=lambda row: row[1][0]):
        base, gap = mean.get(f"scratch-{'residue' if name.endswith('-residue') else 'atom'}"), ""
        if base is not None and base is not drawn:
            gap = f"{drawn[0] - base[0]:+.3f} ({interval(drawn[1:] - base[1:])})"
        low, high = np.quantile(drawn[1:], (0.025, 0.975))
        lines.append(f"| {name} | {len(rows[name])} | {drawn[0]:.3f} ({low:.3f} to {high:.3f}) | {gap} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Do what one command line says."""
    program = "python -m studies.2026-12-scale.residue_types"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    arguments = {
        "table": ("out", "folder", "chains", "seen"),
        "linear": ("data", "out"),
        "keep": ("out", "predictions"),
        "report": ("folder",),
    }
    for command, names in arguments.items():
        own = commands.add_parser(command)
        for name in names:
            own.add_argument(name, type=Path)
    commands.choices["linear"].add_argument("names", nargs="+")
    args = vars(parser.parse_args(argv))
    lines = {"table": table, "linear": linear, "keep": keep, "report": report}[args.pop("command")](**args)
    if lines:
        print(*lines, sep="\n")


if __name__ == "__main__":
    with console():
        main()
