"""The folder of a run of train.py or finetune.py, as it was written: for the page that draws it.

Pre-training runs that differ in their seed alone, in folders NAME-SEED or NAME/seed-SEED, become one with several
seeds, as a fine-tuning run has them.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...files import SiamDiffError, read_rows, structure_errors
from ...training.config import PRETRAIN
from ...training.metrics_file import in_order
from ..evidence.bootstrap import DRAWS


class RunFolder(NamedTuple):
    """The content of a run's folder.

    `results` is results.json with its "draws". Pre-training has none: then "mean" and "constant" are the last numbers
    of what was held out, "held_out" those of every seed, and "proteins" the means of every seed and protein (S, P) with
    their "count" and "split". If a run has not ended, "unfinished" says so.
    """

    name: str
    config: dict  # its options, if they are known
    made: dict  # what else options.json says: command, versions, data, ...
    results: dict
    lines: dict[str, list[dict]]  # of the metrics.jsonl of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed

    @property
    def measured(self) -> Mapping[str, Mapping[str, float]]:
        """The measures of every seed: on the test split, or on what was held out."""
        return self.results["test"] or self.results["held_out"]


def read_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Read the folders of runs; seeds of one pre-training become one run. Raises SiamDiffError."""
    free = {name for name, option in PRETRAIN.items() if option.free}  # options that change no result
    groups = defaultdict(list)
    for path in paths:
        run = read_run(path, "")
        folder = folder_of_method(path.resolve(), run)
        decisive = {name: value for name, value in run.config.items() if name not in free | {"seed"}}
        groups[folder, repr(decisive)].append((path.resolve(), run))

    # A run alone is called by its own folder, several seeds by what their folders have in common.
    folders = [group[0][0] if len(group) == 1 else folder for (folder, _), group in groups.items()]
    runs = []
    for group, name in zip(groups.values(), names_of(folders)):
        of_seeds = [run for _, run in group]
        runs.append((of_seeds[0] if len(of_seeds) == 1 else joined(of_seeds))._replace(name=name))
    return runs


def folder_of_method(path: Path, run: RunFolder) -> Path:
    """The folder of a pre-training run without its seed: NAME of NAME-SEED and of NAME/seed-SEED."""
    seed = run.config.get("seed")
    if "method" in run.config and path.name == f"seed-{seed}":
        return path.parent
    if "method" in run.config and path.name.endswith(f"-{seed}"):
        return path.with_name(path.name.removesuffix(f"-{seed}"))
    return path


def names_of(paths: Sequence[Path]) -> list[str]:
    """The folders' names; those that several have with the folder above."""
    paths = [path.resolve() for path in paths]
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else "/".join(path.parts[-2:]) for name, path in zip(names, paths)]


def read_run(path: Path, name: str) -> RunFolder:
    """Read the folder of a run. Raises SiamDiffError if it holds none, or a damaged file."""
    lines = {}
    predictions = {}
    made = {}
    results = defaultdict(dict)  # older versions wrote less
    with structure_errors(path, "damaged, or not of a run"):
        # What each seed has logged and predicted. Pre-training writes into the folder itself.
        for folder in (path, *sorted(path.glob("seed-*"))):
            seed = "" if folder == path else folder.name.removeprefix("seed-")
            if (folder / "metrics.jsonl").exists():
                lines[seed] = read_lines(folder / "metrics.jsonl")
                made = read_json(folder / "options.json") or made
            if (folder / "predictions.tsv").exists():
                predictions[seed] = read_predictions(folder / "predictions.tsv")

        # The result of all seeds.
        results |= read_json(path / "results.json")
        if results.get("test") and not results.get("counts"):
            results["counts"] = dict.fromkeys(("samples", "structures"), results.get("samples", "?"))
        made = made or results.get("made", {})
        if not lines and not results:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
        if (path / DRAWS).exists():
            results["draws"] = dict(np.load(path / DRAWS, allow_pickle=False))
        config = results["config"] or made.get("options", {})

        # Without a test split: how far it is, and what the last validation has measured.
        if not results["test"]:
            if config:
                results["unfinished"] = what_is_left(config["epochs"], lines)
            results |= read_held_out(path, lines)
    made = {key: value for key, value in made.items() if key != "options"}
    return RunFolder(name, config, made, results, lines, predictions)


def read_held_out(path: Path, lines: Mapping[str, list[dict]]) -> dict:
    """What the last validation of a run has measured, of every protein too if there is a valid.tsv."""
    valid = [line for line in chain.from_iterable(lines.values()) if line["split"] == "valid"]
    if not valid:
        return {}
    values = dict(in_order(valid[-1]))
    baseline = {measure: valid[-1].get(f"{measure}_constant") for measure in values}
    proteins = read_proteins(path / "valid.tsv") if (path / "valid.tsv").exists() else {}
    for name, of_proteins in proteins.items():
        if name in values:
            values[name] = float(np.nanmean(of_proteins))
        elif name.endswith("_constant"):
            baseline[name.removesuffix("_constant")] = float(np.nanmean(of_proteins))
    mean = {measure: value or None for measure, value in values.items()}  # 0 is not worth a card
    return {"mean": mean, "constant": baseline, "proteins": proteins, "held_out": {"": values}}


def read_proteins(path: Path) -> dict:
    """The mean over the draws of every held-out protein (1, P), by measure; their "count"; a hash of them, the "split".

    The mean is nan if a measure has no value, as the sequence loss of a protein without a masked residue.
    """
    titles, *rows = read_rows(path).values()
    columns = dict(zip(titles, np.array(rows).T))
    names, owner = np.unique(columns.pop("protein"), return_inverse=True)
    draws = sorted(map("\0".join, zip(names[owner], columns.pop("draw"))))
    split = hashlib.sha256("\0".join(draws).encode("utf-8", "surrogateescape")).hexdigest()
    values = {"split": split, "count": len(names)}
    for measure, cells in columns.items():
        numbers = np.array([cell or "nan" for cell in cells], dtype=float)
        known = np.isfinite(numbers)
        count = np.bincount(owner[known], minlength=len(names))
        total = np.bincount(owner[known], numbers[known], minlength=len(names))
        values[measure] = np.where(count > 0, total / np.maximum(count, 1), np.nan)[None]
    return values


def joined(runs: Sequence[RunFolder]) -> RunFolder:
    """Pre-training runs that differ in their seed alone, as one run."""
    lines = {}
    held_out = {}
    for run in runs:
        seed = str(run.config["seed"])
        lines[seed] = run.lines[""]
        held_out[seed] = run.results["held_out"].get("", {})

    results = defaultdict(dict)
    results["held_out"] = held_out
    results["mean"] = mean_of([*held_out.values()])
    results["constant"] = mean_of([run.results["constant"] for run in runs])
    results["proteins"] = joined_proteins([run.results["proteins"] for run in runs])
    results["unfinished"] = next(filter(None, [run.results["unfinished"] for run in runs]), "")
    config = {**runs[0].config, "seed": " ".join(lines)}
    return runs[0]._replace(config=config, results=results, lines=lines)


def joined_proteins(of_seeds: Sequence[Mapping]) -> dict:
    """The values of every seed and protein; nothing if the seeds have not all seen the same proteins."""
    first = of_seeds[0]
    if not first or any(of_seed.get("split") != first["split"] for of_seed in of_seeds):
        return {}
    found = {}
    for name, value in first.items():
        same = name in ("split", "count")
        found[name] = value if same else np.concatenate([of_seed[name] for of_seed in of_seeds])
    return found


def mean_of(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The means of the numbers that all tables have."""
    found = {}
    for name in tables[0]:
        values = [table.get(name) for table in tables]
        if None not in values:
            found[name] = sum(values) / len(values)
    return found


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
