"""Predictions of a fine-tuned model for held-out samples, and the files and tables they are written to."""

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from torch import nn

from ..files import SiamDiffError, escape, unescape, write_file
from . import engine
from .order import Data
from .ranks import Ranks


@dataclass(frozen=True)
class Predictions:
    """Every held-out sample once, in the order of the data."""

    names: list[str]
    groups: list[str]
    target: np.ndarray  # (K,) or (K, C)
    score: np.ndarray  # (K,) or (K, C) float64


def predict(task: nn.Module, data: Data, config: Namespace, ranks: Ranks) -> Predictions:
    """Scores of all samples of `data`; the same on all ranks."""

    def measure(b: int, sample, names: list[str]) -> tuple:
        score = task.score(task.predict(sample))
        return b, names, sample.groups, sample.target.cpu().numpy(), score.double().cpu().numpy()

    parts = ranks.gather(engine.held_out(task, data, config, ranks, measure))
    _, names, groups, target, score = zip(*sorted(parts, key=lambda part: part[0]))
    return Predictions(list(chain(*names)), list(chain(*groups)), np.concatenate(target), np.concatenate(score))


def write_predictions(path: Path, predictions: Predictions, columns: Sequence[str], classes: bool = False) -> None:
    """Write a table with tabs, every cell escaped: id, group, target (unless unknown), prediction.

    The last two come for each of `columns`, if there are several. Of `classes` the columns are the names: then the
    target is one of them, and so is a last cell, the class of the largest probability. Raises SiamDiffError for
    predictions that are not finite, which are never written.
    """
    if not np.isfinite(predictions.score).all():
        raise SiamDiffError(f"{path} is not written, since some predictions are not finite")
    target, score = (x.reshape(len(predictions.names), -1) for x in (predictions.target, predictions.score))
    target = target[:, : 0 if np.isnan(target).all() else None]
    names, titles = [escape(column) for column in columns], ["id", "group"]
    for kind, values in (("target", target), ("prediction", score)):
        titles += [f"{kind}:{name}" for name in names] if values.shape[1] > 1 else [kind] * values.shape[1]
    lines = [[*titles, *["class"] * classes]]
    for sample, group, true, numbers in zip(predictions.names, predictions.groups, target, score, strict=True):
        cells = [names[int(x)] if classes else f"{x:.6g}" for x in true] + [f"{x:.6g}" for x in numbers]
        chosen = [names[numbers.argmax()]] if classes else []
        lines.append([escape(sample), escape(group), *cells, *chosen])
    write_file(path, "".join("\t".join(line) + "\n" for line in lines).encode())


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """The columns `group` (K,), `target` and `prediction`, (K,) or (K, C) each, and the names of C `labels`."""
    header, *rows = (line.split("\t") for line in path.read_text("utf-8", "surrogateescape").splitlines())
    kinds = [title.partition(":") for title in header]
    labels = [unescape(label) for kind, _, label in kinds if kind == "prediction"]
    if header[-1] == "class":
        place = header.index("target")
        rows = [[*row[:place], labels.index(unescape(row[place])), *row[place + 1 :]] for row in rows]
    columns = {"group": np.array([unescape(row[1]) for row in rows]), "labels": np.array(labels)}
    for name in ("target", "prediction"):
        chosen = [i for i, (kind, _, _) in enumerate(kinds) if kind == name]
        values = np.array([[row[i] for i in chosen] for row in rows], dtype=np.float64)
        columns[name] = values[:, 0] if len(chosen) == 1 else values
    return columns


def report(path: Path, config: Namespace, tested: dict[int, dict[str, float]], samples: int) -> str:
    """Write results.json, and return it as a table: every metric on the test split for every seed, mean and std."""
    values = {name: [found[name] for found in tested.values()] for name in next(iter(tested.values()))}
    content = {
        "samples": samples,
        "test": {str(seed): metrics for seed, metrics in tested.items()},
        "mean": {name: float(np.mean(x)) for name, x in values.items()},
        "std": {name: float(np.std(x, ddof=1)) if len(x) > 1 else None for name, x in values.items()},
        "config": vars(config),
    }
    write_file(path, json.dumps(content, indent=1).encode())
    rows = [["-" if x is None else x if isinstance(x, str) else f"{x:.4f}" for x in row] for row in table(content)]
    width = max(9, 2 + max(len(cell) for row in rows for cell in row[1:]))
    lines = [f"{name:18}" + "".join(f"{cell:>{width}}" for cell in cells) for name, *cells in rows]
    return "\n".join([*lines, f"results     {path}"])


def table(results: dict) -> list[list]:
    """The content of a results.json as rows: titles, then a row for each metric."""
    columns = {f"seed {seed}": metrics for seed, metrics in results["test"].items()}
    columns |= {"mean": results["mean"], "std": results["std"]}
    rows = [[name, *(column[name] for column in columns.values())] for name in results["mean"]]
    return [[f"test, N = {results.get('samples', '?')}", *columns], *rows]
