"""Bootstrap: intervals from metrics of splits whose structures are drawn again.

Two 95 % intervals are in results.json: `interval` is that of the mean over seeds, `gain_interval` that of this mean
minus the baseline on the same draw. The draws are in draws.npz, so that two runs of one test split can be compared draw
by draw.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from ...downstream.metrics import rows_of_groups
from ...downstream.tasks import Binary, Task
from ...files import replacing
from ...machine import progress
from ...training.results import Predictions, Result, metrics_of
from .intervals import at_the_end
from .permutation import LEVEL

DRAWS = "draws.npz"
MOST_DRAWS = 1000
# Structures that are drawn again. With random scores the interval of Spearman's rho misses 0 for 6 % of the splits of 8
# structures, for 12 % of 5, for 32 % of 3 and always for 2.
FEWEST = 8
# Samples of the rarer of yes and no. Of 60 samples with random scores the interval of AUROC misses 0.5 for 9 % if 4 are
# positive, for 18 % with 3, 30 % with 2 and 76 % with 1.
RAREST = 4


@dataclass(frozen=True)
class Draws:
    """Metrics (draws,) of a split that is drawn again, by their names; none if it is too small."""

    few: Mapping[str, int | str] | None  # the "count" "of" what, and how many are "needed"; None if it is large enough
    mean: Mapping[str, np.ndarray]  # over seeds
    gain: Mapping[str, np.ndarray]  # these minus the baseline on the same draw
    units: int  # that are drawn


def draw(
    task: Task, tested: Mapping[int, Predictions], units: Sequence[str], of: str = "structures", gains: bool = True
) -> Draws:
    """The metrics of splits whose `units` (K,), the structure of every sample, are drawn again; perhaps no `gains`."""
    first = next(iter(tested.values()))
    count = len(set(units))
    few = too_few(task, first.target, count, of)
    means = []
    over_baseline = []
    for rows, groups in [] if few else drawn_rows(units, first.target.size):
        mean = averaged([*metrics_of(task, tested, rows, groups).values()])
        means.append(mean)
        baseline = first.baseline_metrics(task, rows, groups) if gains else {}
        over_baseline.append({name: mean[name] - value for name, value in baseline.items()})
    return Draws(few, columns(means), columns(over_baseline), count)


def averaged(of_seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every metric over seeds."""
    return {name: np.mean([metrics[name] for metrics in of_seeds]) for name in of_seeds[0]}


def columns(rows: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """The values of all rows by their name."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def too_few(task: Task, target: np.ndarray, count: int, of: str) -> dict[str, int | str] | None:
    """Why a test split of so many units is too small to be drawn again; None if it is not."""
    if count < FEWEST:
        return {"count": count, "of": of, "needed": FEWEST}
    if isinstance(task, Binary):
        # Of several outputs the one with the fewest.
        values = target.reshape(len(target), -1)
        rarer = int(np.minimum((values == 1).sum(0), (values == 0).sum(0)).min())
        if rarer < RAREST:
            return {"count": rarer, "of": "samples of the rarer class", "needed": RAREST}
    return None


def drawn_rows(units: Sequence[str], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Splits that are drawn again, in whole units: the rows, and for each row which of the units it is of.

    There are 1,000; of a large split of `size` targets 300 or 100, for the sake of time.
    """
    large = 100 if size >= 10**5 else 300
    number = MOST_DRAWS if size < 10**4 else min(MOST_DRAWS, large)
    items = islice(redrawn(units), number)
    for rows in progress(items, total=number, unit="draw", desc="intervals"):
        yield np.concatenate(rows), np.repeat(np.arange(len(rows)), [*map(len, rows)])


def redrawn(groups: Sequence) -> Iterator[list[np.ndarray]]:
    """Without end: the rows of as many groups, drawn with replacement. Every call gives the same draws."""
    rows = rows_of_groups(groups)
    random = np.random.default_rng(0)
    while True:
        yield [rows[i] for i in random.integers(len(rows), size=len(rows))]


def with_intervals(result: Result, draws: Draws) -> Result:
    """A result with its intervals, or why there are none."""
    few = draws.few
    intervals = {name: interval(draws.mean.get(name)) for name in result.mean}
    gains = {name: interval(draws.gain.get(name)) for name in result.mean}

    # Draws of what is all right, or all wrong, are all the same.
    for name, of_mean in intervals.items():
        if of_mean and of_mean[0] == of_mean[1]:
            intervals[name] = at_the_end(name, of_mean[0], draws.units)
            gain = gains[name]
            if gain and gain[0] == gain[1]:
                gains[name] = [end - of_mean[0] + gain[0] for end in intervals[name]]
    return replace(
        result,
        interval=intervals,
        gain_interval=gains,
        no_interval="of {count} {of}, too few to draw again: it takes {needed}".format(**few) if few else "",
        too_few=few,
    )


def write_draws(path: Path, tested: Mapping[int, Predictions], draws: Draws) -> None:
    """Write draws.npz beside a results.json, and of which split they are."""
    with replacing(path.with_name(DRAWS)) as file:
        np.savez(file, split=split_of(next(iter(tested.values()))), **draws.mean)


def split_of(predictions: Predictions) -> str:
    """A hash of a test split: its samples, their structures, their targets."""
    digest = hashlib.sha256("\0".join([*predictions.names, *predictions.groups]).encode("utf-8", "surrogateescape"))
    return hashlib.sha256(digest.digest() + predictions.target.tobytes()).hexdigest()


def interval(values: np.ndarray | None) -> list[float] | None:
    """The middle 95 % of the finite values of draws; None if there are none."""
    if values is None:
        return None
    finite = values[np.isfinite(values)]
    return np.quantile(finite, [0.025, 0.975]).tolist() if len(finite) else None


def difference_interval(value: float, drawn: np.ndarray, groups: int, folds: bool) -> list[float] | None:
    """The 95 % interval of a difference of two heads on the same rows, from its values on draws of `groups` groups.

    With folds, each of two rows helps to predict the other, so that a pair counts twice: the variance of such a sum is
    about twice that of the draws, which take rows for independent (Nadeau and Bengio 2003, Machine Learning 52:239, has
    1 + folds / (folds - 1)). None if no draw has a value.
    """
    finite = drawn[np.isfinite(drawn)]
    if not len(finite) or not np.isfinite(value):
        return None
    half = stdtrit(groups - 1, 1 - LEVEL) * finite.std()
    if folds:
        half *= np.sqrt(2)
    return [float(value - half), float(value + half)]
