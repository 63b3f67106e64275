"""From one structure and a few measured mutants to the next batch: `siamdiff mutants 1abc.cif --measured tested.csv`.

In Python, `siamdiff_min.rank_mutants("1abc.cif", {"A52G": 1.3, ...})`. `ranking.py` ranks; here are the command, its
tables and its page (docs/mutants.md).
"""

import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import chain as joined
from pathlib import Path

import numpy as np

from ...encoders.weights import find_weights
from ...files import printable, replacing, write_file, write_rows
from ...protein.constants import ONE_LETTER
from ...reading.parse import read_structure
from ...reading.structure import left_out
from ..embed.vector_files import identity
from ..report import command as report
from ..report import picture
from ..report.captions import text
from ..report.picture import Picture
from ..table.labels import read_spreadsheet, read_table
from .mutation_names import Positions, Wishes
from .ranking import Ranking, rank_mutants

LOG_ODDS = "log-odds.npz"  # kept in OUT
WISHES = {"chain", "shift", "lower_is_better", "wild_type", "checkpoint", *Wishes.__annotations__}
MAP_WIDTH = 45  # residues in a map, at most


def run(args: Namespace) -> int:
    """Rank the mutants that `options.mutants` asks for, for one property after the other."""
    names, columns = measurements(args)
    wishes = {name: value for name, value in vars(args).items() if name in WISHES}
    structure = read_structure(args.structure)
    chains = structure.chain_names
    if sum(structure.dropped.values()):
        print(printable(f"{args.structure}: {left_out(structure.dropped)}"))
    if args.chain is None and len(chains) > 1:
        copies = [*Positions.of(structure, None).copy_of]
        print(f"chain {', '.join(copies)} of {', '.join(chains)}: --chain chooses others")

    for column, values in columns.items():
        ranking = rank_mutants(structure, zip(names, values), kept=args.out / LOG_ODDS, **wishes)
        folder = args.out / column.replace("/", "_")
        write_results(folder, f"{column or 'mutants'} of {args.structure.name}", ranking)

        # The property, what to believe, where the files are.
        if column:
            print(printable(column))
        for sentence in ranking.sentences:
            print(printable(sentence))
        counts = f"next.tsv ({len(ranking.next)} mutants), mutants.tsv ({len(ranking.rows)})"
        print(printable(f"{folder / 'report.html'}, {counts}"))
    report.warn_without_pictures()
    return 0


def measurements(args: Namespace) -> tuple[list[str], dict[str, list[float]]]:
    """The mutations of the table, and of every property their values. A single property has no name, "".

    What the table says of itself goes to stderr. Raises StructureError.
    """
    if not args.measured:
        return [], {"": []}
    # A table of MaveDB has accessions first, then names of HGVS, and a score.
    first, *_ = read_spreadsheet(args.measured).values()
    name = args.name_column or ("hgvs_pro" if "hgvs_pro" in first else None)
    value = args.value_column or (["score"] if name == "hgvs_pro" and "value" not in first else None)
    table = read_table(args.measured, "regression", name, value, args.missing, keep_repeats=True)
    for note in table.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    values = np.reshape([row.value for row in table.rows], (len(table.rows), -1))
    return [row.name for row in table.rows], dict(zip(table.classes or [""], values.T.tolist()))


# ---- files -----------------------------------------------------------------------------------------------------------


def write_results(folder: Path, title: str, ranking: Ranking) -> None:
    """Write the tables, the page, and with measurements the model. Raises WriteError."""
    write_rows(folder / "mutants.tsv", cells(ranking.rows))
    warning = [[ranking.verdict]] if ranking.better is False else []
    write_rows(folder / "next.tsv", warning + cells(ranking.next))
    if ranking.model:
        ((wild_type, _, _),) = ranking.predict("WT")
        with replacing(folder / "model.npz") as file:
            np.savez(
                file,
                residue=[*ranking.positions.wild],
                effects=ranking.effects,
                wild_type=wild_type,
                types=[*ONE_LETTER],
                chain=[chain for chain, _, _ in ranking.positions.keys],
                number=[f"{number}{code}" for _, number, code in ranking.positions.keys],
                encoder=[identity(name, find_weights(name)) for name in ranking.encoders],
            )
    write_file(folder / "report.html", page(title, ranking))


def cells(rows: Sequence[dict]) -> list[list[str]]:
    """Rows as text, the titles first."""
    lines = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    return [[*row] for row in rows[:1]] + lines


# ---- the page --------------------------------------------------------------------------------------------------------


def page(title: str, ranking: Ranking) -> bytes:
    """The verdict, the maps, the next batch, and what the model is compared with."""
    style = {None: "not", True: "better", False: "worse"}[ranking.better]
    verdict, *sentences = ranking.sentences
    body = f"<h1>{text(title)}</h1><p class='big {style}'>{text(verdict)}</p>"
    body += "".join(f"<p>{text(sentence)}</p>" for sentence in sentences)

    # The maps, all in one scale, behind the picture that shows how far to trust them.
    darkest = np.quantile(np.abs(ranking.on_map), 0.98)  # a few extremes must not make the others pale
    pictures = []
    blue = "better than most"
    if ranking.model:
        blue = f"better than {ranking.reference.name}, darkest by {darkest:.3g}"
        note = "The amount of noise is chosen with all values."
        count = ranking.model.prior.mutated.sum()
        draw = partial(draw_left_out, ranking=ranking)
        pictures.append(Picture("left-out", f"Left out, N = {count}", draw, note, picture.SQUARE))
    key = f"<p class=note>Blue: {text(blue)}; red: worse; dots: measured; crosses: the wild type.</p>"
    body += report.without_pictures() or key

    # So many positions in each map that they can be read.
    count = math.ceil(len(ranking.on_map) / MAP_WIDTH)
    for columns in np.array_split(np.arange(len(ranking.on_map)), count):
        name = f"Effects, {ranking.positions.label(columns[0])} to {ranking.positions.label(columns[-1])}"
        draw = partial(draw_map, ranking=ranking, columns=columns, darkest=darkest)
        pictures.append(Picture(name, name, draw, height=3.8))
    body += f"<div class=cards>{''.join(map(picture.card, pictures))}</div>"

    # What to make next, and what the model was compared with.
    tables = report.as_html("The next batch", cells(ranking.next)) if ranking.next else ""
    if ranking.trust:
        rows = [["", "rho", "root mean squared error"]]
        for name, rho in ranking.trust.rho.items():
            rows.append([name, f"{rho:.2f}", f"{ranking.trust.rmse[name]:.3g}"])
        tables += report.as_html("Positions left out", rows)
    return report.as_page(title, f"{body}<div class=tables>{tables}</div>")


def draw_map(axes, ranking: Ranking, columns: np.ndarray, darkest: float) -> None:
    """How much better every type is at some positions (K,) in a row; dots: measured; crosses: wild type."""
    axes.imshow(ranking.on_map[columns].T, cmap="RdBu", vmin=-darkest, vmax=darkest, aspect="auto", zorder=2)

    # A cross in every column, and dots where mutants were measured.
    wild = [ranking.positions.wild[i] for i in columns]
    own = [ONE_LETTER.index(letter) for letter in wild]
    axes.plot(own, "x", color="black", ms=3, zorder=3)
    mutants = ranking.model.prior.mutants if ranking.model else []
    for position, new in {*joined(*mutants)}:
        if position in columns:
            axes.plot(position - columns[0], new, "o", color="black", mec="white", mew=0.5, ms=4, zorder=3)

    # The type and number of every fifth position.
    axes.set_yticks(range(20), ONE_LETTER, fontsize=7)
    labels = [*map(ranking.positions.label, columns, wild)]
    axes.set_xticks(range(0, len(columns), 5), labels[::5])
    axes.tick_params(axis="x", rotation=90, labelsize=8)


def draw_left_out(axes, ranking: Ranking) -> None:
    """Predictions at positions left out, against the measured values."""
    model = ranking.model
    mutated = model.prior.mutated
    y = model.sign * model.y[mutated]
    predicted = model.sign * model.left_out[mutated]
    dots = axes.scatter(y, predicted, s=18, color=picture.COLOURS[0], alpha=0.7, lw=0)
    dots.set_urls([name for name in ranking.measured if name != "WT"])  # names for the pointer
    axes.axline((y.mean(), y.mean()), slope=1, color=picture.INK, lw=1, alpha=0.3)
    axes.set(xlabel="measured", ylabel="predicted, nothing measured at its position")
