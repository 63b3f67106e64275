"""All single mutants of a structure, the best first: by what encoders expect, and by measured mutants if there are any.

`mutation_model.py` is the model. Here a structure and measurements become its input, and its predictions become rows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import numpy as np
import torch

from ...encoders.weights import load_encoder
from ...files import ConfigError, first_three
from ...machine import progress
from ...protein.constants import ONE_LETTER
from ...reading.parse import read_structure
from ...reading.structure import Structure
from . import trust
from .log_odds import log_odds
from .mutation_model import GaussianProcess, Mutant, MutantPrior, Mutation, PositionFeatures
from .mutation_names import WILD_TYPE, NoSubstitution, Positions
from .trust import Trust

BUNDLED = "siamdiff-residue", "siamdiff-atom"
BETTER = "better than chance: worth using at new positions"
NOT_BETTER = "not told apart from chance: do not use it at new positions"


@dataclass(frozen=True, eq=False)
class Ranking:
    """All single mutants of a structure, the best first, and how far to trust them."""

    positions: Positions
    effects: np.ndarray  # (P, 20) of every mutation on the value; without measurements, its score
    rows: list[dict]  # every single mutant that has not been measured
    next: list[dict]  # the rows to make next
    measured: dict[str, float]  # mean over repeats
    model: GaussianProcess | None  # None without measurements
    trust: Trust | None  # None if they are too few
    notes: list[str]  # on the measurements
    features: PositionFeatures  # what the encoders say of the structure

    def __repr__(self) -> str:
        return f"Ranking({len(self.rows)} mutants, {len(self.measured)} measured: {self.verdict})"

    @property
    def better(self) -> bool | None:
        """Whether the model is better than chance at new positions; None if too few were measured to say."""
        return self.trust and self.trust.better()

    @property
    def verdict(self) -> str:
        """Whether to believe the predictions, in a few words."""
        if not self.measured:
            return "nothing measured: ranked by log-odds and burial"
        if self.trust is None:
            return trust.TOO_FEW
        return BETTER if self.better else NOT_BETTER

    @property
    def sentences(self) -> list[str]:
        """The verdict, and what there is to say about the measurements and the model."""
        count = len({*self.measured} - {"WT"})
        found = [self.verdict, *([f"{count} mutants measured"] if count else []), *self.notes]
        if self.model:
            (value,), (half,) = self.model.predict([()], noise=False)
            how = "measured" if "WT" in self.measured else "it was not measured, so the map is relative to an estimate"
            found.append(f"wild type {value:.3g} ({value - half:.3g} to {value + half:.3g}): {how}")
        return found + (self.trust.sentences if self.trust else [])

    def predict(self, *mutants: str) -> list[tuple[float, float, float]]:
        """Value and 90 % interval of mutants such as A52G/L60V. Raises ConfigError."""
        if self.model is None:
            raise ConfigError("nothing was measured, so no value can be predicted")
        value, half = self.model.predict([*map(self.positions.read, mutants)])
        return [*zip(value.tolist(), (value - half).tolist(), (value + half).tolist())]


def rank_mutants(
    structure,
    measured: Mapping[str, float] | Iterable[tuple[str, float]] = (),
    chain: Sequence[str] | None = None,
    *,
    lower_is_better: bool = False,
    shift: int = 0,
    checkpoint: str | Path | None = None,
    batch: int = 96,
    per_position: int = 2,
    positions: str = "",
    not_positions: str = "",
    types: str = ONE_LETTER,
    not_types: str = "",
    features: PositionFeatures | None = None,
) -> Ranking:
    """Rank all single mutants of a structure, by measured mutants if there are any.

    Args:
        structure: a path, or what `read_structure` takes or gives.
        measured: values by mutation: A52G, A:A52aG, A52G/L60V, WT. Pairs may repeat a mutation.
        chain: the chains that are mutated, by default the first; with each its copies, which have the same sequence.
            The others are surroundings.
        shift: added to the numbers of the mutations.
        checkpoint: an encoder of your own, with a head for residue types, in place of both bundled ones.
        batch: size of the next batch; of a position at most `per_position`.
        positions, not_positions: those of the next batch, by the structure's numbers: "5-60,80". A chain's first Met
            stays unless it is named here.
        types, not_types: the new types of the next batch: "AVIL".
        features: those of an earlier Ranking of these chains by these encoders, which spare the minute for them.

    Raises StructureError, and ConfigError for mutations that do not fit the structure.
    """
    # What may be mutated, what was measured, and what the encoders expect.
    if min(batch, per_position) < 1:
        raise ConfigError("the next batch must have one mutant at least, and one of a position (--per-position)")
    if not isinstance(structure, Structure):
        structure = read_structure(structure)
    numbering = Positions.of(structure, chain)
    places = numbering.wanted(positions, not_positions)
    new_types = {*types.upper()} - {*not_types.upper()}
    if not new_types <= {*ONE_LETTER}:
        raise ConfigError(f"{types!r} are no types like AVIL")
    known, notes = read_measurements(numbering, measured, shift)
    encoders = BUNDLED if checkpoint is None else [str(checkpoint)]
    features = features or features_of(structure, numbering.residues, encoders)

    # The higher the score, the better. Without a model it is that of encoders and burial.
    singles = [(Mutation(i, new),) for i in range(len(numbering.wild)) for new in range(20)]
    columns = {"mutation": np.array([numbering.name(single) for single in singles])}
    effects = features.ranking
    score = effects.ravel()
    model = fit(features, known, -1 if lower_is_better else 1)
    if model:
        level, _ = model.predict([()])
        value, half = model.predict(singles)
        effects = (value - level).reshape(-1, 20)
        score = model.sign * value
        columns |= {"predicted": value, "low": value - half, "high": value + half}
    columns["ranking"] = features.ranking.ravel()
    columns["log_odds"] = features.odds.mean(axis=0).ravel()
    columns["neighbours"] = np.repeat(features.neighbours[:, 1].astype(int), 20)

    # A row for every mutant that was not measured, the best first.
    own = np.eye(20, dtype=bool)[features.wild]
    is_new = ~own.ravel() & [single not in known for single in singles]
    order = np.argsort(-score, kind="stable")
    order = order[is_new[order]]
    rows = [{title: column[x].item() for title, column in columns.items()} for x in order]

    # The next batch takes a few of each position.
    chosen = []
    taken = Counter()
    for x, row in zip(order, rows):
        if x // 20 in places and ONE_LETTER[x % 20] in new_types and taken[x // 20] < per_position:
            taken[x // 20] += 1
            chosen.append(row)
    if rows and not chosen:
        raise ConfigError("no mutant is left for the next batch: all that are wanted were measured")
    return Ranking(
        positions=numbering,
        effects=np.where(own, 0, effects),
        rows=rows,
        next=chosen[:batch],
        measured={numbering.name(mutant): float(np.mean(values)) for mutant, values in known.items()},
        model=model,
        trust=trust.trust(model) if model else None,
        notes=notes,
        features=features,
    )


# ---- measurements ----------------------------------------------------------------------------------------------------


def read_measurements(
    positions: Positions, measured: Mapping[str, float] | Iterable, shift: int
) -> tuple[dict[Mutant, list[float]], list[str]]:
    """All values of every mutant, and notes on what was measured.

    Raises ConfigError for mutations that do not fit, and for mutants that all have one value.
    """
    values, notes = values_of(positions, measured, shift)
    variances = [np.var(x, ddof=1) for x in values.values() if len(x) > 1]
    if variances:
        scatter = np.sqrt(np.mean(variances))
        notes.append(f"{len(variances)} mutants were measured more than once, with a scatter of {scatter:.3g}")
    if shift:
        notes.append(f"results have the structure's numbers: {shift:+} to the table's")
    of_mutants = [np.mean(x) for mutant, x in values.items() if mutant]
    if len(of_mutants) > 1 and not np.ptp(of_mutants):
        raise ConfigError(f"all mutants have the value {of_mutants[0]:g}: nothing can be learned from them")
    return values, notes


def values_of(
    positions: Positions, measured: Mapping[str, float] | Iterable, shift: int
) -> tuple[dict[Mutant, list[float]], list[str]]:
    """All values of every mutant that was measured (nan was not), and notes. Raises ConfigError.

    What is no substitution, or of a residue that the structure lacks, is left out.
    """
    pairs = [*(measured.items() if isinstance(measured, Mapping) else measured)]
    values = defaultdict(list)
    left_out = []
    synonymous = []
    wrong = []
    for text, value in pairs:
        if not isinstance(text, str) or not isinstance(value, Real) or np.isinf(value):
            raise ConfigError(f"{text!r}: {value!r} is no measured mutant: its name is text, its value a number or nan")
        try:
            mutant = positions.read(text, shift)
        except NoSubstitution:
            left_out.append(text)
            continue
        except ConfigError as error:
            wrong.append(str(error))
            continue
        if not mutant and text.strip().lower() not in WILD_TYPE:
            synonymous.append(text)
        if not np.isnan(value):
            values[mutant].append(value)

    # What does not fit, and what there is to say.
    fits = positions.other_shift([text for text, _ in pairs], shift) if wrong or not values else ""
    if wrong:
        advice = fits or "--shift N adds N to their numbers"
        raise ConfigError(f"{len(wrong)} mutations do not fit the structure: {first_three(wrong)}; {advice}")
    notes = []
    if left_out:
        those = f"no substitutions of residues in the structure, such as A52G or B:A52G: {first_three(left_out)}"
        notes.append(f"{len(left_out)} left out, {those}")
        if not values:
            raise ConfigError(f"nothing to learn from: {notes[0]}; {fits or '--name-column says which names them'}")
    if synonymous:
        notes.append(f"{len(synonymous)} synonymous, read as WT: {first_three(synonymous)}")
    return values, notes


def fit(features: PositionFeatures, known: Mapping[Mutant, list[float]], sign: int) -> GaussianProcess | None:
    """The model of the means of what was measured; None of fewer than two mutants."""
    if len({*known} - {()}) < 2:
        return None
    y = np.array([np.mean(values) for values in known.values()])
    prior = MutantPrior(features, [*known], [*map(len, known.values())])
    return GaussianProcess(prior, y, sign)


# ---- what is known of every position ---------------------------------------------------------------------------------


def features_of(structure: Structure, residues: list[list[int]], encoders: Sequence[str]) -> PositionFeatures:
    """The features and log-odds of P positions by K encoders (a minute): (K, P, d) and (K, P, 20). Raises ConfigError.

    `residues` are the rows of each position in the structure: of its chain, and of the copies of this chain.
    """
    protein = structure.protein
    first = [copies[0] for copies in residues]
    with progress(total=len(encoders) * len(residues), unit="residue") as bar:
        odds = [log_odds(name, protein, residues, bar.update).numpy() for name in encoders]
    features = [load_encoder(name, "cpu").embed(structure).per_residue[first] for name in encoders]

    # Residues within 8 and 12 angstrom.
    ca = protein.alpha_carbons().pos
    distances = torch.cdist(ca[first], ca)
    neighbours = torch.stack([(distances < radius).sum(1) for radius in (8, 12)], dim=1)
    return PositionFeatures(
        wild=protein.residue_type[first].numpy(),
        neighbours=neighbours.double().numpy(),
        features=np.stack(features),
        odds=np.stack(odds),
    )
