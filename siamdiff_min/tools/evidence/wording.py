"""A result in words, without HTML: for the end of a run, and for the page that draws it."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...training import summary as training
from ...training.summary import lines_of, side, table

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
    """The content of a table's results.json as a finished run prints it: as of any run, and the verdict."""
    *lines, last = lines_of(*counted(results), rows(results), results["no_interval"], path)
    sentence = verdict(results)
    if sentence:
        lines.append(f"verdict     {sentence}")
    return "\n".join([*lines, last])


def counted(results: Mapping) -> tuple[str, str]:
    """What was tested on, and the sizes of the splits in words."""
    folds = results["config"].get("folds")
    if not folds:
        return "test split", training.counted(results)
    how = ", each scored by a head that has not seen its sequence, but perhaps a relative's"
    return f"{folds} folds", training.counted(results, how)


def rows(results: Mapping) -> list[list]:
    """The content of a results.json as rows; of a table with the verdict, and beside it the head of composition."""
    words = {name: against_baseline(results, name) for name in results["mean"]}
    floor = results.get("floor")
    more = {}
    if floor:
        more["composition"] = floor["mean"]
        more[" "] = {name: f"{floor['verdict'][name]} it" if name in floor["verdict"] else "" for name in words}
    return table(results, words, more)
