"""The effects of mutations, from one structure and a few measured mutants: the model of `siamdiff mutants`.

Without measurements, mutations are ranked by what both encoders expect at a masked residue (`log_odds`) and by burial.
With measurements, a Gaussian process learns how the effects differ from this ranking. Effects of several mutations add
up, so a mutant is a sum of single ones. A single mutation is one number, see `encode`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from Bio.Align import substitution_matrices
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.metrics.pairwise import rbf_kernel

from ..downstream.metrics import redrawn, rmse, rows_of_groups, spearman
from ..encoders.ops import MLP
from ..encoders.weights import load_encoder, load_encoder_file, load_weights
from ..machine import cores
from ..pretraining.diffusion import hide_residues
from ..protein.constants import ONE_LETTER
from ..protein.protein import Protein

# Of a masked residue, the encoder sees what is this near, in angstrom. Compared with the whole structure, log-odds of
# 1STN, 1BNI and 2LZM differ by .01 on average, and by .11 at most.
AROUND = {"siamdiff-residue": 35.0, "siamdiff-atom": 20.0}
DIRECTIONS = 8  # main directions of each encoder's features
BURIAL = 0.5  # weight of the number of neighbours in the ranking without measurements
RANKING = 0.2  # slope of the effects along this ranking before anything is measured, both standardised
NOISE = 10.0 ** np.arange(-1.5, 2.1, 0.5)  # variances of the noise to choose from; that of the measured values is 1
COVERAGE = 0.9  # of the intervals of predictions
MODEL = "the model"
DRAWS = 500  # of positions, for intervals
FEWEST = 24, 8  # mutants and positions for a verdict
BLOSUM62 = np.array(substitution_matrices.load("BLOSUM62").select(ONE_LETTER))
VOLUME = (  # cubic angstrom, in the order of ONE_LETTER: Zamyatnin (1972)
    *(60.1, 88.6, 89.0, 112.7, 140.0, 116.1, 108.5, 166.7, 166.7, 114.1),
    *(111.1, 143.8, 168.6, 138.4, 162.9, 153.2, 189.9, 173.4, 193.6, 227.8),
)
HYDROPATHY = (  # Kyte and Doolittle (1982)
    *(-0.4, 1.8, -0.8, -1.6, 4.2, -0.7, 2.5, 4.5, 3.8, -3.5),
    *(-3.5, -3.5, -3.9, -3.5, 1.9, -3.2, 2.8, -4.5, -1.3, -0.9),
)
Mutant = tuple[int, ...]  # its mutations, increasing; none in the wild type


def encode(residue: int, new: int) -> int:
    """A single mutation as one number, from the row of its residue and its new type in `ONE_LETTER`."""
    return 20 * residue + new


def decode(mutation: int) -> tuple[int, int]:
    """Residue and new type of a mutation."""
    return divmod(mutation, 20)


# ---- what is known of every residue ----------------------------------------------------------------------------------


def log_odds(name: str, protein: Protein, rows: Sequence[int], done: Callable[[], object] = list) -> np.ndarray:
    """log p(type) - log p(own type) of the residues `rows`, each masked on its own: (len(rows), 20).

    `done` is called after every residue. Threads share the work: one for each core.
    """
    encoder, state = load_encoder(name, "cpu"), load_encoder_file(name)["seq_mlp"]
    head = MLP(encoder.out_dim, *[len(tensor) for key, tensor in state.items() if key.endswith("weight")])
    load_weights(head, state, name)
    builder, ca = encoder.builder, protein.alpha_carbons().pos

    @torch.inference_mode()
    def score(row: int) -> torch.Tensor:
        near = (ca - ca[row]).norm(dim=-1) < AROUND[name]
        centre = near[:row].sum()
        hidden = hide_residues(protein.select_residues(near), centre[None], builder.conventions.backbone)
        hidden = builder.select_nodes(hidden)
        graph = builder(hidden, not builder.conventions.hide_all_types)
        logs = head(encoder(hidden, graph).residue[centre]).log_softmax(-1)
        done()
        return logs - logs[protein.residue_type[row]]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations of several threads wait for each other
    try:
        with ThreadPoolExecutor(min(threads, cores())) as pool:
            return torch.stack([*pool.map(score, rows)]).numpy()
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, eq=False)
class Sites:
    """What the model sees of R residues that may be mutated."""

    wild: np.ndarray  # (R,) int   types
    neighbours: np.ndarray  # (R, 2)   residues with their CA within 8 and 12 angstrom
    features: np.ndarray  # (2, R, d)   of both encoders
    odds: np.ndarray  # (2, R, 20)

    @cached_property
    def ranking(self) -> np.ndarray:
        """The score of every mutation without measurements (R * 20,), standardised: mean log-odds minus burial."""
        odds = (self.odds / self.odds.std((1, 2), keepdims=True)).mean(0)
        return standardised((odds - BURIAL * standardised(self.neighbours)[:, 1:]).reshape(-1, 1))[:, 0]

    def kernels(self, floor: bool) -> tuple[np.ndarray, np.ndarray]:
        """How alike two sites are (R, R), by features and neighbours; and two changes of type (400, 400).

        Changes are alike in volume and hydropathy: of the difference, and of the new type. The `floor` compares types
        in place of features, and of the new type.
        """
        types, letters = standardised(np.array([VOLUME, HYDROPATHY]).T), standardised(np.eye(20)) / 4.5
        change = standardised((types - types[:, None]).reshape(400, 2))
        site, new = [letters[self.wild]], letters
        if not floor:
            size = min(DIRECTIONS, *self.features.shape[1:])
            axes = [PCA(size, random_state=0).fit_transform(standardised(x)) for x in self.features]
            site, new = [x / x.std() for x in axes], types
        return likeness(*site, standardised(self.neighbours)), likeness(change, np.tile(new, (20, 1)))


def standardised(x: np.ndarray) -> np.ndarray:
    """Columns (K, d) with mean 0 and spread 1; constant ones are 0."""
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)


def likeness(*columns: np.ndarray) -> np.ndarray:
    """exp(-squared distance / 2) of all pairs of K rows, distances as the mean over all columns (K, d): (K, K)."""
    x = np.concatenate(columns, axis=1)
    return rbf_kernel(x, gamma=0.5 / x.shape[1])


# ---- the model -------------------------------------------------------------------------------------------------------


class Effects:
    """A Gaussian process of mutants: values y (n,) are a constant, plus the effects of their mutations, plus noise.

    Two effects are alike if their sites are, if their changes of type are, and if both are. Effects also follow the
    ranking without measurements; the `floor` knows neither that nor the encoders. The variance of the noise is the one
    with the smallest error on positions left out.
    """

    def __init__(self, sites: Sites, mutants: Sequence[Mutant], y: np.ndarray, floor: bool = False):
        self.sites, self.mutants, self.floor = sites, list(mutants), floor
        self.kernels, self.count = sites.kernels(floor), np.mean([len(m) for m in mutants])
        self.scale = np.std(y) or 1.0
        self.centre = np.mean(y - self.expected(mutants))
        rest = (y - self.centre - self.expected(mutants)) / self.scale
        kernel, left_out, tried = self.covariance(mutants, mutants), leaving(mutants), []
        for noise in NOISE:
            inverse = np.linalg.inv(kernel + noise * np.eye(len(y)))
            tried.append((noise, inverse, *held_out(inverse, rest, left_out)))
        self.noise, self.inverse, error, variance = min(tried, key=lambda x: (x[2] ** 2).mean())
        self.weights = self.inverse @ rest
        # (n,) what each mutant would have been taken for if nothing had been measured at its positions; and the spread
        self.held_out, self.spread = y - self.scale * error, self.scale * np.sqrt(variance)
        self.reach = reach(np.abs(y - self.held_out) / self.spread)

    def expected(self, mutants: Sequence[Mutant]) -> np.ndarray:
        """What the ranking says of mutants before anything is measured (n,), without the constant."""
        return 0 if self.floor else self.scale * RANKING * summed(self.sites.ranking, mutants)

    def covariance(self, a: Sequence[Mutant], b: Sequence[Mutant]) -> np.ndarray:
        """Prior covariance of the standardised values of mutants (n,), (m,) -> (n, m)."""
        (one, rows), (two, columns) = side_by_side(a), side_by_side(b)
        change_of = (20 * self.sites.wild[:, None] + np.arange(20)).ravel()  # (R * 20,)
        site = self.kernels[0][np.ix_(one // 20, two // 20)]
        change = self.kernels[1][np.ix_(change_of[one], change_of[two])]
        effects = (site * change + site + change) / 3
        if not self.floor:
            effects += np.outer(self.sites.ranking[one], self.sites.ranking[two]) / 4
        return rows @ effects @ columns.T + np.outer(rows.sum(1) - self.count, columns.sum(1) - self.count)

    def predict(self, mutants: Sequence[Mutant]) -> tuple[np.ndarray, np.ndarray]:
        """The values of mutants, and half the widths of their 90 % intervals: (n,), (n,)."""
        value, half = [], []
        for part in (mutants[start : start + 64] for start in range(0, len(mutants), 64)):
            near = self.covariance(part, self.mutants)
            value.append(self.centre + self.expected(part) + self.scale * near @ self.weights)
            variance = np.diag(self.covariance(part, part)) - ((near @ self.inverse) * near).sum(1)
            half.append(self.reach * self.scale * np.sqrt(np.maximum(variance, 0) + self.noise))
        return np.concatenate(value), np.concatenate(half)


def side_by_side(mutants: Sequence[Mutant]) -> tuple[np.ndarray, np.ndarray]:
    """The K mutations of n mutants (K,), and the matrix that sums them (n, K)."""
    sums = np.repeat(np.eye(len(mutants)), [len(m) for m in mutants], axis=1)
    return np.array([x for m in mutants for x in m], dtype=int), sums


def summed(score: np.ndarray, mutants: Sequence[Mutant]) -> np.ndarray:
    """The sum of the scores (R * 20,) of each mutant's mutations (n,)."""
    return np.array([score[list(m)].sum() for m in mutants])


def positions(mutant: Mutant) -> frozenset[int]:
    """The residues that a mutant changes."""
    return frozenset(x // 20 for x in mutant)


def leaving(mutants: Sequence[Mutant]) -> np.ndarray:
    """Which mutants are left out when each is predicted (n, n): those that share a position with it.

    If fewer than 8 others would remain for most of them, each is left out alone.
    """
    sets, alone = [positions(m) for m in mutants], np.eye(len(mutants), dtype=bool)
    share = np.array([[not a.isdisjoint(b) for b in sets] for a in sets]) | alone
    return alone if np.mean((~share).sum(1) < 8) > 0.5 else share


def held_out(inverse: np.ndarray, y: np.ndarray, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of y (n,), and their predicted variances, if each is predicted without its row of `left_out` (n, n).

    `inverse` (n, n) is that of the covariance: closed forms of Rasmussen and Williams (2006), Sec. 5.4.2, by blocks.
    """
    weights, error, variance = inverse @ y, np.zeros(len(y)), np.zeros(len(y))
    sets, of = np.unique(left_out, axis=0, return_inverse=True)
    for k, out in enumerate(sets):
        mine = of.ravel() == k
        covariance = np.linalg.inv(inverse[np.ix_(out, out)])
        error[mine] = (covariance @ weights[out])[mine[out]]
        variance[mine] = np.diag(covariance)[mine[out]]
    return error, variance


def reach(ratio: np.ndarray) -> float:
    """How many spreads hold 90 % of the errors `ratio` (n,), with the correction of split conformal prediction."""
    return np.sort(ratio)[min(int(np.ceil((len(ratio) + 1) * COVERAGE)), len(ratio)) - 1]


# ---- may I believe it ------------------------------------------------------------------------------------------------


class Trust(NamedTuple):
    """How well the model predicts mutants at positions where nothing was measured, and what it is better than."""

    rho: dict[str, tuple[float, float, float]]  # of the model and what it is compared with: value, 95 % interval
    rmse: dict[str, tuple[float, float, float]]
    gain: dict[str, tuple[float, float, float]]  # rho of the model minus that of another
    covered: float  # share of the held-out values in their 90 % intervals

    @property
    def sentences(self) -> list[str]:
        """How good the model is, and what it is better than, a sentence each."""
        found = [f"positions left out: rho {between(self.rho[MODEL], '.2f')}"]
        found.append(f"positions left out: root mean squared error {between(self.rmse[MODEL], '.3g')}")
        for name, gain in self.gain.items():
            side = "better than" if gain[1] > 0 else "worse than" if gain[2] < 0 else "not told apart from"
            found.append(f"{side} {name}: rho {between(gain, '+.2f')}")
        found.append(f"{self.covered:.0%} of the values left out lie in their 90 % intervals")
        if self.rho["no measurements"][2] < 0:
            advice = "if lower is better, say --lower-is-better"
            found.append(f"the values fall where encoders expect them to rise: {advice}")
        return found


def trust(model: Effects, y: np.ndarray) -> Trust | None:
    """Compare the model with others on positions left out; None if FEWEST say that nothing can be said.

    Intervals are over draws of sets of positions.
    """
    sites, mutants = model.sites, model.mutants
    if len({*mutants}) < FEWEST[0] or len(frozenset().union(*map(positions, mutants))) < FEWEST[1]:
        return None
    values = {MODEL: model.held_out, "types and burial": Effects(sites, mutants, y, floor=True).held_out}
    scores = {"no measurements": sites.ranking, "BLOSUM62": BLOSUM62[sites.wild].ravel(), "the mean": 0 * sites.ranking}
    scores = {name: summed(x, mutants) for name, x in scores.items()}
    lines = {  # a score has no units: it takes the line that fits best
        name: LinearRegression().fit(x[:, None], y).predict(x[:, None]) for name, x in scores.items()
    }
    groups = [str(sorted(positions(m))) for m in mutants]
    drawn = [np.arange(len(y)), *map(np.concatenate, islice(redrawn(groups), DRAWS))]
    rho = {name: np.array([spearman(x[rows], y[rows]) for rows in drawn]) for name, x in (values | scores).items()}
    error = {name: np.array([rmse(x[rows], y[rows]) for rows in drawn]) for name, x in (values | lines).items()}
    gain = {name: rho[MODEL] - x for name, x in rho.items() if name != MODEL}
    ratio = np.abs(y - model.held_out) / model.spread
    covered = np.mean([ratio[k] <= reach(np.delete(ratio, rows)) for rows in rows_of_groups(groups) for k in rows])
    return Trust(*({name: with_interval(x) for name, x in of.items()} for of in (rho, error, gain)), covered)


def with_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The first of `values`, and the middle 95 % of the others, which were drawn."""
    return float(values[0]), *np.nanquantile(values[1:], [0.025, 0.975]).tolist()


def between(value: tuple[float, float, float], form: str) -> str:
    """A value and its interval, for a reader."""
    return "{} ({} to {})".format(*(f"{x:{form}}" for x in value))
