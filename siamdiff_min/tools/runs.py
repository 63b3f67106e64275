"""The folder of a run of train.py or finetune.py, as it was written: for the page that draws it."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import SiamDiffError, read_rows, structure_errors
from ..training.metrics_file import in_order
from ..training.results import DRAWS


class RunFolder(NamedTuple):
    """The content of a run's folder."""

    name: str
    config: dict  # its options, if they are known
    results: dict  # results.json, "draws" and "unfinished"; without one, the last numbers of what was held out
    lines: dict[str, list[dict]]  # of the metrics.jsonl of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed


def read_run(path: Path, name: str) -> RunFolder:
    """Read the folder of a run. Raises SiamDiffError if it holds none, or a damaged file."""
    lines = {}
    predictions = {}
    config = {}
    results = defaultdict(dict)  # older versions wrote less
    with structure_errors(path, "damaged, or not of a run"):
        # What each seed has logged and predicted. Pre-training writes into the folder itself.
        for folder in (path, *sorted(path.glob("seed-*"))):
            seed = "" if folder == path else folder.name.removeprefix("seed-")
            if (folder / "metrics.jsonl").exists():
                lines[seed] = read_lines(folder / "metrics.jsonl")
                config = read_json(folder / "options.json").get("options", config)
            if (folder / "predictions.tsv").exists():
                predictions[seed] = read_predictions(folder / "predictions.tsv")

        # The result of all seeds.
        results |= read_json(path / "results.json")
        if not lines and not results:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
        if (path / DRAWS).exists():
            results["draws"] = dict(np.load(path / DRAWS, allow_pickle=False))
        config = results["config"] or config

        # Without a test split: how far it is, and what the last validation has measured.
        if not results["test"]:
            if config:
                results["unfinished"] = what_is_left(config["epochs"], lines)
            valid = [line for line in chain.from_iterable(lines.values()) if line["split"] == "valid"]
            for measure, value in in_order(valid[-1]) if valid else ():
                results["mean"][measure] = value or None  # 0 is not worth a card
                results["constant"][measure] = valid[-1].get(f"{measure}_constant")
    return RunFolder(name, config, results, lines, predictions)


def read_json(path: Path) -> dict:
    """The content of a file of JSON; nothing if it is not there."""
    return json.loads(path.read_bytes()) if path.exists() else {}


def read_lines(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl; `epochs` is the number that is done. The last line may be only half there."""
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    # The last line of the first epoch tells how long each is.
    steps = [line["step"] for line in lines if line["epoch"] == lines[0]["epoch"]]
    per_epoch = max(steps, default=1)
    return [{**line, "epochs": line["step"] / per_epoch} for line in lines]


def what_is_left(epochs: Sequence[float], lines: Mapping[str, list[dict]]) -> str:
    """How far a run is that has not ended, in words; "" if it has. After the last seed there is a results.json."""
    ends = []
    for seed, of_seed in lines.items():
        done = of_seed[-1]["epochs"] if of_seed else 0
        ends.append((done, seed))
    done, seed = max(ends)
    if not seed and done >= sum(epochs):
        return ""
    words = f"not finished: {done:.3g} of {sum(epochs)} epochs"
    return f"{words} of seed {seed}" if seed else words


def properties(run: RunFolder) -> Iterator[tuple[str, dict, float | None]]:
    """Each property that a run predicts: its name, "" of a single one; the predictions of every seed; the mean."""
    baseline = run.results["answer"] or {}
    mean = baseline.get("mean")
    names = run.results["options"].get("properties")
    if not names:
        yield "", run.predictions, mean
        return
    for i, name in enumerate(names):
        of_seed = {}
        for seed, table in run.predictions.items():
            there = ~np.isnan(table["target"][:, i])  # where it was measured
            own = {column: table[column][there] for column in ("id", "group")}
            own |= {column: table[column][there, i] for column in ("target", "prediction")}
            of_seed[seed] = table | own
        yield name, of_seed, mean and mean[i]


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """The columns `id` and `group` (K,), `target` and `prediction`, (K,) or (K, C) each; the names of C `classes`."""
    header, *rows = read_rows(path).values()
    titles = [title.partition(":")[0] for title in header]
    classes = [title.partition(":")[2] for title in header if title.startswith("prediction")]
    by_title = dict(zip(header, np.array(rows).T))
    if header[-1] == "class":  # the true one by its name
        by_title["target"] = [classes.index(name) for name in by_title["target"]]

    # Several columns of a kind are one array.
    columns = {"id": by_title["id"], "group": by_title["group"], "classes": np.array(classes)}
    for kind in ("target", "prediction"):
        values = [by_title[title] for title, name in zip(header, titles) if name == kind]
        values = np.array(values, dtype=np.float64)
        columns[kind] = values[0] if len(values) == 1 else values.T
    return columns
