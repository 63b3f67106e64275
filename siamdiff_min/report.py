"""One page to look at: `siamdiff-report RUN_DIR` draws a run into RUN_DIR/report.html.

Pre-training: losses and accuracies over epochs, stages marked, as in Fig. 2 of the paper, and a protein that the model
denoises. Fine-tuning: the same curves for every seed, the table of results, and what was predicted on the test split
(`finetune.py --save-predictions`). matplotlib is needed, and only here: `pip install matplotlib`.
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
import torch
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve
from torch import nn

from .data.structures import bundle_path, find_structures
from .encoders import ENCODERS, kernels
from .files import SiamDiffError, printable, tolerant_output, unescape, write_file
from .pretraining import OBJECTIVES
from .pretraining.diffusion import edges_to_vectors
from .pretraining.siamdiff import SiamDiff
from .protein.protein import Protein
from .training import checkpoint

NOT_MEASURES = {"step", "epoch", "stage", "split", "seconds", "peak_memory_mb", "lr"}
SPLITS = ("train", "valid")
SHOWN_NOISE = 1.5  # angstrom: standard deviation of the noise in the drawing
STYLE = """
body{font:14px/1.4 sans-serif;max-width:970px;margin:1em auto;padding:0 1em} main{display:flex;flex-wrap:wrap;gap:1em}
section{flex:2 1 600px;min-width:0} aside{flex:1 1 300px;min-width:0;font-size:12px} img{max-width:100%}
table{border-spacing:0;margin-bottom:1em} td{padding:.1em .6em .1em 0;vertical-align:top;overflow-wrap:anywhere}
"""


class ReportError(SiamDiffError):
    """A folder that is no run, or matplotlib missing."""


def figure(rows: int, columns: int, panel: tuple[float, float] = (4.2, 3.4)):
    """A matplotlib figure of panels (inches), and its axes (rows, columns); the user's settings are not touched."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReportError("the report needs matplotlib: pip install matplotlib") from error
    made = Figure(figsize=(panel[0] * columns, panel[1] * rows), layout="constrained")
    return made, made.subplots(rows, columns, squeeze=False)


def as_html(made) -> str:
    """A figure as an image inside the page."""
    buffer = io.BytesIO()
    made.savefig(buffer, format="svg")
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def read_metrics(path: Path) -> list[dict]:
    """The lines of a metrics.jsonl; one that is just being written is left out. Raises ReportError."""
    try:
        lines = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        if lines and all({"step", "epoch", "split"} <= line.keys() for line in lines):
            return lines
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ReportError(f"{path} is damaged: {error!r:.100}") from error
    raise ReportError(f"{path} is empty, or not one of a run")


def measures(lines: list[dict]) -> list[str]:
    """Names of what was measured: losses first, then accuracies and other metrics, clash rates last."""
    names = {name for line in lines for name in line} - NOT_MEASURES
    names = {name for name in names if not name.endswith(("_per_second", "_constant"))}

    def place(name: str) -> tuple:
        return "clash" in name or "native" in name, not name.endswith(("loss", "error")), name

    return sorted(names, key=place)


def curves(lines: list[dict]) -> str:
    """Every measure over epochs, for training and validation, beside what a constant prediction gets, where known."""
    per_epoch = max(1, lines[-1]["step"] // (lines[-1]["epoch"] + 1))
    series: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for name in line.keys() - NOT_MEASURES:
            series[name][line["split"]].append((line["step"] / per_epoch, line[name]))
    switch = next((line["step"] / per_epoch for line in lines if line.get("stage") == 2), None)
    names = measures(lines)
    made, axes = figure(-(-len(names) // 2), 2, (3.15, 2.5))
    for axis, name in zip(axes.flat, names):
        for split, points in sorted(series[name].items()):
            axis.plot(*zip(*points), "o-" if split == "valid" else "-", label=split, markersize=3)
        for _, points in sorted(series[f"{name}_constant"].items())[-1:]:  # of validation, where there is one
            axis.plot(*zip(*points), "--", color="black", linewidth=1, label="constant prediction")
        if switch is not None:
            axis.axvline(switch, color="grey", linestyle=":", label="stage 2")
        axis.set(title=name.replace("_", " "), xlabel="epoch")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels())}
    made.legend(handles.values(), handles, loc="outside upper center", ncols=4)
    for axis in axes.flat[len(names) :]:
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
        made.set_size_inches(6.3, 6)
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
    columns = {f"seed {seed}": values for seed, values in results["test"].items()}
    columns |= {"mean": results["mean"], "std": results["std"]}
    return table([["test", *columns], *([name, *(c[name] for c in columns.values())] for name in results["mean"])])


def final_table(lines: list[dict]) -> str:
    """Where a run ended, a row for each measure: training, validation, a constant prediction."""
    train, valid = ({k: v for line in lines if line["split"] == split for k, v in line.items()} for split in SPLITS)
    rows = [["at the end", *SPLITS, "constant"]]
    for name in measures(lines):
        rows.append([name, train.get(name), valid.get(name), {**train, **valid}.get(f"{name}_constant")])
    return table(rows)


def table(rows: list[list]) -> str:
    """Rows of cells as HTML: text is escaped, numbers have four digits."""

    def shown(cell) -> str:
        text = "-" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else str(cell)
        return f"<td>{html.escape(printable(text))}</td>"

    return "<table>" + "".join(f"<tr>{''.join(map(shown, row))}</tr>" for row in rows) + "</table>"


# ---- a protein that is denoised --------------------------------------------------------------------------------------


def load_objective(state: dict) -> nn.Module:
    """The objective of a checkpoint of train.py, for evaluation. Raises CheckpointError, or KeyError for another."""
    config = state["config"]
    encoder = ENCODERS[config["encoder"]](config["level"], config["size"], config["preset"])
    heads = {"head_dim": config["head_dim"]} if config["head_dim"] else {}
    make = OBJECTIVES[config["method"]]
    objective = make(encoder, config["level"], config["preset"], config["ablation"], **heads)
    checkpoint.load_weights(objective, state["objective"], "the checkpoint")
    return objective.eval()


@torch.no_grad()
def denoise(objective: SiamDiff, protein: Protein, t: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Coordinates (N, 3) of a protein: R^0, R^t, and R^t - sqrt((1 - abar) / abar) eps_theta, one step back from it.

    As in Algorithm 1, eps_theta comes from the representations of the other conformer. Nothing is masked.
    """
    views = [objective.encoder.builder.view(protein)]
    if objective.conformer is not None:
        views.append(objective.conformer(views[0], generator)[0])
    nothing, level = torch.zeros(0, dtype=torch.long), torch.tensor([t])
    noisy, *rest = (objective.add_noise(view, level, nothing, generator) for view in views)
    other = rest[0] if rest else noisy
    a = objective.encoder(other.protein, other.graph).node
    pos, graph = noisy.protein.pos, noisy.graph
    score = kernels.edge_scores([(a, graph, pos)], objective.dist_mlp, objective.struct_mlp)[0]
    towards = edges_to_vectors(score, pos, graph.src, graph.dst)  # -eps_theta
    alpha_bar = objective.alpha_bar[t - 1]
    return [views[0].pos, pos, pos + ((1 - alpha_bar) / alpha_bar).sqrt() * towards]


def bonds(protein: Protein, pos: torch.Tensor) -> torch.Tensor:
    """Pairs of atoms (K, 2) to be joined in a drawing: those within 2 angstrom, or neighbours among alpha carbons."""
    if protein.num_atoms == protein.num_residues:
        i = torch.arange(protein.num_atoms - 1)
        return torch.stack([i, i + 1], 1)[(protein.chain[1:] == protein.chain[:-1])]
    return (torch.cdist(pos, pos) < 2).triu(1).nonzero()


def draw_protein(axis, pos: np.ndarray, pairs: np.ndarray) -> None:
    """Bonds in the plane of the page, coloured from the first atom to the last."""
    from matplotlib.collections import LineCollection

    axis.add_collection(LineCollection(pos[pairs, :2], array=pairs[:, 0], cmap="viridis", linewidths=1))
    axis.autoscale()
    axis.set_aspect("equal")
    axis.axis("off")


def draw_denoising(objective: SiamDiff) -> str:
    """The smallest protein of the bundle, clean, with noise of SHOWN_NOISE, and one step of the model back from it."""
    objective.set_stage(1)
    sigma = ((1 - objective.alpha_bar) / objective.alpha_bar).sqrt()
    t = int((sigma - SHOWN_NOISE).abs().argmin()) + 1
    source = min(find_structures(bundle_path()).sources, key=lambda source: source.size)
    protein = source.read().protein
    clean, *moved = denoise(objective, protein, t, torch.Generator().manual_seed(0))
    pairs = bonds(objective.encoder.builder.view(protein), clean).numpy()
    centre = clean.mean(0)
    axes_of_inertia = torch.linalg.svd(clean - centre, full_matrices=False).Vh.T
    made, axes = figure(1, 3, (2.1, 2.4))
    titles = ["clean", f"noised (t = {t})", "one step back"]
    for axis, title, pos in zip(axes.flat, titles, [clean, *moved]):
        draw_protein(axis, ((pos - centre) @ axes_of_inertia).numpy(), pairs)
        away = float((pos - clean).square().sum(-1).mean().sqrt())
        axis.set_title(f"{title}: {away:.2f} \u00c5" if away else f"{source.name}, {title}", fontsize="medium")
    return f"<p>A bundled protein, and how far its atoms are from where they belong (RMSD)</p>{as_html(made)}"


# ---- the page --------------------------------------------------------------------------------------------------------


def report(run: Path) -> Path:
    """Draw a run of train.py or finetune.py; returns the page. Raises ReportError."""
    folders = [run, *sorted(run.glob("seed-*"))]
    folders = [folder for folder in folders if (folder / "metrics.jsonl").is_file()]
    if not folders:
        raise ReportError(f"{run} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
    figures, tables, config = [], [], {}
    if (run / "results.json").is_file():
        try:
            results = json.loads((run / "results.json").read_bytes())
            config = dict(results["config"])
            tables.append(results_table(results))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReportError(f"{run / 'results.json'} is not one of finetune.py: {error!r:.100}") from error
    for folder in folders:
        lines = read_metrics(folder / "metrics.jsonl")
        title = "" if folder == run else f"<h2>{html.escape(printable(folder.name))}</h2>"
        figures.append(title + curves(lines))
        tables.append(title + final_table(lines))
        if config.get("task") and (folder / "predictions.tsv").is_file():
            figures.append(draw_predictions(config["task"], folder / "predictions.tsv"))
    try:
        state = (checkpoint.latest(folders[-1], lambda _: None) or (None, {}))[1]
        config = config or state.get("config", {})
        if config.get("method") in ("diffpret", "siamdiff") and state:
            figures.append(draw_denoising(load_objective(state)))
    except (SiamDiffError, KeyError, ValueError) as error:
        figures.append(table([[f"no drawing of a protein: {error}"]]))
    if config:
        tables.append(table([["option", "value"], *([k, v if v is None else str(v)] for k, v in config.items())]))
    title = html.escape(printable(run.resolve().name))
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
    page += "<main><section>{}</section><aside>{}</aside></main>\n".format(*map("\n".join, (figures, tables)))
    write_file(run / "report.html", page.encode())
    return run / "report.html"


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
