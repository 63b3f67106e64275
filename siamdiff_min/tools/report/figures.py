"""The pictures of a page: of every measure, and of the predictions. A function that draws takes axes first.

Every picture says in its own words how many samples it is of, the unit, and what its intervals are over.
"""

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from ...files import printable
from ..evidence.verdict import less_is_better
from ..evidence.wording import show, title_of
from .captions import over, sizes_of, with_interval
from .comparison import interval_of
from .picture import COLOURS, INK, SQUARE, Picture, colour_of
from .runs import RunFolder, properties

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
        own = colours(runs, run)
        if len(runs) > 1:
            labels[colour_of(runs.index(run))] = f"{run.name[:40]} {with_interval(run, measure)}"
        elif len(own) > 1:
            values = {seed: run.of_seeds.get(seed, {}).get(measure) for seed in own}
            words = {seed: "" if value is None else show(measure, value) for seed, value in values.items()}
            labels |= {colour: f"seed {seed} {words[seed]}" for seed, colour in own.items()}
    if labels:
        handles = [axes.plot([], [], color=colour, label=label)[0] for colour, label in labels.items()]
        axes.legend(handles=handles, title=title_of(measure).partition(" (")[0], title_fontsize="small")


def note_of(runs: Sequence[RunFolder], measure: str, *others: str) -> str:
    """What a picture says below its axes: a value with its interval, what intervals are over, and what `others` say."""
    value = ""
    if len(runs) == 1 and measure in runs[0].mean:
        value = f"{title_of(measure).partition(' (')[0]} {with_interval(runs[0], measure)}"
    return "; ".join(filter(None, [*others, value, over(runs, measure)]))


def as_percent(axis, measure: str) -> None:
    """Label an axis in percent if its measure is shown so."""
    if measure.endswith("accuracy") or measure.startswith("accuracy"):
        axis.set_major_formatter(lambda value, place: f"{100 * value:.4g} %")


# ---- measures --------------------------------------------------------------------------------------------------------


def picture_of_result(
    scored: Sequence[RunFolder], runs: Sequence[RunFolder], measure: str, title: str, words: str
) -> Picture:
    """The values of the runs that have a measure, with their intervals."""
    notes = [sizes_of(scored)]
    if any(len(run.of_seeds) > 1 for run in scored):
        notes.append("dots: seeds")
    if any(measure in run.baseline for run in scored):
        notes.append("dashed: the baseline")
    floors = dict.fromkeys(run.results["floor"]["features"] for run in scored if run.results["floor"])
    if floors:
        notes.append(f"dotted: a head of {' / '.join(floors)}")
    notes.append(over(scored, measure).replace("95 %", "bars: 95 %"))
    height = 0.6 + 0.5 * len(scored)  # inches
    draw = partial(forest, scored=scored, runs=runs, measure=measure, title=title)
    return Picture(f"{measure}-intervals", title, draw, "; ".join(filter(None, notes)), height, words)


def forest(axes, scored: Sequence[RunFolder], runs: Sequence[RunFolder], measure: str, title: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds.

    Dashed is the baseline, dotted the head of length and composition.
    """
    for row, run in enumerate(scored):
        value = run.mean[measure]
        ends = interval_of(run, measure) or [math.nan, math.nan]
        colour = colour_of(runs.index(run)) if len(runs) > 1 else INK

        # The interval, the value in it, every seed if there are several, and across the row what it is compared with.
        axes.plot(ends, [row, row], color=colour, lw=8, alpha=0.35)
        axes.plot(value, row, "|", color=colour, ms=14, mew=3)
        if len(run.of_seeds) > 1:
            own = colours(runs, run)
            for seed, metrics in run.of_seeds.items():
                dot = math.nan if metrics.get(measure) is None else metrics[measure]
                axes.plot(dot, row, "o", color=own.get(seed, colour), ms=4)
        beside = {"--": run.baseline.get(measure), ":": run.results["floor"].get("mean", {}).get(measure)}
        for style, other in beside.items():
            if other is not None:
                axes.plot([other, other], [row - 0.4, row + 0.4], color=INK, ls=style, lw=1.2)

        # Above the row: the name of the run at the left edge, its value at the right one.
        across = axes.get_yaxis_transform()
        axes.text(0, row - 0.3, run.name[:40] if len(runs) > 1 else "", transform=across)
        axes.text(1, row - 0.3, with_interval(run, measure), transform=across, ha="right")

    # The first run is at the top. A measure of which more is better begins at 0.
    axes.set_yticks([])
    axes.set(ylim=(len(scored) - 0.5, -0.6), xlabel=textwrap.fill(title, 48))
    as_percent(axes.xaxis, measure)
    if not less_is_better(measure, runs[0].results["direction"]):
        left, _ = axes.get_xlim()
        axes.set_xlim(left=min(left, -0.02))


def picture_of_curve(runs: Sequence[RunFolder], measure: str, title: str) -> Picture:
    """A measure over the epochs."""
    notes = ["thick: held out; thin: training"]
    if any(f"{measure}_constant" in line for run in runs for lines in run.lines.values() for line in lines):
        notes.append("dashed: the baseline")
    if any(run.results["best_epoch"] for run in runs):
        notes.append("ring: the best epoch, which is tested")
    ours = [run for run in runs if measure in run.mean]
    end = f"at the end {sizes_of(ours)}" if ours else ""
    draw = partial(curve, runs=runs, measure=measure, title=title)
    return Picture(f"{measure}-curve", title, draw, note_of(ours, measure, *notes, end))


def curve(axes, runs: Sequence[RunFolder], measure: str, title: str) -> None:
    """A measure over the epochs: thin in training, thick held out, dashed the baseline, a ring at the best."""
    inside = []  # values that the axis has to show
    for run in runs:
        for seed, colour in colours(runs, run).items():
            lines = [line for line in run.lines.get(seed, ()) if line.get(measure) is not None]
            train = [line for line in lines if line["split"] == "train"]
            valid = [line for line in lines if line["split"] == "valid"]
            best = run.results["best_epoch"].get(seed, -1)
            tested = [line for line in valid if abs(line["epochs"] - best) < 1e-6]

            axes.plot(*points(train, measure), color=colour, lw=1, alpha=0.6)
            axes.plot(*points(valid, measure), color=colour, lw=2, marker="o", ms=3)
            axes.plot(*points(valid or train, f"{measure}_constant"), color=INK, ls="--", lw=1.2)
            axes.plot(*points(tested, measure), "o", color=colour, ms=9, fillstyle="none")

            # The axis shows all that was held out, and the training without a few wild steps.
            if train:
                inside.extend(np.quantile(points(train, measure)[1], [0.02, 0.98]))
            for name in (measure, f"{measure}_constant"):
                inside.extend(points(valid, name)[1])

            # A dotted line where stage 2 begins.
            second = [line for line in lines if line.get("stage") == 2]
            if second:
                begins = second[0]["epochs"]
                axes.axvline(begins, color=INK, ls=":", lw=1.2)
                axes.text(begins, 1, " stage 2", transform=axes.get_xaxis_transform(), va="top")

    inside = [value for value in inside if math.isfinite(value)] or [0.0]
    room = 0.06 * (max(inside) - min(inside)) or 0.5
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


class Seed(NamedTuple):
    """The predictions of one seed of a run, in their colour."""

    run: RunFolder
    colour: str
    table: Mapping[str, np.ndarray]  # all columns of its predictions.tsv

    @property
    def target(self) -> np.ndarray:
        """(K,) or (K, C)."""
        return self.table["target"]

    @property
    def prediction(self) -> np.ndarray:
        """(K,) or (K, C)."""
        return self.table["prediction"]


def pictures_of_predictions(runs: Sequence[RunFolder]) -> list[Picture]:
    """The pictures that suit the predictions: of yes or no all runs in one, of numbers and classes one for each run."""
    pictures = []
    yes_or_no = defaultdict(list)  # name of the property and targets -> seeds of all runs
    ends = ends_of(runs)
    for run in runs:
        own = colours(runs, run)
        for name, of_seed, mean in properties(run):
            seeds = [Seed(run, own[seed], of_seed[seed]) for seed in own if seed in of_seed]
            if not seeds:
                continue
            # Probabilities of one of several classes; of yes or no; or numbers.
            target = seeds[0].target
            of = [name, run.name if len(runs) > 1 else ""]
            if seeds[0].prediction.ndim > target.ndim:
                pictures.append(picture("Confusion matrix", of, "accuracy", seeds, confusion))
            elif np.isin(target, (0, 1)).all():
                yes_or_no[name, target.tobytes()] += seeds
            else:
                rho = measure_of("global_spearman", name)
                measure = rho if rho in run.mean else measure_of("spearman", name)
                draw = partial(against_true, runs=runs, ends=ends[name], baseline=mean, measure=measure)
                pictures.append(picture("Predicted against true", of, measure, seeds, draw))

    # Yes or no, once or for several classes. Seeds and runs with the same targets are in one picture.
    for (name, _), seeds in yes_or_no.items():
        target = seeds[0].target
        if len(np.unique(target)) < 2:
            continue  # there is no curve
        for title, metric in {"ROC curve": "auroc", "Precision and recall": "auprc"}.items():
            if metric == "auprc" or target.ndim == 1:
                measure = measure_of(metric, name)
                pictures.append(picture(title, [name], measure, seeds, partial(curves, runs=runs, measure=measure)))
    return pictures


MEANING = {  # title of a picture -> what is in it
    "Confusion matrix": "darker: a larger share of the true class; in brackets: its samples",
    "Predicted against true": "dashed: the baseline, the mean of the labels learned from; named: the worst",
    "ROC curve": "dashed: a guess",
    "Precision and recall": "dashed: a guess",
}


def picture(title: str, of: Sequence[str], measure: str, seeds: Sequence[Seed], draw: Callable) -> Picture:
    """A picture of predictions, `of` a property and a run."""
    runs = [*{id(seed.run): seed.run for seed in seeds}.values()]
    target = seeds[0].target
    size = f"N = {len(target)}"
    if len(seeds) > len(runs):
        size += f" for each of {len(seeds)} seeds"
    if "guess" in MEANING[title]:
        size += f", {target.sum():.0f} positives of {target.size}"
    names = [name for name in of if name]
    note = note_of(runs, measure, size, MEANING[title])
    draw = partial(draw, seeds=seeds)
    return Picture("-".join([title.lower(), *names]), ", ".join([title, *names]), draw, note, SQUARE)


def measure_of(name: str, of: str) -> str:
    """A measure, of one of several properties with its name."""
    return f"{name}:{of}" if of else name


def ends_of(runs: Sequence[RunFolder]) -> dict[str, tuple[float, float]]:
    """Where the axes of every property begin and end, the same for all runs, so that they can be compared."""
    values = defaultdict(list)
    for run in runs:
        for name, of_seed, _ in properties(run):
            for table in of_seed.values():
                values[name] += [table["target"].ravel(), table["prediction"].ravel()]
    joined = {name: np.concatenate(arrays) for name, arrays in values.items()}
    room = {name: 0.04 * np.ptp(of_name) for name, of_name in joined.items()}  # as much as a dot is wide
    return {name: (of_name.min() - room[name], of_name.max() + room[name]) for name, of_name in joined.items()}


def against_true(axes, seeds: Sequence[Seed], runs, ends: tuple[float, float], baseline: float | None, measure: str):
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
        dots.set_urls([printable(name) for name in seed.table["id"]])
    legend(axes, runs, [seeds[0].run], measure)

    # Names of the worst, beside the dots of the first seed; on the inner side, so that they stay in the picture.
    errors = np.mean([np.abs(seed.prediction - seed.target) for seed in seeds], axis=0)
    for worst in np.argsort(-errors, kind="stable")[:WORST]:
        place = seeds[0].target[worst], seeds[0].prediction[worst]
        right = place[0] > sum(ends) / 2
        name = printable(seeds[0].table["id"][worst])[:30]
        axes.annotate(f" {name} ", place, fontsize="x-small", va="center", ha="right" if right else "left")

    # Where predictions would be right, and where those of the mean lie.
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(math.nan if baseline is None else baseline, color=INK, ls="--", lw=1.2)
    unit = " (units of the label)"
    axes.set(xlabel=f"true{unit}", ylabel=f"predicted{unit}", xlim=ends, ylim=ends, aspect="equal")


def curves(axes, seeds: Sequence[Seed], runs: Sequence[RunFolder], measure: str) -> None:
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


def confusion(axes, seeds: Sequence[Seed]) -> None:
    """One of several classes: the true ones, and what they are taken for."""
    from matplotlib.colors import LinearSegmentedColormap

    classes = seeds[0].table["classes"]
    labels = range(len(classes))
    counts = np.zeros((len(classes), len(classes)), dtype=int)  # (true, predicted), over all seeds
    for seed in seeds:
        counts += confusion_matrix(seed.target, seed.prediction.argmax(1), labels=labels)
    of_true = counts.sum(axis=1)

    # A cell is the darker, the larger its share of the true class. Few classes also have their counts in it.
    shades = LinearSegmentedColormap.from_list("", [f"{COLOURS[0]}00", f"{COLOURS[0]}c0"])
    shares = counts / np.maximum(of_true, 1)[:, None]
    edges = np.arange(len(classes) + 1) - 0.5
    axes.pcolormesh(edges, edges, shares, cmap=shades, vmin=0, vmax=1)
    for (row, column), count in np.ndenumerate(counts[:MOST_CELLS, :MOST_CELLS]):
        axes.text(column, row, count or "", ha="center", va="center", fontsize="small")

    # Every row says how many samples are of its class.
    rows = [f"{name} ({count // len(seeds)})" for name, count in zip(classes, of_true)]
    axes.set_xticks(labels, classes, rotation=90)
    axes.set_yticks(labels, rows)
    axes.set(xlabel="predicted", ylabel="true", ylim=(len(classes) - 0.5, -0.5))
