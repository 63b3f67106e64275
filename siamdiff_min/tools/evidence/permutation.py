"""Is a linear head better than labels that mean nothing? The labels are dealt out anew, and the head is made again.

Labels move in whole groups, such as the copies of a sequence. With folds they stay within their fold, so that the folds
remain as they were made for these labels. The tables dealt out are then as likely as the real one if the labels have
nothing to do with the features, and the test has the right size (Winkler et al. 2014, NeuroImage 92:381).

For folds the head that is made again is ridge regression, also of classes (0 and 1): leaving out rows has a closed form
there, so one factorisation serves all tables.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ...downstream.metrics import rows_of_groups

DEALS = 400  # tables, the real one among them: at 2.5 % ten may be as good
LEVEL = 0.025  # of each side, as for the ends of a 95 % interval
PENALTIES = np.logspace(-1, 6, 8)  # as in linear.py
PARTS = 5  # in which rows are left out to choose a penalty


def deal(groups: Sequence, fold: np.ndarray, number: int = DEALS) -> np.ndarray:
    """Of every table (number, K) the rows that the labels come from. The first table is the real one.

    Every group takes the labels of another group of its fold. Those of a smaller group are repeated, of a larger one
    cut off. Every call gives the same tables.
    """
    random = np.random.default_rng(0)
    rows = rows_of_groups(groups)
    fold_of = np.array([fold[of_group[0]] for of_group in rows])
    source = np.tile(np.arange(len(fold)), (number, 1))
    for members in rows_of_groups(fold_of):
        for table in source[1:]:
            for to, origin in zip(members, random.permutation(members)):
                table[rows[to]] = np.resize(rows[origin], len(rows[to]))
    return source


def parts_of(groups: Sequence, fold: np.ndarray) -> np.ndarray:
    """The part (K,) of every row in which it is left out to choose a penalty: groups of a fold go to all parts."""
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
        part: (K,) is left out to choose a penalty: of each column, or one for the C columns of a table `together`.
    """
    size = len(x)
    folds = fold.max() + 1
    std = x.std(0)
    z = (x - x.mean(0)) / np.where(std > 1e-6 * np.abs(x.mean(0)), std, 1.0)  # 1.0: the same in all rows
    values, vectors = np.linalg.eigh(z @ z.T)
    values = values.clip(0)
    flat = y.reshape(size, -1)
    projected = vectors.T @ flat

    # The fit of all rows is H y, with H = 1/K + V diag(s / (s + penalty)) V^T.
    losses = np.zeros((len(PENALTIES), folds, *y.shape[1:]))
    errors = np.zeros((len(PENALTIES), *y.shape))
    for i, penalty in enumerate(PENALTIES):
        share = values / (values + penalty)
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

    # Every fold of every table has the penalty with the smallest loss in the other folds.
    if together:
        losses = np.broadcast_to(losses.sum(2, keepdims=True), losses.shape)
    best = losses.argmin(0)[fold]  # (K, C, T)
    return y - np.take_along_axis(errors, best[None], 0)[0]


def errors_left_out(rest: np.ndarray, residual: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The errors (n, T) for `rows` (n,) of ridge regression on the others, from `residual` (K, T) of that on all rows.

    They are (1 - H)_nn^-1 times their residuals, where `rest` (K, K) is 1 - H.
    """
    return np.linalg.solve(rest[np.ix_(rows, rows)], residual[rows])


def shares(values: np.ndarray, less_is_better: bool) -> tuple[float, float]:
    """Of a measure (T,), the real table's first: the shares of tables at least as good, and at least as bad.

    A table whose measure is not a number counts as both.
    """
    signed = -values if less_is_better else values
    good = np.mean(~(signed < signed[0]))
    bad = np.mean(~(signed > signed[0]))
    return float(good), float(bad)


def difference_interval(value: float, drawn: np.ndarray, groups: int, folds: bool) -> list[float] | None:
    """The 95 % interval of a difference of two heads on the same rows, from its values on draws of `groups` groups.

    With folds, each of two rows helps to predict the other, so that a pair counts twice: the variance of such a sum is
    about twice that of the draws, which take rows for independent (Nadeau and Bengio 2003, Machine Learning 52:239, has
    1 + folds / (folds - 1)). None if no draw has a value.
    """
    finite = drawn[np.isfinite(drawn)]
    if not len(finite) or not np.isfinite(value):
        return None
    half = stats.t.ppf(1 - LEVEL, groups - 1) * finite.std()
    if folds:
        half *= np.sqrt(2)
    return [float(value - half), float(value + half)]
