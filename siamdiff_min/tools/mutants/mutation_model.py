"""The effects of mutations, from one structure and a few measured mutants: the model of `siamdiff mutants`.

Without measurements, mutations are ranked by what both encoders expect at a masked residue (`log_odds`) and by burial.
With measurements, a Gaussian process learns how the effects differ from this ranking. A mutant is the wild type, plus a
slope for each of its mutations, plus the effects of its mutations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import rbf_kernel

from ..evidence.intervals import reach

DIRECTIONS = 8  # main directions of each encoder's features; 4 and 16 were no better in the study
BURIAL = 0.5  # weight of the number of neighbours in the ranking without measurements
RANKING = 0.2  # mean slope of the effects along this ranking before anything is measured, both standardised
RANKING_SPREAD = 0.5  # and the spread of this slope: it may also be 0, or fall
NOISE = 10.0 ** np.arange(-1.5, 2.1, 0.5)  # variances of the noise to choose from; that of an effect is 1
LEVEL = 100.0  # spread of the level of all values: so large that only the values say what it is
# Spread of the slope with the number of mutations. In 27 assays of stability the mean of single mutants lies up to 1.4
# standard deviations from the wild type, in one of them 6.
SLOPE = 3.0
AT_ONCE = 64  # mutants predicted at a time, so that memory does not grow with their number
VOLUME = (  # cubic angstrom, in the order of ONE_LETTER: Zamyatnin (1972)
    *(60.1, 88.6, 89.0, 112.7, 140.0, 116.1, 108.5, 166.7, 166.7, 114.1),
    *(111.1, 143.8, 168.6, 138.4, 162.9, 153.2, 189.9, 173.4, 193.6, 227.8),
)
HYDROPATHY = (  # Kyte and Doolittle (1982)
    *(-0.4, 1.8, -0.8, -1.6, 4.2, -0.7, 2.5, 4.5, 3.8, -3.5),
    *(-3.5, -3.5, -3.9, -3.5, 1.9, -3.2, 2.8, -4.5, -1.3, -0.9),
)


class Mutation(NamedTuple):
    """One residue that gets another type."""

    position: int  # from 0, among those that may be mutated
    new: int  # index into ONE_LETTER


Mutant = tuple[Mutation, ...]  # its mutations, increasing; none in the wild type


def positions_of(mutant: Mutant) -> frozenset[int]:
    """The positions that a mutant changes."""
    return frozenset(mutation.position for mutation in mutant)


# ---- what is known of every position ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PositionFeatures:
    """What the model sees of P positions that may be mutated."""

    wild: np.ndarray  # (P,) int   types
    neighbours: np.ndarray  # (P, 2)   residues with their CA within 8 and 12 angstrom
    features: np.ndarray  # (K, P, d)   of K encoders
    odds: np.ndarray  # (K, P, 20)

    @cached_property
    def ranking(self) -> np.ndarray:
        """The score of every mutation without measurements (P, 20), standardised: mean log-odds minus burial."""
        odds = self.odds / self.odds.std((1, 2), keepdims=True)
        burial = standardised(self.neighbours)[:, 1:]
        score = odds.mean(0) - BURIAL * burial
        return standardised(score.reshape(-1, 1)).reshape(score.shape)

    def kernels(self, floor: bool) -> tuple[np.ndarray, np.ndarray]:
        """How alike two positions are (P, P), by features and neighbours; and two changes of type (400, 400).

        Changes are alike in volume and hydropathy: of the difference, and of the new type. The `floor` compares types
        in place of features, and of the new type: two types are 1 apart in two of 20 columns.
        """
        letters = np.eye(20)
        properties = standardised(np.array([VOLUME, HYDROPATHY]).T)
        own = [letters[self.wild]] if floor else map(main_directions, self.features)
        new = letters if floor else properties
        differences = properties[None] - properties[:, None]
        change = standardised(differences.reshape(400, 2))
        return likeness(*own, standardised(self.neighbours)), likeness(change, np.tile(new, (20, 1)))


def main_directions(features: np.ndarray) -> np.ndarray:
    """The DIRECTIONS of most variance of standardised features (P, d), with a spread of 1 over all: (P, DIRECTIONS)."""
    size = min(DIRECTIONS, *features.shape)
    pca = PCA(size, svd_solver="full")  # exact: a randomised one moved predictions by .008 kcal/mol
    found = pca.fit_transform(standardised(features))
    return found / found.std()


def standardised(x: np.ndarray) -> np.ndarray:
    """Columns (K, d) with mean 0 and spread 1; constant ones are 0."""
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)


def likeness(*columns: np.ndarray) -> np.ndarray:
    """exp(-squared distance / 2) of all pairs of K rows, distances as the mean over all columns (K, d): (K, K)."""
    x = np.concatenate(columns, axis=1)
    return rbf_kernel(x, gamma=0.5 / x.shape[1])


# ---- the model -------------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """The model with one variance of the noise; that of an effect is 1."""

    noise: float
    inverse: np.ndarray  # (n, n) of the covariance of the values
    errors: np.ndarray  # (n, n) errors of values at positions left out, when applied to the values
    variance: np.ndarray  # (n,) of these errors


class MutantPrior:
    """What the model assumes of n mutants before their values are known.

    Two effects are alike if their positions are, if their changes of type are, and if both are. Effects also follow the
    ranking without measurements; the `floor` knows neither that nor the encoders. The noise of a mutant is that of
    each of its mutations together. If it was measured `repeats` (n,) times, it is that much smaller.
    """

    def __init__(self, features: PositionFeatures, mutants: Sequence[Mutant], repeats=None, floor: bool = False):
        self.features = features
        self.ranking = 0 * features.ranking if floor else features.ranking
        self.mutants = list(mutants)
        self.repeats = np.ones(len(mutants)) if repeats is None else np.asarray(repeats, dtype=float)
        self.position_kernel, self.change_kernel = features.kernels(floor)

        # The wild type, without mutations, says nothing of positions: it does not count as left out.
        self.mutated = np.array([len(mutant) > 0 for mutant in mutants])
        self.mean_count = np.mean([len(mutant) for mutant in mutants if mutant])
        self.choices = [self.with_noise(noise) for noise in NOISE]

    def with_noise(self, noise: float) -> Choice:
        """All that follows from the mutants and the variance of the noise alone."""
        covariance = self.covariance(self.mutants, self.mutants, noise)
        inverse = np.linalg.inv(covariance + np.diag(noise * noise_parts(self.mutants) / self.repeats))
        return Choice(noise, inverse, *leave_out_errors(inverse, leaving(self.mutants)))

    def expected(self, mutants: Sequence[Mutant]) -> np.ndarray:
        """What the ranking says of mutants before anything is measured (n,), in standard deviations of the values."""
        return RANKING * summed(self.ranking, mutants)

    def covariance(self, a: Sequence[Mutant], b: Sequence[Mutant], noise: float) -> np.ndarray:
        """Prior covariance of the values of mutants (n,), (m,) -> (n, m): of effects, the level, and the slope.

        The spreads of level and slope are in units of that of a value, an effect and its noise.
        """
        counts = [np.array([len(mutant) for mutant in mutants]) - self.mean_count for mutants in (a, b)]
        slope = SLOPE**2 * np.outer(*counts)
        return self.effect_covariance(a, b) + (1 + noise) * (LEVEL**2 + slope)

    def effect_covariance(self, a: Sequence[Mutant], b: Sequence[Mutant]) -> np.ndarray:
        """Prior covariance of the summed effects of mutants (n,), (m,) -> (n, m)."""
        position_a, new_a, sums_a = side_by_side(a)
        position_b, new_b, sums_b = side_by_side(b)
        wild = self.features.wild
        position = self.position_kernel[np.ix_(position_a, position_b)]
        change = self.change_kernel[np.ix_(20 * wild[position_a] + new_a, 20 * wild[position_b] + new_b)]
        effects = (position * change + position + change) / 3  # three parts, so that the variance of an effect is 1
        effects += RANKING_SPREAD**2 * np.outer(self.ranking[position_a, new_a], self.ranking[position_b, new_b])
        return sums_a @ effects @ sums_b.T

    def explained(self, tables: np.ndarray) -> np.ndarray:
        """The share of the variance that is explained at positions left out, had the values been these: (n, T) -> (T,).

        Below 0 if the errors are larger than those of the mean. Of mutants, without the wild type.
        """
        rest = standardised(tables) - self.expected(self.mutants)[:, None]
        rest -= rest.mean(0)
        squares = [((choice.errors @ rest) ** 2).mean(0) for choice in self.choices]
        return 1 - np.min(squares, axis=0)


class GaussianProcess:
    """A Gaussian process of mutants with values y (n,). Inside more is better: `sign` is -1 if less of y is.

    The variance of the noise is the one with the smallest error on positions left out. The level and the slope are
    learned without them; the unit of the values and the choice of the noise are not.
    """

    def __init__(self, prior: MutantPrior, y: np.ndarray, sign: int = 1):
        y = sign * y
        self.prior = prior
        self.sign = sign
        self.y = y
        self.scale = np.std(y[prior.mutated]) or 1.0
        expected = self.scale * prior.expected(prior.mutants)
        self.centre = np.mean((y - expected)[prior.mutated])
        rest = (y - self.centre - expected) / self.scale

        losses = [np.mean((choice.errors @ rest)[prior.mutated] ** 2) for choice in prior.choices]
        best = prior.choices[np.argmin(losses)]
        self.noise = best.noise
        self.inverse = best.inverse
        self.weights = best.inverse @ rest

        # What each mutant would have been taken for if nothing had been measured at its positions (n,); and the spread.
        self.left_out = y - self.scale * (best.errors @ rest)
        self.left_out_spread = self.scale * np.sqrt(best.variance)
        self.ratio = np.abs(y - self.left_out) / self.left_out_spread
        self.reach = reach(self.ratio[prior.mutated])

    def predict(self, mutants: Sequence[Mutant], noise: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The values of mutants, and half the widths of their 90 % intervals: (n,), (n,).

        The intervals are of a new measurement; without `noise`, of the value itself.
        """
        values = []
        halves = []
        for start in range(0, len(mutants), AT_ONCE):
            part = mutants[start : start + AT_ONCE]
            near = self.prior.covariance(part, self.prior.mutants, self.noise)
            values.append(self.centre + self.scale * (self.prior.expected(part) + near @ self.weights))

            known = ((near @ self.inverse) * near).sum(1)
            variance = np.diag(self.prior.covariance(part, part, self.noise)) - known
            variance = np.maximum(variance, 0)
            if noise:
                variance += self.noise * noise_parts(part)
            halves.append(self.reach * self.scale * np.sqrt(variance))
        return self.sign * np.concatenate(values), np.concatenate(halves)


def side_by_side(mutants: Sequence[Mutant]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The K mutations of n mutants: positions (K,), new types (K,), and (n, K) that adds up those of each mutant."""
    counts = [len(mutant) for mutant in mutants]
    every = [mutation for mutant in mutants for mutation in mutant]
    position, new = np.array(every, dtype=int).reshape(-1, 2).T
    return position, new, np.repeat(np.eye(len(mutants)), counts, axis=1)


def noise_parts(mutants: Sequence[Mutant]) -> np.ndarray:
    """The variance of the noise (n,), in that of a single mutant: what the model lacks of each mutation adds up."""
    return np.array([max(len(mutant), 1) for mutant in mutants], dtype=float)


def summed(score: np.ndarray, mutants: Sequence[Mutant]) -> np.ndarray:
    """The sum of the scores (P, 20) of each mutant's mutations (n,)."""
    position, new, sums = side_by_side(mutants)
    return sums @ score[position, new]


def leaving(mutants: Sequence[Mutant]) -> np.ndarray:
    """Which mutants are left out when each is predicted (n, n): those that share a position with it.

    If fewer than 8 others would remain for most of them, each is left out alone.
    """
    alone = np.eye(len(mutants), dtype=bool)
    member = membership(mutants)
    share = (member @ member.T > 0) | alone
    remaining = (~share).sum(1)
    return alone if np.mean(remaining < 8) > 0.5 else share


def membership(mutants: Sequence[Mutant]) -> np.ndarray:
    """1 where a mutant changes a position, of those that any of them changes: (n, P)."""
    position, _, sums = side_by_side(mutants)
    return sums @ (position[:, None] == np.unique(position))


def leave_out_errors(inverse: np.ndarray, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (n, n) that makes errors of values, each predicted without its row of `left_out` (n, n).

    And the predicted variances of these errors (n,). `inverse` (n, n) is that of the covariance: closed forms of
    Rasmussen and Williams (2006), Sec. 5.4.2, by blocks.
    """
    errors = np.zeros_like(inverse)
    variance = np.zeros(len(inverse))
    sets, set_of = np.unique(left_out, axis=0, return_inverse=True)
    for number, out in enumerate(sets):
        mine = set_of.ravel() == number
        covariance = np.linalg.inv(inverse[np.ix_(out, out)])
        errors[mine] = (covariance @ inverse[out])[mine[out]]
        variance[mine] = np.diag(covariance)[mine[out]]
    return errors, variance
