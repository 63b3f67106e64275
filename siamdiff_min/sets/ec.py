"""The EC set (Sec. 5.1, App. D): chains of the PDB and their enzyme numbers, in the splits of DeepFRI.

The structures are folders or zips (read in place) of files named by PDB id and chain, as in `1ABC-A.pdb`. Two tables
give the enzyme numbers, and how near the test chains are to the training split. Every file that is not used is listed
with the reason.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..files import StructureError, read_rows, structure_errors
from ..reading.sources import Listing, Origin, find_structures
from .labelled_set import SPLITS, LabelledData, find_part

FOLDERS = ("", "EnzymeCommission")
ANNOTATION = ("nrPDB-EC_annot.tsv", "nrPDB-EC_2020.04_annot.tsv")
TEST_TABLE = ("nrPDB-EC_test.csv", "nrPDB-EC_2020.04_test.csv")


def ec_set(root, cutoff: int = 95, needed: Sequence[str] = tuple(SPLITS)) -> LabelledData:
    """The three splits of the EC set.

    Args:
        root: folder with train, valid (or val) and test, each a folder or a zip, and the two tables of the official
            archive.
        cutoff: 30, 40, 50, 70 or 95 %; the test split keeps chains with less identity to training, by the table.
        needed: the splits that must be there; no others are looked for.

    Raises StructureError: a split or table is missing or malformed, the table lacks the cutoff.
    """
    # The two tables.
    annotation = find_part(root, FOLDERS, ANNOTATION, "labels of EC")
    classes, annotated = _read_annotation(annotation)
    test_table = find_part(root, FOLDERS, TEST_TABLE, "table of the test split of EC")
    below = _read_cutoffs(test_table, cutoff)

    # The files of every split.
    origins = {}
    seen = Counter()
    for split in needed:
        names = [*SPLITS[split], *(f"{name}.zip" for name in SPLITS[split])]
        path = find_part(root, FOLDERS, names, f"{split} split of EC")
        chains = {name: numbers for name, numbers in annotated.items() if split != "test" or name in below}
        listing = _listing(path, chains)
        seen.update(source.name for source in listing.sources)
        origins[split] = Origin(path, f"ec {chains}", partial(replace, listing), path)

    about = f"EC, {root}: {len(classes)} classes, {len(annotated)} chains with labels"
    shared = sorted(chain for chain, count in seen.items() if count > 1)
    if shared:
        about += f"; {len(shared)} in more than one split, e.g. {shared[0]}"
    return LabelledData(**origins, classes=classes, about=about)


def _listing(path: Path, chains: dict[str, list[str]]) -> Listing:
    """The files of these chains, which have these classes; sorted by name."""
    files = find_structures(path)
    used = {}
    skipped = list(files.skipped)
    for file in files.sources:
        name = chain_id(file.name.rpartition("/")[2])
        if name is None:
            skipped.append((str(file), "no PDB id and chain in the name"))
        elif name not in chains:
            skipped.append((str(file), "no labels, or not in this split (--cutoff)"))
        elif name in used:
            skipped.append((str(file), "another file of the same chain"))
        else:
            labels = {"kind": "labels", "values": [chains[name]]}
            used[name] = replace(file, name=name, label=partial(replace, labels=labels))
    return Listing([used[name] for name in sorted(used)], skipped)


def chain_id(text: str) -> str | None:
    """PDB id and chain as the tables write them: "2FOR-A" for 2for_A, 2FOR-A_0001. Chains keep their case."""
    match = re.match(r"([0-9][A-Za-z0-9]{3})[-_.]([A-Za-z0-9]+)", text)
    return f"{match[1].upper()}-{match[2]}" if match else None


def _by_chain(rows: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    """Rows by the chain in their first cell. Raises ValueError if a cell names no chain, or a chain has two rows."""
    chains = {}
    for text, *cells in rows:
        name = chain_id(text)
        if name is None:
            raise ValueError(f"no chain: {text!r:.100}")
        if name in chains:
            raise ValueError(f"a second row of a chain: {text!r:.100}")
        chains[name] = cells
    return chains


def _read_annotation(path: Path) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The names of all classes in order, and those of every chain."""
    rows = read_rows(path).values()
    with structure_errors(path, "malformed table"):
        numbers_title, numbers, chains_title, *chains = rows
        if not numbers_title[0].startswith("### EC-numbers") or not chains_title[0].startswith("### PDB-chain"):
            raise ValueError("no lines '### EC-numbers' and '### PDB-chain'")
        classes = tuple("\t".join(numbers).rstrip("\t").split("\t"))  # as Excel leaves it

        # The numbers of every chain stand in one cell.
        annotated = {}
        for name, row in _by_chain(chains).items():
            if not row or any(row[1:]):
                raise ValueError(f"{len(row)} cells of labels for {name}")
            annotated[name] = [number for number in row[0].split(",") if number]
        unknown = sorted(set().union(*annotated.values()) - {*classes})
        if unknown:
            raise ValueError(f"{unknown[0]!r:.100} is not among the labels")
    return classes, annotated


def _read_cutoffs(path: Path, cutoff: int) -> set[str]:
    """The chains of the test split whose identity to training is below `cutoff` percent."""
    rows = read_rows(path, ",").values()
    with structure_errors(path, "malformed table"):
        (_, *header), *chains = rows
        percent = [int(re.fullmatch(r"\s*<?([0-9]{1,3})%?\s*", name)[1]) for name in header]  # "<30%"
        if cutoff not in percent:
            raise StructureError(path, "no such cutoff", f"{cutoff}, there are {percent}")
        column = percent.index(cutoff)
        return {name for name, cells in _by_chain(chains).items() if ("0", "1").index(cells[column])}
