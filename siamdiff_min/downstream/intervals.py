"""How far to trust a metric: its 95 % interval over splits that are drawn again, whole structures with replacement.

A draw is a weight for every sample. Each function here prepares the metric of its name in `metrics.py`, and returns a
function of weights (S, K) -> (S,): the metric where sample k comes weight[:, k] times, nan where it is not defined.
"""

from collections.abc import Callable, Sequence

import numpy as np

from .metrics import NAN, rows_of_groups
from .metrics import spearman as plain_spearman

DRAWS = 1000  # 200 of large splits
AT_ONCE = 2_000_000  # weights of samples and classes, to bound the memory
Measure = Callable[[np.ndarray], np.ndarray]


def redrawn(measures: Sequence[Measure], groups: Sequence[str], columns: int = 1) -> np.ndarray:
    """Some measures (DRAWS, len(measures)) on as many groups, drawn with replacement; all runs see the same draws."""
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    random, values = np.random.default_rng(0), []
    size = max(1, AT_ONCE // (len(group) * columns))
    draws = DRAWS if size > 4 else min(DRAWS, 200)
    for start in range(0, draws, size):
        times = random.multinomial(len(names), np.full(len(names), 1 / len(names)), size=min(size, draws - start))
        with np.errstate(divide="ignore", invalid="ignore"):
            values.append(np.stack([measure(times[:, group]) for measure in measures], axis=1))
    return np.concatenate(values)


def interval(values: np.ndarray) -> list[float] | None:
    """The middle 95 % of the finite values of draws (S,); None if no value is finite."""
    values = values[np.isfinite(values)]
    return np.quantile(values, [0.025, 0.975]).tolist() if len(values) else None


def _mean(x: np.ndarray) -> Measure:
    return lambda weight: (weight * x).sum(1) / weight.sum(1)


def accuracy(score, target, groups) -> Measure:
    return _mean((score.argmax(1) if score.ndim == 2 else score > 0.5) == target)


def mae(score, target, groups) -> Measure:
    return _mean(np.abs(score - target))


def rmse(score, target, groups) -> Measure:
    mean = _mean((score - target) ** 2)
    return lambda weight: np.sqrt(mean(weight))


def _pearson(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    total = weight.sum(1, keepdims=True)
    x, y = (a - (weight * a).sum(1, keepdims=True) / total for a in (x, y))
    xx, yy, xy = ((weight * a).sum(1) for a in (x * x, y * y, x * y))
    tiny = 1e-20 * weight.sum(1)  # what rounding leaves of a constant; values and ranks are of order one
    return np.where(yy <= tiny, NAN, np.where(xx <= tiny, 0.0, xy / np.sqrt(xx * yy)))


def pearson(score, target, groups) -> Measure:
    x, y = ((a - a.mean()) / (a.std() or 1) for a in (score, target))
    return lambda weight: _pearson(x, y, weight)


def _ranks(values: np.ndarray) -> Measure:
    """The mean rank of every sample among the drawn ones, divided by their number: (S, K) -> (S, K)."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    order, first = index.argsort(kind="stable"), count.cumsum() - count

    def of(weight: np.ndarray) -> np.ndarray:
        count = np.add.reduceat(weight[:, order], first, axis=1)
        below = count.cumsum(1) - count / 2
        return below[:, index] / weight.sum(1, keepdims=True)

    return of


def spearman(score, target, groups) -> Measure:
    x, y = _ranks(score), _ranks(target)
    return lambda weight: _pearson(x(weight), y(weight), weight)


global_spearman = spearman


def mean_spearman(score, target, groups) -> Measure:
    members = rows_of_groups(groups)
    rho = np.array([plain_spearman(score[rows], target[rows]) for rows in members])
    first = np.array([rows[0] for rows in members])[~np.isnan(rho)]  # a group comes as often as its first sample
    return lambda weight: (weight[:, first] * rho[~np.isnan(rho)]).sum(1) / weight[:, first].sum(1)


def _hits(score: np.ndarray, target: np.ndarray) -> Callable:
    """Positives and negatives above every threshold: weights -> two of (S, thresholds)."""
    order = np.argsort(-score, axis=None, kind="stable")
    last, hit = np.append(np.diff(score.flat[order]) != 0, True), target.flat[order]
    sample = order // (score.size // len(score))

    def of(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = weight[:, sample]
        true, every = ((weight * x).cumsum(1)[:, last] for x in (hit, 1))
        return true, every - true

    return of


def auroc(score, target, groups) -> Measure:
    hits = _hits(score, target)

    def of(weight: np.ndarray) -> np.ndarray:
        true, false = (np.pad(x, ((0, 0), (1, 0))) for x in hits(weight))
        area = (np.diff(false) * (true[:, 1:] + true[:, :-1]) / 2).sum(1)
        return area / (true[:, -1] * false[:, -1])

    return of


def auprc(score, target, groups) -> Measure:
    hits = _hits(score, target)

    def of(weight: np.ndarray) -> np.ndarray:
        true, false = hits(weight)
        area = (np.diff(true, prepend=0) * np.nan_to_num(true / (true + false))).sum(1) / true[:, -1]
        return np.where(false[:, -1] > 0, area, NAN)

    return of


def fmax(score, target, groups) -> Measure:
    order = np.argsort(-score, axis=1, kind="stable")
    ranked, hit = np.take_along_axis(score, order, 1), np.take_along_axis(target, order, 1)
    precision = np.diff(hit.cumsum(1) / np.arange(1, hit.shape[1] + 1), axis=1, prepend=0)
    recall = hit / np.maximum(hit.sum(1, keepdims=True), 1)
    covered = np.zeros_like(recall)
    covered[:, 0] = 1
    order = np.argsort(-ranked, axis=None, kind="stable")
    last, protein = np.append(np.diff(ranked.flat[order]) != 0, True), order // score.shape[1]
    steps = [step.flat[order] for step in (precision, recall, covered)]

    def of(weight: np.ndarray) -> np.ndarray:
        drawn = weight[:, protein]
        p, r, n = ((drawn * step).cumsum(1)[:, last] for step in steps)
        p, r = np.nan_to_num(p / n), r / weight.sum(1, keepdims=True)
        return np.where(r[:, -1] > 0, np.nan_to_num(2 * p * r / (p + r)).max(1), NAN)

    return of
