"""mmCIF files to rows, by Biopython's parser. Chain ids and residue numbers are the author's."""

import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from Bio.PDB.MMCIF2Dict import MMCIF2Dict

from ..files import StructureError
from ..protein.constants import PARENT
from .rows import NO_NUMBER, OTHER_MODELS, AtomRow, Model, text_lines

COLUMNS = {  # of `_atom_site`: possible names, the first with a value counts; then the default of a missing column
    "model": ("pdbx_pdb_model_num", "1"),
    "chain": ("auth_asym_id", "label_asym_id", None),
    "number": ("auth_seq_id", "label_seq_id", None),
    "code": ("pdbx_pdb_ins_code", "?"),
    "residue": ("label_comp_id", "auth_comp_id", None),
    "atom": ("label_atom_id", "auth_atom_id", None),
    "altloc": ("label_alt_id", "."),
    "occupancy": ("occupancy", "?"),
    "x": ("cartn_x", None),
    "y": ("cartn_y", None),
    "z": ("cartn_z", None),
    "element": ("type_symbol", "?"),
    "group": ("group_pdb", "ATOM"),
    "label": ("label_asym_id", "."),
    "label_number": ("label_seq_id", "."),
    "b_factor": ("b_iso_or_equiv", "?"),
}
BLANK = {".": " ", "?": " "}  # how mmCIF writes that there is no value


class _Tables(MMCIF2Dict):
    """Biopython's parser. Lines without quotes or comments, nearly all, take a short cut."""

    def __setitem__(self, key, value):
        # To Biopython a value with _ at the start of a row ends the table; keys and values follow in turn.
        if key in self or not (key.startswith("_") or key == "data_"):
            raise ValueError(f"{key!r:.40} stands where a new key should be: a table ends too early")
        super().__setitem__(key, value)

    def _splitline(self, line):
        if "'" in line or '"' in line or "#" in line:
            return super()._splitline(line)
        return map(sys.intern, line.split())  # most values occur again and again: a third of the memory


def _tables(path: str, content: bytes) -> dict[str, list[str]]:
    """The columns of the first data block with atoms, whose `_atom_site` is complete. All blocks must be whole."""
    text, first = "".join(text_lines(content)), {}
    starts = [match.start() for match in re.finditer("^data_", text, re.MULTILINE | re.IGNORECASE)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        block = _Tables(io.StringIO("data_" + text[start + 5 : end]))
        tables = {name.lower(): column for name, column in block.items()}
        columns = {name: column for name, column in tables.items() if name.startswith("_atom_site.")}
        sizes = sorted(map(len, columns.values()))
        if sizes and sizes[0] != sizes[-1]:
            raise StructureError(path, "truncated or damaged table", f"{sizes[0]} to {sizes[-1]} values in its columns")
        others = (column for name, column in block.items() if not name.lower().startswith(("_atom_site.", "data_")))
        if any("ATOM" in column or "HETATM" in column for column in others):
            raise ValueError("rows of atoms in a table of something else")
        first = first or (tables if any(columns.values()) else {})
    return first


def mmcif_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of an mmCIF file after the other. Chain ids and residue numbers are the author's."""
    tables = _tables(path, content)
    if not tables:
        return
    size = next(len(column) for name, column in tables.items() if name.startswith("_atom_site."))
    confidence, predicted = _confidence(tables)

    def column(*names, default):
        columns = [tables[f"_atom_site.{name}"] for name in names if f"_atom_site.{name}" in tables]
        if not columns and default is None:
            raise StructureError(path, "unreadable", f"no column {names[0]}")
        if len(columns) == 2 and any(blank in columns[0] for blank in BLANK):
            return [second if first in BLANK else first for first, second in zip(*columns)]
        return columns[0] if columns else [default] * size

    models, *others = (column(*names, default=default) for *names, default in COLUMNS.values())
    order = {name: i for i, name in enumerate(dict.fromkeys(models))}
    if not all(name.isdigit() or name in BLANK for name in order):  # a token too many or too few in some rows
        raise ValueError(f"models {', '.join(order)[:50]} in place of numbers")
    rows = sorted(zip(models, *others), key=lambda row: order[row[0]])  # a model's rows may lie apart
    for model, atoms in groupby(rows, key=itemgetter(0)):
        kept, dropped = [], Counter({OTHER_MODELS: len(order) - 1})
        for _, chain, number, code, residue, atom, altloc, occupancy, x, y, z, element, group, label, place, b in atoms:
            if number in BLANK:
                dropped[f"amino acids: {NO_NUMBER}" if residue in PARENT else NO_NUMBER] += 1
                continue
            code, altloc = BLANK.get(code, code), BLANK.get(altloc, altloc)
            occupancy = 1.0 if occupancy in BLANK else float(occupancy)
            xyz, element, hetero = (float(x), float(y), float(z)), element.upper(), group.upper() == "HETATM"
            number, marks = int(number), ("" if label in BLANK else label,)
            of_atom = atom, altloc, occupancy, xyz, element, confidence.get((model, label, place), b)
            kept.append(AtomRow(chain, number, code, residue, *of_atom, hetero, marks))
        yield kept, dropped, predicted


# Names of programs in `_software`, such as "AlphaFold2" and "Boltz-1".
_PREDICTORS = re.compile(
    "(alphafold|colabfold|esmfold|openfold|omegafold|helixfold|rosettafold|boltz|chai|protenix)(?![a-z])", re.IGNORECASE
)


def _confidence(tables: dict[str, list[str]]) -> tuple[dict[tuple, str], bool | None]:
    """The pLDDT by model, `label_asym_id` and `label_seq_id`, and what the third part of a `Model` says."""

    def rows(table: str, *names: str) -> Iterator[tuple[str, ...]]:
        columns = [tables.get(f"_{table}.{name}", []) for name in names]
        return zip(*(column or [""] * len(columns[0]) for column in columns))

    metrics = {metric: f"{name} {kind}".lower() for metric, name, kind in rows("ma_qa_metric", "id", "name", "type")}
    plddt = {metric for metric, words in metrics.items() if "plddt" in words}
    local = rows("ma_qa_metric_local", "metric_id", "model_id", "label_asym_id", "label_seq_id", "metric_value")
    found = {tuple(place): value for metric, *place, value in local if metric in plddt or not metrics}
    if found or plddt:
        return found, True
    methods = tables.get("_exptl.method", ())
    if any(method not in BLANK and "THEORETICAL" not in method.upper() for method in methods):
        return {}, False
    return {}, True if any(map(_PREDICTORS.search, tables.get("_software.name", ()))) else None


def is_mmcif(content: bytes) -> bool:
    """Whether the first line that is neither blank nor a comment opens a data block."""
    lines = (line for line in text_lines(content) if line.strip() and not line.startswith("#"))
    return next(lines, "").lower().startswith("data_")
