"""One page to look at: `python -m siamdiff_min.report RUN_DIR` draws a run into RUN_DIR/report.html.

Pre-training: losses and accuracies over epochs, stages marked, as in Fig. 2 of the paper. Fine-tuning: the same for
every seed, the table of results, and what was predicted on the test split (`finetune.py --save-predictions`).
matplotlib is needed, and only here: `pip install matplotlib`.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from .files import SiamDiffError, printable, tolerant_output, unescape, write_file

NOT_MEASURES = {"step", "epoch", "stage", "split", "seconds", "peak_memory_mb", "lr"}
STYLE = "body{font-family:sans-serif;max-width:70em;margin:2em auto}td,th{padding:.2em .8em;text-align:right}"


class ReportError(SiamDiffError):
    """A folder that is no run, or matplotlib missing."""


def figure(rows: int, columns: int):
    """A matplotlib figure and its axes (rows, columns), without touching the user's matplotlib settings."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError("the report needs matplotlib: pip install matplotlib") from error
    made = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    return made, made.subplots(rows, columns, squeeze=False)


def as_html(made) -> str:
    """A figure as an image inside the page."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="svg")
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def curves(metrics: Path) -> str:
    """Every measure of a metrics.jsonl over epochs, for training and validation, the beginning of stage 2 marked."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    if not lines:
        raise ReportError(f"{metrics} is empty")
    last = lines[-1]
    per_epoch = max(1, last["step"] // (last["epoch"] + 1))
    series: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for name, value in line.items():
            if name not in NOT_MEASURES and not name.endswith("_per_second"):
                series[name][line["split"]].append((line["step"] / per_epoch, value))
    switch = next((line["step"] / per_epoch for line in lines if line.get("stage") == 2), None)
    columns = min(3, len(series))
    made, axes = figure(-(-len(series) // columns), columns)
    for axis, name in zip(axes.flat, sorted(series)):
        for split, points in sorted(series[name].items()):
            axis.plot(*zip(*points), "o-" if split == "valid" else "-", label=split, markersize=3)
        if switch is not None:
            axis.axvline(switch, color="grey", linestyle=":", label="stage 2")
        axis.set(title=name.replace("_", " "), xlabel="epoch")
        axis.legend()
    for axis in axes.flat[len(series) :]:
        axis.remove()
    return as_html(made)


def read_predictions(path: Path) -> dict[str, np.ndarray]:
    """Columns of a predictions.tsv: `group` (K,), `target` and `prediction`, (K,) or (K, C), and `labels` (C,)."""
    header, *rows = (line.split("\t") for line in path.read_text("utf-8", "surrogateescape").splitlines())
    values = np.array([row[2:] for row in rows], dtype=np.float64).reshape(len(rows), len(header) - 2)
    kinds = [title.partition(":") for title in header[2:]]
    columns = {k: values[:, [kind == k for kind, _, _ in kinds]] for k in ("target", "prediction")}
    columns["group"] = np.array([unescape(row[1]) for row in rows])
    columns["labels"] = np.array([unescape(label) for kind, _, label in kinds if kind == "prediction"])
    return {k: v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v for k, v in columns.items()}


def draw_predictions(task: str, path: Path) -> str:
    """What suits the task: predicted against true, precision against recall, ROC, or the confusion matrix."""
    p = read_predictions(path)
    made, axes = figure(1, 1)
    axis, target, prediction = axes[0, 0], p["target"], p["prediction"]
    if task == "psr":
        axis.plot(target, prediction, ".", alpha=0.5)
        axis.axline((0.5, 0.5), slope=1, color="grey", linestyle=":")
        axis.set(title="PSR", xlabel="GDT_TS", ylabel="predicted")
    elif task == "ec":
        precision, recall, _ = precision_recall_curve(target.ravel(), prediction.ravel())
        axis.plot(recall, precision)
        axis.set(title="EC, all labels together", xlabel="recall", ylabel="precision", ylim=(0, 1.02))
    elif task == "res":
        made.set_size_inches(7, 6.5)
        names = [name.title() for name in p["labels"]]
        matrix = confusion_matrix(target, prediction.argmax(1), labels=range(len(names)), normalize="true")
        made.colorbar(axis.imshow(matrix, cmap="Blues", vmin=0), ax=axis, label="share of the true type")
        axis.set(title="RES", xlabel="predicted", ylabel="true")
        axis.set_xticks(range(len(names)), names, rotation=90)
        axis.set_yticks(range(len(names)), names)
    else:
        false_positive, true_positive, _ = roc_curve(target, prediction)
        axis.plot(false_positive, true_positive)
        axis.axline((0, 0), slope=1, color="grey", linestyle=":")
        axis.set(title=task.upper(), xlabel="false positive rate", ylabel="true positive rate")
    return as_html(made)


def results_table(results: dict) -> str:
    """Metrics on the test split, a row each: seeds, mean, std."""
    test, mean, std = results["test"], results["mean"], results["std"]
    rows = [["test", *(f"seed {seed}" for seed in test), "mean", "std"]]
    rows += [[name, *(test[seed][name] for seed in test), mean[name], std[name]] for name in mean]
    return table(rows)


def table(rows: list[list]) -> str:
    """Rows of cells as HTML: text is escaped, numbers have four digits."""

    def shown(cell) -> str:
        text = "-" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)
        return f"<td>{html.escape(printable(text))}</td>"

    return "<table>" + "".join(f"<tr>{''.join(map(shown, row))}</tr>" for row in rows) + "</table>"


def report(run: Path) -> Path:
    """Draw a run of train.py or finetune.py; returns the page. Raises ReportError."""
    folders = [run, *sorted(run.glob("seed-*"))]
    folders = [folder for folder in folders if (folder / "metrics.jsonl").is_file()]
    if not folders:
        raise ReportError(f"{run} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
    parts, task = [], None
    if (run / "results.json").is_file():
        try:
            results = json.loads((run / "results.json").read_bytes())
            task = results["config"]["task"]
            parts.append(results_table(results))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReportError(f"{run / 'results.json'} is not one of finetune.py: {error!r:.100}") from error
    for folder in folders:
        if folder != run:
            parts.append(f"<h2>{html.escape(printable(folder.name))}</h2>")
        parts.append(curves(folder / "metrics.jsonl"))
        if task and (folder / "predictions.tsv").is_file():
            parts.append(draw_predictions(task, folder / "predictions.tsv"))
    title = html.escape(printable(run.resolve().name))
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    path = run / "report.html"
    write_file(path, (page + "\n".join(parts)).encode())
    return path


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run (--out of train.py or finetune.py)")
    args = parser.parse_args(argv)
    tolerant_output()
    try:
        print(report(args.run))
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
