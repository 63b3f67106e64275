"""A number for every residue, as colours in a viewer: `siamdiff color 1abc.cif scores.csv`.

The numbers stand in the B factor column of a copy of the file, for all atoms of a residue. No other value is changed.
They come from a table with a row for every residue: columns chain and number (`siamdiff embed --include per_residue`,
labels of residues), ids such as 1abc:A:52 (predictions of `siamdiff finetune`), or mutations such as A52G (`siamdiff
mutants`; of the mutations of a residue the mean counts). Chains are called as everywhere in this package. Beside the
copy lie a script for PyMOL and one for ChimeraX, which open it coloured with a legend.
"""

import gzip
import io
import math
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.mmcifio import MMCIFIO

from ..files import ConfigError, first_three, printable, structure_errors, write_file
from ..protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ..reading.cif import is_mmcif
from ..reading.endings import without_ending
from ..reading.parse import models_in
from ..reading.policy import told_apart
from .mutants.mutation_names import parse
from .options import VALUE_COLUMNS
from .table.labels import read_spreadsheet, structure_called

B_FACTOR = "_atom_site.B_iso_or_equiv"
Residue = tuple[str, str]  # chain, "" if a table does not say; number with insertion code, "52A"
Numbers = dict[Residue, tuple[float, str]]  # and the type, "" if the table does not name it


def run(args: Namespace) -> int:
    """Write the copy that `options.color` asks for."""
    # The table's rows of this structure, onto a copy of the file.
    column, numbers = read_values(args.table, args.structure.name, args.column)
    copy, found = color(args.structure, numbers, args.chain)
    name = without_ending(args.structure.name)
    ending = args.structure.name.removesuffix(".gz").removeprefix(name)
    out = args.out or Path(re.sub(r"[^\w.-]+", "-", f"{name}-{column}{ending}"))
    if out.resolve() == args.structure.resolve():
        raise ConfigError(f"--out {out} is the structure itself, which is never replaced")
    pymol, chimerax = write_copy(out, copy, found)

    # What was done, and how to look at it.
    low, high = min(found.values()), max(found.values())
    counts = f"{len(found)} of {len(numbers)} residues of the table"
    print(printable(f"{out}: {column} of {counts}, {low:.4g} to {high:.4g}"))
    print(printable(f"with its colours and a legend: pymol {pymol}, or chimerax {chimerax}"))
    return 0


# ---- the table -------------------------------------------------------------------------------------------------------


def read_values(path: Path, file: str, column: str | None = None) -> tuple[str, Numbers]:
    """The title of a column of a table, and its numbers of one structure: of the exact name `file`, or that without its
    ending. Raises StructureError.
    """
    titles, *rows = read_spreadsheet(path).values()
    with structure_errors(path, "malformed table"):
        column = column or next((title for title in VALUE_COLUMNS if title in titles), VALUE_COLUMNS[0])
        if column not in titles:
            raise ValueError(f"no column {column}; there are {', '.join(titles)}: see --column")
        by_title = [dict(zip(titles, cells)) for cells in rows]
        places = [residue_of(row) for row in by_title]
        there = {structure for structure, _, _ in places}
        name = structure_called(file, there)

        # All numbers of a residue; rows of other structures are left out.
        values = defaultdict(list)
        types = {}
        for row, (structure, residue, letter) in zip(by_title, places):
            value = float(row[column] or "nan")
            if structure in ("", name, f"{name}_{residue[0]}") and math.isfinite(value):
                values[residue].append(value)
                types[residue] = letter
        if not values:
            others = sorted(there - {"", name})
            raise ValueError(f"no number of {name} in it" + (f", but of {first_three(others)}" if others else ""))
        return column, {residue: (fmean(several), types[residue]) for residue, several in values.items()}


def residue_of(row: Mapping[str, str]) -> tuple[str, Residue, str]:
    """The structure, the residue and its type of a row, "" if it does not say. Raises ValueError."""
    if "mutation" in row:
        mutation = parse(row["mutation"])
        if not mutation:
            raise ValueError(f"{row['mutation']!r:.50} is no mutation like A52G")
        return "", (mutation.chain, f"{mutation.number}{mutation.code}"), mutation.own
    if "number" in row:
        kind = row.get("residue") or row.get("type") or ""
        place = row["number"] + row.get("code", "")
        return row.get("name", ""), (row.get("chain", ""), place), letter_of(kind) or kind
    structure, *residue = row.get("id", "").rsplit(":", 2)
    if len(residue) != 2:
        raise ValueError("no residue in it: it takes columns chain and number, an id like 1abc:A:52, or a mutation")
    return structure, tuple(residue), ""


def letter_of(kind: str) -> str:
    """The letter of an amino acid by its name of three, "" of anything else."""
    return ONE_LETTER[RESIDUE_INDEX[PARENT[kind]]] if kind in PARENT else ""


# ---- the file --------------------------------------------------------------------------------------------------------


def color(path: Path, numbers: Numbers, chain: str | None = None) -> tuple[bytes, dict[Residue, float]]:
    """A copy of a file with the numbers as B factors, and the numbers of the residues that are in it.

    Residues without a number get one that is smaller than all others, so that a viewer can tell them apart. Raises
    StructureError if the file has none of the residues, or another type of one, or cannot hold the numbers.
    """
    with structure_errors(path, "not coloured"):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        if b"\0" in content.rstrip(b"\0"):
            raise ValueError("it is no text: give mmCIF or PDB")
        residues = residues_of(path, content)
        types = dict(residues.values())
        first, _ = any_residue = next(iter(types), ("", "none"))

        # The table by the chains of the file, and what of it is there.
        found = {}
        for (own, place), (number, letter) in numbers.items():
            residue = own or chain or first, place
            if residue in types:
                kind = letter_of(types[residue])
                if letter and kind and kind != letter:  # so the numbers are other ones
                    raise ValueError(f"{label(residue)} is {kind}, but {letter} in the table")
                found[residue] = number
        if not found:
            raise ValueError(f"it has none of the residues of the table; its first one is {label(any_residue)}")

        # Nothing but B factors is changed.
        low, high = min(found.values()), max(found.values())
        nothing = low - (high - low or 1.0)
        mmcif = is_mmcif(content)
        write = "{:.8g}".format if mmcif else six_columns(nothing, high)
        written = {place: write(found.get(residue, nothing)) for place, (residue, _) in residues.items()}
        copy = (into_mmcif if mmcif else into_pdb)(content.decode("latin-1"), written)  # a character for each byte
        return copy.encode("latin-1"), found


def residues_of(path: Path, content: bytes) -> dict[int, tuple[Residue, str]]:
    """Of every atom of all models, by its line or row in the file, the residue and its type. Raises StructureError.

    Chains and insertion codes are those of `read_structure`.
    """
    found = {}
    for model, _, _ in models_in(path, str(path), content, None):
        atoms = told_apart(str(path), model)
        names = zip(atoms.number.tolist(), atoms.code.texts())
        residues = zip(atoms.chain.texts(), [f"{number}{code.strip()}" for number, code in names])
        found |= dict(zip(atoms.place.tolist(), zip(residues, atoms.residue.texts())))
    return found


def label(residue: Residue) -> str:
    """A residue as text, such as A:52."""
    return ":".join(filter(None, residue))


def six_columns(low: float, high: float) -> Callable[[float], str]:
    """A function that writes numbers into the columns 61 to 66 of a PDB file, with as many digits as all can have.

    Raises ValueError if these are too few to tell the numbers apart.
    """
    for digits in range(4, -1, -1):
        write = f"{{:6.{digits}f}}".format
        if len(write(low)) == len(write(high)) == 6 and high - low >= 100 * 10**-digits:  # a hundred steps of colour
            return write
    raise ValueError(f"six columns cannot hold {low:.3g} to {high:.3g} (grey, highest): scale them, or take mmCIF")


def into_pdb(text: str, written: Mapping[int, str]) -> str:
    """A PDB file with these B factors, by the number of their line."""
    lines = re.split("\r\n|\r|\n", text)
    for number, value in written.items():
        lines[number] = f"{lines[number][:60]:60}{value}{lines[number][66:]}"
    return "\n".join(lines)


def into_mmcif(text: str, written: Mapping[int, str]) -> str:
    """An mmCIF file with these B factors, by the row of its atoms, laid out by Biopython. Raises ValueError."""
    values = MMCIF2Dict(io.StringIO(text))
    rows = values.get(B_FACTOR, ())
    if len(rows) != len(written):
        raise ValueError(f"no column {B_FACTOR} with a value for each of its {len(written)} atoms: give PDB")
    values[B_FACTOR] = [written[row] for row in range(len(rows))]
    copy = io.StringIO()
    writer = MMCIFIO()
    writer.set_dict(values)
    writer.save(copy)
    return copy.getvalue()


# ---- in a viewer -----------------------------------------------------------------------------------------------------


def write_copy(path: Path, copy: bytes, found: Mapping[Residue, float]) -> list[Path]:
    """Write a copy, and beside it scripts that open it in PyMOL and ChimeraX; returns these. Raises WriteError.

    Blue to red over the numbers, with a legend; residues without one in grey.
    """
    write_file(path, copy)
    smallest, largest = min(found.values()), max(found.values())
    below = smallest - (largest - smallest or 1.0) / 2  # of grey
    low, middle, high, grey = (f"{end:.6g}" for end in (smallest, (smallest + largest) / 2, largest, below))
    name = f'"{path.name}"'
    scripts = {
        ".pml": [  # PyMOL looks in the current folder
            f"/cmd.load({name} if __import__('os').path.exists({name}) else {str(path.resolve())!r}, 'coloured')",
            f"spectrum b, blue_white_red, coloured, minimum={low}, maximum={high}",
            f"color grey70, coloured and b < {grey}",
            f"ramp_new legend, none, [{low}, {middle}, {high}], [blue, white, red]",
        ],
        ".cxc": [  # ChimeraX in that of the script
            f"open {name}",
            f"color byattribute bfactor palette blue:white:red range {low},{high}",
            f"color @@bfactor<{grey} grey target acs",
            f"key blue:{low} white:{middle} red:{high}",
        ],
    }
    paths = [path.with_name(without_ending(path.name) + ending) for ending in scripts]
    for script, lines in zip(paths, scripts.values()):
        write_file(script, "\n".join([*lines, ""]).encode())
    return paths
