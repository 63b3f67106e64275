"""Permutation tests: is a model better than one of labels that mean nothing? The labels are permuted.

Labels move in whole groups, such as the copies of a sequence. With folds they stay within their fold, so that the folds
remain as they were made for these labels. The permuted tables are then as likely as the real one if the labels have
nothing to do with the features, and the test has the right size (Winkler et al. 2014, NeuroImage 92:381).

For folds the head is made again (tools/table/folds.py). Mutants have a scheme of their own (tools/mutants/trust.py),
and share `bounds`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...downstream.metrics import rows_of_groups

PERMUTATIONS = 400  # tables, the real one among them: at 2.5 % ten may be as good
LEVEL = 0.025  # of each side, as for the ends of a 95 % interval


def permuted_rows(groups: Sequence, fold: np.ndarray, number: int = PERMUTATIONS) -> np.ndarray:
    """Of every table (number, K) the rows that the labels come from. The first table is the real one.

    Every group takes the labels of another group of its fold. Those of a smaller group are repeated, of a larger one
    cut off. Every call gives the same tables.
    """
    random = np.random.default_rng(0)
    rows = rows_of_groups(groups)
    first = np.array([of_group[0] for of_group in rows])
    size = np.array([len(of_group) for of_group in rows])
    source = np.tile(np.arange(len(fold)), (number, 1))
    for members in rows_of_groups(fold[first]):
        # Most groups are single rows: they take the first row of another group, all at once.
        single = size[members] == 1
        several = np.flatnonzero(~single)
        for table in source[1:]:
            origin = random.permutation(members)
            table[first[members[single]]] = first[origin[single]]
            for k in several:
                table[rows[members[k]]] = np.resize(rows[origin[k]], size[members[k]])
    return source


def shares(values: np.ndarray, less_is_better: bool) -> tuple[float, float]:
    """Of a measure (T,), the real table's first: the shares of tables at least as good, and at least as bad.

    A table whose measure is not a number counts as both.
    """
    signed = -values if less_is_better else values
    good = np.mean(~(signed < signed[0]))
    bad = np.mean(~(signed > signed[0]))
    return float(good), float(bad)


class Gain(NamedTuple):
    """A measure, such as how much more a model explains than another, and what it is on tables without meaning."""

    value: float
    low: float  # beyond these ends lies a share of the tables, on either side
    high: float

    @property
    def is_more(self) -> bool:
        """Whether it is more than by chance, and more than nothing."""
        return self.value > max(self.high, 0)


def bounds(values: np.ndarray, level: float) -> Gain:
    """The first of `values` (1 + T,), and the ends that it must pass: `level` of what chance gives lies beyond each.

    The first one counts among them (Phipson and Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9:39).
    """
    drawn = np.sort(values[1:])
    beyond = max(int(level * len(values)), 1)
    return Gain(float(values[0]), float(drawn[beyond - 1]), float(drawn[-beyond]))
