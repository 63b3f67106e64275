"""Runs side by side as a table: on the page of `siamdiff report`, in a CSV file, and as a tabular in LaTeX.

The tabular has the form of Tables 1 and 2. Every column has the best mean in bold and the second underlined; the mean
rank is over all columns. Below each mean stands its interval, and below the methods their baselines. Where not all runs
of a column can be compared it has no ranks, and a line says why.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

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


class Column(NamedTuple):
    """A measure of what was predicted."""

    above: str  # what was predicted
    title: str
    rows: dict[str, Row]  # by method
    ranks: dict[str, int]  # by method, 1 is the best; empty if there are none

    def cell(self, method: str) -> str:
        """Mean and standard deviation as the paper prints them; without the latter of a single seed."""
        if method not in self.rows:
            return "-"
        row = self.rows[method]
        text = f"{row.mean:.3f}" if row.std is None else rf"{row.mean:.3f}$\pm${row.std:.3f}"
        return marked(text, self.ranks.get(method))

    def interval(self, method: str) -> str:
        """The interval in small print; "" of none."""
        row = self.rows.get(method)
        if row is None or row.interval is None:
            return ""
        low, high = row.interval
        return rf"{{\scriptsize $[{low:.3f}, {high:.3f}]$}}"

    def baseline(self, method: str) -> str:
        """The best answer that looks at nothing."""
        value = self.rows[method].baseline if method in self.rows else None
        return "-" if value is None else f"{value:.3f}"


def write_latex(path: Path, sections: Sections) -> None:
    """Write the tabular; it needs the package booktabs.

    A method that was run on several tasks is one row, if its folders have one name: ec/siamdiff, psr/siamdiff.
    """
    columns = [column for what, runs in sections.items() for column in columns_of(what, runs)]
    methods = dict.fromkeys(method for column in columns for method in column.rows)
    over = dict.fromkeys(row.sources for column in columns for row in column.rows.values() if row.interval)
    above = Counter(column.above for column in columns)
    heads = [rf"\multicolumn{{{count}}}{{c}}{{\textbf{{{title}}}}}" for title, count in above.items()]
    lines = [
        f"% 95 % intervals over {', or '.join(over)}; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'c' * (len(columns) + 1)}}}",
        r"\toprule",
        line_of("", heads, r"\textbf{Mean}"),
        line_of(r"\textbf{Method}", [column.title for column in columns], r"\textbf{Rank}"),
        r"\midrule",
    ]

    # Two lines for every method. The mean rank is over all columns; without a value in one of them there is none.
    ranked = [column.ranks for column in columns if column.ranks]
    means = {}
    for method in methods:
        if ranked and all(method in ranks for ranks in ranked):
            means[method] = sum(ranks[method] for ranks in ranked) / len(ranked)
    order = ranks_of(means)
    for method in methods:
        mean = f"{means[method]:.1f}" if method in means else "-"
        cells = [column.cell(method) for column in columns]
        lines.append(line_of(escaped(method), cells, marked(mean, order.get(method))))
        intervals = [column.interval(method) for column in columns]
        if any(intervals):
            lines.append(line_of("", intervals))
    lines += [*baselines(methods, columns), r"\bottomrule", *not_compared(columns), r"\end{tabular}", ""]
    write_file(path, "\n".join(lines).encode())


def columns_of(what: str, runs: Sequence[RunFolder]) -> list[Column]:
    """The columns of runs of one task, or of pre-training. A method is called by the last part of its run's name."""
    last = [run.name.split("/")[-1] for run in runs]
    methods = {run.name: name if last.count(name) == 1 else run.name for run, name in zip(runs, last)}
    task = runs[0].config.get("task", "")
    above = escaped(task.upper() if task and task != "table" else what.partition(":")[0])
    columns = []
    results = results_of(runs)
    for measure, of_runs in results.items():
        rows = {methods[row.run.name]: row for row in of_runs}
        title = title_of(measure, results).partition(" (")[0]
        title = PAPER.get(measure) or escaped(title[:1].upper() + title[1:])

        # Ranks, if all were compared, and somebody says which values are better.
        ranks = {}
        less = less_is_better(measure, runs[0].results["direction"])
        if less is not None and len(rows) > 1 and not any(map(refused, of_runs)):
            ranks = ranks_of({method: row.mean if less else -row.mean for method, row in rows.items()})
        columns.append(Column(above, title, rows, ranks))
    return columns


def refused(row: Row) -> bool:
    """Whether a run was not compared with the first one."""
    return row.difference.gain is None and row.difference.why_not != ""


def baselines(methods: Iterable[str], columns: Sequence[Column]) -> list[str]:
    """A line of what looks at nothing, which has no rank; where methods have several, a line for each."""
    lines = {f"baseline of {escaped(method)}": [column.baseline(method) for column in columns] for method in methods}
    of_columns = [{*cells} - {"-"} for cells in zip(*lines.values())]
    if all(len(values) < 2 for values in of_columns):
        lines = {"baseline": ["".join(values) or "-" for values in of_columns]}
    return [line_of(title, cells) for title, cells in lines.items() if {*cells} != {"-"}]


def not_compared(columns: Sequence[Column]) -> list[str]:
    """Lines below the table: which runs were not compared with the first one, and why."""
    titles = defaultdict(list)
    for column in columns:
        for method, row in column.rows.items():
            if refused(row):
                titles[escaped(f"{method}: {row.difference.why_not}")].append(column.title)
    start = rf"\multicolumn{{{len(columns) + 2}}}{{l}}"
    return [rf"{start}{{\scriptsize {words} ({', '.join(of)}), not compared}} \\" for words, of in titles.items()]


# ---- cells -----------------------------------------------------------------------------------------------------------


def ranks_of(values: Mapping[str, float]) -> dict[str, int]:
    """Name -> rank of its value, 1 is the lowest. Equal ones share the better rank, as in the paper's tables."""
    return dict(zip(values, rankdata([*values.values()], method="min").astype(int).tolist()))


def marked(cell: str, rank: int | None) -> str:
    """The best in bold, the second underlined."""
    mark = {1: "textbf", 2: "underline"}.get(rank)
    return rf"\{mark}{{{cell}}}" if mark else cell


def line_of(title: str, cells: Sequence[str], last: str = "") -> str:
    """A line of the tabular."""
    return " & ".join([title, *cells, last]) + r" \\"


def escaped(text: str) -> str:
    """Text for LaTeX."""
    return printable(text).translate(SPECIAL)
