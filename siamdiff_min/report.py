"""One page to look at: `siamdiff-report RUN_DIR` draws a run into RUN_DIR/report.html.

Pre-training: losses and accuracies over epochs, stages marked, as in Fig. 2 of the paper. Fine-tuning: the same curves
for every seed, the table of results, and the predictions on the test split (`finetune.py --save-predictions`).
Only this page needs matplotlib: `pip install matplotlib`.
"""

import base64
import contextlib
import html
import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from sklearn import metrics

from .downstream.metrics import spearman
from .files import CheckpointError, Parser, SiamDiffError, console, printable, structure_errors, write_file
from .training import checkpoint, results
from .training.config import FINETUNE, PRETRAIN
from .training.log import NO_MEASURE, in_order

DAMAGED = "damaged, or not one of a run"
STYLE = "body{font:14px sans-serif;max-width:650px;margin:1em auto} img{max-width:100%} td{padding-right:1em}"
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # measure -> train, valid, constant -> points (epoch, value)


@contextlib.contextmanager
def drawing(page: list[str], width: float, height: float):
    """A figure (inches) to draw on; at the end an image of it is added to `page`, as HTML.

    A $ in a name begins no formula, and settings of the user's are not touched. Raises SiamDiffError.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise SiamDiffError("the report needs matplotlib: pip install matplotlib") from error
    with matplotlib.rc_context({"text.parse_math": False}), io.BytesIO() as buffer:
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(buffer, format="svg")
        page.append(f'<img src="data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}">')


def as_html(rows: list[list]) -> str:
    """Rows of cells as HTML: text is escaped, numbers have four digits."""
    texts = [["-" if x is None else f"{x:.4f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    lines = ["".join(f"<td>{html.escape(printable(text))}</td>" for text in row) for row in texts]
    return f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def read_metrics(path: Path) -> tuple[Curves, float | None]:
    """The curves of a metrics.jsonl, losses and accuracies first, and the epoch in which stage 2 begins.

    The constant prediction is the one of validation if there is any. A line that is just being written is left out.
    """
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    first = lines[0]["epoch"]  # the last line of an epoch is of its last step
    per_epoch = max(1, max(line["step"] for line in lines if line["epoch"] == first) // (first + 1))
    points = defaultdict(list)  # (measure, split) -> points
    for line in lines:
        for name in line.keys() - (NO_MEASURE - {"samples"}):
            points[name, line["split"]].append((line["step"] / per_epoch, line[name]))
    switch = next((line["step"] / per_epoch for line in lines if line.get("stage") == 2), None)
    curves, names = {}, sorted({name for name, _ in points if not name.endswith("_per_second")})
    for name in [*(name for name, _ in in_order(dict.fromkeys(names))), "samples"]:
        curves[name] = {split: points[name, split] for split in ("train", "valid")}
        curves[name]["constant prediction"] = points[f"{name}_constant", "valid"] or points[f"{name}_constant", "train"]
    return curves, switch


def draw_curves(page: list[str], curves: Curves, switch: float | None) -> None:
    """Every measure over epochs, and the beginning of stage 2."""
    names = [name for name in curves if name != "samples"]
    rows = -(-len(names) // 2)
    with drawing(page, 6.3, 2.5 * rows) as figure:
        for place, name in enumerate(names, 1):
            axis = figure.add_subplot(rows, 2, place)
            for (label, points), style in zip(curves[name].items(), ("C0-", "C1o-", "k--")):
                if points:
                    axis.plot(*zip(*points), style, label=label, markersize=3)
            if switch is not None:
                axis.axvline(switch, color="grey", linestyle=":", label="stage 2")
            axis.set(title=name.replace("_", " "), xlabel="epoch")
        handles = {label: line for axis in figure.axes for line, label in zip(*axis.get_legend_handles_labels())}
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=4)


def draw_predictions(page: list[str], task: str, columns: dict[str, np.ndarray]) -> None:
    """A figure that suits the target: precision against recall (several labels), a confusion matrix (classes), ROC (0
    and 1), or predicted against true."""
    target, prediction, names = columns["target"], columns["prediction"], columns["labels"]
    title, side = f"{task}, N = {len(target)}", 4 + 0.2 * len(names) * (target.ndim == 1)
    with drawing(page, side, side) as figure:
        axis = figure.add_subplot()
        if target.ndim == 2:
            metrics.PrecisionRecallDisplay.from_predictions(target.ravel(), prediction.ravel(), ax=axis)
        elif prediction.ndim == 2:
            classes = {"labels": range(len(names)), "display_labels": names, "xticks_rotation": "vertical"}
            look = {"normalize": "true", "values_format": ".0%", "cmap": "Blues", "colorbar": False}
            metrics.ConfusionMatrixDisplay.from_predictions(target, prediction.argmax(1), **classes, **look, ax=axis)
        elif set(target) <= {0.0, 1.0}:
            metrics.RocCurveDisplay.from_predictions(target, prediction, ax=axis)
        else:
            title += f", rho = {spearman(prediction, target):.2f}"
            scatter = {"kind": "actual_vs_predicted", "subsample": None}
            metrics.PredictionErrorDisplay.from_predictions(target, prediction, **scatter, ax=axis)
        axis.set_title(title)


def report(run: Path) -> Path:
    """Draw a run of train.py or finetune.py; returns the page. Raises SiamDiffError."""
    folders = [folder for folder in (run, *sorted(run.glob("seed-*"))) if (folder / "metrics.jsonl").is_file()]
    if not folders:
        raise SiamDiffError(f"{run} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
    page, config = [], {}
    if (run / "results.json").is_file():
        with structure_errors(run / "results.json", DAMAGED):
            found = json.loads((run / "results.json").read_bytes())
            config = dict(found["config"])
            page.append(as_html(results.table(found)))
    elif checkpoint.checkpoints(run):
        with contextlib.suppress(CheckpointError):  # the options alone are missing then
            config = checkpoint.latest(run, lambda _: None)[1]["config"]
    for folder in folders:
        if folder != run:
            page.append(f"<h2>{html.escape(printable(folder.name))}</h2>")
        with structure_errors(folder / "metrics.jsonl", DAMAGED):
            curves, switch = read_metrics(folder / "metrics.jsonl")
            draw_curves(page, curves, switch)
            last = [[name, *(p[-1][1] if p else None for p in curve.values())] for name, curve in curves.items()]
            page.append(as_html([["at the end", "train", "valid", "constant"], *last]))
        if (folder / "predictions.tsv").is_file():
            with structure_errors(folder / "predictions.tsv", DAMAGED):
                columns = results.read_predictions(folder / "predictions.tsv")
                draw_predictions(page, str(config.get("task", "")), columns)
    default = {name: option.about["default"] for name, option in (FINETUNE if "task" in config else PRETRAIN).items()}
    options = [[k, v if v is None else str(v)] for k, v in config.items() if v != default.get(k)]
    page.append(as_html([["option", "value (all others: default)"], *options]))
    about = [str(config[name] or "demo set") for name in ("task", "method", "level", "data") if name in config]
    title = html.escape(printable(", ".join(about) or run.resolve().name))
    head = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    write_file(run / "report.html", "\n".join([head, *page]).encode())
    return run / "report.html"


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff-report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run (--out of train.py or finetune.py)")
    args = parser.parse_args(argv)
    with console():
        print(report(args.run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
