"""Runs side by side as a table: on the page of `siamdiff report`, in a CSV file, and as a tabular in LaTeX.

The tabular has the form of Tables 1 and 2. Every column has the best mean in bold and the second underlined; the mean
rank is over all columns. Below each mean stands its interval, and below the methods their baselines, and their
differences to the first one. Where not all runs of a column can be compared it has no ranks, and a line says why.
"""

from collections.abc import Mapping, Sequence
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
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}


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
        for row in compare(runs, measure):
            difference = row.difference or Difference()
            numbers = [row.mean, row.std, row.interval, row.sources if row.interval else "", row.baseline]
            cells = [of if isinstance(of, str) else shown(measure, of) for of in numbers]
            gains = [signed(difference.gain), signed(difference.interval)]
            words = f"{THAN[difference.side]} it" if difference.side else difference.why_not
            lines.append([title, row.run, str(row.seeds), *cells, *gains, words])
            title = ""  # said once
    return lines


def shown(measure: str, value: float | Sequence[float] | None) -> str:
    """A value or an interval in a cell; "" of none."""
    if isinstance(value, list):
        return " to ".join(show(measure, end) for end in value)
    return "" if value is None else show(measure, value)


def signed(value: float | Sequence[float] | None) -> str:
    """A difference or its interval in a cell; "" of none."""
    if isinstance(value, list):
        return " to ".join(map(signed, value))
    return "" if value is None else f"{value:+.3g}"


# ---- a CSV file ------------------------------------------------------------------------------------------------------


def write_csv(path: Path, sections: Sections) -> None:
    """A row for every measure of every run, with all digits."""
    lines = [CSV_TITLES]
    for what, (runs, measures) in sections.items():
        for measure in measures:
            title = title_of(measure, measures)
            for row in compare(runs, measure):
                difference = row.difference or Difference()
                own = [row.mean, row.std, *cells_of(row.interval, row.sources), row.baseline]
                against = [difference.gain, *cells_of(difference.interval, difference.sources), difference.why_not]
                lines.append([what, measure, title, row.run, row.seeds, *own, *against])
    write_rows(path, lines, ",")


def cells_of(interval: Sequence[float] | None, sources: str) -> list:
    """An interval and what it is over; empty cells if there is none."""
    return ["", "", ""] if interval is None else [*interval, sources]


# ---- a tabular in LaTeX ----------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A measure of what was predicted."""

    above: str  # what was predicted
    title: str
    less_is_better: bool | None  # None: there are no ranks
    rows: dict[str, Row]  # by method


def write_latex(path: Path, sections: Sections) -> None:
    """Write the tabular; it needs the package booktabs.

    A method that was run on several tasks is one row, if its folders have one name: ec/siamdiff, psr/siamdiff.
    """
    columns = []
    for what, (runs, measures) in sections.items():
        columns += columns_of(what, runs, measures)
    methods = [*dict.fromkeys(method for column in columns for method in column.rows)]
    over = dict.fromkeys(row.sources for column in columns for row in column.rows.values() if row.interval)
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
    above = task.upper() if task and task != "table" else what.partition(":")[0]
    columns = []
    for measure in measures:
        rows = {methods[row.run]: row for row in compare(runs, measure)}
        less = None
        if are_ranked([*rows.values()]):
            less = less_is_better(measure, runs[0].results["direction"])
        columns.append(Column(escaped(above), title_in_paper(measure, measures), less, rows))
    return columns


def title_in_paper(measure: str, others: Sequence[str]) -> str:
    """The name of a measure in the paper's tables, or the one on the page."""
    if measure in PAPER:
        return PAPER[measure]
    title = title_of(measure, others).partition(" (")[0]
    return escaped(title[:1].upper() + title[1:])


def heads(columns: Sequence[Column]) -> list[str]:
    """Two lines of titles: what was predicted, over the measures."""
    above = [column.above for column in columns]
    cells = [""]
    for title in dict.fromkeys(above):
        cells.append(rf"\multicolumn{{{above.count(title)}}}{{c}}{{\textbf{{{title}}}}}")
    titles = [column.title for column in columns]
    return [line_of([*cells, r"\textbf{Mean}"]), line_of([r"\textbf{Method}", *titles, r"\textbf{Rank}"])]


def values(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Two lines for every method: mean and standard deviation over seeds; intervals."""
    ranks = [ranks_of(column) for column in columns]
    means = mean_ranks(methods, [of_column for of_column in ranks if of_column])
    order = ranked(means, less=True)
    lines = []
    for method in methods:
        cells = [escaped(method)]
        intervals = [""]
        for column, of_column in zip(columns, ranks):
            row = column.rows.get(method)
            cells.append("-" if row is None else marked(mean_and_std(row), of_column.get(method)))
            intervals.append("" if row is None else small(row.interval, ".3f"))
        cells.append(marked(f"{means[method]:.1f}", order[method]) if method in means else "-")
        lines.append(line_of(cells))
        if any(intervals):
            lines.append(line_of([*intervals, ""]))
    return lines


def baselines(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """The lines of what looks at nothing, which has no rank: one if all methods have the same, else one for each."""
    lines = {}
    for method in methods:
        rows = [column.rows.get(method) for column in columns]
        cells = ["-" if row is None or row.baseline is None else f"{row.baseline:.3f}" for row in rows]
        if {*cells} != {"-"}:
            lines[method] = cells
    of_columns = [{*cells} - {"-"} for cells in zip(*lines.values())]
    if any(len(cells) > 1 for cells in of_columns):
        return [line_of([f"baseline of {escaped(method)}", *cells, ""]) for method, cells in lines.items()]
    return [line_of(["baseline", *(next(iter(cells), "-") for cells in of_columns), ""])] if lines else []


def differences(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Two lines for every method that is compared with the first one: the difference, and its interval."""
    lines = []
    for method in methods[1:]:
        cells = []
        intervals = []
        for column in columns:
            row = column.rows.get(method)
            same_first = row is not None and next(iter(column.rows)) == methods[0]
            difference = (row.difference if same_first else None) or Difference()
            cells.append("-" if difference.gain is None else f"${difference.gain:+.3f}$")
            intervals.append(small(difference.interval, "+.3f"))
        if {*cells} != {"-"}:
            lines.append(line_of([f"{escaped(method)} $-$ {escaped(methods[0])}", *cells, ""]))
            lines.append(line_of(["", *intervals, ""]))
    return [r"\midrule", *lines] if lines else []


def not_compared(columns: Sequence[Column]) -> list[str]:
    """Lines below the table: which runs were not compared with the first one, and why."""
    titles = {}
    for column in columns:
        for method, row in column.rows.items():
            if row.difference and row.difference.gain is None:
                titles.setdefault((method, row.difference.why_not), []).append(column.title)
    width = len(columns) + 2
    lines = []
    for (method, why), of in titles.items():
        words = f"{escaped(f'{method}: {why}')} ({', '.join(dict.fromkeys(of))}), not compared"
        lines.append(rf"\multicolumn{{{width}}}{{l}}{{\scriptsize {words}}} \\")
    return lines


# ---- ranks -----------------------------------------------------------------------------------------------------------


def ranks_of(column: Column) -> dict[str, int]:
    """Method -> rank, 1 is the best; empty of one method, or if nobody says which values are better."""
    if column.less_is_better is None or len(column.rows) < 2:
        return {}
    return ranked({method: row.mean for method, row in column.rows.items()}, column.less_is_better)


def ranked(values: Mapping[str, float], less: bool) -> dict[str, int]:
    """Name -> rank of its value. Equal ones share the better rank, as in the paper's tables."""
    signed = [value if less else -value for value in values.values()]
    return dict(zip(values, rankdata(signed, method="min").astype(int).tolist()))


def mean_ranks(methods: Sequence[str], ranks: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Method -> mean of its ranks in all columns. A method without a value in one of them has none."""
    found = {}
    for method in methods:
        own = [of_column.get(method) for of_column in ranks]
        if own and None not in own:
            found[method] = sum(own) / len(own)
    return found


# ---- cells -----------------------------------------------------------------------------------------------------------


def mean_and_std(row: Row) -> str:
    """As the paper prints it; without the standard deviation of a single seed."""
    return f"{row.mean:.3f}" if row.std is None else rf"{row.mean:.3f}$\pm${row.std:.3f}"


def marked(cell: str, rank: int | None) -> str:
    """The best in bold, the second underlined."""
    if rank == 1:
        return rf"\textbf{{{cell}}}"
    return rf"\underline{{{cell}}}" if rank == 2 else cell


def small(interval: Sequence[float] | None, form: str) -> str:
    """An interval in small print; "" of none."""
    if interval is None:
        return ""
    low, high = (format(end, form) for end in interval)
    return rf"{{\scriptsize $[{low}, {high}]$}}"


def line_of(cells: Sequence[str]) -> str:
    """A line of the tabular."""
    return " & ".join(cells) + r" \\"


def escaped(text: str) -> str:
    """Text for LaTeX."""
    return "".join(SPECIAL.get(character, character) for character in printable(text))
