"""The metrics of the paper's tables: Fmax, AUPR, AUROC, Spearman's rho and accuracy (Sec. 5.1, App. D).

Numpy arrays in, Python floats out, computed in float64. A metric that is not defined (an empty split, one class only,
predictions that are not finite) is nan, not an error, so that a first epoch on a tiny split does not end a run.
"""

from collections.abc import Callable, Sequence
from functools import wraps

import numpy as np

NAN = float("nan")
# Which values of a measure are better: "max" or "min". `metric` enters the functions here.
BEST = {"global_spearman": "max"}


def metric(best: str) -> Callable:
    """Enter a metric in `BEST`. It takes any arrays as float64; nan without samples, or if one is not finite."""

    def enter(compute: Callable) -> Callable:
        @wraps(compute)
        def checked(prediction: np.ndarray, target: np.ndarray, *groups) -> float:
            prediction = np.asarray(prediction, dtype=np.float64)
            target = np.asarray(target, dtype=np.float64)
            finite = np.isfinite(prediction).all() and np.isfinite(target).all()
            if not len(prediction) or not finite:
                return NAN
            return float(compute(prediction, target, *groups))

        BEST[compute.__name__] = best
        return checked

    return enter


@metric("max")
def fmax(prediction: np.ndarray, target: np.ndarray) -> float:
    """Protein-centric maximum F-score (Eq. 29, Eq. 30, Eq. 31).

    Every distinct value is a threshold t, and classes with a value >= t are predicted. As t falls past a value of one
    protein, the precision and recall of this protein change by a step. The steps of all proteins, sorted by value and
    summed up, are the averages of Eq. 30. They are read only after the last of equal values: there is no threshold
    between equal values, so torchdrug's maximum, which allows them, is too high.

    prediction (B, C) of every protein and class: the paper's are probabilities, but only their order matters. target
    (B, C) is 1 if the protein is of the class, else 0. A protein of no class has recall 0/0 in Eq. 29; it counts as 0,
    and the protein counts in N. nan if no protein has a class.
    """
    if not target.any():
        return NAN

    # The precision and recall of every protein after its k best classes, as steps.
    order = np.argsort(-prediction, axis=1, kind="stable")
    prediction = np.take_along_axis(prediction, order, 1)
    hit = np.take_along_axis(target, order, 1)
    precision = hit.cumsum(1) / np.arange(1, hit.shape[1] + 1)
    precision_step = np.diff(precision, axis=1, prepend=0)
    recall_step = hit / np.maximum(hit.sum(1, keepdims=True), 1)
    covered_step = np.zeros_like(hit)  # M(t) counts a protein from its first prediction on
    covered_step[:, 0] = 1

    # The steps of all proteins, summed as the threshold falls; read where it may stand.
    order = np.argsort(-prediction, axis=None, kind="stable")
    threshold = prediction.flat[order]
    last = np.append(threshold[1:] != threshold[:-1], True)
    precision_sum = precision_step.flat[order].cumsum()[last]
    recall_sum = recall_step.flat[order].cumsum()[last]
    covered = covered_step.flat[order].cumsum()[last]
    precision = precision_sum / covered
    recall = recall_sum / len(prediction)
    f_score = np.zeros_like(recall)
    np.divide(2 * precision * recall, precision + recall, out=f_score, where=recall > 0)
    return f_score.max()


@metric("max")
def auprc(prediction: np.ndarray, target: np.ndarray) -> float:
    """Average precision (area under the precision-recall curve) of all entries, (B,) or (B, C); nan for one class.

    Predictions that are all equal have no order, so they count as a random one.
    """
    if prediction.min() == prediction.max():
        return auprc_of_chance(target.size, int(target.sum()))
    hits, misses = counts_above(prediction, target)
    recall = np.append(hits[::-1] / max(hits[-1], 1), 0)
    precision = (hits / (hits + misses))[::-1]
    return (precision * -np.diff(recall)).sum() if hits[-1] and misses[-1] else NAN


def counts_above(score: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many entries of target 1, and of 0, reach every threshold, from the highest to the lowest: (T,) each.

    In the order of scikit-learn, for the same bits. Its own functions take 1 to 2 ms, which made 15 of the 20 s of a
    table of yes and no.
    """
    order = score.ravel().argsort(kind="stable")[::-1]
    last = np.append(np.diff(score.flat[order]) != 0, True)
    hits = target.flat[order].cumsum()[last]
    return hits, 1 + np.flatnonzero(last) - hits


def auprc_of_chance(count: int, positive: int) -> float:
    """The average precision of a random order of `count` samples, on average: above the share of the positive ones.

    The sample at place k, if it is positive, finds (1 + (k - 1) (positive - 1) / (count - 1)) / k positive up to there.
    """
    if not 0 < positive < count:
        return NAN
    harmonic = (1 / np.arange(1, count + 1)).sum()
    return float((harmonic + (count - harmonic) * (positive - 1) / (count - 1)) / count)


@metric("max")
def auroc(prediction: np.ndarray, target: np.ndarray) -> float:
    """Area under the ROC curve over all entries alike; equal predictions count half. nan for a single class."""
    hits, misses = counts_above(prediction, target)
    if not hits[-1] or not misses[-1]:
        return NAN
    kept = slice(None)
    if len(hits) > 2:  # the points between two corners lie on a line
        corner = (np.diff(hits, 2) != 0) | (np.diff(misses, 2) != 0)
        kept = np.pad(corner, 1, constant_values=True)

    # The area of every trapezoid; numpy.trapezoid came with 2.0.
    found = np.append(0, hits[kept] / hits[-1])
    wrong = np.append(0, misses[kept] / misses[-1])
    height = found[1:] + found[:-1]
    return (np.diff(wrong) * height / 2).sum()


@metric("max")
def pearson(prediction: np.ndarray, target: np.ndarray) -> float:
    """Pearson's correlation (K,), (K,) -> [-1, 1]; nan if the target is constant or has fewer than two values.

    0 if only the prediction is constant: a model that says the same of everything must not look better than a bad one.
    """
    if target.min() == target.max():
        return NAN
    x = prediction - prediction.mean()
    y = target - target.mean()
    norm = np.sqrt((x @ x) * (y @ y))
    return x @ y / norm if norm > 0 and prediction.min() < prediction.max() else 0.0


@metric("max")
def spearman(prediction: np.ndarray, target: np.ndarray) -> float:
    """Spearman's rho (K,), (K,) -> [-1, 1]: the correlation of the ranks, equal values sharing their mean rank."""
    return pearson(ranks(prediction), ranks(target))


@metric("max")
def mean_spearman(prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> float:
    """Mean of rho over groups (PSR: proteins) of two items or more whose targets differ; nan without one."""
    rho = np.array([spearman(prediction[rows], target[rows]) for rows in rows_of_groups(groups)])
    return rho[~np.isnan(rho)].mean() if not np.isnan(rho).all() else NAN


@metric("min")
def rmse(prediction: np.ndarray, target: np.ndarray) -> float:
    """Root of the mean squared error, in the units of the target."""
    return np.sqrt(np.mean((prediction - target) ** 2))


@metric("min")
def mae(prediction: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute error, in the units of the target."""
    return np.mean(np.abs(prediction - target))


@metric("max")
def accuracy(prediction: np.ndarray, target: np.ndarray) -> float:
    """Share of rows (K, C) whose largest entry, the first of equals, is at target (K,); of (K,) 0.5 decides."""
    chosen = prediction.argmax(1) if prediction.ndim == 2 else prediction > 0.5
    return (chosen == target).mean()


def rows_of_groups(groups: Sequence) -> list[np.ndarray]:
    """The rows of every group, in the order of their names."""
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    return np.split(group.argsort(kind="stable"), np.bincount(group).cumsum()[:-1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks (K,) from small to large, equal values sharing the mean of theirs."""
    in_order = np.sort(values)
    below = np.searchsorted(in_order, values)
    return (below + np.searchsorted(in_order, values, side="right") + 1) / 2
