"""May I believe it? Whether the model of `siamdiff mutants` is better than chance, and than simpler ones.

It is asked for positions that were left out. What it explains of the values is compared with what it explains of the
same values after they were permuted among positions.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...downstream.metrics import rmse, rows_of_groups, spearman
from ..evidence.intervals import reach
from ..evidence.permutation import Gain, bounds
from .mutation_model import GaussianProcess, Mutant, MutantPrior, membership, positions_of, standardised, summed

MEAN = "the mean"
FLOOR = "types and burial"
UNMEASURED = "no measurements"
MEANING = {  # of being better than another, and of not being so
    FLOOR: ("the encoders help", "the encoders may add nothing"),
    UNMEASURED: ("the measurements help", "the measurements may add nothing yet"),
}
TABLES = 1000  # of permuted values, for a verdict
# Share of tables without meaning that are called better, and another that are called worse. A comparison with a model
# that was fitted to the values is not exact: at .025, up to 8 % of real profiles at other positions were called better.
BY_CHANCE = 0.025
BY_ANOTHER = 0.01
SHARES = np.array([*np.arange(0, 0.95, 0.1), 0.95, 0.99])  # of the variance that positions may have, to choose from
FEWEST = 24  # mutants for a verdict
FEWEST_POSITIONS = 8
TOO_FEW = f"too few to say: it takes {FEWEST} mutants at {FEWEST_POSITIONS} positions"


class Trust(NamedTuple):
    """How well the model predicts mutants at positions where nothing was measured."""

    rho: float
    rmse: float
    explained: float  # share of the variance
    gain: dict[str, Gain]  # what it explains more than each of the others
    backwards: bool  # the values fall where encoders expect them to rise
    covered: float  # share of the left-out values in their 90 % intervals

    def better(self, name: str = MEAN) -> bool:
        """Whether the model is better than another. If it is not better than chance, it is better than nobody."""
        return self.gain[MEAN].is_more and self.gain[name].is_more

    @property
    def sentences(self) -> list[str]:
        """How good the model is, and what it is better than, a sentence each."""
        found = []
        if self.backwards:
            advice = "if lower is better, say --lower-is-better"
            found.append(f"the values fall where encoders expect them to rise: {advice}")
        found.append(f"positions left out: rho {self.rho:.2f}, root mean squared error {self.rmse:.3g}")
        by_chance = f"of values permuted among positions at most {max(self.gain[MEAN].high, 0):.0%}"
        found.append(f"positions left out: {self.explained:.0%} of the variance is explained, {by_chance}")
        for name, (helps, may_not_help) in MEANING.items():
            gain = self.gain[name]
            told = "worse than" if gain.value < min(gain.low, 0) else "not told apart from"
            said = f"better than {name}: {helps}" if self.better(name) else f"{told} {name}: {may_not_help}"
            found.append(f"{said} ({gain.value:+.0%} of the variance; by chance at most {gain.high:+.0%})")
        return [*found, f"{self.covered:.0%} of the values left out lie in their 90 % intervals"]


def trust(model: GaussianProcess) -> Trust | None:
    """Compare the model with others on positions left out; None if there are too few of them."""
    # Of the mutants alone: the wild type has no position.
    mutants = [mutant for mutant in model.prior.mutants if mutant]
    if len(mutants) < FEWEST or membership(mutants).shape[1] < FEWEST_POSITIONS:
        return None
    mutated = model.prior.mutated
    y = model.y[mutated]
    left_out = model.left_out[mutated]
    against = Comparison(MutantPrior(model.prior.features, mutants, model.prior.repeats[mutated]))

    # Whether values fall with the ranking without measurements, more than by chance.
    rise = bounds(against.scores[UNMEASURED] @ standardised(against.tables(MEAN, y)), BY_CHANCE)

    # An interval is told from the errors at other positions.
    ratio = model.ratio[mutated]
    inside = [ratio[rows] <= reach(np.delete(ratio, rows)) for rows in against.permuted.groups]
    return Trust(
        rho=spearman(left_out, y),
        rmse=rmse(left_out, y),
        explained=float(against.model.explained(y[:, None])[0]),
        gain={name: against.gain(name, y) for name in (MEAN, *MEANING)},
        backwards=rise.value < rise.low,
        covered=float(np.concatenate(inside).mean()),
    )


class Comparison:
    """The model of n mutants beside simpler ones: how much more it explains, whatever the values are."""

    def __init__(self, model: MutantPrior, tables: int = TABLES):
        mutants = model.mutants
        self.model = model
        self.floor = MutantPrior(model.features, mutants, model.repeats, floor=True)
        self.permuted = Permutations(mutants, tables)
        self.scores = {UNMEASURED: summed(model.ranking, mutants), MEAN: np.zeros(len(mutants))}

        # Each score takes the line that fits best, and may know how many mutations a mutant has.
        counts = np.array([len(mutant) for mutant in mutants])
        self.lines = {}  # name -> (n, n) makes fitted values of values
        for name, score in self.scores.items():
            columns = np.column_stack([np.ones(len(mutants)), counts, score])
            self.lines[name] = columns @ np.linalg.pinv(columns)

    def gain(self, name: str, y: np.ndarray) -> Gain:
        """The model beside another one, for values y (n,)."""
        tables = self.tables(name, y)
        if name == FLOOR:
            explained = self.floor.explained(tables)
        else:
            values = standardised(tables)
            explained = 1 - ((values - self.lines[name] @ values) ** 2).mean(0)
        return bounds(self.model.explained(tables) - explained, BY_CHANCE if name == MEAN else BY_ANOTHER)

    def tables(self, name: str, y: np.ndarray) -> np.ndarray:
        """The values y (n,), and tables that hold only what another model knows of them: (n, 1 + T).

        Its fit stays, and the rest is permuted (Freedman and Lane 1983, J. Bus. Econ. Stat. 1:292).
        """
        if name == FLOOR:
            fit, _ = GaussianProcess(self.floor, y).predict(self.floor.mutants)
        else:
            fit = self.lines[name] @ y
        return np.column_stack([y, fit[:, None] + self.permuted(y - fit)])


class Permutations:
    """Permutes values among the same mutants: what if nothing were to be known of a position from others?

    Whole positions are exchangeable, and mutants in them too (Winkler et al. 2014, NeuroImage 92:381). So the values of
    a position go to another one together, as far as they fit there; the others go anywhere. Before, values are made
    independent by the share of the variance of positions that is the likeliest (REML); after, they are made alike again
    (Abney 2015, Genet. Epidemiol. 39:249). If all positions have as many mutants, that changes nothing.
    """

    def __init__(self, mutants: Sequence[Mutant], tables: int = TABLES):
        member = membership(mutants)
        variance, self.axes = np.linalg.eigh(member @ member.T)
        share = SHARES[:, None]
        self.variance = 1 - share + share * np.maximum(variance, 0)  # along every axis, for each share
        self.groups = rows_of_groups([str(sorted(positions_of(mutant))) for mutant in mutants])
        random = np.random.default_rng(0)
        self.orders = np.stack([self.order(random) for _ in range(tables)], axis=1)  # (n, tables)

    def order(self, random: np.random.Generator) -> np.ndarray:
        """The mutant whose value each mutant gets (n,)."""
        order = np.full(len(self.axes), -1)

        # Each position takes from another one, in any order, as many values as both have.
        for group, giver in zip(self.groups, random.permutation(len(self.groups))):
            values = random.permutation(self.groups[giver])[: len(group)]
            order[group[: len(values)]] = values

        rest = np.setdiff1d(np.arange(len(order)), order)
        order[order < 0] = random.permutation(rest)
        return order

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """Values (n,) less their mean, permuted: (n, tables)."""
        # The values along the axes, less their mean; and the share that is the likeliest.
        ones = self.axes.sum(0)
        along = self.axes.T @ y
        weight = (ones**2 / self.variance).sum(1)
        mean = (ones * along / self.variance).sum(1) / weight
        rest = along - ones * mean[:, None]
        squares = np.maximum((rest**2 / self.variance).sum(1), 1e-300)  # 0 if all values are the same
        of_variance = np.log(self.variance).sum(1) + np.log(weight)
        best = np.argmin(of_variance + (len(y) - 1) * np.log(squares))

        # Values are made independent, permuted, and made alike again.
        spread = np.sqrt(self.variance[best])
        independent = self.axes @ (rest[best] / spread)
        permuted = self.axes.T @ independent[self.orders]
        return self.axes @ (spread[:, None] * permuted)
