"""One page to look at: `siamdiff-report RUN_DIR` draws a run into RUN_DIR/report.html.

Pre-training: losses and accuracies over epochs, stages marked, as in Fig. 2 of the paper. Fine-tuning: the same curves
for every seed, the table of results, and the predictions on the test split (`finetune.py --save-predictions`).
Only this page needs matplotlib: `pip install matplotlib`.
"""

import argparse
import base64
import contextlib
import html
import io
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from sklearn import metrics

from .downstream.metrics import spearman
from .files import CheckpointError, SiamDiffError, console, printable, structure_errors, write_file
from .training import checkpoint
from .training.config import differing
from .training.log import NO_MEASURE, in_order
from .training.results import read_predictions

DAMAGED = "damaged, or not one of a run"
STYLE = """
body{font:14px/1.4 sans-serif;max-width:970px;margin:1em auto;padding:0 1em} main{display:flex;flex-wrap:wrap;gap:1em}
section{flex:2 1 600px;min-width:0} aside{flex:1 1 300px;min-width:0;font-size:12px} img{max-width:100%}
table{border-spacing:0;margin-bottom:1em} td{padding:.1em .6em .1em 0;vertical-align:top;overflow-wrap:anywhere}
"""
Series = dict[tuple[str, str], list[tuple[float, float]]]  # (measure, split) -> points (epoch, value)


@contextlib.contextmanager
def plain_text():
    """Draw names as they are: a $ in them begins no formula. Raises SiamDiffError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise SiamDiffError("the report needs matplotlib: pip install matplotlib") from error
    with matplotlib.rc_context({"text.parse_math": False}):
        yield


def figure(rows: int, columns: int, panel: tuple[float, float] = (4.2, 3.4)):
    """A matplotlib figure of panels (inches), and its axes (rows, columns); the user's settings are not touched."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(panel[0] * columns, panel[1] * rows), layout="constrained")
    return made, made.subplots(rows, columns, squeeze=False)


def as_html(made) -> str:
    """A figure as an image inside the page."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="svg")
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def table(rows: list[list]) -> str:
    """Rows of cells as HTML: text is escaped, numbers have four digits."""

    def shown(cell) -> str:
        text = "-" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)
        return f"<td>{html.escape(printable(text))}</td>"

    return "<table>" + "".join(f"<tr>{''.join(map(shown, row))}</tr>" for row in rows) + "</table>"


def read_metrics(path: Path) -> tuple[list[str], Series, float | None]:
    """The measures in a metrics.jsonl (in order: losses and accuracies first), their values, and the epoch in which
    stage 2 begins. A line that is just being written is left out. Raises SiamDiffError."""
    series = defaultdict(list)
    with structure_errors(path, DAMAGED):
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        first = lines[0]["epoch"]  # the last line of an epoch is of its last step
        per_epoch = max(1, max(line["step"] for line in lines if line["epoch"] == first) // (first + 1))
        for line in lines:
            for name in line.keys() - (NO_MEASURE - {"samples"}):
                series[name, line["split"]].append((line["step"] / per_epoch, line[name]))
        switch = next((line["step"] / per_epoch for line in lines if line.get("stage") == 2), None)
        names = sorted({name for name, _ in series if not name.endswith("_per_second")})
    return [name for name, _ in in_order(dict.fromkeys(names))], series, switch


def of_constant(series: Series, name: str) -> list[tuple[float, float]]:
    """The loss of the best constant prediction, in validation if there is any."""
    return series[f"{name}_constant", "valid"] or series[f"{name}_constant", "train"]


def draw_curves(names: list[str], series: Series, switch: float | None) -> str:
    """Every measure over epochs: training, validation, and a constant prediction if its loss is known."""
    made, axes = figure(-(-len(names) // 2), 2, (3.15, 2.5))
    for axis, name in zip(axes.flat, names):
        drawn = {"train": (series[name, "train"], "C0-"), "valid": (series[name, "valid"], "C1o-")}
        drawn["constant prediction"] = of_constant(series, name), "k--"
        for label, (points, style) in drawn.items():
            if points:
                axis.plot(*zip(*points), style, label=label, markersize=3)
        if switch is not None:
            axis.axvline(switch, color="grey", linestyle=":", label="stage 2")
        axis.set(title=name.replace("_", " "), xlabel="epoch")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels())}
    made.legend(handles.values(), handles, loc="outside upper center", ncols=4)
    for axis in axes.flat[len(names) :]:
        axis.remove()
    return as_html(made)


def final_table(names: list[str], series: Series) -> str:
    """The last values of a run, a row for each measure: training, validation, a constant prediction."""
    rows = [["at the end", "train", "valid", "constant"]]
    for name in [*names, *(["samples"] if series["samples", "valid"] else [])]:
        points = series[name, "train"], series[name, "valid"], of_constant(series, name)
        rows.append([name, *(p[-1][1] if p else None for p in points)])
    return table(rows)


def results_table(results: dict) -> str:
    """Metrics on the test split, a row each: seeds, mean, std."""
    columns = {f"seed {seed}": values for seed, values in results["test"].items()}
    columns |= {"mean": results["mean"], "std": results["std"]}
    header = f"test, N = {results.get('samples', '?')}"
    return table([[header, *columns], *([name, *(c[name] for c in columns.values())] for name in results["mean"])])


def draw_predictions(title: str, columns: dict[str, np.ndarray]) -> str:
    """A figure that suits the target: precision against recall (several labels), a confusion matrix (classes), ROC (0
    and 1), or predicted against true."""
    target, prediction, names = columns["target"], columns["prediction"], columns["labels"]
    made, axes = figure(1, 1, (6.3, 6) if prediction.ndim > target.ndim else (4.2, 3.4))
    axis = axes[0, 0]
    if target.ndim == 2:
        metrics.PrecisionRecallDisplay.from_predictions(target.ravel(), prediction.ravel(), ax=axis)
    elif prediction.ndim == 2:
        shares = metrics.confusion_matrix(target, prediction.argmax(1), labels=range(len(names)), normalize="true")
        display = metrics.ConfusionMatrixDisplay(100 * shares, display_labels=names)
        small = {"fontsize": min(10, 140 / len(names))}
        display.plot(
            colorbar=False, cmap="Blues", xticks_rotation="vertical", values_format=".0f", text_kw=small, ax=axis
        )
        title += ", % of each true class"
    elif set(target) <= {0.0, 1.0}:
        metrics.RocCurveDisplay.from_predictions(target, prediction, ax=axis)
    else:
        ends = [target.min(), target.max()]
        axis.plot(ends, ends, "k--", linewidth=1)
        axis.scatter(prediction, target, s=10, alpha=0.6)
        axis.set(xlabel="predicted", ylabel="true")
        title += f", rho = {spearman(prediction, target):.2f}"
    axis.set_title(f"{title}, N = {len(target)}", fontsize=10)
    return as_html(made)


def title_of(config: Mapping, run: Path) -> str:
    """What a run did, on which data."""
    if not {"level", "data"} <= set(config):
        return run.resolve().name
    kind = config.get("task") or config.get("method")
    return f"{kind}, {config['level']} level, {config['data'] or 'demo set'}"


def report(run: Path) -> Path:
    """Draw a run of train.py or finetune.py; returns the page. Raises SiamDiffError."""
    with plain_text():
        return _report(run)


def _report(run: Path) -> Path:
    folders = [folder for folder in (run, *sorted(run.glob("seed-*"))) if (folder / "metrics.jsonl").is_file()]
    if not folders:
        raise SiamDiffError(f"{run} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
    figures, tables, config = [], [], {}
    if (run / "results.json").is_file():
        with structure_errors(run / "results.json", DAMAGED):
            results = json.loads((run / "results.json").read_bytes())
            config = dict(results["config"])
            tables.append(results_table(results))
    for folder in folders:
        names, series, switch = read_metrics(folder / "metrics.jsonl")
        title = "" if folder == run else f"<h2>{html.escape(printable(folder.name))}</h2>"
        figures.append(title + draw_curves(names, series, switch))
        tables.append(title + final_table(names, series))
        if (folder / "predictions.tsv").is_file():
            with structure_errors(folder / "predictions.tsv", DAMAGED):
                columns = read_predictions(folder / "predictions.tsv")
                figures.append(draw_predictions(str(config.get("task", "")), columns))
    if not config and checkpoint.checkpoints(run):
        with contextlib.suppress(CheckpointError):  # the options alone are missing then
            config = checkpoint.latest(run, lambda _: None)[1]["config"]
    options = [[k, v if v is None else str(v)] for k, v in differing(config).items()]
    tables.append(table([["option", "value (all others: default)"], *options]))
    title = html.escape(printable(title_of(config, run)))
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    page += "<main><section>{}</section><aside>{}</aside></main>\n".format(*map("\n".join, (figures, tables)))
    write_file(run / "report.html", page.encode())
    return run / "report.html"


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run (--out of train.py or finetune.py)")
    args = parser.parse_args(argv)
    with console():
        print(report(args.run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
