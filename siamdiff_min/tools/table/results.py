"""results.json of a table: that of any run, the verdict, and beside it the same head of length and composition."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...downstream.tasks import Regression, Task
from ...training.results import Predictions, Result, numbers, result_of, write_results
from ..evidence import verdict, wording
from ..evidence.bootstrap import Draws, difference_interval, draw, with_intervals, write_draws
from ..evidence.intervals import conformal_quantile
from ..evidence.verdict import Verdict
from .folds import Permuted

OF_ERRORS = {"rmse": "mean", "mae": "median"}  # the baselines with the smallest errors
FEATURES = {"structure": "length and composition", "residues": "own type, neighbours and their number"}


@dataclass(frozen=True)
class TablePredictions(Predictions):
    """Every held-out sample once; relatives are one unit."""

    units: Sequence[str] = ()  # (K,) the family of each, by its relatives
    copies: Sequence[str] = ()  # (K,) its sequence, the same for near copies
    fold: np.ndarray | None = None  # (K,) of --folds
    own_baseline: Mapping[str, np.ndarray] = field(default_factory=dict)  # of folds: that of the other folds (K, ...)
    permuted: Permuted | None = None  # of folds: predictions for labels that mean nothing
    composition: TablePredictions | None = None  # of a linear head: those of the same head of length and composition
    with_relatives: TablePredictions | None = None  # of folds: by heads that have seen relatives, if there are any
    write_head: Callable | None = None  # of a linear head: writes its file, with what is known later

    @property
    def units_are(self) -> str:
        """What is drawn again as a whole."""
        return "families" if len(set(self.units)) < len(set(self.groups)) else "structures"

    def baseline_metrics(self, task: Task, rows, groups: Sequence) -> dict[str, float]:
        """The metrics of the baseline on some rows; with folds its errors are those of the other folds'.

        Orders are not judged by these: the mean of the others falls where a fold rises, so that its rho is below 0.
        """
        found = super().baseline_metrics(task, rows, groups)
        for which, values in self.own_baseline.items():
            errors = copy(task)
            errors.measures = [name for name in ("rmse", "mae") if name in task.measures and OF_ERRORS[name] == which]
            found |= errors.metrics(values[rows], self.target[rows], groups)
        return found


@dataclass(frozen=True, kw_only=True)
class TableResult(Result):
    """results.json of a table."""

    chance: Mapping = field(default_factory=dict)  # see `permuted_shares`
    verdict: Mapping[str, str] = field(default_factory=dict)  # the side of every metric on which the baseline is not
    floor: Mapping = field(default_factory=dict)  # of a linear head: the same head of length and composition
    with_relatives: Mapping = field(default_factory=dict)  # of folds: the same if near copies alone stay together
    decision: Mapping | None = None  # see `Verdict`


def write_table_results(path: Path, result: Result, task: Task, tested: Mapping[int, TablePredictions]) -> dict:
    """Write results.json and draws.npz; returns the content of the first."""
    first = next(iter(tested.values()))
    if first.units_are == "families":
        result.counts["families"] = len(set(first.units))
    draws = draw(task, tested, first.units, first.units_are)
    result = with_intervals(result, draws)

    # Is it better than the baseline, and than length and composition? What would it be with relatives?
    shares, verdicts = verdict.against_baseline(task, [*tested.values()], result, draws)
    floor = beside_composition(task, result, verdicts, draws, first.composition) if first.composition else {}
    apart = {seed: x.with_relatives for seed, x in tested.items() if x.with_relatives}
    more = {"chance": shares, "verdict": verdicts, "floor": floor}
    more["with_relatives"] = without_families(task, apart) if apart else {}
    more["decision"] = asdict(decide(task.options["metric"], result, verdicts, floor))
    result = TableResult(**vars(result) | more)
    write_results(path, result)
    write_draws(path, tested, draws)
    return vars(result)


def without_families(task: Task, tested: Mapping[int, TablePredictions]) -> dict:
    """Every metric, with intervals, if relatives may be in other folds."""
    units = next(iter(tested.values())).units
    draws = draw(task, tested, units, gains=False)
    result = with_intervals(result_of(Namespace(), task, tested, {}, {}), draws)
    return {"sequences": len(set(units)), "mean": result.mean, "interval": result.interval}


def beside_composition(
    task: Task, result: Result, verdicts: Mapping, draws: Draws, composition: TablePredictions
) -> dict:
    """The same head of length and composition: its metrics, the difference to them, and the verdict on it.

    `verdicts` are those of the result. Only one that is better than the baseline is better than the other.
    """
    folds = composition.fold is not None
    large = folds and composition.permuted is None  # and the bootstrap decides, see `against_baseline`
    alone = result_of(Namespace(), task, {0: composition}, {}, {})
    draws_alone = draw(task, {0: composition}, composition.units, gains=large)
    _, verdicts_alone = verdict.against_baseline(task, [composition], alone, draws_alone)
    difference = {}
    found = {}
    for name, drawn in draws.mean.items():
        gap = result.mean[name] - alone.mean[name]
        ends = difference_interval(gap, drawn - draws_alone.mean[name], draws.units, folds)
        difference[name] = ends
        if ends and name in verdicts:
            told = verdict.side(name, ends, result.direction)
            of_better_one = verdicts_alone if told == "worse" else verdicts
            found[name] = told if of_better_one.get(name) == "better" else "untold"
    return {"features": FEATURES[task.sees], "mean": alone.mean, "difference_interval": difference, "verdict": found}


def decide(metric: str, result: Result, verdicts: Mapping, floor: Mapping) -> Verdict:
    """The verdict on a table by one metric."""
    if result.too_few:
        return Verdict(metric, "too_few", few=dict(result.too_few))
    if not np.isfinite(result.mean[metric]):
        return Verdict(metric, "unmeasured")
    composition = floor.get("verdict", {}).get(metric, "")
    return Verdict(metric, verdicts.get(metric, ""), composition, floor.get("features", ""))


def repeated_in_file(task: Task, results: Mapping, predictions: TablePredictions) -> dict:
    """What the file of a model repeats beside its predictions; `results` are those of its table."""
    decision = wording.verdict_of(results)
    kept = {"verdict": wording.doubt(decision), "advice": wording.advice(decision)}
    sides = results["verdict"]
    weak = [of for of in task.options["properties"] if sides.get(f"{decision.metric}:{of}") in ("untold", "worse")]
    if weak and decision.baseline == "better":  # which is said of the mean of all properties
        kept["verdict"] = f"{wording.sentence(decision)}; not better for {', '.join(weak)}"
        kept["advice"] = "do not rely on these"
    if isinstance(task, Regression):
        errors = np.abs(predictions.target - predictions.prediction).reshape(len(predictions.names), -1)
        kept["within"] = [conformal_quantile(column[~np.isnan(column)]) for column in errors.T]
        kept["within_of"] = len(set(predictions.units))
    return kept


def columns_of_doubt(predictions: Predictions, columns: Sequence[str], reach: Sequence[float], doubt: str) -> dict:
    """Columns for predictions of new structures: `low` and `high`, `reach` (C,) from them, if finite; and the doubt."""
    more = {}
    values = predictions.prediction.reshape(len(predictions.names), -1)
    known = np.isfinite(reach)
    for title, sign in (("low", -1), ("high", 1)):
        of_all = numbers(title, values + sign * np.array(reach), columns) if known.any() else {}
        more |= {of: cells for (of, cells), there in zip(of_all.items(), known) if there}
    if doubt:
        more["verdict"] = [doubt] * len(predictions.names)
    return more
