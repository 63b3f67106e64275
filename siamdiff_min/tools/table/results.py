"""results.json of a table: that of any run, the verdict, and beside it the same head of length and composition."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from ...downstream.tasks import Regression, Task
from ...encoders import weights
from ...training.results import Predictions, Result, numbers, result_of, write_results
from ..evidence import verdict, wording
from ..evidence.bootstrap import Draws, difference_interval, draw, with_intervals, write_draws
from ..evidence.conformal import within
from .folds import Permuted


@dataclass(frozen=True)
class TablePredictions(Predictions):
    """Every held-out sample once; the copies of a sequence are one unit."""

    units: Sequence[str] = ()  # (K,)
    fold: np.ndarray | None = None  # (K,) of --folds
    own_baseline: Mapping[str, np.ndarray] = field(default_factory=dict)  # of folds: that of the other folds (K, ...)
    permuted: Permuted | None = None  # of folds: predictions for labels that mean nothing
    floor: TablePredictions | None = None  # of a linear head: those of the same head of length and composition

    @property
    def units_are(self) -> str:
        """What is drawn again as a whole."""
        return "sequences" if len(set(self.units)) < len(set(self.groups)) else "structures"


@dataclass(frozen=True, kw_only=True)
class TableResult(Result):
    """results.json of a table."""

    chance: Mapping = field(default_factory=dict)  # see `shares_by_chance`
    verdict: Mapping[str, str] = field(default_factory=dict)  # the side of every metric on which the baseline is not
    floor: Mapping = field(default_factory=dict)  # of a linear head: the same head of length and composition
    decision: Mapping | None = None  # see `Verdict`


def write_table_results(
    path: Path, config: Namespace, task: Task, tested: Mapping[int, TablePredictions], epochs: Mapping, made: Mapping
) -> dict:
    """Write results.json and draws.npz; returns the content of the first."""
    result, draws = judged(task, tested, config, epochs, made)
    of_floor = next(iter(tested.values())).floor
    floor = beside_floor(task, result, draws, of_floor) if of_floor else {}
    decision = verdict.decide(task.options["metric"], result, result.verdict, floor)
    config = decisive(config, task)
    result = replace(result, floor=floor, decision=asdict(decision), config=config)
    write_results(path, result)
    write_draws(path, tested, draws)
    return vars(result)


def judged(
    task: Task, tested: Mapping[int, TablePredictions], config: Namespace, epochs: Mapping, made: Mapping
) -> tuple[TableResult, Draws]:
    """Every metric on the test split, with intervals; and if it is large enough the verdict on each."""
    any_seed = next(iter(tested.values()))
    baseline = task.known.get("answer")

    def baseline_on(rows, groups) -> dict[str, float]:
        """The metrics of the baseline; with folds its errors are those of the other folds'."""
        if not baseline:
            return {}
        target = any_seed.target[rows]
        own = {which: values[rows] for which, values in any_seed.own_baseline.items()}
        errors = verdict.errors_of_baseline(task, own, target, groups)
        return task.baseline_metrics(baseline, target, groups) | errors

    result = TableResult(**vars(result_of(config, task, tested, epochs, made, baseline_on)))
    if any_seed.units_are == "sequences":
        result.counts["sequences"] = len(set(any_seed.units))
    draws = draw(task, tested, any_seed.units, any_seed.units_are, baseline_on)
    result = with_intervals(result, draws)
    if draws.few:
        return result, draws

    # A test decides; if there is none, for a large table with folds, the draws.
    shares = verdict.shares_by_chance(task, [*tested.values()])
    of_baseline = {name: value for name, value in result.constant.items() if value is not None}
    verdicts = verdict.against_baseline(task, shares, result.mean, of_baseline)
    if not shares:
        units = len(set(any_seed.units))
        verdicts = verdict.against_baseline_by_draws(task, result.mean, of_baseline, draws.gain, units)
    return replace(result, chance=shares, verdict=verdicts), draws


def beside_floor(task: Task, result: TableResult, draws: Draws, floor: TablePredictions) -> dict:
    """The same head of length and composition: its metrics, the difference to them, and the verdict on it."""
    of_floor, draws_of_floor = judged(task, {0: floor}, Namespace(), {}, {})
    difference = {}
    for name, drawn in draws.mean.items():
        gap = result.mean[name] - of_floor.mean[name]
        units = len(set(floor.units))
        gaps = drawn - draws_of_floor.mean[name]
        difference[name] = difference_interval(gap, gaps, units, floor.fold is not None)
    verdicts = verdict.against_floor(task, difference, result.verdict, of_floor.verdict)
    features = verdict.FLOOR[task.sees]
    return {"features": features, "mean": of_floor.mean, "difference_interval": difference, "verdict": verdicts}


def decisive(config: Namespace, task: Task) -> dict:
    """The options without those that play no part: a head in closed form has no epochs, steps and learning rate."""
    unused = set()
    if task.options.get("linear"):
        unused = {"epochs", "lr", "global_batch_size"}
        if getattr(config, "init_from", None):  # else batches measure the batch norm of the encoder
            unused.add("batch_size")
    elif getattr(config, "eval_only", None):
        unused = {"epochs", "lr", "global_batch_size"}
    return {name: value for name, value in vars(config).items() if name not in unused}


def keep_verdict(path: Path, task: Task, results: Mapping, predictions: TablePredictions) -> None:
    """Add to the file of a model what is repeated beside its predictions; `results` are those of its table."""
    model = weights.read_weights(path, weights.MODEL)
    decision = wording.verdict_of(results)
    model["verdict"] = wording.doubt(decision)
    model["advice"] = wording.advice(decision)
    if isinstance(task, Regression):
        model["within"] = within(predictions.target, predictions.prediction)
    weights.write_weights(path, weights.MODEL, model)


def columns_of_doubt(predictions: Predictions, columns: Sequence[str], reach: Sequence[float], doubt: str) -> dict:
    """Columns for predictions of new structures: `low` and `high`, `reach` (C,) from the prediction, and the doubt."""
    more = {}
    if len(reach):
        values = predictions.prediction.reshape(len(predictions.names), -1)
        more |= numbers("low", values - reach, columns) | numbers("high", values + reach, columns)
    if doubt:
        more["verdict"] = [doubt] * len(predictions.names)
    return more
