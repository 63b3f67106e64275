"""results.json of a table: that of any run, the verdict, and beside it the same head of length and composition."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from ...downstream.tasks import Regression, Task
from ...training.results import Predictions, Result, numbers, result_of, write_results
from ..evidence import verdict, wording
from ..evidence.bootstrap import Draws, difference_interval, draw, with_intervals, write_draws
from ..evidence.conformal import within
from .folds import Permuted


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

    @property
    def units_are(self) -> str:
        """What is drawn again as a whole."""
        return "families" if len(set(self.units)) < len(set(self.groups)) else "structures"


@dataclass(frozen=True, kw_only=True)
class TableResult(Result):
    """results.json of a table."""

    chance: Mapping = field(default_factory=dict)  # see `permuted_shares`
    verdict: Mapping[str, str] = field(default_factory=dict)  # the side of every metric on which the baseline is not
    floor: Mapping = field(default_factory=dict)  # of a linear head: the same head of length and composition
    with_relatives: Mapping = field(default_factory=dict)  # of folds: the same if near copies alone stay together
    decision: Mapping | None = None  # see `Verdict`


def write_table_results(
    path: Path, config: Namespace, task: Task, tested: Mapping[int, TablePredictions], epochs: Mapping, made: Mapping
) -> dict:
    """Write results.json and draws.npz; returns the content of the first."""
    result, draws = judged(task, tested, config, epochs, made)
    any_seed = next(iter(tested.values()))
    floor = beside_composition(task, result, draws, any_seed.composition) if any_seed.composition else {}
    apart = {}
    if any_seed.with_relatives:
        apart = without_families(task, {seed: of_seed.with_relatives for seed, of_seed in tested.items()})
    decision = verdict.decide(task.options["metric"], result, result.verdict, floor)
    config = decisive(result.config, task)
    result = replace(result, floor=floor, with_relatives=apart, decision=asdict(decision), config=config)
    write_results(path, result)
    write_draws(path, tested, draws)
    return vars(result)


def judged(
    task: Task,
    tested: Mapping[int, TablePredictions],
    config: Namespace,
    epochs: Mapping,
    made: Mapping,
    gains: bool = True,
) -> tuple[TableResult, Draws]:
    """Every metric on the test split, with intervals, also of `gains`; and if it is large enough the verdicts."""
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
    if any_seed.units_are == "families":
        result.counts["families"] = len(set(any_seed.units))
    draws = draw(task, tested, any_seed.units, any_seed.units_are, baseline_on if gains else no_baseline)
    result = with_intervals(result, draws)
    if draws.few:
        return result, draws

    # A test decides; if there is none, for a large table with folds, the bootstrap.
    shares = verdict.permuted_shares(task, [*tested.values()])
    of_baseline = {name: value for name, value in result.constant.items() if value is not None}
    verdicts = verdict.against_baseline(task, shares, result.mean, of_baseline)
    if not shares:
        units = len(set(any_seed.units))
        verdicts = verdict.against_baseline_by_bootstrap(task, result.mean, of_baseline, draws.gain, units)
    return replace(result, chance=shares, verdict=verdicts), draws


def no_baseline(rows, groups) -> dict[str, float]:
    """Where nothing is compared with the baseline."""
    return {}


def without_families(task: Task, tested: Mapping[int, TablePredictions]) -> dict:
    """Every metric, with intervals, if relatives may be in other folds."""
    any_seed = next(iter(tested.values()))
    draws = draw(task, tested, any_seed.units, baseline_on=no_baseline)
    result = with_intervals(result_of(Namespace(), task, tested, {}, {}), draws)
    return {"sequences": len(set(any_seed.units)), "mean": result.mean, "interval": result.interval}


def beside_composition(task: Task, result: TableResult, draws: Draws, composition: TablePredictions) -> dict:
    """The same head of length and composition: its metrics, the difference to them, and the verdict on it."""
    gains = composition.fold is not None and composition.permuted is None  # else a test decides
    alone, draws_alone = judged(task, {0: composition}, Namespace(), {}, {}, gains)
    difference = {}
    for name, drawn in draws.mean.items():
        gap = result.mean[name] - alone.mean[name]
        units = len(set(composition.units))
        gaps = drawn - draws_alone.mean[name]
        difference[name] = difference_interval(gap, gaps, units, composition.fold is not None)
    verdicts = verdict.against_composition(task, difference, result.verdict, alone.verdict)
    features = verdict.FEATURES[task.sees]
    return {"features": features, "mean": alone.mean, "difference_interval": difference, "verdict": verdicts}


def decisive(config: Mapping, task: Task) -> Mapping:
    """The options without those that play no part: a head in closed form has no epochs, steps and learning rate."""
    if not task.options.get("linear"):
        return config
    unused = {"epochs", "lr", "global_batch_size"}
    if config.get("init_from"):  # else batches measure the batch norm of the encoder
        unused.add("batch_size")
    return {name: value for name, value in config.items() if name not in unused}


def repeated_in_file(task: Task, results: Mapping, predictions: TablePredictions) -> dict:
    """What the file of a model repeats beside its predictions; `results` are those of its table."""
    decision = wording.verdict_of(results)
    kept = {"verdict": wording.doubt(decision), "advice": wording.advice(decision)}
    if isinstance(task, Regression):
        kept["within"] = within(predictions.target, predictions.prediction)
        kept["within_of"] = len(set(predictions.units))
    return kept


def columns_of_doubt(predictions: Predictions, columns: Sequence[str], reach: Sequence[float], doubt: str) -> dict:
    """Columns for predictions of new structures: `low` and `high`, `reach` (C,) from the prediction, and the doubt.

    An output whose reach is infinite, as it was measured too seldom, has neither.
    """
    more = {}
    values = predictions.prediction.reshape(len(predictions.names), -1)
    known = np.isfinite(reach)
    for title, sign in (("low", -1), ("high", 1)):
        of_all = numbers(title, values + sign * np.array(reach), columns) if known.any() else {}
        more |= {of: cells for (of, cells), there in zip(of_all.items(), known) if there}
    if doubt:
        more["verdict"] = [doubt] * len(predictions.names)
    return more
