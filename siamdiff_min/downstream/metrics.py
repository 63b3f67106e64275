"""The metrics of the paper's tables: Fmax, AUPR, AUROC, Spearman's rho and accuracy (Sec. 5.1, App. D).

Numpy arrays in, Python floats out, computed in float64. A metric that is not defined (an empty split, one class only,
scores that are not finite) is nan, not an error, so that a first epoch on a tiny split does not end a run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

NAN = float("nan")
LESS_IS_BETTER = {"rmse", "mae"}
MORE_IS_BETTER = {
    "fmax",
    "auprc",
    "auroc",
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "pearson",
    "spearman",
    "global_spearman",
    "mean_spearman",
}


def metric(compute: Callable) -> Callable:
    """Let a metric take any arrays: they become float64. It is nan without samples, or if a number is not finite."""

    @wraps(compute)
    def checked(score: np.ndarray, target: np.ndarray, *groups) -> float:
        score, target = np.asarray(score, dtype=np.float64), np.asarray(target, dtype=np.float64)
        if not len(score) or not (np.isfinite(score).all() and np.isfinite(target).all()):
            return NAN
        return float(compute(score, target, *groups))

    return checked


@metric
def fmax(score: np.ndarray, target: np.ndarray) -> float:
    """Protein-centric maximum F-score (Eq. 29, Eq. 30, Eq. 31).

    Every distinct score is a threshold t, and all scores >= t are predictions. As t falls past a score of one protein,
    the precision and recall of this protein change by a step. The steps of all proteins, sorted by score and summed up,
    are the averages of Eq. 30. They are read only after the last of equal scores: there is no threshold between equal
    scores, so torchdrug's maximum, which allows them, is too high.

    score (B, C) of every protein and class: the paper's are probabilities, but only their order matters. target (B, C)
    is 1 if the protein is of the class, else 0. A protein of no class has recall 0/0 in Eq. 29; it counts as 0, and the
    protein counts in N. nan if no protein has a class.
    """
    if not target.any():
        return NAN
    order = np.argsort(-score, axis=1, kind="stable")
    score, hit = np.take_along_axis(score, order, 1), np.take_along_axis(target, order, 1)
    precision = hit.cumsum(1) / np.arange(1, hit.shape[1] + 1)  # of the k best classes of a protein
    precision_step = np.diff(precision, axis=1, prepend=0)
    recall_step = hit / np.maximum(hit.sum(1, keepdims=True), 1)
    covered_step = np.zeros_like(hit)  # M(t) counts a protein from its first prediction on
    covered_step[:, 0] = 1
    order = np.argsort(-score, axis=None, kind="stable")
    threshold = score.flat[order]
    last = np.append(threshold[1:] != threshold[:-1], True)
    steps = (precision_step, recall_step, covered_step)
    precision, recall, covered = (step.flat[order].cumsum()[last] for step in steps)
    precision, recall = precision / covered, recall / len(score)
    return np.divide(2 * precision * recall, precision + recall, out=np.zeros_like(recall), where=recall > 0).max()


@metric
def auprc(score: np.ndarray, target: np.ndarray) -> float:
    """Area under the precision-recall curve over all entries alike (micro average), as average precision.

    score and target have the same shape: (B,), or (B, C) for EC. nan if all targets are of one class.
    """
    return average_precision_score(target.ravel(), score.ravel()) if len(np.unique(target)) > 1 else NAN


@metric
def auroc(score: np.ndarray, target: np.ndarray) -> float:
    """Area under the ROC curve over all entries alike; equal scores count half. nan for a single class."""
    return roc_auc_score(target.ravel(), score.ravel()) if len(np.unique(target)) > 1 else NAN


@metric
def pearson(score: np.ndarray, target: np.ndarray) -> float:
    """Pearson's correlation (K,), (K,) -> [-1, 1]; nan if the target is constant or has fewer than two values.

    0 if only the score is constant: a model that says the same of everything must not look better than a bad one.
    """
    if len(np.unique(target)) < 2:
        return NAN
    x, y = score - score.mean(), target - target.mean()
    norm = np.sqrt((x @ x) * (y @ y))
    return x @ y / norm if norm > 0 and len(np.unique(score)) > 1 else 0.0


@metric
def spearman(score: np.ndarray, target: np.ndarray) -> float:
    """Spearman's rho (K,), (K,) -> [-1, 1]: the correlation of the ranks, equal values sharing their mean rank."""
    return pearson(ranks(score), ranks(target))


@metric
def mean_spearman(score: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> float:
    """Mean of Spearman's rho over groups; in PSR a group is a protein, and its items are models of it.

    A group with fewer than two items, or with equal targets only, has no rho and is left out. nan if no group is left.
    """
    rho = np.array([spearman(score[rows], target[rows]) for rows in rows_of_groups(groups)])
    return rho[~np.isnan(rho)].mean() if not np.isnan(rho).all() else NAN


@metric
def rmse(score: np.ndarray, target: np.ndarray) -> float:
    """Root of the mean squared error, in the units of the target."""
    return np.sqrt(np.mean((score - target) ** 2))


@metric
def mae(score: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute error, in the units of the target."""
    return np.mean(np.abs(score - target))


@metric
def accuracy(score: np.ndarray, target: np.ndarray) -> float:
    """Share of rows of score (K, C) whose largest entry, the first of equals, is at target (K,), a class index.

    Of two classes, 0 and 1, score (K,) may be the probability of 1 alone.
    """
    chosen = score.argmax(1) if score.ndim == 2 else score > 0.5
    return (chosen == target).mean()


@metric
def balanced_accuracy(score: np.ndarray, target: np.ndarray) -> float:
    """Mean over the classes that occur of the share that is recognised. score (K, C), target (K,)."""
    right = score.argmax(1) == target
    return np.mean([right[target == label].mean() for label in np.unique(target)])


@metric
def macro_f1(score: np.ndarray, target: np.ndarray) -> float:
    """Mean over the classes that occur or were chosen of F1, which is 0 without a hit. score (K, C), target (K,)."""
    chosen = score.argmax(1)
    found = []
    for label in np.union1d(chosen, target):
        hits = np.sum((chosen == label) & (target == label))
        found.append(2 * hits / (np.sum(chosen == label) + np.sum(target == label)))
    return np.mean(found)


def rows_of_groups(groups: Sequence) -> list[np.ndarray]:
    """The rows of every group, in the order of their names."""
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    return np.split(group.argsort(kind="stable"), np.bincount(group).cumsum()[:-1])


def redrawn(groups: Sequence) -> Iterator[list[np.ndarray]]:
    """Without end: the rows of as many groups, drawn with replacement. Every call gives the same draws."""
    rows, random = rows_of_groups(groups), np.random.default_rng(0)
    while True:
        yield [rows[i] for i in random.integers(len(rows), size=len(rows))]


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks (K,) from small to large, equal values sharing the mean of theirs."""
    _, index, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[index]
