"""What a run of fine-tuning says: of its data and its task, then its results.json in words and rows."""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..downstream.tasks import Task
from .ranks import Ranks

COLUMNS = {"mean": "mean", "std": "std", "interval": "95 % interval", "constant": "constant"}
COUNTED = {
    "families": " of {} families (relatives count once)",
    "sequences": " of {} sequences or families",
    "positives": ", {} positive",
}


def say_of_data(config: Namespace, data, datasets: Mapping, warnings: Sequence[str], ranks: Ranks) -> None:
    """Where data and labels come from, how many samples there are, what to know about them."""
    ranks.say(f"data        {config.data or 'demo set (made from the bundled structures; --data for your own)'}")
    ranks.say(f"labels      {data.about}")
    for note in data.notes:
        ranks.say(f"            {note}")
    samples = ", ".join(f"{split} {x.num_targets}" for split, x in datasets.items())
    ranks.say(f"samples     {samples or 'not converted to a store yet'}")
    for warning in warnings:
        ranks.say(f"warning     {warning}")


def say_of_task(config: Namespace, task: Task, vectors: str, ranks: Ranks) -> None:
    """What is to be trained, and where it starts from; `vectors` in place of an encoder."""
    trained = sum(p.numel() for p in task.parameters() if p.requires_grad)
    training = "" if config.eval_only else f", {trained:,} parameters to train"
    level = "" if vectors else f", {config.level} level"
    ranks.say(f"task        {config.task}{level}, seed {config.seed}{training}")
    start = config.eval_only or config.init_from or "scratch"
    ranks.say(f"encoder     {vectors or f'{config.encoder}, size {config.size}, from {start}'}")


def summary(results: Mapping, path: Path) -> str:
    """What a run was tested on, a table, where the file is."""
    return "\n".join(lines_of("test split", counted(results), table(results), results["no_interval"], path))


def lines_of(title: str, words: str, rows: Sequence[Sequence], no_interval: str, path: Path) -> list[str]:
    """The lines of a summary."""
    lines = [f"{title:12}{words}"]
    cells = [[cell(value) for value in row] for row in rows]
    widths = [2 + max(map(len, column)) for column in zip(*cells)]
    for name, *others in cells:
        aligned = [f"{text:>{width}}" for text, width in zip(others, widths[1:])]
        lines.append(f"{name:18}{''.join(aligned)}")
    if no_interval:
        lines.append(f"no interval {no_interval}")
    return [*lines, f"results     {path}"]


def counted(results: Mapping, how: str = "") -> str:
    """What was tested on, and the sizes of the other splits. Between them stands `how`."""
    counts = results["counts"]
    words = f"{counts['samples']} samples"
    if counts["structures"] != counts["samples"]:
        words += f" of {counts['structures']} structures"
    for name, said in COUNTED.items():
        if name in counts:
            words += said.format(counts[name])
    others = [f"{name} {split['samples']}" for name, split in results["splits"].items() if name != "test"]
    return f"{words}{how} ({', '.join(others)})" if others else f"{words}{how}"


def table(results: Mapping, more: Mapping[str, Mapping] | None = None) -> list:
    """The content of a results.json as rows: titles, a row for each metric with `more` columns, counts, best epochs."""
    test = results["test"]
    columns = {title: results[name] for name, title in COLUMNS.items() if results.get(name)}
    columns |= more or {}

    rows = [["metric", *(f"seed {seed}" for seed in test), *columns]]
    for name in results["mean"]:
        of_seeds = [metrics[name] for metrics in test.values()]
        rows.append([name, *of_seeds, *(column[name] for column in columns.values())])

    # What there is of a seed, but not of their mean.
    counts = {"correct": results["counts"].get("correct", {}), "best epoch": results.get("best_epoch", {})}
    for name, of_seed in counts.items():
        if of_seed:
            of_seeds = [f"{of_seed.get(seed, math.nan):.4g}" for seed in test]
            rows.append([name, *of_seeds, *[""] * len(columns)])
    return rows


def cell(value) -> str:
    """A cell of a table as text; an interval is a list."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(map(cell, value))
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:.4f}"
