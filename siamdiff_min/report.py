"""One page to show: `siamdiff report RUN...` draws runs of train.py or finetune.py, and compares several.

The result comes first, with its interval, the best answer that looks at nothing, and the predictions; then the curves
with all seeds, and the options. A page is one file without scripts, for wide screens and phones, dark and light. Its
figures need matplotlib: pip install "siamdiff-min[plots]".
"""

import html
import io
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from .downstream.metrics import LESS_IS_BETTER, spearman
from .downstream.tasks import TASKS
from .files import ConfigError, Parser, SiamDiffError, console, printable, structure_errors, write_file
from .training import checkpoint, results
from .training.config import FINETUNE, PRETRAIN
from .training.metrics_file import in_order

COLOURS = "#2f7fd1", "#d9652b", "#1f9e77", "#a35bc2", "#b8860b", "#2ba3b8", "#d0478a", "#7f8790"  # of runs, or seeds
INK = "#010203"  # of a figure's lines and words: the page replaces it by its own, which depends on the reader
STYLE = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "text.parse_math": False}
UNITS = {"structure_loss": "squared error of the noise, sigma²", "distance_squared_error": "Å²"}
UNITS |= {f"{name}_loss": "nats" for name in ("sequence", "residue_type", "angle", "dihedral", "contrastive")}
UNITS |= {"global_spearman": "rho over all models", "mean_spearman": "rho within a protein"}
ACRONYMS = {"auroc": "AUROC", "auprc": "AUPR", "fmax": "Fmax", "rmse": "RMSE", "mae": "MAE"}
CSS = """:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1a1d21;--soft:#5b636d;--rule:#e1e4e8}
@media(prefers-color-scheme:dark){:root{--page:#121417;--card:#1c1f24;--ink:#eceef1;--soft:#a3abb5;--rule:#31363d}}
body{max-width:1760px;margin:auto;padding:1.2rem clamp(.8rem,2.5vw,2.5rem);background:var(--page);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}h1{font-size:1.7rem}h3{font-size:1rem;margin:0}p{margin:.2rem 0 .5rem}
h1::first-letter,h3::first-letter{text-transform:uppercase}.note{color:var(--soft);font-size:.87rem}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:1rem;min-width:0}
.big{font-size:2rem;font-weight:650;line-height:1.2}.better{color:#1f9e77}.worse{color:#d9652b}.not{color:var(--soft)}
svg{display:block;width:100%;height:auto;color:var(--soft)}svg text{font-family:system-ui,sans-serif!important}
i{display:inline-block;width:1.5em;border-top:4px solid;margin:0 .4em .25em 0}.legend span{margin-right:1.2em}
.tables{display:flex;flex-wrap:wrap;gap:0 3rem}.tables>div{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}th{font-weight:500}
td,th{text-align:left;padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--rule)}"""


# ---- runs ------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """The content of a run's folder."""

    name: str
    config: dict  # its options, if they are known
    results: dict  # the content of results.json; without one, the last numbers of what was held out
    lines: dict[str, list[dict]]  # of the metrics.jsonl of every seed; of pre-training of ""
    predictions: dict[str, dict[str, np.ndarray]]  # of every seed


def read_run(path: Path, name: str) -> Run:
    """Read the folder of a run. Raises SiamDiffError if it holds none, or a damaged file."""
    lines, predictions, saved, content = {}, {}, None, defaultdict(dict)  # older versions wrote less
    with structure_errors(path, "damaged, or not of a run"):
        for folder in (path, *sorted(path.glob("seed-*"))):
            seed = folder.name.removeprefix("seed-") if folder != path else ""
            if (file := folder / "metrics.jsonl").exists():  # the last line may be only half there
                lines[seed] = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
                saved = saved or checkpoint.latest(folder)
            if (file := folder / "predictions.tsv").exists():
                predictions[seed] = results.read_predictions(file)
        if (file := path / "results.json").exists():
            content |= json.loads(file.read_bytes())
        elif not lines:
            raise SiamDiffError(f"{path} is no run: there is no metrics.jsonl in it, nor in a seed-S inside")
        for line in [x for of_seed in lines.values() for x in of_seed if x["split"] == "valid"][-1:]:
            for measure, value in [] if content["test"] else in_order(line):
                content["mean"][measure], content["constant"][measure] = value or None, line.get(f"{measure}_constant")
    return Run(name, content["config"] or (saved[1]["config"] if saved else {}), content, lines, predictions)


def series(runs: Sequence[Run]) -> Iterator[tuple[str, Run, str]]:
    """(colour, run, seed): a colour for every run, or for every seed of the only run."""
    for k, run in enumerate(runs):
        for s, seed in enumerate(run.lines | run.predictions):
            yield COLOURS[(k if len(runs) > 1 else s) % len(COLOURS)], run, seed


# ---- figures ---------------------------------------------------------------------------------------------------------


def card(title: str, draw: Callable, *arguments, height: float = 2.8, words: str = "") -> str:
    """A card with what `draw` draws on axes, in the colours of the page."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError('the figures need matplotlib: pip install "siamdiff-min[plots]"') from error
    with rc_context(STYLE):
        figure, file = Figure((4.6, height), layout="constrained"), io.StringIO()
        axes = figure.add_subplot()
        axes.grid(color=INK, alpha=0.12)
        note = draw(axes, *arguments) or ""
        figure.savefig(file, format="svg", transparent=True)
    svg = "<svg" + file.getvalue().partition("<svg")[2].replace(INK, "currentColor")
    return f"<div class=card><h3>{text(title)}</h3>{words}{svg}<p class=note>{note}</div>"


def forest(axes, runs: Sequence[Run], measure: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds; dashed: constant answers."""
    for y, run in enumerate(runs):
        colour, r = COLOURS[y % len(COLOURS)], run.results
        axes.plot(r["interval"].get(measure) or [math.nan] * 2, [y, y], color=colour, lw=8, alpha=0.35)
        axes.plot(r["mean"][measure], y, "|", color=colour, ms=18, mew=3)
        axes.plot([x[measure] for x in r["test"].values()], [y] * len(r["test"]), "o", color=colour, ms=4)
        axes.plot([r["constant"].get(measure)] * 2, [y - 0.5, y + 0.5], color=INK, ls="--", lw=1.2)
    axes.set_yticks(range(len(runs)), [run.name * (len(runs) > 1) for run in runs])
    axes.set(ylim=(len(runs) - 0.4, -0.6), xmargin=0.2)
    axes.spines.left.set_visible(False)
    axes.tick_params(left=False)


def curve(axes, runs: Sequence[Run], measure: str) -> None:
    """A measure over the steps: thin in training, thick held out, dashed the constant answer, a ring at the best."""
    inside = []  # a few wild steps of the training leave the axis as it is
    for colour, run, seed in series(runs):
        lines = [line for line in run.lines.get(seed, ()) if line.get(measure) is not None]
        train, valid = ([line for line in lines if line["split"] == split] for split in ("train", "valid"))
        axes.plot(*points(train, measure), color=colour, lw=1, alpha=0.6)
        axes.plot(*points(valid, measure), color=colour, lw=2, marker="o", ms=3)
        axes.plot(*points(valid or train, f"{measure}_constant"), color=INK, ls="--", lw=1.2)
        best = math.ceil(run.results["best_epoch"].get(seed, 0)) - 1
        tested = [line for line in valid if line["epoch"] == best]
        axes.plot(*points(tested, measure), "o", color=colour, ms=9, fillstyle="none")
        inside += [*np.quantile(points(train, measure)[1], [0.02, 0.98])] if train else []
        inside += points(valid, measure)[1] + points(valid, f"{measure}_constant")[1]
        for line in [line for line in lines if line.get("stage") == 2][:1]:
            axes.axvline(line["step"], color=INK, ls=":", lw=1.2)
            axes.text(line["step"], 1, " stage 2", transform=axes.get_xaxis_transform(), va="top")
    inside = [x for x in inside if math.isfinite(x)] or [0.0]
    room = 0.06 * (max(inside) - min(inside)) or 0.5
    axes.set(xlabel="step", ylim=(min(inside) - room, max(inside) + room))


def points(lines: Sequence[dict], measure: str) -> tuple[list, list]:
    """Steps and values; nan for those that are not known."""
    values = [line.get(measure) for line in lines]
    return [line["step"] for line in lines], [math.nan if value is None else value for value in values]


def against_true(axes, seeds: Sequence[tuple], answer: float) -> str:
    """Numbers: predicted against true; dashed the constant answer."""
    for colour, y, p in seeds:
        axes.scatter(y, p, s=14, color=colour, alpha=0.6, lw=0, rasterized=len(y) > 1000)
    axes.axline((answer, answer), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(answer, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="true", ylabel="predicted")
    return "rho = " + " / ".join(f"{spearman(p, y):.2f}" for _, y, p in seeds)


def precision_recall(axes, seeds: Sequence[tuple]) -> None:
    """Yes or no, once or for several classes; dashed a guess."""
    for colour, y, p in seeds:
        axes.plot(*precision_recall_curve(y.ravel(), p.ravel())[1::-1], color=colour)
    axes.axhline(seeds[0][1].mean(), color=INK, ls="--", lw=1.2)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))


def roc(axes, seeds: Sequence[tuple]) -> None:
    """Yes or no; dashed a guess."""
    for colour, y, p in seeds:
        axes.plot(*roc_curve(y, p)[:2], color=colour)
    axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")


def confusion(axes, seeds: Sequence[tuple], classes: Sequence[str]) -> str:
    """One of several classes: the true ones, and what they are taken for."""
    counts = sum(confusion_matrix(y, p.argmax(1), labels=range(len(classes))) for _, y, p in seeds)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", zorder=2)
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    axes.set(xlabel="predicted", ylabel="true")
    return "darker: a larger share of the true class"


def prediction_cards(runs: Sequence[Run]) -> list[str]:
    """The figures that suit what is predicted: all with the same targets in one, of classes one for each run."""
    cards, together = [], defaultdict(list)
    for colour, run, seed in series(runs):
        if x := run.predictions.get(seed):
            own = run.name * (x["prediction"].ndim > x["target"].ndim)
            together[own, x["target"].tobytes()].append((colour, x["target"], x["prediction"], x["classes"], run))
    for (name, _), found in together.items():
        seeds, (_, y, _, classes, run) = [x[:3] for x in found], found[0]
        if name:
            cards.append(card(f"Confusion matrix, N = {len(y)}, {name}", confusion, seeds, classes, height=4.4))
        elif not np.isin(y, (0, 1)).all():
            answer = (run.results["answer"] or {}).get("mean", y.mean())
            cards.append(card(f"Predicted against true, N = {len(y)}", against_true, seeds, answer, height=4.4))
        elif len(np.unique(y)) == 2:
            title = f"Precision and recall, {y.sum():.0f} positives of {y.size}"
            cards += [card("ROC curve", roc, seeds, height=4.4)] if y.ndim == 1 else []
            cards.append(card(title, precision_recall, seeds, height=4.4))
    return cards


# ---- the page --------------------------------------------------------------------------------------------------------


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


def title_of(measure: str) -> str:
    """The name of a measure for a reader, with its unit."""
    return ACRONYMS.get(measure, measure.replace("_", " ")) + (f" ({UNITS[measure]})" if measure in UNITS else "")


def predicted(run: Run) -> str:
    """What a run predicts."""
    options, task = run.results["options"], run.config.get("task", "")
    if task == "table":
        labelled = "residues" if options.get("residues") else "structures"
        return f"{Path(str(run.config.get('labels'))).stem}: {options.get('kind', 'labels')} of {labelled}"
    return getattr(TASKS.get(task), "predicts", "") or task or "pre-training"


def verdict(run: Run, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the constant answer."""
    show, r = ("{:.1%}" if measure.endswith("accuracy") else "{:.3g}").format, run.results
    words, constant = f"<p class=big>{show(r['mean'][measure])}</p>", r["constant"].get(measure)
    if interval := r["interval"].get(measure):
        words += f"<p>95 % interval {show(interval[0])} to {show(interval[1])}</p>"
    if constant is None:
        return words
    less = measure in LESS_IS_BETTER or measure.endswith(("loss", "error"))
    gain = r["gain_interval"].get(measure) or [r["mean"][measure] - constant] * 2
    low, high = sorted(-x if less else x for x in gain)
    side = "better than" if low > 0 else "worse than" if high < 0 else "not told apart from"
    return f"{words}<p class={side.split()[0]}>{side} the constant answer ({show(constant)})</p>"


def as_html(title: str, rows: Sequence[Sequence]) -> str:
    """Rows of cells as a table, the first one its head."""
    lines = ["".join(f"<td>{text(results.cell(x))}" for x in row) for row in rows]
    table = "<tr>".join(lines).replace("<td>", "<th>", len(rows[0]))
    return f"<div><h2>{text(title)}</h2><table><tr>{table}</table></div>"


def options_of(runs: Sequence[Run]) -> list[list[str]]:
    """The options that are not the default; of several runs those in which they differ."""
    options = FINETUNE if runs[0].config.get("task") else PRETRAIN
    rows, names = [["option", *(run.name for run in runs)]], dict.fromkeys(name for run in runs for name in run.config)
    for name in names:
        default = options[name].arguments["default"] if name in options else None  # of a plugin, or an older version
        values = [run.config.get(name) for run in runs]
        if any(x != default for x in values) and (len(runs) == 1 or any(x != values[0] for x in values)):
            rows.append([name, *map(str, values)])
    return rows


def section(runs: Sequence[Run]) -> str:
    """All about runs of one task, or of pre-training. A loss that is a sum is compared with the same sum only."""
    sums = {tuple(run.config.get(x) for x in ("method", "ablation", "preset")) for run in runs}
    lines = [line for run in runs for of_seed in run.lines.values() for line in of_seed]
    logged = in_order({name: x for line in lines for name, x in line.items()})
    names = dict.fromkeys([*(name for run in runs for name in run.results["mean"]), *(name for name, _ in logged)])
    scores, curves = [], []
    for name in [name for name in names if not name.endswith("_per_second") and (name != "loss" or len(sums) == 1)]:
        if scored := [run for run in runs if run.results["mean"].get(name) is not None]:
            words, height = verdict(runs[0], name) if len(runs) == 1 else "", 0.5 + 0.35 * len(scored)
            scores.append(card(title_of(name), forest, scored, name, height=height, words=words))
        if len({line.get(name) for line in lines} - {None}) > 1:
            curves.append(card(title_of(name), curve, runs, name))
    keys = {run.name if len(runs) > 1 else f"seed {seed}": colour for colour, run, seed in series(runs)}
    legend = [f'<span><i style="color:{colour}"></i>{text(name)}</span>' for name, colour in keys.items()]
    note = "Bars: 95 % intervals over draws of structures; dots: seeds; dashed: the best constant answer"
    note += "; thick: held out; thin: training; ring: the epoch that is tested"
    body = [f"<p class=legend>{''.join(legend) if len(keys) > 1 else ''}<p class=note>{note}"]
    for title, cards in {"Result": scores + prediction_cards(runs), "Curves": curves}.items():
        body.append(f"<h2>{title}</h2><div class=cards>{''.join(cards)}</div>" if cards else "")
    tables = [as_html(f"Numbers of {run.name}", results.table(run.results)) for run in runs]
    return f"{''.join(body)}<div class=tables>{''.join(tables)}{as_html('Options', options_of(runs))}</div>"


def write_page(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Draw runs of train.py and finetune.py; returns the page. Raises SiamDiffError."""
    names = [path.resolve().name for path in paths]
    names = [x if names.count(x) == 1 else "/".join(p.resolve().parts[-2:]) for x, p in zip(names, paths)]
    groups = defaultdict(list)  # what is predicted -> runs
    for run in map(read_run, paths, names):
        groups[predicted(run)].append(run)
    body = ""
    for title, runs in groups.items():
        sizes = [[results.counted(run.results)] if run.results["test"] else [] for run in runs]
        about = [[run.name, *x, *run.results["about"].values()] for run, x in zip(runs, sizes)]
        about = "<br>".join(text(" · ".join(map(str, x))) for x in about)
        body += f"<h1>{text(title)}</h1><p class=note>{about}{section(runs)}"
    head = '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
    out = out or (paths[0] / "report.html" if len(paths) == 1 else Path("comparison.html"))
    write_file(out, f"{head}<title>{text(', '.join(groups))}</title><style>{CSS}</style>{body}".encode())
    return out


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+", help="folders of runs (--out of train.py or finetune.py)")
    parser.add_argument("--out", type=Path, help="the page (default: RUN/report.html; of several runs comparison.html)")
    args = parser.parse_args(argv)
    with console():
        print(write_page(args.run, args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
