"""How often `finetune --freeze` calls labels that mean nothing *better* or *worse* than the baseline.

    siamdiff embed siamdiff_min/reading/bundle --out bundle.npz
    python -m benchmarks.freeze_sizes bundle.npz sizes.json [--tables 400] [--skip 0] [--minutes 60]

Features are the mean vectors of 150 of the bundled chains, each table a draw of them with labels at random. A verdict
is the share of tables dealt out that are at least as good (or as bad), see tools/evidence/permutation.py. The numbers
go on from those in sizes.json, one table of every cell in turn. The table is printed at the end.

The plan, written before the numbers:

* 24 cells: numbers, yes or no half and half, one yes in ten, three classes; 30, 60, 150 structures; one split (a fifth
  is tested) or ten folds. At most 3.5 % *better* and 3.5 % *worse* in each, of 400 tables, for every measure. A split
  with fewer than 8 structures, or 4 of the rarer class, has no verdict: it counts as neither.
* Two cells of copies: 20 chains with 5 vectors each that differ by a hundredth of the spread, one label for each chain,
  drawn by chain.
* Four cells of the second verdict, *better than length and composition*: 60 structures, one split or ten folds; labels
  of noise, and labels that are a linear function of length and composition with as much noise. Said at most in 3.5 %.
* Added later: cells above 3.5 % once more, on 1,600 other tables (--tables 2000 --skip 400). And four cells of power,
  *encoder-floor*: 60 and 150 structures, labels that are a linear function of the first eight directions of the
  vectors, without what length and composition explain of it, and as much noise. Said as often as can be.
* 80 tables are dealt out, the real one among them; the command deals 400. The measures are the package's.
* For one split the head is the package's. For folds it is the ridge regression that the test makes again.

Came out in November 2026: 1.9 % were called better and 2.0 % worse, over 19 kinds of tables and all measures. 11 of
124 shares were above 3.5 %, where chance alone gives 10; none of these was again on 1,600 other tables (3.2 % at most).
Power, if half of a label's variance is in the vectors: 60 structures in folds are better by rho in 30 % of tables, by
rmse in 9 %; 150 in 99 and 64 %. An interval is over draws of structures, so it may hold the baseline all the same.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from siamdiff_min.downstream import metrics
from siamdiff_min.files import write_file
from siamdiff_min.reading.sources import bundled
from siamdiff_min.tools.evidence import permutation
from siamdiff_min.tools.evidence.bootstrap import difference_interval, redrawn
from siamdiff_min.tools.table import folds, linear
from siamdiff_min.tools.table.composition import composition

MEASURES = {
    "numbers": ("rmse", "mae", "spearman", "pearson"),
    "half": ("auroc", "auprc", "accuracy"),
    "tenth": ("auroc", "auprc", "accuracy"),
    "three": ("accuracy", "balanced_accuracy"),
}
KINDS = {"numbers": "regression", "half": "binary", "tenth": "binary", "three": "classes"}
DEALS = 80
DRAWS = 200
CELLS = [f"{kind} {size} {how}" for kind in MEASURES for size in (30, 60, 150) for how in ("split", "folds")]
CELLS += ["copies 100 split", "copies 100 folds"]
CELLS += [f"{what} 60 {how}" for what in ("noise-floor", "composition-floor") for how in ("split", "folds")]
CELLS += [f"encoder-floor {size} {how}" for size in (60, 150) for how in ("split", "folds")]
DIRECTIONS = 8  # of the vectors, which labels of *encoder-floor* are made of


def labels(kind: str, size: int, random: np.random.Generator) -> np.ndarray:
    """Labels (size,) of this kind in random order."""
    if kind == "numbers":
        return random.normal(size=size)
    if kind == "tenth":
        return random.permutation(np.arange(size) < size // 10).astype(float)
    classes = 3 if kind == "three" else 2
    return random.permutation(np.arange(size) % classes).astype(float)


def encoded(kind: str, y: np.ndarray) -> np.ndarray:
    """Labels (K,) or of many tables (K, T) as the targets of ridge regression: (K, C, T)."""
    y = y.reshape(len(y), -1)
    if kind == "three":
        return np.stack([y == label for label in range(3)], 1).astype(float)
    return y[:, None]


def decoded(kind: str, output: np.ndarray) -> np.ndarray:
    """Predictions (K, C) or (K,) of one table from outputs (K, C)."""
    return output if kind == "three" else output[:, 0]


def standardised(x: np.ndarray) -> np.ndarray:
    """Every column with mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / x.std(0)


def verdicts(kind: str, predictions, targets) -> dict[str, list[float]]:
    """Of every measure the shares of tables as good and as bad. The first prediction and target are the real ones."""
    found = {}
    for name in MEASURES[kind]:
        compute = getattr(metrics, name)
        values = np.array([compute(*pair) for pair in zip(predictions, targets)])
        found[name] = permutation.shares(values, metrics.BEST[name] == "min")
    return found


def too_few(kind: str, y: np.ndarray, groups: np.ndarray) -> bool:
    """Whether the command gives no verdict on these labels."""
    rarer = min(y.sum(), (1 - y).sum()) if KINDS[kind] == "binary" else np.inf
    return len(np.unique(groups)) < 8 or rarer < 4


def test_folds(kind: str, x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> tuple[dict, np.ndarray]:
    """The verdicts of ten folds, and the predictions of the real table."""
    fold = linear.folds_of(y, groups, 10)
    source = permutation.permuted_rows(groups, fold, DEALS)
    dealt = y[source].T  # (K, T)
    part = folds.parts_of(groups, fold)
    outputs = folds.ridge_out_of_fold(x, encoded(kind, dealt), fold, part, together=kind == "three")
    predictions = [decoded(kind, outputs[:, :, t]) for t in range(DEALS)]
    return verdicts(kind, predictions, dealt.T), predictions[0]


def test_split(
    kind: str, x: np.ndarray, y: np.ndarray, groups: np.ndarray, test: np.ndarray
) -> tuple[dict, np.ndarray]:
    """The verdicts of one split, and the predictions for its rows `test` (K,)."""
    head = linear.fit(x[~test], y[~test], groups[~test], KINDS[kind], 3 if kind == "three" else 0)
    output = decoded(kind, head(x[test]))
    if KINDS[kind] == "binary":
        output = 1 / (1 + np.exp(-output))
    source = permutation.permuted_rows(groups[test], np.zeros(test.sum(), dtype=int), DEALS)
    return verdicts(kind, [output] * DEALS, y[test][source]), output


def against_floor(
    found: dict, one: np.ndarray, two: np.ndarray, y: np.ndarray, groups: np.ndarray, folds: bool
) -> dict:
    """Whether predictions `one` are called better than the floor's `two` by each measure: 1, else 0."""
    said = {}
    draws = redrawn(groups)
    rows = [np.concatenate(next(draws)) for _ in range(DRAWS)]
    for name in ("rmse", "spearman"):
        compute = getattr(metrics, name)
        sign = -1 if name == "rmse" else 1
        drawn = np.array([sign * (compute(one[r], y[r]) - compute(two[r], y[r])) for r in rows])
        value = sign * (compute(one, y) - compute(two, y))
        low, _ = difference_interval(value, drawn, len(np.unique(groups)), folds) or (-1, 1)
        said[name] = [0.0 if low > 0 and found[name][0] <= permutation.LEVEL else 1.0, 1.0]
    return said


def table(cell: str, vectors: np.ndarray, floor: np.ndarray, random: np.random.Generator) -> dict:
    """One table of a cell: of every measure the shares of tables as good and as bad; nothing if there is no verdict."""
    kind, size, how = cell.split()
    size = int(size)
    chosen = random.choice(len(vectors), size, replace=False)
    x = vectors[chosen]
    groups = np.arange(size)
    y = labels(kind, size, random) if kind in MEASURES else random.normal(size=size)
    if kind == "copies":
        kind = "half"
        groups = np.repeat(np.arange(20), 5)
        x = vectors[chosen[groups]] + vectors.std(0) * random.normal(size=(size, vectors.shape[1])) / 100
        y = labels(kind, 20, random)[groups]
    other = None
    if kind.endswith("-floor"):
        other = floor[chosen]
        if kind == "composition-floor":
            signal = standardised(other) @ random.normal(size=other.shape[1])
            y = y + standardised(signal)
        if kind == "encoder-floor":
            directions, _, _ = np.linalg.svd(standardised(vectors), full_matrices=False)
            signal = directions[:, :DIRECTIONS] @ random.normal(size=DIRECTIONS)
            known = np.column_stack([np.ones(len(floor)), floor])
            signal -= known @ np.linalg.lstsq(known, signal)[0]
            y = y + standardised(signal[chosen])
        kind = "numbers"

    test = np.ones(size, dtype=bool)
    if how == "split":
        order = random.permutation(groups.max() + 1)
        test = np.isin(groups, order[: len(order) // 5])
    if too_few(kind, y[test], groups[test]):
        return {}
    if how == "folds":
        found, one = test_folds(kind, x, y, groups)
    else:
        found, one = test_split(kind, x, y, groups, test)
    if other is None:
        return found
    two = test_folds(kind, other, y, groups)[1] if how == "folds" else test_split(kind, other, y, groups, test)[1]
    return against_floor(found, one, two, y[test], groups[test], how == "folds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vectors", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", type=int, default=400)
    parser.add_argument("--skip", type=int, default=0, help="so many tables are not in the shares that are printed")
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--minutes", type=float, default=60)
    args = parser.parse_args()

    content = np.load(args.vectors)
    single = [i for i, name in enumerate(content["id"]) if len(str(name).split("_")[-1]) == 1][:150]
    vectors = content["mean"][single].astype(np.float64)
    proteins = [bundled(str(content["id"][i])).protein for i in single]
    floor = torch.cat([composition(protein) for protein in proteins]).numpy()

    # One table of every cell in turn, so that the cells may be read at any time.
    done = json.loads(args.out.read_text()) if args.out.exists() else {}
    end = time.monotonic() + 60 * args.minutes
    for number in range(args.tables):
        for cell in args.cells:
            tables = done.setdefault(cell, [])
            if len(tables) == number and time.monotonic() < end:
                seed = [number, *cell.encode()]
                tables.append(table(cell, vectors, floor, np.random.default_rng(seed)))
        write_file(args.out, json.dumps(done).encode())

    print("| labels | tables | better, worse % |\n|---|---|---|")
    for cell in args.cells:
        tables = done[cell][args.skip :]
        measures = dict.fromkeys(name for found in tables for name in found)
        words = []
        for name in measures:
            shares = np.array([found.get(name, (1, 1)) for found in tables])
            better, worse = 100 * (shares <= permutation.LEVEL).mean(0)
            words.append(f"{name} {better:.1f}, {worse:.1f}")
        print(f"| {cell} | {len(tables)} | {'; '.join(words) or 'no verdict'} |")


if __name__ == "__main__":
    main()
