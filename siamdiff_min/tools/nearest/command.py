"""The structures most like another one, with an E-value: `siamdiff nearest QUERY... --among VECTORS.npz`.

E is the number of unrelated chains expected to be as similar in a set of this size (docs/nearest.md). `scale.py` has
the numbers; here are the command, the vectors that it reads or makes, and its table.
"""

import contextlib
import io
import os
import sys
import tempfile
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ...files import ConfigError, StructureError, first_three, load_module, printable, replacing, write_rows
from ...names import BUNDLED
from ..table.labels import read_spreadsheet
from .scale import FEWEST, Scale, fit_scale, read_scale

ENCODER = "siamdiff-residue"  # of structures among structures
COLUMNS = ("id", "mean", "residues", "chains")  # of an .npz, a row for each structure
LENGTHS = np.arange(30, 801)  # residues of the chains that E was measured with
BLOCK = 100  # queries at a time, to bound the memory
SAMPLE = 2000  # structures of a set that tell what is usual in it, if it has FEWEST
MIDDLE, NARROW = 0.1, 0.67  # in a set of one sort the median is higher by this, or the quartiles are wider
ONE_SORT = "the set is of one sort, as this query is: E counts from what is usual in it"
TITLES = ["query", "rank", "name", "e", "bound", "cosine", "note"]  # of the table


def run(args: Namespace) -> int:
    """Do what `options.nearest` has read; returns 1 if a query was refused."""
    return fit(args) if args.fit else search(args)


def search(args: Namespace) -> int:
    """Print and write the hits of all queries; returns 1 if one was refused."""
    # the vectors
    among = single_chains(vectors_of(args.among, args.checkpoint or ENCODER), "set")
    scale = find_scale(args.scale, among["encoder"])
    given = vectors_of(args.query, args.checkpoint or among["encoder"][0])
    queries = single_chains(given, "queries")
    if queries["encoder"][1] != among["encoder"][1]:
        raise ConfigError("the vectors of the query and of the set are of different encoders: embed one of them again")
    size = len(among["id"])
    if not size or not len(queries["id"]):
        raise ConfigError("no query is left, or nothing to compare it with")

    # the hits, on the screen and in the table
    if size < FEWEST:
        print(f"{size} structures are too few to tell whether they are of one sort: E is of a mixed set")
    table = [TITLES]
    for query, one_sort, hits in nearest(scale, queries, among, args.top):
        note = ONE_SORT if one_sort else ""
        print(f"{printable(query)} among {size} chains\n       E  cosine  {note}")
        for rank, (row, e, cosine) in enumerate(hits, 1):
            name = among["id"][row]
            bound = "<" if e < 1.0001 * size * scale.chance[-1] else ""
            print(f"{bound + format(e, '.2g'):>8}  {cosine:+.3f}  {printable(name)}")
            table.append([query, rank, name, f"{e:.3g}", bound, f"{cosine:.4f}", note])
    out = args.out or Path("nearest.tsv")
    write_rows(out, table)
    print(f"{out}: {len(table) - 1} rows. E: unrelated chains expected to be as similar in a set of this size")
    return int(len(queries["id"]) < len(given["id"]))


def nearest(scale: Scale, queries: dict, among: dict, top: int) -> Iterator[tuple[str, bool, Iterator]]:
    """For each query its name, whether the set is of one sort, and the row, E and cosine of each hit."""
    targets = scale.whiten(among["mean"])
    size = len(targets)
    top = min(top, size)
    count = len(queries["id"])
    for block in np.array_split(np.arange(count), -(-count // BLOCK)):
        cosine = scale.whiten(queries["mean"][block]) @ targets.T
        likeness = scale.standardise(cosine, queries["residues"][block], among["residues"])
        one_sort = np.zeros(len(block), dtype=bool)
        if size >= FEWEST:
            likeness, one_sort = against_usual(scale, likeness)
        for k, values in enumerate(likeness):
            # the highest ones; of equal ones those that come first
            lowest = np.partition(values, -top)[-top]
            rows = np.flatnonzero(values >= lowest)
            order = np.argsort(-values[rows], kind="stable")
            rows = rows[order][:top]
            e = size * scale.probability(values[rows])
            yield queries["id"][block[k]], one_sort[k], zip(rows, e, cosine[k, rows])


def against_usual(scale: Scale, likeness: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardised cosines (K, L) of queries to a set, lowered if the set is similar to a query; and whether it is."""
    low, usual, high = scale.quartiles
    sample = likeness[:, :: -(-likeness.shape[1] // SAMPLE)]
    first, middle, third = np.quantile(sample, (0.25, 0.5, 0.75), axis=1, keepdims=True)
    stretch = (high - low) / np.maximum(third - first, 1e-9)
    one_sort = (middle - usual > MIDDLE) | (stretch < NARROW)
    shifted = (likeness - middle) * stretch + usual
    return np.minimum(likeness, shifted), one_sort[:, 0]


def vectors_of(paths: Sequence[str], checkpoint: str) -> dict[str, np.ndarray]:
    """The columns of an .npz of `siamdiff embed`; structures are embedded for it. Raises StructureError."""
    if not paths[0].endswith(".npz"):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "vectors.npz")
            options = load_module(".tools.options").embed(["--checkpoint", checkpoint, "--out", out, "--", *paths])
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    load_module(".tools.embed.command").run(options)
            finally:  # without a file that is gone right away
                print(*(line for line in said.getvalue().splitlines() if out not in line), sep="\n", file=sys.stderr)
            return vectors_of([out], checkpoint)
    try:
        with np.load(*paths) as file:
            return {name: file[name] for name in (*COLUMNS, "encoder")}
    except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile) as error:
        why = f"siamdiff embed from 0.5 on writes one of their mean; {error}"
        raise StructureError(paths[0], "no vectors that can be compared", why) from error


def find_scale(path: Path | None, encoder: np.ndarray) -> Scale:
    """The scale at a path, or that of the package for an encoder. Raises StructureError, ConfigError."""
    name, checksum = encoder[:2]
    path = path or BUNDLED / f"{name}.scale.npz"
    if not path.exists():
        raise ConfigError(f"{path}: no scale for the encoder {name}; siamdiff nearest --fit FAMILIES.tsv makes one")
    scale = read_scale(path)
    if scale.encoder[1] != checksum:
        raise ConfigError(f"{path} is the scale of another encoder than {name}, {checksum[:8]}, that made the vectors")
    return scale


def single_chains(arrays: dict[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """The rows that E was measured for; the others are named on stderr."""
    usable = (arrays["chains"] == 1) & np.isin(arrays["residues"], LENGTHS)
    if not usable.all():
        names = first_three(arrays["id"][~usable])
        reason = f"not one chain of {LENGTHS[0]} to {LENGTHS[-1]} residues (siamdiff embed --each-chain takes apart)"
        print(f"left out of the {what}: {(~usable).sum()}, {reason}: {names}", file=sys.stderr)
    return arrays | {name: arrays[name][usable] for name in COLUMNS}


def fit(args: Namespace) -> int:
    """Write a scale for the encoder of some vectors."""
    # the first chain of each family
    titles, *lines = read_spreadsheet(args.fit).values()
    titles = [title.lower() for title in titles]
    row_of = {}
    for line in lines:
        row = dict(zip(titles, line))
        if row.get("family"):
            row_of[row.get("name", row.get("id"))] = row
    arrays = single_chains(vectors_of(args.among, args.checkpoint or ENCODER), "set")
    first = {}
    for k, name in enumerate(arrays["id"]):
        if name in row_of:
            first.setdefault(row_of[name]["family"], k)
    families = sorted(first)
    chosen = [first[family] for family in families]
    names = arrays["id"][chosen]
    folds = [{*row_of[name].get("folds", "").split(",")} - {""} for name in names]

    # their scale
    scale = fit_scale(arrays["mean"][chosen], arrays["residues"][chosen], np.array(families), folds)
    out = args.out or Path("scale.npz")
    with replacing(out) as file:
        np.savez_compressed(file, **vars(scale), chains=names, encoder=arrays["encoder"][:2])
    print(f"{out}: {len(names)} chains, each of another family, and {1 / scale.chance[-1]:,.0f} unrelated pairs")
    return 0
