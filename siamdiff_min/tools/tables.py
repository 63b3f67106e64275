"""Runs side by side as a table: on the page of `siamdiff report`, and in a CSV file (`--csv`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..files import write_rows
from ..training.wording import show, side, title_of
from .comparison import compare
from .runs import RunFolder

CSV_TITLES = (
    "what",
    "measure",
    "title",
    "run",
    "seeds",
    "mean",
    "std",
    "low",
    "high",
    "interval over",
    "constant",
    "difference",
    "difference low",
    "difference high",
    "difference over",
)


def measures_to_compare(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Of all measures those that say how good a run is: of pre-training losses, errors and accuracies."""
    if any(run.results["test"] for run in runs):
        return [name for name in names if any(name in run.results["mean"] for run in runs)]
    found = [name for name in names if name.endswith(("loss", "error", "accuracy"))]
    return [name for name in found if any(run.results["mean"].get(name) is not None for run in runs)]


def comparison_rows(runs: Sequence[RunFolder], measures: Sequence[str]) -> list[list[str]]:
    """The comparison as rows for a page, titles first."""
    against = f"minus {runs[0].name}"
    lines = [["", "run", "seeds", "mean", "std", "95 % interval", "constant", against, "95 % interval", ""]]
    for measure in measures:
        title = title_of(measure, measures)
        for row in compare(runs, measure):
            verdict = ""
            if row.gain_interval:
                verdict = f"{side(measure, row.gain_interval, runs[0].results['direction'])} it"
            elif row.run != runs[0].name:
                verdict = "not the same noise" if row.gain is None else "no interval"
            lines.append(
                [
                    title,
                    row.run,
                    str(row.seeds),
                    show(measure, row.mean),
                    "" if row.std is None else show(measure, row.std),
                    "" if row.interval is None else " to ".join(show(measure, end) for end in row.interval),
                    "" if row.baseline is None else show(measure, row.baseline),
                    "" if row.gain is None else f"{row.gain:+.3g}",
                    "" if row.gain_interval is None else " to ".join(f"{end:+.3g}" for end in row.gain_interval),
                    verdict,
                ]
            )
            title = ""  # said once
    return lines


# ---- files -----------------------------------------------------------------------------------------------------------


def write_csv(path: Path, sections: Mapping[str, tuple[Sequence[RunFolder], Sequence[str]]]) -> None:
    """A row for every measure of every run, with all digits. `sections`: what was predicted -> runs, measures."""
    lines = [CSV_TITLES]
    for what, (runs, measures) in sections.items():
        for measure in measures:
            for row in compare(runs, measure):
                own = [row.mean, row.std, *cells_of(row.interval, row.sources)]
                against = [row.gain, *cells_of(row.gain_interval, row.gain_sources)]
                title = title_of(measure, measures)
                lines.append([what, measure, title, row.run, row.seeds, *own, row.baseline, *against])
    write_rows(path, lines, ",")


def cells_of(interval: Sequence[float] | None, sources: str) -> list:
    """An interval and what it is over; empty cells if there is none."""
    return ["", "", ""] if interval is None else [*interval, sources]
