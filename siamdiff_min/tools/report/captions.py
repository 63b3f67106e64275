"""What a page says of a run, as HTML: what it predicts, how it was made, and what its result means."""

import html
from collections.abc import Sequence
from pathlib import Path

from ...downstream.tasks import TASKS
from ...files import printable
from ..evidence import wording
from ..evidence.verdict import side
from ..evidence.wording import THAN, show
from . import comparison
from .runs import RunFolder

CSS = {"better": "better", "worse": "worse", "untold": "not", "other": "other", "beside": "beside"}  # side -> class


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
    if config.get("features"):  # no encoder took part
        words = [f"vectors of {config['features']}"]
    elif config.get("task"):
        start = f"from {config.get('init_from') or 'scratch'}"
        words.append(f"{start}, frozen" if config.get("freeze") else start)
    words.append(str(config.get("data") or "demo set"))

    made = " · ".join(map(str, run.results["about"].values()))
    lines = [text(", ".join(words))]
    for line in (made, *run.results["notes"]):
        lines.append(f"<small>{text(line)}</small>")

    body = "<br>".join(lines)
    if run.unfinished:
        body += f"<p class='big worse'>{run.unfinished}"
    return body


def size_of(run: RunFolder) -> str:
    """On how much a run was tested: "N = 20 samples of 10 structures"; "" if no file says so."""
    if run.tested:
        counts = run.results["counts"]
        words = f"N = {counts['samples']} samples of {counts['structures']} structures"
        for name, what in (("sequences", "sequences"), ("positives", "positive")):
            words += f", {counts[name]} {what}" if name in counts else ""
        return words
    if run.held_out:
        return f"N = {run.held_out.count} held-out proteins"
    samples = [line["samples"] for lines in run.lines.values() for line in lines[-1:] if "samples" in line]
    return f"N = {samples[0]} held-out" if samples else ""


def sizes_of(runs: Sequence[RunFolder]) -> str:
    """The same of several runs, said once if it is the same."""
    return " / ".join(dict.fromkeys(filter(None, map(size_of, runs)))) or "held out at the end"


def tested_on(runs: Sequence[RunFolder]) -> str:
    """The line below *Result*: on what the runs were tested, and which measure counts."""
    tested = [run.results for run in runs if run.tested]
    splits = dict.fromkeys(": ".join(wording.counted(results)) for results in tested)
    reasons = dict.fromkeys(results["no_interval"] for results in tested if results["no_interval"])
    words = " / ".join(splits) or sizes_of(runs)
    if reasons:
        words += f". No interval {', or '.join(reasons)}"
    if not tested:
        return text(words)

    # Which measure counts, and why.
    decides = tested[0]["options"].get("metric") or next(iter(tested[0]["mean"]))
    words += f". The measure that counts is {wording.title_of(decides).partition(' (')[0]}"
    epochs = [max(results["best_epoch"].values(), default=0) for results in tested]
    if max(epochs) > 0 and tested[0]["direction"].get(decides):
        words += ": it has chosen the epoch, on other structures"
    return text(words)


def verdicts(runs: Sequence[RunFolder]) -> str:
    """The verdicts on runs of tables, and what is not compared, a line each."""
    body = ""
    for run in runs:
        name = f"{run.name}: " if len(runs) > 1 else ""
        verdict = wording.verdict_of(run.results)
        sentence = wording.sentence(verdict)
        if sentence:
            css = "better" if verdict.good else "worse"
            body += f"<p class={css}>{text(f'{name}{sentence}')}</p>"
    for run in runs[1:]:
        reason = comparison.why_not(runs[0], run)
        if reason:
            sentence = f"{run.name} is not compared with {runs[0].name}: {reason}"
            body += f"<p class=worse>{text(sentence)}</p>"
    return body


# ---- a measure -------------------------------------------------------------------------------------------------------


def with_interval(run: RunFolder, measure: str) -> str:
    """A measure of a run, in brackets its interval: "0.80 (0.61 to 0.93)"; "" if the run has not measured it."""
    if measure not in run.mean:
        return ""
    ends = comparison.interval_of(run, measure)
    brackets = f" ({' to '.join(show(measure, end) for end in ends)})" if ends else ""
    return f"{show(measure, run.mean[measure])}{brackets}"


def over(runs: Sequence[RunFolder], measure: str) -> str:
    """What the numbers in brackets are; "" if there are none."""
    ours = [run for run in runs if measure in run.mean and comparison.interval_of(run, measure)]
    sources = dict.fromkeys(comparison.sources(measure, run) for run in ours)
    return f"95 % intervals over {' / '.join(sources)}" if sources else ""


def verdict(run: RunFolder, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the baseline, and with a head of composition."""
    words = f"<p class=big>{show(measure, run.mean[measure])}{correct_of(run, measure)}</p>"
    ends = comparison.interval_of(run, measure)
    if ends:
        low, high = (show(measure, end) for end in ends)
        words += f"<p>95 % interval {low} to {high}, over {comparison.sources(measure, run)}</p>"
    baseline = run.baseline.get(measure)
    if baseline is not None:
        words += said_beside(side_of_baseline(run, measure), "the baseline", show(measure, baseline))
    floor = run.results["floor"]
    if measure in floor.get("mean", {}):
        words += said_beside(
            floor["verdict"].get(measure, ""), floor["features"], show(measure, floor["mean"][measure])
        )
    return words


def side_of_baseline(run: RunFolder, measure: str) -> str:
    """The side of the baseline on which a run is; "" if a test split is too small to say.

    Pre-training without a valid.tsv has no interval: its value alone decides.
    """
    if run.tested:
        return wording.against_baseline(run.results, measure)
    gain = run.mean[measure] - run.baseline[measure]
    return side(measure, comparison.over_baseline(run, measure) or [gain, gain], {})


def said_beside(side: str, other: str, value: str) -> str:
    """On which side of another value a result is."""
    words = f"{THAN[side]} {other}" if side else f"beside {other}"
    return f"<p class={CSS[side or 'beside']}>{text(words)} ({value})</p>"


def correct_of(run: RunFolder, measure: str) -> str:
    """Behind an accuracy: how many samples are right, of every seed; else nothing."""
    correct = run.results["counts"].get("correct")
    if measure != "accuracy" or not correct:
        return ""
    of_seeds = " / ".join(map(str, correct.values()))
    return f" <small>{of_seeds} of {text(run.results['samples'])}</small>"


def difference(runs: Sequence[RunFolder], measure: str) -> str:
    """Of two runs the second minus the first, with its interval, or why they are not compared; else nothing."""
    if len(runs) != 2:
        return ""
    first, second = runs
    found = comparison.difference(first, second, measure)
    if not found.side:
        return ""
    low, high = found.interval
    words = f"{second.name} {THAN[found.side]} {first.name}: {found.gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={CSS[found.side]}>{text(f'{words}, over {found.sources}')}</p>"
