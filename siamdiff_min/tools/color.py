"""A number for every residue, as colours in a viewer: `siamdiff color 1abc.cif scores.csv`.

The numbers stand in the B factor column of a copy of the file, for all atoms of a residue; nothing else is changed.
They come from a table with a row for every residue: columns chain and number (`siamdiff embed --include per_residue`,
labels of residues), ids such as 1abc:A:52 (predictions of `siamdiff finetune`), or mutations such as A52G (`siamdiff
mutants`; of the mutations of a residue the mean counts).
"""

import gzip
import math
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..files import ConfigError, first_three, printable, read_rows, structure_errors, write_file
from ..protein.constants import ONE_LETTER, PARENT, RESIDUE_INDEX, UNMODIFIED
from ..reading.cif import is_mmcif
from ..reading.pdb import hybrid_36
from ..reading.sources import find_structures, without_ending
from .mutants.mutation_names import MUTATION
from .options import VALUE_COLUMNS

ATOM_RECORDS = ("ATOM", "HETATM")
B_FACTOR_TITLE = "B_iso_or_equiv"
B_FACTOR = B_FACTOR_TITLE.lower()
ATOM_SITE = re.compile(r"^loop_\s+((?:_atom_site\.\S+\s+)+)", re.MULTILINE | re.IGNORECASE)
END_OF_TABLE = re.compile(r"\s*(#|_|loop_|data_|save_|$)", re.IGNORECASE)
VALUE = re.compile(r"""'.*?'(?=\s)|".*?"(?=\s)|\S+""")
Residue = tuple[str, str]  # chain; number with insertion code, "52A"


class Values(NamedTuple):
    """The numbers of a table."""

    column: str
    numbers: dict[Residue, float]  # the chain is "" if the table does not say
    types: dict[Residue, str]  # one letter each, of residues whose type the table names


def run(args: Namespace) -> int:
    """Write the copy that `options.color` asks for."""
    # The table's rows of this structure, onto a copy of the file.
    name = without_ending(args.structure.name)
    values = read_values(args.table, name, args.column)
    copy, found = color(args.structure, read_text(args.structure), values, args.chain)
    ending = args.structure.name.removesuffix(".gz").removeprefix(name)
    out = args.out or Path(re.sub(r"[^\w.-]+", "-", f"{name}-{values.column}{ending}"))
    if out.resolve() == args.structure.resolve():
        raise ConfigError(f"--out {out} is the structure itself, which is never replaced")
    write_file(out, copy.encode("latin-1"))

    # What was done, and how to look at it.
    numbers = list(found.values())
    counts = f"{len(found)} of {len(values.numbers)} residues of the table"
    print(printable(f"{out}: {values.column} of {counts}, {min(numbers):.4g} to {max(numbers):.4g}"))
    for line in how_to_look(out, numbers):
        print(printable(line))
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
            copy, _ = color(path, read_text(path), values)
            ending = ".cif" if is_mmcif(copy.encode("latin-1")) else ".pdb"
            copies.append(table.with_suffix("") / f"{structure.name}{ending}")
            write_file(copies[-1], copy.encode("latin-1"))
    return copies


# ---- the table -------------------------------------------------------------------------------------------------------


def read_values(path: Path, name: str, column: str | None = None) -> Values:
    """The numbers of the structure `name` in a table. Raises StructureError."""
    titles, *rows = read_rows(path, "\t;,").values()
    with structure_errors(path, "malformed table"):
        known = [title for title in VALUE_COLUMNS if title in titles]
        if column not in titles and (column or not known):
            raise ValueError(f"no column {column or VALUE_COLUMNS[0]}; there are {', '.join(titles)}: see --column")
        column = column or known[0]

        # All numbers of a residue; rows of other structures are left out.
        numbers = defaultdict(list)
        types = {}
        others = set()
        for cells in rows:
            row = dict(zip(titles, cells))
            structure, residue, letter = residue_of(row)
            if structure and structure not in (name, f"{name}_{residue[0]}"):
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
    means = {residue: math.fsum(several) / len(several) for residue, several in numbers.items()}
    return Values(column, means, types)


def residue_of(row: Mapping[str, str]) -> tuple[str, Residue, str]:
    """The structure, the residue and its type of a row, "" if it does not say. Raises ValueError."""
    if "mutation" in row:
        mutation = MUTATION.fullmatch(row["mutation"])
        if not mutation:
            raise ValueError(f"{row['mutation']!r:.50} is no mutation like A52G")
        chain, letter, number, code, _ = mutation.groups()
        return "", (chain or "", number + code), letter
    if "number" in row:
        kind = row.get("residue") or row.get("type") or ""
        letter = ONE_LETTER[RESIDUE_INDEX[PARENT[kind]]] if kind in PARENT else kind
        place = row["number"] + row.get("code", "")
        return without_ending(row.get("name", "")), (row.get("chain", ""), place), letter
    structure, *residue = row.get("id", "").rsplit(":", 2)
    if len(residue) != 2:
        raise ValueError("no residue in it: it takes columns chain and number, an id like 1abc:A:52, or a mutation")
    return structure, tuple(residue), ""


# ---- the file --------------------------------------------------------------------------------------------------------


class Atom(NamedTuple):
    """An atom in the text of a file."""

    start: int  # of its B factor in the text
    end: int
    residue: Residue
    kind: str  # of residue


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
        mmcif = is_mmcif(text.encode("latin-1"))
        text = with_column(text) if mmcif else padded(text)
        atoms = list(cif_atoms(text) if mmcif else pdb_atoms(text))
        if not atoms:
            raise ValueError("no atoms in it")

        # The table by the chains of the file, and what of it is there.
        first = chain or atoms[0].residue[0]  # of rows that name no chain
        numbers = {(own or first, place): number for (own, place), number in values.numbers.items()}
        types = {(own or first, place): letter for (own, place), letter in values.types.items()}
        found = {}
        for atom in atoms:
            if atom.residue in numbers:
                check_type(atom, types)
                found[atom.residue] = numbers[atom.residue]
        if not found:
            raise ValueError(f"it has none of the residues of the table; its first one is {label(atoms[0].residue)}")

        # The text between the B factors stays as it is.
        low, high = min(found.values()), max(found.values())
        nothing = low - (high - low or 1.0)
        write = "{:.8g}".format if mmcif else six_columns(nothing, high)
        pieces = []
        end = 0
        for atom in atoms:
            pieces += [text[end : atom.start], write(found.get(atom.residue, nothing))]
            end = atom.end
    return "".join([*pieces, text[end:]]), found


def check_type(atom: Atom, types: Mapping[Residue, str]) -> None:
    """Raise ValueError if the table has another type for a residue: its numbers are other ones."""
    if atom.kind in PARENT and atom.residue in types:
        letter = ONE_LETTER[RESIDUE_INDEX[PARENT[atom.kind]]]
        if letter != types[atom.residue]:
            raise ValueError(f"{label(atom.residue)} is {letter}, but {types[atom.residue]} in the table")


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


# ---- PDB -------------------------------------------------------------------------------------------------------------


def padded(text: str) -> str:
    """The text, with all lines of atoms long enough for a B factor."""
    lines = []
    for line in text.splitlines(keepends=True):
        content = line.rstrip("\r\n")
        if line.startswith(ATOM_RECORDS):
            line = content.ljust(66) + line[len(content) :]
        lines.append(line)
    return "".join(lines)


def pdb_atoms(text: str) -> Iterator[Atom]:
    """Every atom of all models. Blank chains are "", "_2", "_3", ... by TER, as everywhere in this package."""
    start = 0
    ends = 0  # TER records behind a blank chain in this model
    blank = False
    for line in text.splitlines(keepends=True):
        if line.startswith(ATOM_RECORDS):
            chain = line[21].strip()
            if line[20] != " " and line[17:20] in UNMODIFIED and line[17:21] not in PARENT:
                chain = line[20:22]  # two letters
            blank = not chain
            if blank and ends:
                chain = f"_{ends + 1}"
            five = line[26].isdigit()  # a number of five digits
            place = f"{hybrid_36(line[22 : 26 + five])}{'' if five else line[26].strip()}"
            yield Atom(start + 60, start + 66, (chain, place), line[17:20].strip())
        elif line.startswith("TER"):
            ends += blank
        elif line.startswith(("MODEL", "ENDMDL")):
            ends = 0
        start += len(line)


# ---- mmCIF -----------------------------------------------------------------------------------------------------------


def tables_of(text: str) -> Iterator[tuple[list[str], int, list[list[re.Match]]]]:
    """Every table of atoms: its titles in small letters, where they end, and the values of its rows in the text.

    Raises ValueError for rows that are not on a line each.
    """
    for table in ATOM_SITE.finditer(text):
        titles = [title.lower().removeprefix("_atom_site.") for title in table[1].split()]
        rows = []
        start = table.end()
        while start < len(text):
            end = text.find("\n", start) + 1 or len(text)
            if END_OF_TABLE.match(text, start, end):
                break
            rows.append(list(VALUE.finditer(text, start, end)))
            start = end
        wrong = [row for row in rows if len(row) != len(titles)]
        if wrong:
            raise ValueError(f"a row of atoms with {len(wrong[0])} values of {len(titles)}: every row must be a line")
        yield titles, table.end(), rows


def with_column(text: str) -> str:
    """The text, with a column for B factors in its tables of atoms."""
    pieces = []
    done = 0
    for titles, end_of_titles, rows in tables_of(text):
        if B_FACTOR in titles:
            continue
        pieces += [text[done:end_of_titles], f"_atom_site.{B_FACTOR_TITLE}\n"]
        done = end_of_titles
        for row in rows:
            pieces += [text[done : row[-1].end()], " ?"]
            done = row[-1].end()
    return "".join([*pieces, text[done:]])


def cif_atoms(text: str) -> Iterator[Atom]:
    """Every atom of all models, by the chains and numbers of the author."""
    for titles, _, rows in tables_of(text):
        column = {title: k for k, title in enumerate(titles)}
        chain = column.get("auth_asym_id", column.get("label_asym_id"))
        number = column.get("auth_seq_id", column.get("label_seq_id"))
        kind = column.get("label_comp_id", column.get("auth_comp_id"))
        code = column.get("pdbx_pdb_ins_code")
        if None in (chain, number, kind):
            raise ValueError("no columns auth_asym_id, auth_seq_id and label_comp_id")
        for row in rows:
            after = "" if code is None or row[code][0] in (".", "?") else row[code][0]
            value = row[column[B_FACTOR]]
            residue = unquoted(row[chain][0]), f"{row[number][0]}{after}"
            yield Atom(value.start(), value.end(), residue, unquoted(row[kind][0]))


def unquoted(word: str) -> str:
    """A value of mmCIF without its quotes."""
    return word[1:-1] if word[0] in "'\"" and len(word) > 1 else word


# ---- in a viewer -----------------------------------------------------------------------------------------------------


def how_to_look(path: Path, numbers: Sequence[float]) -> list[str]:
    """The commands of PyMOL and ChimeraX: blue to red over these numbers, residues without one in grey."""
    low, high = min(numbers), max(numbers)
    grey = low - (high - low or 1.0) / 2
    return [
        f"PyMOL:    load {path}; spectrum b, blue_white_red, minimum={low:.6g}, maximum={high:.6g}; "
        f"color grey70, b < {grey:.6g}",
        f"ChimeraX: open {path}; color byattribute bfactor palette blue:white:red range {low:.6g},{high:.6g}; "
        f"color @@bfactor<{grey:.6g} grey",
    ]
