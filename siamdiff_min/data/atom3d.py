"""The ATOM3D sets PSR, MSP, PIP and RES (Sec. 5.1, App. D; Townshend et al., 2021): LMDB folders of compressed JSON.

An item is a data frame of atoms and its labels. The atoms pass through the parsing policy of every other format, the
labels become a note beside the protein (`samples.py` says which). Nothing is unpickled, and whatever an item holds,
the outcome is a `Structure` or a `StructureError`. Rows of a frame are counted by position, its index is not used.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from ..files import StructureError
from ..protein.constants import ATOM_INDEX, ONE_LETTER, PARENT, PARENT_ATOM, RESIDUE_INDEX, O
from ..protein.structure import AtomRow, Structure, assemble, join
from .samples import LabelledData, write_note
from .structures import Listing, Origin

LAYOUT = {  # folder of the splits in the official archives
    "psr": "split-by-year/data",
    "msp": "split-by-sequence-identity-30/data",
    "pip": "DIPS-split/data",
    "res": "split-by-cath-topology/data",
}
SPLITS = {"train": ("train",), "valid": ("val", "valid"), "test": ("test",)}
MAX_BYTES = 64 * 2**20  # of decompressed JSON: about half a million atoms


def find(root, task: str) -> LabelledData:
    """The three splits of an ATOM3D set.

    Args:
        root: the folder of an official archive, or one with the folders train, val (or valid) and test in it.
        task: "psr", "msp", "pip" or "res".

    Raises:
        StructureError: where a split is missing. Whether it can be read shows when a store is built from it.
    """
    root = Path(root)
    places = [root, root / "data", root / Path(LAYOUT[task]).name, root / LAYOUT[task]]
    place = next((p for p in places if any((p / name).is_dir() for name in sum(SPLITS.values(), ()))), root)
    origins = {}
    for split, names in SPLITS.items():
        folder = next((place / name for name in names if (place / name / "data.mdb").is_file()), None)
        if folder is None:
            expected = f"expected {' or '.join(f'{name}/data.mdb' for name in names)} there or in {LAYOUT[task]}"
            raise StructureError(place, f"no {split} split of {task.upper()}", expected)
        status = (folder / "data.mdb").stat()
        state = f"atom3d {task} {status.st_size} {status.st_mtime_ns}"
        origins[split] = Origin(folder, hashlib.sha256(state.encode()).hexdigest(), partial(_listing, folder, task))
    return LabelledData(**origins, about=f"ATOM3D {task.upper()}, {place}")


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an LMDB folder."""

    name: str
    path: str  # the folder
    index: int
    task: str

    def read(self) -> Structure:
        """Decompress and parse the item. Raises StructureError."""
        label = f"{self.path}:{self.index}"
        item = _json(label, _decompress(label, _get(self.path, str(self.index))))
        try:
            if not isinstance(item, dict):
                raise _Malformed("not a record")
            return _READERS[self.task](label, item)
        except (_Malformed, OverflowError) as error:  # the latter from whole numbers beyond any float
            raise StructureError(label, "malformed item", str(error)) from error


class _Malformed(Exception):
    """A field that is missing or holds something else than it should."""


# ---- LMDB ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)  # of each process; LMDB refuses to open a folder twice
def _environment(path: str):
    """The opened LMDB folder, and the exception type of the package."""
    try:
        import lmdb
    except ImportError as error:
        raise ImportError(f"{path} can only be read with the package lmdb: pip install lmdb") from error
    try:
        environment = lmdb.open(path, readonly=True, lock=False, create=False)
    except lmdb.Error as error:
        raise StructureError(path, "cannot be opened", str(error)) from error
    # LMDB maps the file into memory, and would crash the process beyond its end.
    expected = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    found = (Path(path) / "data.mdb").stat().st_size
    if found < expected:
        environment.close()
        raise StructureError(path, "truncated", f"{found} of {expected} bytes")
    return environment, lmdb.Error


def _get(path: str, key: str) -> bytes:
    """The value of a key."""
    environment, error_type = _environment(path)
    try:
        with environment.begin() as transaction:
            value = transaction.get(key.encode())
    except error_type as error:
        raise StructureError(path, "cannot be opened", str(error)) from error
    if value is None:
        raise StructureError(path, "no such item", key)
    return value


def _listing(folder: Path, task: str) -> Listing:
    """The items of a folder, in its order."""
    path = str(folder)
    count = _get(path, "num_examples")
    environment, _ = _environment(path)
    if not count.isdigit() or int(count[:20]) > environment.stat()["entries"]:
        raise StructureError(path, "malformed set", f"num_examples is {count[:20]!r}")
    kind = _get(path, "serialization_format").decode("latin-1")
    if kind == "pkl":
        raise StructureError(path, "pickled", "unpickling runs whatever code the file holds; take the set as JSON")
    if kind != "json":
        advice = "convert it with ATOM3D's make_lmdb_dataset(..., serialization_format='json')"
        raise StructureError(path, "not JSON", f"serialization_format {kind[:20]!r}; {advice}")
    names = _names(path, int(count), task)
    return Listing([Item(name, path, index, task) for index, name in enumerate(names)], [])


def _names(path: str, count: int, task: str) -> list[str]:
    """A name of its own for every item: its id, or its number where the set lists no ids."""
    names = [str(index) for index in range(count)]
    try:
        table = _json(path, _get(path, "id_to_idx"))
    except StructureError as error:
        if error.reason != "no such item":
            raise
        return names
    if not isinstance(table, dict):
        raise StructureError(path, "malformed set", "id_to_idx is not a record")
    for name, index in table.items():
        if type(index) is int and 0 <= index < count:
            try:
                names[index] = "/".join(_target_and_decoy(name)) if task == "psr" else _utf8(name)
            except _Malformed as error:
                raise StructureError(path, "malformed set", f"id_to_idx: {error}") from error
    often = Counter(names)
    return [name if often[name] == 1 else f"{name}#{index}" for index, name in enumerate(names)]


def _decompress(label: str, data: bytes) -> bytes:
    """The content of one gzip member; a small one can decompress to anything."""
    stream = zlib.decompressobj(wbits=31)  # gzip, with its checksum
    try:
        content = stream.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise StructureError(label, "damaged or truncated gzip data", str(error)) from error
    if stream.unconsumed_tail:
        raise StructureError(label, "too large", f"more than {MAX_BYTES >> 20} MB")
    if not stream.eof or stream.unused_data:
        raise StructureError(label, "damaged or truncated gzip data", "no end, or something behind it")
    return content


def _json(label: str, content: bytes):
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StructureError(label, "not JSON", str(error)[:200]) from error


# ---- fields and frames -----------------------------------------------------------------------------------------------

_NUMBER, _TEXT, _WHOLE = (float, int), (str,), (int,)
_PLACE_COLUMNS = {"subunit": (int, str), "model": (int, str), "chain": _TEXT, "residue": _WHOLE}
_PAIR_COLUMNS = {f"{name}{end}": kinds for end in (0, 1) for name, kinds in _PLACE_COLUMNS.items()}
_ATOM_COLUMNS = _PLACE_COLUMNS | {
    **dict.fromkeys(["insertion_code", "resname", "name", "altloc"], _TEXT),
    **dict.fromkeys(["x", "y", "z"], _NUMBER),
    "occupancy": (float, int, type(None)),
    "element": (str, type(None)),
}


def _field(record: dict, name: str, kinds: tuple[type, ...]):
    """A field of exactly one of these types (a bool is no int)."""
    if name not in record or type(record[name]) not in kinds:
        raise _Malformed(f"{name} is {type(record[name]).__name__}" if name in record else f"no {name}")
    return record[name]


def _columns(item: dict, name: str, kinds: dict[str, tuple[type, ...]]) -> list[tuple]:
    """The columns of a data frame, each of values of its types."""
    frame = _field(item, name, (dict,))
    header, data = _field(frame, "columns", (list,)), _field(frame, "data", (list,))
    if set(map(type, header)) - {str} or set(map(type, data)) - {list} or set(map(len, data)) - {len(header)}:
        raise _Malformed(f"{name} is not a table")
    table = dict(zip(header, zip(*data) if data else [()] * len(header)))
    for column, types in kinds.items():
        if column not in table:
            raise _Malformed(f"{name}: no {column}")
        if wrong := set(map(type, table[column])) - set(types):
            raise _Malformed(f"{name}: {column} is {min(kind.__name__ for kind in wrong)}")
    return [table[column] for column in kinds]


@dataclass(frozen=True)
class _Atoms:
    """A frame of atoms by position."""

    rows: list[AtomRow]
    model: tuple
    subunit: tuple

    def structure(self, label: str, subunit=None) -> Structure:
        """The protein of the first model, of one subunit or of all rows."""
        places = [i for i, name in enumerate(self.subunit) if subunit is None or name == subunit]
        if not places:
            raise StructureError(label, "no atoms in it", "" if subunit is None else f"subunit {subunit!r:.100}")
        first = self.model[places[0]]
        return assemble(label, [self.rows[i] for i in places if self.model[i] == first], Counter())


def _atoms(item: dict, name: str) -> _Atoms:
    """A frame of atoms in the form that the parsing policy takes."""
    subunit, model, chain, number, code, residue, atom, altloc, x, y, z, occupancy, element = _columns(
        item, name, _ATOM_COLUMNS
    )
    columns = (
        [text.strip() for text in chain],
        number,
        [text or " " for text in code],
        [text.strip() for text in residue],
        atom,
        altloc,
        [1.0 if value is None else value for value in occupancy],
        zip(map(float, x), map(float, y), map(float, z)),
        [(text or "").upper() for text in element],
    )
    return _Atoms(list(map(AtomRow._make, zip(*columns))), model, subunit)


def _positions(structure: Structure) -> list[tuple[str, int, str]]:
    """Chain, number and insertion code of every residue."""
    protein = structure.protein
    chains = [structure.chain_names[chain] for chain in protein.chain.tolist()]
    return list(zip(chains, protein.residue_number.tolist(), map(chr, protein.insertion_code.tolist())))


# ---- the four tasks --------------------------------------------------------------------------------------------------


def _target_and_decoy(text: str) -> tuple[str, str]:
    """The two parts of an id of PSR, which is written as a Python tuple."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of backslashes
        try:
            parts = ast.literal_eval(text) if len(text) < 1000 else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            parts = None
    if type(parts) is not tuple or [type(part) for part in parts] != [str, str]:
        raise _Malformed(f"id is {text[:100]!r}, not (target, decoy)")
    return tuple(map(_utf8, parts))


def _utf8(text: str) -> str:
    """JSON can spell halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _read_psr(label: str, item: dict) -> Structure:
    """Protein structure ranking: one model of a protein and its GDT_TS."""
    target, _ = _target_and_decoy(_field(item, "id", _TEXT))
    score = _field(_field(item, "scores", (dict,)), "gdt_ts", _NUMBER)
    if not 0 <= score <= 1:  # also refuses NaN
        raise _Malformed(f"gdt_ts is {score!r:.20}, not between 0 and 1")
    structure = _atoms(item, "atoms").structure(label)
    return replace(structure, note=write_note({"target": target, "gdt_ts": float(score)}))


_MUTATION = re.compile(r"([A-Z])(\S)(-?[0-9]{1,9})([A-Za-z]?)([A-Z])")  # wild type, chain, number, code, mutant


def _read_msp(label: str, item: dict) -> Structure:
    """Mutation stability prediction: a complex, its mutant, and whether the mutation stabilises it.

    The mutation is the last part of the id: `2VLO_A_B_AB95K` has Ala 95 of chain B replaced by Lys; several are
    joined by commas.
    """
    name, stabilised = _field(item, "id", _TEXT), _field(item, "label", (str, int))
    if str(stabilised) not in ("0", "1"):
        raise _Malformed(f"label is {str(stabilised)[:20]!r}")
    sides = [_atoms(item, f"{side}_atoms").structure(label) for side in ("original", "mutated")]
    places = [{key: row for row, key in enumerate(_positions(side))} for side in sides]
    mutated: list[list[int]] = [[], []]
    for text in name.rpartition("_")[2].split(","):
        match = _MUTATION.fullmatch(text)
        if match is None:
            raise _Malformed(f"id is {name[:100]!r}, without a mutation")
        wild, chain, number, code, mutant = match.groups()
        for side, place, letter, rows in zip(sides, places, (wild, mutant), mutated):
            keys = [(chain, int(number), c) for c in (code or " ", code.upper() or " ")]
            row = next((place[key] for key in keys if key in place), None)
            found = "nothing" if row is None else ONE_LETTER[side.protein.residue_type[row]]
            if found != letter:
                raise StructureError(label, "mutation not in the structure", f"{text!r}: {found} for {letter}")
            rows.append(row)
    first = sides[0].protein.num_residues
    mutated[1] = [first + row for row in mutated[1]]
    return join(sides, write_note({"first": first, "mutated": mutated, "label": int(stabilised)}))


def _read_pip(label: str, item: dict) -> Structure:
    """Protein interface prediction: two subunits and which of their residues touch.

    Where the frame also has the subunits unbound (four in all), the two that the positive pairs name are taken. Items
    without positive pairs, or whose pairs name other than two subunits, are failures: no sample could be drawn from
    them. A pair knows no insertion codes: it means the first residue with that number.
    """
    atoms = _atoms(item, "atoms_pairs")
    *columns, labels = _columns(item, "atoms_neighbors", _PAIR_COLUMNS | {"label": _NUMBER})
    columns[2], columns[6] = ([text.strip() for text in columns[i]] for i in (2, 6))  # the chains
    pairs = [(row[:4], row[4:]) for *row, positive in zip(*columns, labels) if positive == 1]
    subunits = list(dict.fromkeys(end[0] for pair in pairs for end in pair))
    if not pairs:
        raise StructureError(label, "no positive pairs")
    if len(subunits) != 2:
        raise StructureError(label, "pairs of other than two subunits", repr(subunits)[:200])
    sides = [atoms.structure(label, name) for name in subunits]
    place: dict[tuple, int] = {}
    keys = []
    for name, side in zip(subunits, sides):
        model = atoms.model[atoms.subunit.index(name)]
        keys += [(name, model, chain, number) for chain, number, _ in _positions(side)]
    for row, key in enumerate(keys):
        place.setdefault(key, row)
    often = Counter(keys)
    found, dropped = set(), Counter()
    for one, other in pairs:
        if one[0] == other[0]:
            dropped["pairs within one subunit"] += 1
        elif tuple(one) not in place or tuple(other) not in place:
            dropped["pairs of a residue that is not in the protein"] += 1
        else:
            found.add(tuple(sorted((place[tuple(one)], place[tuple(other)]))))
    if not found:
        raise StructureError(label, "no positive pairs", f"{dropped.total()} of residues that are not in the protein")
    values = {
        "first": sides[0].protein.num_residues,
        "ambiguous": [row for row, key in enumerate(keys) if often[key] > 1],
    }
    joined = join(sides, write_note(values, [row for pair in sorted(found) for row in pair]))
    return replace(joined, dropped=joined.dropped + dropped)


def _read_res(label: str, item: dict) -> Structure:
    """Residue identity: a structure, residues of it whose type is to be told, and the atoms around each.

    Of the residue itself only N, CA, C and O belong to its environment, whatever the item lists: a CB would tell
    glycine apart.
    """
    atoms = _atoms(item, "atoms")
    (names,) = _columns(item, "labels", {"subunit": _TEXT})
    lists = _field(item, "subunit_indices", (list,))
    if len(lists) != len(names):
        raise _Malformed(f"{len(names)} labels, {len(lists)} lists of subunit_indices")
    structure = atoms.structure(label)
    protein, positions = structure.protein, _positions(structure)
    owner, atom_name = protein.atom_residue.numpy(), protein.atom_name.numpy()
    atom = {(*positions[residue], name): i for i, (residue, name) in enumerate(zip(owner.tolist(), atom_name.tolist()))}
    # The place of every row of the frame in the protein, -1 for those that the parsing policy leaves out.
    first = atoms.model[0]
    place = np.array(
        [
            atom.get((row.chain, row.number, row.code, _atom_index(row)), -1) if model == first else -1
            for row, model in zip(atoms.rows, atoms.model)
        ]
    )
    numbered: dict[tuple[str, int], list[int]] = {}
    for row, (chain, number, _) in enumerate(positions):
        numbered.setdefault((chain, number), []).append(row)
    types = protein.residue_type.tolist()
    environments, dropped = {}, Counter()
    for name, indices in zip(names, lists):
        near = place[_places(indices, len(place))]
        centre = _centre(name, numbered, types, dropped)
        if centre in environments:
            dropped["environments listed before"] += 1
        elif centre is not None:
            backbone = np.flatnonzero((owner == centre) & (atom_name <= O))
            others = near[(near >= 0) & (owner[near] != centre)]
            environments[centre] = np.union1d(backbone, others).tolist()
    if not environments:
        found = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()))
        raise StructureError(label, "no environments", found)
    values = {"residues": list(environments), "counts": [len(near) for near in environments.values()]}
    note = write_note(values, [i for near in environments.values() for i in near])
    return replace(structure, dropped=structure.dropped + dropped, note=note)


def _atom_index(row: AtomRow) -> int | None:
    return ATOM_INDEX.get(PARENT_ATOM.get((row.residue, row.atom), row.atom))


def _places(indices: list, size: int) -> np.ndarray:
    """Positions in a frame of `size` rows, checked."""
    if type(indices) is not list or set(map(type, indices)) - {int}:
        raise _Malformed("subunit_indices is not a list of lists of numbers")
    if indices and not 0 <= min(indices) <= max(indices) < size:
        raise _Malformed(f"subunit_indices beyond the {size} atoms")
    return np.array(indices, dtype=np.int64)


def _centre(name: str, numbered: dict, types: list[int], dropped: Counter) -> int | None:
    """The residue that `chain_number_type` means; None where that is none or might be several, which is counted.

    The name knows no insertion codes, so residues that share a number are told apart by the type.
    """
    chain, number, residue = ["", "", *name.rsplit("_", 2)][-3:]
    wanted = RESIDUE_INDEX.get(PARENT.get(residue, residue))
    if not re.fullmatch("-?[0-9]{1,9}", number) or wanted is None:
        dropped["environments of no amino acid"] += 1
        return None
    rows = numbered.get((chain.strip(), int(number)), [])
    fitting = [row for row in rows if types[row] == wanted]
    if len(fitting) == 1:
        return fitting[0]
    if not rows:
        dropped["environments of a residue that is not in the protein"] += 1
    elif not fitting:
        dropped["environments of a residue of another type"] += 1
    else:
        dropped["environments of one of several residues"] += 1
    return None


_READERS = {"psr": _read_psr, "msp": _read_msp, "pip": _read_pip, "res": _read_res}
