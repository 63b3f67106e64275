"""95 % intervals of means: over proteins (Student's t), over seeds (of a difference Welch's t), and over both.

Half widths of independent sources add up in squares (W. G. Howe, J. Am. Stat. Assoc. 69, 789, 1974). An interval ends
where its measure does: an accuracy is never below 0. Of a prediction 90 % are asked.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes half a second to load

SHARES = {"auroc", "auprc", "fmax", "macro_f1"}  # from 0 to 1, as are accuracies and rates
CORRELATIONS = {"pearson", "spearman", "global_spearman", "mean_spearman"}
COVERED = 0.9  # of new values, by the interval of a prediction


def range_of(measure: str) -> tuple[float, float]:
    """The lowest and the highest value that a measure can have; infinite if nobody says so of one of a plugin."""
    measure, _, _ = measure.partition(":")  # of a property it is NAME:PROPERTY
    if measure in SHARES or measure.endswith(("accuracy", "_rate")):
        return 0.0, 1.0
    if measure in CORRELATIONS:
        return -1.0, 1.0
    return (0.0 if measure in ("rmse", "mae") or measure.endswith(("loss", "error")) else -math.inf), math.inf


def within_range(measure: str, ends: list[float] | None) -> list[float] | None:
    """An interval of a measure, cut where the measure ends."""
    return None if ends is None else np.clip(ends, *range_of(measure)).tolist()


def t_interval(values: np.ndarray) -> list[float] | None:
    """Student's interval of the mean of the finite values; None of fewer than two."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return None
    half = stdtrit(len(finite) - 1, 0.975) * np.std(finite, ddof=1) / math.sqrt(len(finite))
    return [float(finite.mean() - half), float(finite.mean() + half)]


def mean_interval(measure: str, values: np.ndarray) -> list[float] | None:
    """Student's interval of the mean of a measure; of values that are all at an end of its range the exact one."""
    ends = t_interval(values)
    if ends and ends[0] == ends[1]:
        return at_the_end(measure, ends[0], np.isfinite(values).sum())
    return within_range(measure, ends)


def at_the_end(measure: str, value: float, count: int) -> list[float]:
    """The 95 % interval of a measure that all of `count` units have the same value of, at an end of its range or not.

    If more than a share of 1 - .025^(1/count) of all units were different, these would all be alike in at most 2.5 % of
    cases (Clopper and Pearson 1934, Biometrika 26:404). Within the range the interval has no width.
    """
    low, high = range_of(measure)
    width = (high - low) * (1 - 0.025 ** (1 / count))
    if not math.isfinite(width) or value not in (low, high):
        return [value, value]
    return [low, low + width] if value == low else [high - width, high]


def with_seeds(
    value: float, ends: list[float] | None, variances: Sequence[float], seeds: Sequence[int]
) -> list[float] | None:
    """An interval over proteins, made wider by the `variances` among the seeds of one method, or of two compared.

    It stays as it is if a method has one seed only: that says nothing of the others.
    """
    squares = np.divide(variances, seeds)
    if ends is None or min(seeds) < 2 or not squares.any():
        return ends

    # Welch's degrees of freedom; of one method they are those of Student.
    freedom = squares.sum() ** 2 / (squares**2 / np.subtract(seeds, 1)).sum()
    half = float(stdtrit(freedom, 0.975) * math.sqrt(squares.sum()))
    low, high = ends
    return [value - math.hypot(value - low, half), value + math.hypot(high - value, half)]


def variance_among_seeds(means: np.ndarray, values: np.ndarray | None = None) -> float:
    """The variance among the means of seeds (S,). What single proteins vary by from seed to seed is taken off.

    With the values of every protein (S, P) it is the component of variance of two crossed factors, from their mean
    squares (S. R. Searle, G. Casella, C. E. McCulloch, Variance Components, 1992), and 0 if that is negative.
    """
    variance = float(np.var(means, ddof=1)) if len(means) > 1 else 0.0
    if values is None:
        return variance
    values = values[:, np.isfinite(values).all(0)]
    seeds, proteins = values.shape
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    mean_square = (rest**2).sum() / max(1, (seeds - 1) * (proteins - 1))
    return max(0.0, variance - mean_square / max(1, proteins))


# ---- of predictions --------------------------------------------------------------------------------------------------


def conformal_quantile(errors: np.ndarray) -> float:
    """The size that 90 % of new errors do not pass, from some errors (n,) of such values; inf if they are too few.

    New values must be exchangeable with those that were left out (split conformal prediction, Vovk et al. 2005).
    """
    place = int(np.ceil(COVERED * (len(errors) + 1)))  # of the sorted errors, counted from 1
    return float(np.sort(errors)[place - 1]) if place <= len(errors) else np.inf


def reach(errors: np.ndarray) -> float:
    """The conformal quantile; of too few errors the largest."""
    return min(conformal_quantile(errors), float(errors.max()))
