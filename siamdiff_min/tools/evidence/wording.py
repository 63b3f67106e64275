"""A result in words, without HTML: for the end of a run, and for the page that draws it."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ...downstream.tasks import Task
from ...training import summary as training
from ...training.results import Predictions, Result, write_results
from ...training.summary import lines_of, table
from .bootstrap import draw, with_intervals, write_draws
from .verdict import Verdict, side

THAN = {  # the side of a difference, in words
    "better": "better than",
    "worse": "worse than",
    "untold": "not told apart from",
    "other": "other than",  # where nobody says which values are better
}

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
    plain = name.replace("_", " ")
    title = NAMES.get(name, f"{plain} (nats)" if name in NATS else plain)

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
    """The side of the baseline on which a result is; "" if nothing is said.

    Of a table a test decides (verdict.py), else the interval of the difference over draws.
    """
    if "verdict" in results:
        return results["verdict"].get(measure, "")
    gain = results.get("gain_interval", {}).get(measure)
    return side(measure, gain, results.get("direction", {})) if gain else ""


# ---- a verdict -------------------------------------------------------------------------------------------------------


def verdict_of(results: Mapping) -> Verdict | None:
    """The verdict of a results.json; None if it is of no table."""
    return Verdict(**results["decision"]) if results.get("decision") else None


def sentence(verdict: Verdict | None) -> str:
    """The verdict on a table in a sentence; "" if there is none."""
    if verdict is None or not verdict.baseline:
        return ""
    if verdict.few:
        return f"too few to tell the model from the baseline: {verdict.few['count']} {verdict.few['of']}"
    if verdict.baseline == "unmeasured":
        return f"{verdict.metric} cannot be measured: all values of the test split are the same"
    words = f"by {verdict.metric} {THAN[verdict.baseline]} the baseline"
    return f"{words}, {THAN[verdict.composition]} {verdict.features}" if verdict.composition else words


def doubt(verdict: Verdict | None) -> str:
    """What to say beside predictions of a model that is not better than the baseline and composition; "" if it is."""
    return "" if verdict is None or verdict.good else sentence(verdict)


def advice(verdict: Verdict) -> str:
    """What follows from the doubt about a model."""
    return "the encoder may add nothing to it" if verdict.baseline == "better" else "do not rely on these numbers"


# ---- all measures ----------------------------------------------------------------------------------------------------


def finish(path: Path, result: Result, task: Task, tested: Mapping[int, Predictions]) -> str:
    """Write results.json of one of the paper's tasks, with intervals, and draws.npz; returns it in words."""
    groups = next(iter(tested.values())).groups
    draws = draw(task, tested, groups)
    result = with_intervals(result, draws)
    write_results(path, result)
    write_draws(path, tested, draws)
    return summary(vars(result), path)


def summary(results: Mapping, path: Path) -> str:
    """The content of results.json as a finished run prints it: a table, and of tables the verdict."""
    *lines, last = lines_of(*counted(results), rows(results), results["no_interval"], path)
    words = sentence(verdict_of(results))
    if words:
        lines.append(f"verdict     {words}")
    return "\n".join([*lines, last])


def beside(sides: Mapping[str, str]) -> dict[str, str]:
    """What a table says of every metric beside the value that it is compared with."""
    return {name: f"{THAN[side]} it" if side else "" for name, side in sides.items()}


def counted(results: Mapping) -> tuple[str, str]:
    """What was tested on, and the sizes of the splits in words."""
    folds = results["config"].get("folds")
    if not folds:
        return "test split", training.counted(results)
    return f"{folds} folds", training.counted(results, ", each scored by a head that has not seen it")


def rows(results: Mapping) -> list[list]:
    """The content of a results.json as rows; of a table also the verdict, the head of composition, relatives apart."""
    words = beside({name: against_baseline(results, name) for name in results["mean"]})
    composition = results.get("floor")
    more: dict[str, Mapping] = {"": words} if any(words.values()) else {}
    if composition:
        more["composition"] = composition["mean"]
        more[" "] = beside({name: composition["verdict"].get(name, "") for name in words})
    if results.get("with_relatives"):  # in other folds
        more["with relatives"] = results["with_relatives"]["mean"]
    return table(results, more)
