"""What a page says of a run, as HTML: what it predicts, how it was made, and what its result means."""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from ...downstream.tasks import TASKS
from ...files import printable
from ...training import summary
from ..evidence import wording
from ..evidence.wording import THAN, show
from .comparison import Row
from .runs import RunFolder

ABOUT = ("method", "encoder", "size", "level", "init_from", "freeze", "data")  # options at the top of the page


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


# ---- a run -----------------------------------------------------------------------------------------------------------


def predicted(run: RunFolder) -> str:
    """What a run predicts: runs of one title are compared."""
    task = run.config.get("task", "")
    if task != "table":
        return getattr(TASKS.get(task), "predicts", "") or task or "pre-training"
    options = run.results["options"]
    column = options.get("column") or Path(str(run.config.get("labels"))).stem
    what = "residues" if options.get("residues") else "structures"
    return f"{column}: {options.get('kind', 'labels')} of {what}"


def about(run: RunFolder) -> str:
    """Encoder, level, data and start of a run; date, versions and machine; notes about the labels."""
    names = ("features", "data") if run.config.get("features") else ABOUT  # of vectors no encoder took part
    words = [f"{name.replace('_', ' ')} {run.config[name]}" for name in names if run.config.get(name)]
    body = text(", ".join(words))
    for line in (" · ".join(map(str, run.results["about"].values())), *run.results["notes"]):
        body += f"<br><small>{text(line)}</small>"
    return f"{body}<p class='big worse'>{run.unfinished}" if run.unfinished else body


def size_of(run: RunFolder) -> str:
    """On how much a run was tested: "N = 20 samples of 10 structures"; "" if no file says so."""
    if run.tested:
        return f"N = {summary.counted({**run.results, 'splits': {}})}"
    for values in run.held_out.values():
        return f"N = {values.shape[1]} held-out proteins"
    return ""


def sizes_of(runs: Iterable[RunFolder]) -> str:
    """The same of several runs, said once if it is the same."""
    return said_once(map(size_of, runs))


def said_once(texts: Iterable[str]) -> str:
    """What several runs say, without repeats."""
    return " / ".join(dict.fromkeys(filter(None, texts)))


def tested_on(runs: Sequence[RunFolder]) -> str:
    """The lines below *Result*: on what the runs were tested, and the verdicts on runs of tables."""
    tested = [run for run in runs if run.tested]
    words = said_once(": ".join(wording.counted(run.results)) for run in tested) or sizes_of(runs)
    reasons = said_once(run.results["no_interval"] for run in tested)
    if reasons:
        words += f". No interval {reasons}"
    body = f"<p class=note>{text(words)}</p>"
    for run in tested:
        verdict = wording.verdict_of(run.results)
        sentence = wording.sentence(verdict)
        if sentence:
            name = f"{run.name}: " if len(runs) > 1 else ""
            body += f"<p class={'better' if verdict.good else 'worse'}>{text(name + sentence)}</p>"
    return body


# ---- a measure -------------------------------------------------------------------------------------------------------


def cell(value: float | list[float] | None, measure: str = "") -> str:
    """A value of a measure as text, or without one a difference, or an interval of either; "" of none."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " to ".join(cell(end, measure) for end in value)
    return show(measure, value) if measure else f"{value:+.3g}"


def with_interval(row: Row, measure: str) -> str:
    """A measure, in brackets its interval: "0.80 (0.61 to 0.93)"."""
    brackets = f" ({cell(row.interval, measure)})" if row.interval else ""
    return f"{cell(row.mean, measure)}{brackets}"


def over(rows: Sequence[Row]) -> str:
    """What the intervals of a measure are over; "" if there are none."""
    sources = said_once(row.sources for row in rows if row.interval)
    return f"95 % intervals over {sources}" if sources else ""


def result(row: Row, measure: str) -> str:
    """A result in words: its value, its interval, and how it compares with the baseline and a head of composition."""
    words = f"<p class=big>{cell(row.mean, measure)}</p>"
    if row.interval:
        words += f"<p>95 % interval {cell(row.interval, measure)}, over {row.sources}</p>"
    composition = row.run.results["floor"]
    others = [("the baseline", row.baseline, row.run.side.get(measure, ""))]
    if composition:
        told = composition["verdict"].get(measure, "")
        others.append((composition["features"], composition["mean"].get(measure), told))
    for name, value, side in others:
        if value is not None:
            sentence = f"{THAN.get(side, 'beside')} {name} ({cell(value, measure)})"
            words += f"<p class={side or 'beside'}>{text(sentence)}</p>"
    return words
