"""Bootstrap: the interval of a difference of two heads, from its values on draws of structures."""

import numpy as np
from scipy import stats

from .permutation import LEVEL


def difference_interval(value: float, drawn: np.ndarray, groups: int, folds: bool) -> list[float] | None:
    """The 95 % interval of a difference of two heads on the same rows, from its values on draws of `groups` groups.

    With folds, each of two rows helps to predict the other, so that a pair counts twice: the variance of such a sum is
    about twice that of the draws, which take rows for independent (Nadeau and Bengio 2003, Machine Learning 52:239, has
    1 + folds / (folds - 1)). None if no draw has a value.
    """
    finite = drawn[np.isfinite(drawn)]
    if not len(finite) or not np.isfinite(value):
        return None
    half = stats.t.ppf(1 - LEVEL, groups - 1) * finite.std()
    if folds:
        half *= np.sqrt(2)
    return [float(value - half), float(value + half)]
