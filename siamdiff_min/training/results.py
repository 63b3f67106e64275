"""Predictions of a fine-tuned model for held-out samples, and the files and tables they are written to.

For every metric results.json has the value of each seed, their mean and standard deviation, and the value of the best
answer that looks at nothing (`constant`). Two 95 % intervals are over draws of structures: `interval` is that of the
mean over seeds, `gain_interval` that of this mean minus the constant answer on the same draw. The draws are in
draws.npz, so that two runs of one test split can be compared draw by draw.
"""

import hashlib
import json
import math
import os
import platform
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from ..downstream.metrics import LESS_IS_BETTER, redrawn
from ..downstream.tasks import Binary, Task
from ..files import SiamDiffError, replacing, write_file, write_rows
from ..machine import progress, versions
from . import evaluation
from .ranks import Ranks

DRAWS, MOST_DRAWS = "draws.npz", 1000
FEWEST = 8  # structures that are drawn again. With random scores the interval of Spearman's rho misses 0 for 6 % of the
# splits of 8 structures, for 12 % of 5, for 32 % of 3 and always for 2.
RAREST = 4  # samples of the rarer of yes and no. Of 60 samples with random scores the interval of AUROC misses 0.5 for
# 9 % if 4 are positive, for 18 % with 3, 30 % with 2 and 76 % with 1.


@dataclass(frozen=True)
class Predictions:
    """Every held-out sample once, in the order of the data."""

    names: list[str]
    groups: list[str]
    target: np.ndarray  # (K,) or (K, C)
    score: np.ndarray  # (K,) or (K, C) float64


def predict(
    task: Task, dataset: Dataset, config: Namespace, ranks: Ranks, compute: Callable | None = None
) -> Predictions:
    """Scores of all samples of `dataset`, or what `compute` makes of each sample; the same on all ranks."""

    def measure(b: int, sample, names: list[str]) -> tuple:
        score = compute(sample) if compute else task.score(task.predict(sample))
        return b, names, sample.groups, sample.target.cpu().numpy(), score.double().cpu().numpy()

    parts = ranks.gather(evaluation.held_out(task, Subset(dataset, range(len(dataset))), config, ranks, measure))
    _, names, groups, target, score = zip(*sorted(parts, key=lambda part: part[0]))
    return Predictions(list(chain(*names)), list(chain(*groups)), np.concatenate(target), np.concatenate(score))


def write_predictions(path: Path, predictions: Predictions, columns: Sequence[str], exclusive: bool = False) -> None:
    """Write a table with tabs. Columns: id, group, target (if known), prediction.

    With several outputs there is a target and a prediction column for each. If they are `exclusive` classes, the target
    is a class name, and a last column holds the predicted class. Raises SiamDiffError if a prediction is not finite:
    such a table is never written.
    """
    if not np.isfinite(predictions.score).all():
        raise SiamDiffError(f"{path} is not written, since some predictions are not finite")
    target, score = (x.reshape(len(predictions.names), -1) for x in (predictions.target, predictions.score))
    target = target[:, : 0 if np.isnan(target).all() else None]
    titles = ["id", "group"]
    for title, values in (("target", target), ("prediction", score)):
        titles += [f"{title}:{name}" for name in columns] if values.shape[1] > 1 else [title] * values.shape[1]
    lines = [[*titles, *["class"] * exclusive]]
    for sample, group, true, numbers in zip(predictions.names, predictions.groups, target, score, strict=True):
        cells = [columns[int(x)] if exclusive else f"{x:.6g}" for x in true] + [f"{x:.6g}" for x in numbers]
        lines.append([sample, group, *cells, *([columns[numbers.argmax()]] if exclusive else [])])
    write_rows(path, lines)


def write_results(path: Path, config: Namespace, task: Task, tested: Mapping[int, Predictions], epochs: Mapping) -> str:
    """Write results.json, and return it as a table.

    `tested` are the predictions of every seed's model for the test split, and `epochs` after how many it was the best.
    """
    numbers, draws = measured(task, tested)
    content = {
        "about": origin(config),
        "notes": task.known.get("notes", []),
        "splits": task.known.get("splits", {}),
        "best_epoch": epochs,
        **numbers,
        "answer": task.known.get("answer"),
        "direction": {name: task.direction(name) for name in numbers["mean"]},
        "options": {**task.options},
        "config": vars(config),
    }
    write_file(path, json.dumps(plain(content), indent=1, allow_nan=False).encode())
    with replacing(path.with_name(DRAWS)) as file:
        np.savez(file, split=split_of(next(iter(tested.values()))), **draws)
    rows = [[cell(x) for x in row] for row in table(content)]
    widths = [2 + max(map(len, column)) for column in zip(*rows)]
    lines = [f"{name:18}" + "".join(f"{x:>{width}}" for x, width in zip(cells, widths[1:])) for name, *cells in rows]
    why = [f"no interval {content['no_interval']}"] if content["no_interval"] else []
    title, words = counted(content)
    return "\n".join([f"{title:12}{words}", *lines, *why, f"results     {path}"])


def measured(task: Task, tested: Mapping[int, Predictions]) -> tuple[dict, dict[str, np.ndarray]]:
    """Every metric on the test split: of each seed, mean and std over seeds, the constant answer, the intervals.

    And the draws (draws,) of each metric, its mean over seeds.
    """
    target, groups = next((x.target, x.groups) for x in tested.values())
    answer = task.known.get("answer")

    def measure(rows, groups) -> tuple[list[dict], dict]:
        """Every metric of these rows: of each seed, and of the constant answer."""
        constant = task.constant_metrics(answer, target[rows], groups) if answer else {}
        return [task.metrics(x.score[rows], target[rows], groups) for x in tested.values()], constant

    of_seeds, constant = measure(slice(None), groups)
    names, counts = list(of_seeds[0]), {"samples": len(target), "structures": len(set(groups))}
    if isinstance(task, Binary):
        counts["positives"] = int(np.nansum(target))
    if "accuracy" in names and not task.properties:
        counts["correct"] = {str(k): round(x["accuracy"] * len(target)) for k, x in zip(tested, of_seeds)}
    few = f"of {counts['structures']} structures, too few to draw again: it takes {FEWEST}"
    enough, positive = counts["structures"] >= FEWEST, counts.get("positives", RAREST)
    if enough and (rarer := min(positive, target.size - positive)) < RAREST:
        enough, few = False, f"of {rarer} samples of the rarer class, too few to draw again: it takes {RAREST}"
    drawn = [measure(*draw) for draw in draws(groups, target.size)] if enough else []
    mean = {x: np.array([np.mean([of[x] for of in seeds]) for seeds, _ in drawn]) for x in names if drawn}
    gain = {x: mean[x] - [of[x] for _, of in drawn] for x in constant if drawn}
    values = {name: [metrics[name] for metrics in of_seeds] for name in names}
    numbers = {
        "samples": len(target),
        "counts": counts,
        "test": dict(zip(map(str, tested), of_seeds)),
        "mean": {name: float(np.mean(x)) for name, x in values.items()},
        "std": {name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in values.items()},
        "interval": {name: interval(mean.get(name)) for name in names},
        "no_interval": "" if drawn else few,
        "constant": {name: constant.get(name) for name in names},
        "gain_interval": {name: interval(gain.get(name)) for name in names},
    }
    return numbers, mean


def draws(groups: Sequence[str], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Splits that are drawn again, in whole structures: the rows, and for each row which of the structures it is of.

    There are 1,000; of a large split of `size` targets 300 or 100, for the sake of time.
    """
    number = min(MOST_DRAWS, 1000 if size < 10**4 else 300 if size < 10**5 else 100)
    items = islice(redrawn(groups), number)
    for rows in progress(items, total=number, unit="draw", desc="intervals"):
        yield np.concatenate(rows), np.repeat(np.arange(len(rows)), [*map(len, rows)])


def split_of(predictions: Predictions) -> str:
    """A hash of a test split: its samples, their structures, their targets."""
    digest = hashlib.sha256("\0".join([*predictions.names, *predictions.groups]).encode("utf-8", "surrogateescape"))
    return hashlib.sha256(digest.digest() + predictions.target.tobytes()).hexdigest()


def less_is_better(measure: str, direction: Mapping) -> bool | None:
    """Whether less of a measure is better; None if nobody said so of a measure of a plugin.

    `direction` is what results.json says; losses of pre-training are not in it.
    """
    if measure in direction:
        return {"min": True, "max": False, None: None}[direction[measure]]
    return measure.partition(":")[0] in LESS_IS_BETTER or measure.endswith(("loss", "error"))


def side(measure: str, gain: Sequence[float], direction: Mapping) -> str:
    """A difference in words, from its interval."""
    less = less_is_better(measure, direction)
    if less is None:
        return "not told apart from" if gain[0] <= 0 <= gain[1] else "other than"
    low, high = (-gain[1], -gain[0]) if less else gain
    return "better than" if low > 0 else "worse than" if high < 0 else "not told apart from"


def interval(values: np.ndarray | None) -> list[float] | None:
    """The middle 95 % of the finite values of draws; None if there are none."""
    values = [] if values is None else values[np.isfinite(values)]
    return np.quantile(values, [0.025, 0.975]).tolist() if len(values) else None


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


def cell(value) -> str:
    """A cell of a table as text; an interval is a list."""
    if isinstance(value, list):
        return " to ".join(map(cell, value))
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return f"{value:.4f}" if abs(value) >= 0.001 or not value else f"{value:.3g}"


def counted(results: Mapping) -> tuple[str, str]:
    """What was tested on, and the sizes of the splits in words. Older versions wrote fewer of them."""
    counts = results.get("counts", {})
    samples = counts.get("samples", results.get("samples", "?"))
    words = f"{samples} samples"
    if counts.get("structures", samples) != samples:
        words += f" of {counts['structures']} structures"
    if "positives" in counts:
        words += f", {counts['positives']} positive"

    folds = results.get("config", {}).get("folds")
    if folds:
        words += ", each scored by a head that has not seen its sequence, but perhaps a relative's"
    others = []
    for name in ("train", "valid"):
        if name in results.get("splits", {}):
            others.append(f"{name} {results['splits'][name]['samples']}")
    if others:
        words += f" ({', '.join(others)})"
    return f"{folds} folds" if folds else "test split", words


def table(results: Mapping) -> list[list]:
    """The content of a results.json as rows: titles, a row for each metric, then counts and the best epochs."""
    test = results["test"]
    names = {"mean": "mean", "std": "std", "interval": "95 % interval", "constant": "constant"}
    others = {title: results[name] for name, title in names.items() if results.get(name)}
    known = results.get("direction", {})
    gains = {name: side(name, gain, known) for name, gain in results.get("gain_interval", {}).items() if gain}
    others |= {"": defaultdict(str, {name: f"{words} it" for name, words in gains.items()})} if gains else {}
    rows = [["metric", *(f"seed {seed}" for seed in test), *others]]
    for name in results["mean"]:
        rows.append([name, *(column[name] for column in (*test.values(), *others.values()))])
    counts = {"correct": results.get("counts", {}).get("correct", {}), "best epoch": results.get("best_epoch", {})}
    for name, of_seed in counts.items():
        if of_seed:
            rows.append([name, *(f"{of_seed.get(seed, math.nan):.4g}" for seed in test), *[""] * len(others)])
    return rows
