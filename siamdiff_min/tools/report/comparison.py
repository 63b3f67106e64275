"""Runs side by side: every measure with its interval, and its difference to the first run.

An interval has two sources, which are independent. One is the held-out proteins (pre-training: the mean of a protein's
losses; Student's t) or test structures (fine-tuning: the draws of results.json). The other is the seeds of a method
(evidence/intervals.py). Only what met the same rows and the same noise is compared.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..evidence.bootstrap import difference_interval, interval
from ..evidence.intervals import mean_interval, t_interval, variance_among_seeds, with_seeds, within_range
from ..evidence.verdict import side
from .runs import RunFolder

SUM = ("method", "preset", "level")  # options that decide what a loss is the sum of
PARTS = ("no-sequence", "no-structure")  # ablations that leave a part of it out
SAME = 1e-5  # of one mask and one noise the baselines of a draw are one number, but for rounding
MASK = "sequence_loss_constant"
STRUCTURE = "structure_loss_constant"


class Difference(NamedTuple):
    """A run minus the first one."""

    gain: float | None = None
    interval: list[float] | None = None
    sources: str = ""  # of the interval
    side: str = ""  # better, worse, untold, other; "" without an interval
    why_not: str = ""  # they are not compared, or without an interval


class Row(NamedTuple):
    """A measure of a run, and its difference to the first run."""

    run: str
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
            run=run.name,
            seeds=max(len(values), 1),  # older versions kept the mean alone
            mean=run.mean[measure],
            std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
            interval=interval_of(run, measure),
            sources=sources(measure, run),
            baseline=run.baseline.get(measure),
            difference=Difference() if run is runs[0] else difference(runs[0], run, measure),
        )
        rows.append(row)
    return rows


def are_ranked(rows: Sequence[Row]) -> bool:
    """Whether all runs of a measure were compared, so that one may be called the best."""
    refused = [row for row in rows if row.difference.gain is None and row.difference.why_not]
    return len(rows) > 1 and not refused


# ---- may they be compared? -------------------------------------------------------------------------------------------


def why_not(first: RunFolder, second: RunFolder, measure: str = "") -> str:
    """Why two runs, or a measure of them, are not compared, in words; "" if they are."""
    if not same_rows(first, second):
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


def same_rows(first: RunFolder, second: RunFolder) -> bool:
    """Whether two runs were scored on the same rows, which hashes tell, or predictions; else the number of rows.

    With folds, heads that learned from other shares of the table are not compared.
    """
    if first.tested != second.tested or first.config.get("folds") != second.config.get("folds"):
        return False
    splits = [split_of(run) for run in (first, second)]
    if None not in splits:
        return splits[0] == splits[1]
    if first.predictions and second.predictions:
        one, two = (next(iter(run.predictions.values())) for run in (first, second))
        return all(np.array_equal(one[name], two[name]) for name in ("id", "target"))
    return first.results["counts"].get("samples") == second.results["counts"].get("samples")


def split_of(run: RunFolder) -> str | None:
    """A hash of the rows that a run was scored on; None if no file has it."""
    if run.held_out:
        return run.held_out.split
    return str(run.draws["split"]) if "split" in run.draws else None


def same_noise(first: RunFolder, second: RunFolder) -> bool:
    """Whether the held-out proteins of two pre-trained runs had the same noise, as the baselines of every draw tell.

    Where residues were masked, the mask tells t; then the structure loss may have another baseline, as the second view
    of SiamDiff has noise of its own. But coordinates must have had noise in both or in neither, of one preset.
    """
    if first.tested or first.config.get("level") != second.config.get("level"):  # CA atoms and all: other units
        return first.tested
    before, after = noise_of(first), noise_of(second)
    both = {*before} & {*after}
    if MASK in both and first.config.get("preset") == second.config.get("preset"):
        if (STRUCTURE in before) != (STRUCTURE in after):
            return False
        both -= {STRUCTURE}
    return all(np.allclose(before[name], after[name], rtol=SAME, atol=SAME, equal_nan=True) for name in both)


def noise_of(run: RunFolder) -> Mapping[str, np.ndarray | float]:
    """The baselines of every draw of the held-out proteins; of older versions their means."""
    if run.held_out and run.held_out.noise:
        return run.held_out.noise
    return {f"{name}_constant": value for name, value in run.baseline.items()}


# ---- numbers ---------------------------------------------------------------------------------------------------------


def interval_of(run: RunFolder, measure: str) -> list[float] | None:
    """The 95 % interval of the mean over seeds; None if no file of the run has what it takes."""
    if run.held_out and measure in run.held_out.values:
        ends = mean_interval(measure, run.held_out.values[measure].mean(0))
    else:
        ends = run.results["interval"].get(measure)
    return within_range(measure, widened(run.mean[measure], ends, measure, run))


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
    if first.held_out and second.held_out:
        before, after = first.held_out.values, second.held_out.values
        if measure not in before or measure not in after:
            return None
        return t_interval(after[measure].mean(0) - before[measure].mean(0))
    if measure not in first.draws or measure not in second.draws:
        return None
    count = min(len(first.draws[measure]), len(second.draws[measure]))
    drawn = second.draws[measure][:count] - first.draws[measure][:count]
    if not first.config.get("folds"):
        return interval(drawn)
    counts = first.results["counts"]
    return difference_interval(gain, drawn, counts.get("sequences", counts["structures"]), folds=True)


def over_baseline(run: RunFolder, measure: str) -> list[float] | None:
    """The interval of a measure minus that of the best answer that looks at nothing, for the same proteins."""
    values = run.held_out.values if run.held_out else {}
    if f"{measure}_constant" in values and measure in values:
        return t_interval((values[measure] - values[f"{measure}_constant"]).mean(0))
    return run.results["gain_interval"].get(measure)


def widened(value: float, ends: list[float] | None, measure: str, *runs: RunFolder) -> list[float] | None:
    """An interval over proteins, made wider by the variation among the seeds of one or two runs."""
    seeds = [run.seeds_of(measure) for run in runs]
    proteins = [run.held_out.values.get(measure) if run.held_out else None for run in runs]
    variances = [variance_among_seeds(*pair) for pair in zip(seeds, proteins)]
    return with_seeds(value, ends, variances, [max(len(of_run), 1) for of_run in seeds])


def sources(measure: str, *runs: RunFolder) -> str:
    """What the interval of a run is over, or that of the difference of two, in words."""
    words = units(runs[0])
    return f"{words} and seeds" if min(len(run.seeds_of(measure)) for run in runs) > 1 else words


def units(run: RunFolder) -> str:
    """What is drawn again: the held-out proteins, or the structures of the test split."""
    if run.tested:
        return "test sequences" if "sequences" in run.results["counts"] else "test structures"
    return "held-out proteins"
