"""The pictures of a page: of every measure, and of the predictions. A function that draws takes axes first.

Every picture says in its own words how many samples it is of, the unit, and what its intervals are over.
"""

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from ..evidence.wording import title_of
from .captions import over, result, sizes_of, with_interval
from .comparison import Row, compare
from .picture import INK, SQUARE, Picture, colour_of
from .runs import BASELINE, RunFolder


def legend(axes, runs: Sequence[RunFolder]) -> None:
    """In the picture: which colour is which run."""
    for run in runs:
        axes.plot([], [], color=colour_of(run.number), label=run.name[:40])
    if len(runs) > 1:
        axes.legend()


def note_of(runs: Sequence[RunFolder], measure: str, *others: str) -> str:
    """What a picture says below its axes: what `others` say, the value of every run, what intervals are over."""
    rows = compare(runs, measure)
    title, _, _ = title_of(measure).partition(" (")
    values = [f"{title} of {row.run.name[:40]} {with_interval(row, measure)}" for row in rows]
    return "; ".join(filter(None, [*others, *values, over(rows)]))


def as_percent(axis, measure: str) -> None:
    """Label an axis in percent if its measure is shown so."""
    if measure.endswith("accuracy") or measure.startswith("accuracy"):
        axis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")


# ---- measures --------------------------------------------------------------------------------------------------------


def picture_of_result(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """The values of the runs that have a measure, with their intervals. That of a run alone is said in words too."""
    rows = compare(runs, measure)
    notes = [sizes_of(row.run for row in rows)]
    if any(row.seeds > 1 for row in rows):
        notes.append("dots: seeds")
    if any(row.baseline is not None for row in rows):
        notes.append("dashed: the baseline")
    notes.append(over(rows).replace("95 %", "bars: 95 %"))
    words = result(rows[0], measure) if len(runs) == 1 else ""
    height = 0.6 + 0.5 * len(rows)  # inches
    draw = partial(forest, rows=rows, measure=measure, title=title)
    return Picture(f"{measure}-intervals", title, draw, "; ".join(filter(None, notes)), height, words)


def forest(axes, rows: Sequence[Row], measure: str, title: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds; dashed is the baseline."""
    for place, row in enumerate(rows):
        colour = colour_of(row.run.number)
        if row.interval:
            axes.plot(row.interval, [place, place], color=colour, lw=8, alpha=0.35)
        axes.plot(row.mean, place, "|", color=colour, ms=14, mew=3)
        if row.seeds > 1:
            axes.plot(row.run.seeds_of(measure), [place] * row.seeds, "o", color=colour, ms=4)
        if row.baseline is not None:
            axes.plot([row.baseline] * 2, [place - 0.12, place + 0.4], color=INK, ls="--", lw=1.2)

        # Above the row: the name of the run at the left edge, its value at the right one.
        across = axes.get_yaxis_transform()
        axes.text(0, place - 0.3, row.run.name[:40], transform=across)
        axes.text(1, place - 0.3, with_interval(row, measure), transform=across, ha="right")

    # The first run is at the top.
    axes.set_yticks([])
    axes.set(ylim=(len(rows) - 0.5, -0.6), xlabel=textwrap.fill(title, 48))
    as_percent(axes.xaxis, measure)


def picture_of_curve(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """A measure over the steps."""
    ours = [run for run in runs if measure in run.mean]
    notes = ["thick: held out; thin: training; dashed: the baseline; dotted: stage 2 begins"]
    if ours:
        notes.append(f"at the end {sizes_of(ours)}")
    draw = partial(curve, runs=runs, measure=measure, title=title)
    return Picture(f"{measure}-curve", title, draw, note_of(ours, measure, *notes))


def curve(axes, runs: Sequence[RunFolder], measure: str, title: str) -> None:
    """A measure over the steps: thin in training, thick held out, dashed the baseline."""
    inside = []  # values that the axis has to show: all that was held out, and the training without a few wild steps
    for run in runs:
        colour = colour_of(run.number)
        for lines in run.lines:
            trained, held_out = (points(lines, split, measure) for split in ("train", "valid"))
            baseline = points(lines, "valid" if held_out.size else "train", measure + BASELINE)
            axes.plot(*trained, color=colour, lw=1, alpha=0.6)
            axes.plot(*held_out, color=colour, lw=2, marker="o", ms=3)
            axes.plot(*baseline, color=INK, ls="--", lw=1.2)
            inside += [*held_out[1], *baseline[1]]
            if trained.size:
                inside.extend(np.quantile(trained[1], [0.02, 0.98]))
            for line in [line for line in lines if line.get("stage") == 2][:1]:
                axes.axvline(line["step"], color=INK, ls=":", lw=1.2)

    inside = [value for value in inside if math.isfinite(value)] or [0.0]
    room = 0.06 * np.ptp(inside) or 0.5
    axes.set(xlabel="step", ylabel=textwrap.fill(title, 32), ylim=(min(inside) - room, max(inside) + room))
    axes.set_xlim(left=0)
    axes.locator_params("x", integer=True)
    as_percent(axes.yaxis, measure)
    legend(axes, runs)


def points(lines: Sequence[dict], split: str, measure: str) -> np.ndarray:
    """Steps and values (2, K) of a measure in the lines of a split."""
    ours = [line for line in lines if line["split"] == split and line.get(measure) is not None]
    return np.array([[line["step"], line[measure]] for line in ours], dtype=float).reshape(-1, 2).T


# ---- predictions -----------------------------------------------------------------------------------------------------


class Predictions(NamedTuple):
    """The predictions of one seed of a run."""

    run: RunFolder
    target: np.ndarray  # (K, C)
    prediction: np.ndarray  # (K, C)

    @property
    def kind(self) -> str:
        """A key of PICTURES, or what has no picture."""
        one = self.target.shape[1] == 1
        if not np.isin(self.target, (0, 1)).all():
            return "numbers" if one else "several numbers"
        if len(np.unique(self.target)) < 2:
            return "all alike"
        return "yes or no" if one else "yes or no, of each class"


def pictures_of_predictions(runs: Sequence[RunFolder]) -> list[Picture]:
    """The pictures that suit the predictions: of yes or no all runs in one, of numbers one for each run."""
    groups = defaultdict(list)
    for run in runs:
        for table in filter(None, run.predictions):
            if first_property(run):
                there = ~np.isnan(table["target"][:, 0])  # where it was measured
                table = {which: values[there][:, :1] for which, values in table.items()}
            seed = Predictions(run, **table)
            together = run.name if seed.kind == "numbers" else seed.target.tobytes()
            groups[seed.kind, together].append(seed)
    pictures = []
    for (kind, _), seeds in groups.items():
        pictures += [picture(seeds, len(runs) > 1, *row) for row in PICTURES.get(kind, ())]
    return pictures


def first_property(run: RunFolder) -> str:
    """The property whose predictions are drawn, if a run has learned several at once; else ""."""
    return next(iter(run.results["options"].get("properties", ())), "")


def picture(
    seeds: Sequence[Predictions], several: bool, title: str, draw: Callable, metric: str, meaning: str
) -> Picture:
    """A picture of predictions, by one of `several` runs or not."""
    first = seeds[0]
    runs = [*{seed.run.name: seed.run for seed in seeds}.values()]
    of = first_property(first.run)
    measure = f"{metric}:{of}" if of else metric
    if measure not in first.run.mean:  # of psr
        measure = f"global_{metric}"
    size = f"N = {len(first.target)}"
    if len(seeds) > len(runs):
        size += f" for each of {len(seeds)} seeds"
    if first.kind != "numbers":
        size += f", {first.target.sum():.0f} positives of {first.target.size}"
    elif several:
        title += f", {first.run.name}"
    if of:
        title += f", {of}"
    draw = partial(draw, seeds=seeds, runs=runs)
    return Picture(title.lower(), title, draw, note_of(runs, measure, size, meaning), SQUARE)


def against_true(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """Numbers: predicted against true; dashed the baseline."""
    values = np.concatenate([table.ravel() for seed in seeds for table in (seed.target, seed.prediction)])
    room = 0.04 * np.ptp(values)  # as much as a dot is wide
    ends = values.min() - room, values.max() + room
    for seed in seeds:
        colour = colour_of(seed.run.number)
        image = len(seed.target) > 1000  # one image, not as many forms
        axes.scatter(seed.target, seed.prediction, s=18, color=colour, alpha=0.7, lw=0, rasterized=image)
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    mean = (runs[0].results["answer"] or {}).get("mean")
    if mean is not None:
        axes.axhline(np.ravel(mean)[0], color=INK, ls="--", lw=1.2)
    unit = "(units of the label)"
    axes.set(xlabel=f"true {unit}", ylabel=f"predicted {unit}", xlim=ends, ylim=ends, aspect="equal")


def roc(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """Yes or no: the ROC curve; dashed a guess."""
    for seed in seeds:
        false_positives, true_positives, _ = roc_curve(seed.target, seed.prediction)
        axes.plot(false_positives, true_positives, color=colour_of(seed.run.number))
    axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    legend(axes, runs)


def precision_recall(axes, seeds: Sequence[Predictions], runs: Sequence[RunFolder]) -> None:
    """Yes or no, once or for several classes: precision and recall; dashed a guess."""
    for seed in seeds:
        precision, recall, _ = precision_recall_curve(seed.target.ravel(), seed.prediction.ravel())
        axes.plot(recall, precision, color=colour_of(seed.run.number))
    axes.axhline(seeds[0].target.mean(), color=INK, ls="--", lw=1.2)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    legend(axes, runs)


PRECISION = ("Precision and recall", precision_recall, "auprc", "dashed: a guess")
MEAN = "dashed: the baseline, the mean of the labels learned from"
PICTURES = {  # kind of predictions -> title, what draws, the metric that is said, what is in it
    "numbers": [("Predicted against true", against_true, "spearman", MEAN)],
    "yes or no": [("ROC curve", roc, "auroc", "dashed: a guess"), PRECISION],
    "yes or no, of each class": [PRECISION],
}
