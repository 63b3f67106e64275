"""Which residues of a protein move? The tables of conformers.md from the results of the probe.

    python -m studies.2026-11.mobility --report studies/2026-11/results/mobility

A file NAME.npz has Spearman's rho of every chain of the test split. The report compares runs called conf-KIND-SEED.
Commit 40c1240 is the last that has the probe itself, because the package no longer matches conformers.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.probe_report import cell, difference, weights
from siamdiff_min.files import console

RANDOM = "random-gearnet"


def report(folders: list[Path]) -> None:
    """Print mean correlations, and what real conformers change, with intervals as in `probe_report.difference`."""
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
    """Print the report of one command line."""
    parser = argparse.ArgumentParser(prog="python -m studies.2026-11.mobility", description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, nargs="+", required=True, help="folders of results")
    report(parser.parse_args(argv).report)


if __name__ == "__main__":
    with console():
        main()
