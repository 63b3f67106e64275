"""The folder of a run of train.py or finetune.py, as versions 0.4 and 0.5 write it: for the page that draws it.

A run of several seeds is a folder with a folder seed-S for each. Fine-tuning makes them; for pre-training --out does.
"""

import json
from collections.abc import Mapping, Sequence
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
    *("config", "about", "splits", "counts", "options", "direction", "best_epoch", "test", "mean", "std"),
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
    lines: list[list[dict]]  # metrics.jsonl of every seed
    predictions: list[dict[str, np.ndarray]]  # of every seed
    by_preset: list[dict[str, str]]  # what the preset decides
    results: dict  # results.json
    of_seeds: Sequence[Mapping[str, float]]  # the measures of every seed
    mean: dict[str, float]  # over seeds
    baseline: dict[str, float]
    interval: dict[str, list[float] | None]  # of the mean, not over seeds
    side: dict[str, str]  # of the baseline on which a measure is; "" if nothing is said
    rows: object  # what it was scored on: runs of equal ones are compared
    draws: dict[str, np.ndarray]  # (draws,) of the test split
    held_out: dict[str, np.ndarray]  # (S, P) of valid.tsv, with baselines
    unfinished: str  # how far it is, if it has not ended
    number: int = 0  # among the runs that it is compared with

    @property
    def tested(self) -> bool:
        """Whether the measures are of a test split."""
        return bool(self.results["test"])

    def seeds_of(self, measure: str) -> np.ndarray:
        """A measure of every seed that has it (S,)."""
        values = [metrics.get(measure) for metrics in self.of_seeds]
        return np.array([value for value in values if value is not None], dtype=float)


class HeldOut(NamedTuple):
    """A valid.tsv."""

    rows: list  # protein and draw
    values: dict[str, np.ndarray]  # (P,) means over the draws of a protein; nan of what was not measured


# ---- a run -----------------------------------------------------------------------------------------------------------


def read_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Read the folders of runs; one that is named twice is one run. Raises SiamDiffError."""
    folders = [*dict.fromkeys(path.resolve() for path in paths)]
    names = [folder.name for folder in folders]
    runs = []
    for folder in folders:
        name = folder.name if names.count(folder.name) == 1 else "/".join(folder.parts[-2:])
        runs.append(read_run(name, folder))
    return runs


def read_run(name: str, path: Path) -> RunFolder:
    """Read a run. Raises SiamDiffError if this folder holds no run, or a file in it is damaged."""
    with structure_errors(path, "damaged, or not of a run"):
        folders = [path] if (path / "metrics.jsonl").exists() else sorted(path.glob("seed-*"))
        lines = [read_lines(file) for file in files(folders, "metrics.jsonl")]
        results = read_results(path / "results.json")
        if not lines and not results["test"]:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")

        # What it was told, and what it has measured.
        told = [read_json(file) for file in files(folders, "options.json")] or [{}]
        config = results["config"] or told[0].get("options", {})
        if results["test"]:
            measures = of_test(results, path)
            left = ""
        else:
            check_seeds(path, [of_seed["options"] for of_seed in told if "method" in config])
            measures = of_held_out([read_held_out(file) for file in files(folders, "valid.tsv")])
            left = what_is_left(told[0].get("steps", 0), lines)
        return RunFolder(
            name=name,
            config=config,
            lines=lines,
            predictions=[read_predictions(file) for file in files(folders, "predictions.tsv")],
            by_preset=told[0].get("by preset", []),
            results=results,
            unfinished=left,
            **measures,
        )


def check_seeds(path: Path, options: Sequence[Mapping]) -> None:
    """Raise SiamDiffError if the seeds of a pre-training differ in more than the seed."""
    for of_seed in options[1:]:
        changed = [name for name, value in of_seed.items() if value != options[0].get(name)]
        changed = [name for name in changed if name != "seed" and not (name in PRETRAIN and PRETRAIN[name].free)]
        if changed:
            raise SiamDiffError(f"{path} is no run of several seeds: they differ in {', '.join(changed)}")


def of_test(results: Mapping, path: Path) -> dict:
    """The measures that results.json has of a run, and the draws beside it."""
    draws = dict(np.load(path / DRAWS, allow_pickle=False)) if (path / DRAWS).exists() else {}
    return {
        "of_seeds": [*results["test"].values()],
        "mean": known(results["mean"]),
        "baseline": known(results["constant"]),
        "interval": results["interval"],
        "side": {measure: against_baseline(results, measure) for measure in results["mean"]},
        "rows": str(draws.pop("split", results.get("samples"))),
        "draws": draws,
        "held_out": {},
    }


def of_held_out(tables: Sequence[HeldOut]) -> dict:
    """What the last validation of each seed has measured of every protein, if there was one."""
    of_seeds = []
    for table in tables:
        of_seeds.append({name: float(np.nanmean(x)) for name, x in table.values.items() if np.isfinite(x).any()})
    first = tables[0] if tables else HeldOut([], {})
    every = [name for name in first.values if all(name in of_seed for of_seed in of_seeds)]
    mean = {name: float(np.mean([of_seed[name] for of_seed in of_seeds])) for name in every}
    measures = [name for name in every if not name.endswith(BASELINE)]

    # Intervals are over proteins, if all seeds have seen the same ones.
    held_out = {}
    if all(table.rows == first.rows for table in tables):
        held_out = {name: np.stack([table.values[name] for table in tables]) for name in every}
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


def what_is_left(steps: int, lines: Sequence[Sequence[Mapping]]) -> str:
    """How far a run is that has not ended, in words; "" if it has."""
    done = min((of_seed[-1]["step"] for of_seed in lines if of_seed), default=0)
    return f"not finished: {done} of {steps} steps" if done < steps else ""


# ---- files -----------------------------------------------------------------------------------------------------------


def files(folders: Sequence[Path], name: str) -> list[Path]:
    """The file of this name of every seed that has it."""
    return [folder / name for folder in folders if (folder / name).exists()]


def read_json(path: Path) -> dict:
    """The content of a file of JSON."""
    with structure_errors(path, "damaged"):
        return json.loads(path.read_bytes())


def read_results(path: Path) -> dict:
    """A results.json, if there is one. Version 0.4 had words in place of sides."""
    results = EARLIER | (read_json(path) if path.exists() else {})
    side_of = {words: side for side, words in THAN.items()}
    for table in (results, results["floor"]):
        if "verdict" in table:
            table["verdict"] = {measure: side_of.get(told, told) for measure, told in table["verdict"].items()}
    return results


def read_lines(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl. The last one may be only half there."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def read_held_out(path: Path) -> HeldOut:
    """A valid.tsv, whose rows may have any order; the first columns are protein and draw."""
    (_, _, *measures), *rows = read_rows(path).values()
    of_proteins: dict[str, list] = {}
    for protein, _, *cells in sorted(rows):
        of_proteins.setdefault(protein, []).append([float(cell or "nan") for cell in cells])
    means = [np.ma.masked_invalid(draws).mean(0).filled(np.nan) for draws in of_proteins.values()]
    return HeldOut(sorted(row[:2] for row in rows), dict(zip(measures, np.array(means).T)))


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """The columns `target` and `prediction` (K, C), with C > 1 for several classes; other columns play no part.

    Empty if there is one target, a name, beside the predictions of several classes.
    """
    titles, *rows = read_rows(path).values()
    found: dict[str, list] = {"target": [], "prediction": []}
    for title, cells in zip(titles, zip(*rows)):
        kind, _, _ = title.partition(":")
        if kind in found:
            found[kind].append(cells)
    if len(found["target"]) != len(found["prediction"]):
        return {}
    return {kind: np.array(cells, dtype=np.float64).T for kind, cells in found.items()}
