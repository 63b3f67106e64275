"""ATOM3D sets written here in their own format: labels, pairs and environments against the frames; every damage."""

import gzip
import json
import random
import string
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import real_protein
from helpers import assert_equal

from siamdiff_min.files import MachineError, StructureError
from siamdiff_min.protein.constants import (
    ATOM_ELEMENT,
    ATOM_NAMES,
    CA,
    ELEMENTS,
    ONE_LETTER,
    RESIDUE_INDEX,
    RESIDUES,
    O,
)
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets import atom3d
from siamdiff_min.sets.atom3d import atom3d_set
from siamdiff_min.sets.samples import SAMPLES, unpack_list

lmdb = pytest.importorskip("lmdb")
COLUMNS = [
    *("ensemble", "subunit", "structure", "model", "chain", "hetero", "insertion_code", "residue", "segid", "resname"),
    *("altloc", "occupancy", "bfactor", "x", "y", "z", "element", "name", "fullname", "serial_number"),
]
ENDS = ("ensemble", "subunit", "structure", "model", "chain", "residue")
PAIR_COLUMNS = [f"{name}{end}" for end in (0, 1) for name in ENDS]


def read_golden(name):
    """A real protein as a reader gives it: chains counted from 0, residues counted within their chain."""
    protein = real_protein(name, torch.float32)
    _, chain, sizes = protein.chain.unique_consecutive(return_inverse=True, return_counts=True)
    return replace(protein, chain=chain, residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]))


PROTEIN = read_golden("1LCD_A")  # 51 residues of one chain


@pytest.fixture(autouse=True)
def closed():
    """LMDB refuses to open a folder that this process has open, so each test ends with all of them closed."""
    yield
    atom3d._environment.cache_clear()


def rows(protein=PROTEIN, chains=string.ascii_uppercase, subunit=0, model=0):
    """A frame's rows, one list for each atom."""
    per_residue = protein.chain, protein.insertion_code, protein.residue_number, protein.residue_type
    residue = [values.tolist() for values in per_residue]
    found = []
    for i, (owner, name, xyz) in enumerate(zip(protein.atom_residue, protein.atom_name, protein.pos.tolist())):
        chain, code, number, kind = (values[owner] for values in residue)
        element = ELEMENTS[ATOM_ELEMENT[name]]
        place = ["e", subunit, "s", model, chains[chain], " ", chr(code), number, "    ", RESIDUES[kind]]
        found.append([*place, " ", 1.0, 0.0, *xyz, element, ATOM_NAMES[name], f" {ATOM_NAMES[name]}", i + 1])
    return found


def change(table, changes, where=lambda row: True):
    """Other values in some rows of a frame."""
    return [
        [changes.get(column, value) for column, value in zip(COLUMNS, row)] if where(dict(zip(COLUMNS, row))) else row
        for row in table
    ]


def frame(table, columns=COLUMNS):
    # ATOM3D's frames of pairs are concatenations: the index is not the position
    return {"columns": list(columns), "index": [7] * len(table), "data": table}


def write(folder, items, ids=None, kind=b"json", count=None):
    """An LMDB folder in the format of ATOM3D; items that are bytes are stored as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(folder), map_size=2**26) as environment, environment.begin(write=True) as transaction:
        for i, item in enumerate(items):
            data = item if isinstance(item, bytes) else gzip.compress(json.dumps(item).encode(), 1)
            transaction.put(str(i).encode(), data)
        transaction.put(b"num_examples", str(len(items) if count is None else count).encode())
        transaction.put(b"serialization_format", kind)
        if ids is None:
            ids = {item["id"]: i for i, item in enumerate(items) if isinstance(item, dict)}
        if ids is not False:
            transaction.put(b"id_to_idx", json.dumps(ids).encode())
    return folder


def dataset(root, task, items, **options):
    for split in ("train", "val", "test"):
        write(root / split, items, **options)
    return atom3d_set(root, task)


def listing(root, task, items, **options):
    return atom3d.list_items(write(root / "x", items, **options), task)


def read(root, task, item):
    """The structure of one item, its values and its numbers."""
    structure = listing(root, task, [item]).sources[0].read()
    values = dict(structure.labels)
    numbers = values.pop("pairs", torch.zeros(0))
    if task == "res":
        lists = [unpack_list(values, number) for number in range(len(values["residues"]))]
        numbers = torch.cat(lists)
        values["counts"] = [len(near) for near in lists]
    return structure, values, numbers.flatten().numpy()


def fails(root, task, item, reason, detail=""):
    with pytest.raises(StructureError, match=detail or None) as caught:
        listing(root, task, [item], ids=False).sources[0].read()
    assert caught.value.reason == reason
    assert caught.value.path == f"{root / 'x'}:0"


def psr(number=0, table=None, **fields):
    name = {"id": f"('T{number // 2}', 'd\\'{number}')", "scores": {"gdt_ts": 0.25 * (number % 5), "tm": 0.1}}
    return {"atoms": frame(rows() if table is None else table), "types": {"atoms": "DataFrame"}, **name, **fields}


def mutant(protein, residue, name):
    """Another type at one residue, of which the backbone stays."""
    types = protein.residue_type.clone()
    types[residue] = RESIDUE_INDEX[name]
    beyond = (protein.atom_residue == residue) & (protein.atom_name > O)
    return replace(protein, residue_type=types).select_atoms(~beyond)


def msp(mutations=None, original=PROTEIN, mutated=None, label="1", chains="AB"):
    wild, number = ONE_LETTER[PROTEIN.residue_type[8]], int(PROTEIN.residue_number[8])
    mutated = mutant(PROTEIN, 8, "TRP") if mutated is None else mutated
    frames = {"original_atoms": frame(rows(original, chains)), "mutated_atoms": frame(rows(mutated, chains))}
    return {**frames, "id": f"1ABC_A_B_{mutations or f'{wild}A{number}W'}", "label": label}


def pip(pairs, sides, extra=(), name="1ABC", labels=None):
    """Pairs as ((subunit, chain, number), (subunit, chain, number)); sides as {subunit: rows}."""
    table = [
        [*(value for s, c, n in pair for value in ("e", s, "s", 0, c, n)), label]
        for pair, label in zip(pairs, labels or [1] * len(pairs))
    ]
    atoms = [row for side in sides.values() for row in side] + list(extra)
    return {"atoms_pairs": frame(atoms), "atoms_neighbors": frame(table, [*PAIR_COLUMNS, "label"]), "id": name}


def res(centres, protein=PROTEIN, table=None, names=None, indices=None, radius=8.0):
    """Environments of residues as ATOM3D writes them: without the centre's side chain."""
    lists = []
    for centre in centres:
        ca = protein.pos[(protein.atom_residue == centre) & (protein.atom_name == CA)]
        near = ((protein.pos - ca).norm(dim=1) < radius) & ((protein.atom_residue != centre) | (protein.atom_name <= O))
        lists.append(near.nonzero().flatten().tolist())
    named = [f"A_{protein.residue_number[c]}_{RESIDUES[protein.residue_type[c]]}" for c in centres]
    labels = [[name, 0, 0.0, 0.0, 0.0] for name in (names or named)]
    return {
        "atoms": frame(rows(protein) if table is None else table),
        "labels": frame(labels, ["subunit", "label", "x", "y", "z"]),
        "subunit_indices": lists if indices is None else indices,
        "id": "1abc",
    }


# ---- the set ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", atom3d.ATOM3D)
@pytest.mark.parametrize("valid", ["val", "valid"])
def test_a_set_is_found_wherever_its_splits_are(tmp_path, task, valid):
    folder = tmp_path / atom3d.ATOM3D[task].folder
    expected = [folder / split for split in ("train", valid, "test")]
    for split in expected:
        split.mkdir(parents=True)
        (split / "data.mdb").write_bytes(b"x")
    for root in (tmp_path, tmp_path / folder.relative_to(tmp_path).parts[0], folder):
        data = atom3d_set(root, task)
        assert [data.train.path, data.valid.path, data.test.path] == expected and str(root) in data.about
    (folder / "train" / "data.mdb").unlink()
    said = f"no train split of {task.upper()}.*expected train/data.mdb there or in {atom3d.ATOM3D[task].folder}"
    with pytest.raises(StructureError, match=said):
        atom3d_set(tmp_path, task)
    alone = atom3d_set(tmp_path, task, needed=("test",))
    assert alone.test.path == folder / "test" and alone.train is alone.valid is None


def test_names_are_the_ids_and_unique(tmp_path):
    ids = {"a": 0, "b": 2, "c": 2, "d": 99, "e": -1, "f": "0", "x": 3, "?": 4, "5": 6}
    items = [msp()] * 7
    found = [source.name for source in listing(tmp_path, "msp", items, ids=ids).sources]
    assert found == ["a", "1", "c", "x", "?", "5#5", "5#6"]
    assert [s.name for s in listing(tmp_path / "n", "msp", items, ids=False).sources] == list("0123456")
    assert listing(tmp_path / "p", "psr", [psr(3)]).sources[0].name == "T1/d'3"


def test_sets_that_are_refused(tmp_path):
    for kind in (b"pkl", b"msgpack"):
        with pytest.raises(StructureError, match=rf"not JSON .*'{kind.decode()}'; make_lmdb_dataset.*docs/data.md"):
            listing(tmp_path / kind.decode(), "psr", [psr()], kind=kind)
    with pytest.raises(StructureError, match="malformed set"):
        listing(tmp_path / "b", "psr", [psr()], ids={"not a tuple": 0})


@pytest.fixture
def items():
    """One for each task."""
    pairs = pip([pair(3, 4), pair(8, 9)], SIDES)
    return {"psr": psr(3), "msp": msp(), "pip": pairs, "res": res([5, 6])}


def test_an_item_of_another_task_is_malformed(tmp_path, items):
    for task, item in items.items():
        for other in items.keys() - {task}:
            (source,) = listing(tmp_path / f"{task}-{other}", other, [item], ids=False).sources
            with pytest.raises(StructureError, match="malformed item"):
                source.read()


def test_folders_that_are_no_lmdb_or_cut_short(tmp_path):
    folder = write(tmp_path / "s", [psr(i) for i in range(20)], ids=False)
    whole = (folder / "data.mdb").read_bytes()
    for size in [0, 100, 8192, len(whole) - 4096]:
        for content in (whole[:size], b"<html>" * 9999):
            (folder / "data.mdb").write_bytes(content)
            with pytest.raises(StructureError, match=r"truncated|cannot be opened"):
                atom3d.list_items(folder, "psr")
    (folder / "data.mdb").write_bytes(whole)
    assert len(atom3d.list_items(folder, "psr").sources) == 20


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "x", [psr()])
    monkeypatch.setitem(__import__("sys").modules, "lmdb", None)
    with pytest.raises(MachineError, match="pip install lmdb"):
        atom3d.list_items(tmp_path / "x", "psr")


def test_a_store_has_every_item_or_its_reason(tmp_path):
    items = [psr(0), b"junk", psr(2), {"id": "('a', 'b')"}, psr(4)]
    ids = {item["id"]: i for i, item in enumerate(items) if isinstance(item, dict)}
    store = open_store(dataset(tmp_path, "psr", items, ids=ids).train, workers=2)
    assert store.path.parent == tmp_path / "train.store" and list(store.names) == ["T0/d'0", "T1/d'2", "T2/d'4"]
    report = store.meta
    assert report["seen"] == 5 and report["failed"] == {"damaged or truncated gzip data": 1, "malformed item": 1}
    samples = SAMPLES["psr"](store)
    assert samples.targets().tolist() == [0.0, 0.5, 1.0] and samples[0, 2].groups == ("T2",)
    for protein in store:
        assert_equal(protein, PROTEIN)
    failures = (store.path / "failures.tsv").read_text()
    assert f"{tmp_path / 'train'}:1\t" in failures and "a/b\tfailed\tmalformed item" in failures


# ---- atoms -----------------------------------------------------------------------------------------------------------


def test_a_frame_is_the_protein_it_was_written_from(tmp_path):
    for name in ("1LCD_A", "2BEG"):
        protein = read_golden(name)
        structure, values, numbers = read(tmp_path / name, "psr", psr(3, rows(protein)))
        assert_equal(structure.protein, protein)
        assert structure.chain_names == tuple("ABCDE"[: len(structure.chain_names)]) and not structure.dropped
        assert values == {"target": "T1", "kind": "regression", "values": [0.75]} and not len(numbers)


def test_the_parsing_policy_is_that_of_every_format(tmp_path):
    table = rows()
    water = change(table[:1], {"hetero": "W", "resname": "HOH", "name": "O", "residue": 900})
    ligand = change(table[:1], {"hetero": "H_NAG", "resname": "NAG", "residue": 901})
    hydrogen = change(table[1:2], {"name": "HA", "element": "H"})
    altloc = change(table[1:2], {"altloc": "B", "occupancy": 0.1, "x": 0.0})
    second = change(table, {"model": 1, "x": 5.0})
    odd = change(table, {"element": "c", "altloc": "", "insertion_code": "", "occupancy": None}, lambda r: r["x"] > 0)
    structure, *_ = read(tmp_path, "psr", psr(0, odd + water + ligand + hydrogen + altloc + second))
    assert_equal(structure.protein, PROTEIN)
    assert structure.dropped == {
        "waters": 1, "ligands and unknown residues": 1, "hydrogens": 1, "alternative locations": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "changed, detail",
    [
        ({"atoms": []}, "list indices"),
        ({"atoms": {"columns": ["x"], "data": [[1]]}}, "no column chain"),
        ({"atoms": {"columns": COLUMNS, "data": [rows()[0], ["a"]]}}, "zip\\(\\) argument 2 is shorter"),
        ({"scores": {}}, "KeyError: 'gdt_ts'"),
        ({"scores": {"gdt_ts": float("nan")}}, "not between 0 and 1"),
        ({"id": "__import__('os').getcwd()"}, "malformed node"),
        ({"id": "('a', 'b', 'c')"}, "id is"),
    ],
)
def test_malformed_items(tmp_path, changed, detail):
    fails(tmp_path, "psr", psr(**changed), "malformed item", detail)


def test_items_that_are_no_json(tmp_path):
    fails(tmp_path / "a", "psr", gzip.compress(b"{}")[:-3], "damaged or truncated gzip data")
    fails(tmp_path / "b", "psr", gzip.compress(b"\x80\x04\x95cos\nsystem\n"), "not JSON")
    fails(tmp_path / "c", "psr", gzip.compress(b"[1, 2]"), "malformed item")


# ---- MSP -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["0", "1", 0, 1])
def test_msp_rows_and_label(tmp_path, label):
    structure, values, numbers = read(tmp_path, "msp", msp(label=label))
    assert values == {"first": 51, "mutated": [[8], [59]], "label": int(label)} and not len(numbers)
    protein = structure.protein
    assert_equal(protein.crop(0, 51), PROTEIN)
    assert protein.residue_type[59] == RESIDUE_INDEX["TRP"] and protein.chain.tolist() == [0] * 51 + [1] * 51
    assert structure.chain_names == ("A", "A") and protein.num_proteins == 1


def test_msp_negative_numbers_insertion_codes_and_several_mutations(tmp_path):
    number, code = PROTEIN.residue_number.clone(), PROTEIN.insertion_code.clone()
    number[3] = -7
    number[5] = number[4]
    code[5] = ord("B")
    chain = (torch.arange(51) >= 20).long()
    wild = replace(PROTEIN, residue_number=number, insertion_code=code, chain=chain)
    other = wild
    for i, name in ((3, "GLY"), (5, "TRP"), (30, "LYS")):
        other = mutant(other, i, name)
    first, second, third = (ONE_LETTER[wild.residue_type[i]] for i in (3, 5, 30))
    for b in "Bb":
        text = f"{first}1-7G,{second}1{number[5]}{b}W,{third}2{number[30]}K"
        _, values, _ = read(tmp_path / b, "msp", msp(text, wild, other, chains="12"))
        assert values["mutated"] == [[3, 5, 30], [54, 56, 81]]


def test_msp_the_mutation_must_be_in_the_structure(tmp_path):
    wild, number = ONE_LETTER[PROTEIN.residue_type[8]], int(PROTEIN.residue_number[8])
    other = next(letter for letter in ONE_LETTER if letter not in (wild, "W"))
    details = {
        f"{other}A{number}W": f"{wild} for {other}",
        f"{wild}A{number}{other}": f"W for {other}",
        f"{wild}B{number}W": "nothing for",
        f"{wild}A{number}CW": "nothing for",
        f"{wild}A{number}W,{wild}A999W": "A999W",
    }
    for text, detail in details.items():
        fails(tmp_path / text, "msp", msp(text), "mutation not in the structure", detail)
    fails(tmp_path / "f", "msp", msp("wild"), "malformed item", "without a mutation")
    for label in ("2", True):
        fails(tmp_path / str(label), "msp", msp(label=label), "malformed item", f"label is '{label}'")


# ---- PIP -------------------------------------------------------------------------------------------------------------

LEFT, RIGHT = rows(PROTEIN, "A", "p"), rows(PROTEIN.crop(0, 30), "A", "q")  # both subunits call their chain A
SIDES = {"p": LEFT, "q": RIGHT}
NUMBER = PROTEIN.residue_number.tolist()


def pair(i, j, one="p", other="q"):
    return (one, "A", NUMBER[i]), (other, "A", NUMBER[j])


def test_pip_pairs_either_way_round_and_once(tmp_path):
    pairs = [
        pair(3, 4),
        pair(3, 5),
        pair(4, 50, "q", "p"),
        pair(3, 4),
        pair(4, 3, "q", "p"),
        pair(9, 9),
    ]
    structure, values, numbers = read(tmp_path, "pip", pip(pairs, SIDES, labels=[1, 1, 1, 1, 1, 0]))
    assert values == {"first": 51, "ambiguous": []}
    assert numbers.reshape(-1, 2).tolist() == [[3, 55], [3, 56], [50, 55]]
    assert structure.chain_names == ("A", "A")
    assert not structure.dropped
    assert_equal(structure.protein.crop(0, 51), PROTEIN)
    assert structure.protein.chain.tolist() == [0] * 51 + [1] * 30
    _, values, numbers = read(tmp_path / "b", "pip", pip([pair(4, 50, "q", "p")], SIDES))
    assert values["first"] == 30  # the first subunit is the one named first
    assert numbers.tolist() == [4, 80]


def test_pip_four_subunits(tmp_path):
    unbound = rows(PROTEIN.crop(5, 20), "A", "u"), rows(PROTEIN.crop(0, 10), "A", "v")
    item = pip([pair(6, 2, "u", "v")], SIDES | {"u": unbound[0], "v": unbound[1]})
    structure, values, numbers = read(tmp_path, "pip", item)
    assert values["first"] == 20 and numbers.tolist() == [1, 22] and structure.protein.num_residues == 30


def test_pip_insertion_codes(tmp_path):
    number, code = PROTEIN.residue_number.clone(), PROTEIN.insertion_code.clone()
    number[11], code[11] = number[10], ord("A")
    left = rows(replace(PROTEIN, residue_number=number, insertion_code=code), "A", "p")
    _, values, numbers = read(tmp_path, "pip", pip([pair(10, 4), pair(12, 4)], {"p": left, "q": RIGHT}))
    assert numbers.reshape(-1, 2).tolist() == [[10, 55], [12, 55]] and values["ambiguous"] == [10, 11]


def test_pip_pairs_that_cannot_be_used_are_counted(tmp_path):
    water = change(RIGHT[:1], {"resname": "HOH", "residue": 900})
    pairs = [pair(3, 4), (("p", "A", NUMBER[3]), ("q", "A", 900)), pair(3, 40), pair(3, 5, "p", "p")]
    structure, _, numbers = read(tmp_path, "pip", pip(pairs, SIDES, water))
    assert numbers.tolist() == [3, 55]
    assert structure.dropped == {"waters": 1, "pairs that are not of a residue in each protein": 3}


@pytest.mark.parametrize(
    "pairs, detail",
    [
        ([], ""),
        ([pair(3, 4), pair(3, 4, "p", "u")], "'p', 'q', 'u'"),
        ([pair(3, 4, "p", "p")], ""),
    ],
)
def test_pip_items_without_pairs_of_two_subunits(tmp_path, pairs, detail):
    item = pip(pairs, SIDES | {"u": rows(PROTEIN, "A", "u")})
    fails(tmp_path, "pip", item, "positive pairs of other than two subunits", detail)


def test_pip_items_whose_pairs_lead_nowhere(tmp_path):
    no_contact = pip([pair(3, 4)], SIDES, labels=[0])
    fails(tmp_path / "a", "pip", no_contact, "positive pairs of other than two subunits")
    fails(tmp_path / "b", "pip", pip([pair(3, 40)], SIDES), "no positive pairs", "1 are not of a residue")
    fails(tmp_path / "c", "pip", pip([pair(3, 4, "p", "z")], SIDES), "no atoms in it", "subunit 'z'")


# ---- RES -------------------------------------------------------------------------------------------------------------


def environments(structure, values, numbers):
    assert sum(values["counts"]) == len(numbers) and len(values["counts"]) == len(values["residues"])
    return dict(zip(values["residues"], np.split(numbers, np.cumsum(values["counts"])[:-1])))


def test_res_positions_are_those_of_the_frame(tmp_path):
    """Rows that are shuffled, hydrogens and waters between them, and an index that says nothing."""
    table = rows()
    table += change(table[::3], {"name": "H", "element": "H"}) + change(table[:2], {"resname": "HOH", "residue": 900})
    table += change(table[:40], {"model": 3})  # of another model
    rng = random.Random(0)
    head, *tail = range(len(table))  # the first row says what the first model is
    order = [head, *sorted(tail, key=lambda i: i % PROTEIN.num_atoms + rng.uniform(0, 30))]
    shuffled = [table[i] for i in order]
    plain = res([0, 8])
    indices = [
        [k for k, i in enumerate(order) if i in near or i >= PROTEIN.num_atoms] for near in plain["subunit_indices"]
    ]
    structure, values, numbers = read(tmp_path, "res", res([0, 8], table=shuffled, indices=indices))
    protein = structure.protein
    for centre, near in zip((0, 8), plain["subunit_indices"]):
        row = protein.residue_number.tolist().index(NUMBER[centre])
        found = environments(structure, values, numbers)[row].tolist()
        numbered = protein.residue_number[protein.atom_residue[found]].tolist()
        written = set(zip(numbered, [ATOM_NAMES[name] for name in protein.atom_name[found]]))
        assert written == {(table[i][7], table[i][17]) for i in near} and len(written) == len(found)


def test_res_selenium_is_the_sulphur_of_its_parent(tmp_path):
    protein = mutant(PROTEIN, 12, "MET")
    number = NUMBER[12]
    table = change(rows(protein), {"resname": "MSE"}, lambda row: row["residue"] == number)
    (ca,) = (row for row in table if row[7] == number and row[17] == "CA")
    se = change([ca], {"name": "SE", "element": "SE", "x": ca[13] + 3})
    names = [f"A_{number}_MSE", f"A_{NUMBER[2]}_{RESIDUES[protein.residue_type[2]]}"]
    item = res([12, 2], protein, table + se, names, [[0], [len(table)]])
    structure, values, numbers = read(tmp_path, "res", item)
    assert values["residues"] == [12, 2]
    near = environments(structure, values, numbers)[2]
    read_back = structure.protein
    (sulphur,) = near[read_back.atom_residue.numpy()[near] != 2]
    assert ATOM_NAMES[read_back.atom_name[sulphur]] == "SD"


def test_res_environments_that_cannot_be_used_are_counted(tmp_path):
    number, code, types = PROTEIN.residue_number.clone(), PROTEIN.insertion_code.clone(), PROTEIN.residue_type.clone()
    number[11], code[11], types[11] = number[10], ord("A"), types[10]  # told apart by nothing
    number[21], code[21], types[21] = number[20], ord("A"), (types[20] + 1) % 20  # told apart by the type
    protein = replace(PROTEIN, residue_number=number, insertion_code=code, residue_type=types).select_atoms(
        PROTEIN.atom_name <= O
    )
    kind = [RESIDUES[t] for t in types]
    wrong = RESIDUES[(types[3] + 1) % 20]
    names = [
        f"A_{number[3]}_{kind[3]}", f"A_{number[3]}_{kind[3]}", f"A_{number[3]}_{wrong}", f"A_{number[10]}_{kind[10]}",
        f"A_{number[21]}_{kind[21]}", f"B_{number[3]}_{kind[3]}", "A_900_ALA", "A_3_NAG", "A_x_ALA", "odd", "",
    ]  # fmt: skip
    item = res([], protein, names=names, indices=[[0]] * len(names))
    structure, values, _ = read(tmp_path, "res", item)
    assert values["residues"] == [3, 21]
    assert [*structure.dropped.values()] == [9]
    fails(tmp_path / "n", "res", res([], names=["A_900_ALA"], indices=[[0]]), "no environments", "none of 1 is of")


def test_every_task_gives_samples(tmp_path, items):
    """From the LMDB to a sample, through the store: how many there are, proteins in the first one, its label."""
    expected = {"psr": (1, 1, 0.75), "msp": (1, 2, 1), "pip": (4, 2, 1), "res": (2, 1, int(PROTEIN.residue_type[5]))}
    for task, item in items.items():
        samples = SAMPLES[task](open_store(dataset(tmp_path / task, task, [item]).test))
        first = samples[0, 0]
        assert (len(samples), first.protein.num_proteins, first.target.item()) == expected[task]
