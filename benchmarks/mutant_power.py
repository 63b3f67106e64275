"""What `siamdiff mutants` says of real assays, beside what turns out: the study of measured mutants again.

    python -m benchmarks.mutant_power DATA [NAME...] [--gb1 gb1_data.csv.gz] [--out runs/mutant_power]

DATA is the folder of `benchmarks.ddg`, with structures/NAME.pdb. A draw is that of studies/2026-11-mutants: a third of
the positions is not touched, and 24 mutants or more at the others are measured. The truth is what mutants at untouched
positions turn out to be. OUT/NAME.npz gets a row for every draw. `gb1_data.csv.gz` of mavenn 1.1.4 has double mutants.
"""

import argparse
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.kept import rows_of
from benchmarks.probe import save
from siamdiff_min import read_structure
from siamdiff_min.downstream.metrics import rmse, spearman
from siamdiff_min.files import console
from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.tools.mutants.mutation_model import (
    GaussianProcess,
    Mutant,
    MutantPrior,
    Mutation,
    PositionFeatures,
    positions_of,
)
from siamdiff_min.tools.mutants.mutation_names import Positions
from siamdiff_min.tools.mutants.ranking import BUNDLED, features_of
from siamdiff_min.tools.mutants.trust import FLOOR, MEAN, UNMEASURED, trust

SIZES = (24, 48, 96, 192)
DRAWS = 20
FEWEST = 8  # mutants to predict
MOST = 2000
DOUBLES = 20000  # drawn from all double mutants of protein G, as in the study
GB1 = "GB1-double"
COLUMNS = ["size", "draw", "tested", "model", "floor", "ranking", "error", "error_mean", "covered"]
COLUMNS += ["better", "better_floor", "better_unmeasured", "said_rho", "said_explained", "said_covered"]
Assay = tuple[list[Mutant], np.ndarray]


def read_ddg(data: Path, name: str, numbering: Positions) -> Assay:
    """The mutants of a protein and their values; higher is more stable."""
    index = numbering.index
    mutants = []
    values = []
    for table in ("train.tsv", "s461.tsv"):
        for row in rows_of(data / table):
            i = index.get((row["chain"], int(row["number"]), "")) if row["structure"] == name else None
            if i is not None and numbering.wild[i] == row["wild"]:
                mutants.append((Mutation(i, ONE_LETTER.index(row["mutant"])),))
                values.append(float(row["ddg"]))
    return mutants, np.array(values)


def read_gb1(path: Path, wild: str) -> Assay:
    """Double mutants of protein G and their binding. Their sequences begin at residue 2 of the structure."""
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dist"] == "2"]
    chosen = np.random.default_rng(0).choice(len(rows), DOUBLES, replace=False)
    own = consensus([row["x"] for row in rows])
    start = next(k for k in range(3) if agree(own, wild[k:]) > 0.95 * len(own) - 2)
    mutants = []
    values = []
    for row in (rows[i] for i in chosen):
        changed = [i for i, letter in enumerate(row["x"]) if letter != own[i]]
        mutants.append(tuple(Mutation(start + i, ONE_LETTER.index(row["x"][i])) for i in changed))
        values.append(float(row["y"]))
    return mutants, np.array(values)


def consensus(sequences: list[str]) -> str:
    """The commonest letter at every place."""
    letters = np.array([[*sequence] for sequence in sequences])
    found = ""
    for column in letters.T:
        names, counts = np.unique(column, return_counts=True)
        found += names[counts.argmax()]
    return found


def agree(one: str, two: str) -> int:
    """At how many places two sequences have the same letter."""
    return sum(a == b for a, b in zip(one, two))


def draw_rows(mutants: list[Mutant], size: int, draw: int) -> tuple[list[int], list[int]]:
    """Rows that are measured, and rows to predict at untouched positions: as the study drew them."""
    random = np.random.default_rng(draw)
    every = sorted(frozenset().union(*map(positions_of, mutants)))
    new = frozenset(random.choice(every, max(1, len(every) // 3), replace=False).tolist())
    order = random.permutation(len(mutants)).tolist()
    known = [i for i in order if not positions_of(mutants[i]) & new]
    rest = [i for i in order if positions_of(mutants[i]) <= new]
    return known[:size], rest[:MOST]


def answers(features: PositionFeatures, mutants: list[Mutant], y: np.ndarray) -> Iterator[list[float]]:
    """A row of COLUMNS for every draw."""
    for size in SIZES:
        for draw in range(DRAWS):
            known, rest = draw_rows(mutants, size, draw)
            if len(known) == size and len(rest) >= FEWEST:
                new = [mutants[i] for i in rest]
                yield [size, draw, len(rest), *answer(features, [mutants[i] for i in known], y[known], new, y[rest])]


def answer(features: PositionFeatures, known: list[Mutant], y: np.ndarray, new: list[Mutant], truth) -> list[float]:
    """How well the model predicts, and what it says of itself; nan where it says nothing."""
    model = GaussianProcess(MutantPrior(features, known), y)
    value, half = model.predict(new)
    of_floor, _ = GaussianProcess(MutantPrior(features, known, floor=True), y).predict(new)
    ranking = [sum(features.ranking[mutation] for mutation in mutant) for mutant in new]
    found = [spearman(x, truth) for x in (value, of_floor, np.array(ranking))]
    found += [rmse(value, truth), rmse(np.full(len(truth), y.mean()), truth), np.mean(np.abs(value - truth) <= half)]
    said = trust(model)
    if said is None:
        return found + [np.nan] * 6
    found += [said.better(name) for name in (MEAN, FLOOR, UNMEASURED)]
    return [*found, said.rho, said.explained, said.covered]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutant_power", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gb1", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/mutant_power"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [*args.names, *([GB1] if args.gb1 else [])]:
        if (args.out / f"{name}.npz").exists():
            continue
        of = "1PGA" if name == GB1 else name
        structure = read_structure(args.data / "structures" / f"{of}.pdb")
        chains = sorted(
            {
                row["chain"]
                for t in ("train.tsv", "s461.tsv")
                for row in rows_of(args.data / t)
                if row["structure"] == of
            }
        )
        numbering = Positions.of(structure, chains)
        features = features_of(structure, numbering.residues, BUNDLED)
        mutants, y = read_gb1(args.gb1, numbering.wild) if name == GB1 else read_ddg(args.data, name, numbering)
        rows = np.array([*answers(features, mutants, y)], dtype=np.float32).reshape(-1, len(COLUMNS))
        save(args.out / f"{name}.npz", rows=rows)
        print(name, len(y), "mutants", len(rows), "draws", flush=True)


if __name__ == "__main__":
    with console():
        main()
