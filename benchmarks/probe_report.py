"""Tables, intervals and tests of what `benchmarks.probe` has kept, as studies/2026-11/study.md stated them before.

    python -m benchmarks.probe_report FOLDER... [--against METHOD]

A FOLDER (or FOLDER.zip) has NAME.npz, name METHOD-LEVEL-SIZE-SEED, or random-gearnet-LEVEL-SIZE-SEED (scratch), or a
floor.
With +counts at its end it is a method of its own. Prints one part for every level and size.
"""

import argparse
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.kept import kept
from benchmarks.probe import KIND, SHARES, score
from siamdiff_min.files import ConfigError, console

DRAWS = 2000  # of the families of the test split
PROBES = [name for name in KIND if name != "retrieval"]
FLOORS = ("onehot", "geometry", "both", "counts")
SCRATCH = "scratch"
PAPER = {  # the paper's Tables 1 and 2: method -> mean rank first, then the columns
    "atom": {
        "columns": ("mean rank", "PIP", "MSP", "RES", "PSR global", "PSR mean"),
        "siamdiff": (1.2, 0.884, 0.698, 0.460, 0.829, 0.546),
        "diffpret": (2.4, 0.880, 0.680, 0.452, 0.821, 0.533),
        "distance": (4.0, 0.872, 0.677, 0.422, 0.840, 0.522),
        "residue-type": (4.4, 0.879, 0.620, 0.449, 0.826, 0.518),
        "score-matching": (5.2, 0.877, 0.629, 0.448, 0.813, 0.518),
        "angle": (6.2, 0.878, 0.642, 0.419, 0.813, 0.503),
        "dihedral": (6.8, 0.878, 0.591, 0.414, 0.821, 0.497),
        "multiview": (7.2, 0.871, 0.646, 0.368, 0.805, 0.502),
        SCRATCH: (7.6, 0.868, 0.633, 0.441, 0.782, 0.488),
    },
    "residue": {
        "columns": ("mean rank", "EC AUPR", "EC Fmax", "MSP", "PSR global", "PSR mean"),
        "siamdiff": (1.2, 0.878, 0.857, 0.700, 0.856, 0.521),
        "diffpret": (3.2, 0.864, 0.844, 0.673, 0.815, 0.505),
        "multiview": (4.0, 0.875, 0.857, 0.713, 0.752, 0.388),
        "angle": (4.2, 0.873, 0.849, 0.631, 0.802, 0.446),
        "score-matching": (5.0, 0.859, 0.840, 0.645, 0.795, 0.429),
        "residue-type": (5.4, 0.851, 0.826, 0.636, 0.828, 0.480),
        "distance": (6.4, 0.858, 0.836, 0.623, 0.796, 0.416),
        "dihedral": (7.2, 0.858, 0.840, 0.568, 0.732, 0.398),
        SCRATCH: (7.8, 0.837, 0.811, 0.644, 0.763, 0.373),
    },
}


@functools.lru_cache(maxsize=1)
def weights(families: tuple[str, ...]) -> np.ndarray:
    """How often every family counts (1 + DRAWS, families): once, then in draws with replacement."""
    drawn = np.random.default_rng(0).multinomial(len(families), np.full(len(families), 1 / len(families)), DRAWS)
    return np.concatenate([np.ones((1, len(families))), drawn])


@dataclass(frozen=True)
class Result:
    """The scores of one encoder; row 0 is the test split as it is, the others are its draws."""

    scores: dict[tuple[str, int], np.ndarray]  # (probe, share) -> (1 + DRAWS,)
    skills: dict[tuple[str, int], np.ndarray]

    def skill(self, probes=PROBES, share: int = 100) -> np.ndarray:
        """The mean skill of some probes (1 + DRAWS,)."""
        return np.mean([self.skills[probe, share] for probe in probes], axis=0)


def result_of(row) -> Result:
    """The scores of a row that `benchmarks.probe` wrote."""
    known, own = np.unique(row["family"], return_inverse=True)
    drawn = weights(tuple(known.tolist()))
    scores = {}
    skills = {}
    for (probe, kind), share in itertools.product(KIND.items(), SHARES):
        name = f"{probe}/{share}"
        if f"{name}/sums" not in row:
            continue
        # The sums of every family, then of every draw of families.
        sums = row[f"{name}/sums"].astype(float)
        of_family = np.zeros((len(known), sums.shape[1]))
        np.add.at(of_family, own, sums)
        scores[probe, share] = score(kind, drawn @ of_family)
        baseline = float(row[f"{name}/constant"])
        skills[probe, share] = (scores[probe, share] - baseline) / (1 - baseline)
    return Result(scores, skills)


def read_all(folders: list[Path]) -> dict[tuple[str, str], dict[str, dict[int, Result]]]:
    """(level, size) -> method -> seed -> Result; floors are methods of every level."""
    found, floors = defaultdict(lambda: defaultdict(dict)), {}
    for name, row in kept(*folders):
        if name in FLOORS:
            floors[name] = {0: result_of(row)}
        elif match := re.fullmatch(r"(.+)-(atom|residue)-([a-z]+)-(\d+)(\+\w+)?", name):
            method, level, size, seed, beside = match.groups()
            method = (SCRATCH if method == "random-gearnet" else method) + (beside or "")
            found[level, size][method][int(seed)] = result_of(row)
    for methods in found.values():
        methods.update(floors)
    if not found:
        raise ConfigError(f"{', '.join(map(str, folders))}: nothing that benchmarks.probe has written")
    return found


def mean_of(runs: dict[int, Result], measure) -> np.ndarray:
    """The mean over runs of a measure (1 + DRAWS,)."""
    return np.mean([measure(run) for run in runs.values()], axis=0)


def pooled(methods: dict[str, dict[int, Result]], measure) -> tuple[float, int]:
    """Variance among runs of one method, pooled over all methods, and its degrees of freedom."""
    groups = [[measure(run)[0] for run in runs.values()] for name, runs in methods.items() if name not in FLOORS]
    freedom = sum(len(group) - 1 for group in groups)
    square = sum(np.var(group) * len(group) for group in groups)
    return (square / freedom if freedom else np.nan), freedom


def difference(methods: dict, one: str, other: str, measure) -> tuple[float, float, float, float]:
    """One method minus another: value, ends of its 95 % interval, two-sided p.

    Where no method has a second run, the variation between runs is unknown: families alone are drawn.
    """
    gain = mean_of(methods[one], measure) - mean_of(methods[other], measure)
    variance, freedom = pooled(methods, measure)
    square = np.var(gain[1:])
    t = stats.norm
    if freedom:
        runs = 1 / len(methods[one]) + 1 / len(methods[other])
        square += variance * runs
        t = stats.t(freedom)

    error = max(1e-12, np.sqrt(square))  # two rows may be equal: p divides by it
    half = t.ppf(0.975) * error
    p = 2 * t.sf(abs(gain[0]) / error)
    return gain[0], gain[0] - half, gain[0] + half, p


def holm(p: dict[str, float]) -> dict[str, float]:
    """Holm's adjusted p values."""
    adjusted, largest = {}, 0.0
    for k, name in enumerate(sorted(p, key=p.get)):
        largest = max(largest, min(1.0, (len(p) - k) * p[name]))
        adjusted[name] = largest
    return adjusted


def page(methods: dict, level: str, measure) -> str:
    """Page's trend test of the order of the paper's table."""
    order = [name for name in PAPER[level] if name in methods]
    replicates = [set(methods[name]) for name in order]
    seeds = sorted(set.intersection(*replicates)) if order else []
    if len(order) < 3 or len(seeds) < 2:
        return f"Page's trend test: too little ({len(order)} methods, {len(seeds)} replicates)"

    # A row for every seed, the worst method of the paper first.
    rows = []
    for seed in seeds:
        rows.append([measure(methods[name][seed])[0] for name in reversed(order)])
    found = stats.page_trend_test(rows)

    absent = [name for name in PAPER[level] if name not in methods and name != "columns"]
    left_out = f", without {', '.join(absent)}" if absent else ""
    result = f"L = {found.statistic:.0f}, p = {found.pvalue:.4f}"
    return f"Page's trend test of {len(order)} methods in {len(seeds)} replicates{left_out}: {result}"


def correlations(methods: dict, level: str, measure) -> str:
    """Spearman's correlation with the columns of the paper."""
    order = [name for name in PAPER[level] if name in methods]
    if len(order) < 4:
        return "Rank correlation with the paper's columns: too few methods"
    own = [mean_of(methods[name], measure)[0] for name in order]
    values = []
    for k, column in enumerate(PAPER[level]["columns"]):
        theirs = [PAPER[level][name][k] * (-1 if k == 0 else 1) for name in order]
        values.append(f"{column} {stats.spearmanr(own, theirs).statistic:+.2f}")
    return f"Rank correlation of the mean skill with the paper's columns ({len(order)} methods): {', '.join(values)}"


def cell(runs: dict[int, Result], measure) -> str:
    """Mean ± standard deviation over runs."""
    values = [measure(run)[0] for run in runs.values()]
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def part(methods: dict[str, dict[int, Result]], level: str, size: str, against: str = SCRATCH) -> list[str]:
    """The lines of one level and size; differences are those from the method `against`."""
    # A row for every method: those without a network, random weights, then in the order of the paper.
    measures = measures_of(methods)
    lines = [f"### {level} level, {size}", ""]
    lines.append(f"| | runs | {' | '.join(measures)} |")
    lines.append("|" + "---|" * (len(measures) + 2))
    for name in dict.fromkeys([*FLOORS, SCRATCH, *PAPER[level], *sorted(methods)]):
        if name in methods:
            cells = [cell(methods[name], measure) for measure in measures.values()]
            lines.append(f"| {name} | {len(methods[name])} | {' | '.join(cells)} |")

    others = [name for name in methods if name not in (*FLOORS, SCRATCH, against)]
    if against not in methods or not others:
        return [*lines, ""]

    # The differences of two measures, and what they say of the paper's order.
    for title in ("mean skill", "without masked type"):
        lines += ["", *differences(methods, others, against, title, measures[title])]
    if "siamdiff" in methods and "diffpret" in methods:
        value, low, high, p = difference(methods, "siamdiff", "diffpret", Result.skill)
        lines += ["", f"SiamDiff minus DiffPreT: {value:+.3f} ({low:+.3f} .. {high:+.3f}), p = {p:.2g}"]
    lines += ["", page(methods, level, Result.skill), "", correlations(methods, level, Result.skill)]
    return [*lines, ""]


def measures_of(methods: dict[str, dict[int, Result]]) -> dict[str, Callable[[Result], np.ndarray]]:
    """Title -> measure of a run: skills, the score of every probe, then smaller shares that all runs have."""
    unmasked = [probe for probe in PROBES if probe != "masked"]
    measures = {"mean skill": Result.skill, "without masked type": partial(Result.skill, probes=unmasked)}
    for name in KIND:
        measures[name] = partial(score_of, probe=name)
    runs = list(itertools.chain.from_iterable(of_seed.values() for of_seed in methods.values()))
    for share in SHARES[:-1]:
        if all((PROBES[0], share) in run.skills for run in runs):
            measures[f"mean skill, {share} %"] = partial(Result.skill, share=share)
    return measures


def score_of(run: Result, probe: str) -> np.ndarray:
    """The score of a probe with all labels (1 + DRAWS,)."""
    return run.scores[probe, 100]


def differences(methods: dict, names: list[str], against: str, title: str, measure) -> list[str]:
    """A table of the differences between the methods `names` and `against`."""
    found = {name: difference(methods, name, against, measure) for name in names}
    p = {name: values[-1] for name, values in found.items()}
    adjusted = holm(p)
    _, freedom = pooled(methods, Result.skill)
    interval = "95 % interval" if freedom else "95 % interval, families alone"
    lines = [f"| {title} | minus {against} | {interval} | p (Holm) |", "|---|---|---|---|"]
    for name, (value, low, high, _) in found.items():
        lines.append(f"| {name} | {value:+.3f} | {low:+.3f} .. {high:+.3f} | {adjusted[name]:.2g} |")
    return lines


def report(folders: list[Path], against: str = SCRATCH) -> list[str]:
    """The parts of every level and size."""
    lines = []
    for (level, size), methods in sorted(read_all(folders).items()):
        lines += part(methods, level, size, against)
    return lines


PACKAGE = {"atom": ("paper", "diffpret-gpu"), "residue": ("medium", "clean-all")}  # size and run of its encoders


def main(argv: list[str] | None = None) -> None:
    """Print the report of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe_report", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--against", default=SCRATCH, help="method that the others are compared with")
    args = parser.parse_args(argv)
    print(*report(args.folders, args.against), sep="\n")


if __name__ == "__main__":
    with console():
        main()
