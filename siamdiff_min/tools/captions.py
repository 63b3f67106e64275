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
from .runs import RunFolder


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


# ---- a run -----------------------------------------------------------------------------------------------------------


def predicted(run: RunFolder) -> str:
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


def about(run: RunFolder) -> str:
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


def tested_on(runs: Sequence[RunFolder]) -> str:
    """The line below *Result*: on what the runs were tested, and what the signs in the pictures are."""
    tested = [run.results for run in runs if run.results["test"]]
    if not tested:
        return text("held out at the end; dashed: the best answer that looks at nothing")

    # Runs of one test split say the same, which is said once.
    splits = dict.fromkeys(": ".join(wording.counted(results)) for results in tested)
    reasons = dict.fromkeys(results.get("no_interval") for results in tested)
    no_interval = [f" (none {reason})" for reason in reasons if reason]
    note = f"{' / '.join(splits)}. Bars: 95 % intervals over draws of structures{''.join(no_interval)}"
    if any(len(results["test"]) > 1 for results in tested):
        note += "; dots: seeds"
    return text(f"{note}; dashed: the best answer that looks at nothing")


# ---- a measure -------------------------------------------------------------------------------------------------------


def verdict(run: RunFolder, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the constant answer."""
    value = run.results["mean"][measure]
    interval = run.results["interval"].get(measure)
    baseline = run.results["constant"].get(measure)
    gain = run.results["gain_interval"].get(measure)

    words = f"<p class=big>{show(measure, value)}{correct_of(run, measure)}</p>"
    if interval:
        low, high = interval
        words += f"<p>95 % interval {show(measure, low)} to {show(measure, high)}</p>"
    if baseline is None:
        return words

    # Pre-training has no test split and so no interval: its value alone decides. A test split that is too small for an
    # interval decides nothing.
    if not gain and not run.results["test"]:
        gain = [value - baseline, value - baseline]
    if not gain:
        return f"{words}<p class=not>the constant answer has {show(measure, baseline)}</p>"
    side = wording.side(measure, gain, run.results["direction"])
    style = side.split()[0]  # better, worse, not or other: a class in CSS
    return f"{words}<p class={style}>{side} the constant answer ({show(measure, baseline)})</p>"


def correct_of(run: RunFolder, measure: str) -> str:
    """Behind an accuracy: how many samples are right, of every seed; else nothing."""
    correct = run.results["counts"].get("correct")
    if measure != "accuracy" or not correct:
        return ""
    of_seeds = " / ".join(map(str, correct.values()))
    return f" <small>{of_seeds} of {text(run.results['samples'])}</small>"


def difference(runs: Sequence[RunFolder], measure: str) -> str:
    """Of two runs on one test split the second minus the first, with its interval over the same draws; else nothing."""
    if len(runs) != 2:
        return ""
    first, second = runs
    before = first.results["draws"]
    after = second.results["draws"]
    drawn = measure in before and measure in after
    if not drawn or before["split"] != after["split"]:
        return ""

    # Draw k is of the same structures in both, so differences vary by less than each of the two does.
    count = min(len(before[measure]), len(after[measure]))
    gains = after[measure][:count] - before[measure][:count]
    low, high = interval(gains) or (math.nan, math.nan)
    gain = second.results["mean"][measure] - first.results["mean"][measure]

    side = wording.side(measure, [low, high], second.results["direction"])
    words = f"{second.name} {side} {first.name}: {gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={side.split()[0]}>{text(words)}</p>"
