"""What a page says of a run, as HTML: what it predicts, how it was made, and what its result means."""

import html
from collections.abc import Sequence
from pathlib import Path

from ...downstream.tasks import TASKS
from ...files import printable
from ..evidence import wording
from ..evidence.verdict import side as side_of
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
    if run.results["unfinished"]:
        body += f"<p class='big worse'>{run.results['unfinished']}"
    return body


def tested_on(runs: Sequence[RunFolder]) -> str:
    """The line below *Result*: on what the runs were tested, and what the signs in the pictures are."""
    # Runs of one split say the same, which is said once.
    tested = [run.results for run in runs if run.results["test"]]
    proteins = [run.results["proteins"] for run in runs if run.results["proteins"]]
    if tested:
        splits = dict.fromkeys(": ".join(wording.counted(results)) for results in tested)
        reasons = dict.fromkeys(results.get("no_interval") for results in tested)
        no_interval = [f" (none {reason})" for reason in reasons if reason]
        note = f"{' / '.join(splits)}. Bars: 95 % intervals over draws of structures{''.join(no_interval)}"
    elif proteins:
        counts = dict.fromkeys(str(of_run["count"]) for of_run in proteins)
        note = f"{' / '.join(counts)} proteins, held out at the end. Bars: 95 % intervals over proteins"
    else:
        note = "held out at the end"
    if any(len(run.measured) > 1 for run in runs):
        note += "; dots: seeds"
    note += "; dashed: the best answer that looks at nothing"
    floors = dict.fromkeys(results["floor"]["features"] for results in tested if results["floor"])
    if floors:
        note += f"; dotted: a head of {' / '.join(floors)}"
    return text(f"{note}{what_counts(tested)}")


def verdicts(runs: Sequence[RunFolder]) -> str:
    """The verdicts on runs of tables, a line each."""
    body = ""
    for run in runs:
        verdict = wording.verdict_of(run.results)
        sentence = wording.sentence(verdict)
        if sentence:
            css = "better" if verdict.good else "worse"
            name = f"{run.name}: " if len(runs) > 1 else ""
            body += f"<p class={css}>{text(f'{name}{sentence}')}</p>"
    return body


def what_counts(tested: Sequence[dict]) -> str:
    """A sentence that says which measure of a fine-tuned run counts, and why; "" for pre-training."""
    if not tested:
        return ""
    decides = tested[0]["options"].get("metric") or next(iter(tested[0]["mean"]))
    words = f". The measure that counts is {wording.title_of(decides).partition(' (')[0]}"
    epochs = [max(results["best_epoch"].values(), default=0) for results in tested]
    if max(epochs) > 0 and tested[0]["direction"].get(decides):
        words += ": it has chosen the epoch, on other structures"
    return words


# ---- a measure -------------------------------------------------------------------------------------------------------


def verdict(run: RunFolder, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the constant answer."""
    value = run.results["mean"][measure]
    interval = comparison.over_proteins(run, measure)
    baseline = run.results["constant"].get(measure)
    gain = comparison.over_baseline(run, measure)

    words = f"<p class=big>{show(measure, value)}{correct_of(run, measure)}</p>"
    if interval:
        low, high = interval
        words += f"<p>95 % interval {show(measure, low)} to {show(measure, high)}</p>"
    if baseline is None:
        return words

    # Pre-training without a valid.tsv has no interval: its value alone decides. A test split that is too small for an
    # interval decides nothing.
    if not gain and not run.results["test"]:
        gain = [value - baseline, value - baseline]
    if not gain:
        return f"{words}<p class=not>the constant answer has {show(measure, baseline)}</p>"
    side = wording.against_baseline(run.results, measure) or side_of(measure, gain, run.results["direction"])
    words += said_beside(side, "the constant answer", show(measure, baseline))

    # A linear head also stands beside the same head of length and composition.
    floor = run.results["floor"]
    if measure in floor.get("mean", {}):
        side = floor["verdict"].get(measure, "beside")
        words += said_beside(side, floor["features"], show(measure, floor["mean"][measure]))
    return words


def said_beside(side: str, other: str, value: str) -> str:
    """On which side of another value a result is; `beside` if nothing is said."""
    return f"<p class={CSS[side]}>{THAN.get(side, side)} {text(other)} ({value})</p>"


def correct_of(run: RunFolder, measure: str) -> str:
    """Behind an accuracy: how many samples are right, of every seed; else nothing."""
    correct = run.results["counts"].get("correct")
    if measure != "accuracy" or not correct:
        return ""
    of_seeds = " / ".join(map(str, correct.values()))
    return f" <small>{of_seeds} of {text(run.results['samples'])}</small>"


def difference(runs: Sequence[RunFolder], measure: str) -> str:
    """Of two runs on one test split the second minus the first, with its interval; else nothing."""
    if len(runs) != 2:
        return ""
    first, second = runs
    gain, interval = comparison.difference(first, second, measure)
    if interval is None:
        return ""
    side = side_of(measure, interval, second.results["direction"])
    low, high = interval
    words = f"{second.name} {THAN[side]} {first.name}: {gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={CSS[side]}>{text(words)}</p>"
