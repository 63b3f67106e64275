"""The folder of a run of train.py or finetune.py, as versions 0.4 and 0.5 write it: for the page that draws it.

Pre-training runs that differ in their seed alone, in folders NAME-SEED or NAME/seed-SEED, are one run with several
seeds, as a fine-tuning run is.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    lines: dict[str, list[dict]]  # metrics.jsonl of every seed
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed
    made: dict  # what else options.json says: command, versions, data, ...
    results: dict  # results.json
    of_seeds: Mapping[str, Mapping[str, float]]  # the measures of every seed
    mean: dict[str, float]  # over seeds
    baseline: dict[str, float]
    interval: dict[str, list[float] | None]  # of the mean, not over seeds
    side: dict[str, str]  # of the baseline on which a measure is; "" if nothing is said
    rows: object  # what it was scored on: runs of equal ones are compared
    draws: dict[str, np.ndarray]  # (draws,) of the test split
    held_out: dict[str, np.ndarray]  # (S, P) of valid.tsv, with baselines
    unfinished: str  # how far it is, if it has not ended

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
    if "method" not in options:
        return path
    if path.name == f"seed-{options['seed']}":
        return path.parent
    return path.with_name(path.name.removesuffix(f"-{options['seed']}"))


# ---- a run -----------------------------------------------------------------------------------------------------------


def read_run(name: str, paths: Sequence[Path]) -> RunFolder:
    """Read a run: one folder of fine-tuning, or the folders of all seeds of one pre-training.

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
        if results["test"]:
            measures = of_test(results, paths[0])
        else:
            measures = of_held_out(read_all(folders, "valid.tsv", read_held_out))
        return RunFolder(
            name=name,
            config=config,
            lines=lines,
            predictions=read_all(folders, "predictions.tsv", read_predictions),
            made={key: value for key, value in made.items() if key != "options"},
            results=results,
            unfinished=what_is_left(config["epochs"], lines) if config and not results["test"] else "",
            **measures,
        )


def of_test(results: Mapping, path: Path) -> dict:
    """The measures that results.json has of a run, and the draws beside it."""
    draws = dict(np.load(path / DRAWS, allow_pickle=False)) if (path / DRAWS).exists() else {}
    return {
        "of_seeds": results["test"],
        "mean": known(results["mean"]),
        "baseline": known(results["constant"]),
        "interval": results["interval"],
        "side": {measure: against_baseline(results, measure) for measure in results["mean"]},
        "rows": str(draws.pop("split", results.get("samples"))),
        "draws": draws,
        "held_out": {},
    }


def of_held_out(tables: Mapping[str, HeldOut]) -> dict:
    """What the last validation of each seed has measured of every protein, if there was one."""
    of_seeds = {}
    for seed, table in tables.items():
        of_seeds[seed] = {name: float(np.nanmean(x)) for name, x in table.values.items() if np.isfinite(x).any()}
    first = next(iter(tables.values()), HeldOut([], {}))
    every = [name for name in first.values if all(name in of_seed for of_seed in of_seeds.values())]
    mean = {name: float(np.mean([of_seed[name] for of_seed in of_seeds.values()])) for name in every}
    measures = [name for name in every if not name.endswith(BASELINE)]

    # Intervals are over proteins, if all seeds have seen the same ones.
    held_out = {}
    if all(table.rows == first.rows for table in tables.values()):
        held_out = {name: np.stack([table.values[name] for table in tables.values()]) for name in every}
    gains = {}
    for name in measures:
        if name + BASELINE in held_out:
            gains[name] = t_interval((held_out[name] - held_out[name + BASELINE]).mean(0))
    return {
        "of_seeds": of_seeds,
        "mean": {name: mean[name] for name in measures},
        "baseline": {name: mean[name + BASELINE] for name in measures if name + BASELINE in mean},
        "interval": {name: mean_interval(name, held_out[name].mean(0)) for name in measures if name in held_out},
        "side": {name: side(name, gain, {}) for name, gain in gains.items() if gain},
        "rows": first.rows if held_out else None,
        "draws": {},
        "held_out": held_out,
    }


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
    """The options in the folder of a run or a seed; empty if it does not say them."""
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

    # How many steps an epoch has: by options.json, or else as the last line of the first epoch tells.
    about = read_json(path.parent / "options.json")
    if about.get("data"):
        per_epoch = max(1, about["data"]["samples"] // about["options"]["global_batch_size"])
    else:
        per_epoch = max((line["step"] for line in lines if line["epoch"] == lines[0]["epoch"]), default=1)
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
    found = {"target": {}, "prediction": {}}  # name of a class or property -> cells
    by_title = dict(zip(titles, zip(*rows)))
    for title, cells in by_title.items():
        kind, _, name = title.partition(":")
        if kind in found:
            found[kind][name] = cells
    classes = [*found["prediction"]]

    # One target beside several predictions is one of their classes, by its name. Several of a kind are one array.
    if [*found["target"]] == [""] != classes:
        found["target"][""] = [classes.index(name) for name in by_title["target"]]
    columns = {"id": np.array(by_title["id"]), "classes": np.array(classes)}
    for kind, by_name in found.items():
        values = np.array([*by_name.values()], dtype=np.float64)
        columns[kind] = values[0] if len(values) == 1 else values.T
    return columns
