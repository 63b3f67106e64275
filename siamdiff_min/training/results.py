"""Predictions of a fine-tuned model for held-out samples, and the files and tables they are written to.

For every metric results.json has the value of each seed, their mean and standard deviation, and the value of the
baseline, which looks at nothing (`constant`). Two 95 % intervals are over draws of structures: `interval` is that of
the mean over seeds, `gain_interval` that of this mean minus the baseline on the same draw. The draws are in draws.npz,
so that two runs of one test split can be compared draw by draw.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ..downstream import chance
from ..downstream.metrics import redrawn
from ..downstream.tasks import Binary, Regression, Task
from ..encoders import weights
from ..files import SiamDiffError, replacing, write_file, write_rows
from ..machine import progress, versions
from . import evaluation, verdict, wording
from .batches import valid_keys
from .ranks import Ranks

DRAWS = "draws.npz"
MOST_DRAWS = 1000
# Structures that are drawn again. With random scores the interval of Spearman's rho misses 0 for 6 % of the splits of 8
# structures, for 12 % of 5, for 32 % of 3 and always for 2.
FEWEST = 8
# Samples of the rarer of yes and no. Of 60 samples with random scores the interval of AUROC misses 0.5 for 9 % if 4 are
# positive, for 18 % with 3, 30 % with 2 and 76 % with 1.
RAREST = 4


@dataclass(frozen=True)
class Predictions:
    """Every held-out sample once, in the order of the data."""

    names: list[str]
    groups: list[str]
    target: np.ndarray  # (K,) or (K, C)
    prediction: np.ndarray  # (K,) or (K, C) float64
    units: Sequence[str] = ()  # (K,) of a table: what is drawn together, such as the copies of a sequence
    fold: np.ndarray | None = None  # (K,) of --folds
    own_baseline: Mapping[str, np.ndarray] = field(default_factory=dict)  # of folds: that of the other folds (K, ...)
    dealt: verdict.Dealt | None = None  # of folds: predictions for labels that mean nothing
    floor: Predictions | None = None  # of a linear head: those of the same head of length and composition


def predict(
    task: Task, dataset: Dataset, config: Namespace, ranks: Ranks, compute: Callable | None = None
) -> Predictions:
    """Predictions for all samples of `dataset`, or what `compute` makes of each sample; the same on all ranks."""

    def measure(b: int, sample, names: list[str]) -> tuple:
        prediction = compute(sample) if compute else task.to_prediction(task.predict(sample))
        return b, names, sample.groups, sample.target.cpu().numpy(), prediction.double().cpu().numpy()

    # Batches from all ranks, in the order of the data.
    batches = valid_keys(range(len(dataset)), config.batch_size)
    parts = ranks.all_gather(evaluation.each_batch(task, batches, dataset, config, ranks, measure))
    parts.sort(key=lambda part: part[0])
    _, names, groups, target, prediction = zip(*parts)
    return Predictions(
        names=[*chain(*names)],
        groups=[*chain(*groups)],
        target=np.concatenate(target),
        prediction=np.concatenate(prediction),
    )


def write_model(config: Namespace, task: Task, classes: tuple, epochs: float, valid: dict) -> None:
    """Write OUT/best.pt: the model after so many epochs, with its metrics on the validation split."""
    kept = ("task", *weights.IDENTITY, "seed", "max_residues", "folds")
    content = {
        **{name: getattr(config, name) for name in kept},
        "epochs": epochs,
        "valid": valid,
        "labels": list(classes),
        "options": task.options,
        **task.known,
        "state": task.state_dict(),
    }
    builder = getattr(task.encoder, "builder", None)  # vectors of a user's own have no graph
    if builder is not None:
        content["conventions"] = asdict(builder.conventions)
    if getattr(config, "features", None):
        content["features"] = config.features
    weights.write_weights(f"{config.out}/best.pt", weights.MODEL, content)


def write_predictions(
    path: Path,
    predictions: Predictions,
    columns: Sequence[str],
    exclusive: bool = False,
    within: Sequence[float] = (),
    said: Mapping[str, str] | None = None,
) -> None:
    """Write a table with tabs. Columns: id, group, target (if known), prediction.

    With several outputs there is a target and a prediction column for each. If they are `exclusive` classes, the target
    is a class name, and a last column holds the predicted class. With `within` (C,) columns `low` and `high` follow,
    the prediction minus and plus that; then columns whose every cell is what is `said` of the model. Raises
    SiamDiffError if a prediction is not finite: such a table is never written.
    """
    if not np.isfinite(predictions.prediction).all():
        raise SiamDiffError(f"{path} is not written, since some predictions are not finite")
    count = len(predictions.names)
    target = predictions.target.reshape(count, -1)
    prediction = predictions.prediction.reshape(count, -1)
    known = not np.isnan(target).all()

    titles = ["id", "group"]
    if known:
        titles += titles_of("target", target, columns)
    titles += titles_of("prediction", prediction, columns)
    if exclusive:
        titles.append("class")
    if len(within):
        titles += titles_of("low", prediction, columns) + titles_of("high", prediction, columns)
    said = said or {}
    titles += said
    rows = [titles]
    for sample, group, true, numbers in zip(predictions.names, predictions.groups, target, prediction, strict=True):
        row = [sample, group]
        if known:
            row += [columns[int(value)] if exclusive else f"{value:.6g}" for value in true]
        row += [f"{value:.6g}" for value in numbers]
        if exclusive:
            row.append(columns[numbers.argmax()])
        if len(within):
            row += [f"{value:.6g}" for value in (*(numbers - within), *(numbers + within))]
        rows.append([*row, *said.values()])
    write_rows(path, rows)


def titles_of(title: str, values: np.ndarray, columns: Sequence[str]) -> list[str]:
    """The titles of the columns of `values` (K, C)."""
    return [title] if values.shape[1] == 1 else [f"{title}:{name}" for name in columns]


def keep_verdict(path: Path, task: Task, written: Path, predictions: Predictions) -> None:
    """Add to the file of a model of a table what is repeated beside its predictions; `written` is its results.json."""
    content = json.loads(written.read_bytes())
    model = weights.read_weights(path, weights.MODEL)
    model["verdict"] = wording.doubt(content)
    model["advice"] = wording.advice(content)
    if isinstance(task, Regression):
        model["within"] = verdict.within(predictions.target, predictions.prediction)
    weights.write_weights(path, weights.MODEL, model)


def write_results(
    path: Path,
    config: Namespace,
    task: Task,
    tested: Mapping[int, Predictions],
    epochs: Mapping,
    made: Mapping | None = None,
) -> str:
    """Write results.json, and return it as a table.

    `tested` are the predictions of every seed's model for the test split, and `epochs` after how many it was the best.
    `made` is what `run.provenance` says.
    """
    numbers, draws = measured(task, tested)
    floor = next(iter(tested.values())).floor
    if floor:
        numbers["floor"] = beside_floor(task, numbers, draws, floor)
    content = {
        "about": origin(config),
        "notes": task.known.get("notes", []),
        "splits": task.known.get("splits", {}),
        "best_epoch": epochs,
        **numbers,
        "answer": task.known.get("answer"),
        "direction": {name: task.direction(name) for name in numbers["mean"]},
        "options": {**task.options},
        "config": decisive(config, task),
        "made": made or {},
    }
    write_file(path, json.dumps(plain(content), indent=1, allow_nan=False).encode())
    with replacing(path.with_name(DRAWS)) as file:
        np.savez(file, split=split_of(next(iter(tested.values()))), **draws)
    return wording.summary(content, path)


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


def measured(task: Task, tested: Mapping[int, Predictions]) -> tuple[dict, dict[str, np.ndarray]]:
    """Every metric on the test split: of each seed, mean and std over seeds, of the baseline, the intervals.

    And the draws (draws,) of each metric, its mean over seeds.
    """
    any_seed = next(iter(tested.values()))  # all of them have the same samples
    target = any_seed.target
    baseline = task.known.get("answer")

    def measure(rows, groups) -> tuple[list[dict], dict]:
        """Every metric of these rows: of each seed, and of the baseline."""
        of_seeds = [task.metrics(seed.prediction[rows], target[rows], groups) for seed in tested.values()]
        if not baseline:
            return of_seeds, {}
        own = {which: values[rows] for which, values in any_seed.own_baseline.items()}
        of_baseline = task.baseline_metrics(baseline, target[rows], groups)
        return of_seeds, of_baseline | verdict.errors_of_baseline(task, own, target[rows], groups)

    # On the split as it is.
    of_seeds, of_baseline = measure(slice(None), any_seed.groups)
    names = list(of_seeds[0])
    values = {name: [metrics[name] for metrics in of_seeds] for name in names}
    means = {name: float(np.mean(x)) for name, x in values.items()}
    counts = counts_of(task, any_seed)
    if "accuracy" in names and not task.properties:
        counts["correct"] = {str(seed): round(x * len(target)) for seed, x in zip(tested, values["accuracy"])}

    # On splits whose structures are drawn again. A gain is over the baseline on the same draw.
    no_interval = why_no_interval(counts, target)
    units = any_seed.units or any_seed.groups
    drawn = [] if no_interval else [measure(*draw) for draw in draws(units, target.size)]
    mean = {}
    gain = {}
    if drawn:
        for name in names:
            mean[name] = np.array([np.mean([metrics[name] for metrics in seeds]) for seeds, _ in drawn])
        for name in of_baseline:
            gain[name] = mean[name] - [of_draw[name] for _, of_draw in drawn]

    numbers = {
        "samples": len(target),
        "counts": counts,
        "test": dict(zip(map(str, tested), of_seeds)),
        "mean": means,
        "std": {name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in values.items()},
        "interval": {name: interval(mean.get(name)) for name in names},
        "no_interval": no_interval,
        "constant": {name: of_baseline.get(name) for name in names},
        "gain_interval": {name: interval(gain.get(name)) for name in names},
    }
    # A table has a verdict, if its test split is large enough.
    if any_seed.units and drawn:
        shares = verdict.against_chance(task, [*tested.values()])
        verdicts = verdict.against_baseline(task, shares, means, of_baseline)
        if not shares:
            verdicts = verdict.against_baseline_by_draws(task, means, of_baseline, gain, len(set(units)))
        numbers["chance"] = shares
        numbers["verdict"] = verdicts
    return numbers, mean


def beside_floor(task: Task, numbers: Mapping, draws: Mapping[str, np.ndarray], floor: Predictions) -> dict:
    """The same head of length and composition: its metrics, the difference to them, and the verdict on it."""
    of_floor, floor_draws = measured(task, {0: floor})
    difference = {}
    for name, drawn in draws.items():
        gap = numbers["mean"][name] - of_floor["mean"][name]
        units = len(set(floor.units))
        difference[name] = chance.difference_interval(gap, drawn - floor_draws[name], units, floor.fold is not None)
    verdicts = {}
    if "verdict" in numbers:
        verdicts = verdict.against_floor(task, difference, numbers["verdict"], of_floor["verdict"])
    features = verdict.FLOOR[task.sees]
    return {"features": features, "mean": of_floor["mean"], "difference_interval": difference, "verdict": verdicts}


def counts_of(task: Task, predictions: Predictions) -> dict:
    """How much a split holds; of yes and no, how many are positive, and the fewest of the rarer one in a property."""
    target = predictions.target
    counts = {"samples": len(target), "structures": len(set(predictions.groups))}
    sequences = len(set(predictions.units))
    if predictions.units and sequences < counts["structures"]:
        counts["sequences"] = sequences
    if isinstance(task, Binary):
        counts["positives"] = int(np.nansum(target))
    return counts


def why_no_interval(counts: Mapping, target: np.ndarray) -> str:
    """Why a test split with these targets is too small to be drawn again; "" if it is not."""
    kinds = [kind for kind in ("sequences", "structures") if kind in counts]
    if counts[kinds[0]] < FEWEST:
        return f"of {counts[kinds[0]]} {kinds[0]}, too few to draw again: it takes {FEWEST}"
    if "positives" in counts:
        # Of several properties the one with the fewest.
        of_properties = target.reshape(len(target), -1).T
        rarer = min(rarer_of(values[~np.isnan(values)]) for values in of_properties)
        if rarer < RAREST:
            return f"of {rarer} samples of the rarer class, too few to draw again: it takes {RAREST}"
    return ""


def rarer_of(values: np.ndarray) -> int:
    """How many of these 0 and 1 are of the rarer kind."""
    positive = int(values.sum())
    return min(positive, len(values) - positive)


def draws(groups: Sequence[str], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Splits that are drawn again, in whole structures: the rows, and for each row which of the structures it is of.

    There are 1,000; of a large split of `size` targets 300 or 100, for the sake of time.
    """
    number = MOST_DRAWS
    if size >= 10**4:
        number = min(number, 300)
    if size >= 10**5:
        number = min(number, 100)
    items = islice(redrawn(groups), number)
    for rows in progress(items, total=number, unit="draw", desc="intervals"):
        yield np.concatenate(rows), np.repeat(np.arange(len(rows)), [*map(len, rows)])


def split_of(predictions: Predictions) -> str:
    """A hash of a test split: its samples, their structures, their targets."""
    digest = hashlib.sha256("\0".join([*predictions.names, *predictions.groups]).encode("utf-8", "surrogateescape"))
    return hashlib.sha256(digest.digest() + predictions.target.tobytes()).hexdigest()


def interval(values: np.ndarray | None) -> list[float] | None:
    """The middle 95 % of the finite values of draws; None if there are none."""
    if values is None:
        return None
    finite = values[np.isfinite(values)]
    return np.quantile(finite, [0.025, 0.975]).tolist() if len(finite) else None


def origin(config: Namespace) -> dict[str, str]:
    """When, with which versions and on which machine a run was done."""
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    if torch.cuda.is_available() and getattr(config, "device", "cpu") != "cpu":
        where += f", {torch.cuda.get_device_name()}"
    version = ", ".join(f"{name} {number}" for name, number in versions().items())
    return {"date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC", "version": version, "machine": where}


def plain(value):
    """The value for JSON: it knows no nan, which becomes None."""
    if isinstance(value, Mapping):
        return {name: plain(x) for name, x in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
