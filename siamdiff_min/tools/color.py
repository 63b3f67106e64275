"""A number for every residue, as colours in a viewer: `siamdiff color 1abc.cif scores.csv`.

The numbers stand in the B factor column of a copy of the file, for all atoms of a residue; nothing else is changed.
They come from a table with a row for every residue: columns chain and number (`siamdiff embed --include per_residue`,
labels of residues), ids such as 1abc:A:52 (predictions of `siamdiff finetune`), or mutations such as A52G (`siamdiff
mutants`; of the mutations of a residue the mean counts). Chains are called as everywhere in this package. Beside the
copy lie a script for PyMOL and one for ChimeraX, which open it coloured with a legend.
"""

import gzip
import math
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..files import ConfigError, first_three, printable, structure_errors, write_file
from ..protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX
from ..reading.cif import SITE, is_mmcif, simple_values, tables_in
from ..reading.columns import WIDEST, Atoms
from ..reading.endings import without_ending
from ..reading.parse import is_binary_cif, models_in, name_of
from ..reading.policy import told_apart
from ..reading.sources import find_structures
from .mutants.mutation_names import parse
from .options import VALUE_COLUMNS
from .table.labels import read_spreadsheet, structure_called

B_FACTOR = f"{SITE}B_iso_or_equiv"
Residue = tuple[str, str]  # chain; number with insertion code, "52A"


class Values(NamedTuple):
    """The numbers of a table."""

    column: str
    numbers: dict[Residue, tuple[float, str]]  # and the type, if the table names it; the chain is "" if it does not say


def run(args: Namespace) -> int:
    """Write the copy that `options.color` asks for."""
    # The table's rows of this structure, onto a copy of the file.
    name = without_ending(args.structure.name)
    values = read_values(args.table, args.structure.name, args.column)
    copy, found = color(args.structure, read_text(args.structure), values, args.chain)
    ending = args.structure.name.removesuffix(".gz").removeprefix(name)
    out = args.out or Path(re.sub(r"[^\w.-]+", "-", f"{name}-{values.column}{ending}"))
    if out.resolve() == args.structure.resolve():
        raise ConfigError(f"--out {out} is the structure itself, which is never replaced")
    scripts = write_copy(out, copy, found)

    # What was done, and how to look at it.
    numbers = list(found.values())
    low, high = min(numbers), max(numbers)
    counts = f"{len(found)} of {len(values.numbers)} residues of the table"
    print(printable(f"{out}: {values.column} of {counts}, {low:.4g} to {high:.4g}"))
    pymol, chimerax = scripts
    print(printable(f"with its colours and a legend: pymol {pymol}, or chimerax {chimerax}"))
    return 0


def color_predictions(table: Path, source: Path) -> list[Path]:
    """Copies of structure files (one, or those in a folder) with the predictions of a table; returns their paths.

    They lie in a folder beside the table. Members of archives have none. Raises StructureError.
    """
    copies = []
    for structure in find_structures(source).sources:
        if structure.member is None:
            path = Path(structure.path)
            values = read_values(table, structure.name, "prediction")
            copy, found = color(path, read_text(path), values)
            ending = ".cif" if is_mmcif(copy.encode("latin-1")) else ".pdb"
            copies.append(table.with_suffix("") / f"{structure.name}{ending}")
            write_copy(copies[-1], copy, found)
    return copies


# ---- the table -------------------------------------------------------------------------------------------------------


def read_atoms(source, data: str | bytes | None = None) -> Iterator[Atoms]:
    """The atoms of one model after the other, with the chains and insertion codes of `read_structure`.

    `Atoms.place` tells where each stands in the file. Nothing is left out. Raises StructureError.
    """
    path = name_of(source)
    for atoms, _, _ in models_in(source, path, data, None):
        yield told_apart(path, atoms, None, True)[0]


def read_values(path: Path, file: str, column: str | None = None) -> Values:
    """The numbers of one structure in a table: of the exact name `file`, or that without its ending.

    Raises StructureError.
    """
    titles, *rows = read_spreadsheet(path).values()
    with structure_errors(path, "malformed table"):
        known = [title for title in VALUE_COLUMNS if title in titles]
        if column not in titles and (column or not known):
            raise ValueError(f"no column {column or VALUE_COLUMNS[0]}; there are {', '.join(titles)}: see --column")
        column = column or known[0]
        rows = [dict(zip(titles, cells)) for cells in rows]
        places = [residue_of(row) for row in rows]
        name = structure_called(file, {structure for structure, _, _ in places})

        # All numbers of a residue; rows of other structures are left out.
        numbers = defaultdict(list)
        types = {}
        others = set()
        for row, (structure, residue, letter) in zip(rows, places):
            if structure not in ("", name, f"{name}_{residue[0]}"):
                others.add(structure)
                continue
            value = float(row[column] or "nan")
            if math.isfinite(value):
                numbers[residue].append(value)
            if letter:
                types[residue] = letter
        if not numbers:
            known = f", but of {first_three(sorted(others))}" if others else ""
            raise ValueError(f"no number of {name} in it{known}")
    means = {}
    for residue, several in numbers.items():
        means[residue] = math.fsum(several) / len(several), types.get(residue, "")
    return Values(column, means)


def residue_of(row: Mapping[str, str]) -> tuple[str, Residue, str]:
    """The structure, the residue and its type of a row, "" if it does not say. Raises ValueError."""
    if "mutation" in row:
        mutation = parse(row["mutation"])
        if not mutation:
            raise ValueError(f"{row['mutation']!r:.50} is no mutation like A52G")
        return "", (mutation.chain, f"{mutation.number}{mutation.code}"), mutation.own
    if "number" in row:
        kind = row.get("residue") or row.get("type") or ""
        letter = ONE_LETTER[RESIDUE_INDEX[PARENT[kind]]] if kind in PARENT else kind
        place = row["number"] + row.get("code", "")
        return row.get("name", ""), (row.get("chain", ""), place), letter
    structure, *residue = row.get("id", "").rsplit(":", 2)
    if len(residue) != 2:
        raise ValueError("no residue in it: it takes columns chain and number, an id like 1abc:A:52, or a mutation")
    return structure, tuple(residue), ""


# ---- the file --------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> str:
    """The text of a file, also of a .gz: a character for each byte. Raises StructureError."""
    with structure_errors(path, "cannot be opened"):
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    return content.decode("latin-1")


def color(path: Path, text: str, values: Values, chain: str | None = None) -> tuple[str, dict[Residue, float]]:
    """A copy of the text with the numbers as B factors, and the numbers of the residues that are in it.

    Residues without a number get one that is smaller than all others, so that a viewer can tell them apart. Raises
    StructureError if the file has none of the residues, or another type of one, or cannot hold the numbers.
    """
    with structure_errors(path, "not coloured"):
        content = text.encode("latin-1")
        if is_binary_cif(content):
            raise ValueError("BinaryCIF is no text: give mmCIF or PDB")
        residues = residues_of(path, text)
        if not residues:
            raise ValueError("no atoms in it")
        (first, _), _ = next(iter(residues.values()))

        # The table by the chains of the file, and what of it is there.
        first = chain or first  # of rows that name no chain
        numbers = {(own or first, place): number for (own, place), number in values.numbers.items()}
        found = {}
        for residue, kind in residues.values():
            if residue in numbers:
                found[residue], letter = numbers[residue]
                check_type(residue, kind, letter)
        if not found:
            residue, _ = next(iter(residues.values()))
            raise ValueError(f"it has none of the residues of the table; its first one is {label(residue)}")

        # The text between the B factors stays as it is.
        low, high = min(found.values()), max(found.values())
        nothing = low - (high - low or 1.0)
        mmcif = is_mmcif(content)
        write = "{:.8g}".format if mmcif else six_columns(nothing, high)
        written = {place: write(found.get(residue, nothing)) for place, (residue, _) in residues.items()}
        return (into_mmcif if mmcif else into_pdb)(text, written), found


def residues_of(path: Path, text: str) -> dict[int, tuple[Residue, str]]:
    """Of every atom, by its place in the file, the residue and the type of it, as `read_structure` calls them."""
    found = {}
    for atoms in read_atoms(path, text):
        chains, codes, kinds = atoms.chain.texts(), atoms.code.texts(), atoms.residue.texts()
        for k, (place, number) in enumerate(zip(atoms.place.tolist(), atoms.number.tolist())):
            found[place] = (chains[k], f"{number}{codes[k].strip()}"), kinds[k]
    return found


def check_type(residue: Residue, kind: str, letter: str) -> None:
    """Raise ValueError if the table has another type for a residue: its numbers are other ones."""
    if letter and kind in PARENT:
        own = ONE_LETTER[RESIDUE_INDEX[PARENT[kind]]]
        if own != letter:
            raise ValueError(f"{label(residue)} is {own}, but {letter} in the table")


def label(residue: Residue) -> str:
    """A residue as text, such as A:52."""
    return ":".join(filter(None, residue))


def six_columns(low: float, high: float) -> Callable[[float], str]:
    """A function that writes numbers into the columns 61 to 66 of a PDB file, with as many digits as all can have.

    Raises ValueError if these are too few to tell the numbers apart.
    """
    for digits in range(4, -1, -1):
        longest = max(len(f"{end:.{digits}f}") for end in (low, high))
        if longest <= 6:
            break
    if longest > 6 or (high - low) < 100 * 10**-digits:  # a hundred steps of colour
        raise ValueError(f"six columns cannot hold {low:.3g} to {high:.3g} (grey, highest): scale them, or take mmCIF")
    return f"{{:6.{digits}f}}".format


def into_pdb(text: str, written: Mapping[int, str]) -> str:
    """A PDB file with these B factors, by the number of their line."""
    parts = re.split("(\r\n|\r|\n)", text)  # lines and what ends them
    for line, value in written.items():
        content = parts[2 * line]
        parts[2 * line] = f"{content[:60]:60}{value}{content[66:]}"
    return "".join(parts)


def into_mmcif(text: str, written: Mapping[int, str]) -> str:
    """An mmCIF file with these B factors, by the row of its table of atoms; without the column, it gets one."""
    ends = re.search("\r\n|\r|\n", text)
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    sites = (table for table in tables_in(plain) if table[0][0].lower().startswith(SITE))
    names, begin, end = next(sites, ([], 0, 0))
    values = simple_values(plain[begin:end], len(names)) if names else None
    if values is None or len(values) != len(written) * len(names):
        raise ValueError("blanks alone do not tell where the values of its atoms are")

    # Of every row the value that is replaced, or the place behind its last one.
    titles = [title.lower() for title in names]
    rows = range(len(written))
    if B_FACTOR.lower() in titles:
        which = [row * len(titles) + titles.index(B_FACTOR.lower()) for row in rows]
        starts = values.start[which] - WIDEST
        stops = values.end[which] - WIDEST
        pieces = [plain[:begin]]
        before = ""
    else:
        starts = [values.next_blank((row + 1) * len(titles) - 1) for row in rows]
        stops = starts
        pieces = [plain[:begin], B_FACTOR, "\n"]
        before = " "
    done = begin
    for row, start, stop in zip(rows, starts, stops):
        pieces.append(plain[done : begin + int(start)])
        pieces.append(before + written[row])
        done = begin + int(stop)
    copy = "".join([*pieces, plain[done:]])
    return copy.replace("\n", ends[0]) if ends else copy


# ---- in a viewer -----------------------------------------------------------------------------------------------------


def write_copy(path: Path, copy: str, found: Mapping[Residue, float]) -> list[Path]:
    """Write a copy, and beside it scripts that open it in PyMOL and ChimeraX; returns these. Raises WriteError.

    Blue to red over the numbers, with a legend; residues without one in grey.
    """
    write_file(path, copy.encode("latin-1"))
    low, high = min(found.values()), max(found.values())
    middle = (low + high) / 2
    grey = low - (high - low or 1.0) / 2
    name = f'"{path.name}"'
    scripts = {
        ".pml": [  # PyMOL looks in the current folder
            f"/cmd.load({name} if __import__('os').path.exists({name}) else {str(path.resolve())!r}, 'coloured')",
            f"spectrum b, blue_white_red, coloured, minimum={low:.6g}, maximum={high:.6g}",
            f"color grey70, coloured and b < {grey:.6g}",
            f"ramp_new legend, none, [{low:.6g}, {middle:.6g}, {high:.6g}], [blue, white, red]",
        ],
        ".cxc": [  # ChimeraX in that of the script
            f"open {name}",
            f"color byattribute bfactor palette blue:white:red range {low:.6g},{high:.6g}",
            f"color @@bfactor<{grey:.6g} grey target acs",
            f"key blue:{low:.4g} white:{middle:.4g} red:{high:.4g}",
        ],
    }
    paths = [path.with_name(f"{without_ending(path.name)}{ending}") for ending in scripts]
    for script, lines in zip(paths, scripts.values()):
        write_file(script, "\n".join([*lines, ""]).encode())
    return paths
