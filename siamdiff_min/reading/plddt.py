"""The confidence of predicted structures, pLDDT: what a file's words say, and what its B factors are."""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from .columns import BLANK
from .residues import Residues

# Names of programs in `_software`, such as "AlphaFold2" and "Boltz-1".
_PREDICTORS = re.compile(
    "(alphafold|colabfold|esmfold|openfold|omegafold|helixfold|rosettafold|boltz|chai|protenix)(?![a-z])", re.IGNORECASE
)
CONFIDENCE = ("_ma_qa_metric.", "_ma_qa_metric_local.", "_exptl.", "_software.")  # the tables that tell it
MIN_HIGHEST = 20  # of pLDDT, 0 to 100; lower ones are errors in angstrom, .2 to 4
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
    return tables[name].texts() if name in tables else []


def _rows(tables: Mapping, table: str, *names: str) -> Iterator[tuple[str, ...]]:
    """The rows of some columns of a table; the first of them counts the rows."""
    columns = [_texts(tables, f"{table}{name}") for name in names]
    return zip(*(column or [""] * len(columns[0]) for column in columns))


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
    if lowest < 0 or not MIN_HIGHEST <= highest * scale <= 100 or may_be_an_error:
        return math.nan, None
    return mean * scale, of_residue * scale
