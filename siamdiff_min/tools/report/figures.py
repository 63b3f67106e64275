"""The pictures of a page, each in a card. Only they need matplotlib: pip install matplotlib.

A function that draws takes axes first, and may return a note, which then stands below the picture.
"""

import io
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_curve, roc_curve

from ...downstream.metrics import spearman
from ...files import printable
from ..evidence.verdict import less_is_better
from ..evidence.wording import show
from .captions import text
from .comparison import over_proteins
from .runs import RunFolder, properties

COLOURS = ("#2f7fd1", "#d9652b", "#1f9e77", "#a35bc2", "#b8860b", "#2ba3b8", "#d0478a", "#7f8790")  # of runs, or seeds
INK = "#010203"  # of a figure's lines and words: the page replaces it by its own, which depends on the reader
STYLE = {
    "svg.fonttype": "none",  # words stay words
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.spines.bottom": False,
    "xtick.color": INK,
    "xtick.bottom": False,
    "ytick.color": INK,
    "ytick.left": False,
}
LINK = re.compile('<a xlink:href="(.*?)".*?>(.*?)</a>', flags=re.DOTALL)
WIDTH = 4.6  # inches, as is the height of a card
SQUARE = 4.4  # height of a picture with two axes alike
WORST = 5  # dots with their names
MOST_CELLS = 20  # classes whose counts are written into a confusion matrix


def card(title: str, draw: Callable, *arguments, height: float = 2.8, words: str = "") -> str:
    """A card with words, with what `draw` draws on axes, in the colours of the page, and with the note it returns.

    Without matplotlib the words remain; without words too there is no card.
    """
    head = f"<div class=card><h3>{text(title)}</h3>{words}"
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return f"{head}</div>" if words else ""

    with rc_context(STYLE):
        figure = Figure((WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.grid(color=INK, alpha=0.12)
        note = draw(axes, *arguments) or ""
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, dpi=150)

    # What stands before the first tag is for a file of its own.
    _, tag, rest = file.getvalue().partition("<svg")
    svg = tag + rest.replace(INK, "currentColor")
    # A point with an address is a link. Its address is a name, for the browser to show under the pointer.
    svg = LINK.sub(r"<g><title>\1</title>\2</g>", svg)
    return f"{head}{svg}<p class=note>{note}</div>"


def colours(runs: Sequence[RunFolder], run: RunFolder) -> dict[str, str]:
    """Seed -> colour: that of the run, or of every seed of the only run one."""
    seeds = dict.fromkeys([*run.lines, *run.predictions])
    if len(runs) > 1:
        return dict.fromkeys(seeds, colour_of(runs.index(run)))
    return {seed: colour_of(number) for number, seed in enumerate(seeds)}


def colour_of(number: int) -> str:
    """The colour of one of several runs or seeds."""
    return COLOURS[number % len(COLOURS)]


# ---- measures --------------------------------------------------------------------------------------------------------


def forest(axes, runs: Sequence[RunFolder], measure: str) -> None:
    """A row for every run: a bar of its interval, a mark of its value, dots of its seeds.

    Dashed is the constant answer, dotted the head of length and composition.
    """
    several = len(runs) > 1
    for row, run in enumerate(runs):
        value = run.results["mean"][measure]
        interval = over_proteins(run, measure) or [math.nan, math.nan]
        baseline = run.results["constant"].get(measure)
        colour = colour_of(row) if several else INK

        # The interval, the value in it, every seed if there are several, and across the row the constant answer.
        axes.plot(interval, [row, row], color=colour, lw=8, alpha=0.35)
        axes.plot(value, row, "|", color=colour, ms=14, mew=3)
        if len(run.measured) > 1:
            own = colours(runs, run)
            for seed, metrics in run.measured.items():
                dot = math.nan if metrics.get(measure) is None else metrics[measure]
                axes.plot(dot, row, "o", color=own.get(seed, colour), ms=4)
        axes.plot([baseline, baseline], [row - 0.4, row + 0.4], color=INK, ls="--", lw=1.2)
        floor = run.results["floor"].get("mean", {}).get(measure)
        if floor is not None:
            axes.plot([floor, floor], [row - 0.4, row + 0.4], color=INK, ls=":", lw=1.2)

        # Above the row: the name of the run at the left edge, its value at the right one.
        if several:
            across = axes.get_yaxis_transform()
            axes.text(0, row - 0.3, run.name[:40], transform=across)
            axes.text(1, row - 0.3, show(measure, value), transform=across, ha="right")

    # The first run is at the top. A measure of which more is better begins at 0.
    axes.set_yticks([])
    axes.set(ylim=(len(runs) - 0.5, -0.6))
    if not less_is_better(measure, runs[0].results["direction"]):
        left, _ = axes.get_xlim()
        axes.set_xlim(left=min(left, -0.02))


def curve(axes, runs: Sequence[RunFolder], measure: str) -> None:
    """A measure over the epochs: thin in training, thick held out, dashed the constant answer, a ring at the best."""
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
                _, values = points(train, measure)
                inside.extend(np.quantile(values, [0.02, 0.98]))
            for name in (measure, f"{measure}_constant"):
                _, values = points(valid, name)
                inside.extend(values)

            # A dotted line where stage 2 begins.
            second = [line for line in lines if line.get("stage") == 2]
            if second:
                begins = second[0]["epochs"]
                axes.axvline(begins, color=INK, ls=":", lw=1.2)
                axes.text(begins, 1, " stage 2", transform=axes.get_xaxis_transform(), va="top")

    inside = [value for value in inside if math.isfinite(value)] or [0.0]
    room = 0.06 * (max(inside) - min(inside)) or 0.5
    axes.set(xlabel="epoch", ylim=(min(inside) - room, max(inside) + room))
    axes.set_xlim(left=0)
    axes.locator_params("x", integer=True)


def points(lines: Sequence[dict], measure: str) -> np.ndarray:
    """Epochs and values (2, K); nan for those that are not known."""
    pairs = [[line["epochs"], line.get(measure)] for line in lines]
    return np.array(pairs, dtype=float).reshape(-1, 2).T


# ---- predictions -----------------------------------------------------------------------------------------------------


class Seed(NamedTuple):
    """The predictions of one seed of a run, in their colour."""

    colour: str
    target: np.ndarray  # (K,) or (K, C)
    prediction: np.ndarray  # (K,) or (K, C)
    table: Mapping[str, np.ndarray]  # all columns of its predictions.tsv


def prediction_cards(runs: Sequence[RunFolder]) -> list[str]:
    """The figures that suit the predictions: of yes or no all runs in one, of numbers and classes one for each run."""
    confusions = []
    scatters = []
    yes_or_no = defaultdict(list)  # name of the property and targets -> seeds of all runs
    ends = ends_of(runs)
    for run in runs:
        own = colours(runs, run)
        for name, of_seed, mean in properties(run):
            tables = [(own[seed], of_seed[seed]) for seed in own if seed in of_seed]
            seeds = [Seed(colour, table["target"], table["prediction"], table) for colour, table in tables]
            if not seeds:
                continue
            # Probabilities of one of several classes; of yes or no; or numbers.
            target = seeds[0].target
            words = counted(name, seeds, run.name if len(runs) > 1 else "")
            if seeds[0].prediction.ndim > target.ndim:
                confusions.append(card(f"Confusion matrix, {words}", confusion, seeds, height=SQUARE))
            elif np.isin(target, (0, 1)).all():
                yes_or_no[name, target.tobytes()] += seeds
            else:
                title = f"Predicted against true, {words}"
                scatters.append(card(title, against_true, seeds, ends[name], mean, height=SQUARE))
    return [*confusions, *scatters, *yes_or_no_cards(yes_or_no)]


def counted(name: str, seeds: Sequence[Seed], run_name: str) -> str:
    """In the title of a figure: the property, how many samples there are, and of which run they are."""
    size = f"N = {len(seeds[0].target)}"
    if len(seeds) > 1:
        size += f" for each of {len(seeds)} seeds"
    return ", ".join(words for words in (name, size, run_name) if words)


def ends_of(runs: Sequence[RunFolder]) -> dict[str, tuple[float, float]]:
    """Where the axes of every property begin and end, the same for all runs, so that they can be compared."""
    values = defaultdict(list)
    for run in runs:
        for name, of_seed, _ in properties(run):
            for table in of_seed.values():
                values[name] += [table["target"].ravel(), table["prediction"].ravel()]

    ends = {}
    for name, arrays in values.items():
        joined = np.concatenate(arrays)
        room = 0.04 * np.ptp(joined)  # as much as a dot is wide
        ends[name] = joined.min() - room, joined.max() + room
    return ends


def against_true(axes, seeds: Sequence[Seed], ends: tuple[float, float], baseline: float | None) -> str:
    """Numbers: predicted against true, each point with the name of its sample; dashed the constant answer."""
    rhos = []
    for seed in seeds:
        rho = spearman(seed.prediction, seed.target)
        rhos.append(f"{rho:.2f}")
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

    # Names of the worst, beside the dots of the first seed; on the inner side, so that they stay in the picture.
    errors = np.mean([np.abs(seed.prediction - seed.target) for seed in seeds], axis=0)
    for worst in np.argsort(-errors, kind="stable")[:WORST]:
        place = seeds[0].target[worst], seeds[0].prediction[worst]
        right = place[0] > sum(ends) / 2
        name = printable(seeds[0].table["id"][worst])[:30]
        axes.annotate(f" {name} ", place, fontsize=7, va="center", ha="right" if right else "left")

    # Where predictions would be right, and where those of the mean lie.
    axes.axline((ends[0], ends[0]), slope=1, color=INK, lw=1, alpha=0.3)
    axes.axhline(math.nan if baseline is None else baseline, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="true", ylabel="predicted", xlim=ends, ylim=ends, aspect="equal")
    return (
        f"rho = {' / '.join(rhos)}. Named: the worst. Dashed: the mean of the labels learned from, the constant answer"
    )


def yes_or_no_cards(yes_or_no: Mapping[tuple[str, bytes], Sequence[Seed]]) -> list[str]:
    """Yes or no, once or for several classes. Seeds and runs with the same targets are in one figure."""
    cards = []
    for (name, _), seeds in yes_or_no.items():
        target = seeds[0].target
        if len(np.unique(target)) < 2:  # all yes or all no: there is no curve
            continue
        of = f" of {name}" if name else ""
        words = f"{of}, {target.sum():.0f} positives of {target.size}"
        if target.ndim == 1:
            cards.append(card(f"ROC curve{words}", roc, seeds, height=SQUARE))
        cards.append(card(f"Precision and recall{words}", precision_recall, seeds, height=SQUARE))
    return cards


def roc(axes, seeds: Sequence[Seed]) -> str:
    """Yes or no; dashed a guess."""
    for seed in seeds:
        false, true, _ = roc_curve(seed.target, seed.prediction)
        axes.plot(false, true, color=seed.colour)
    axes.axline((0, 0), slope=1, color=INK, ls="--", lw=1.2)
    axes.set(xlabel="false positive rate", ylabel="true positive rate")
    return "the dashed line is a guess"


def precision_recall(axes, seeds: Sequence[Seed]) -> str:
    """Yes or no, once or for several classes; dashed a guess."""
    for seed in seeds:
        precision, recall, _ = precision_recall_curve(seed.target.ravel(), seed.prediction.ravel())
        axes.plot(recall, precision, color=seed.colour)
    axes.axhline(seeds[0].target.mean(), color=INK, ls="--", lw=1.2)
    axes.set(xlabel="recall", ylabel="precision", ylim=(0, 1.03))
    return "the dashed line is a guess"


def confusion(axes, seeds: Sequence[Seed]) -> str:
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
        axes.text(column, row, count or "", ha="center", va="center", fontsize=8)

    # Every row says how many samples are of its class.
    rows = [f"{name} ({count // len(seeds)})" for name, count in zip(classes, of_true)]
    axes.set_xticks(labels, classes, rotation=90)
    axes.set_yticks(labels, rows)
    axes.set(xlabel="predicted", ylabel="true", ylim=(len(classes) - 0.5, -0.5))
    return "darker: a larger share of the true class; in brackets: its samples"
