"""The folder of a run of train.py or finetune.py, as it was written: for the page that draws it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..files import SiamDiffError, read_rows, structure_errors
from ..training.metrics_file import in_order
from ..training.results import DRAWS


class Run(NamedTuple):
    """The content of a run's folder."""

    name: str
    config: dict  # its options, if they are known
    results: dict  # results.json, "draws" and "unfinished"; without one, the last numbers of what was held out
    lines: dict[str, list[dict]]  # of the metrics.jsonl of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed


def read_run(path: Path, name: str) -> Run:
    """Read the folder of a run. Raises SiamDiffError if it holds none, or a damaged file."""
    lines, predictions, config, content = {}, {}, {}, defaultdict(dict)  # older versions wrote less
    with structure_errors(path, "damaged, or not of a run"):
        for folder in (path, *sorted(path.glob("seed-*"))):
            seed = folder.name.removeprefix("seed-") if folder != path else ""
            if (file := folder / "metrics.jsonl").exists():  # the last line may be only half there
                lines[seed] = with_epochs([json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]])
                if (file := folder / "options.json").exists():
                    config = json.loads(file.read_bytes())["options"]
            if (file := folder / "predictions.tsv").exists():
                predictions[seed] = read_predictions(file)
        if (file := path / "results.json").exists():
            content |= json.loads(file.read_bytes())
        elif not lines:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
        if (file := path / DRAWS).exists():
            content["draws"] = dict(np.load(file, allow_pickle=False))
        config = content["config"] or config
        if config and not content["test"]:
            done, seed = max((x["epochs"], seed) for seed, of_seed in lines.items() for x in of_seed)
            if seed or done < sum(config["epochs"]):  # after the last seed there is a results.json
                of_seed = f" of seed {seed}" if seed else ""
                content["unfinished"] = f"not finished: {done:.3g} of {sum(config['epochs'])} epochs{of_seed}"
        for line in [x for of_seed in lines.values() for x in of_seed if x["split"] == "valid"][-1:]:
            for measure, value in [] if content["test"] else in_order(line):
                content["mean"][measure], content["constant"][measure] = value or None, line.get(f"{measure}_constant")
    return Run(name, config, content, lines, predictions)


def with_epochs(lines: list[dict]) -> list[dict]:
    """The lines, their `epochs` the number that is done. The last line of the first epoch tells how long each is."""
    per_epoch = max((line["step"] for line in lines if line["epoch"] == lines[0]["epoch"]), default=1)
    return [{**line, "epochs": line["step"] / per_epoch} for line in lines]


def properties(run: Run) -> Iterator[tuple[str, dict, float | None]]:
    """Each property that a run predicts: its name, "" of a single one; the predictions of every seed; the mean."""
    names, mean = run.results["options"].get("properties"), (run.results["answer"] or {}).get("mean")
    if not names:
        yield "", run.predictions, mean
    for i, name in enumerate(names or []):
        of_seed = {}
        for seed, table in run.predictions.items():
            there = ~np.isnan(table["target"][:, i])  # where it was measured
            own = {column: table[column][there, i] for column in ("target", "prediction")}
            of_seed[seed] = table | own | {"id": table["id"][there], "group": table["group"][there]}
        yield name, of_seed, mean and mean[i]


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """The columns `id` and `group` (K,), `target` and `prediction`, (K,) or (K, C) each; the names of C `classes`."""
    header, *rows = read_rows(path).values()
    titles = [title.partition(":") for title in header]
    classes = [name for title, _, name in titles if title == "prediction"]
    if header[-1] == "class":
        i = header.index("target")
        rows = [[*row[:i], classes.index(row[i]), *row[i + 1 :]] for row in rows]
    columns = {title: np.array([row[i] for row in rows]) for i, title in enumerate(("id", "group"))}
    columns["classes"] = np.array(classes)
    for name in ("target", "prediction"):
        chosen = [i for i, (title, _, _) in enumerate(titles) if title == name]
        values = np.array([[row[i] for i in chosen] for row in rows], dtype=np.float64)
        columns[name] = values[:, 0] if len(chosen) == 1 else values
    return columns
