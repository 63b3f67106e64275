"""How often does `siamdiff mutants` call a table better of which nothing can be learned? The size of its verdict.

    python -m benchmarks.mutant_sizes DATA STRUCTURE [--tables 400] [--out runs/mutant_sizes]
    python -m benchmarks.mutant_sizes --report [--out runs/mutant_sizes]

DATA is the folder of `benchmarks.ddg`; STRUCTURE is a file of one protein. Values of four kinds are dealt to the
mutants of five designs:

    noise      drawn for every mutant
    position   an effect of the position, and noise .3
    types      an effect of the new type, one of the position, and noise .3
    profiles   the values of a real position of 1PGA at another position, each at its type

Of noise and position nothing can be learned about new positions: every *better* is false. Of types and profiles it can
be learned which types are good. There, *better than another* is false if the model's rho is not above the other's at
positions that were not touched, where the truth is the effect of the new type (of profiles: its mean over positions).

A cell of which more than 3.5 % are false goes on to four times as many other tables, by the plan of the study.

An answer for every table goes to OUT, so that a run that was cut off goes on. Each verdict deals the values out 199
times (the command: 1,000): the test has the same size, as 5 of 200 and 25 of 1,000 are 2.5 %, and is four times faster.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.kept import files, rows_of
from siamdiff_min import read_structure
from siamdiff_min.downstream.metrics import spearman
from siamdiff_min.files import console
from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.tools.mutants.mutation_model import (
    GaussianProcess,
    Mutant,
    MutantPrior,
    Mutation,
    PositionFeatures,
    positions_of,
    standardised,
    summed,
)
from siamdiff_min.tools.mutants.mutation_names import Positions
from siamdiff_min.tools.mutants.ranking import BUNDLED, features_of
from siamdiff_min.tools.mutants.trust import FLOOR, MEAN, UNMEASURED, Comparison

DESIGNS = {"24": (24, 0), "96": (96, 0), "10x10": (10, 10), "8x12": (8, 12), "32x3": (32, 3)}  # positions, types each
KINDS = ("noise", "position", "types", "profiles")
NAMES = {MEAN: "chance", FLOOR: "types and burial", UNMEASURED: "no measurements"}
TABLES = 199  # of each verdict
ALIKE = 10  # tables of the same mutants: they share all matrices
DONOR = "1PGA"  # has the values of most types at most positions
SEED = 2026  # of the tables that count; a draft was tried with others
TABLES_EACH = 400  # of a cell
MOST_FALSE = 0.035  # of a cell
FEWEST_TYPES = 13  # at a position that gives its values: a design asks for 12


class Table(NamedTuple):
    """Values of mutants, and what is true of new types at positions that are not touched."""

    y: np.ndarray  # (n,)
    of_type: np.ndarray | None  # (20,)   None if nothing can be learned


def profiles_of(data: Path) -> list[dict[int, float]]:
    """Value by type (0 to 19) of every position with many types."""
    found = {}
    for row in rows_of(data / "train.tsv"):
        if row["structure"] == DONOR:
            found.setdefault(row["number"], {})[ONE_LETTER.index(row["mutant"])] = float(row["ddg"])
    return [profile for profile in found.values() if len(profile) >= FEWEST_TYPES]


def mean_of_types(profiles: list[dict[int, float]]) -> np.ndarray:
    """The effect of every type, less the mean of its position, over positions (20,)."""
    effects = np.full((len(profiles), 20), np.nan)
    for row, profile in enumerate(profiles):
        mean = np.mean([*profile.values()])
        for new, value in profile.items():
            effects[row, new] = value - mean
    found = np.full(20, np.nan)  # no position has Cys
    known = np.isfinite(effects).any(0)
    found[known] = np.nanmean(effects[:, known], axis=0)
    return found


def draw_mutants(design: str, allowed: list[list[int]], random: np.random.Generator) -> list[Mutant]:
    """Mutants of a design, of the types that are allowed at every position."""
    count, each = DESIGNS[design]
    if not each:
        every = [Mutation(position, new) for position, types in enumerate(allowed) for new in types]
        return [(every[i],) for i in random.choice(len(every), count, replace=False)]
    mutants = []
    for position in random.choice(len(allowed), count, replace=False).tolist():
        types = random.choice(allowed[position], each, replace=False)
        mutants += [(Mutation(position, int(new)),) for new in types]
    return mutants


def draw_tables(
    kind: str, design: str, features: PositionFeatures, profiles: list[dict], random: np.random.Generator
) -> tuple[list[Mutant], list[Table]]:
    """Mutants, and tables of their values."""
    size = len(features.wild)
    if kind == "profiles":
        donors = [profiles[i % len(profiles)] for i in random.permutation(size)]
        allowed = [[new for new in donor if new != own] for donor, own in zip(donors, features.wild)]
        mutants = draw_mutants(design, allowed, random)
        y = np.array([donors[mutation.position][mutation.new] for (mutation,) in mutants])
        return mutants, [Table(y, mean_of_types(profiles))]

    allowed = [[new for new in range(20) if new != own] for own in features.wild]
    mutants = draw_mutants(design, allowed, random)
    position = [mutation.position for (mutation,) in mutants]
    new = [mutation.new for (mutation,) in mutants]
    tables = []
    for _ in range(ALIKE):
        noise = random.normal(size=len(mutants))
        of_position = random.normal(size=size)
        of_type = random.normal(size=20)
        if kind == "noise":
            tables.append(Table(noise, None))
        elif kind == "position":
            tables.append(Table(of_position[position] + 0.3 * noise, None))
        else:
            tables.append(Table(of_position[position] + of_type[new] + 0.3 * noise, of_type))
    return mutants, tables


def false_verdicts(against: Comparison, table: Table) -> dict[str, tuple[bool, bool]]:
    """Name -> whether the model is called better than it, and whether that is false."""
    said = {}
    for name in NAMES:  # chance is the first: who is not better than chance is better than nobody
        said[name] = said.get(MEAN, True) and against.gain(name, table.y).is_more
    if table.of_type is None or not said[MEAN]:
        return {name: (better, better) for name, better in said.items()}

    # The truth at positions that were not touched, of the types that have one.
    features = against.model.features
    touched = frozenset().union(*map(positions_of, against.model.mutants))
    new = []
    for position in sorted({*range(len(features.wild))} - touched):
        types = [t for t in range(20) if t != features.wild[position] and np.isfinite(table.of_type[t])]
        new += [(Mutation(position, t),) for t in types]
    truth = np.array([table.of_type[mutation.new] for (mutation,) in new])
    predicted, _ = GaussianProcess(against.model, table.y).predict(new)
    of_floor, _ = GaussianProcess(against.floor, table.y).predict(new)

    # The ranking takes the direction in which the measured values rise with it.
    rise = np.sign(against.scores[UNMEASURED] @ standardised(table.y))
    by_ranking = rise * summed(features.ranking, new)
    others = {MEAN: 0, FLOOR: spearman(of_floor, truth), UNMEASURED: spearman(by_ranking, truth)}
    rho = spearman(predicted, truth)
    return {name: (better, better and rho <= others[name]) for name, better in said.items()}


def answers(
    kind: str, design: str, features: PositionFeatures, profiles: list[dict], first: int
) -> Iterator[list[dict]]:
    """Without end: the verdicts of one table after the other, beginning with the mutants number `first`."""
    number = first
    while True:
        random = np.random.default_rng([SEED, number, KINDS.index(kind), [*DESIGNS].index(design)])
        mutants, tables = draw_tables(kind, design, features, profiles, random)
        against = Comparison(MutantPrior(features, mutants), TABLES)
        yield [false_verdicts(against, table) for table in tables]
        number += 1


def measure(data: Path, structure: Path, tables: int, out: Path) -> None:
    """Go on with every cell that has fewer tables, in turn, so that all grow together."""
    parsed = read_structure(structure)
    name = structure.name.split(".")[0]
    out.mkdir(parents=True, exist_ok=True)
    features = features_of(parsed, Positions.of(parsed, None).residues, BUNDLED)
    profiles = profiles_of(data)
    path = out / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    while True:
        short = []
        for kind in KINDS:
            for design in DESIGNS:
                found = answers_of(kept, kind, design)
                false = np.reshape(found[:tables], (-1, len(NAMES), 2))[..., 1].mean(0)
                goal = 5 * tables if len(found) >= tables and false.max() > MOST_FALSE else tables
                if len(found) < goal:
                    short.append((kind, design))
        if not short:
            return
        for kind, design in short:
            cell = kept.setdefault(f"{kind} {design}", [])
            source = answers(kind, design, features, profiles, len(cell))
            for _ in range(1 if kind != "profiles" else ALIKE):
                cell.append([[*map(list, verdicts.values())] for verdicts in next(source)])
        path.with_suffix(".new").write_text(json.dumps(kept, default=bool))
        path.with_suffix(".new").replace(path)


def answers_of(kept: dict[str, list], kind: str, design: str) -> list:
    """The answers for all tables of a cell (T, comparisons, 2)."""
    return [table for alike in kept.get(f"{kind} {design}", []) for table in alike]


def report(out: Path, tables: int = TABLES_EACH) -> list[str]:
    """A row for each kind of values and structure: % false of each verdict; and in brackets % said.

    Of cells that went on, what the other tables say stands behind.
    """
    lines = []
    for column, another in enumerate(NAMES.values()):
        lines += [f"### better than {another}", "", f"| values | structure | {' | '.join(DESIGNS)} | all |"]
        lines.append("|---" * (len(DESIGNS) + 3) + "|")
        for kind in KINDS:
            for name, content in files(out).items():
                if not name.endswith(".json"):
                    continue
                kept = json.loads(content)
                every = []
                cells = []
                for design in DESIGNS:
                    found = [table[column] for table in answers_of(kept, kind, design)]
                    every += found[:tables]
                    cells.append("; ".join(filter(None, (as_cell(found[:tables]), as_cell(found[tables:])))))
                lines.append(f"| {kind} | {name.removesuffix('.json')} | {' | '.join(cells)} | {as_cell(every)} |")
        lines.append("")
    return lines


def as_cell(found: list[tuple[bool, bool]]) -> str:
    """% false, % said, of how many."""
    if not found:
        return ""
    said, false = 100 * np.mean(found, axis=0)
    return f"{false:.1f} ({said:.1f}) of {len(found)}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutant_sizes", description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("structure", type=Path, nargs="?")
    parser.add_argument("--tables", type=int, default=TABLES_EACH, help="of every cell (default: 400)")
    parser.add_argument("--out", type=Path, default=Path("runs/mutant_sizes"))
    parser.add_argument("--report", action="store_true", help="print the tables")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if not args.report:
        measure(args.data, args.structure, args.tables, args.out)
    print(*report(args.out, args.tables), sep="\n")


if __name__ == "__main__":
    with console():
        main()
