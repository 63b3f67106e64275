"""The folder of a run of train.py or finetune.py, as it was written: for the page that draws it.

Pre-training runs that differ in their seed alone, in folders NAME-SEED or NAME/seed-SEED, become one with several
seeds, as a fine-tuning run has them.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from ...files import SiamDiffError, read_rows, structure_errors
from ...training.config import PRETRAIN
from ...training.metrics_file import in_order
from ..evidence.bootstrap import DRAWS

TABLES = (
    *("config", "made", "about", "splits", "counts", "options", "direction", "best_epoch", "test", "mean", "std"),
    *("interval", "constant", "gain_interval", "floor"),
)
# Of results.json: what older versions did not write, as there is nothing of it before the test.
EARLIER = {**{key: {} for key in TABLES}, "notes": [], "no_interval": "", "answer": None}


@dataclass(frozen=True)
class HeldOut:
    """What valid.tsv has of P held-out proteins, for S seeds. A baseline is called NAME_constant."""

    split: str  # a hash of the proteins and their draws
    values: dict[str, np.ndarray]  # (S, P) the means over the draws of a protein
    noise: dict[str, np.ndarray]  # (rows,) the baselines of every draw, which tell its noise

    @property
    def count(self) -> int:
        """P."""
        return len(next(iter(self.values.values()))[0])


@dataclass(frozen=True)
class RunFolder:
    """The content of a run's folder. The measures are those of the test split; of pre-training, of what was held out.

    A measure that has no value (nan in the files) is left out.
    """

    name: str
    config: dict  # its options, if they are known
    lines: dict[str, list[dict]] = field(default_factory=dict)  # metrics.jsonl of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)  # of every seed
    made: dict = field(default_factory=dict)  # what else options.json says: command, versions, data, ...
    results: dict = field(default_factory=EARLIER.copy)  # results.json
    of_seeds: dict[str, dict[str, float]] = field(default_factory=dict)  # the measures of every seed
    mean: dict[str, float] = field(default_factory=dict)  # over seeds
    baseline: dict[str, float] = field(default_factory=dict)
    draws: dict[str, np.ndarray] = field(default_factory=dict)  # of the test split, and a hash of it, the "split"
    held_out: HeldOut | None = None  # of pre-training
    unfinished: str = ""  # how far it is, if it has not ended

    @property
    def tested(self) -> bool:
        """Whether the measures are of a test split."""
        return bool(self.results["test"])

    def seeds_of(self, measure: str) -> np.ndarray:
        """A measure of every seed that has it (S,)."""
        values = [metrics.get(measure) for metrics in self.of_seeds.values()]
        return np.array([value for value in values if value is not None], dtype=float)


def read_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """Read the folders of runs; seeds of one pre-training become one run. Raises SiamDiffError."""
    free = {name for name, option in PRETRAIN.items() if option.free}  # options that change no result
    groups = defaultdict(list)
    for whole, path in {path.resolve(): path for path in paths}.items():  # one that is named twice is one run
        run = read_run(path)
        folder = folder_of_method(whole, run)
        decisive = {name: value for name, value in run.config.items() if name not in free | {"seed"}}
        groups[folder, repr(decisive)].append((whole, run))

    # A run alone is called by its own folder, several seeds by what their folders have in common.
    folders = [group[0][0] if len(group) == 1 else folder for (folder, _), group in groups.items()]
    runs = []
    for group, name in zip(groups.values(), names_of(folders)):
        of_seeds = [run for _, run in group]
        runs.append(replace(of_seeds[0] if len(of_seeds) == 1 else joined(of_seeds), name=name))
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


def read_run(path: Path) -> RunFolder:
    """Read the folder of a run. Raises SiamDiffError if it holds none, or a damaged file."""
    lines = {}
    predictions = {}
    made = {}
    with structure_errors(path, "damaged, or not of a run"):
        # What each seed has logged and predicted. Pre-training writes into the folder itself.
        for folder in (path, *sorted(path.glob("seed-*"))):
            seed = "" if folder == path else folder.name.removeprefix("seed-")
            if (folder / "metrics.jsonl").exists():
                lines[seed] = read_lines(folder / "metrics.jsonl")
                made = read_json(folder / "options.json") or made
            if (folder / "predictions.tsv").exists():
                predictions[seed] = read_predictions(folder / "predictions.tsv")

        # The result of all seeds; without one what the last validation has measured.
        results = EARLIER | read_json(path / "results.json")
        if not lines and not results["test"]:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
        made = made or results["made"]
        config = results["config"] or made.get("options", {})
        made = {key: value for key, value in made.items() if key != "options"}
        run = RunFolder(path.name, config, lines, predictions, made, results)
        return with_test(run, path) if run.tested else with_validation(run, path)


def with_test(run: RunFolder, path: Path) -> RunFolder:
    """The run with the measures that results.json has of it."""
    results = run.results
    if not results["counts"]:
        results = results | {"counts": dict.fromkeys(("samples", "structures"), results.get("samples", "?"))}
    draws = dict(np.load(path / DRAWS, allow_pickle=False)) if (path / DRAWS).exists() else {}
    return replace(
        run,
        results=results,
        of_seeds=results["test"],
        mean=known(results["mean"]),
        baseline=known(results["constant"]),
        draws=draws,
    )


def with_validation(run: RunFolder, path: Path) -> RunFolder:
    """The run with what its last validation has measured, of every protein too if there is a valid.tsv."""
    unfinished = what_is_left(run.config["epochs"], run.lines) if run.config else ""
    valid = [line for line in chain.from_iterable(run.lines.values()) if line["split"] == "valid"]
    if not valid:
        return replace(run, unfinished=unfinished)
    values = known(dict(in_order(valid[-1])))
    baseline = known({measure: valid[-1].get(f"{measure}_constant") for measure in values})
    held_out = read_held_out(path / "valid.tsv") if (path / "valid.tsv").exists() else None
    for name, of_proteins in held_out.values.items() if held_out else ():
        mean = float(np.nanmean(of_proteins))
        if name in values:
            values[name] = mean
        elif name.endswith("_constant"):
            baseline[name.removesuffix("_constant")] = mean
    return replace(run, unfinished=unfinished, mean=values, baseline=baseline, held_out=held_out, of_seeds={"": values})


def known(values: Mapping) -> dict[str, float]:
    """The values that are there: 0 is one."""
    return {name: value for name, value in values.items() if value is not None}


def read_held_out(path: Path) -> HeldOut:
    """A valid.tsv, whose rows may have any order.

    A mean is nan if a measure has no value, as the sequence loss of a protein without a masked residue.
    """
    titles, *rows = read_rows(path).values()
    place = [titles.index("protein"), titles.index("draw")]
    rows.sort(key=lambda row: [row[k] for k in place])
    columns = dict(zip(titles, np.array(rows).T))
    draws = ["\0".join(row[k] for k in place) for row in rows]
    names, owner = np.unique(columns.pop("protein"), return_inverse=True)
    del columns["draw"]
    values = {}
    noise = {}
    for measure, cells in columns.items():
        numbers = np.array([cell or "nan" for cell in cells], dtype=float)
        there = np.isfinite(numbers)
        count = np.bincount(owner[there], minlength=len(names))
        total = np.bincount(owner[there], numbers[there], minlength=len(names))
        values[measure] = np.where(count > 0, total / np.maximum(count, 1), np.nan)[None]
        if measure.endswith("_constant"):
            noise[measure] = numbers
    split = hashlib.sha256("\0".join(draws).encode("utf-8", "surrogateescape")).hexdigest()
    return HeldOut(split, values, noise)


def joined(runs: Sequence[RunFolder]) -> RunFolder:
    """Pre-training runs that differ in their seed alone, as one run."""
    seeds = [str(run.config["seed"]) for run in runs]
    of_seeds = [run.of_seeds.get("", {}) for run in runs]
    return replace(
        runs[0],
        config={**runs[0].config, "seed": " ".join(seeds)},
        lines={seed: run.lines[""] for seed, run in zip(seeds, runs)},
        of_seeds=dict(zip(seeds, of_seeds)),
        mean=mean_of(of_seeds),
        baseline=mean_of([run.baseline for run in runs]),
        held_out=joined_held_out([run.held_out for run in runs]),
        unfinished=next(filter(None, [run.unfinished for run in runs]), ""),
    )


def joined_held_out(parts: Sequence[HeldOut | None]) -> HeldOut | None:
    """The values of every seed and protein; None if the seeds have not all seen the same proteins."""
    first = parts[0]
    if not first or any(part is None or part.split != first.split for part in parts):
        return None
    values = {}
    for name in first.values:
        if all(name in part.values for part in parts):
            values[name] = np.concatenate([part.values[name] for part in parts])
    return replace(first, values=values)


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
    """The columns `id` and `group` (K,), `target` and `prediction`, (K,) or (K, C) each; the names of C `classes`.

    Other columns, wherever they stand, play no part.
    """
    header, *rows = read_rows(path).values()
    by_title = dict(zip(header, np.array(rows).T))
    columns = {"id": by_title["id"], "group": by_title["group"]}
    titles = {}
    for kind in ("target", "prediction"):
        titles[kind] = [title for title in header if title.partition(":")[0] == kind]
    classes = [title.partition(":")[2] for title in titles["prediction"]]

    # One target beside several predictions is one of their classes, by its name. Several of a kind are one array.
    if 0 < len(titles["target"]) < len(classes):
        by_title["target"] = np.array([classes.index(name) for name in by_title["target"]])
    for kind, of_kind in titles.items():
        values = np.array([by_title[title] for title in of_kind], dtype=np.float64)
        columns[kind] = values[0] if len(values) == 1 else values.T
    return columns | {"classes": np.array(classes)}
