"""All single mutants of a structure, the best first: by what encoders expect, and by measured mutants if there are any.

`mutation_model.py` is the model. Here a structure and measurements become its input, and its predictions become rows.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...encoders.weights import find_weights, load_encoder
from ...files import ConfigError, checksum, first_three, replacing
from ...machine import progress
from ...reading.parse import read_structure
from ...reading.structure import Structure
from ..table.values import odd_values
from . import trust
from .log_odds import log_odds
from .mutation_model import GaussianProcess, Mutant, MutantPrior, Mutation, PositionFeatures, positions_of
from .mutation_names import Positions, Wishes, is_synonymous
from .trust import Trust

BUNDLED = "siamdiff-residue", "siamdiff-atom"
BETTER = "better than chance: worth using at new positions"
NOT_BETTER = "not told apart from chance: do not use it at new positions"
ONE_SIDED = 0.75  # share of the next batch that has one of 4 types: about 0.2 in a random one


class Reference(NamedTuple):
    """What maps are relative to: the wild type if it is known, else the mean of what was measured."""

    value: float
    name: str
    sentence: str  # about the wild type


@dataclass(frozen=True, eq=False)
class Ranking:
    """All single mutants of a structure, the best first, and how far to trust them."""

    positions: Positions
    effects: np.ndarray  # (P, 20) of every mutation on the value; without measurements, its score
    on_map: np.ndarray  # (P, 20) how much better than the reference it is; without measurements, its score
    rows: list[dict]  # every single mutant that has not been measured
    next: list[dict]  # the rows to make next
    measured: dict[str, float]  # mean over repeats
    model: GaussianProcess | None  # None without measurements
    trust: Trust | None  # None if they are too few
    notes: list[str]  # on the measurements
    reference: Reference | None  # None without measurements
    encoders: Sequence[str]  # whose features and log-odds these are

    def __repr__(self) -> str:
        return f"Ranking({len(self.rows)} mutants, {len(self.measured)} measured: {self.verdict})"

    @property
    def better(self) -> bool | None:
        """Whether the model is better than chance at new positions; None if too few were measured to say."""
        return self.trust.better() if self.trust else None

    @property
    def verdict(self) -> str:
        """Whether to believe the predictions, in a few words."""
        if not self.measured:
            return "nothing measured: ranked by log-odds and burial"
        if self.trust is None:
            return trust.too_few(self.model.prior.mutants if self.model else [])
        return BETTER if self.better else NOT_BETTER

    @property
    def sentences(self) -> list[str]:
        """The verdict, and what there is to say about the measurements and the model."""
        count = len({*self.measured} - {"WT"})
        found = [self.verdict, *([f"{count} mutants measured"] if count else []), *self.notes]
        if self.reference:
            found.append(self.reference.sentence)
        if self.trust:
            found += self.trust.sentences
        return found + one_sided(self.next)

    def predict(self, *mutants: str) -> list[tuple[float, float, float]]:
        """Value and 90 % interval of mutants such as A52G/L60V. Raises ConfigError."""
        if self.model is None:
            raise ConfigError("nothing was measured, so no value can be predicted")
        value, half = self.model.predict(self.positions.read(mutants))
        return [*zip(value.tolist(), (value - half).tolist(), (value + half).tolist())]


class Measurement(NamedTuple):
    """What is known of one mutant."""

    value: float  # mean over repeats
    repeats: float  # infinite if it is known for certain


def rank_mutants(
    structure,
    measured: Mapping[str, float] | Iterable[tuple[str, float]] = (),
    chain: Sequence[str] | None = None,
    lower_is_better: bool = False,
    shift: int = 0,
    kept: Path | None = None,
    wild_type: float | None = None,
    checkpoint: str | Path | None = None,
    **wishes,
) -> Ranking:
    """Rank all single mutants of a structure, by measured mutants if there are any.

    The wishes are batch, per_position, explore, positions, not_positions, types, not_types.

    Args:
        structure: a path, or what `read_structure` takes or gives.
        measured: values by mutation: A52G, A:A52aG, A52G/L60V, WT. Pairs may repeat a mutation.
        chain: the chains that are mutated, by default the first; with each its copies, which have the same sequence.
            The others are surroundings.
        shift: added to the numbers of the mutations.
        kept: a file that keeps log-odds for the next call.
        wild_type: its value, if it is known for certain: 0 if values are differences to it.
        checkpoint: an encoder of your own, with a head for residue types, in place of both bundled ones.
        batch: size of the next batch (96); of a position at most `per_position` (2).
        explore: weight of half the interval's width: 0 takes the best predictions (default), 1 the highest upper ends.
        positions, not_positions: those of the next batch, by the structure's numbers: "5-60,80". A chain's first Met
            stays unless it is named here.
        types, not_types: the new types of the next batch: "AVIL".

    Raises StructureError, and ConfigError for mutations that do not fit the structure.
    """
    # What may be mutated, what was measured, and what the encoders expect (a minute, or the file `kept`).
    wanted = Wishes(**wishes)
    if wild_type is not None and not is_number(wild_type):
        raise ConfigError(f"the value of the wild type must be a number, not {wild_type!r}")
    if not isinstance(structure, Structure):
        structure = read_structure(structure)
    numbering = Positions.of(structure, chain)
    allowed = wanted.allowed(numbering)
    known, notes = read_measurements(numbering, measured, shift, wild_type)
    encoders = BUNDLED if checkpoint is None else (str(checkpoint),)
    features = known_features(structure, numbering.residues, kept, encoders)

    # The higher the score, the better. Without a model it is that of encoders and burial.
    sign = -1 if lower_is_better else 1
    model = fit(features, known, wild_type, sign)
    singles = [(Mutation(i, new),) for i in range(len(numbering.wild)) for new in range(20)]
    own = np.eye(20, dtype=bool)[features.wild]
    score = features.ranking.ravel()
    effects = np.where(own, 0, features.ranking)
    on_map = effects
    columns = {"mutation": np.array([numbering.name(single) for single in singles])}
    reference = None
    if model:
        reference = reference_of(model, known, wild_type)
        level, _ = model.predict([()])
        value, half = model.predict(singles)
        score = sign * value + wanted.explore * half
        effects = np.where(own, 0, (value - level).reshape(-1, 20))
        on_map = sign * (level + effects - reference.value)
        columns |= {"predicted": value, "low": value - half, "high": value + half}

    # What each is without measurements, and how far from them.
    columns["ranking"] = features.ranking.ravel()
    columns["log_odds"] = features.odds.mean(axis=0).ravel()
    columns["neighbours"] = np.repeat(features.neighbours[:, 1].astype(int), 20)
    columns |= nearest_measured(structure.protein.alpha_carbons().pos, numbering, known)

    # A row for every mutant that was not measured, the best first.
    is_new = ~own.ravel() & [single not in known for single in singles]
    order = np.argsort(-score, kind="stable")
    order = order[is_new[order]]
    cells = [column[order].tolist() for column in columns.values()]
    rows = [dict(zip(columns, of_row)) for of_row in zip(*cells)]

    # The next batch takes a few of each position.
    chosen = []
    taken = Counter()
    for x, row in zip(order, rows):
        position = x // 20
        if allowed.flat[x] and taken[position] < wanted.per_position:
            taken[position] += 1
            chosen.append(row)
    if rows and not chosen:
        raise ConfigError("no mutant is left for the next batch: all that are wanted were measured")
    return Ranking(
        positions=numbering,
        effects=effects,
        on_map=on_map,
        rows=rows,
        next=chosen[: wanted.batch],
        measured={numbering.name(mutant): found.value for mutant, found in known.items()},
        model=model,
        trust=trust.trust(model) if model else None,
        notes=notes,
        reference=reference,
        encoders=encoders,
    )


# ---- measurements ----------------------------------------------------------------------------------------------------


def read_measurements(
    positions: Positions, measured: Mapping[str, float] | Iterable, shift: int, wild_type: float | None = None
) -> tuple[dict[Mutant, Measurement], list[str]]:
    """The mean of every mutant and its repeats, without those that were not measured (nan); and what is odd about them.

    Odd may be a `wild_type` too, that is known for certain. Raises ConfigError for mutations that do not fit, and for
    mutants that all have one value.
    """
    # What is no substitution, or of a residue that the structure lacks, is left out.
    names = []
    y = []
    aside = defaultdict(list)  # what is said of some -> their names
    for text, value in measured.items() if isinstance(measured, Mapping) else measured:
        if not isinstance(text, str) or not (is_number(value) or value != value):  # nan was not measured
            raise ConfigError(f"{text!r}: {value!r} is no measured mutant: its name is text, its value a number or nan")
        kind = positions.left_out(text, shift)
        if kind:
            aside[f"left out, {kind}"].append(text)
            continue
        if is_synonymous(text):
            aside["synonymous, read as WT"].append(text)
        names.append(text)
        y.append(value)
    notes = [f"{len(texts)} {said}: {first_three([*dict.fromkeys(texts)])}" for said, texts in aside.items()]

    # Repeats come together.
    values = defaultdict(list)
    for mutant, value in zip(positions.read(names, shift), y):
        if not np.isnan(value):
            values[mutant].append(value)
    variances = [np.var(x, ddof=1) for x in values.values() if len(x) > 1]
    if variances:
        scatter = np.sqrt(np.mean(variances))
        notes.append(f"{len(variances)} mutants were measured more than once, with a scatter of {scatter:.3g}")
    if shift:
        notes.append(f"results have the structure's numbers: {shift:+} to the table's")

    # Values that are far from the others, or all the same.
    if wild_type is not None:
        names.append("--wild-type")
        y.append(wild_type)
    there = ~np.isnan(y)
    notes += odd_values(np.array(names)[there], np.array(y)[there])
    known = {mutant: Measurement(float(np.mean(x)), len(x)) for mutant, x in values.items()}
    of_mutants = [found.value for mutant, found in known.items() if mutant]
    if len(of_mutants) > 1 and len({*of_mutants}) == 1:
        raise ConfigError(f"all mutants have the value {of_mutants[0]:g}: nothing can be learned from them")
    return known, notes


def is_number(value) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, Real) and bool(np.isfinite(value))


# ---- the wild type ---------------------------------------------------------------------------------------------------


def fit(
    features: PositionFeatures, known: Mapping[Mutant, Measurement], wild_type: float | None, sign: int
) -> GaussianProcess | None:
    """The model of what was measured; None of fewer than two mutants.

    A wild type that is known for certain is a value too.
    """
    if len({*known} - {()}) < 2:
        return None
    if wild_type is not None:
        known = {**known, (): Measurement(wild_type, np.inf)}
    y, repeats = np.array([*known.values()]).T
    return GaussianProcess(MutantPrior(features, [*known], repeats=repeats), y, sign)


def reference_of(model: GaussianProcess, known: Mapping[Mutant, Measurement], wild_type: float | None) -> Reference:
    """What maps are relative to."""
    if wild_type is not None:
        rows = f"; the mean of its rows, {known[()].value:.3g}, is not used" if () in known else ""
        return Reference(wild_type, "the wild type", f"wild type {wild_type:g}, as given{rows}")
    (value,), (half,) = model.predict([()], noise=False)
    found = f"wild type {value:.3g} ({value - half:.3g} to {value + half:.3g})"
    if () in known:
        repeats = known[()].repeats
        times = "once" if repeats == 1 else f"{repeats} times"
        return Reference(value, "the wild type", f"{found}, measured {times}")
    mean = np.mean([measurement.value for measurement in known.values()])
    name = "the mean of what was measured"
    return Reference(mean, name, f"{found}: it was not measured, so maps are relative to {name}, {mean:.3g}")


# ---- the next batch --------------------------------------------------------------------------------------------------


def one_sided(rows: Sequence[dict]) -> list[str]:
    """A sentence if four types make up most of the next batch."""
    letters, counts = zip(*Counter(row["mutation"][-1] for row in rows).most_common(4))
    total = sum(counts)
    if len(rows) < 24 or total < ONE_SIDED * len(rows):
        return []
    return [f"{total} of {len(rows)} in the next batch are {', '.join(letters)}: --not-types leaves types out"]


def nearest_measured(ca: Tensor, positions: Positions, mutants: Iterable[Mutant]) -> dict[str, np.ndarray]:
    """Two columns: of every mutation the nearest position that mutants change, and the distance of their `ca`."""
    touched = sorted(frozenset().union(*map(positions_of, mutants)))
    if not touched:
        return {}
    ca = ca[[copies[0] for copies in positions.residues]]
    distance, number = (ca[touched] - ca[:, None]).norm(dim=-1).min(dim=1)
    names = np.array([positions.label(i, positions.wild[i]) for i in touched])
    return {"nearest_measured": names[number].repeat(20), "distance": distance.numpy().repeat(20)}


# ---- what is known of every position ---------------------------------------------------------------------------------


def known_features(
    structure: Structure, residues: list[list[int]], kept: Path | None = None, encoders: Sequence[str] = BUNDLED
) -> PositionFeatures:
    """The features and log-odds of positions: of K encoders (K, P, d) and (K, P, 20).

    `residues` are the rows of each position in the structure: of its chain, and of the copies of this chain. It takes a
    minute, or the file `kept` has them of the same structure and encoders. Raises ConfigError.
    """
    protein = structure.protein
    first = [copies[0] for copies in residues]

    # All that decides on features and log-odds: the atoms, the residues that are asked for, the encoders.
    rows = torch.tensor([row for copies in residues for row in copies])
    arrays = protein.pos, protein.atom_name, protein.residue_type, protein.residue_index, rows
    parts = [array.numpy().tobytes() for array in arrays]
    parts += [checksum(find_weights(name)).encode() for name in encoders]
    key = hashlib.sha256(b"".join(parts)).hexdigest()

    found = {}
    if kept and kept.exists():
        with np.load(kept, allow_pickle=False) as file:
            found = {name: file[name] for name in ("key", "features", "odds")}
    if str(found.pop("key", "")) != key:
        with progress(total=len(encoders) * len(residues), unit="residue") as bar:
            odds = [log_odds(name, protein, residues, bar.update).numpy() for name in encoders]
        features = [load_encoder(name, "cpu").embed(structure).per_residue[first] for name in encoders]
        found = {"features": np.stack(features), "odds": np.stack(odds)}
        if kept:
            with replacing(kept) as file:
                np.savez(file, key=np.array(key), **found)

    ca = protein.alpha_carbons().pos
    distances = torch.cdist(ca[first], ca)
    neighbours = torch.stack([(distances < radius).sum(1) for radius in (8, 12)], dim=1)
    return PositionFeatures(protein.residue_type[first].numpy(), neighbours.double().numpy(), **found)
