"""Split conformal prediction: intervals of predictions, from the errors for values that were left out.

The values must be exchangeable with those that were left out (Vovk et al. 2005).
"""

import numpy as np

COVERED = 0.9  # of new values, by the interval of a prediction


def conformal_quantile(errors: np.ndarray) -> float:
    """The size that 90 % of new errors do not pass, from some errors (n,) of such values; inf if they are too few."""
    place = int(np.ceil(COVERED * (len(errors) + 1)))  # of the sorted errors, counted from 1
    return float(np.sort(errors)[place - 1]) if place <= len(errors) else np.inf


def reach(errors: np.ndarray) -> float:
    """The conformal quantile; of too few errors the largest."""
    return min(conformal_quantile(errors), float(errors.max()))
