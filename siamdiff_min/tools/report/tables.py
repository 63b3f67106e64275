"""Runs side by side as a table: on the page of `siamdiff report`, in a CSV file, and as a tabular in LaTeX.

The tabular has the form of Tables 1 and 2. Every column has the best mean in bold and the second underlined; the mean
rank is over all columns. Below each mean stands its interval, and below the methods their differences to the first one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import rankdata

from ...files import printable, write_file, write_rows
from ..evidence.verdict import less_is_better, side
from ..evidence.wording import THAN, show, title_of
from .comparison import NOTE, Row, compare, same_noise
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
                verdict = f"{THAN[side(measure, row.gain_interval, runs[0].results['direction'])]} it"
            elif row.run != runs[0].name:
                verdict = "not the same noise" if row.gain is None else "no interval"
            std = "" if row.std is None else show(measure, row.std)
            interval = " to ".join(show(measure, end) for end in row.interval or ())
            baseline = "" if row.baseline is None else show(measure, row.baseline)
            gain = "" if row.gain is None else f"{row.gain:+.3g}"
            gain_interval = " to ".join(f"{end:+.3g}" for end in row.gain_interval or ())
            mean = show(measure, row.mean)
            lines.append([title, row.run, str(row.seeds), mean, std, interval, baseline, gain, gain_interval, verdict])
            title = ""  # said once
    return lines


# ---- a CSV file ------------------------------------------------------------------------------------------------------


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


# ---- a tabular in LaTeX ----------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A measure of what was predicted."""

    above: str  # what was predicted
    title: str
    less_is_better: bool | None
    rows: dict[str, Row]  # by method


def write_latex(path: Path, sections: Mapping[str, tuple[Sequence[RunFolder], Sequence[str]]]) -> None:
    """Write the tabular; it needs the package booktabs. `sections`: what was predicted -> runs, measures.

    A method that was run on several tasks is one row, if its folders have one name: ec/siamdiff, psr/siamdiff.
    """
    columns = []
    methods = {}
    for what, (runs, measures) in sections.items():
        columns += columns_of(what, runs, measures)
    for column in columns:
        methods |= dict.fromkeys(column.rows)
    methods = list(methods)

    lines = [f"% {NOTE}; needs \\usepackage{{booktabs}}", rf"\begin{{tabular}}{{l{'c' * (len(columns) + 1)}}}"]
    lines += [r"\toprule", *heads(columns), r"\midrule", *values(methods, columns)]
    lines += differences(methods, columns)
    lines += [r"\bottomrule", r"\end{tabular}"]
    write_file(path, "\n".join([*lines, ""]).encode())


def columns_of(what: str, runs: Sequence[RunFolder], measures: Sequence[str]) -> list[Column]:
    """The columns of runs of one task, or of pre-training. A method is called by the last part of its run's name."""
    last = [run.name.split("/")[-1] for run in runs]
    methods = {run.name: name if last.count(name) == 1 else run.name for run, name in zip(runs, last)}
    task = runs[0].config.get("task", "")
    above = task.upper() if task and task != "table" else what.partition(":")[0]
    columns = []
    for measure in measures:
        rows = {methods[row.run]: row for row in compare(runs, measure)}
        less = less_is_better(measure, runs[0].results["direction"])
        if not all(same_noise(runs[0], run) for run in runs):
            less = None  # no ranks
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

    # What looks at nothing; it has no rank.
    baselines = [next(iter(column.rows.values())).baseline for column in columns]
    if any(baseline is not None for baseline in baselines):
        cells = ["-" if baseline is None else f"{baseline:.3f}" for baseline in baselines]
        lines.append(line_of(["constant answer", *cells, ""]))
    return lines


def differences(methods: Sequence[str], columns: Sequence[Column]) -> list[str]:
    """Two lines for every method that is compared with the first one: the difference, and its interval."""
    lines = []
    for method in methods[1:]:
        cells = []
        intervals = []
        for column in columns:
            row = column.rows.get(method)
            known = row is not None and row.gain is not None and methods[0] in column.rows
            cells.append(f"${row.gain:+.3f}$" if known else "-")
            intervals.append(small(row.gain_interval, "+.3f") if known else "")
        if {*cells} != {"-"}:
            lines.append(line_of([f"{escaped(method)} $-$ {escaped(methods[0])}", *cells, ""]))
            lines.append(line_of(["", *intervals, ""]))
    return [r"\midrule", *lines] if lines else []


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
