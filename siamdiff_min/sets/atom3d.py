"""The ATOM3D sets PSR, MSP, PIP and RES (Sec. 5.1, App. D; Townshend et al., 2021): LMDB folders of compressed JSON.

An item holds labels and data frames of atoms. Atoms pass through the same parsing policy as in every other format.
`samples.py` lists the labels. An item that lacks a field, or holds something else in it, fails as a whole. Rows of a
frame are counted by position; its index is not used. Nothing is unpickled.
"""

import ast
import gzip
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..files import StructureError, structure_errors
from ..protein.constants import ATOM_INDEX, ONE_LETTER, PARENT, PARENT_ATOM, RESIDUE_INDEX
from ..reading.columns import Atoms, Column
from ..reading.policy import assemble
from ..reading.sources import LMDB, Listing, Origin
from ..reading.structure import Structure, join
from .labelled_set import SPLITS, LabelledData, find_part
from .samples import SAMPLES, pack_lists


def atom3d_set(root, task: str, needed: Sequence[str] = tuple(SPLITS)) -> LabelledData:
    """The three splits of an ATOM3D set.

    Args:
        root: the folder of an official archive, or one with the folders train, val (or valid) and test in it.
        task: "psr", "msp", "pip" or "res".
        needed: the splits that must be there; no others are looked for.

    Raises StructureError if a split is missing. Its content is first read when a store is built.
    """
    origins = {}
    for split in needed:
        names = [f"{name}/{LMDB}" for name in SPLITS[split]]
        folder = find_part(root, ("", "data", ATOM3D[task].folder), names, f"{split} split of {task.upper()}").parent
        listing = partial(list_items, folder, task)
        origins[split] = Origin(folder, f"atom3d {task}", listing, folder)
    return LabelledData(**origins, about=f"ATOM3D {task.upper()}, {root}", samples=SAMPLES[task])


def list_items(folder: Path, task: str) -> Listing:
    """The items of an LMDB folder, in its order. Raises StructureError."""
    path = str(folder)
    written = _get(path, "serialization_format").decode("latin-1")
    if written != "json":
        advice = "make_lmdb_dataset(LMDBDataset(PATH), FOLDER, serialization_format='json') of ATOM3D converts it"
        raise StructureError(path, "not JSON", f"serialization_format {written[:20]!r}; {advice} (docs/data.md)")
    with structure_errors(path, "malformed set"):
        count = int(_get(path, "num_examples"))
        ids = json.loads(_get(path, "id_to_idx", b"{}"))
        name_of = {}
        for name, index in ids.items():
            name_of[index] = "/".join(_target_and_decoy(name)) if task == "psr" else name
    names = [name_of.get(index, str(index)) for index in range(count)]
    often = Counter(names)
    items = []
    for index, name in enumerate(names):
        own = name if often[name] == 1 else f"{name}#{index}"  # ids of some sets are not unique
        items.append(Item(own, path, index, task))
    return Listing(items, [])


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an LMDB folder."""

    name: str
    path: str  # the folder
    index: int
    task: str

    def read(self) -> Structure:
        """Decompress and parse the item. Raises StructureError."""
        path = f"{self.path}:{self.index}"
        item = _content(self.path, self.index)
        with structure_errors(path, "malformed item"):
            return ATOM3D[self.task].read(path, item)


@lru_cache(maxsize=4)  # of each process; LMDB refuses to open a folder twice
def _environment(path: str):
    """The opened LMDB folder."""
    with structure_errors(path, "cannot be opened"):
        import lmdb

        environment = lmdb.open(path, readonly=True, lock=False, create=False)
    # LMDB maps the file into memory, and would crash the process beyond its end.
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    size = Path(path, LMDB).stat().st_size
    if size < expected:
        environment.close()
        raise StructureError(path, "truncated", f"{size} of {expected} bytes")
    return environment


def _get(path: str, key: str, default: bytes | None = None) -> bytes:
    """The value of a key."""
    environment = _environment(path)
    with structure_errors(path, "cannot be opened"), environment.begin() as transaction:
        value = transaction.get(key.encode(), default)
    if value is None:
        raise StructureError(path, "no such item", key)
    return value


def _content(path: str, index: int):
    """An item, read but not looked into."""
    with structure_errors(f"{path}:{index}", "damaged or truncated gzip data"):
        text = gzip.decompress(_get(path, str(index)))
    with structure_errors(f"{path}:{index}", "not JSON"):
        return json.loads(text)


_TEXTS = {"chain": "chain", "code": "insertion_code", "residue": "resname", "atom": "name", "altloc": "altloc"}
_COLUMNS = [*_TEXTS.values(), "residue", "occupancy", "element", *"xyz", "model", "subunit"]
_END = ("subunit", "model", "chain", "residue")  # what a pair tells of each of its residues


class Frame(NamedTuple):
    """A data frame of atoms, with the model and the subunit of every row."""

    atoms: Atoms
    model: Column
    subunit: Column


def _columns(item: dict, name: str, wanted: Sequence[str]) -> list[tuple]:
    """Some columns of a data frame. Raises ValueError if one is missing or the rows differ in length."""
    header = item[name]["columns"]
    rows = item[name]["data"]
    for column in wanted:
        if column not in header:
            raise ValueError(f"{name}: no column {column}")
    table = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(header, ())
    return [table[column] for column in wanted]


def _frame(item: dict, name: str) -> Frame:
    """A frame of atoms. Raises ValueError or TypeError if it holds something else."""
    column = dict(zip(_COLUMNS, _columns(item, name, _COLUMNS)))
    texts = {field: Column.of(column[title]).map(str.strip) for field, title in _TEXTS.items()}
    texts["code"] = texts["code"].map(lambda code: code or " ")
    size = len(column["residue"])
    atoms = Atoms(
        **texts,
        number=np.array([operator.index(number) for number in column["residue"]], np.int64),
        occupancy=np.array([1.0 if value is None else float(value) for value in column["occupancy"]]),
        xyz=np.stack([[float(value) for value in column[axis]] for axis in "xyz"], axis=1),
        element=Column.of(column["element"]).map(lambda text: (text or "").upper()),
        hetero=np.zeros(size, bool),
        b_factor=Column.constant("", size),
        place=np.arange(size),
        marks=(),
    )
    return Frame(atoms, Column.of(column["model"]), Column.of(column["subunit"]))


def _structure(path: str, frame: Frame, subunit=None) -> Structure:
    """The protein of the first model: of one subunit, or of all. `path` names the item in messages."""
    rows = np.flatnonzero(frame.subunit.where(lambda name: subunit is None or name == subunit))
    if not len(rows):
        raise StructureError(path, "no atoms in it", "" if subunit is None else f"subunit {subunit!r:.100}")
    model = frame.model.index[rows]
    return assemble(path, frame.atoms.take(rows[model == model[0]]), {})


def _rows_of(keys: Iterable) -> dict[tuple, list[int]]:
    """Key -> its rows, in order. Residues that differ in their insertion code alone may share a key."""
    rows = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows


def _target_and_decoy(text: str) -> tuple[str, str]:
    """The two parts of an id of PSR, which is written as a Python tuple."""
    match ast.literal_eval(text):
        case (str(target), str(decoy)):
            return target, decoy
    raise ValueError(f"id is {text!r:.100}, not (target, decoy)")


def _read_psr(path: str, item: dict) -> Structure:
    """Protein structure ranking: one model of a protein and its GDT_TS."""
    target, _ = _target_and_decoy(item["id"])
    score = float(item["scores"]["gdt_ts"])
    if not 0 <= score <= 1:  # also refuses NaN
        raise ValueError(f"gdt_ts is {score}, not between 0 and 1")
    labels = {"kind": "regression", "values": [score], "target": target}
    return replace(_structure(path, _frame(item, "atoms")), labels=labels)


_MUTATION = re.compile(r"([A-Z])(\S)(-?[0-9]{1,9})([A-Za-z]?)([A-Z])")  # wild type, chain, number, code, mutant


def _read_msp(path: str, item: dict) -> Structure:
    """MSP: a complex, its mutant, does it stabilise? 2VLO_A_B_AB95K: Ala 95 of chain B is replaced by Lys."""
    name = item["id"]
    stabilised = str(item["label"])
    if stabilised not in ("0", "1"):
        raise ValueError(f"label is {stabilised!r:.20}")
    sides = [_structure(path, _frame(item, f"{side}_atoms")) for side in ("original", "mutated")]
    row_of = [{position: row for row, position in enumerate(side.positions)} for side in sides]
    mutated: list[list[int]] = [[], []]
    for text in name.rpartition("_")[2].split(","):
        match = _MUTATION.fullmatch(text)
        if match is None:
            raise ValueError(f"id is {name!r:.100}, without a mutation")
        wild, chain, number, code, mutant = match.groups()
        places = [(chain, int(number), c) for c in (code or " ", code.upper() or " ")]
        for side, own_row, letter, rows in zip(sides, row_of, (wild, mutant), mutated, strict=True):
            row = next((own_row[place] for place in places if place in own_row), None)
            present = "nothing" if row is None else ONE_LETTER[side.protein.residue_type[row]]
            if present != letter:
                raise StructureError(path, "mutation not in the structure", f"{text!r}: {present} for {letter}")
            rows.append(row)
    first = sides[0].protein.num_residues
    mutated[1] = [first + row for row in mutated[1]]
    return join(sides, first=first, mutated=mutated, label=int(stabilised))


def _read_pip(path: str, item: dict) -> Structure:
    """Protein interface prediction: two subunits and which of their residues touch.

    If the frame also has the subunits unbound (four in all), the two that the positive pairs name are taken. An item
    without positive pairs, or whose pairs name other than two subunits, fails: no sample could be drawn from it. A pair
    knows no insertion codes: it means the first residue with that number.
    """
    # the pairs that touch, and the two subunits that they are of
    frame = _frame(item, "atoms_pairs")
    (touching,) = _columns(item, "atoms_neighbors", ["label"])
    ends = []
    for end in (0, 1):
        columns = _columns(item, "atoms_neighbors", [f"{name}{end}" for name in _END])
        subunit, model, chain, number = columns
        ends.append(zip(subunit, model, map(str.strip, chain), number))
    pairs = [pair for *pair, touch in zip(*ends, touching) if touch == 1]
    subunits = list(dict.fromkeys(end[0] for pair in pairs for end in pair))
    if len(subunits) != 2:
        raise StructureError(path, "positive pairs of other than two subunits", f"{subunits!r:.200}")

    # their residues, as pairs name them
    sides = [_structure(path, frame, name) for name in subunits]
    keys = []
    for name, side in zip(subunits, sides, strict=True):
        model, *_ = frame.model.texts(frame.subunit.where(name.__eq__))
        keys += [(name, model, chain, number) for chain, number, _ in side.positions]
    rows = _rows_of(keys)

    # the pairs by rows
    row_pairs = set()
    dropped = Counter()
    for left, right in pairs:
        if left[0] != right[0] and left in rows and right in rows:
            row_pairs.add(tuple(sorted((rows[left][0], rows[right][0]))))
        else:
            dropped["pairs that are not of a residue in each protein"] += 1
    if not row_pairs:
        raise StructureError(path, "no positive pairs", f"{len(pairs)} are not of a residue in each protein")
    ambiguous = [row for row, key in enumerate(keys) if len(rows[key]) > 1]
    pairs = torch.tensor(sorted(row_pairs), dtype=torch.int32)
    joined = join(sides, first=sides[0].protein.num_residues, pairs=pairs, ambiguous=ambiguous)
    return replace(joined, dropped=joined.dropped + dropped)


def _read_res(path: str, item: dict) -> Structure:
    """RES: a structure, the residues whose types are predicted, and the atoms listed around each."""
    frame = _frame(item, "atoms")
    (names,) = _columns(item, "labels", ["subunit"])
    structure = _structure(path, frame)
    atom_of = _atoms_of_rows(structure, frame)

    # The name of an environment has no insertion code, so the type decides between residues that share a number.
    types = structure.protein.residue_type.tolist()
    keys = ((chain, str(number), kind) for (chain, number, _), kind in zip(structure.positions, types))
    rows_of = _rows_of(keys)

    # the atoms around each residue that is told without doubt
    environments = {}
    dropped = Counter()
    for name, indices in zip(names, item["subunit_indices"], strict=True):
        chain, number, residue = ["", "", *name.rsplit("_", 2)][-3:]
        kind = RESIDUE_INDEX.get(PARENT.get(residue, residue))
        rows = rows_of.get((chain.strip(), number, kind), [])
        listed = np.fromiter(map(operator.index, indices), np.int64)
        near = np.unique(atom_of[listed])
        if len(rows) == 1 and rows[0] not in environments:
            environments[rows[0]] = near[near >= 0]
        else:
            dropped["environments of no residue of the protein, of several, or listed before"] += 1
    if not environments:
        raise StructureError(path, "no environments", f"none of {len(names)} is of a residue that is in the protein")
    labels = {"residues": list(environments), **pack_lists([*environments.values()])}
    return replace(structure, dropped=structure.dropped + dropped, labels=labels)


def _atoms_of_rows(structure: Structure, frame: Frame) -> np.ndarray:
    """For every row of a frame its atom in the structure; -1 if the parsing policy left it out."""
    protein = structure.protein
    positions = structure.positions
    owners = zip(protein.atom_residue.tolist(), protein.atom_name.tolist())
    atom_of = {(*positions[residue], name): i for i, (residue, name) in enumerate(owners)}
    found = np.full(len(frame.atoms), -1)
    rows = np.flatnonzero(frame.model.index == frame.model.index[0])
    atoms = frame.atoms.take(rows)
    place = atoms.chain.texts(), atoms.number.tolist(), atoms.code.texts()
    for row, chain, number, code, residue, atom in zip(rows, *place, atoms.residue.texts(), atoms.atom.texts()):
        name = ATOM_INDEX.get(PARENT_ATOM.get((residue, atom), atom))
        found[row] = atom_of.get((chain, number, code, name), -1)
    return found


class OfTask(NamedTuple):
    """What differs between the tasks."""

    folder: str  # of the splits in an official archive
    read: Callable[[str, dict], Structure]


ATOM3D = {
    "psr": OfTask("split-by-year/data", _read_psr),
    "msp": OfTask("split-by-sequence-identity-30/data", _read_msp),
    "pip": OfTask("DIPS-split/data", _read_pip),
    "res": OfTask("split-by-cath-topology/data", _read_res),
}
