"""From one structure and a few measured mutants to the next batch: `siamdiff mutants 1abc.cif --measured tested.csv`.

In Python, `siamdiff_min.rank_mutants("1abc.cif", {"A52G": 1.3, ...})`. `ranking.py` ranks; here are the command and its
files (docs/mutants.md).
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ...files import printable, replacing, write_file, write_rows
from ...protein.constants import ONE_LETTER
from ...reading.parse import read_structure
from ...reading.structure import left_out
from ..table.labels import read_spreadsheet, read_table
from .mutation_model import side_by_side
from .mutation_names import Positions
from .ranking import Ranking, rank_mutants


def run(args: Namespace) -> int:
    """Rank the mutants that `options.mutants` asks for, for one property after the other."""
    properties = measurements(args)
    structure = read_structure(args.structure)
    chains = structure.chain_names
    if sum(structure.dropped.values()):
        print(printable(f"{args.structure}: {left_out(structure.dropped)}"))
    if args.chain is None and len(chains) > 1:
        copies = [*Positions.of(structure, None).copy_of]
        print(f"chain {', '.join(copies)} of {', '.join(chains)}: --chain chooses others")
    wishes = {name: value for name, value in vars(args).items() if name in rank_mutants.__kwdefaults__}
    for title, measured in properties.items():
        ranking = rank_mutants(structure, measured, args.chain, **wishes)
        wishes["features"] = ranking.features
        if title:
            print(printable(title))
        write_results(args.out / title.replace("/", "_"), ranking)
    return 0


def write_map(folder: Path, ranking: Ranking) -> None:
    """Write map.png and map.svg: positions by 20 types, in one row. Raises WriteError."""
    from matplotlib.figure import Figure

    better = ranking.model.sign * ranking.effects if ranking.model else ranking.effects
    darkest = np.quantile(np.abs(better), 0.98)  # a few extremes must not make the others pale
    figure = Figure((min(2 + 0.15 * len(better), 400), 4), layout="constrained")  # a PNG has 65,535 columns at most
    axes = figure.add_subplot()
    axes.imshow(better.T, cmap="RdBu", vmin=-darkest, vmax=darkest, aspect="auto")

    # The wild type in every column, what was measured, and the names of positions and types.
    axes.plot(ranking.features.wild, "kx")
    if ranking.measured:
        position, new, _ = side_by_side([*map(ranking.positions.read, ranking.measured)])
        axes.plot(position, new, "ko", mec="white")
    count = len(better)
    axes.set_xticks(range(count), map(ranking.positions.label, range(count)), rotation=90, fontsize=7)
    axes.set_yticks(range(20), ONE_LETTER)
    axes.set_xlabel("blue: better; red: worse; dots: measured; crosses: the wild type")
    for form in ("png", "svg"):
        with replacing(folder / f"map.{form}") as file:
            figure.savefig(file, format=form, dpi=150)


def measurements(args: Namespace) -> dict[str, list[tuple[str, float]]]:
    """For every property its mutations and their values. A single property has no name, "".

    What the table says of itself goes to stderr. Raises StructureError.
    """
    if not args.measured:
        return {"": []}
    # A table of MaveDB has accessions first, then names of HGVS, and a score.
    titles = next(iter(read_spreadsheet(args.measured).values()), [])
    name, value = ("hgvs_pro", "score") if {"hgvs_pro", "score"} <= {*titles} else (None, None)
    columns = args.value_column or value
    table = read_table(args.measured, "regression", args.name_column or name, columns, args.missing)
    table.faults.check()
    for note in table.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    values = np.reshape([row.value for row in table.rows], (len(table.rows), -1))
    names = [row.name for row in table.rows]
    of_column = [[(n, x) for n, x in zip(names, column) if x == x] for column in values.T.tolist()]
    return dict(zip(table.classes or [""], of_column))


def write_results(folder: Path, ranking: Ranking) -> None:
    """Write the tables and the verdict, and print it. Raises WriteError."""
    # The next batch begins with a warning if the model says nothing of new positions.
    warning = [[ranking.verdict]] if ranking.better is False else []
    write_rows(folder / "next.tsv", warning + cells(ranking.next))
    write_rows(folder / "mutants.tsv", cells(ranking.rows))
    lines = "\n".join(map(printable, ranking.sentences))
    write_file(folder / "verdict.txt", f"{lines}\n".encode())
    print(lines)
    counts = f"next.tsv ({len(ranking.next)} mutants), mutants.tsv ({len(ranking.rows)}), verdict.txt"
    if find_spec("matplotlib"):
        write_map(folder, ranking)
        counts += ", map.png, map.svg"
    print(printable(f"{folder}: {counts}"))


def cells(rows: Sequence[dict]) -> list[list]:
    """Rows with short numbers, the titles first."""
    lines = [[f"{x:.4g}" if isinstance(x, float) else x for x in row.values()] for row in rows]
    return [[*row] for row in rows[:1]] + lines
