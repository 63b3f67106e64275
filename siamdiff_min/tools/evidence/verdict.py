"""The verdict on a table: is a model better than the baseline, and a linear head than length and composition?

Against the baseline the labels of the test split are dealt out anew (permutation.py). Against length and
composition the difference of the two heads has an interval over draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...downstream.metrics import LESS_IS_BETTER
from ...downstream.tasks import MultiLabel, Regression, Task
from ...training.summary import side
from ..table import linear
from . import permutation

FLOOR = {"structure": "length and composition", "residues": "own type, neighbours and their number"}
MOST_ROWS = 2000  # with folds. The matrices of all pairs of rows take 32 MB each then, and the test some 30 s
MOST_NUMBERS = 4 * 10**6  # of all predictions together, 32 MB
COVERED = 0.9  # of new values, by the interval of a prediction


@dataclass(frozen=True)
class Dealt:
    """What is predicted, by heads of other folds, for tables whose labels mean nothing; the first is the real one."""

    source: np.ndarray  # (T, K)    of every table the rows that the labels come from
    prediction: list[np.ndarray]  # T of (K,) or (K, C)


def deal_folds(task: Task, x: np.ndarray, y: np.ndarray, groups: np.ndarray, folds: int, classes: int) -> Dealt | None:
    """Predictions for labels that are dealt out anew; None of too large a table, whose draws are good enough.

    Features x (K, d), targets y (K, ...) in the units of the head.
    """
    # Classes as 0 and 1 for each. A value that was not measured becomes the mean, which says nothing.
    encoded = y.reshape(len(y), -1)
    if task.options["kind"] == "classes":
        encoded = np.eye(classes)[y.astype(int)]
    encoded = np.where(np.isnan(encoded), np.nanmean(encoded, 0), encoded)
    number = min(permutation.DEALS, MOST_NUMBERS // encoded.size)
    if len(y) > MOST_ROWS or number < 1 / permutation.LEVEL:
        return None

    # All tables at once.
    fold = linear.folds_of(y, groups, folds)
    source = permutation.deal(groups, fold, number)
    targets = np.moveaxis(encoded[source], 0, 2)  # (K, C, T)
    part = permutation.parts_of(groups, fold)
    together = task.options["kind"] == "classes"  # as in linear.py
    outputs = permutation.ridge_out_of_fold(x, targets, fold, part, together)
    return Dealt(source, [as_prediction(task, outputs[:, :, t]) for t in range(number)])


def as_prediction(task: Task, output: np.ndarray) -> np.ndarray:
    """Outputs (K, C) of ridge regression in the form of the task's predictions; of classes any numbers will do."""
    if isinstance(task, Regression):
        return predictions_of(task, output)
    single = output.shape[1] == 1 and not getattr(task, "properties", ()) and not isinstance(task, MultiLabel)
    return output[:, 0] if single else output


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


def errors_of_baseline(
    task: Task, own: Mapping[str, np.ndarray], target: np.ndarray, groups: Sequence
) -> dict[str, float]:
    """The errors of the baseline of the other folds.

    Orders are not judged by it: the mean of the others falls where the values of a fold rise, so its rho is below 0.
    """
    found = {}
    for which, prediction in own.items():
        for name, value in task.metrics(prediction, target, groups).items():
            absolute = name.startswith("mae")
            if name.partition(":")[0] in LESS_IS_BETTER and absolute == (which == "median"):
                found[name] = value
    return found


def against_chance(task: Task, tested: Sequence) -> dict[str, list[float]]:
    """Of every metric, its mean over seeds: the shares of tables dealt out that are at least as good, and as bad."""
    any_seed = tested[0]
    target = any_seed.target
    if any_seed.fold is None:
        few = len(target) < 10**4  # a metric of more takes a second
        source = permutation.deal(any_seed.units, np.zeros(len(target), dtype=int), permutation.DEALS if few else 100)
    elif any_seed.dealt is None:
        return {}
    else:
        source = any_seed.dealt.source

    values = []
    for t, rows in enumerate(source):
        of_seeds = []
        for seed in tested:
            prediction = seed.prediction if seed.fold is None else seed.dealt.prediction[t]
            of_seeds.append(task.metrics(prediction, target[rows], any_seed.groups))
        values.append({name: np.mean([metrics[name] for metrics in of_seeds]) for name in of_seeds[0]})
    shares = {}
    for name in values[0]:
        less = task.direction(name) == "min"
        shares[name] = [*permutation.shares(np.array([of_table[name] for of_table in values]), less)]
    return shares


def against_baseline(task: Task, shares: Mapping, means: Mapping, baseline: Mapping) -> dict[str, str]:
    """The verdict on every metric, in the words of wording.py."""
    found = {}
    for name, (good, bad) in shares.items():
        if name not in baseline or task.direction(name) is None:
            continue
        gain = means[name] - baseline[name]
        if not np.isfinite(gain):  # all values are alike
            continue
        told = side(name, [gain, gain], {name: task.direction(name)})
        share = bad if told == "worse than" else good
        found[name] = told if share <= permutation.LEVEL else "not told apart from"
    return found


def against_baseline_by_draws(
    task: Task, means: Mapping, baseline: Mapping, gain: Mapping[str, np.ndarray], units: int
) -> dict[str, str]:
    """The same, for a table with folds that is too large to deal out: from draws of so many units."""
    found = {}
    for name, drawn in gain.items():
        interval = permutation.difference_interval(means[name] - baseline[name], drawn, units, folds=True)
        if interval and task.direction(name):
            found[name] = side(name, interval, {name: task.direction(name)})
    return found


def against_floor(task: Task, difference: Mapping, verdicts: Mapping, floor_verdicts: Mapping) -> dict[str, str]:
    """The verdict on the difference to length and composition. Only the better than the baseline is better than it."""
    found = {}
    for name, interval in difference.items():
        if interval is None or name not in verdicts:
            continue
        told = side(name, interval, {name: task.direction(name)})
        of_better_one = floor_verdicts if told == "worse than" else verdicts
        found[name] = told if of_better_one.get(name) == "better than" else "not told apart from"
    return found


def within(target: np.ndarray, prediction: np.ndarray) -> list[float]:
    """How far from a prediction 90 % of new values lie, of each output (C,); from errors for values that were left out.

    The values must be exchangeable with those of the table (Vovk et al. 2005). Empty if there are too few of them.
    """
    found = []
    for values, predicted in zip(target.reshape(len(target), -1).T, prediction.reshape(len(target), -1).T):
        errors = np.sort(np.abs(values - predicted)[~np.isnan(values)])
        place = int(np.ceil(COVERED * (len(errors) + 1)))
        if place > len(errors):
            return []
        found.append(float(errors[place - 1]))
    return found
