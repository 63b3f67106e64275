"""Runs side by side as a table: on the page of `siamdiff report`, in a CSV file with all digits, and in LaTeX.

Every run stands beside the first one. Where the two cannot be compared, a cell says why, and LaTeX has no ranks.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy.stats import rankdata

from ...files import printable, write_file, write_rows
from ..evidence.verdict import less_is_better
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
        title = title_of(measure, results)
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
                lines.append([what, measure, title_of(measure, results), *own, *against])
    write_rows(path, lines, ",")


def with_sources(of: Row | Difference) -> list:
    """An interval and what it is over; empty cells if there is none."""
    return [*of.interval, of.sources] if of.interval else ["", "", ""]


# ---- a tabular in LaTeX ----------------------------------------------------------------------------------------------


def write_latex(path: Path, sections: Sections) -> None:
    """Write a tabular with mean ranks, as Tables 1 and 2; below each run stands its baseline. Raises WriteError.

    Of several tasks, folders of one name are one method and row: ec/siamdiff, psr/siamdiff.
    """
    # A method is called by the last part of its run's name, unless two runs of one task share it.
    named = [(what, run.name, run.name.split("/")[-1]) for what, runs in sections.items() for run in runs]
    short = len({(what, last) for what, _, last in named}) == len(named)
    methods = {name: last if short else name for _, name, last in named}
    ranks: dict[str, list] = {method: [] for method in methods.values()}

    # A column for each measure: two rows for each method.
    columns = [[r"\toprule Method"]]
    for method in ranks:
        columns[0] += [rf"\midrule {escaped(method)}", "baseline"]
    for what, runs in sections.items():
        task = runs[0].config.get("task", "table")
        above = what if task == "table" else task.upper()
        results = results_of(runs)
        for measure, rows in results.items():
            of_methods = {methods[row.run.name]: row for row in rows}
            places = ranks_of(of_methods, less_is_better(measure, runs[0].results["direction"]))
            column = [escaped(f"{above}, {title_of(measure, results)}")]
            for method in ranks:
                ranks[method] += [places.get(method, math.inf)] if places else []
                column += cells_of(of_methods.get(method), places.get(method))
            columns.append(column)

    # The mean rank is over all columns that have ranks: who was not measured in one of them has none.
    means = [sum(x) / len(x) if x else math.inf for x in ranks.values()]
    columns.append(["Mean rank"])
    for mean in means:
        columns[-1] += [marked(f"{mean:.1f}", mean == min(means)) if mean < math.inf else "-", ""]
    lines = [" & ".join(row) + r" \\" for row in zip(*columns)]
    head = rf"\begin{{tabular}}{{{'l' * len(columns)}}} % with the package booktabs"
    write_file(path, "\n".join([head, *lines, r"\bottomrule \end{tabular}", ""]).encode())


def ranks_of(rows: Mapping[str, Row], less: bool | None) -> dict[str, int]:
    """The ranks of methods, 1 is the best; equal ones share the better rank. None if not all can be compared."""
    _, *others = [row.difference.gain for row in rows.values()]
    if less is None or not others or None in others:
        return {}
    places = rankdata([row.mean if less else -row.mean for row in rows.values()], "min")
    return dict(zip(rows, places.tolist()))


def cells_of(row: Row | None, rank: int | None) -> list[str]:
    """Mean ± standard deviation over seeds and interval of a run; its baseline."""
    if row is None:
        return ["-", "-"]
    spread = "" if row.std is None else rf"$\pm${row.std:.3f}"
    ends = r" {{\scriptsize $[{:.3f}, {:.3f}]$}}".format(*row.interval) if row.interval else ""
    baseline = "-" if row.baseline is None else f"{row.baseline:.3f}"
    return [marked(f"{row.mean:.3f}{spread}", rank == 1) + ends, baseline]


def marked(cell: str, best: bool) -> str:
    """The best in bold."""
    return rf"\textbf{{{cell}}}" if best else cell


def escaped(text: str) -> str:
    """Text for LaTeX."""
    words = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return re.sub(r"[&%$#_{}~^\\]", lambda found: words.get(found[0], f"\\{found[0]}"), printable(text))
