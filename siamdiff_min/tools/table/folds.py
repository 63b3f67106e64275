"""Which folds there are; heads of other folds, also for permuted labels; and what the other folds alone say.

Of permuted labels the head is ridge regression, also of classes (0 and 1): leaving out rows has a closed form there, so
one factorisation serves all tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...downstream.metrics import rows_of_groups
from ...downstream.tasks import Classes, Regression, Task
from ..evidence import permutation
from . import linear
from .linear import ALPHAS

PARTS = 5  # in which rows are left out to choose alpha
MOST_ROWS = 2000  # with folds. The matrices of all pairs of rows take 32 MB each then, and the test some 30 s
MOST_NUMBERS = 4 * 10**6  # of all predictions together, 32 MB


# ---- folds -----------------------------------------------------------------------------------------------------------


def left_by_folds(y: np.ndarray, groups: np.ndarray, folds: int) -> list[int]:
    """The fewest groups that a fold leaves to learn each column of y (K, ...) from. With 0 folds all groups are left.

    The count is 0 if there are fewer groups than folds. A column of y is nan where it was not measured.
    """
    measured = ~np.isnan(y.reshape(len(y), -1)).T
    if len(np.unique(groups)) < folds:
        return [0] * len(measured)
    fold = linear.folds_of(y, groups, folds) if folds else np.full(len(y), -1)
    return [min(len(np.unique(groups[there & (fold != k)])) for k in range(max(folds, 1))) for there in measured]


def folds_of_families(y: np.ndarray, families: np.ndarray, folds: int) -> int | None:
    """In how many folds families stay together: `folds`, or as many as there are families; None of too few."""
    number = min(folds, len(np.unique(families)))
    return number if min(left_by_folds(y, families, number)) >= 2 else None


# ---- permuted labels -------------------------------------------------------------------------------------------------


class Permuted(NamedTuple):
    """What is predicted, by heads of other folds, for tables whose labels mean nothing; the first is the real one."""

    source: np.ndarray  # (T, K)    of every table the rows that the labels come from
    prediction: list[np.ndarray]  # T of (K,) or (K, C)


def permuted_folds(task: Task, x: np.ndarray, y: np.ndarray, groups: np.ndarray, fold: np.ndarray) -> Permuted | None:
    """Predictions for permuted labels; None of too large a table, whose bootstrap is good enough.

    Features x (K, d), targets y (K, ...) in the units of the head.
    """
    # Classes as 0 and 1 for each. A value that was not measured becomes the mean, which says nothing.
    of_classes = isinstance(task, Classes)
    encoded = np.eye(task.num_outputs)[y.astype(int)] if of_classes else y.reshape(len(y), -1)
    encoded = np.where(np.isnan(encoded), np.nanmean(encoded, 0), encoded)
    number = min(permutation.PERMUTATIONS, MOST_NUMBERS // encoded.size)
    if len(y) > MOST_ROWS or number < 1 / permutation.LEVEL:
        return None

    # All tables at once. Of yes and no, and of classes, any numbers will do as predictions.
    source = permutation.permuted_rows(groups, fold, number)
    targets = np.moveaxis(encoded[source], 0, 2)  # (K, C, T)
    outputs = ridge_out_of_fold(x, targets, fold, parts_of(groups, fold), together=of_classes)  # as in linear.py
    tables = np.moveaxis(outputs, 2, 0)
    if isinstance(task, Regression):
        return Permuted(source, [predictions_of(task, output) for output in tables])
    return Permuted(source, [*(tables if of_classes else tables.reshape(number, *y.shape))])


def predictions_of(task: Task, output: np.ndarray) -> np.ndarray:
    """Outputs (K, C) of a head as the task's predictions."""
    tensor = torch.from_numpy(output).to(task.head.layers[-1].weight.device)
    return task.to_prediction(tensor).double().cpu().numpy()


def baseline_of_folds(task: Task, target: np.ndarray, fold: np.ndarray) -> dict[str, np.ndarray]:
    """The mean and the median (K, ...) of the other folds for every row; nothing of classes, whose order they spoil."""
    if not isinstance(task, Regression):
        return {}
    found = {}
    for k in range(fold.max() + 1):
        for which, value in task.baseline(target[fold != k]).items():
            found.setdefault(which, np.zeros(target.shape))[fold == k] = value
    return found


def parts_of(groups: Sequence, fold: np.ndarray) -> np.ndarray:
    """The part (K,) of every row in which it is left out to choose alpha: groups of a fold go to all parts."""
    part = np.zeros(len(fold), dtype=int)
    met = np.zeros(fold.max() + 1, dtype=int)
    for rows in rows_of_groups(groups):
        k = fold[rows[0]]
        part[rows] = (k + met[k]) % PARTS
        met[k] += 1
    return part


def ridge_out_of_fold(
    x: np.ndarray, y: np.ndarray, fold: np.ndarray, part: np.ndarray, together: bool = False
) -> np.ndarray:
    """Predictions (K, C, T) for all rows, each by a ridge regression on the rows in other folds.

    Args:
        x: features (K, d).
        y: targets (K, C, T) of T tables.
        part: (K,) is left out to choose alpha: of each column, or one for the C columns of a table `together`.
    """
    size = len(x)
    folds = fold.max() + 1
    mean, std = linear.scale_of(x)
    z = (x - mean) / std
    values, vectors = np.linalg.eigh(z @ z.T)
    values = values.clip(0)
    flat = y.reshape(size, -1)
    projected = vectors.T @ flat

    # The fit of all rows is H y, with H = 1/K + V diag(s / (s + alpha)) V^T.
    losses = np.zeros((len(ALPHAS), folds, *y.shape[1:]))
    errors = np.zeros((len(ALPHAS), *y.shape))
    for i, alpha in enumerate(ALPHAS):
        share = values / (values + alpha)
        rest = np.eye(size) - (vectors * share) @ vectors.T - 1 / size
        residual = flat - vectors @ (share[:, None] * projected) - flat.mean(0)
        for k in range(folds):
            out = fold == k
            errors[i, out] = errors_left_out(rest, residual, np.flatnonzero(out)).reshape(-1, *y.shape[1:])
            for p in range(PARTS):
                rows = np.flatnonzero(out | (part == p))
                if out.sum() < len(rows) < size:  # else there is nothing to judge by, or to learn from
                    error = errors_left_out(rest, residual, rows)[~out[rows]]
                    of_columns = np.square(error).sum(0).reshape(y.shape[1:])
                    losses[i, k] += of_columns

    # Every fold of every table has the alpha with the smallest loss in the other folds.
    if together:
        losses = np.broadcast_to(losses.sum(2, keepdims=True), losses.shape)
    best = losses.argmin(0)[fold]  # (K, C, T)
    return y - np.take_along_axis(errors, best[None], 0)[0]


def errors_left_out(rest: np.ndarray, residual: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The errors (n, T) for `rows` (n,) of ridge regression on the others, from `residual` (K, T) of that on all rows.

    They are (1 - H)_nn^-1 times their residuals, where `rest` (K, K) is 1 - H.
    """
    return np.linalg.solve(rest[np.ix_(rows, rows)], residual[rows])
