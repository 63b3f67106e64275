"""One page to show: `siamdiff report RUN...` draws runs of train.py or finetune.py, and compares several.

The result comes first, with its interval, the best answer that looks at nothing, and the predictions; then the curves
with all seeds, and the options. A page is one file without scripts, for wide screens and phones, dark and light. Its
words are HTML. Only the pictures need matplotlib: pip install matplotlib.
"""

import html
import importlib.util
import io
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from ..downstream.metrics import spearman
from ..downstream.tasks import TASKS
from ..files import Parser, printable, write_file
from ..training import results
from ..training.config import FINETUNE, PRETRAIN
from ..training.metrics_file import in_order
from .runs import Run, properties, read_run

COLOURS = "#2f7fd1", "#d9652b", "#1f9e77", "#a35bc2", "#b8860b", "#2ba3b8", "#d0478a", "#7f8790"  # of runs, or seeds
INK = "#010203"  # of a figure's lines and words: the page replaces it by its own, which depends on the reader
STYLE = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
STYLE |= dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left", "axes.spines.bottom"), False)
STYLE |= {"svg.fonttype": "none", "text.parse_math": False, "xtick.bottom": False, "ytick.left": False}
NO_MATPLOTLIB = "the pictures are missing, they need matplotlib: pip install matplotlib"
NAMES = {"spearman": "Spearman's rho", "pearson": "Pearson's r", "auroc": "AUROC", "auprc": "AUPR", "fmax": "Fmax"}
NAMES |= {"global_spearman": "Spearman's rho over all models"}
NAMES |= {"mean_spearman": "Spearman's rho within a protein (mean)"}
NAMES |= {"rmse": "root mean squared error (units of the label)", "mae": "mean absolute error (units of the label)"}
NAMES |= {"structure_loss": "structure loss (squared error of the noise, sigma²)"}
NAMES |= {"distance_squared_error": "distance, squared error (Å²)"}
NATS = {f"{name}_loss" for name in ("sequence", "residue_type", "angle", "dihedral", "contrastive")}
CSS = """:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1a1d21;--soft:#5b636d;--rule:#e1e4e8;
--good:#0c7d5c;--bad:#c8501d}@media(prefers-color-scheme:dark){:root{--page:#121417;--card:#1c1f24;--ink:#eceef1;
--soft:#a3abb5;--rule:#31363d;--good:#45d1a5;--bad:#ff9166}}
body{max-width:1760px;margin:auto;padding:1.2rem clamp(.8rem,2.5vw,2.5rem);background:var(--page);color:var(--ink);
font:16px/1.45 system-ui,sans-serif}h1{font-size:1.7rem;line-height:1.2;margin:.3rem 0 .5rem}
h2{font-size:1.2rem;margin:2rem 0 .4rem}h3{font-size:1rem;margin:0 0 .3rem}p{margin:.2rem 0 .5rem}
h1::first-letter,h3::first-letter,.note::first-letter{text-transform:uppercase}
small,.note{color:var(--soft);font-size:.87rem}.big{font-size:2rem;font-weight:650;line-height:1.1}
.big small{font-weight:400}.better{color:var(--good)}.worse{color:var(--bad)}.not{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:1rem;align-items:start}
.card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:1rem;min-width:0}
svg{display:block;width:100%;height:auto;color:var(--soft)}svg text{font-family:system-ui,sans-serif!important}
.legend span{margin-right:1.2em}i{display:inline-block;width:1.5em;border-top:4px solid;margin:0 .4em .25em 0}
.thin{border-top-width:1px}.dashed{border-top:2px dashed}.ring{width:.7em;height:.7em;border:2px solid;
border-radius:50%;margin-bottom:-.1em}.tables{display:flex;flex-wrap:wrap;gap:0 3rem}
.tables>div{overflow-x:auto;max-width:100%}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:.25rem 1.2rem .25rem 0;border-bottom:1px solid var(--rule);font-size:.9rem}
th{color:var(--soft);font-weight:500}tr>*{white-space:nowrap}"""


def colours(runs: Sequence[Run], run: Run) -> dict[str, str]:
    """Seed -> colour: that of the run, or of every seed of the only run one."""
    seeds = dict.fromkeys([*run.lines, *run.predictions])
    return {seed: COLOURS[(runs.index(run) if len(runs) > 1 else k) % len(COLOURS)] for k, seed in enumerate(seeds)}


# ---- pictures --------------------------------------------------------------------------------------------------------


def card(title: str, draw: Callable, *arguments, height: float = 2.8, words: str = "") -> str:
    """A card with words, with what `draw` draws on axes, in the colours of the page, and with the note it returns."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return f"<div class=card><h3>{text(title)}</h3>{words}</div>" if words else ""
    with rc_context(STYLE):
        figure, file = Figure((4.6, height), layout="constrained"), io.StringIO()
        axes = figure.add_subplot()
        axes.grid(color=INK, alpha=0.12)
        note = draw(axes, *arguments) or ""
        figure.savefig(file, format="svg", transparent=True, dpi=150)
    svg = "<svg" + file.getvalue().partition("<svg")[2].replace(INK, "currentColor")
    # A point with an address is a link. Its address is a name, for the browser to show under the pointer.
    svg = re.sub('<a xlink:href="(.*?)".*?>(.*?)</a>', r"<g><title>\1</title>\2</g>", svg, flags=re.DOTALL)
    return f"<div class=card><h3>{text(title)}</h3>{words}{svg}<p class=note>{note}</div>"


def forest(axes, runs: Sequence[Run], measure: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds; dashed: constant answers."""
    for y, run in enumerate(runs):
        colour, r = (COLOURS[y % len(COLOURS)] if len(runs) > 1 else INK), run.results
        axes.plot(r["interval"].get(measure) or [math.nan] * 2, [y, y], color=colour, lw=8, alpha=0.35)
        axes.plot(r["mean"][measure], y, "|", color=colour, ms=14, mew=3)
        for seed in r["test"] if len(r["test"]) > 1 else ():
            value = math.nan if r["test"][seed][measure] is None else r["test"][seed][measure]
            axes.plot(value, y, "o", color=colours(runs, run).get(seed, colour), ms=4)
        axes.plot([r["constant"].get(measure)] * 2, [y - 0.4, y + 0.4], color=INK, ls="--", lw=1.2)
        if len(runs) > 1:
            across = axes.get_yaxis_transform()
            axes.text(0, y - 0.3, run.name[:40], transform=across)
            axes.text(1, y - 0.3, show(measure, r["mean"][measure]), transform=across, ha="right")
    axes.set_yticks([])
    axes.set(ylim=(len(runs) - 0.5, -0.6))
    if not results.less_is_better(measure, runs[0].results["direction"]):
        axes.set_xlim(left=min(axes.get_xlim()[0], -0.02))


def curve(axes, runs: Sequence[Run], measure: str) -> None:
    """A measure over the epochs: thin in training, thick held out, dashed the constant answer, a ring at the best."""
    inside = []  # a few wild steps of the training leave the axis as it is
    for run in runs:
        for seed, colour in colours(runs, run).items():
            lines = [line for line in run.lines.get(seed, ()) if line.get(measure) is not None]
            train, valid = ([line for line in lines if line["split"] == split] for split in ("train", "valid"))
            axes.plot(*points(train, measure), color=colour, lw=1, alpha=0.6)
            axes.plot(*points(valid, measure), color=colour, lw=2, marker="o", ms=3)
            axes.plot(*points(valid or train, f"{measure}_constant"), color=INK, ls="--", lw=1.2)
            best = run.results["best_epoch"].get(seed, -1)
            tested = [line for line in valid if abs(line["epochs"] - best) < 1e-6]
            axes.plot(*points(tested, measure), "o", color=colour, ms=9, fillstyle="none")
            inside += [*np.quantile(points(train, measure)[1], [0.02, 0.98])] if train else []
            inside += [*points(valid, measure)[1], *points(valid, f"{measure}_constant")[1]]
            for line in [line for line in lines if line.get("stage") == 2][:1]:
                axes.axvline(line["epochs"], color=INK, ls=":", lw=1.2)
                axes.text(line["epochs"], 1, " stage 2", transform=axes.get_xaxis_transform(), va="top")
    inside = [x for x in inside if math.isfinite(x)] or [0.0]
    room = 0.06 * (max(inside) - min(inside)) or 0.5
    axes.set(xlabel="epoch", ylim=(min(inside) - room, max(inside) + room))
    axes.set_xlim(left=0)
    axes.locator_params("x", integer=True)


def points(lines: Sequence[dict], measure: str) -> np.ndarray:
    """Epochs and values (2, K); nan for those that are not known."""
    return np.array([[line["epochs"], line.get(measure)] for line in lines], dtype=float).reshape(-1, 2).T


def against_true(axes, seeds: Sequence[tuple], ends: tuple[float, float], answer: float | None) -> str:
    """Numbers: predicted against true, each point with the name of its sample; dashed the constant answer."""
    for colour, y, p, table in seeds:
        dots = axes.scatter(y, p, s=18, color=colour, alpha=0.7, lw=0, rasterized=len(y) > 1000)
        dots.set_urls([printable(name) for name in table["id"]])
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(math.nan if answer is None else answer, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="true", ylabel="predicted", xlim=ends, ylim=ends, aspect="equal")
    rho = " / ".join(f"{spearman(p, y):.2f}" for _, y, p, _ in seeds)
    return f"rho = {rho}. Dashed: the mean of the training split, the constant answer"


def precision_recall(axes, seeds: Sequence[tuple]) -> str:
    """Yes or no, once or for several classes; dashed a guess."""
    for colour, y, p, _ in seeds:
        axes.plot(*precision_recall_curve(y.ravel(), p.ravel())[1::-1], color=colour)
    axes.axhline(seeds[0][1].mean(), color=INK, ls="--", lw=1.2)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    return "the dashed line is a guess"


def roc(axes, seeds: Sequence[tuple]) -> str:
    """Yes or no; dashed a guess."""
    for colour, y, p, _ in seeds:
        axes.plot(*roc_curve(y, p)[:2], color=colour)
    axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    return "the dashed line is a guess"


def confusion(axes, seeds: Sequence[tuple]) -> str:
    """One of several classes: the true ones, and what they are taken for."""
    from matplotlib.colors import LinearSegmentedColormap

    classes = seeds[0][3]["classes"]
    counts = sum(confusion_matrix(y, p.argmax(1), labels=range(len(classes))) for _, y, p, _ in seeds)
    size, edges = counts.sum(1, keepdims=True), np.arange(len(classes) + 1) - 0.5
    shades = LinearSegmentedColormap.from_list("", [f"{COLOURS[0]}00", f"{COLOURS[0]}c0"])
    axes.pcolormesh(edges, edges, counts / np.maximum(size, 1), cmap=shades, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts[:20, :20]):
        axes.text(column, row, count or "", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), [f"{name} ({n // len(seeds)})" for name, (n,) in zip(classes, size)])
    axes.set(xlabel="predicted", ylabel="true", ylim=(len(classes) - 0.5, -0.5))
    return "darker: a larger share of the true class; in brackets: its samples"


def prediction_cards(runs: Sequence[Run]) -> list[str]:
    """The figures that suit the predictions: of yes or no all runs in one, of numbers and classes one for each run."""
    cards, together, scatters, ends = [], defaultdict(list), [], defaultdict(list)
    drawn = [(run, *of) for run in runs for of in properties(run)]
    for run, name, predictions, mean in drawn:
        tables = [(colour, predictions[x]) for x, colour in colours(runs, run).items() if x in predictions]
        found = [(colour, table["target"], table["prediction"], table) for colour, table in tables]
        for _, y, p, _ in found[:1]:
            count = f"{name}, N = {len(y)}".removeprefix(", ") + f" for each of {len(found)} seeds" * (len(found) > 1)
            count += f", {run.name}" * (len(runs) > 1)
            if p.ndim > y.ndim:
                cards.append(card(f"Confusion matrix, {count}", confusion, found, height=4.4))
            elif np.isin(y, (0, 1)).all():
                together[name, y.tobytes()] += found
            else:
                scatters.append((name, f"Predicted against true, {count}", found, mean))
                ends[name] += [end(x) for _, *both, _ in found for x in both for end in (np.min, np.max)]
    for name, title, found, mean in scatters:  # of one property on the same axes, so that they can be compared
        room = 0.04 * (max(ends[name]) - min(ends[name]))
        limits = min(ends[name]) - room, max(ends[name]) + room
        cards.append(card(title, against_true, found, limits, mean, height=4.4))
    for (name, _), found in [(key, found) for key, found in together.items() if len(np.unique(found[0][1])) == 2]:
        y, of = found[0][1], f" of {name}" * bool(name)
        for title, draw in [("ROC curve", roc)] * (y.ndim == 1) + [("Precision and recall", precision_recall)]:
            cards.append(card(f"{title}{of}, {y.sum():.0f} positives of {y.size}", draw, found, height=4.4))
    return cards


# ---- words -----------------------------------------------------------------------------------------------------------


def text(value) -> str:
    """A value as text for a page: escaped, on one line."""
    return html.escape(printable(str(value)))


def show(measure: str, value: float) -> str:
    """A value for a reader."""
    if measure.startswith("accuracy") or measure.endswith("accuracy"):
        return f"{100 * value:.1f} %"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def title_of(measure: str, others: Iterable[str] = ()) -> str:
    """The name of a measure for a reader, with its unit; of several properties (NAME:PROPERTY) with the property."""
    name, _, of = measure.partition(":")
    title = NAMES.get(name, name.replace("_", " ") + (" (nats)" if name in NATS else ""))
    if any(other.startswith(f"{measure}:") for other in others):
        title, of = title.partition(" (")[0], "mean" + " in standard deviations" * (name in ("rmse", "mae"))
    return f"{title}, {of}" if of else title


def predicted(run: Run) -> str:
    """What a run predicts."""
    options, task = run.results["options"], run.config.get("task", "")
    if task == "table":
        column = options.get("column") or Path(str(run.config.get("labels"))).stem
        return f"{column}: {options.get('kind', 'labels')} of {'residues' if options.get('residues') else 'structures'}"
    return getattr(TASKS.get(task), "predicts", "") or task or "pre-training"


def about(run: Run) -> str:
    """Encoder, level, data and start of a run; date, versions and machine; notes about the labels."""
    config = run.config
    words = [str(config[name]) for name in ("method", "encoder", "size") if config.get(name)]
    words += [f"{config['level']} level"] if config.get("level") else []
    if config.get("task"):
        words.append(f"from {config.get('init_from') or 'scratch'}" + ", frozen" * bool(config.get("freeze")))
    words = ", ".join([*words, str(config.get("data") or "demo set")]) if words else run.name
    small = [" · ".join(map(str, run.results["about"].values())), *run.results["notes"]]
    unfinished = f"<p class='big worse'>{run.results['unfinished']}" if run.results["unfinished"] else ""
    return "<br>".join([text(words), *(f"<small>{text(line)}</small>" for line in small)]) + unfinished


def verdict(run: Run, measure: str) -> str:
    """A result in words: its value, its interval, how it compares with the constant answer."""
    r, value = run.results, run.results["mean"][measure]
    correct = r["counts"].get("correct") if measure == "accuracy" else None
    counts = f" <small>{' / '.join(map(str, correct.values()))} of {text(r['samples'])}</small>" if correct else ""
    words, constant = f"<p class=big>{show(measure, value)}{counts}</p>", r["constant"].get(measure)
    if interval := r["interval"].get(measure):
        words += f"<p>95 % interval {show(measure, interval[0])} to {show(measure, interval[1])}</p>"
    if constant is None:
        return words
    gain = r["gain_interval"].get(measure)
    if gain or not r["test"]:
        side = results.side(measure, gain or [value - constant] * 2, r["direction"])
        return f"{words}<p class={side.split()[0]}>{side} the constant answer ({show(measure, constant)})</p>"
    return f"{words}<p class=not>the constant answer has {show(measure, constant)}</p>"


def difference(runs: Sequence[Run], measure: str) -> str:
    """Of two runs on one test split: the second minus the first, with its interval over the same draws."""
    draws = [run.results["draws"] for run in runs]
    if len(runs) != 2 or not all(measure in x for x in draws) or draws[0]["split"] != draws[1]["split"]:
        return ""
    count = min(len(x[measure]) for x in draws)
    low, high = results.interval(draws[1][measure][:count] - draws[0][measure][:count]) or (math.nan, math.nan)
    side = results.side(measure, [low, high], runs[1].results["direction"])
    gain = runs[1].results["mean"][measure] - runs[0].results["mean"][measure]
    words = f"{runs[1].name} {side} {runs[0].name}: {gain:+.3g}, 95 % interval {low:+.3g} to {high:+.3g}"
    return f"<p class={side.split()[0]}>{text(words)}</p>"


def as_html(title: str, rows: Sequence[Sequence]) -> str:
    """Rows of cells as a table, the first one its head."""
    lines = ["".join(f"<td>{text(results.cell(x))}" for x in row) for row in rows]
    table = "<tr>".join(lines).replace("<td>", "<th>", len(rows[0]))
    return f"<div><h2>{text(title)}</h2><table><tr>{table}</table></div>"


def options_of(runs: Sequence[Run]) -> list[list[str]]:
    """The options that are not the default; of several runs those in which they differ."""
    options = FINETUNE if runs[0].config.get("task") else PRETRAIN
    head = [run.name for run in runs] if len(runs) > 1 else ["value (all others: default)"]
    rows, names = [["option", *head]], dict.fromkeys(name for run in runs for name in run.config)
    for name in names:
        default = options[name].arguments["default"] if name in options else None  # of a plugin, or an older version
        values = [run.config.get(name) for run in runs]
        if any(x != default for x in values) and (len(runs) == 1 or any(x != values[0] for x in values)):
            rows.append([name, *map(str, values)])
    return rows


# ---- the page --------------------------------------------------------------------------------------------------------


def legend(runs: Sequence[Run], curves: bool = False) -> str:
    """The colours of runs or seeds; with `curves` also the kinds of lines."""
    keys = {run.name: COLOURS[k % len(COLOURS)] for k, run in enumerate(runs)}
    if len(runs) == 1:
        keys = {f"seed {seed}": colour for seed, colour in colours(runs, runs[0]).items()}
    items = [f'<span><i style="border-color:{colour}"></i>{text(name)}</span>' for name, colour in keys.items()]
    if curves:
        lines = {"thick": "held out", "thin": "training", "dashed": "constant answer"}
        if any(run.results["best_epoch"] for run in runs):
            lines["ring"] = "best epoch, the one that is tested"
        items += ["", *(f"<span class=not><i class={css}></i>{words}</span>" for css, words in lines.items())]
    return f"<p class=legend>{''.join(items[len(keys) == 1 :])}</p>"


def section(runs: Sequence[Run]) -> str:
    """All about runs of one task, or of pre-training. A loss that is a sum is compared with the same sum only."""
    sums = {tuple(run.config.get(x) for x in ("method", "ablation", "preset")) for run in runs}
    lines = [line for run in runs for of_seed in run.lines.values() for line in of_seed]
    logged = in_order({name: x for line in lines for name, x in line.items()})
    names = dict.fromkeys([*(name for run in runs for name in run.results["mean"]), *(name for name, _ in logged)])
    scores, curves = [], []
    for name in [name for name in names if not name.endswith("_per_second") and (name != "loss" or len(sums) == 1)]:
        if scored := [run for run in runs if run.results["mean"].get(name) is not None]:
            words = verdict(runs[0], name) if len(runs) == 1 else difference(runs, name)
            height = 0.55 + (0.5 if len(runs) > 1 else 0.25) * len(scored)
            scores.append(card(title_of(name, names), forest, scored, name, height=height, words=words))
        if len({line.get(name) for line in lines} - {None}) > 1:
            curves.append(card(title_of(name, names), curve, runs, name))
    tested = [run.results for run in runs if run.results["test"]]
    counted = " / ".join({re.sub(" {2,}", ": ", results.counted(x)): 0 for x in tested})
    note = f"{counted}. Bars: 95 % intervals over draws of structures"
    note += "".join({f" (none {x['no_interval']})": 0 for x in tested if x.get("no_interval")})
    note += "; dots: seeds" * any(len(x["test"]) > 1 for x in tested)
    note = text(f"{note if tested else 'held out at the end'}; dashed: the best answer that looks at nothing")
    body = f"<h2>Result</h2><p class=note>{note}</p>{legend(runs)}"
    apart = "</div><p><div class=cards>" * (len(runs) > 1)
    body += f"<div class=cards>{''.join([*scores, apart, *prediction_cards(runs)])}</div>"
    if curves:
        body += f"<h2>Curves</h2>{legend(runs, curves=True)}<div class=cards>{''.join(curves)}</div>"
    whose = {run.name: f" of {run.name}" * (len(runs) > 1) for run in runs}
    tables = [as_html(f"Numbers{whose[run.name]}", results.table(run.results)) for run in runs if run.results["test"]]
    return f"{body}<div class=tables>{''.join(tables)}{as_html('Options', options_of(runs))}</div>"


def as_page(title: str, body: str) -> bytes:
    """The file of a page."""
    head = '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
    return f"{head}<title>{text(title)}</title><style>{CSS}</style>{body}".encode()


def write_page(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Draw runs of train.py and finetune.py; returns the page. Raises SiamDiffError."""
    names = [path.resolve().name for path in paths]
    names = [x if names.count(x) == 1 else "/".join(p.resolve().parts[-2:]) for x, p in zip(names, paths)]
    groups = defaultdict(list)  # what is predicted -> runs
    for run in map(read_run, paths, names):
        groups[predicted(run)].append(run)
    body = "" if importlib.util.find_spec("matplotlib") else f"<p class=worse>{NO_MATPLOTLIB}"
    for title, runs in groups.items():
        body += f"<h1>{text(title)}</h1>"
        for k, run in enumerate(runs):
            key = f'<i style="border-color:{COLOURS[k % len(COLOURS)]}"></i><b>{text(run.name)}</b> ' * (len(runs) > 1)
            body += f"<p>{key}{about(run)}"
        body += section(runs)
    out = out or (paths[0] / "report.html" if len(paths) == 1 else Path("comparison.html"))
    write_file(out, as_page(", ".join(groups), body))
    return out


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff report", description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, nargs="+", help="folders of runs (--out of train.py or finetune.py)")
    parser.add_argument("--out", type=Path, help="the page (default: RUN/report.html; of several runs comparison.html)")
    args = parser.parse_args(argv)
    print(write_page(args.run, args.out))
    if not importlib.util.find_spec("matplotlib"):
        print(f"warning: {NO_MATPLOTLIB}", file=sys.stderr)
    return 0
