"""The folder of a run of train.py or finetune.py, as versions 0.4 and 0.5 write it: for the page that draws it.

Pre-training runs that differ in their seed alone, in folders NAME-SEED or NAME/seed-SEED, are one run with several
seeds, as a fine-tuning run is.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...files import SiamDiffError, read_rows, structure_errors
from ...training.config import PRETRAIN
from ..evidence.bootstrap import DRAWS
from ..evidence.intervals import mean_interval, t_interval
from ..evidence.verdict import side
from ..evidence.wording import THAN, against_baseline

BASELINE = "_constant"  # ends the name of the baseline of a measure
TABLES = (
    *("config", "made", "about", "splits", "counts", "options", "direction", "best_epoch", "test", "mean", "std"),
    *("interval", "constant", "gain_interval", "floor"),
)
# Of results.json: there is nothing of it before the test.
EARLIER = {**{key: {} for key in TABLES}, "notes": [], "no_interval": "", "answer": None}


@dataclass(frozen=True)
class RunFolder:
    """The content of a run's folder. The measures are those of the test split; of pre-training, of what was held out.

    A measure that has no value (nan in the files) is left out.
    """

    name: str
    config: dict  # its options, if they are known
    lines: dict[str, list[dict]] = field(default_factory=dict)  # metrics.jsonl of every seed
    predictions: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of every seed
    made: dict = field(default_factory=dict)  # what else options.json says: command, versions, data, ...
    results: dict = field(default_factory=EARLIER.copy)  # results.json
    of_seeds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the measures of every seed
    mean: dict[str, float] = field(default_factory=dict)  # over seeds
    baseline: dict[str, float] = field(default_factory=dict)
    interval: dict[str, list[float] | None] = field(default_factory=dict)  # of the mean, not over seeds
    side: dict[str, str] = field(default_factory=dict)  # of the baseline on which a measure is; "" if nothing is said
    rows: object = None  # what it was scored on: runs of equal ones are compared
    draws: dict[str, np.ndarray] = field(default_factory=dict)  # (draws,) of the test split
    held_out: dict[str, np.ndarray] = field(default_factory=dict)  # (S, P) of valid.tsv, with baselines
    unfinished: str = ""  # how far it is, if it has not ended

    @property
    def tested(self) -> bool:
        """Whether the measures are of a test split."""
        return bool(self.results["test"])

    def seeds_of(self, measure: str) -> np.ndarray:
        """A measure of every seed that has it (S,)."""
        values = [metrics.get(measure) for metrics in self.of_seeds.values()]
        return np.array([value for value in values if value is not None], dtype=float)


class HeldOut(NamedTuple):
    """A valid.tsv."""

    rows: list  # protein and draw
    values: dict[str, np.ndarray]  # (P,) means over the draws of a protein; nan of what was not measured


# ---- which folders are one run ---------------------------------------------------------------------------------------


def read_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Read the folders of runs; seeds of one pre-training become one run. Raises SiamDiffError."""
    free = {name for name, option in PRETRAIN.items() if option.free}  # options that change no result
    groups = defaultdict(list)
    for whole, path in {path.resolve(): path for path in paths}.items():  # one that is named twice is one run
        options = read_json(path / "options.json").get("options", {})
        decisive = {name: value for name, value in options.items() if name not in free | {"seed"}}
        groups[folder_of_method(whole, options), repr(decisive)].append(path)

    # A run alone is called by its own folder, several seeds by what their folders have in common.
    folders = [seeds[0].resolve() if len(seeds) == 1 else folder for (folder, _), seeds in groups.items()]
    names = [folder.name for folder in folders]
    runs = []
    for folder, seeds in zip(folders, groups.values()):
        name = folder.name if names.count(folder.name) == 1 else "/".join(folder.parts[-2:])
        runs.append(read_run(name, seeds))
    return runs


def folder_of_method(path: Path, options: Mapping) -> Path:
    """The folder of a pre-training run without its seed: NAME of NAME-SEED and of NAME/seed-SEED."""
    seed = options.get("seed")
    if "method" in options and path.name == f"seed-{seed}":
        return path.parent
    if "method" in options and path.name.endswith(f"-{seed}"):
        return path.with_name(path.name.removesuffix(f"-{seed}"))
    return path


# ---- a run -----------------------------------------------------------------------------------------------------------


def read_run(name: str, paths: Sequence[Path]) -> RunFolder:
    """Read a run: the folder of fine-tuning, or those of all seeds of one pre-training.

    Raises SiamDiffError if there is no run in it, or a damaged file.
    """
    with structure_errors(paths[0], "damaged, or not of a run"):
        # Fine-tuning has a folder of every seed inside.
        folders = {}
        for path in paths if (paths[0] / "metrics.jsonl").exists() else sorted(paths[0].glob("seed-*")):
            folders[str(options_in(path).get("seed", path.name.removeprefix("seed-")))] = path
        lines = read_all(folders, "metrics.jsonl", read_lines)
        results = read_results(paths[0] / "results.json")
        if not lines and not results["test"]:
            raise SiamDiffError(f"{paths[0]} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")

        # What it was told, and what it was made with.
        made = next((read_json(folder / "options.json") for folder in folders.values()), {}) or results["made"]
        config = results["config"] or made.get("options", {})
        if len(paths) > 1:
            config = {**config, "seed": " ".join(folders)}
        run = RunFolder(
            name=name,
            config=config,
            lines=lines,
            predictions=read_all(folders, "predictions.tsv", read_predictions),
            made={key: value for key, value in made.items() if key != "options"},
            results=results,
        )
        if run.tested:
            return with_test(run, paths[0])
        return with_held_out(run, read_all(folders, "valid.tsv", read_held_out))


def with_test(run: RunFolder, path: Path) -> RunFolder:
    """The run with the measures that results.json has of it."""
    results = run.results
    draws = dict(np.load(path / DRAWS, allow_pickle=False)) if (path / DRAWS).exists() else {}
    return replace(
        run,
        of_seeds=results["test"],
        mean=known(results["mean"]),
        baseline=known(results["constant"]),
        interval=results["interval"],
        side={measure: against_baseline(results, measure) for measure in results["mean"]},
        rows=str(draws.pop("split", results.get("samples"))),
        draws=draws,
    )


def with_held_out(run: RunFolder, tables: Mapping[str, HeldOut]) -> RunFolder:
    """The run with what the last validation of each seed has measured of every protein, if there was one."""
    means = []
    for table in tables.values():
        means.append({name: float(np.nanmean(x)) for name, x in table.values.items() if np.isfinite(x).any()})
    every = {}
    for name in means[0] if means else ():
        if all(name in of_seed for of_seed in means):
            every[name] = sum(of_seed[name] for of_seed in means) / len(means)
    run = replace(
        run,
        of_seeds=dict(zip(tables, means)),
        mean={name: value for name, value in every.items() if not name.endswith(BASELINE)},
        baseline={name.removesuffix(BASELINE): value for name, value in every.items() if name.endswith(BASELINE)},
        side=dict.fromkeys(every, ""),
        unfinished=what_is_left(run.config["epochs"], run.lines) if run.config else "",
    )

    # Intervals are over proteins, if all seeds have seen the same ones.
    rows = [table.rows for table in tables.values()]
    if not rows or rows.count(rows[0]) < len(rows):
        return run
    held_out = {name: np.stack([table.values[name] for table in tables.values()]) for name in every}
    interval = {name: mean_interval(name, held_out[name].mean(0)) for name in run.mean}
    side_of_baseline = {}
    for name in run.baseline:
        gain = t_interval((held_out[name] - held_out[f"{name}{BASELINE}"]).mean(0))
        side_of_baseline[name] = side(name, gain, {}) if gain else ""
    return replace(run, interval=interval, side=side_of_baseline, rows=rows[0], held_out=held_out)


def known(values: Mapping) -> dict[str, float]:
    """The values that are there: 0 is one."""
    return {name: value for name, value in values.items() if value is not None}


def what_is_left(epochs: Sequence[float], lines: Mapping[str, list[dict]]) -> str:
    """How far a run is that has not ended, in words; "" if it has. After the last seed there is a results.json."""
    for seed, of_seed in lines.items():
        done = of_seed[-1]["epochs"] if of_seed else 0
        if done < sum(epochs):
            words = f"not finished: {done:.3g} of {sum(epochs)} epochs"
            return f"{words} of seed {seed}" if len(lines) > 1 else words
    return ""


# ---- files -----------------------------------------------------------------------------------------------------------


def options_in(path: Path) -> dict:
    """The options of a run's folder, or of that of a seed; none if it does not say them."""
    return read_json(path / "options.json").get("options", {})


def read_json(path: Path) -> dict:
    """The content of a file of JSON; nothing if it is not there."""
    with structure_errors(path, "damaged"):
        return json.loads(path.read_bytes()) if path.exists() else {}


def read_results(path: Path) -> dict:
    """A results.json. Version 0.4 had words in place of sides."""
    results = EARLIER | read_json(path)
    side_of = {words: side for side, words in THAN.items()}
    for table in (results, results["floor"]):
        if "verdict" in table:
            table["verdict"] = {measure: side_of.get(told, told) for measure, told in table["verdict"].items()}
    return results


def read_all(folders: Mapping[str, Path], name: str, read: Callable) -> dict:
    """The content of a file of every seed that has it."""
    return {seed: read(folder / name) for seed, folder in folders.items() if (folder / name).exists()}


def read_lines(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl; `epochs` is the number that is done. The last line may be only half there."""
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    # The last line of the first epoch tells how long each is.
    steps = [line["step"] for line in lines if line["epoch"] == lines[0]["epoch"]]
    per_epoch = max(steps, default=1)
    return [{**line, "epochs": line["step"] / per_epoch} for line in lines]


def read_held_out(path: Path) -> HeldOut:
    """A valid.tsv, whose rows may have any order; the first columns are protein and draw."""
    (_, _, *measures), *rows = read_rows(path).values()
    of_proteins = defaultdict(list)
    for protein, _, *cells in sorted(rows):
        of_proteins[protein].append([float(cell or "nan") for cell in cells])
    means = [np.ma.masked_invalid(draws).mean(0).filled(np.nan) for draws in of_proteins.values()]
    return HeldOut(sorted(row[:2] for row in rows), dict(zip(measures, np.array(means).T)))


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """The columns `id` (K,), `target` and `prediction`, (K,) or (K, C) each; the names of C `classes`.

    Other columns, wherever they stand, play no part.
    """
    titles, *rows = read_rows(path).values()
    by_title = dict(zip(titles, np.array(rows).T))
    targets = [title for title in titles if title.partition(":")[0] == "target"]
    predicted = [title for title in titles if title.partition(":")[0] == "prediction"]
    classes = [title.partition(":")[2] for title in predicted]

    # One target beside several predictions is one of their classes, by its name. Several of a kind are one array.
    if 0 < len(targets) < len(classes):
        by_title["target"] = np.array([classes.index(name) for name in by_title["target"]])
    columns = {"id": by_title["id"], "classes": np.array(classes)}
    for kind, of_kind in {"target": targets, "prediction": predicted}.items():
        values = np.array([by_title[title] for title in of_kind], dtype=np.float64)
        columns[kind] = values[0] if len(values) == 1 else values.T
    return columns
