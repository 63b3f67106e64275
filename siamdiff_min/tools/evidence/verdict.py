"""The verdict on a table: is a model better than the baseline, and a linear head than length and composition?

Against the baseline the labels of the test split are permuted (permutation.py). Against length and composition the
difference of the two heads has an interval over draws (tools/table/results.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...downstream.metrics import BEST
from ...downstream.tasks import Task
from ...training.results import Result
from . import permutation
from .bootstrap import Draws, averaged, columns, difference_interval


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


def permuted_shares(task: Task, tested: Sequence) -> dict[str, list[float]]:
    """Of every metric, its mean over seeds: the shares of permuted tables that are at least as good, and as bad.

    With folds the head is made again for every table. None if the table is too large for that.
    """
    first = tested[0]
    target = first.target
    if first.fold is None:
        number = permutation.PERMUTATIONS if len(target) < 10**4 else 100  # a metric of more takes a second
        source = permutation.permuted_rows(first.units, np.zeros(len(target), dtype=int), number)
    elif first.permuted is None:
        return {}
    else:
        source = first.permuted.source

    means = []
    for t, rows in enumerate(source):
        predictions = [seed.prediction if seed.fold is None else seed.permuted.prediction[t] for seed in tested]
        means.append(averaged([task.metrics(x, target[rows], first.groups) for x in predictions]))
    shares = {}
    for name, values in columns(means).items():
        shares[name] = [*permutation.shares(values, task.direction(name) == "min")]
    return shares


def against_baseline(
    task: Task, tested: Sequence, result: Result, draws: Draws
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """The shares of permuted tables, and the verdict on every metric: better, worse, or untold.

    The shares decide. A table with folds that is too large to permute has none, and the bootstrap decides.
    """
    if draws.few:
        return {}, {}
    shares = permuted_shares(task, tested)
    found = {}
    for name, baseline in result.constant.items():
        if baseline is None or not result.direction[name]:
            continue
        gain = result.mean[name] - baseline
        ends = [gain, gain] if shares else difference_interval(gain, draws.gain[name], draws.units, folds=True)
        if ends is None or not np.isfinite(gain):  # all values are alike
            continue
        found[name] = side(name, ends, result.direction)
        if shares:
            good, bad = shares[name]
            likely = bad if found[name] == "worse" else good
            if likely > permutation.LEVEL:
                found[name] = "untold"
    return shares, found


# ---- sides -----------------------------------------------------------------------------------------------------------


def less_is_better(measure: str, direction: Mapping) -> bool | None:
    """Whether less of a measure is better; None if nobody said so of a measure of a plugin.

    `direction` is what results.json says; losses of pre-training are not in it.
    """
    if measure in direction:
        return {"min": True, "max": False, None: None}[direction[measure]]
    return BEST.get(measure) == "min" or measure.endswith(("loss", "error"))


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
