"""What ran the study of measured mutants: `python -m studies.2026-12-mutants.measure SITES ASSAYS OUT [NAME...]`.

SITES has NAME.npz for every assay: rows, features and log-odds of the residues (`siamdiff_min.downstream.mutations`).
ASSAYS has NAME.npz: `mutants` as numbers (K, 2), -1 without a second mutation; and `y` (K,), higher is better.
OUT/NAME.npz gets a row of scores for every draw.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.probe import save
from siamdiff_min.downstream import mutations
from siamdiff_min.downstream.metrics import rmse, spearman
from siamdiff_min.downstream.mutations import Effects, Sites, positions, summed, trust

SIZES, DRAWS, FEWEST, MOST = (8, 24, 48, 96, 192), 20, 8, 2000  # mutants to predict: from FEWEST to MOST
COLUMNS = ["random", "size", "draw", "tested", "model", "floor", "ranking", "odds", "blosum", "error", "error_mean"]
COLUMNS += ["covered", "width", "said_rho", "said_low", "said_floor", "said_ranking", "said_covered"]
mutations.DRAWS = 200  # of each verdict: 500 in the command


def drawn(mutants: list, size: int, draw: int, random: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are measured, and rows to predict."""
    rng = np.random.default_rng(draw)
    every = sorted(set().union(*map(positions, mutants)))
    new = {*rng.choice(every, max(1, len(every) // 3), replace=False).tolist()}
    order = rng.permutation(len(mutants))
    if random:
        return order[:size], order[size:][:MOST]
    known = [i for i in order if not positions(mutants[i]) & new]
    rest = [i for i in order if positions(mutants[i]) <= new]
    return np.array(known[:size], dtype=int), np.array(rest[:MOST], dtype=int)


def measure(sites: Sites, mutants: list, y: np.ndarray) -> np.ndarray:
    """Scores of all draws (D, COLUMNS)."""
    odds = (sites.odds / sites.odds.std((1, 2), keepdims=True)).mean(0).ravel()
    blosum = mutations.BLOSUM62[sites.wild].ravel()
    found = []
    for random, size, draw in [(r, s, d) for r in (False, True) for s in SIZES for d in range(DRAWS)]:
        a, b = drawn(mutants, size, draw, random)
        if len(a) < size or len(b) < FEWEST:
            continue
        known, new = [mutants[i] for i in a], [mutants[i] for i in b]
        model, floor = (Effects(sites, known, y[a], floor=x) for x in (False, True))
        (value, half), (low, _) = model.predict(new), floor.predict(new)
        sums = [summed(x, new) for x in (sites.ranking, odds, blosum)]
        row = [random, size, draw, len(b), *(spearman(x, y[b]) for x in (value, low, *sums))]
        row += [rmse(value, y[b]), rmse(np.full(len(b), y[a].mean()), y[b]), np.mean(np.abs(value - y[b]) <= half)]
        row += [half.mean() / y.std()]
        if random or not (said := trust(model, y[a])):
            row += [np.nan] * 5
        else:
            row += [*said.rho["the model"][:2], *(said.gain[x][1] for x in ("types and burial", "no measurements"))]
            row += [said.covered]
        found.append(row)
    return np.array(found, dtype=np.float32).reshape(-1, len(COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.2026-12-mutants.measure", description=__doc__)
    parser.add_argument("sites", type=Path)
    parser.add_argument("assays", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    for path in sorted(args.assays.glob("*.npz")):
        if (args.names and path.stem not in args.names) or (args.out / path.name).exists():
            continue
        with np.load(path, allow_pickle=False) as file:
            mutants, y, site = [tuple(int(x) for x in m if x >= 0) for m in file["mutants"]], file["y"], file["sites"]
        if not (args.sites / f"{site}.npz").exists():
            continue
        with np.load(args.sites / f"{site}.npz", allow_pickle=False) as file:
            sites = Sites(file["wild"], file["neighbours"], file["features"], file["odds"])
        rows = measure(sites, mutants, y)
        save(args.out / path.name, rows=rows, positions=len(set().union(*map(positions, mutants))), mutants=len(y))
        print(path.stem, len(y), "mutants", len(rows), "draws", flush=True)


if __name__ == "__main__":
    main()
