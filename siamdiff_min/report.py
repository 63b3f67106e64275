"""One page to show: `siamdiff report RUN` draws a run of train.py or finetune.py into RUN/report.html.

The result comes first, with its interval, the best answer that looks at nothing, and the numbers behind it; then the
predictions against the truth, the curves with all seeds in each, the options. Several runs become one page that
compares them. A page is one file without scripts, for wide screens and phones, dark and light.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from . import __version__
from .downstream.metrics import LESS_IS_BETTER, spearman
from .downstream.tasks import TASKS
from .figures import COLOURS, Plane, Row, captioned, confusion, forest, limits, number, text, thinned
from .files import Parser, console, structure_errors, write_file
from .runs import DAMAGED, Run, read_run
from .training import results
from .training.config import FINETUNE, PRETRAIN

NAMES = {  # of measures whose own name is not enough
    "global_spearman": "Spearman's rho over all models",
    "mean_spearman": "Spearman's rho within a protein (mean)",
    "spearman": "Spearman's rho",
    "pearson": "Pearson's r",
    "auroc": "AUROC",
    "auprc": "AUPR",
    "fmax": "Fmax",
    "rmse": "root mean squared error (units of the label)",
    "mae": "mean absolute error (units of the label)",
    "structure_loss": "structure loss (squared error of the noise, sigma²)",
    "distance_squared_error": "distance, squared error (Å²)",
    "peak_memory_mb": "memory (MB)",
}
NATS = {f"{name}_loss" for name in ("sequence", "residue_type", "angle", "dihedral", "contrastive")}


# ---- the result ------------------------------------------------------------------------------------------------------


def title_of(measure: str) -> str:
    """The name of a measure for a reader, with its unit."""
    return NAMES.get(measure, measure.replace("_", " ") + (" (nats)" if measure in NATS else ""))


def less_is_better(measure: str) -> bool:
    return measure in LESS_IS_BETTER or measure.endswith(("loss", "error"))


def colour(index: int) -> str:
    """The class of the colour of a run, or of a seed of the only run."""
    return f"c{index % COLOURS}"


def comparable(runs: Sequence[Run]) -> bool:
    """Whether their `loss` is the sum of the same losses."""
    return len({tuple(run.config.get(x) for x in ("method", "ablation", "preset")) for run in runs}) == 1


def predicted(run: Run) -> str:
    """The target of a run, for a title."""
    if run.task == "table":
        options = run.results.get("options", {})
        labelled = "residues" if options.get("residues") else "structures"
        return f"{Path(str(run.config.get('labels'))).stem}: {options.get('kind', 'labels')} of {labelled}"
    predicts = getattr(TASKS.get(run.task), "predicts", "") or run.task
    return predicts or f"pre-training: {run.config.get('method', run.name)}"


def start_of(run: Run) -> str:
    """Encoder, level, data and start of a run."""
    config = run.config
    words = [str(config[name]) for name in ("encoder", "size") if config.get(name)]
    words += [f"{config['level']} level"] if config.get("level") else []
    if run.task:
        words.append(f"from {config.get('init_from') or 'scratch'}" + ", frozen" * bool(config.get("freeze")))
    return ", ".join([*words, str(config.get("data") or "demo set")]) if words else run.name


def shown(measure: str, value: float) -> str:
    """A value for a reader."""
    return f"{100 * value:.1f} %" if measure.endswith("accuracy") else number(value)


def verdict(run: Run, measure: str) -> str:
    """How a metric compares with the constant answer, in words and their colour."""
    constant, gain = run.results["constant"].get(measure), run.results["gain_interval"].get(measure)
    css, words = "unsure", "constant answer"
    if gain:
        low, high = gain if not less_is_better(measure) else (-gain[1], -gain[0])
        css = "good" if low > 0 else "bad" if high < 0 else "unsure"
        sides = {"good": "better than", "bad": "worse than", "unsure": "not told apart from"}
        words = f"{sides[css]} the constant answer"
    return f"<p class={css}>{words} ({'not known' if constant is None else shown(measure, constant)})</p>"


def card(measure: str, rows: Sequence[Row], constants: Sequence[float | None], words: str) -> str:
    """A measure with its values, and the runs, seeds, intervals and constant answers on one axis."""
    constants = [x for x in constants if x is not None]
    every = [x for row in rows for x in (row.value, *(row.interval or ()), *(y for y, _ in row.seeds))] + constants
    figure = ""
    if rows:  # around what is shown if less is better, else from 0 to 1, or a part of it
        wide = min(0.0, *every), min(1.0, 1.6 * max(0.01, *every))
        figure = forest(rows, constants, limits(every, 0.25) if less_is_better(measure) else wide, measure)
    return f"<div class=card><h3>{text(title_of(measure))}</h3>{words}{figure}</div>"


def result_cards(runs: Sequence[Run]) -> list[str]:
    """A card for every metric of fine-tuned runs: value, interval, seeds, constant answer."""
    cards, alone = [], len(runs) == 1
    for measure in dict.fromkeys(name for run in runs for name in run.results.get("mean", ())):
        rows, constants, words = [], [], "<p>not defined on this split</p>"
        for run in runs:
            value, test = run.results.get("mean", {}).get(measure), run.results.get("test", {}).values()
            if value is None:
                continue
            css, interval = "" if alone else colour(runs.index(run)), run.results["interval"].get(measure)
            scores = [(x[measure], css or colour(k)) for k, x in enumerate(test) if x.get(measure) is not None]
            rows.append(Row("" if alone else run.name, value, css, interval, scores if len(test) > 1 else ()))
            constants.append(run.results["constant"].get(measure))
            counts = between = ""
            if measure == "accuracy" and (correct := run.results["counts"].get("correct")):
                correct = " / ".join(map(str, correct.values()))
                counts = f" <small>{text(correct)} of {text(run.results['samples'])}</small>"
            if interval:
                between = f"<p>95 % interval {' to '.join(shown(measure, x) for x in interval)}</p>"
            words = f"<p class=big>{shown(measure, value)}{counts}</p>{between}{verdict(run, measure)}" * alone
        cards.append(card(measure, rows, constants, words))
    return cards


def held_out_cards(runs: Sequence[Run]) -> list[str]:
    """A card for every measure of pre-training on the held-out proteins at the end, beside the constant answer."""
    last = {}  # measure -> number of the run -> split -> value
    for k, run in enumerate(runs):
        for measure, curve in (item for curves, _ in run.curves.values() for item in curves.items()):
            ends = {split: points[-1][1] for split, points in curve.items() if points and np.isfinite(points[-1][1])}
            if measure != "samples" and "valid" in ends:
                last.setdefault(measure, {})[k] = ends
    cards, alone = [], len(runs) == 1
    for measure, by_run in last.items():
        if (measure == "loss" and not comparable(runs)) or not any(x["valid"] for x in by_run.values()):
            continue
        late = {k for k in by_run if any(begins is not None for _, begins in runs[k].curves.values())}
        names = {k: runs[k].name + " (stage 1)" * bool(late and k not in late) for k in by_run}  # other noise
        rows = [Row("" if alone else names[k], x["valid"], colour(k)) for k, x in by_run.items()]
        constants, words = [x.get("constant prediction") for x in by_run.values()], ""
        if alone:
            words = f"<p class=big>{shown(measure, rows[0].value)}</p>"
        if alone and constants[0]:
            gain = 1 - rows[0].value / constants[0]
            css, side = ("good", "below") if gain > 0 else ("bad", "above")
            words += f"<p class={css}>{abs(gain):.1%} {side} the constant answer ({number(constants[0])})</p>"
        cards.append(card(measure, rows, constants, words))
    return cards


# ---- predictions and curves ------------------------------------------------------------------------------------------


class Predicted(NamedTuple):
    """The predictions of one seed of a run, in the colour of a class of the style sheet."""

    run: Run
    css: str
    target: np.ndarray  # (K,) or (K, C)
    prediction: np.ndarray  # (K,) or (K, C)
    classes: list[str]


def prediction_figures(runs: Sequence[Run]) -> list[str]:
    """The figure that suits the target: precision and recall, ROC, a confusion matrix, or predicted against true."""
    every = []
    for k, run in enumerate(runs):
        for seed, columns in run.predictions.items():
            with structure_errors(run.path / f"seed-{seed}/predictions.tsv", DAMAGED):
                css = colour(k if len(runs) > 1 else [*run.curves, *run.predictions].index(seed))
                numbers = columns["target"], columns["prediction"]
                if not all(x.size and np.isfinite(x).all() for x in numbers):
                    raise ValueError("no samples, targets or predictions")
                every.append(Predicted(run, css, *numbers, [*map(str, columns["classes"])]))
    figures, note = [], "the dashed line is a guess"
    binary = [x for x in every if x.target.shape == x.prediction.shape and is_binary(x.target)]
    flat = [(x.css, x.target.ravel(), x.prediction.ravel()) for x in binary]
    if flat and all(len(set(y)) == 2 for _, y, _ in flat):
        ones, total = int(flat[0][1].sum()), len(flat[0][1])
        count = f"{ones} positives of {total}"
        if every[0].target.ndim == 1:
            plane = Plane((-0.01, 1), (0, 1.02), ("false positive rate", "true positive rate"), square=True)
            plane.line([(0, 0), (1, 1)], "dashed")
            for css, y, p in flat:
                plane.line(thinned([*zip(*roc_curve(y, p)[:2])]), css)
            figures.append(captioned(plane.svg("ROC curve"), f"ROC curve, {count}", note))
        plane = Plane((0, 1.01), (0, 1.02), ("recall", "precision"), square=True)
        plane.across(ones / total)
        for css, y, p in flat:
            precision, recall, _ = precision_recall_curve(y, p)
            plane.line(thinned([*zip(recall, precision)]), css)
        figures.append(captioned(plane.svg("precision and recall"), f"Precision and recall, {count}", note))
    for run in dict.fromkeys(x.run for x in every):
        figures += _of_run(run, [x for x in every if x.run is run], f", {run.name}" * (len(runs) > 1))
    return figures


def is_binary(target: np.ndarray) -> bool:
    return np.isin(target, (0, 1)).all()


def _of_run(run: Run, seeds: list[Predicted], whose: str) -> list[str]:
    """Figures of one run: classes as a confusion matrix, numbers as a scatter; all seeds in each."""
    _, _, target, prediction, classes = seeds[0]
    count = f"N = {len(target)}" + f" for each of {len(seeds)} seeds" * (len(seeds) > 1)
    if prediction.ndim == 2 and target.ndim == 1:
        labels = range(len(classes))
        counts = sum(confusion_matrix(x.target, x.prediction.argmax(1), labels=labels) for x in seeds)
        return [captioned(confusion(counts, classes, "confusion matrix"), f"Confusion matrix, {count}{whose}")]
    if is_binary(target):
        return []
    ends = limits(np.concatenate([numbers for x in seeds for numbers in (x.target, x.prediction)]))
    plane = Plane(ends, ends, ("true", "predicted"), square=True)
    plane.line([(plane.x[0], plane.x[0]), (plane.x[1], plane.x[1])], "faint")
    most = 3000 // len(seeds)
    note = "rho = " + " / ".join(f"{spearman(x.prediction, x.target):.2f}" for x in seeds)
    if isinstance(constant := run.results.get("answer", {}).get("mean"), float):
        plane.across(constant)
        note += ". Dashed: the mean of the training split, the constant answer"
    for x in seeds:
        some = np.random.default_rng(0).permutation(len(x.target))[:most]
        plane.dots([*zip(x.target[some], x.prediction[some])], x.css)
    if len(target) > most:
        note += f". {most} of them are drawn"
    return [captioned(plane.svg("predicted over true"), f"Predicted against true, {count}{whose}", note)]


def curve_figures(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """A figure for every measure with all runs and seeds in it, and the names of those that are flat or empty."""
    series = []  # class of the colour, curves, beginning of stage 2, best epoch
    for number_of_run, run in enumerate(runs):
        for k, (seed, (curves, stage_2_begins)) in enumerate(run.curves.items()):
            best = run.results.get("best_epoch", {}).get(seed)
            series.append((colour(number_of_run if len(runs) > 1 else k), curves, stage_2_begins, best))
    figures, flat, first = [], [], [name for run in runs for name in run.results.get("mean", ())]
    known = dict.fromkeys(name for _, curves, _, _ in series for name in curves)
    for measure in dict.fromkeys(name for name in ("loss", *first, *known) if name in known):
        if measure == "samples" or (measure == "loss" and not comparable(runs)):
            continue
        drawn = [(css, curves[measure], *rest) for css, curves, *rest in series if measure in curves]
        values = [y for _, curve, *_ in drawn for points in (curve["train"], curve["valid"]) for _, y in points]
        values = [y for y in values if np.isfinite(y)]
        if len(values) < 2 or max(values) - min(values) <= 1e-9 * max(map(abs, values)):
            flat.append(f"{title_of(measure)} ({number(values[0]) if values else 'empty'})")
            continue
        inside = []  # a few wild steps of the training leave the axis as it is
        for _, curve, *_ in drawn:
            train = [y for _, y in curve["train"] if np.isfinite(y)]
            inside += [*np.quantile(train, [0.02, 0.98])] if train else []
            inside += [y for name in ("valid", "constant prediction") for _, y in curve[name]]
        ends = [x for _, curve, *_ in drawn for points in curve.values() for x, _ in points]
        plane = Plane((min(0.0, *ends), 1.03 * max(ends)), limits(inside), ("epoch", ""))
        for css, curve, stage_2_begins, best in drawn:
            plane.line(thinned(curve["train"]), f"thin {css}")
            constant = curve["constant prediction"]
            if constant and not curve["valid"] and stage_2_begins is None:  # measured on batches, so draw their mean
                constant = [(x, np.mean([y for _, y in constant])) for x, _ in constant]
            plane.line(constant, "dashed")
            plane.line(curve["valid"], f"thick {css}")
            if len(curve["valid"]) < 40:
                plane.dots(curve["valid"], css)
            for point in curve["valid"]:
                if best is not None and abs(point[0] - best) < 1e-6:
                    plane.ring(point, css)
        for stage_2_begins in {stage_2_begins for *_, stage_2_begins, _ in drawn} - {None}:
            plane.upright(stage_2_begins, "stage 2")
        figures.append(captioned(plane.svg(title_of(measure)), title_of(measure)))
    return figures, flat


def legend(runs: Sequence[Run], splits: bool = False) -> str:
    """The colours of runs or seeds; with `splits` also the kinds of lines."""
    names = [run.name for run in runs] if len(runs) > 1 else [f"seed {seed}" for seed in runs[0].curves if seed]
    names = names if len(names) > 1 else []
    keys = [f'<span><i class="key {colour(k)}"></i>{text(name)}</span>' for k, name in enumerate(names)]
    if splits:
        lines = {"thick": "held out", "thin": "training", "dashed": "constant answer"}
        keys += [f'<span><i class="key {css}"></i>{words}</span>' for css, words in lines.items()]
        if any(run.results.get("best_epoch") and run.results["mean"] for run in runs):
            by = title_of(next(name for run in runs for name in run.results.get("mean", ())))
            keys.append(f'<span><i class="key circle"></i>best epoch by {text(by)}, the one that is tested</span>')
    return f"<p class=legend>{''.join(keys)}</p>"


# ---- the page --------------------------------------------------------------------------------------------------------


def as_html(rows: Sequence[Sequence]) -> str:
    """Rows of cells as a table, the first one its head."""
    head, *lines = ([text(results.cell(x)) for x in row] for row in rows)
    body = "".join(f"<tr><td>{'<td>'.join(line)}" for line in lines)
    return f"<div class=scroll><table><tr><th>{'<th>'.join(head)}{body}</table></div>"


def options_of(runs: Sequence[Run]) -> str:
    """The options that are not the default; of several runs those in which they differ."""
    table = FINETUNE if runs[0].task else PRETRAIN
    default = {name: option.arguments["default"] for name, option in table.items()}
    names = dict.fromkeys(name for run in runs for name in run.config)
    rows = [["option", *(run.name for run in runs)]] if len(runs) > 1 else [["option", "value (all others: default)"]]
    for name in names:
        values = [run.config.get(name, default.get(name)) for run in runs]
        if any(x != default.get(name) for x in values) and (len(runs) == 1 or any(x != values[0] for x in values)):
            rows.append([name, *(None if x is None else str(x) for x in values)])
    return as_html(rows).replace("<table>", "<table class=options>", 1)


def section(runs: Sequence[Run]) -> str:
    """All about runs of one task, or of pre-training."""
    cards, predictions, top = [], prediction_figures(runs), "cards"
    if any(run.results for run in runs):
        sizes = {" ".join(results.counted(run.results).split()) for run in runs if run.results}
        cards, note = result_cards(runs), f"{' / '.join(sorted(sizes))}. Bars: 95 % intervals over draws of structures"
        note += " (seeds are not drawn); dots: seeds"
    else:
        held = {c["samples"]["valid"][-1][1] for run in runs for c, _ in run.curves.values() if c["samples"]["valid"]}
        cards = held_out_cards(runs)
        note = f"Held out at the end, N = {' / '.join(f'{x:g}' for x in sorted(held)) or 0}"
    note += "; dashed: the best answer that looks at nothing"
    parts = []
    if predictions and len(runs) == 1:  # side by side
        css = "cards two" if len(cards) > 2 else "cards"
        top, cards, predictions = "top", [f'<div class="{css}">{"".join(cards)}</div>', *predictions], []
    if cards:
        note = f"<p class=note>{text(note[:1].upper() + note[1:])}</p>"
        parts.append(f"<h2>Result</h2>{note}{legend(runs)}<div class={top}>{''.join(cards)}</div>")
    if predictions:
        parts.append(f"<h2>Predictions</h2>{legend(runs)}<div class=figures>{''.join(predictions)}</div>")
    figures, flat = curve_figures(runs)
    if figures:
        parts.append(f"<h2>Curves</h2>{legend(runs, splits=True)}<div class=figures>{''.join(figures)}</div>")
    if flat:
        parts.append(f"<p class=note>Left out, as flat or empty: {text(', '.join(flat))}</p>")
    numbers = {run.name: as_html(results.table(run.results)) for run in runs if run.results}
    tables = {"Numbers" + f" of {name}" * (len(runs) > 1): table for name, table in numbers.items()}
    tables["Options"] = options_of(runs)
    titled = [f"<div><h2>{text(title)}</h2>{table}</div>" for title, table in tables.items()]
    return f"{''.join(parts)}<div class=tables>{''.join(titled)}</div>"


def write_page(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Draw runs of train.py and finetune.py; returns the page. Raises SiamDiffError."""
    names = [path.resolve().name for path in paths]
    names = [name if names.count(name) == 1 else "/".join(p.resolve().parts[-2:]) for name, p in zip(names, paths)]
    runs = [read_run(path, name) for path, name in zip(paths, names)]
    groups = defaultdict(list)  # what is predicted -> runs
    for run in runs:
        groups[predicted(run) if run.task or len(runs) == 1 else "Pre-training"].append(run)
    title = next(iter(groups)) if len(groups) == 1 else f"{len(runs)} runs"
    body = [f"<h1>{text(title)}</h1>"]
    for name, group in groups.items():
        if len(groups) > 1:
            body.append(f"<h1 class=part>{text(name)}</h1>")
        for k, run in enumerate(group):
            key = f'<i class="key {colour(k)}"></i><b>{text(run.name)}</b> ' * (len(runs) > 1)
            body.append(f"<p class=about>{key}{text(start_of(run))}<br><small>{text(run.origin)}</small></p>")
        body.append(section(group))
    head = '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
    now = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"
    body.append(f"<p class=note>Drawn {now} by siamdiff_min {__version__}</p>")
    style = Path(__file__).with_name("report.css").read_text()
    page = f"{head}<title>{text(title)}</title><style>{style}</style><main>{''.join(body)}</main>"
    out = out or (paths[0] / "report.html" if len(paths) == 1 else Path("comparison.html"))
    write_file(out, page.encode())
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
