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
from ..evidence.wording import title_of
from .captions import over, result, sizes_of, with_interval
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


def legend(axes, runs: Sequence[RunFolder], shown: Sequence[RunFolder]) -> None:
    """In the picture: which colour is which run; of the only run which seed, if there are several."""
    labels = {}
    for run in shown:
        for seed, colour in colours(runs, run).items():
            labels[colour] = run.name[:40] if len(runs) > 1 else f"seed {seed}"
    if len(labels) > 1:
        axes.legend(handles=[axes.plot([], [], color=colour, label=label)[0] for colour, label in labels.items()])


def note_of(runs: Sequence[RunFolder], measure: str, *others: str) -> str:
    """What a picture says below its axes: what `others` say, the value of every run, what intervals are over."""
    rows = compare(runs, measure)
    values = [f"{row.run.name[:40] if len(rows) > 1 else ''} {with_interval(row, measure)}".strip() for row in rows]
    if values:
        values[0] = f"{title_of(measure).partition(' (')[0]} {values[0]}"
    return "; ".join(filter(None, [*others, ", ".join(values), over(rows)]))


def as_percent(axis, measure: str) -> None:
    """Label an axis in percent if its measure is shown so."""
    if measure.endswith("accuracy") or measure.startswith("accuracy"):
        axis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")


# ---- measures --------------------------------------------------------------------------------------------------------


def picture_of_result(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """The values of the runs that have a measure, with their intervals. That of a run alone is said in words too."""
    rows = compare(runs, measure)
    notes = [sizes_of([row.run for row in rows])]
    if any(row.seeds > 1 for row in rows):
        notes.append("dots: seeds")
    for name in dict.fromkeys(other.name for row in rows for other in beside(row.run, measure)):
        notes.append("dashed: the baseline" if name == "the baseline" else f"dotted: a head of {name}")
    notes.append(over(rows).replace("95 %", "bars: 95 %"))
    words = result(rows[0], measure) if len(runs) == 1 else ""
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
            axes.plot([other.value] * 2, [place - 0.12, place + 0.4], color=INK, ls=style, lw=1.2)

        # Above the row: the name of the run at the left edge, its value at the right one.
        across = axes.get_yaxis_transform()
        axes.text(0, place - 0.3, run.name[:40] if len(runs) > 1 else "", transform=across)
        axes.text(1, place - 0.3, with_interval(row, measure), transform=across, ha="right")

    # The first run is at the top.
    axes.set_yticks([])
    axes.set(ylim=(len(rows) - 0.5, -0.6), xlabel=textwrap.fill(title, 48))
    as_percent(axes.xaxis, measure)


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
    legend(axes, runs, runs)


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
        """A key of PICTURES."""
        if self.prediction.ndim > self.target.ndim:
            return "classes"
        if not np.isin(self.target, (0, 1)).all():
            return "numbers"
        if len(np.unique(self.target)) < 2:
            return "all alike"
        return "yes or no" if self.target.ndim == 1 else "yes or no, of each class"


def predictions_of(runs: Sequence[RunFolder]) -> Iterator[Predictions]:
    """The predictions of every run and seed, property by property."""
    for run in runs:
        mean = (run.results["answer"] or {}).get("mean")
        properties = run.results["options"].get("properties", ())
        for seed, colour in colours(runs, run).items():
            table = run.predictions.get(seed, {})
            if table and not properties:
                yield Predictions(run, colour, "", **table, baseline=mean)
            for i, name in enumerate(properties if table else ()):
                there = ~np.isnan(table["target"][:, i])  # where it was measured
                own = {column: table[column][there, i] for column in ("target", "prediction")}
                own |= {"id": table["id"][there], "classes": table["classes"]}
                yield Predictions(run, colour, name, **own, baseline=mean and mean[i])


def pictures_of_predictions(runs: Sequence[RunFolder]) -> list[Picture]:
    """The pictures that suit the predictions: of yes or no all runs in one, of numbers and classes one for each run."""
    groups = defaultdict(list)
    for seed in predictions_of(runs):
        together = seed.target.tobytes() if seed.kind.startswith("yes or no") else seed.run.name
        groups[seed.property, seed.kind, together].append(seed)
    pictures = []
    for (_, kind, _), seeds in groups.items():
        pictures += [picture(seeds, runs, *row) for row in PICTURES.get(kind, ())]
    return pictures


def picture(
    seeds: Sequence[Predictions], all_runs: Sequence[RunFolder], title: str, draw: Callable, metric: str, meaning: str
) -> Picture:
    """A picture of predictions of one property."""
    first = seeds[0]
    runs = [*{seed.run.name: seed.run for seed in seeds}.values()]
    names = [title, first.property] if first.property else [title]
    measure = ":".join([metric, *names[1:]])
    if f"global_{measure}" in first.run.mean:  # of psr
        measure = f"global_{measure}"
    size = f"N = {len(first.target)}"
    if len(seeds) > len(runs):
        size += f" for each of {len(seeds)} seeds"
    if "guess" in meaning:
        size += f", {first.target.sum():.0f} positives of {first.target.size}"
    elif len(all_runs) > 1:
        names.append(first.run.name)
    draw = partial(draw, seeds=seeds, runs=all_runs)
    return Picture("-".join(names).lower(), ", ".join(names), draw, note_of(runs, measure, size, meaning), SQUARE)


def against_true(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
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
    legend(axes, runs, [seeds[0].run])

    # Both axes have the same ends.
    first = seeds[0]
    values = np.concatenate([first.target, *[seed.prediction for seed in seeds]])
    room = 0.04 * np.ptp(values)  # as much as a dot is wide
    ends = values.min() - room, values.max() + room

    # Names of the worst, beside the dots of the first seed; on the inner side, so that they stay in the picture.
    errors = np.mean([np.abs(seed.prediction - seed.target) for seed in seeds], axis=0)
    for worst in np.argsort(-errors, kind="stable")[:WORST]:
        side = "right" if first.target[worst] > np.mean(ends) else "left"
        name = f" {printable(first.id[worst])[:30]} "
        axes.annotate(name, (first.target[worst], first.prediction[worst]), fontsize="x-small", va="center", ha=side)

    # Where predictions would be right, and where those of the mean lie.
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(math.nan if first.baseline is None else first.baseline, color=INK, ls="--", lw=1.2)
    unit = "(units of the label)"
    axes.set(xlabel=f"true {unit}", ylabel=f"predicted {unit}", xlim=ends, ylim=ends, aspect="equal")


def roc(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """Yes or no: the ROC curve; dashed a guess."""
    for seed in seeds:
        false_positives, true_positives, _ = roc_curve(seed.target, seed.prediction)
        axes.plot(false_positives, true_positives, color=seed.colour)
    axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    legend(axes, runs, [seed.run for seed in seeds])


def precision_recall(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """Yes or no, once or for several classes: precision and recall; dashed a guess."""
    for seed in seeds:
        precision, recall, _ = precision_recall_curve(seed.target.ravel(), seed.prediction.ravel())
        axes.plot(recall, precision, color=seed.colour)
    axes.axhline(seeds[0].target.mean(), color=INK, ls="--", lw=1.2)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    legend(axes, runs, [seed.run for seed in seeds])


def confusion(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """One of several classes: the true ones, and what they are taken for."""
    from matplotlib.colors import LinearSegmentedColormap

    classes = seeds[0].classes
    labels = range(len(classes))
    counts = sum(confusion_matrix(seed.target, seed.prediction.argmax(1), labels=labels) for seed in seeds)
    of_true = counts.sum(axis=1)

    # A cell is the darker, the larger its share of the true class. Few classes also have their counts in it.
    shades = LinearSegmentedColormap.from_list("", [f"{COLOURS[0]}00", f"{COLOURS[0]}c0"])
    axes.pcolormesh(labels, labels, counts / np.maximum(of_true, 1)[:, None], cmap=shades, vmin=0, vmax=1)
    if len(classes) <= MOST_CELLS:
        for (row, column), count in np.ndenumerate(counts):
            axes.text(column, row, count or "", ha="center", va="center", fontsize="small")

    # Every row says how many samples are of its class.
    axes.set_xticks(labels, classes, rotation=90)
    axes.set_yticks(labels, [f"{name} ({count // len(seeds)})" for name, count in zip(classes, of_true)])
    axes.invert_yaxis()
    axes.set(xlabel="predicted", ylabel="true")


PRECISION = ("Precision and recall", precision_recall, "auprc", "dashed: a guess")
MEAN = "dashed: the baseline, the mean of the labels learned from; named: the worst"
SHARES = "darker: a larger share of the true class; in brackets: its samples"
PICTURES = {  # kind of predictions -> title, what draws, the metric that is said, what is in it
    "classes": [("Confusion matrix", confusion, "accuracy", SHARES)],
    "numbers": [("Predicted against true", against_true, "spearman", MEAN)],
    "yes or no": [("ROC curve", roc, "auroc", "dashed: a guess"), PRECISION],
    "yes or no, of each class": [PRECISION],
}
