"""A result in words, without HTML: for the end of a run, and for the page that draws it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..downstream.metrics import LESS_IS_BETTER

COLUMNS = {"mean": "mean", "std": "std", "interval": "95 % interval", "constant": "constant"}  # of a table
NAMES = {
    "spearman": "Spearman's rho",
    "global_spearman": "Spearman's rho over all models",
    "mean_spearman": "Spearman's rho within a protein (mean)",
    "pearson": "Pearson's r",
    "auroc": "AUROC",
    "auprc": "AUPR",
    "fmax": "Fmax",
    "rmse": "root mean squared error (units of the label)",
    "mae": "mean absolute error (units of the label)",
    "structure_loss": "structure loss (squared error of the noise, sigma²)",
    "distance_squared_error": "distance, squared error (Å²)",
}
NATS = {f"{name}_loss" for name in ("sequence", "residue_type", "angle", "dihedral", "contrastive")}


# ---- a measure -------------------------------------------------------------------------------------------------------


def title_of(measure: str, others: Iterable[str] = ()) -> str:
    """The name of a measure for a reader, with its unit; of several properties (NAME:PROPERTY) with the property."""
    name, _, of = measure.partition(":")
    title = NAMES.get(name)
    if title is None:
        title = name.replace("_", " ")
        if name in NATS:
            title += " (nats)"

    # Beside the measures of several properties, the one without a property is their mean. It has none of their units.
    if any(other.startswith(f"{measure}:") for other in others):
        title, _, _ = title.partition(" (")
        of = "mean in standard deviations" if name in ("rmse", "mae") else "mean"
    return f"{title}, {of}" if of else title


def show(measure: str, value: float) -> str:
    """A value for a reader."""
    if measure.startswith("accuracy") or measure.endswith("accuracy"):
        return f"{100 * value:.1f} %"
    if value == 0:
        return "0"
    return f"{value:#.3g}".rstrip(".")


def less_is_better(measure: str, direction: Mapping) -> bool | None:
    """Whether less of a measure is better; None if nobody said so of a measure of a plugin.

    `direction` is what results.json says; losses of pre-training are not in it.
    """
    if measure in direction:
        return {"min": True, "max": False, None: None}[direction[measure]]
    return measure.partition(":")[0] in LESS_IS_BETTER or measure.endswith(("loss", "error"))


def side(measure: str, gain: Sequence[float], direction: Mapping) -> str:
    """A difference in words, from its interval."""
    low, high = gain
    less = less_is_better(measure, direction)
    if less is None:
        return "not told apart from" if low <= 0 <= high else "other than"
    if less:
        low, high = -high, -low
    if low > 0:
        return "better than"
    return "worse than" if high < 0 else "not told apart from"


def against_baseline(results: Mapping, measure: str) -> str:
    """How a result compares with the baseline, in words; "" if nothing is said.

    Of a table a test decides (verdict.py), else the interval of the difference over draws.
    """
    if "verdict" in results:
        return results["verdict"].get(measure, "")
    gain = results.get("gain_interval", {}).get(measure)
    return side(measure, gain, results.get("direction", {})) if gain else ""


def verdict(results: Mapping) -> str:
    """The verdict on a table by the measure that decides, in a sentence; "" if there is none."""
    measure = results.get("options", {}).get("metric")
    of_baseline = results.get("verdict", {}).get(measure)
    if measure and results.get("no_interval"):
        counted_few = results["no_interval"].partition(",")[0].removeprefix("of ")
        return f"too few to tell the model from the baseline: {counted_few}"
    value = results["mean"].get(measure, 0) if "verdict" in results else 0
    if value is None or math.isnan(value):
        return f"{measure} cannot be measured: all values of the test split are the same"
    if not of_baseline:
        return ""
    words = f"by {measure} {of_baseline} the baseline"
    floor = results.get("floor", {})
    if measure in floor.get("verdict", {}):
        words += f", {floor['verdict'][measure]} {floor['features']}"
    return words


def doubt(results: Mapping) -> str:
    """What to say beside predictions of a model that is not better than the baseline and the floor; "" if it is."""
    measure = results.get("options", {}).get("metric")
    of_baseline = results.get("verdict", {}).get(measure)
    of_floor = results.get("floor", {}).get("verdict", {}).get(measure, "better than")
    return "" if of_baseline == of_floor == "better than" else verdict(results)


def advice(results: Mapping) -> str:
    """What follows from the doubt about a model."""
    measure = results.get("options", {}).get("metric")
    if results.get("verdict", {}).get(measure) == "better than":
        return "the encoder may add nothing to it"
    return "do not rely on these numbers"


# ---- all measures ----------------------------------------------------------------------------------------------------


def summary(results: Mapping, path: Path) -> str:
    """The content of a results.json as a finished run prints it: what it was tested on, a table, where the file is."""
    title, words = counted(results)
    lines = [f"{title:12}{words}"]
    rows = [[cell(value) for value in row] for row in table(results)]
    widths = [2 + max(map(len, column)) for column in zip(*rows)]
    for name, *cells in rows:
        aligned = [f"{text:>{width}}" for text, width in zip(cells, widths[1:])]
        lines.append(f"{name:18}{''.join(aligned)}")
    if results["no_interval"]:
        lines.append(f"no interval {results['no_interval']}")
    sentence = verdict(results)
    if sentence:
        lines.append(f"verdict     {sentence}")
    lines.append(f"results     {path}")
    return "\n".join(lines)


def counted(results: Mapping) -> tuple[str, str]:
    """What was tested on, and the sizes of the splits in words. Older versions wrote fewer of them."""
    counts = results.get("counts", {})
    samples = counts.get("samples", results.get("samples", "?"))
    words = f"{samples} samples"
    if counts.get("structures", samples) != samples:
        words += f" of {counts['structures']} structures"
    if "sequences" in counts:
        words += f" of {counts['sequences']} sequences or families"
    if "positives" in counts:
        words += f", {counts['positives']} positive"

    folds = results.get("config", {}).get("folds")
    if folds:
        words += ", each scored by a head that has not seen its sequence, but perhaps a relative's"
    others = []
    for name in ("train", "valid"):
        if name in results.get("splits", {}):
            others.append(f"{name} {results['splits'][name]['samples']}")
    if others:
        words += f" ({', '.join(others)})"
    return f"{folds} folds" if folds else "test split", words


def table(results: Mapping) -> list[list]:
    """The content of a results.json as rows: titles, a row for each metric, then counts and the best epochs."""
    test = results["test"]
    columns = {title: results[name] for name, title in COLUMNS.items() if results.get(name)}
    words = {name: against_baseline(results, name) for name in results["mean"]}
    if any(words.values()):
        columns[""] = {name: f"{word} it" if word else "" for name, word in words.items()}
    floor = results.get("floor")
    if floor:
        columns["composition"] = floor["mean"]
        columns[" "] = {name: f"{floor['verdict'][name]} it" if name in floor["verdict"] else "" for name in words}

    rows = [["metric", *(f"seed {seed}" for seed in test), *columns]]
    for name in results["mean"]:
        of_seeds = [metrics[name] for metrics in test.values()]
        rows.append([name, *of_seeds, *(column[name] for column in columns.values())])

    # What there is of a seed, but not of their mean.
    counts = {"correct": results.get("counts", {}).get("correct", {}), "best epoch": results.get("best_epoch", {})}
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
