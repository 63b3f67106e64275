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
from dataclasses import dataclass
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
    scores, skills = {}, {}
    for (probe, kind), share in itertools.product(KIND.items(), SHARES):
        if f"{probe}/{share}/sums" in row:
            sums, constant = row[f"{probe}/{share}/sums"], float(row[f"{probe}/{share}/constant"])
            of_family = np.zeros((len(known), sums.shape[1]))
            np.add.at(of_family, own, sums.astype(float))
            scores[probe, share] = score(kind, drawn @ of_family)
            skills[probe, share] = (scores[probe, share] - constant) / (1 - constant)
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
    a, b = (mean_of(methods[name], measure) for name in (one, other))
    variance, freedom = pooled(methods, measure)
    families, runs = np.var(a[1:] - b[1:]), 1 / len(methods[one]) + 1 / len(methods[other])
    error = max(1e-12, np.sqrt(families + (variance * runs if freedom else 0)))
    value, t = a[0] - b[0], stats.t(freedom) if freedom else stats.norm
    return value, value - t.ppf(0.975) * error, value + t.ppf(0.975) * error, 2 * t.sf(abs(value) / error)


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
    seeds = sorted(set.intersection(*(set(methods[name]) for name in order))) if order else []
    absent = [name for name in PAPER[level] if name not in methods and name != "columns"]
    if len(order) < 3 or len(seeds) < 2:
        return f"Page's trend test: too little ({len(order)} methods, {len(seeds)} replicates)"
    table = np.array([[measure(methods[name][seed])[0] for name in order[::-1]] for seed in seeds])
    found = stats.page_trend_test(table)
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
    lines = [f"### {level} level, {size}", ""]
    measures = {"mean skill": Result.skill}
    measures["without masked type"] = lambda run: run.skill([p for p in PROBES if p != "masked"])
    measures |= {name: (lambda run, name=name: run.scores[name, 100]) for name in KIND}
    every = [run.skills for runs in methods.values() for run in runs.values()]
    shares = [share for share in SHARES[:-1] if all((PROBES[0], share) in skills for skills in every)]
    measures |= {f"mean skill, {share} %": (lambda run, s=share: run.skill(share=s)) for share in shares}
    lines += [f"| | runs | {' | '.join(measures)} |", "|" + "---|" * (len(measures) + 2)]
    order = [name for name in PAPER[level] if name in methods]
    names = [*FLOORS, SCRATCH, *order, *sorted(methods)]
    for name in dict.fromkeys(name for name in names if name in methods):
        cells = [cell(methods[name], measure) for measure in measures.values()]
        lines.append(f"| {name} | {len(methods[name])} | {' | '.join(cells)} |")
    others = [name for name in methods if name not in (*FLOORS, SCRATCH, against)]
    if against in methods and others:
        for title in ("mean skill", "without masked type"):
            found = {name: difference(methods, name, against, measures[title]) for name in others}
            interval = "95 % interval" if pooled(methods, Result.skill)[1] else "95 % interval, families alone"
            adjusted = holm({name: values[3] for name, values in found.items()})
            lines += ["", f"| {title} | minus {against} | {interval} | p (Holm) |", "|---|---|---|---|"]
            for name, (value, low, high, _) in found.items():
                lines.append(f"| {name} | {value:+.3f} | {low:+.3f} .. {high:+.3f} | {adjusted[name]:.2g} |")
        if "siamdiff" in methods and "diffpret" in methods:
            value, low, high, p = difference(methods, "siamdiff", "diffpret", Result.skill)
            lines += ["", f"SiamDiff minus DiffPreT: {value:+.3f} ({low:+.3f} .. {high:+.3f}), p = {p:.2g}"]
        lines += ["", page(methods, level, Result.skill), "", correlations(methods, level, Result.skill)]
    return [*lines, ""]


def report(folders: list[Path], against: str = SCRATCH) -> list[str]:
    """The parts of every level and size."""
    found = read_all(folders)
    return [line for (level, size), methods in sorted(found.items()) for line in part(methods, level, size, against)]


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
