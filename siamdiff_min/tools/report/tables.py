"""Runs side by side as a table: on the page of `siamdiff report`, and in a CSV file with all digits.

Every run stands beside the first one. Where the two cannot be compared, a cell says why.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...files import write_rows
from ..evidence.wording import THAN, title_of
from .captions import cell
from .comparison import Difference, Row, compare
from .runs import RunFolder

Sections = Mapping[str, Sequence[RunFolder]]  # what was predicted -> runs
CSV_TITLES = (
    *("what", "measure", "title", "run", "seeds", "mean", "std", "low", "high", "interval over", "baseline"),
    *("difference", "difference low", "difference high", "difference over", "not compared"),
)


def results_of(runs: Sequence[RunFolder]) -> dict[str, list[Row]]:
    """Of every measure that says how good a run is the results: of pre-training of losses, errors and accuracies."""
    found = {}
    for measure in dict.fromkeys(measure for run in runs for measure in run.mean):
        if any(run.tested for run in runs) or measure.endswith(("loss", "error", "accuracy")):
            found[measure] = compare(runs, measure)
    return found


def comparison_rows(runs: Sequence[RunFolder]) -> list[list[str]]:
    """The comparison as rows for a page, titles first."""
    against = f"minus {runs[0].name}"
    lines = [["", "run", "seeds", "mean", "std", "95 % interval", "over", "baseline", against, "95 % interval", ""]]
    results = results_of(runs)
    for measure, rows in results.items():
        title = title_of(measure)
        for row in rows:
            gain = row.difference
            shown = [cell(value, measure) for value in (row.mean, row.std, row.interval, row.baseline)]
            shown.insert(3, row.sources if row.interval else "")
            gains = [cell(gain.gain), cell(gain.interval)]
            words = f"{THAN[gain.side]} it" if gain.side else gain.why_not
            lines.append([title, row.run.name, str(row.seeds), *shown, *gains, words])
            title = ""  # said once
    return lines


def write_csv(path: Path, sections: Sections) -> None:
    """A row for every measure of every run, with all digits."""
    lines = [CSV_TITLES]
    for what, runs in sections.items():
        results = results_of(runs)
        for measure, rows in results.items():
            for row in rows:
                gain = row.difference
                own = [row.run.name, row.seeds, row.mean, row.std, *with_sources(row), row.baseline]
                against = [gain.gain, *with_sources(gain), gain.why_not]
                lines.append([what, measure, title_of(measure), *own, *against])
    write_rows(path, lines, ",")


def with_sources(of: Row | Difference) -> list:
    """An interval and what it is over; empty cells if there is none."""
    return [*of.interval, of.sources] if of.interval else ["", "", ""]
