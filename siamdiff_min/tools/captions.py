"""What a page says of a run in words, as HTML: what it predicts, how it was made, and what its result means."""

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..downstream.tasks import TASKS
from ..files import printable
from ..training import results
from .runs import Run

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


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


# ---- a run -----------------------------------------------------------------------------------------------------------


def predicted(run: Run) -> str:
    """What a run predicts: runs of one title are compared."""
    task = run.config.get("task", "")
    if task != "table":
        predicts = getattr(TASKS.get(task), "predicts", "")
        return predicts or task or "pre-training"

    options = run.results["options"]
    column = options.get("column") or Path(str(run.config.get("labels"))).stem
    kind = options.get("kind", "labels")
    what = "residues" if options.get("residues") else "structures"
    return f"{column}: {kind} of {what}"


def about(run: Run) -> str:
    """Encoder, level, data and start of a run; date, versions and machine; notes about the labels."""
    config = run.config
    words = [str(config[name]) for name in ("method", "encoder", "size") if config.get(name)]
    if config.get("level"):
        words.append(f"{config['level']} level")
    if config.get("task"):
        start = f"from {config.get('init_from') or 'scratch'}"
        words.append(f"{start}, frozen" if config.get("freeze") else start)
    if words:
        words.append(str(config.get("data") or "demo set"))
    else:  # older versions kept no options
        words.append(run.name)

    made = " · ".join(map(str, run.results["about"].values()))
    lines = [text(", ".join(words))]
    for line in (made, *run.results["notes"]):
        lines.append(f"<small>{text(line)}</small>")

    body = "<br>".join(lines)
    if run.results["unfinished"]:
        body += f"<p class='big worse'>{run.results['unfinished']}"
    return body


def tested_on(runs: Sequence[Run]) -> str:
    """The line below *Result*: on what the runs were tested, and what the signs in the pictures are."""
    tested = [run.results for run in runs if run.results["test"]]
    if not tested:
        return text("held out at the end; dashed: the best answer that looks at nothing")

    # Runs of one test split say the same, which is said once.
    splits = dict.fromkeys("{}: {}".format(*results.counted(of_run)) for of_run in tested)
    without = dict.fromkeys(f" (none {of_run['no_interval']})" for of_run in tested if of_run.get("no_interval"))
    note = f"{' / '.join(splits)}. Bars: 95 % intervals over draws of structures{''.join(without)}"
    if any(len(of_run["test"]) > 1 for of_run in tested):
        note += "; dots: seeds"
    return text(f"{note}; dashed: the best answer that looks at nothing")


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


def verdict(run: Run, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the constant answer."""
    value = run.results["mean"][measure]
    interval = run.results["interval"].get(measure)
    constant = run.results["constant"].get(measure)
    gain = run.results["gain_interval"].get(measure)

    words = f"<p class=big>{show(measure, value)}{correct_of(run, measure)}</p>"
    if interval:
        low, high = interval
        words += f"<p>95 % interval {show(measure, low)} to {show(measure, high)}</p>"
    if constant is None:
        return words

    # Pre-training has no test split and so no interval: its value alone decides. A test split that is too small for an
    # interval decides nothing.
    if not gain and not run.results["test"]:
        gain = [value - constant, value - constant]
    if not gain:
        return f"{words}<p class=not>the constant answer has {show(measure, constant)}</p>"
    side = results.side(measure, gain, run.results["direction"])
    return f"{words}<p class={style_of(side)}>{side} the constant answer ({show(measure, constant)})</p>"


def correct_of(run: Run, measure: str) -> str:
    """Behind an accuracy: how many samples are right, of every seed; else nothing."""
    correct = run.results["counts"].get("correct")
    if measure != "accuracy" or not correct:
        return ""
    of_seeds = " / ".join(map(str, correct.values()))
    return f" <small>{of_seeds} of {text(run.results['samples'])}</small>"


def style_of(side: str) -> str:
    """The class in CSS of "better than", "worse than", "not told apart from" and "other than": the first word."""
    return side.split()[0]


def difference(runs: Sequence[Run], measure: str) -> str:
    """Of two runs on one test split the second minus the first, with its interval over the same draws; else nothing."""
    draws = [run.results["draws"] for run in runs]
    drawn = all(measure in of_run for of_run in draws)
    if len(runs) != 2 or not drawn or draws[0]["split"] != draws[1]["split"]:
        return ""

    # Draw k is of the same structures in both, so differences vary by less than each of the two does.
    first, second = runs
    count = min(len(of_run[measure]) for of_run in draws)
    gains = draws[1][measure][:count] - draws[0][measure][:count]
    low, high = results.interval(gains) or (math.nan, math.nan)
    gain = second.results["mean"][measure] - first.results["mean"][measure]

    side = results.side(measure, [low, high], second.results["direction"])
    words = f"{second.name} {side} {first.name}: {gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={style_of(side)}>{text(words)}</p>"
