"""What the tables of the paper report: Fmax, AUPR, AUROC, Spearman's rho and accuracy (Sec. 5.1, App. D).

Numpy arrays in, Python floats out, computed in float64. A metric that is not defined (an empty split, one class only,
scores that are not finite) is nan, not an error, so that a first epoch on a tiny split does not end a run.
"""

from collections.abc import Sequence

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

NAN = float("nan")


def fmax(score: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Protein-centric maximum F-score (Eq. 29, Eq. 30, Eq. 31) and the largest threshold that attains it.

    Every distinct score is a threshold t, and all scores >= t are predictions. As t falls past a score of one protein,
    the precision and recall of this protein change by a step. The steps of all proteins, sorted by score and summed up,
    are the averages of Eq. 30. They are read only after the last of equal scores: there is no threshold between equal
    scores, and torchdrug's maximum, which takes such places in, is too high.

    score (B, C) of every protein and label: the paper's are probabilities, but only their order matters. target (B, C)
    is 1 where the protein has the label, else 0. A protein without labels has recall 0/0 in Eq. 29; it counts as 0, and
    the protein counts in N. (nan, nan) if no protein has a label.
    """
    score, target = _float(score), _float(target)
    if not target.any() or not np.isfinite(score).all():
        return NAN, NAN
    order = np.argsort(-score, axis=1, kind="stable")
    score, hit = np.take_along_axis(score, order, 1), np.take_along_axis(target, order, 1)
    precision = hit.cumsum(1) / np.arange(1, hit.shape[1] + 1)  # of the k best labels of a protein
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
    f = np.divide(2 * precision * recall, precision + recall, out=np.zeros_like(recall), where=recall > 0)
    best = int(f.argmax())
    return float(f[best]), float(threshold[last][best])


def auprc(score: np.ndarray, target: np.ndarray) -> float:
    """Area under the precision-recall curve over all entries alike (micro average), as average precision.

    score and target have the same shape: (B,), or (B, C) for EC. nan if all targets are of one class.
    """
    return _binary(average_precision_score, score, target)


def auroc(score: np.ndarray, target: np.ndarray) -> float:
    """Area under the ROC curve over all entries alike; equal scores count half. nan if there is one class only."""
    return _binary(roc_auc_score, score, target)


def spearman(score: np.ndarray, target: np.ndarray) -> float:
    """Spearman's rho (K,), (K,) -> [-1, 1]: the correlation of the ranks, equal values sharing their mean rank.

    nan if the target is constant or has fewer than two values. 0 if only the score is constant: a model that says the
    same of everything ranks nothing, and must not look better than one that ranks badly.
    """
    score, target = _float(score), _float(target)
    if not (np.isfinite(score).all() and np.isfinite(target).all()):
        return NAN
    return pearson(_ranks(score), _ranks(target))


def mean_spearman(score: np.ndarray, target: np.ndarray, group: Sequence[str]) -> float:
    """Mean of Spearman's rho over groups; in PSR a group is a protein and its items are the models of it.

    A group with fewer than two items, or whose targets are all equal, has no rho and is left out. nan if none is left.
    """
    score, target = _float(score), _float(target)
    _, member = np.unique(np.asarray(group, dtype=str), return_inverse=True)
    groups = [member == i for i in range(member.max(initial=-1) + 1)]
    rho = [spearman(score[g], target[g]) for g in groups if len(np.unique(target[g])) > 1]
    return float(np.mean(rho)) if rho else NAN


def pearson(score: np.ndarray, target: np.ndarray) -> float:
    """Pearson's correlation (K,), (K,) -> [-1, 1]; nan and 0 as for Spearman's rho."""
    score, target = _float(score), _float(target)
    if not (np.isfinite(score).all() and np.isfinite(target).all()) or len(np.unique(target)) < 2:
        return NAN
    x, y = score - score.mean(), target - target.mean()
    norm = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / norm) if norm > 0 else 0.0


def rmse(score: np.ndarray, target: np.ndarray) -> float:
    """Root of the mean squared error, in the units of the target."""
    return float(np.sqrt(np.mean((_float(score) - _float(target)) ** 2))) if len(score) else NAN


def mae(score: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute error, in the units of the target."""
    return float(np.mean(np.abs(_float(score) - _float(target)))) if len(score) else NAN


def accuracy(score: np.ndarray, target: np.ndarray) -> float:
    """Share of rows of score (K, C) whose largest entry, the first of equals, is at target (K,), a class index."""
    score = _float(score)
    if not len(score) or not np.isfinite(score).all():
        return NAN
    return float((score.argmax(1) == np.asarray(target)).mean())


def _float(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def _binary(function, score: np.ndarray, target: np.ndarray) -> float:
    score, target = _float(score).ravel(), _float(target).ravel()
    if len(np.unique(target)) < 2 or not np.isfinite(score).all():
        return NAN
    return float(function(target, score))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks (K,) from small to large, equal values sharing the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[place]
