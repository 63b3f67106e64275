"""results.json of a table: that of any run, the verdict, and beside it the same head of length and composition."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ...downstream.tasks import Regression, Task
from ...encoders import weights
from ...training.results import Predictions, Result, numbers, result_of, write_content
from ..evidence import verdict, wording
from ..evidence.bootstrap import difference_interval
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
    def drawn(self) -> Sequence[str]:
        """(K,) the sequence or family that each sample is of."""
        return self.units

    @property
    def drawn_are(self) -> str:
        """What is drawn again as a whole."""
        return "sequences" if len(set(self.units)) < len(set(self.groups)) else "structures"


def write_table_results(
    path: Path, config: Namespace, task: Task, tested: Mapping[int, TablePredictions], epochs: Mapping, made: Mapping
) -> dict:
    """Write results.json and draws.npz; returns the content of the first. See `training.results.write_results`."""
    found, more = judged(task, tested)
    floor = next(iter(tested.values())).floor
    if floor:
        more["floor"] = beside_floor(task, found, more, floor)
    decision = verdict.decide(task.options["metric"], found, more, more.get("floor", {}))
    more["decision"] = asdict(decision)
    more |= {"best_epoch": epochs, "config": decisive(config, task), "made": made}
    return write_content(path, config, task, tested, found, more)


def judged(task: Task, tested: Mapping[int, TablePredictions]) -> tuple[Result, dict]:
    """Every metric on the test split; and if it is large enough the verdict, `chance` and `verdict` of results.json."""
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

    found = result_of(task, tested, baseline_on)
    if any_seed.drawn_are == "sequences":
        found.counts["sequences"] = len(set(any_seed.units))
    if found.few:
        return found, {}

    # A test decides; if there is none, for a large table with folds, the draws.
    shares = verdict.shares_by_chance(task, [*tested.values()])
    verdicts = verdict.against_baseline(task, shares, found.mean, found.baseline)
    if not shares:
        units = len(set(any_seed.units))
        verdicts = verdict.against_baseline_by_draws(task, found.mean, found.baseline, found.gains, units)
    return found, {"chance": shares, "verdict": verdicts}


def beside_floor(task: Task, found: Result, judgement: Mapping, floor: TablePredictions) -> dict:
    """The same head of length and composition: its metrics, the difference to them, and the verdict on it."""
    of_floor, of_floor_alone = judged(task, {0: floor})
    difference = {}
    for name, drawn in found.draws.items():
        gap = found.mean[name] - of_floor.mean[name]
        units = len(set(floor.units))
        gaps = drawn - of_floor.draws[name]
        difference[name] = difference_interval(gap, gaps, units, floor.fold is not None)
    verdicts = {}
    if judgement:
        verdicts = verdict.against_floor(task, difference, judgement["verdict"], of_floor_alone["verdict"])
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
