"""The pictures of a page: of every measure, and of the predictions. A function that draws takes axes first.

Every picture says in its own words how many samples it is of, the unit, and what its intervals are over.
"""

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from ...files import printable
from ..evidence.verdict import less_is_better
from ..evidence.wording import show, title_of
from .captions import differences, over, result, sizes_of, with_interval
from .comparison import Row, beside, compare
from .picture import COLOURS, INK, SQUARE, Picture, colour_of
from .runs import BASELINE, RunFolder

WORST = 5  # dots with their names
MOST_CELLS = 20  # classes whose counts are written into a confusion matrix


def colours(runs: Sequence[RunFolder], run: RunFolder) -> dict[str, str]:
    """Seed -> colour: that of the run, or of every seed of the only run one."""
    seeds = dict.fromkeys([*run.lines, *run.predictions])
    if len(runs) > 1:
        return dict.fromkeys(seeds, colour_of(runs.index(run)))
    return {seed: colour_of(number) for number, seed in enumerate(seeds)}


def legend(axes, runs: Sequence[RunFolder], shown: Sequence[RunFolder], measure: str) -> None:
    """In the picture: the value of every run with its interval; of the only run its seeds, if there are several."""
    labels = {}
    for run in shown:
        for seed, colour in colours(runs, run).items():
            value = run.of_seeds.get(seed, {}).get(measure)
            words = "" if value is None else show(measure, value)
            labels[colour] = (
                f"{run.name[:40]} {with_interval(run, measure)}" if len(runs) > 1 else f"seed {seed} {words}"
            )
    if len(labels) > 1:
        handles = [axes.plot([], [], color=colour, label=label)[0] for colour, label in labels.items()]
        axes.legend(handles=handles, title=title_of(measure).partition(" (")[0], title_fontsize="small")


def note_of(runs: Sequence[RunFolder], measure: str, *others: str) -> str:
    """What a picture says below its axes: what `others` say, the value of a run alone, what intervals are over."""
    rows = compare(runs, measure)
    value = f"{title_of(measure).partition(' (')[0]} {with_interval(runs[0], measure)}" if len(rows) == 1 else ""
    return "; ".join(filter(None, [*others, value, over(rows)]))


def as_percent(axis, measure: str) -> None:
    """Label an axis in percent if its measure is shown so."""
    if measure.endswith("accuracy") or measure.startswith("accuracy"):
        axis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")


# ---- measures --------------------------------------------------------------------------------------------------------


def picture_of_result(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """The values of the runs that have a measure, with their intervals. In words it stands beside the baseline, or
    several runs beside the first one."""
    rows = compare(runs, measure)
    notes = [sizes_of([row.run for row in rows])]
    if any(row.seeds > 1 for row in rows):
        notes.append("dots: seeds")
    for name in dict.fromkeys(other.name for row in rows for other in beside(row.run, measure)):
        notes.append("dashed: the baseline" if name == "the baseline" else f"dotted: a head of {name}")
    notes.append(over(rows).replace("95 %", "bars: 95 %"))
    words = result(rows[0], measure) if len(runs) == 1 else differences(rows)
    height = 0.6 + 0.5 * len(rows)  # inches
    draw = partial(forest, rows=rows, runs=runs, measure=measure, title=title)
    return Picture(f"{measure}-intervals", title, draw, "; ".join(filter(None, notes)), height, words)


def forest(axes, rows: Sequence[Row], runs: Sequence[RunFolder], measure: str, title: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds.

    Dashed is the baseline, dotted the head of length and composition.
    """
    for place, row in enumerate(rows):
        run = row.run
        colour = colour_of(runs.index(run)) if len(runs) > 1 else INK

        # The interval, the value in it, every seed if there are several, and across the row what it is compared with.
        axes.plot(row.interval or [math.nan] * 2, [place, place], color=colour, lw=8, alpha=0.35)
        axes.plot(row.mean, place, "|", color=colour, ms=14, mew=3)
        if row.seeds > 1:
            own = colours(runs, run)
            for seed, metrics in run.of_seeds.items():
                axes.plot(np.array([metrics.get(measure)], float), [place], "o", color=own.get(seed, colour), ms=4)
        for other in beside(run, measure):
            style = "--" if other.name == "the baseline" else ":"
            axes.plot([other.value] * 2, [place - 0.4, place + 0.4], color=INK, ls=style, lw=1.2)

        # Above the row: the name of the run at the left edge, its value at the right one.
        across = axes.get_yaxis_transform()
        axes.text(0, place - 0.3, run.name[:40] if len(runs) > 1 else "", transform=across)
        axes.text(1, place - 0.3, with_interval(run, measure), transform=across, ha="right")

    # The first run is at the top. A measure of which more is better begins at 0.
    axes.set_yticks([])
    axes.set(ylim=(len(rows) - 0.5, -0.6), xlabel=textwrap.fill(title, 48))
    as_percent(axes.xaxis, measure)
    if not less_is_better(measure, runs[0].results["direction"]):
        left, _ = axes.get_xlim()
        axes.set_xlim(left=min(left, -0.02))


def picture_of_curve(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """A measure over the epochs."""
    notes = ["thick: held out; thin: training"]
    if any(measure + BASELINE in line for run in runs for lines in run.lines.values() for line in lines):
        notes.append("dashed: the baseline")
    if any(run.results["best_epoch"] for run in runs):
        notes.append("ring: the best epoch, which is tested")
    ours = [run for run in runs if measure in run.mean]
    if ours:
        notes.append(f"at the end {sizes_of(ours)}")
    draw = partial(curve, runs=runs, measure=measure, title=title)
    return Picture(f"{measure}-curve", title, draw, note_of(ours, measure, *notes))


def curve(axes, runs: Sequence[RunFolder], measure: str, title: str) -> None:
    """A measure over the epochs: thin in training, thick held out, dashed the baseline, a ring at the best."""
    inside = []  # values that the axis has to show: all that was held out, and the training without a few wild steps
    for run in runs:
        for seed, colour in colours(runs, run).items():
            lines = [line for line in run.lines.get(seed, ()) if line.get(measure) is not None]
            train = [line for line in lines if line["split"] == "train"]
            valid = [line for line in lines if line["split"] == "valid"]
            best = run.results["best_epoch"].get(seed, -1)
            tested = [line for line in valid if abs(line["epochs"] - best) < 1e-6]
            trained, held_out = points(train, measure), points(valid, measure)
            baseline = points(valid or train, measure + BASELINE)

            axes.plot(*trained, color=colour, lw=1, alpha=0.6)
            axes.plot(*held_out, color=colour, lw=2, marker="o", ms=3)
            axes.plot(*baseline, color=INK, ls="--", lw=1.2)
            axes.plot(*points(tested, measure), "o", color=colour, ms=9, fillstyle="none")
            inside += [*held_out[1], *baseline[1]]
            if train:
                inside.extend(np.quantile(trained[1], [0.02, 0.98]))

            # A dotted line where stage 2 begins.
            for line in [line for line in lines if line.get("stage") == 2][:1]:
                axes.axvline(line["epochs"], color=INK, ls=":", lw=1.2)
                axes.text(line["epochs"], 1, " stage 2", transform=axes.get_xaxis_transform(), va="top")

    inside = [value for value in inside if math.isfinite(value)] or [0.0]
    room = 0.06 * np.ptp(inside) or 0.5
    axes.set(xlabel="epoch", ylabel=textwrap.fill(title, 32), ylim=(min(inside) - room, max(inside) + room))
    axes.set_xlim(left=0)
    axes.locator_params("x", integer=True)
    as_percent(axes.yaxis, measure)
    legend(axes, runs, runs, measure)


def points(lines: Sequence[dict], measure: str) -> np.ndarray:
    """Epochs and values (2, K); nan for those that are not known."""
    pairs = [[line["epochs"], line.get(measure)] for line in lines]
    return np.array(pairs, dtype=float).reshape(-1, 2).T


# ---- predictions -----------------------------------------------------------------------------------------------------


class Predictions(NamedTuple):
    """The predictions of one property by one seed of a run."""

    run: RunFolder
    colour: str
    property: str  # "" of the only one
    id: np.ndarray  # (K,) of the samples
    target: np.ndarray  # (K,) or (K, C)
    prediction: np.ndarray  # (K,) or (K, C)
    classes: np.ndarray  # (C,) their names
    baseline: float | None  # of numbers the mean of those that were learned from

    @property
    def kind(self) -> str:
        """Probabilities of one of several classes; of yes or no, once or for several; or numbers."""
        if self.prediction.ndim > self.target.ndim:
            return "classes"
        return "yes or no" if np.isin(self.target, (0, 1)).all() else "numbers"

    def measure(self, *names: str) -> str:
        """The first of these measures that the run has, of one of several properties with its name."""
        names = [f"{name}:{self.property}" if self.property else name for name in names]
        return next((name for name in names if name in self.run.mean), names[-1])


def predictions_of(runs: Sequence[RunFolder]) -> Iterator[Predictions]:
    """The predictions of every run and seed, property by property."""
    for run in runs:
        mean = (run.results["answer"] or {}).get("mean")
        properties = run.results["options"].get("properties")
        for seed, colour in colours(runs, run).items():
            table = run.predictions.get(seed)
            if table and not properties:
                yield Predictions(run, colour, "", **table, baseline=mean)
            for i, name in enumerate(properties if table and properties else ()):
                there = ~np.isnan(table["target"][:, i])  # where it was measured
                of_property = {column: table[column][there, i] for column in ("target", "prediction")}
                own = {**table, "id": table["id"][there], **of_property}
                yield Predictions(run, colour, name, **own, baseline=mean and mean[i])


def pictures_of_predictions(runs: Sequence[RunFolder]) -> list[Picture]:
    """The pictures that suit the predictions: of yes or no all runs in one, of numbers and classes one for each run."""
    groups = defaultdict(list)
    values = defaultdict(list)  # of a property: so the axes of all runs are the same
    for seed in predictions_of(runs):
        own = seed.target.tobytes() if seed.kind == "yes or no" else seed.run.name
        groups[seed.property, seed.kind, own].append(seed)
        values[seed.property] += [*seed.target.ravel(), *seed.prediction.ravel()]

    pictures = []
    for (name, kind, _), seeds in groups.items():
        any_seed = seeds[0]
        if kind == "classes":
            pictures.append(picture("Confusion matrix", seeds, runs, "accuracy", confusion))
        elif kind == "numbers":
            measure = any_seed.measure("global_spearman", "spearman")
            draw = partial(against_true, runs=runs, measure=measure, ends=(min(values[name]), max(values[name])))
            pictures.append(picture("Predicted against true", seeds, runs, measure, draw))
        elif len(np.unique(any_seed.target)) > 1:  # else there is no curve
            for title, metric in {"ROC curve": "auroc", "Precision and recall": "auprc"}.items():
                if metric == "auprc" or any_seed.target.ndim == 1:
                    measure = any_seed.measure(metric)
                    pictures.append(picture(title, seeds, runs, measure, partial(curves, runs=runs, measure=measure)))
    return pictures


MEANING = {  # title of a picture -> what is in it
    "Confusion matrix": "darker: a larger share of the true class; in brackets: its samples",
    "Predicted against true": "dashed: the baseline, the mean of the labels learned from; named: the worst",
    "ROC curve": "dashed: a guess",
    "Precision and recall": "dashed: a guess",
}


def picture(
    title: str, seeds: Sequence[Predictions], all_runs: Sequence[RunFolder], measure: str, draw: Callable
) -> Picture:
    """A picture of predictions of one property."""
    any_seed = seeds[0]
    runs = [*{seed.run.name: seed.run for seed in seeds}.values()]
    target = any_seed.target
    size = f"N = {len(target)}"
    names = [any_seed.property] if any_seed.property else []
    if len(seeds) > len(runs):
        size += f" for each of {len(seeds)} seeds"
    if any_seed.kind == "yes or no":
        size += f", {target.sum():.0f} positives of {target.size}"
    elif len(all_runs) > 1:
        names.append(runs[0].name)
    note = note_of(runs, measure, size, MEANING[title])
    draw = partial(draw, seeds=seeds)
    return Picture("-".join([title.lower(), *names]), ", ".join([title, *names]), draw, note, SQUARE)


def against_true(axes, seeds: Sequence[Predictions], runs, measure: str, ends: tuple[float, float]) -> None:
    """Numbers: predicted against true, each point with the name of its sample; dashed the baseline."""
    for seed in seeds:
        dots = axes.scatter(
            seed.target,
            seed.prediction,
            s=18,
            color=seed.colour,
            alpha=0.7,
            lw=0,
            rasterized=len(seed.target) > 1000,  # then they are one image
        )
        dots.set_urls([printable(name) for name in seed.id])
    legend(axes, runs, [seeds[0].run], measure)

    # Names of the worst, beside the dots of the first seed; on the inner side, so that they stay in the picture.
    first = seeds[0]
    errors = np.mean([np.abs(seed.prediction - seed.target) for seed in seeds], axis=0)
    for worst in np.argsort(-errors, kind="stable")[:WORST]:
        side = "right" if first.target[worst] > sum(ends) / 2 else "left"
        name = f" {printable(first.id[worst])[:30]} "
        axes.annotate(name, (first.target[worst], first.prediction[worst]), fontsize="x-small", va="center", ha=side)

    # Where predictions would be right, and where those of the mean lie.
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(math.nan if first.baseline is None else first.baseline, color=INK, ls="--", lw=1.2)
    room = 0.04 * (ends[1] - ends[0])  # as much as a dot is wide
    limits = (ends[0] - room, ends[1] + room)
    unit = "(units of the label)"
    axes.set(xlabel=f"true {unit}", ylabel=f"predicted {unit}", xlim=limits, ylim=limits, aspect="equal")


def curves(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder], measure: str) -> None:
    """Yes or no, once or for several classes: the ROC curve, or precision and recall; dashed a guess."""
    roc = measure.startswith("auroc")
    for seed in seeds:
        target, score = seed.target.ravel(), seed.prediction.ravel()
        y, x, _ = precision_recall_curve(target, score)
        if roc:
            x, y, _ = roc_curve(target, score)
        axes.plot(x, y, color=seed.colour)

    # A guess.
    if roc:
        axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
        axes.set(xlabel="false positive rate", ylabel="true positive rate")
    else:
        axes.axhline(seeds[0].target.mean(), color=INK, ls="--", lw=1.2)
        axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    legend(axes, runs, [seed.run for seed in seeds], measure)


def confusion(axes, seeds: Sequence[Predictions]) -> None:
    """One of several classes: the true ones, and what they are taken for."""
    from matplotlib.colors import LinearSegmentedColormap

    classes = seeds[0].classes
    labels = range(len(classes))
    counts = sum(confusion_matrix(seed.target, seed.prediction.argmax(1), labels=labels) for seed in seeds)
    of_true = counts.sum(axis=1)

    # A cell is the darker, the larger its share of the true class. Few classes also have their counts in it.
    shades = LinearSegmentedColormap.from_list("", [f"{COLOURS[0]}00", f"{COLOURS[0]}c0"])
    axes.pcolormesh(labels, labels, counts / np.maximum(of_true, 1)[:, None], cmap=shades, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts[:MOST_CELLS, :MOST_CELLS]):
        axes.text(column, row, count or "", ha="center", va="center", fontsize="small")

    # Every row says how many samples are of its class.
    rows = [f"{name} ({count // len(seeds)})" for name, count in zip(classes, of_true)]
    axes.set_xticks(labels, classes, rotation=90)
    axes.set_yticks(labels, rows)
    axes.invert_yaxis()
    axes.set(xlabel="predicted", ylabel="true")
