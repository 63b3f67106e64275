"""The verdict on a table: is a model better than the baseline, and a linear head than length and composition?

Against the baseline the labels of the test split are permuted (permutation.py). Against length and composition the
difference of the two heads has an interval over draws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from ...downstream.metrics import BEST
from ...downstream.tasks import Task
from ...training.results import Result
from . import permutation
from .bootstrap import difference_interval

FEATURES = {"structure": "length and composition", "residues": "own type, neighbours and their number"}


def errors_of_baseline(
    task: Task, own: Mapping[str, np.ndarray], target: np.ndarray, groups: Sequence
) -> dict[str, float]:
    """The errors of the baseline of the other folds.

    Orders are not judged by it: the mean of the others falls where the values of a fold rise, so its rho is below 0.
    """
    found = {}
    errors = copy(task)
    errors.measures = [name for name in task.measures if BEST.get(name) == "min"]
    for which, prediction in own.items():
        for name, value in errors.metrics(prediction, target, groups).items():
            absolute = name.startswith("mae")
            if absolute == (which == "median"):
                found[name] = value
    return found


@dataclass(frozen=True)
class Verdict:
    """The verdict on a table by the metric that decides, as `decision` of results.json keeps it."""

    metric: str
    baseline: str  # better, worse, untold; too_few, unmeasured; "" if nothing is said
    composition: str = ""  # of a linear head: better, worse, untold than the same head of `features`
    features: str = ""
    few: dict | None = None  # if they are too few: the "count" "of" what, and how many are "needed"

    @property
    def good(self) -> bool:
        """Whether there is nothing to doubt."""
        return self.baseline == "better" and self.composition in ("", "better")


def decide(metric: str, result: Result, verdicts: Mapping, beside: Mapping) -> Verdict:
    """The verdict on a table, from its metrics, the sides of all metrics, and those of the composition baseline."""
    if result.too_few:
        return Verdict(metric, "too_few", few=dict(result.too_few))
    if not np.isfinite(result.mean[metric]):
        return Verdict(metric, "unmeasured")
    baseline = verdicts.get(metric, "")
    composition = beside.get("verdict", {}).get(metric, "")
    return Verdict(metric, baseline, composition, beside.get("features", ""))


def permuted_shares(task: Task, tested: Sequence) -> dict[str, list[float]]:
    """Of every metric, its mean over seeds: the shares of permuted tables that are at least as good, and as bad."""
    any_seed = tested[0]
    target = any_seed.target
    if any_seed.fold is None:
        number = permutation.PERMUTATIONS if len(target) < 10**4 else 100  # a metric of more takes a second
        source = permutation.permuted_rows(any_seed.units, np.zeros(len(target), dtype=int), number)
    elif any_seed.permuted is None:
        return {}
    else:
        source = any_seed.permuted.source

    values = defaultdict(list)  # of every metric (tables * seeds)
    for t, rows in enumerate(source):
        for seed in tested:
            prediction = seed.prediction if seed.fold is None else seed.permuted.prediction[t]
            for name, value in task.metrics(prediction, target[rows], any_seed.groups).items():
                values[name].append(value)
    shares = {}
    for name, of_tables in values.items():
        means = np.mean(np.reshape(of_tables, (-1, len(tested))), 1)
        shares[name] = [*permutation.shares(means, task.direction(name) == "min")]
    return shares


def against_baseline(task: Task, shares: Mapping, means: Mapping, baseline: Mapping) -> dict[str, str]:
    """The verdict on every metric: better, worse, or untold."""
    found = {}
    for name, (good, bad) in shares.items():
        if name not in baseline or task.direction(name) is None:
            continue
        gain = means[name] - baseline[name]
        if not np.isfinite(gain):  # all values are alike
            continue
        told = side(name, [gain, gain], {name: task.direction(name)})
        share = bad if told == "worse" else good
        found[name] = told if share <= permutation.LEVEL else "untold"
    return found


def against_baseline_by_bootstrap(
    task: Task, means: Mapping, baseline: Mapping, gain: Mapping[str, np.ndarray], units: int
) -> dict[str, str]:
    """The same, for a table with folds that is too large to permute: from draws of so many units."""
    found = {}
    for name, drawn in gain.items():
        interval = difference_interval(means[name] - baseline[name], drawn, units, folds=True)
        if interval and task.direction(name):
            found[name] = side(name, interval, {name: task.direction(name)})
    return found


def against_composition(task: Task, difference: Mapping, verdicts: Mapping, of_composition: Mapping) -> dict[str, str]:
    """The verdict on the difference to length and composition. Only the better than the baseline is better than it."""
    found = {}
    for name, interval in difference.items():
        if interval is None or name not in verdicts:
            continue
        told = side(name, interval, {name: task.direction(name)})
        of_better_one = of_composition if told == "worse" else verdicts
        found[name] = told if of_better_one.get(name) == "better" else "untold"
    return found


# ---- sides -----------------------------------------------------------------------------------------------------------


def less_is_better(measure: str, direction: Mapping) -> bool | None:
    """Whether less of a measure is better; None if nobody said so of a measure of a plugin.

    `direction` is what results.json says; losses of pre-training are not in it.
    """
    if measure in direction:
        return {"min": True, "max": False, None: None}[direction[measure]]
    return BEST.get(measure.partition(":")[0]) == "min" or measure.endswith(("loss", "error"))


def side(measure: str, gain: Sequence[float], direction: Mapping) -> str:
    """The side of a difference, from its interval: better, worse, untold; other if nobody says which is better."""
    low, high = gain
    less = less_is_better(measure, direction)
    if less is None:
        return "untold" if low <= 0 <= high else "other"
    if less:
        low, high = -high, -low
    if low > 0:
        return "better"
    return "worse" if high < 0 else "untold"
