"""From one structure and a few measured mutants to the next batch: `siamdiff mutants 1abc.cif --measured tested.csv`.

In Python, `siamdiff_min.rank_mutants("1abc.cif", {"A52G": 1.3, ...})`. `ranking.py` ranks; here are the command and its
files (docs/mutants.md).
"""

import sys
from argparse import Namespace
from collections.abc import Sequence

from ...files import printable, write_file, write_rows
from ...reading.parse import read_structure
from ...reading.structure import left_out
from ..table.labels import read_table
from .mutation_names import Positions
from .ranking import rank_mutants


def run(args: Namespace) -> int:
    """Rank the mutants that `options.mutants` asks for."""
    measured = measurements(args)
    structure = read_structure(args.structure)
    chains = structure.chain_names
    if sum(structure.dropped.values()):
        print(printable(f"{args.structure}: {left_out(structure.dropped)}"))
    if args.chain is None and len(chains) > 1:
        copies = [*Positions.of(structure, None).copy_of]
        print(f"chain {', '.join(copies)} of {', '.join(chains)}: --chain chooses others")
    ranking = rank_mutants(
        structure,
        measured,
        args.chain,
        lower_is_better=args.lower_is_better,
        shift=args.shift,
        checkpoint=args.checkpoint,
        batch=args.batch,
        per_position=args.per_position,
        positions=args.positions,
        not_positions=args.not_positions,
        types=args.types,
        not_types=args.not_types,
    )

    # The next batch begins with a warning if the model says nothing of new positions.
    warning = [[ranking.verdict]] if ranking.better is False else []
    write_rows(args.out / "next.tsv", warning + cells(ranking.next))
    write_rows(args.out / "mutants.tsv", cells(ranking.rows))
    lines = "\n".join(map(printable, ranking.sentences))
    write_file(args.out / "verdict.txt", f"{lines}\n".encode())
    print(lines)
    counts = f"next.tsv ({len(ranking.next)} mutants), mutants.tsv ({len(ranking.rows)}), verdict.txt"
    print(printable(f"{args.out}: {counts}"))
    return 0


def measurements(args: Namespace) -> list[tuple[str, float]]:
    """The mutations of the table and their values; what it says of itself goes to stderr. Raises StructureError."""
    if not args.measured:
        return []
    table = read_table(args.measured, "regression", args.name_column, args.value_column, args.missing)
    table.faults.check()
    for note in table.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    return [(row.name, float(row.value)) for row in table.rows]


def cells(rows: Sequence[dict]) -> list[list[str]]:
    """Rows as text, the titles first."""
    lines = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    return [[*row] for row in rows[:1]] + lines
