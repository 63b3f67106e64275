"""Split conformal prediction: intervals of predictions, from the errors for values that were left out.

The values must be exchangeable with those that were left out (Vovk et al. 2005).
"""

import numpy as np

COVERED = 0.9  # of new values, by the interval of a prediction


def place(count: int) -> int:
    """Which of so many sorted errors, counted from 1, holds 90 % of new ones; beyond them if they are too few."""
    return int(np.ceil(COVERED * (count + 1)))


def within(target: np.ndarray, prediction: np.ndarray) -> list[float]:
    """How far from a prediction 90 % of new values lie, of each output (C,). Empty if there are too few of them."""
    found = []
    for values, predicted in zip(target.reshape(len(target), -1).T, prediction.reshape(len(target), -1).T):
        errors = np.sort(np.abs(values - predicted)[~np.isnan(values)])
        if place(len(errors)) > len(errors):
            return []
        found.append(float(errors[place(len(errors)) - 1]))
    return found


def reach(ratio: np.ndarray) -> float:
    """How many spreads hold 90 % of the errors `ratio` (n,); of too few errors the largest."""
    return np.sort(ratio)[min(place(len(ratio)), len(ratio)) - 1]
