"""A scale: whitened cosines of mean vectors, and how probable they are between unrelated chains.

It belongs to one encoder; those of the package lie beside its weights. Cosines of two long chains spread more than
those of short ones, so they are standardised by both lengths before they are counted (docs/nearest.md).
"""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...files import ConfigError, StructureError
from ...names import BUNDLED

RANK, RIDGE = 128, 0.1  # components that are whitened one by one; added to each variance, which is 1 on average
KNOTS = np.log([50, 100, 180, 300, 500])  # residues: in between, the standardisation is linear in the logarithm
PARTS, DEALS = 10, 4  # chains are compared by a whitening of the other parts; how often parts are dealt out
RARE = 0.01  # of the unrelated pairs: what they reach is 1 when standardised
FEWEST = 100  # families of a scale; pairs of two lengths
FIELDS = (
    "mean",
    "deviation",
    "axes",
    "gain",
    "middle",
    "spread",
    "quantiles",
    "chance",
    "quartiles",
    "encoder",
    "chains",
    "families",
)


class Scale:
    """Arrays, as its .npz has them.

    The whitening: `mean` and `deviation` (d,) of the vectors, `axes` (RANK, d) of standardised vectors, and `gain`
    (RANK,) of these beyond that of all directions. Cosines of unrelated chains: `middle` (5, 5), their median by the
    lengths of both, and `spread` (5, 5), from there to the quantile of RARE; `quantiles` (n,) of standardised ones,
    which the share `chance` (n,) reaches, and their `quartiles` (3,). Its `encoder` (2,): name and checksum; and
    `chains` and `families` (K,) that it was made of.
    """

    def __init__(self, **arrays: np.ndarray):
        vars(self).update(arrays)

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Mean vectors (K, d), whitened and of length 1. Their products are whitened cosines."""
        z = (x - self.mean) / self.deviation
        axes = self.axes.astype(np.float32)
        z = RIDGE**-0.5 * z + (z @ axes.T * self.gain) @ axes
        return z / np.linalg.norm(z, axis=1, keepdims=True)

    def standardise(self, cosine: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
        """Cosines (K, L) of chains of `one` (K,) and `two` (L,) residues: 0 is usual, 1 is rare."""
        one, two = hats(one), hats(two)
        return (cosine - one @ self.middle @ two.T) / (one @ self.spread @ two.T)

    def probability(self, standardised: np.ndarray) -> np.ndarray:
        """That an unrelated chain is at least as similar. It is not below `chance[-1]`: nothing was seen there."""
        return np.exp(np.interp(standardised, self.quantiles, np.log(self.chance)))


def hats(residues: np.ndarray) -> np.ndarray:
    """The weights (K, 5) of the KNOTS for each length; they add up to 1."""
    columns = [np.interp(np.log(residues), KNOTS, knot) for knot in np.eye(len(KNOTS))]
    return np.stack(columns, axis=1).astype(np.float32)


def read_scale(path: Path) -> Scale:
    """Raises StructureError."""
    try:
        with np.load(path) as file:
            return Scale(**{name: file[name] for name in FIELDS})
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        raise StructureError(path, "no scale of siamdiff nearest", str(error)) from error


def whiten(vectors: np.ndarray, encoder: str = "siamdiff-residue") -> np.ndarray:
    """Mean vectors (K, d) of an encoder of the package, whitened and of length 1: to compare and to cluster."""
    return read_scale(BUNDLED / f"{encoder}.scale.npz").whiten(vectors)


def whitening(x: np.ndarray) -> dict[str, np.ndarray]:
    """The four arrays of a whitening, fitted on vectors (K, d)."""
    mean = x.mean(0)
    deviation = x.std(0) + 1e-9
    z = (x - mean) / deviation
    variance, axes = np.linalg.eigh(z.T @ z / len(z))  # the largest come last
    gain = (variance[-RANK:] + RIDGE) ** -0.5 - RIDGE**-0.5
    return {"mean": mean, "deviation": deviation, "axes": axes.T[-RANK:].astype(np.float16), "gain": gain}


def fit_scale(x: np.ndarray, residues: np.ndarray, families: np.ndarray, folds: Sequence[set[str]]) -> Scale:
    """From mean vectors (K, d) of chains of K families. Two with a fold in common are no unrelated pair.

    Raises ConfigError for too few families.
    """
    if len(x) < FEWEST:
        raise ConfigError(f"a scale needs {FEWEST} families, and these are {len(x)}")

    # cosines of unrelated pairs, by whitenings that have seen neither family; nan for other pairs
    cosine = np.full((len(x), len(x)), np.nan)
    for deal in range(DEALS):
        part = np.array([hashlib.sha256(f"{deal} {family}".encode()).digest()[0] % PARTS for family in families])
        for k in range(PARTS):
            own = np.flatnonzero(part == k)
            z = Scale(**whitening(x[part != k])).whiten(x[own])
            cosine[np.ix_(own, own)] = z @ z.T
    for row, of_row in enumerate(folds):
        cosine[row, [not of_row.isdisjoint(others) for others in folds]] = np.nan
    np.fill_diagonal(cosine, np.nan)
    unrelated = ~np.isnan(cosine)

    # the median and the spread by both lengths
    knot = hats(residues).argmax(1)
    middle = np.zeros((len(KNOTS), len(KNOTS)), dtype=np.float32)
    spread = np.zeros_like(middle)
    for a, b in np.ndindex(middle.shape):
        cell = unrelated & (knot[:, None] == a) & (knot == b)
        values = cosine[cell if cell.sum() >= FEWEST else unrelated]
        middle[a, b] = np.median(values)
        spread[a, b] = np.quantile(values, 1 - RARE) - middle[a, b]

    # how often they are reached
    scale = Scale(**whitening(x), middle=middle, spread=spread, families=families)
    values = scale.standardise(cosine, residues, residues)[unrelated]
    scale.chance = np.geomspace(1, 2 / len(values), 60)  # each pair is there twice
    scale.quantiles = np.quantile(values, 1 - scale.chance)
    scale.quartiles = np.quantile(values, (0.25, 0.5, 0.75))
    return scale
