"""results.json of a table: that of any run, the verdict, and beside it the same head of length and composition."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...downstream import metrics
from ...downstream.tasks import Regression, Task
from ...training.results import Predictions, Result, numbers, result_of, write_results
from ..evidence import verdict, wording
from ..evidence.bootstrap import Draws, difference_interval, draw, with_intervals, write_draws
from ..evidence.intervals import conformal_quantile
from ..evidence.verdict import Verdict
from .folds import Permuted

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
        if not self.own_baseline:
            return found
        target = self.target[rows]
        own = {
            "rmse": metrics.rmse(self.own_baseline["mean"][rows], target),
            "mae": metrics.mae(self.own_baseline["median"][rows], target),
        }
        return found | {name: value for name, value in own.items() if name in task.measures}


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
    if isinstance(task, Regression):
        kept["within"] = conformal_quantile(np.abs(predictions.target - predictions.prediction))
        kept["within_of"] = len(set(predictions.units))
    return kept


def columns_of_doubt(predictions: Predictions, reach: float, doubt: str) -> dict[str, list[str]]:
    """Columns for predictions of new structures: `low` and `high`, a finite `reach` from them; and the doubt."""
    more = {}
    if np.isfinite(reach):
        for title, sign in (("low", -1), ("high", 1)):
            more |= numbers(title, predictions.prediction[:, None] + sign * reach, ())
    if doubt:
        more["verdict"] = [doubt] * len(predictions.names)
    return more
