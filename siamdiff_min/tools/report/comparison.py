"""Runs side by side: every measure with its interval, and its difference to the first run.

An interval has two sources, which are independent. One is the held-out proteins (pre-training: the mean of a protein's
losses; Student's t) or test structures (fine-tuning: the draws of results.json). The other is the seeds of a method
(Student's t; of a difference Welch's); what a protein varies by from seed to seed counts with the proteins. Half widths
of independent sources add up in squares (W. G. Howe, J. Am. Stat. Assoc. 69, 789, 1974). One seed says nothing of the
others: its interval is over proteins or structures alone.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from ..evidence.bootstrap import interval
from .runs import RunFolder

# Two draws of noise at the same steps t differ by less, large and small noise by more: 2.88 and 1.80 (residue level).
SAME_NOISE = 0.15
NOTE = "95 % intervals over held-out proteins or test structures, and over seeds if there are several"


class Row(NamedTuple):
    """A measure of a run, and its difference to the first run; None if it is not known."""

    run: str
    seeds: int
    mean: float
    std: float | None  # over seeds
    interval: list[float] | None
    baseline: float | None  # the best answer that looks at nothing
    sources: str  # of the interval
    gain: float | None
    gain_interval: list[float] | None
    gain_sources: str


def compare(runs: Sequence[RunFolder], measure: str) -> list[Row]:
    """A row for every run that has this measure, the first of them that which the others are compared with."""
    rows = []
    having = [run for run in runs if run.results["mean"].get(measure) is not None]
    for run in having:
        values = of_seeds(run, measure)
        gain, gain_interval = difference(having[0], run, measure) if run is not having[0] else (None, None)
        row = Row(
            run=run.name,
            seeds=max(len(values), 1),  # older versions kept the mean alone
            mean=run.results["mean"][measure],
            std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
            interval=interval_of(run, measure),
            baseline=run.results["constant"].get(measure),
            sources=sources(run),
            gain=gain,
            gain_interval=gain_interval,
            gain_sources=sources(having[0], run),
        )
        rows.append(row)
    return rows


def of_seeds(run: RunFolder, measure: str) -> np.ndarray:
    """A measure of every seed (S,)."""
    values = [metrics.get(measure) for metrics in run.measured.values()]
    return np.array([value for value in values if value is not None], dtype=float)


def interval_of(run: RunFolder, measure: str) -> list[float] | None:
    """The 95 % interval of the mean over seeds; None if no file of the run has what it takes."""
    return widened(run.results["mean"][measure], over_proteins(run, measure), measure, run)


def difference(first: RunFolder, second: RunFolder, measure: str) -> tuple[float | None, list[float] | None]:
    """The second run minus the first, and its 95 % interval.

    The interval is None if they were not held out on the same proteins, both are if the noise is another one. Protein
    k, or draw k of the structures, is the same in both. So their differences vary by less than each of the two.
    """
    if not same_noise(first, second):
        return None, None
    gain = second.results["mean"][measure] - first.results["mean"][measure]
    before = first.results["draws"] or first.results["proteins"]
    after = second.results["draws"] or second.results["proteins"]
    if measure not in before or measure not in after or before["split"] != after["split"]:
        return gain, None
    if first.results["draws"]:
        count = min(len(before[measure]), len(after[measure]))
        ends = interval(after[measure][:count] - before[measure][:count])
    else:
        ends = t_interval(after[measure].mean(0) - before[measure].mean(0))
    return gain, widened(gain, ends, measure, first, second)


def same_noise(first: RunFolder, second: RunFolder) -> bool:
    """Whether two pre-trained runs were held out at noise of one size, as far as the best constant answers tell.

    It is another one in the other stage, as a run has it that was stopped in the first.
    """
    before = first.results["constant"]
    after = second.results["constant"]
    tested = first.results["test"] or second.results["test"]
    both = [name for name in before if name != "loss" and before[name] and after.get(name)]
    return bool(tested) or all(math.isclose(before[name], after[name], rel_tol=SAME_NOISE) for name in both)


def over_proteins(run: RunFolder, measure: str) -> list[float] | None:
    """The interval over held-out proteins, or over test structures as results.json has it."""
    values = run.results["proteins"].get(measure)
    return run.results["interval"].get(measure) if values is None else t_interval(values.mean(0))


def over_baseline(run: RunFolder, measure: str) -> list[float] | None:
    """The interval of a measure minus that of the best answer that looks at nothing, for the same proteins."""
    values = run.results["proteins"].get(measure)
    baseline = run.results["proteins"].get(f"{measure}_constant")
    if values is None or baseline is None:
        return run.results["gain_interval"].get(measure)
    return t_interval((values - baseline).mean(0))


def t_interval(values: np.ndarray) -> list[float] | None:
    """Student's 95 % interval of the mean of the finite values; None of fewer than two."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return None
    half = stats.t.ppf(0.975, len(finite) - 1) * np.std(finite, ddof=1) / math.sqrt(len(finite))
    return [float(finite.mean() - half), float(finite.mean() + half)]


def widened(value: float, ends: list[float] | None, measure: str, *runs: RunFolder) -> list[float] | None:
    """An interval over proteins, made wider by the variation among the seeds of one or two runs.

    It stays as it is if a run has one seed only.
    """
    seeds = [len(of_seeds(run, measure)) for run in runs]
    if ends is None or min(seeds) < 2:
        return ends

    # Welch's degrees of freedom; of one run they are those of Student.
    squares = np.array([variance_of_seeds(run, measure) for run in runs]) / seeds
    if not squares.any():
        return ends
    freedom = squares.sum() ** 2 / (squares**2 / np.subtract(seeds, 1)).sum()
    half = float(stats.t.ppf(0.975, freedom) * math.sqrt(squares.sum()))
    low, high = ends
    return [value - math.hypot(value - low, half), value + math.hypot(high - value, half)]


def variance_of_seeds(run: RunFolder, measure: str) -> float:
    """The variance among seeds. What single proteins vary by from seed to seed is taken off, if it is known.

    It is then the component of variance of two crossed factors, from their mean squares (S. R. Searle, G. Casella,
    C. E. McCulloch, Variance Components, 1992), and 0 if that is negative.
    """
    variance = np.var(of_seeds(run, measure), ddof=1)
    values = run.results["proteins"].get(measure)
    if values is None:
        return variance
    values = values[:, np.isfinite(values).all(0)]
    seeds, proteins = values.shape
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    mean_square = (rest**2).sum() / max(1, (seeds - 1) * (proteins - 1))
    return max(0.0, variance - mean_square / max(1, proteins))


def sources(*runs: RunFolder) -> str:
    """What the interval of a run is over, or that of the difference of two, in words."""
    of_proteins = any(run.results["proteins"] for run in runs)
    words = "held-out proteins" if of_proteins else "test structures"
    seeds = [len(run.measured) for run in runs]
    return f"{words} and seeds" if min(seeds) > 1 else words
