"""Predictions of a fine-tuned model for held-out samples, and the files and tables they are written to.

For every metric results.json has the value of each seed, their mean and standard deviation, and the value of the
baseline, which looks at nothing (`constant`). With tools/ it has 95 % intervals too (tools/evidence/bootstrap.py).
"""

from __future__ import annotations

import json
import math
import os
import platform
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from ..downstream.tasks import Binary, Task
from ..encoders import weights
from ..files import SiamDiffError, write_file, write_rows
from ..machine import versions
from . import evaluation
from .loader import valid_keys
from .ranks import Ranks


@dataclass(frozen=True)
class Predictions:
    """Every held-out sample once, in the order of the data."""

    names: list[str]
    groups: list[str]
    target: np.ndarray  # (K,) or (K, C)
    prediction: np.ndarray  # (K,) or (K, C) float64

    def baseline_metrics(self, task: Task, rows, groups: Sequence) -> dict[str, float]:
        """The metrics of the training split's baseline on some rows."""
        answer = task.known.get("answer")
        return task.baseline_metrics(answer, self.target[rows], groups) if answer else {}


@dataclass(frozen=True, kw_only=True)
class Result:
    """results.json: its keys are these fields. What is a dict of numbers has the names of the metrics."""

    about: Mapping[str, str]  # see `origin`
    notes: Sequence[str]  # on the data
    splits: Mapping[str, Mapping[str, int]]  # samples and structures of every split
    samples: int
    counts: dict[str, int]  # of samples and structures; of yes and no how many are "positives"
    test: Mapping[str, Mapping[str, float]]  # of every seed
    mean: Mapping[str, float]  # over seeds
    std: Mapping[str, float | None]
    # Over draws of structures, by tools/evidence/bootstrap.py: 95 % intervals, or why there are none.
    interval: Mapping[str, list[float] | None] = field(default_factory=dict)
    no_interval: str = ""
    too_few: Mapping[str, int | str] | None = None
    gain_interval: Mapping[str, list[float] | None] = field(default_factory=dict)
    constant: Mapping[str, float | None]  # of the baseline, which looks at nothing
    answer: Mapping | None  # what the baseline says
    direction: Mapping[str, str | None]  # "max" or "min", which values are better
    options: Mapping  # of the task
    best_epoch: Mapping[str, float]  # of every seed
    config: Mapping
    made: Mapping  # see `run.provenance`


def predict(task: Task, dataset, config: Namespace, ranks: Ranks, compute: Callable | None = None) -> Predictions:
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


def write_model(config: Namespace, task: Task, classes: tuple, epochs: float, valid: dict, **more) -> None:
    """Write OUT/best.pt: the model after so many epochs, with its metrics on the validation split."""
    kept = ("task", *weights.IDENTITY, "seed", "max_residues")
    content = {
        **{name: getattr(config, name) for name in kept},
        "epochs": epochs,
        "valid": valid,
        "labels": list(classes),
        "options": task.options,
        **task.known,
        "state": task.state_dict(),
        **more,
    }
    builder = getattr(task.encoder, "builder", None)  # vectors of a user's own have no graph
    if builder is not None:
        content["conventions"] = asdict(builder.conventions)
    weights.write_weights(f"{config.out}/best.pt", weights.MODEL, content)


def write_predictions(
    path: Path,
    predictions: Predictions,
    columns: Sequence[str],
    exclusive: bool = False,
    more: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a table with tabs. Columns: id, group, target (if known), prediction.

    With several outputs there is a target and a prediction column for each. If they are `exclusive` classes, the target
    is a class name, and a last column holds the predicted class. `more` columns follow, the cells (K,) by their title.
    Raises SiamDiffError if a prediction is not finite: such a table is never written.
    """
    if not np.isfinite(predictions.prediction).all():
        raise SiamDiffError(f"{path} is not written, since some predictions are not finite")
    count = len(predictions.names)
    target = predictions.target.reshape(count, -1)
    prediction = predictions.prediction.reshape(count, -1)

    cells = {"id": predictions.names, "group": predictions.groups}
    if not np.isnan(target).all():
        cells |= numbers("target", target, columns)
        if exclusive:
            cells["target"] = [columns[int(value)] for value in target[:, 0]]
    cells |= numbers("prediction", prediction, columns)
    if exclusive:
        cells["class"] = [columns[best] for best in prediction.argmax(1)]
    cells |= more or {}
    write_rows(path, [[*cells], *zip(*cells.values(), strict=True)])


def numbers(title: str, values: np.ndarray, columns: Sequence[str]) -> dict[str, list[str]]:
    """The columns of `values` (K, C) by their titles."""
    titles = [title] if values.shape[1] == 1 else [f"{title}:{name}" for name in columns]
    return {of: [f"{value:.6g}" for value in column] for of, column in zip(titles, values.T)}


def result_of(
    config: Namespace, task: Task, tested: Mapping[int, Predictions], epochs: Mapping[str, float], made: Mapping
) -> Result:
    """Every metric on the test split, from the predictions of every seed's model.

    `epochs` are those after which each was the best.
    """
    first = next(iter(tested.values()))  # all of them have the same samples
    target = first.target
    test = metrics_of(task, tested, slice(None), first.groups)
    baseline = first.baseline_metrics(task, slice(None), first.groups)
    values = {name: [metrics[name] for metrics in test.values()] for name in test[next(iter(test))]}
    counts: dict = {"samples": len(target), "structures": len(set(first.groups))}
    if isinstance(task, Binary):
        counts["positives"] = int(np.nansum(target))
    if "accuracy" in values and target.ndim == 1:
        counts["correct"] = {seed: round(metrics["accuracy"] * len(target)) for seed, metrics in test.items()}
    return Result(
        about=origin(config),
        notes=task.known.get("notes", []),
        splits=task.known.get("splits", {}),
        samples=len(target),
        counts=counts,
        test=test,
        mean={name: float(np.mean(x)) for name, x in values.items()},
        std={name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in values.items()},
        constant={name: baseline.get(name) for name in values},
        answer=task.known.get("answer"),
        direction={name: task.direction(name) for name in values},
        options=task.options,
        best_epoch=epochs,
        config=vars(config),
        made=made,
    )


def metrics_of(task: Task, tested: Mapping[int, Predictions], rows, groups: Sequence) -> dict[str, dict]:
    """Every metric of these rows, of each seed."""
    return {str(seed): task.metrics(x.prediction[rows], x.target[rows], groups) for seed, x in tested.items()}


def write_results(path: Path, result: Result) -> None:
    """Write results.json."""
    write_file(path, json.dumps(plain(vars(result)), indent=1, allow_nan=False).encode())


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
