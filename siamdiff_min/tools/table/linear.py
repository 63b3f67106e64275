"""A linear head on a frozen encoder, in closed form: seconds instead of minutes (docs/extending.md).

Ridge regression for numbers, logistic regression for classes, both of standardised features. The weight of the penalty,
alpha, has the smallest loss on rows that were left out. All rows of a group, such as relatives, are left out together.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from ...files import ConfigError

# Times the sum of squared weights of the standardised features: from hardly any to so much that only the mean is left.
# Factors of ten are fine enough, as the loss is flat around its minimum.
ALPHAS = np.logspace(-1, 6, 8)
FOLDS = 5  # to choose among them
MOST = 1000  # rows that choose. The best alpha depends on the noise, not on the number of rows
LOSSES = {  # kind of the targets -> (outputs, targets) -> mean loss
    "regression": F.mse_loss,
    "binary": F.binary_cross_entropy_with_logits,
    "labels": F.binary_cross_entropy_with_logits,
    "classes": lambda output, target: F.cross_entropy(output, target.long()),
}


class Head(NamedTuple):
    """C outputs: values, or logits of classes."""

    weight: np.ndarray  # (C, d)
    bias: np.ndarray  # (C,)
    alpha: np.ndarray  # (C,) of every output; of "classes" the same

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weight.T + self.bias


def fit(x: np.ndarray, y: np.ndarray, groups: np.ndarray, kind: str, num_classes: int = 0) -> Head:
    """The head of features x (K, d), and its alphas.

    Args:
        y: numbers, or 0 and 1, (K,) or (K, C) for C outputs; nan is a value that was not measured. If the kind is
            "classes", the number of the class (K,), below `num_classes`.
        groups: of every row (K,); every output has values of at least two.

    Raises ConfigError for a kind of a plugin.
    """
    if kind not in LOSSES:
        raise ConfigError(f"--freeze: there is no linear head for labels of the kind {kind}")
    heads = []
    for column in y.reshape(len(y), -1).T.astype(np.float64):
        there = ~np.isnan(column)
        heads.append(_with_best_alpha(x[there], column[there], groups[there], kind, num_classes))
    return Head(*map(np.concatenate, zip(*heads)))


def out_of_fold(fit: Callable, x: np.ndarray, y: np.ndarray, groups: np.ndarray, fold: np.ndarray) -> np.ndarray:
    """Outputs (K, C) for all rows, each by the head that `fit(x, y, groups)` makes of the rows in other folds."""
    outputs = []
    for k in range(fold.max() + 1):
        others = fold != k
        head = fit(x[others], y[others], groups[others])
        outputs.append(head(x[~others]))

    # From the order of the folds back to that of x.
    place = fold.argsort(kind="stable").argsort()
    return np.concatenate(outputs)[place]


def folds_of(y: np.ndarray, groups: np.ndarray, folds: int) -> np.ndarray:
    """The fold of every row (K,), the same for a whole group. All folds have about as many groups, and similar y."""
    _, first_row, group = np.unique(groups, return_index=True, return_inverse=True)
    count = len(first_row)

    # The groups from the lowest value to the highest, equal ones by chance.
    random = np.random.default_rng(0)
    value = y.reshape(len(y), -1)[first_row, 0]
    by_value = np.lexsort((random.random(count), value))

    # Every fold gets one of each `folds` groups of similar value, by chance. If the lowest of them were always in one
    # fold, a head that says the mean of the others would look worse than chance.
    similar = np.arange(count) // folds
    order = by_value[np.lexsort((random.random(count), similar))]
    place = order.argsort()
    return (place % folds)[group]


def scale_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (d,) of features (K, d), 1 if a feature is the same in all rows."""
    mean = x.mean(0)
    std = x.std(0)
    return mean, np.where(std > 1e-6 * np.abs(mean), std, 1.0)


def _with_best_alpha(x: np.ndarray, y: np.ndarray, groups: np.ndarray, kind: str, num_classes: int) -> Head:
    """The head of one output, or of all classes."""
    mean, std = scale_of(x)
    z = (x - mean) / std

    # The weights are sums of rows: with fewer rows than features as many numbers are enough, for the same head.
    basis = None
    if len(z) < z.shape[1]:
        basis, coordinates = np.linalg.qr(z.T)
        z = coordinates.T

    # Which alpha has the smallest loss on rows that were left out?
    some = np.random.default_rng(0).permutation(len(y))[:MOST]
    folds = max(2, min(FOLDS, len(np.unique(groups[some]))))
    fold = folds_of(y[some], groups[some], folds)
    target = torch.from_numpy(y[some])
    losses = []
    for alpha in ALPHAS:
        solve = partial(_solve, kind=kind, num_classes=num_classes, alpha=alpha)
        output = torch.from_numpy(out_of_fold(solve, z[some], y[some], groups[some], fold))
        losses.append(LOSSES[kind](output.squeeze(1), target))

    # The head of all rows with it, for features that are not standardised.
    head = _solve(z, y, groups, kind, num_classes, ALPHAS[np.argmin(losses)])
    weight = head.weight if basis is None else head.weight @ basis.T
    weight = weight / std
    return Head(weight, head.bias - weight @ mean, head.alpha)


def _solve(z: np.ndarray, y: np.ndarray, _: np.ndarray, kind: str, num_classes: int, alpha: float) -> Head:
    """The head of standardised features with this alpha."""
    if kind == "regression":
        weight, bias = _ridge(z, y, alpha)
    elif kind == "classes":
        weight, bias = _logistic(z, y, num_classes, alpha)
    else:
        weight, bias = _logistic(z, y, 2, alpha)
        weight = weight[1:] - weight[:1]
        bias = bias[1:] - bias[:1]
    return Head(weight, bias, np.full(len(bias), alpha))


def _ridge(z: np.ndarray, y: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Weight (1, d) and bias (1,) of ridge regression. On a few rows scikit-learn's takes ten times as long."""
    mean = z.mean(0)
    level = y.mean()
    z = z - mean
    rows, columns = z.shape
    if columns <= rows:
        weight = np.linalg.solve(z.T @ z + alpha * np.eye(columns), z.T @ (y - level))
    else:
        weight = z.T @ np.linalg.solve(z @ z.T + alpha * np.eye(rows), y - level)
    return weight[None], np.array([level - weight @ mean])


def _logistic(z: np.ndarray, y: np.ndarray, classes: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases of logits. A class that no row has is as probable as in half a row."""
    from sklearn.exceptions import ConvergenceWarning  # loads scipy: a second, which numbers need not wait
    from sklearn.linear_model import LogisticRegression

    weight = np.zeros((classes, z.shape[1]))
    bias = np.full(classes, np.log(0.5 / len(y)))
    present = np.unique(y).astype(int)
    bias[present] = 0
    if len(present) > 1:
        with warnings.catch_warnings():
            # With hardly any penalty the weights of separable classes grow without end. Other alphas win then.
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=1 / alpha, max_iter=1000).fit(z, y)
        rows = present[-len(model.coef_) :]  # of two classes, the first has the logit 0
        weight[rows] = model.coef_
        bias[rows] = model.intercept_
    return weight, bias
