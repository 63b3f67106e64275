"""The effects of mutations, from one structure and a few measured mutants: the model of `siamdiff mutants`.

Without measurements, mutations are ranked by what both encoders expect at a masked residue (`log_odds`) and by burial.
With measurements, a Gaussian process learns how the effects differ from this ranking. Effects of several mutations add
up, so a mutant is a sum of single ones. A single mutation is one number: 20 * residue + new type, of `ONE_LETTER`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from Bio.Align import substitution_matrices
from sklearn.decomposition import PCA

from ..encoders.ops import MLP
from ..encoders.weights import load_encoder, load_encoder_file, load_weights
from ..machine import cores
from ..pretraining.diffusion import hide_residues
from ..protein.constants import NUM_RESIDUE_TYPES, ONE_LETTER
from ..protein.protein import Protein
from ..protein.structure import Structure
from .metrics import rmse, rows_of_groups, spearman

ENCODERS = "siamdiff-residue", "siamdiff-atom"
# Of a masked residue, the encoder sees what is this near, in angstrom. Compared with the whole structure, log-odds of
# 1STN, 1BNI and 2LZM differ by .01 on average, and by .11 at most.
AROUND = {"siamdiff-residue": 35.0, "siamdiff-atom": 20.0}
BATCH = 2000  # nodes: larger batches leave the cache of a CPU
DIRECTIONS = 8  # main directions of each encoder's features
BURIAL = 0.5  # weight of the number of neighbours in the ranking without measurements
RANKING = 0.2  # slope of the effects along this ranking before anything is measured, both standardised
NOISE = 10.0 ** np.arange(-1.5, 2.1, 0.5)  # variances of the noise to choose from; that of the measured values is 1
COVERAGE = 0.9  # of the intervals of predictions
DRAWS = 500  # of positions, for intervals
FEWEST = 24, 8  # mutants and positions for a verdict
BLOSUM62 = substitution_matrices.load("BLOSUM62")
VOLUME = (  # cubic angstrom, in the order of ONE_LETTER: Zamyatnin (1972)
    *(60.1, 88.6, 89.0, 112.7, 140.0, 116.1, 108.5, 166.7, 166.7, 114.1),
    *(111.1, 143.8, 168.6, 138.4, 162.9, 153.2, 189.9, 173.4, 193.6, 227.8),
)
HYDROPATHY = (  # Kyte and Doolittle (1982)
    *(-0.4, 1.8, -0.8, -1.6, 4.2, -0.7, 2.5, 4.5, 3.8, -3.5),
    *(-3.5, -3.5, -3.9, -3.5, 1.9, -3.2, 2.8, -4.5, -1.3, -0.9),
)
Mutant = tuple[int, ...]  # its mutations, increasing; none in the wild type


# ---- what is known of every residue ----------------------------------------------------------------------------------


def log_odds(name: str, protein: Protein, rows: Sequence[int], done: Callable[[int], object] = int) -> np.ndarray:
    """log p(type) - log p(own type) of the residues `rows`, each masked on its own: (len(rows), 20).

    `done` is told how many residues have been added. Threads share the work: one for each core.
    """
    encoder, state = load_encoder(name, "cpu"), load_encoder_file(name)["seq_mlp"]
    head = MLP(encoder.out_dim, *[len(tensor) for key, tensor in state.items() if key.endswith("weight")])
    load_weights(head, state, name)
    builder, ca = encoder.builder, protein.alpha_carbons().pos
    near = [(ca - ca[row]).norm(dim=-1) < AROUND[name] for row in rows]
    nodes = np.cumsum([int(x[protein.atom_residue].sum() if builder.with_elements else x.sum()) for x in near])

    @torch.inference_mode()
    def score(batch: np.ndarray) -> torch.Tensor:
        copies, centres, first = [], [], 0
        for k in batch:
            centre = near[k][: rows[k]].sum()
            hidden = hide_residues(protein.select_residues(near[k]), centre[None], builder.conventions.backbone)
            copies.append(builder.select_nodes(hidden))
            centres.append(first + int(centre))
            first += hidden.num_residues
        packed = Protein.pack(copies)
        graph = builder(packed, not builder.conventions.hide_all_types)
        found = head(encoder(packed, graph).residue[centres]).log_softmax(-1)
        done(len(batch))
        return found

    batches = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(nodes // BATCH)) + 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small operations of several threads wait for each other
    try:
        with ThreadPoolExecutor(min(threads, cores())) as pool:
            logs = torch.cat([*pool.map(score, batches)])
    finally:
        torch.set_num_threads(threads)
    own = protein.residue_type[list(rows)]
    return (logs - logs.gather(1, own[:, None])).numpy()


@dataclass(frozen=True, eq=False)
class Sites:
    """What the model sees of R residues that may be mutated."""

    wild: np.ndarray  # (R,) int   types
    neighbours: np.ndarray  # (R, 2)   residues with their CA within 8 and 12 angstrom
    features: np.ndarray  # (2, R, d)   of both encoders
    odds: np.ndarray  # (2, R, 20)

    @cached_property
    def ranking(self) -> np.ndarray:
        """The score of every mutation without measurements (R * 20,), standardised; of the wild type it means nothing.

        The mean over encoders of the log-odds, each divided by its spread, minus half the standardised number of
        neighbours within 12 angstrom.
        """
        odds = (self.odds / self.odds.std((1, 2), keepdims=True)).mean(0)
        return standardised((odds - BURIAL * standardised(self.neighbours)[:, 1:]).reshape(-1, 1))[:, 0]

    @cached_property
    def kernels(self) -> tuple[np.ndarray, np.ndarray]:
        """How alike two sites are (R, R), by features and neighbours; and two changes of type (400, 400)."""
        size = min(DIRECTIONS, *self.features.shape[1:])
        axes = [PCA(size, random_state=0).fit_transform(standardised(x)) for x in self.features]
        site = np.concatenate([*(x / x.std() for x in axes), standardised(self.neighbours)], axis=1)
        types = standardised(np.array([VOLUME, HYDROPATHY]).T)
        change = np.concatenate([types[None] - types[:, None], np.broadcast_to(types, (20, 20, 2))], axis=-1)
        return likeness(site), likeness(standardised(change.reshape(400, 4)))

    @cached_property
    def floor_kernels(self) -> tuple[np.ndarray, np.ndarray]:
        """The same without encoders: of sites by type and neighbours, of changes by volume, hydropathy and type."""
        each = np.eye(NUM_RESIDUE_TYPES)
        site = np.concatenate([standardised(self.neighbours), standardised(each)[self.wild] / 4.5], axis=1)
        types = np.array([VOLUME, HYDROPATHY]).T
        change = standardised((types[None] - types[:, None]).reshape(400, 2))
        return likeness(site), likeness(np.concatenate([change, np.tile(standardised(each) / 4.5, (20, 1))], axis=1))


def sites_of(structure: Structure, rows: Sequence[int], features: np.ndarray, odds: np.ndarray) -> Sites:
    """The residues `rows` of a structure."""
    ca = structure.protein.alpha_carbons().pos
    distance = torch.cdist(ca[list(rows)], ca)
    neighbours = torch.stack([(distance < radius).sum(1) for radius in (8, 12)], dim=1).double().numpy()
    return Sites(structure.protein.residue_type[list(rows)].numpy(), neighbours, features, odds)


def standardised(x: np.ndarray) -> np.ndarray:
    """Columns (K, d) with mean 0 and spread 1; constant ones are 0."""
    return (x - x.mean(0)) / np.maximum(x.std(0), 1e-9)


def likeness(x: np.ndarray) -> np.ndarray:
    """exp(-squared distance / 2) of all pairs of rows (K, d), distances as the mean over columns: (K, K)."""
    squares = (x**2).sum(1)
    return np.exp(-np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0) / (2 * x.shape[1]))


# ---- the model -------------------------------------------------------------------------------------------------------


class Effects:
    """A Gaussian process of mutants: values y (n,) are a constant, plus the effects of their mutations, plus noise.

    Two effects are alike if their sites are, if their changes of type are, and if both are. Effects also follow the
    ranking without measurements; the `floor` knows neither that nor the encoders. The variance of the noise is the one
    with the smallest error on positions left out.
    """

    def __init__(self, sites: Sites, mutants: Sequence[Mutant], y: np.ndarray, floor: bool = False):
        self.sites, self.mutants, self.floor = sites, list(mutants), floor
        self.kernels = sites.floor_kernels if floor else sites.kernels
        self.count, self.centre = float(np.mean([len(m) for m in mutants])), float(np.mean(y))
        self.scale = float(np.std(y)) or 1.0
        self.level = 0.0
        self.level = float(self.expected(mutants).mean())
        rest = (y - self.centre) / self.scale - self.expected(mutants)
        kernel, self.left_out, tried = self.covariance(mutants, mutants), blocks(mutants), []
        for noise in NOISE:
            inverse = np.linalg.inv(kernel + noise * np.eye(len(y)))
            error, variance = held_out(inverse, rest, self.left_out)
            tried.append((float((error**2).mean()), noise, inverse, error, variance))
        _, self.noise, self.inverse, error, variance = min(tried, key=lambda x: x[0])
        self.weights = self.inverse @ rest
        # (n,) what each mutant would have been taken for if nothing had been measured at its positions; and the spread
        self.held_out, self.spread = y - self.scale * error, self.scale * np.sqrt(variance)
        self.reach = reach(np.abs(y - self.held_out) / self.spread)

    def expected(self, mutants: Sequence[Mutant]) -> np.ndarray:
        """What the ranking says before anything is measured (n,), standardised."""
        return RANKING * (0 if self.floor else 1) * self.ranks(mutants) - self.level

    def ranks(self, mutants: Sequence[Mutant]) -> np.ndarray:
        """The sum of the ranking's scores of each mutant (n,)."""
        return np.array([self.sites.ranking[list(m)].sum() for m in mutants])

    def covariance(self, a: Sequence[Mutant], b: Sequence[Mutant]) -> np.ndarray:
        """Prior covariance of the standardised values of mutants (n,), (m,) -> (n, m)."""
        (one, left), (two, right) = flat(a), flat(b)
        site, change = self.kernels
        i, j = (x // NUM_RESIDUE_TYPES for x in (one, two))
        p, q = (NUM_RESIDUE_TYPES * self.sites.wild[x // NUM_RESIDUE_TYPES] + x % NUM_RESIDUE_TYPES for x in (one, two))
        site, change = site[np.ix_(i, j)], change[np.ix_(p, q)]
        effects = (site * change + site + change) / 3
        if not self.floor:
            effects += np.outer(self.sites.ranking[one], self.sites.ranking[two]) / 4
        sums = np.add.reduceat(np.pad(effects, ((0, 1), (0, 1))), left, axis=0)
        sums = np.add.reduceat(sums, right, axis=1)
        counts = [np.array([len(m) for m in x], dtype=float) for x in (a, b)]
        sums = sums * (counts[0] > 0)[:, None] * (counts[1] > 0)
        return sums + np.outer(*(x - self.count for x in counts))

    def predict(self, mutants: Sequence[Mutant]) -> tuple[np.ndarray, np.ndarray]:
        """The values of mutants, and half the widths of their 90 % intervals: (n,), (n,)."""
        near = self.covariance(mutants, self.mutants)
        value = self.expected(mutants) + near @ self.weights
        parts = [mutants[start : start + 64] for start in range(0, len(mutants), 64)]
        prior = np.concatenate([np.diag(self.covariance(part, part)) for part in parts])
        variance = np.maximum(prior - ((near @ self.inverse) * near).sum(1), 0) + self.noise
        return self.centre + self.scale * value, self.reach * self.scale * np.sqrt(variance)


def flat(mutants: Sequence[Mutant]) -> tuple[np.ndarray, np.ndarray]:
    """The mutations of all mutants side by side, and where each mutant begins."""
    start = np.cumsum([0, *(len(m) for m in mutants)])[:-1]
    return np.array([x for m in mutants for x in m], dtype=int), start


def positions(mutant: Mutant) -> frozenset[int]:
    """The residues that a mutant changes."""
    return frozenset(x // NUM_RESIDUE_TYPES for x in mutant)


def blocks(mutants: Sequence[Mutant]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(rows, leaving) for each set of positions: the mutants with exactly these positions, and those that share one.

    The wild type is in no other block. If nothing remains without the positions of most mutants, each leaves alone.
    """
    sets = [positions(m) for m in mutants]
    found = []
    for own in dict.fromkeys(sets):
        rows = np.flatnonzero([x == own for x in sets])
        found.append((rows, np.flatnonzero([x == own or not own.isdisjoint(x) for x in sets])))
    shared = sum(len(rows) for rows, leaving in found if len(mutants) - len(leaving) < 8) > len(mutants) / 2
    return [(np.array([i]), np.array([i])) for i in range(len(mutants))] if shared else found


def held_out(inverse: np.ndarray, y: np.ndarray, left_out: list) -> tuple[np.ndarray, np.ndarray]:
    """Errors of y (n,) and their predicted variances if the rows of a block are predicted without those that leave.

    `inverse` (n, n) is that of the covariance: closed forms of Rasmussen and Williams (2006), Sec. 5.4.2, by blocks.
    """
    weights, error, variance = inverse @ y, np.zeros(len(y)), np.zeros(len(y))
    for rows, leaving in left_out:
        covariance = np.linalg.inv(inverse[np.ix_(leaving, leaving)])
        at = np.searchsorted(leaving, rows)
        error[rows] = (covariance @ weights[leaving])[at]
        variance[rows] = np.diag(covariance)[at]
    return error, variance


# ---- may I believe it ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trust:
    """How well the model predicts mutants at positions where nothing was measured, and what it is better than."""

    rho: dict[str, tuple[float, float, float]]  # of the model and what it is compared with: value, 95 % interval
    rmse: dict[str, tuple[float, float, float]]
    gain: dict[str, tuple[float, float, float]]  # rho of the model minus that of another
    covered: float  # share of the held-out values in their 90 % intervals
    enough: bool

    @property
    def verdict(self) -> str:
        """The answer, in a few words."""
        if not self.enough:
            return f"too few to say: it takes {FEWEST[0]} mutants at {FEWEST[1]} positions"
        if self.rho["the model"][1] > 0:
            return "better than chance: worth using at new positions"
        return "not told apart from chance: do not use it at new positions"

    @property
    def sentences(self) -> list[str]:
        """How good the model is, and what it is better than, a sentence each."""
        found = [f"positions left out: rho {between(*self.rho['the model'])}"]
        found.append(f"positions left out: root mean squared error {between(*self.rmse['the model'])}")
        for name, (gain, low, high) in self.gain.items():
            side = "better than" if low > 0 else "worse than" if high < 0 else "not told apart from"
            found.append(f"{side} {name}: rho {gain:+.2f} ({low:+.2f} to {high:+.2f})")
        found.append(f"{self.covered:.0%} of the values left out lie in their 90 % intervals")
        if self.rho["no measurements"][2] < 0:
            found.append(
                "the values fall where encoders expect them to rise: if lower is better, say --lower-is-better"
            )
        return found


def trust(model: Effects, y: np.ndarray) -> Trust:
    """Compare the model with others on positions left out. Intervals are over draws of sets of positions."""
    sites, mutants = model.sites, model.mutants
    floor, blosum = Effects(sites, mutants, y, floor=True), substitutions(sites)
    scores = {"the model": model.held_out, "types and burial": floor.held_out, "no measurements": model.ranks(mutants)}
    scores |= {"BLOSUM62": np.array([blosum[list(m)].sum() for m in mutants]), "the mean": np.zeros(len(y))}
    values = dict(list(scores.items())[:2])  # in the units of y; a score takes the line that fits best
    for name in [name for name in scores if name not in values]:
        x = np.stack([scores[name], np.ones(len(y))], axis=1)
        values[name] = x @ np.linalg.lstsq(x, y, rcond=None)[0]
    groups = rows_of_groups([str(sorted(positions(m))) for m in mutants])
    random = np.random.default_rng(0)
    drawn = [np.arange(len(y))]
    for _ in range(DRAWS):
        drawn.append(np.concatenate([groups[k] for k in random.integers(len(groups), size=len(groups))]))
    rho = {name: np.array([spearman(x[rows], y[rows]) for rows in drawn]) for name, x in scores.items()}
    error = {name: np.array([rmse(x[rows], y[rows]) for rows in drawn]) for name, x in values.items()}
    gain = {name: rho["the model"] - x for name, x in rho.items() if name != "the model"}
    ratio = np.abs(y - model.held_out) / model.spread
    covered = [ratio[k] <= reach(np.delete(ratio, rows)) for rows in groups for k in rows if len(groups) > 1]
    enough = len(set(mutants)) >= FEWEST[0] and len({x for m in mutants for x in positions(m)}) >= FEWEST[1]
    found = ({name: with_interval(x) for name, x in of.items()} for of in (rho, error, gain))
    return Trust(*found, covered=float(np.mean(covered or [0])), enough=enough)


def substitutions(sites: Sites) -> np.ndarray:
    """The entry of BLOSUM62 for every mutation (R * 20,)."""
    return np.array([[BLOSUM62[a][b] for b in ONE_LETTER] for a in ONE_LETTER])[sites.wild].ravel()


def reach(ratio: np.ndarray) -> float:
    """How many spreads hold 90 % of the errors `ratio` (n,), with the correction of split conformal prediction."""
    return float(np.sort(ratio)[min(int(np.ceil((len(ratio) + 1) * COVERAGE)), len(ratio)) - 1])


def between(value: float, low: float, high: float) -> str:
    """A value and its interval, for a reader."""
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def with_interval(values: np.ndarray) -> tuple[float, float, float]:
    """The first of `values`, and the middle 95 % of the others, which were drawn."""
    return float(values[0]), *(float(x) for x in np.nanquantile(values[1:], [0.025, 0.975]))
