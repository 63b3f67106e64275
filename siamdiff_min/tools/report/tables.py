"""Runs side by side as a table: on the page of `siamdiff report`, in a CSV file, and as a tabular in LaTeX.

The tabular has the form of Tables 1 and 2. Every column has the best mean in bold and the second underlined; the mean
rank is over all columns. Below each mean stands its interval, and below the methods their baselines, and their
differences to the first one. Where not all runs of a column can be compared it has no ranks, and a line says why.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scipy.stats import rankdata

from ...files import printable, write_file, write_rows
from ..evidence.verdict import less_is_better
from ..evidence.wording import THAN, show, title_of
from .comparison import Difference, Row, are_ranked, compare
from .runs import RunFolder

Sections = Mapping[str, tuple[Sequence[RunFolder], Sequence[str]]]  # what was predicted -> runs, measures
CSV_TITLES = (
    *("what", "measure", "title", "run", "seeds", "mean", "std", "low", "high", "interval over", "baseline"),
    *("difference", "difference low", "difference high", "difference over", "not compared"),
)
PAPER = {  # measure -> its name in Tables 1 and 2
    "auprc": "AUPR",
    "auroc": "AUROC",
    "fmax": r"F\textsubscript{max}",
    "accuracy": "Accuracy",
    "global_spearman": r"Global $\rho$",
    "mean_spearman": r"Mean $\rho$",
    "spearman": r"$\rho$",
    "pearson": "$r$",
    "rmse": "RMSE",
    "mae": "MAE",
}
SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)


def measures_to_compare(runs: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """Of all measures those that say how good a run is: of pre-training losses, errors and accuracies."""
    tested = any(run.tested for run in runs)
    ours = [name for name in names if tested or name.endswith(("loss", "error", "accuracy"))]
    return [name for name in ours if any(name in run.mean for run in runs)]


def comparison_rows(runs: Sequence[RunFolder], measures: Sequence[str]) -> list[list[str]]:
    """The comparison as rows for a page, titles first."""
    against = f"minus {runs[0].name}"
    lines = [["", "run", "seeds", "mean", "std", "95 % interval", "over", "baseline", against, "95 % interval", ""]]
    for measure in measures:
        title = title_of(measure, measures)
        of_measure = partial(show, measure)
        for row in compare(runs, measure):
            gain = row.difference
            numbers = [cell(row.mean, of_measure), cell(row.std, of_measure), cell(row.interval, of_measure)]
            numbers += [row.sources if row.interval else "", cell(row.baseline, of_measure)]
            gains = [cell(gain.gain, "{:+.3g}".format), cell(gain.interval, "{:+.3g}".format)]
            words = f"{THAN[gain.side]} it" if gain.side else gain.why_not
            lines.append([title, row.run, str(row.seeds), *numbers, *gains, words])
            title = ""  # said once
    return lines


def cell(value: float | Sequence[float] | None, show: Callable[[float], str]) -> str:
    """A value or an interval in a cell; "" of none."""
    if isinstance(value, list):
        return " to ".join(map(show, value))
    return "" if value is None else show(value)


# ---- a CSV file ------------------------------------------------------------------------------------------------------


def write_csv(path: Path, sections: Sections) -> None:
    """A row for every measure of every run, with all digits."""
    lines = [CSV_TITLES]
    for what, (runs, measures) in sections.items():
        for measure in measures:
            title = title_of(measure, measures)
            for row in compare(runs, measure):
                gain = row.difference
                own = [row.mean, row.std, *with_sources(row), row.baseline]
                against = [gain.gain, *with_sources(gain), gain.why_not]
                lines.append([what, measure, title, row.run, row.seeds, *own, *against])
    write_rows(path, lines, ",")


def with_sources(of: Row | Difference) -> list:
    """An interval and what it is over; empty cells if there is none."""
    return [*of.interval, of.sources] if of.interval else ["", "", ""]


# ---- a tabular in LaTeX ----------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A measure of what was predicted."""

    above: str  # what was predicted
    title: str
    rows: dict[str, Row]  # by method
    ranks: dict[str, int]  # by method, 1 is the best; empty if there are none


def write_latex(path: Path, sections: Sections) -> None:
    """Write the tabular; it needs the package booktabs.

    A method that was run on several tasks is one row, if its folders have one name: ec/siamdiff, psr/siamdiff.
    """
    columns = []
    for what, (runs, measures) in sections.items():
        columns += columns_of(what, runs, measures)
    every = [row for column in columns for row in column.rows.values()]
    methods = [*dict.fromkeys(method for column in columns for method in column.rows)]
    over = dict.fromkeys(row.sources for row in every if row.interval)
    lines = [
        f"% 95 % intervals over {', or '.join(over)}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'c' * (len(columns) + 1)}}}",
        *[r"\toprule", *heads(columns), r"\midrule"],
        *values(methods, columns),
        *baselines(methods, columns),
        *differences(methods, columns),
        *[r"\bottomrule", *not_compared(columns), r"\end{tabular}", ""],
    ]
    write_file(path, "\n".join(lines).encode())


def columns_of(what: str, runs: Sequence[RunFolder], measures: Sequence[str]) -> list[Column]:
    """The columns of runs of one task, or of pre-training. A method is called by the last part of its run's name."""
    last = [run.name.split("/")[-1] for run in runs]
    methods = {run.name: name if last.count(name) == 1 else run.name for run, name in zip(runs, last)}
    task = runs[0].config.get("task", "")
    above = escaped(task.upper() if task and task != "table" else what.partition(":")[0])
    columns = []
    for measure in measures:
        rows = {methods[row.run]: row for row in compare(runs, measure)}
        title = title_of(measure, measures).partition(" (")[0]
        title = PAPER.get(measure) or escaped(title[:1].upper() + title[1:])

        # Ranks, if all were compared, and somebody says which values are better.
        ranks = {}
        less = less_is_better(measure, runs[0].results["direction"])
        if less is not None and are_ranked([*rows.values()]):
            means = {method: row.mean for method, row in rows.items()}
            ranks = ranks_of(means, less)
        columns.append(Column(above, title, rows, ranks))
    return columns


def heads(columns: Sequence[Column]) -> list[str]:
    """Two lines of titles: what was predicted, over the measures."""
    counts = Counter(column.above for column in columns)
    above = [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{title}}}}}" for title, count in counts.items()]
    titles = [column.title for column in columns]
    return [line_of(["", *above, r"\textbf{Mean}"]), line_of([r"\textbf{Method}", *titles, r"\textbf{Rank}"])]


def values(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Two lines for every method: mean and standard deviation over seeds; intervals."""
    # The mean rank is over all columns; a method without a value in one of them has none.
    means = {}
    for method in methods:
        ranks = [column.ranks.get(method, math.nan) for column in columns if column.ranks]
        if ranks and not math.isnan(sum(ranks)):
            means[method] = sum(ranks) / len(ranks)
    order = ranks_of(means, less=True)
    lines = []
    for method in methods:
        cells = []
        intervals = []
        for column in columns:
            row = column.rows.get(method)
            cells.append("-" if row is None else marked(mean_and_std(row), column.ranks.get(method)))
            intervals.append(small(row, ".3f"))
        mean = f"{means[method]:.1f}" if method in means else "-"
        lines.append(line_of([escaped(method), *cells, marked(mean, order.get(method))]))
        if any(intervals):
            lines.append(line_of(["", *intervals, ""]))
    return lines


def baselines(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """The lines of what looks at nothing, which has no rank: one if all methods have the same, else one for each."""
    lines = {}
    for method in methods:
        found = [column.rows[method].baseline if method in column.rows else None for column in columns]
        lines[method] = ["-" if value is None else f"{value:.3f}" for value in found]
    of_columns = [{*cells} - {"-"} for cells in zip(*lines.values())]
    if any(len(cells) > 1 for cells in of_columns):
        own = {method: cells for method, cells in lines.items() if {*cells} != {"-"}}
        return [line_of([f"baseline of {escaped(method)}", *cells, ""]) for method, cells in own.items()]
    if not any(of_columns):
        return []
    shared = [min(cells, default="-") for cells in of_columns]
    return [line_of(["baseline", *shared, ""])]


def differences(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Two lines for every method that is compared with the first one: the difference, and its interval."""
    first, *others = methods
    lines = []
    for method in others:
        rows = [column.rows.get(method) if first == next(iter(column.rows)) else None for column in columns]
        gains = [Difference() if row is None else row.difference for row in rows]
        cells = ["-" if gain.gain is None else f"${gain.gain:+.3f}$" for gain in gains]
        if {*cells} != {"-"}:
            lines.append(line_of([f"{escaped(method)} $-$ {escaped(first)}", *cells, ""]))
            lines.append(line_of(["", *(small(gain, "+.3f") for gain in gains), ""]))
    return [r"\midrule", *lines] if lines else []


def not_compared(columns: Sequence[Column]) -> list[str]:
    """Lines below the table: which runs were not compared with the first one, and why."""
    titles = defaultdict(dict)
    for column in columns:
        for method, row in column.rows.items():
            if row.difference.why_not and row.difference.gain is None:
                titles[escaped(f"{method}: {row.difference.why_not}")][column.title] = True
    start = rf"\multicolumn{{{len(columns) + 2}}}{{l}}"
    return [rf"{start}{{\scriptsize {words} ({', '.join(of)}), not compared}} \\" for words, of in titles.items()]


# ---- cells -----------------------------------------------------------------------------------------------------------


def ranks_of(values: Mapping[str, float], less: bool) -> dict[str, int]:
    """Name -> rank of its value. Equal ones share the better rank, as in the paper's tables."""
    signed = [value if less else -value for value in values.values()]
    return dict(zip(values, rankdata(signed, method="min").astype(int).tolist()))


def mean_and_std(row: Row) -> str:
    """As the paper prints it; without the standard deviation of a single seed."""
    return f"{row.mean:.3f}" if row.std is None else rf"{row.mean:.3f}$\pm${row.std:.3f}"


def marked(cell: str, rank: int | None) -> str:
    """The best in bold, the second underlined."""
    mark = {1: "textbf", 2: "underline"}.get(rank)
    return rf"\{mark}{{{cell}}}" if mark else cell


def small(of: Row | Difference | None, form: str) -> str:
    """The interval in small print; "" of none."""
    if of is None or of.interval is None:
        return ""
    return rf"{{\scriptsize $[{', '.join(format(end, form) for end in of.interval)}]$}}"


def line_of(cells: Sequence[str]) -> str:
    """A line of the tabular."""
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    """Text for LaTeX."""
    return printable(text).translate(SPECIAL)
