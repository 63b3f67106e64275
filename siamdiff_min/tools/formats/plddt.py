"""The confidence of predicted structures, pLDDT: what a file's words say, and what its B factors are.

And the structures of some confidence alone, for `--min-plddt`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ...files import UnwantedError
from ...reading.columns import BLANK, Column, changes, groups_of
from ...reading.residues import Residues
from ...reading.sources import Listing, Origin, structure_files
from ...reading.structure import Structure

# Names of programs in `_software`, such as "AlphaFold2" and "Boltz-1".
_PREDICTORS = re.compile(
    "(alphafold|colabfold|esmfold|openfold|omegafold|helixfold|rosettafold|boltz|chai|protenix)(?![a-z])", re.IGNORECASE
)
MIN_HIGH = 20  # of pLDDT, 0 to 100, the 90th percentile: 53 in the worst model seen; errors in angstrom are .2 to 4
MIN_MEAN = 0.5  # on the scale from 0 to 1, in a file that does not say what it is; errors of a good model are below


def told_by_tables(tables: Mapping) -> tuple[dict[str, dict[tuple, str]], bool | None]:
    """The pLDDT by model, then by `label_asym_id` and `label_seq_id`; and what the third part of a `Model` says."""
    metrics = {}
    for metric, name, kind in _rows(tables, "_ma_qa_metric.", "id", "name", "type"):
        metrics[metric] = f"{name} {kind}".lower()
    plddt = {metric for metric, words in metrics.items() if "plddt" in words}
    names = "metric_id", "model_id", "label_asym_id", "label_seq_id", "metric_value"
    found: dict[str, dict[tuple, str]] = {}
    for metric, model, label, place, value in _rows(tables, "_ma_qa_metric_local.", *names):
        if metric in plddt or not metrics:
            found.setdefault(model, {})[label, place] = value
    if found or plddt:
        return found, True
    methods = _texts(tables, "_exptl.method")
    if any(method not in BLANK and "THEORETICAL" not in method.upper() for method in methods):
        return {}, False
    predicted = any(map(_PREDICTORS.search, _texts(tables, "_software.name")))
    return {}, True if predicted else None


def _texts(tables: Mapping, name: str) -> list[str]:
    """The texts of a column, none if it is not there."""
    column = tables.get(name, [])
    return column if isinstance(column, list) else column.texts()


def _rows(tables: Mapping, table: str, *names: str) -> Iterator[tuple[str, ...]]:
    """The rows of some columns of a table; the first of them counts the rows."""
    columns = [_texts(tables, f"{table}{name}") for name in names]
    return zip(*(column or [""] * len(columns[0]) for column in columns))


def plddt_by_residue(columns: Mapping[str, Column], plddt: Mapping[tuple, str]) -> Column:
    """The pLDDT of the residue of every atom, "" without one: its B factor may be on another scale."""
    label, place = columns["label"], columns["label_number"]
    first = changes(label.index, place.index)
    found = [plddt.get(of_residue, "") for of_residue in zip(label.texts(first), place.texts(first))]
    found = ["" if value in BLANK else value for value in found]
    return Column.of(found, groups_of(first, len(label.index)))


def plddt_of(residues: Residues, predicted: bool | None) -> tuple[float, np.ndarray | None]:
    """The mean over residues, 0 to 100, and that of every residue (R,); nan and None if it cannot be told.

    A file that does not say what it is (`predicted` is None) holds a prediction if each residue has one B factor for
    its atoms, and not all residues have the same. If no value is above 1, the scale was 0 to 1. Low values are none:
    some programs write errors in angstrom. Residues that a table of pLDDT leaves out have nan, and do not count.
    """
    column = residues.atoms.b_factor.take(residues.row)
    first = residues.size.cumsum() - residues.size
    if not predicted:
        of_first = np.repeat(column.index[first], residues.size)
        alike = (column.index == of_first).all() and residues.size.max() > 1
        if not (alike and (of_first != of_first[0]).any()):
            return math.nan, None

    # Text to numbers.
    value_of = np.zeros(len(column.values))
    used = column.used()
    try:
        value_of[used] = [float(column.values[i] or "nan") for i in used]
    except (TypeError, ValueError):  # None, "?", "******"
        return math.nan, None
    value = value_of[column.index]
    total = np.zeros(len(first))
    for k in range(int(residues.size.max())):  # the k-th atom of each residue: added up in file order
        has = residues.size > k
        total[has] += value[first[has] + k]
    of_residue = total / residues.size
    there = of_residue[~np.isnan(of_residue)]
    if not len(there):
        return math.nan, None

    # Are they pLDDT, and on which scale?
    mean = math.fsum(there.tolist()) / len(there)
    lowest, highest = np.nanmin(value), np.nanmax(value)
    scale = 1 if highest > 1 else 100
    may_be_an_error = scale == 100 and predicted is None and mean < MIN_MEAN
    low = np.quantile(there, 0.9) * scale < MIN_HIGH
    if lowest < 0 or highest * scale > 100 or low or may_be_an_error:
        return math.nan, None
    return mean * scale, of_residue * scale


# ---- structures of some confidence -----------------------------------------------------------------------------------


def confident_files(path, min_plddt: float | None, each_chain: bool = False) -> Origin:
    """The structures under `path`; with `min_plddt` without the predicted ones whose mean pLDDT is lower."""
    origin = structure_files(path, each_chain)
    if min_plddt is None:
        return origin
    key = f"mean pLDDT from {min_plddt:g}{origin.key}"
    return replace(origin, key=key, listing=partial(_confident, origin.listing, min_plddt))


def _confident(listing: Callable[[], Listing], min_plddt: float) -> Listing:
    found = listing()
    sources = [replace(source, label=partial(_wanted, str(source), min_plddt)) for source in found.sources]
    return replace(found, sources=sources)


def _wanted(path: str, min_plddt: float, structure: Structure) -> Structure:
    """The structure as it is. Raises UnwantedError if it is a predicted one of low confidence."""
    if structure.plddt is not None:
        if structure.plddt < min_plddt:
            raise UnwantedError(path, f"mean pLDDT below {min_plddt:g}", f"{structure.plddt:.1f}")
        structure.dropped["files that name neither pLDDT nor an experiment (kept)"] += math.isnan(structure.plddt)
    return structure
