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
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from ..downstream.metrics import redrawn
from ..downstream.tasks import Binary, Task
from ..encoders import weights
from ..files import SiamDiffError, replacing, write_file, write_rows
from ..machine import progress, versions
from . import evaluation
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

    drawn_are = "structures"  # what is drawn again as a whole

    @property
    def drawn(self) -> Sequence[str]:
        """(K,) the structure that each sample is of."""
        return self.groups


class Few(NamedTuple):
    """Why a test split is not drawn again: too few of something."""

    count: int
    of: str  # structures, sequences, samples of the rarer class
    needed: int

    def __str__(self) -> str:
        return f"of {self.count} {self.of}, too few to draw again: it takes {self.needed}"


@dataclass(frozen=True)
class Result:
    """Every metric on the test split. What is a dict has the names of the metrics."""

    counts: dict[str, int]  # of samples and structures; of yes and no how many are "positives"
    test: dict[str, dict[str, float]]  # of every seed
    mean: dict[str, float]  # over seeds
    std: dict[str, float | None]
    baseline: dict[str, float]  # that looks at nothing
    few: Few | None  # why the split is not drawn again; None if it is
    draws: dict[str, np.ndarray]  # (draws,) the means over seeds
    gains: dict[str, np.ndarray]  # (draws,) these minus the baseline on the same draw

    def for_json(self) -> dict:
        """What results.json has of it."""
        return {
            "samples": self.counts["samples"],
            "counts": self.counts,
            "test": self.test,
            "mean": self.mean,
            "std": self.std,
            "interval": {name: interval(self.draws.get(name)) for name in self.mean},
            "no_interval": str(self.few) if self.few else "",
            "too_few": self.few and self.few._asdict(),
            "constant": {name: self.baseline.get(name) for name in self.mean},
            "gain_interval": {name: interval(self.gains.get(name)) for name in self.mean},
        }


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
        titles = titles_of("target", target, columns)
        cells |= {
            title: [columns[int(value)] if exclusive else f"{value:.6g}" for value in values]
            for title, values in zip(titles, target.T)
        }
    cells |= numbers("prediction", prediction, columns)
    if exclusive:
        cells["class"] = [columns[best] for best in prediction.argmax(1)]
    cells |= more or {}
    write_rows(path, [[*cells], *zip(*cells.values(), strict=True)])


def numbers(title: str, values: np.ndarray, columns: Sequence[str]) -> dict[str, list[str]]:
    """The columns of `values` (K, C) by their titles."""
    titles = titles_of(title, values, columns)
    return {of: [f"{value:.6g}" for value in column] for of, column in zip(titles, values.T)}


def titles_of(title: str, values: np.ndarray, columns: Sequence[str]) -> list[str]:
    """The titles of the columns of `values` (K, C)."""
    return [title] if values.shape[1] == 1 else [f"{title}:{name}" for name in columns]


def write_results(
    path: Path,
    config: Namespace,
    task: Task,
    tested: Mapping[int, Predictions],
    epochs: Mapping,
    made: Mapping | None = None,
) -> dict:
    """Write results.json and draws.npz; returns the content of the first.

    `tested` are the predictions of every seed's model for the test split, and `epochs` after how many it was the best.
    `made` is what `run.provenance` says.
    """
    found = result_of(task, tested)
    unused = {"epochs", "lr", "global_batch_size"} if getattr(config, "eval_only", None) else set()
    used = {name: value for name, value in vars(config).items() if name not in unused}
    return write_content(path, config, task, tested, found, {"best_epoch": epochs, "config": used, "made": made or {}})


def write_content(path: Path, config: Namespace, task: Task, tested: Mapping, found: Result, more: Mapping) -> dict:
    """Write results.json, with what there is `more`, and the draws beside it."""
    content = {
        "about": origin(config),
        "notes": task.known.get("notes", []),
        "splits": task.known.get("splits", {}),
        **found.for_json(),
        "answer": task.known.get("answer"),
        "direction": {name: task.direction(name) for name in found.mean},
        "options": {**task.options},
        **more,
    }
    write_file(path, json.dumps(plain(content), indent=1, allow_nan=False).encode())
    with replacing(path.with_name(DRAWS)) as file:
        np.savez(file, split=split_of(next(iter(tested.values()))), **found.draws)
    return content


def result_of(task: Task, tested: Mapping[int, Predictions], baseline_on: Callable | None = None) -> Result:
    """Every metric on the test split, on the split as it is and on splits whose structures are drawn again.

    `baseline_on(rows, groups)` are the metrics of the baseline on these rows; by default of the training split's.
    """
    any_seed = next(iter(tested.values()))  # all of them have the same samples
    target = any_seed.target
    baseline = task.known.get("answer")

    def measure(rows, groups) -> tuple[list[dict], dict]:
        """Every metric of these rows: of each seed, and of the baseline."""
        of_seeds = [task.metrics(seed.prediction[rows], target[rows], groups) for seed in tested.values()]
        if baseline_on:
            return of_seeds, baseline_on(rows, groups)
        return of_seeds, task.baseline_metrics(baseline, target[rows], groups) if baseline else {}

    # On the split as it is.
    of_seeds, of_baseline = measure(slice(None), any_seed.groups)
    values = {name: [metrics[name] for metrics in of_seeds] for name in of_seeds[0]}
    counts = {"samples": len(target), "structures": len(set(any_seed.groups))}
    if isinstance(task, Binary):
        counts["positives"] = int(np.nansum(target))
    if "accuracy" in values and target.ndim == 1:
        counts["correct"] = {str(seed): round(x * len(target)) for seed, x in zip(tested, values["accuracy"])}

    # On splits whose structures are drawn again. A gain is over the baseline on the same draw.
    few = too_few(task, any_seed)
    drawn = [] if few else [measure(*draw) for draw in draws(any_seed.drawn, target.size)]
    mean = {}
    gain = {}
    if drawn:
        for name in values:
            mean[name] = np.array([np.mean([metrics[name] for metrics in seeds]) for seeds, _ in drawn])
        for name in of_baseline:
            gain[name] = mean[name] - [of_draw[name] for _, of_draw in drawn]

    return Result(
        counts=counts,
        test=dict(zip(map(str, tested), of_seeds)),
        mean={name: float(np.mean(x)) for name, x in values.items()},
        std={name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in values.items()},
        baseline=of_baseline,
        few=few,
        draws=mean,
        gains=gain,
    )


def too_few(task: Task, predictions: Predictions) -> Few | None:
    """Why a test split is too small to be drawn again; None if it is not."""
    count = len(set(predictions.drawn))
    if count < FEWEST:
        return Few(count, predictions.drawn_are, FEWEST)
    if isinstance(task, Binary):
        # Of several outputs the one with the fewest.
        outputs = predictions.target.reshape(len(predictions.target), -1).T
        rarer = min(rarer_of(values[~np.isnan(values)]) for values in outputs)
        if rarer < RAREST:
            return Few(rarer, "samples of the rarer class", RAREST)
    return None


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
