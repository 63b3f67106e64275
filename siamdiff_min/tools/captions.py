"""What a page says of a run, as HTML: what it predicts, how it was made, and what its result means."""

import html
import math
from collections.abc import Sequence
from pathlib import Path

from ..downstream.tasks import TASKS
from ..files import printable
from ..training import wording
from ..training.results import interval
from ..training.wording import show
from .runs import Run


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
    splits = dict.fromkeys("{}: {}".format(*wording.counted(of_run)) for of_run in tested)
    without = dict.fromkeys(f" (none {of_run['no_interval']})" for of_run in tested if of_run.get("no_interval"))
    note = f"{' / '.join(splits)}. Bars: 95 % intervals over draws of structures{''.join(without)}"
    if any(len(of_run["test"]) > 1 for of_run in tested):
        note += "; dots: seeds"
    return text(f"{note}; dashed: the best answer that looks at nothing")


# ---- a measure -------------------------------------------------------------------------------------------------------


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
    side = wording.against_baseline(run.results, measure) or wording.side(measure, gain, run.results["direction"])
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
    low, high = interval(gains) or (math.nan, math.nan)
    gain = second.results["mean"][measure] - first.results["mean"][measure]

    side = wording.side(measure, [low, high], second.results["direction"])
    words = f"{second.name} {side} {first.name}: {gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={style_of(side)}>{text(words)}</p>"
