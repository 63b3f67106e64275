"""All single mutants of a structure, the best first: by what encoders expect, and by measured mutants if there are any.

`mutation_model.py` is the model. Here a structure and measurements become its input, and its predictions become rows.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..encoders.weights import find_weights, load_encoder
from ..files import ConfigError, checksum, replacing
from ..machine import progress
from ..reading.parse import read_structure
from ..reading.structure import Structure
from . import mutation_model
from .mutation_model import AROUND, FEWEST, MODEL, Effects, Mutant, Sites, Trust, decode, positions
from .mutation_names import Places

VERDICTS = {  # is the model better than chance at new positions?
    True: "better than chance: worth using at new positions",
    False: "not told apart from chance: do not use it at new positions",
    None: f"too few to say: it takes {FEWEST[0]} mutants at {FEWEST[1]} positions",
}


@dataclass(frozen=True, eq=False)
class Ranking:
    """All single mutants of a structure, the best first, and how far to trust them."""

    places: Places
    effects: np.ndarray  # (R, 20) of every mutation on the value; without measurements, its score
    rows: list[dict]  # every single mutant that has not been measured
    next: list[dict]  # the rows to make next
    measured: dict[str, float]  # mean over repeats
    model: Effects | None  # None without measurements
    trust: Trust | None  # None if they are too few
    notes: list[str]
    sign: int  # -1 if lower is better

    def __repr__(self) -> str:
        return f"Ranking({len(self.rows)} mutants, {len(self.measured)} measured: {self.verdict})"

    @property
    def better(self) -> bool | None:
        """Whether the model is better than chance at new positions; None if too few were measured to say."""
        if self.trust is None:
            return None
        _, low, _ = self.trust.rho[MODEL]
        return low > 0

    @property
    def verdict(self) -> str:
        """Whether to believe the predictions, in a few words."""
        if not self.measured:
            return "nothing measured: ranked by log-odds and burial"
        return VERDICTS[self.better]

    @property
    def sentences(self) -> list[str]:
        """The verdict, and what there is to say about the measurements and the model."""
        found = [self.verdict]
        if self.measured:
            found.append(f"{len(self.measured)} mutants measured")
        found += self.notes
        if self.trust:
            found += self.trust.sentences
        return found

    def predict(self, *mutants: str) -> list[tuple[float, float, float]]:
        """Value and 90 % interval of mutants such as A52G/L60V. Raises ConfigError."""
        if self.model is None:
            raise ConfigError("nothing was measured, so no value can be predicted")
        values, halves = self.model.predict(self.places.read(mutants))
        values = self.sign * values
        return [(value, value - half, value + half) for value, half in zip(values.tolist(), halves.tolist())]


def rank_mutants(
    structure,
    measured: Mapping[str, float] | Iterable[tuple[str, float]] = (),
    chain: Sequence[str] | None = None,
    batch: int = 96,
    per_position: int = 2,
    explore: float = 0.0,
    lower_is_better: bool = False,
    shift: int = 0,
    kept: Path | None = None,
) -> Ranking:
    """Rank all single mutants of a structure, by measured mutants if there are any.

    Args:
        structure: a path, or what `read_structure` takes or gives.
        measured: values by mutation: A52G, A:A52aG, A52G/L60V, WT. Pairs may repeat a mutation.
        chain: the chains that are mutated, by default the first; the others are surroundings.
        batch: size of the next batch; of a position at most `per_position`.
        explore: weight of half the interval's width: 0 takes the best predictions, 1 the highest upper ends.
        shift: added to the numbers of the mutations.
        kept: a file that keeps log-odds for the next call.

    Raises StructureError, and ConfigError for mutations that do not fit the structure.
    """
    # What may be mutated, what was measured, and what the encoders expect (a minute, or the file `kept`).
    if not isinstance(structure, Structure):
        structure = read_structure(structure)
    places = Places.of(structure, chain)
    pairs = [*(measured.items() if isinstance(measured, Mapping) else measured)]
    known, notes = means_of(places, pairs, shift)
    sites = known_sites(structure, places.rows, kept)

    # The model takes measurements of which more is better.
    sign = 1
    model = None
    trusted = None
    if len(known) > 1:
        sign = -1 if lower_is_better else 1
        y = sign * np.array([*known.values()])
        model = Effects(sites, [*known], y)
        trusted = mutation_model.trust(model, y)

    # The higher the score, the better. Without a model it is that of encoders and burial.
    score = sites.ranking
    effects = sites.ranking
    if model:
        (wild_type,), _ = model.predict([()])
        value, half = model.predict([(x,) for x in range(len(score))])
        score = value + explore * half
        effects = sign * (value - wild_type)
        value = sign * value

    # A row for every mutant that was not measured, the best first. The next batch takes a few of each position.
    odds = sites.odds.mean(axis=0).ravel()
    distances = nearest_measured(structure.protein.alpha_carbons().pos[places.rows], places, known)
    rows = []
    chosen = []
    taken = Counter()  # residue -> rows in the next batch, and those that found no place there
    for x in np.argsort(-score, kind="stable").tolist():
        residue, new = decode(x)
        if new == sites.wild[residue] or (x,) in known:
            continue
        row = {"mutation": places.name((x,))}
        # What the model predicts, with its 90 % interval.
        if model:
            row["predicted"] = float(value[x])
            row["low"] = float(value[x] - half[x])
            row["high"] = float(value[x] + half[x])
        # What it is without measurements, and how far from them.
        row["ranking"] = float(sites.ranking[x])
        row["log_odds"] = float(odds[x])
        row["neighbours"] = int(sites.neighbours[residue, 1])
        if distances:
            row["nearest_measured"], row["distance"] = distances[residue]
        rows.append(row)
        taken[residue] += 1
        if taken[residue] <= per_position:
            chosen.append(row)

    return Ranking(
        places=places,
        effects=np.where(np.eye(20)[sites.wild], 0, effects.reshape(-1, 20)),
        rows=rows,
        next=chosen[:batch],
        measured={places.name(mutant): mean for mutant, mean in known.items()},
        model=model,
        trust=trusted,
        notes=notes,
        sign=sign,
    )


def means_of(places: Places, pairs: Sequence[tuple[str, float]], shift: int) -> tuple[dict[Mutant, float], list[str]]:
    """The mean value of every mutant, without those that were not measured (nan); and what there is to say of them."""
    mutants = places.read([text for text, _ in pairs], shift)
    values = defaultdict(list)
    for mutant, (_, value) in zip(mutants, pairs):
        if not np.isnan(value):
            values[mutant].append(value)

    notes = []
    repeats = [x for x in values.values() if len(x) > 1]
    if repeats:
        scatter = np.sqrt(np.mean([np.var(x, ddof=1) for x in repeats]))
        notes.append(f"{len(repeats)} mutants were measured more than once, with a scatter of {scatter:.3g}")
    if shift:
        notes.append(f"results have the structure's numbers: {shift:+} to the table's")
    return {mutant: float(np.mean(x)) for mutant, x in values.items()}, notes


def nearest_measured(ca: Tensor, places: Places, mutants: Iterable[Mutant]) -> list[tuple[str, float]]:
    """For every residue the nearest one that mutants change, and how far apart their CA (R, 3) are; [] without any."""
    touched = sorted({residue for mutant in mutants for residue in positions(mutant)})
    if not touched:
        return []
    found = []
    for own in ca:
        distance, number = (ca[touched] - own).norm(dim=-1).min(dim=0)
        nearest = touched[number]
        found.append((places.label(nearest, places.wild[nearest]), float(distance)))
    return found


# ---- what is known of every residue ----------------------------------------------------------------------------------


def known_sites(structure: Structure, rows: list[int], kept: Path | None = None) -> Sites:
    """The features and log-odds of residues, from the file `kept` if it is of the same structure and encoders."""
    key = key_of(structure, rows)
    known = {}
    if kept and kept.exists():
        with np.load(kept, allow_pickle=False) as file:
            if str(file["key"]) == key:
                known = {"features": file["features"], "odds": file["odds"]}
    if not known:
        known = expected(structure, rows)
        if kept:
            with replacing(kept) as file:
                np.savez(file, key=np.array(key), **known)

    protein = structure.protein
    ca = protein.alpha_carbons().pos
    distances = torch.cdist(ca[rows], ca)
    neighbours = [(distances < radius).sum(1).double().numpy() for radius in (8, 12)]
    return Sites(protein.residue_type[rows].numpy(), np.stack(neighbours, axis=1), **known)


def key_of(structure: Structure, rows: list[int]) -> str:
    """A hash of all that decides on features and log-odds: the atoms, the residues that are asked for, the encoders."""
    protein = structure.protein
    digest = hashlib.sha256()
    for tensor in (protein.pos, protein.atom_name, protein.residue_type, protein.residue_index, torch.tensor(rows)):
        digest.update(tensor.numpy().tobytes())
    for name in AROUND:
        digest.update(checksum(find_weights(name)).encode())
    return digest.hexdigest()


def expected(structure: Structure, rows: list[int]) -> dict[str, np.ndarray]:
    """The features (2, R, d) of both encoders, and the log-odds (2, R, 20) of every type. It takes a minute."""
    features = [load_encoder(name, "cpu").embed(structure).per_residue[rows] for name in AROUND]
    with progress(total=len(AROUND) * len(rows), unit="residue") as bar:
        odds = [mutation_model.log_odds(name, structure.protein, rows, bar.update) for name in AROUND]
    return {"features": np.stack(features), "odds": np.stack(odds)}
