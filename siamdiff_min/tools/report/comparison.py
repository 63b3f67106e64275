"""Runs side by side: every measure with its interval, and its difference to the first run.

An interval has two sources, which are independent. One is the held-out proteins (pre-training: the mean of a protein's
losses; Student's t) or test structures (fine-tuning: the draws of results.json). The other is the seeds of a method
(evidence/intervals.py). Only what met the same rows and the same noise is compared.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..evidence.bootstrap import difference_interval, interval
from ..evidence.intervals import t_interval, variance_among_seeds, with_seeds, within_range
from ..evidence.verdict import side
from .runs import BASELINE, RunFolder

SUM = ("method", "preset", "level")  # options that decide what a loss is the sum of
PARTS = ("no-sequence", "no-structure")  # ablations that leave a part of it out
SAME = 1e-5  # of one mask and one noise the baselines of a protein are one number, but for rounding
MASK = f"sequence_loss{BASELINE}"
STRUCTURE = f"structure_loss{BASELINE}"
UNITS = ("families", "sequences", "structures")  # of a test split: the first that is counted is drawn again


class Difference(NamedTuple):
    """A run minus the first one."""

    gain: float | None = None
    interval: list[float] | None = None
    sources: str = ""  # of the interval
    side: str = ""  # better, worse, untold, other; "" without an interval
    why_not: str = ""  # they are not compared, or without an interval


class Row(NamedTuple):
    """A measure of a run, and its difference to the first run."""

    run: RunFolder
    seeds: int
    mean: float
    std: float | None  # over seeds
    interval: list[float] | None
    sources: str  # of the interval
    baseline: float | None  # the best answer that looks at nothing
    difference: Difference  # an empty one of the first run


def compare(runs: Sequence[RunFolder], measure: str) -> list[Row]:
    """A row for every run that has this measure."""
    rows = []
    for run in runs:
        if measure not in run.mean:
            continue
        values = run.seeds_of(measure)
        row = Row(
            run=run,
            seeds=len(values),
            mean=run.mean[measure],
            std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
            interval=interval_of(run, measure),
            sources=sources(measure, run),
            baseline=run.baseline.get(measure),
            difference=Difference() if run is runs[0] else difference(runs[0], run, measure),
        )
        rows.append(row)
    return rows


# ---- may they be compared? -------------------------------------------------------------------------------------------


def why_not(first: RunFolder, second: RunFolder, measure: str = "") -> str:
    """Why two runs, or a measure of them, are not compared, in words; "" if they are."""
    # With folds, heads have learned from other shares of the table.
    if None not in (first.rows, second.rows) and first.rows != second.rows:
        return "scored on other rows"
    if first.config.get("folds") != second.config.get("folds"):
        return "scored on other rows"
    if not same_noise(first, second):
        return "held out at other noise"
    if measure and measure not in first.mean:
        return f"not measured in {first.name}"
    return "another sum of losses" if measure == "loss" and summed(first) != summed(second) else ""


def summed(run: RunFolder) -> list:
    """What decides which sum of losses a run minimises. An ablation of the noise changes no term."""
    ablation = run.config.get("ablation")
    return [run.config.get(name) for name in SUM] + [ablation if ablation in PARTS else None]


def same_noise(first: RunFolder, second: RunFolder) -> bool:
    """Whether the held-out proteins of two pre-trained runs had the same noise, as the baselines of every one tell.

    Where residues were masked, the mask tells t; then the structure loss may have another baseline, as the second view
    of SiamDiff has noise of its own. But coordinates must have had noise in both or in neither, of one preset.
    """
    if not (first.held_out and second.held_out):
        return True
    if first.config.get("level") != second.config.get("level"):  # CA atoms and all: other units
        return False
    both = {name for name in first.held_out if name in second.held_out and name.endswith(BASELINE)}
    if MASK in both and first.config.get("preset") == second.config.get("preset"):
        if (STRUCTURE in first.held_out) != (STRUCTURE in second.held_out):
            return False
        both -= {STRUCTURE}
    noise = [(first.held_out[name][0], second.held_out[name][0]) for name in both]
    return all(np.allclose(*pair, rtol=SAME, atol=SAME, equal_nan=True) for pair in noise)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def interval_of(run: RunFolder, measure: str) -> list[float] | None:
    """The 95 % interval of the mean over seeds; None if no file of the run has what it takes."""
    return within_range(measure, widened(run.mean[measure], run.interval.get(measure), measure, run))


def difference(first: RunFolder, second: RunFolder, measure: str) -> Difference:
    """The second run minus the first, and its 95 % interval.

    Protein k, or draw k of the structures, is the same in both. So their differences vary by less than each of the two.
    """
    problem = why_not(first, second, measure)
    if problem:
        return Difference(why_not=problem)
    gain = second.mean[measure] - first.mean[measure]
    ends = widened(gain, paired(first, second, measure, gain), measure, first, second)
    if ends is None:
        return Difference(gain, why_not="no interval")
    told = side(measure, ends, second.results["direction"])
    return Difference(gain, ends, sources(measure, first, second), told)


def paired(first: RunFolder, second: RunFolder, measure: str, gain: float) -> list[float] | None:
    """The interval of a difference over proteins or draws; None if they are not kept."""
    if measure in first.held_out and measure in second.held_out:
        return t_interval(second.held_out[measure].mean(0) - first.held_out[measure].mean(0))
    if measure not in first.draws or measure not in second.draws:
        return None
    drawn = second.draws[measure] - first.draws[measure]
    if not first.config.get("folds"):
        return interval(drawn)
    return difference_interval(gain, drawn, first.results["counts"][unit_of(first)], folds=True)


def widened(value: float, ends: list[float] | None, measure: str, *runs: RunFolder) -> list[float] | None:
    """An interval over proteins, made wider by the variation among the seeds of one or two runs."""
    seeds = [run.seeds_of(measure) for run in runs]
    variances = [variance_among_seeds(of_run, run.held_out.get(measure)) for of_run, run in zip(seeds, runs)]
    return with_seeds(value, ends, variances, [*map(len, seeds)])


def sources(measure: str, *runs: RunFolder) -> str:
    """What the interval of a run is over, or that of the difference of two, in words."""
    words = units(runs[0])
    return f"{words} and seeds" if min(len(run.seeds_of(measure)) for run in runs) > 1 else words


def units(run: RunFolder) -> str:
    """What is drawn again: the held-out proteins, or the units of the test split."""
    return f"test {unit_of(run)}" if run.tested else "held-out proteins"


def unit_of(run: RunFolder) -> str:
    """What is drawn again of a test split."""
    return next((unit for unit in UNITS if unit in run.results["counts"]), "structures")
