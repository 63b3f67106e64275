"""Read and check the folder of a run of train.py or finetune.py, for the report."""

import contextlib
import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from .encoders import weights
from .files import CheckpointError, SiamDiffError, structure_errors
from .training import checkpoint, results
from .training.log import NO_MEASURE, in_order

DAMAGED = "damaged, or not one of a run"
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # measure -> train, valid, constant -> points (epoch, value)


@dataclass(frozen=True, eq=False)
class Run:
    """The content of a run's folder."""

    path: Path
    name: str
    config: dict  # its options, if they are known
    results: dict  # the content of results.json; empty before the end, and of pre-training
    curves: dict[str, tuple[Curves, float | None]]  # of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed
    origin: str  # sizes, date, versions, machine

    @property
    def task(self) -> str:
        return str(self.config.get("task", ""))


def read_metrics(path: Path, per_epoch: int | None = None) -> tuple[Curves, float | None]:
    """The curves of a metrics.jsonl, losses and accuracies first, and the epoch in which stage 2 begins.

    The constant prediction is the validation's, else the training's. A line that is just being written is left out.
    `per_epoch` is the number of steps; without it the last line of the first epoch is taken for its end.
    """
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    if not lines:
        raise ValueError("no lines yet")
    first = lines[0]["epoch"]  # the last line of an epoch is of its last step
    per_epoch = per_epoch or max(1, max(line["step"] for line in lines if line["epoch"] == first) // (first + 1))
    points = defaultdict(list)  # (measure, split) -> points
    for line in lines:
        for name in line.keys() - (NO_MEASURE - {"samples"}):
            value = float("nan") if line[name] is None else float(line[name])
            points[name, line["split"]].append((line["step"] / per_epoch, value))
    stage_2_begins = next((line["step"] / per_epoch for line in lines if line.get("stage") == 2), None)
    curves, names = {}, sorted({name for name, _ in points if not name.endswith("_per_second")})
    for name in [*(name for name, _ in in_order(dict.fromkeys(names))), "samples"]:
        curves[name] = {split: points[name, split] for split in ("train", "valid")}
        curves[name]["constant prediction"] = points[f"{name}_constant", "valid"] or points[f"{name}_constant", "train"]
    return curves, stage_2_begins


def read_results(path: Path) -> dict:
    """The content of a results.json, its numbers checked; what an older version did not write is empty."""
    with structure_errors(path, DAMAGED):
        raw = json.loads(path.read_bytes())
        content = {name: dict(raw.get(name, {})) for name in ("about", "splits", "config", "options", "counts")}
        content["samples"], content["answer"] = raw.get("samples", "?"), dict(raw.get("answer") or {})
        content["test"] = {seed: _numbers(values) for seed, values in dict(raw["test"]).items()}
        for name in ("mean", "std", "constant", "best_epoch"):
            content[name] = _numbers(raw.get(name, {}))
        for name in ("interval", "gain_interval"):
            pairs = dict(raw.get(name, {})).items()
            content[name] = {metric: pair and [float(pair[0]), float(pair[1])] for metric, pair in pairs}
        results.table(content), results.counted(content)
    return content


def _numbers(values: dict) -> dict[str, float | None]:
    return {name: None if value is None else float(value) for name, value in dict(values).items()}


def read_run(path: Path, name: str) -> Run:
    """Read the folder of a run. Raises SiamDiffError if it holds no run or a damaged file, which is named."""
    folders = {
        folder.name.removeprefix("seed-") if folder != path else "": folder
        for folder in (path, *sorted(path.glob("seed-*")))
        if (folder / "metrics.jsonl").is_file()
    }
    scored = (path / "results.json").is_file()
    if not folders and not scored:
        raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
    content, config, trained_on = {}, {}, None
    if scored:
        content = read_results(path / "results.json")
        items = "structures" if content["options"].get("residues") else "samples"  # of a batch
        config, trained_on = content["config"], content["splits"].get("train", {}).get(items)
        origin = [*map(str, content["about"].values())]
    else:
        with contextlib.suppress(CheckpointError):  # the options alone are missing then
            saved = next((checkpoint.latest(folder, lambda _: None) for folder in folders.values()), None)
            with weights.malformed(path):
                config = dict(saved[1]["config"]) if saved else {}
                trained_on = saved and int(saved[1]["data"][0])
        changed = datetime.fromtimestamp((next(iter(folders.values())) / "metrics.jsonl").stat().st_mtime, timezone.utc)
        origin = [f"{trained_on} to train on"] if trained_on else []
        origin.append(f"{changed:%Y-%m-%d %H:%M} UTC")
    curves, predictions, batch = {}, {}, config.get("global_batch_size")
    for seed, folder in folders.items():
        with structure_errors(folder / "metrics.jsonl", DAMAGED):
            per_epoch = max(1, int(trained_on) // int(batch)) if trained_on and batch else None
            curves[seed] = read_metrics(folder / "metrics.jsonl", per_epoch)
    for file in sorted(path.glob("seed-*/predictions.tsv")) or sorted(path.glob("predictions.tsv")):
        with structure_errors(file, DAMAGED):
            predictions[file.parent.name.removeprefix("seed-")] = results.read_predictions(file)
    return Run(path, name, config, content, curves, predictions, " · ".join(origin))
