"""Demo sets: labels by brute force, splits by protein, the steps they are made by."""

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path, PurePath

import pytest
import torch
from conftest import real_protein

from benchmarks import make_sets
from siamdiff_min.protein.constants import ATOM_INDEX, CA, ONE_LETTER, RESIDUE_ATOMS, C, N, O
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import TENSOR_FIELDS
from siamdiff_min.reading.bundled import bundle_index
from siamdiff_min.reading.sources import Listing, Origin
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets import demo
from siamdiff_min.sets.samples import SAMPLES, unpack_list

SPLITS = ("train", "valid", "test")
TASKS = [task for task in SAMPLES if task != "table"]  # which is of the user's own data


def entries(task: str, split: str = "valid") -> list:
    return getattr(demo.demo_set(task), split).listing().sources


def native_of(entry) -> str:
    """Name of the bundled structure that an entry is made of."""
    return entry.label.args[0]["structure"]


def note_of(structure):
    values = structure.labels
    rows = values.get("pairs", torch.zeros(0)).flatten()
    if "packed" in values:
        rows = torch.cat([unpack_list(values, number) for number in range(len(values["residues"]))])
    return values, rows.tolist()


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_by_protein(task):
    group = {row["file"].split("/")[1].removesuffix(".pdb.gz"): row["group30"] for row in bundle_index()}
    groups = {split: {group[native_of(e)] for e in entries(task, split)} for split in SPLITS}
    assert all(groups.values())
    assert not groups["train"] & groups["valid"] and not (groups["train"] | groups["valid"]) & groups["test"]
    names = [e.name for split in SPLITS for e in entries(task, split)]
    assert len(set(names)) == len(names)
    about = demo.demo_set(task).about
    assert about.startswith("Demo: ") and len({getattr(demo.demo_set(task), s).key for s in SPLITS}) == 3


@pytest.mark.full
def test_psr_models_keep_the_bonds_and_know_their_gdt():
    models = [e for e in entries("psr") if native_of(e) == native_of(entries("psr")[0])]
    native, scores = replace(models[0], label=None).read().protein, []
    assert len(models) == make_sets.MODELS
    for entry in models:
        structure = entry.read()
        assert torch.equal(structure.protein.pos, entry.read().protein.pos)  # the name alone decides
        values, _ = note_of(structure)
        assert values["target"] == native_of(entry)
        pos, scores = structure.protein.pos, [*scores, *values["values"]]
        order = [native.atom_name == name for name in (N, CA, C)]
        before, after = ([x[index] for index in order] for x in (native.pos, pos))
        for a, b in ((0, 1), (1, 2)):  # bond lengths differ by the shaking alone
            change = length(after[a] - after[b]) - length(before[a] - before[b])
            assert change.abs().max() < 6 * demo.SHAKE and change.mean().abs() < 0.1
    assert scores[0] > 0.98 and min(scores) < 0.6 and len(set(scores)) > 4


def test_res_surroundings_by_brute_force():
    entry = entries("res")[0]
    structure = entry.read()
    protein, values = structure.protein, structure.labels
    assert len(values["residues"]) == make_sets.ENVIRONMENTS == len(values["ends"])
    for number, centre in enumerate(values["residues"]):
        around = set(unpack_list(values, number).tolist())
        own = {i for i in range(protein.num_atoms) if protein.atom_residue[i] == centre}
        assert {int(protein.atom_name[i]) for i in around & own} == {N, CA, C, O}
        place = {int(protein.atom_name[i]): protein.pos[i] for i in own}
        cb = make_sets.ideal_cb(place[N], place[CA], place[C])
        far = [i for i in range(protein.num_atoms) if length(protein.pos[i] - cb) > demo.ENVIRONMENT_RADIUS]
        assert around - own == set(range(protein.num_atoms)) - own - set(far)


def test_pip_contacts_by_brute_force():
    entry = min(entries("pip"), key=lambda e: e.size)
    structure = entry.read()
    protein, (values, rows) = structure.protein, note_of(structure)
    pairs, first = set(zip(rows[::2], rows[1::2])), values["first"]
    assert len(set(structure.protein.chain[:first].tolist()) & set(structure.protein.chain[first:].tolist())) == 0
    for i in range(0, first, 5):
        a = protein.pos[protein.atom_residue == i]
        for j in range(first, protein.num_residues, 3):
            b = protein.pos[protein.atom_residue == j]
            assert ((i, j) in pairs) == bool((length(a[:, None] - b) < 6).any())


def test_msp_rule_by_brute_force():
    """A residue becomes alanine, nothing else moves; it stabilises if no contact goes."""
    found = []
    for entry in entries("msp")[:4]:
        structure = entry.read()
        labels, first = structure.labels, structure.labels["first"]
        ((residue,), (mutated,)) = labels["mutated"]
        wild, mutant = structure.protein.crop(0, first), structure.protein.crop(first, first)
        letters = [ONE_LETTER[protein.residue_type[residue]] for protein in (wild, mutant)]
        assert mutated == first + residue
        assert entry.name.split("_")[-1] == f"{letters[0]}{residue}A" and letters[0] not in "GA" and letters[1] == "A"

        # All other residues are as they were, and of this one what alanine has too.
        own, its = wild.atom_residue == residue, mutant.atom_residue == residue
        rest = torch.arange(first) != residue
        assert torch.equal(wild.pos[~own], mutant.pos[~its]) and int(its.sum()) == len(RESIDUE_ATOMS["ALA"])
        assert torch.equal(wild.residue_type[rest], mutant.residue_type[rest])

        # How many atoms of the other partner each atom that goes is in contact with.
        (row,) = [row for row in bundle_index() if PurePath(row["file"]).name == f"{native_of(entry)}.pdb.gz"]
        one = make_sets.sides(replace(entry, label=None).read(), row["partners"])[0].protein.num_residues
        other = (torch.arange(first) >= one) == (residue < one)
        goes = own & (wild.atom_name > O) & (wild.atom_name != ATOM_INDEX["CB"])
        distance = length(wild.pos[goes][:, None] - wild.pos[other[wild.atom_residue]])
        lost = int((distance < make_sets.CONTACT).sum())
        assert lost >= make_sets.MANY if labels["label"] == 0 else lost == 0
        found.append(labels["label"])
    assert sorted(found) == [0, 0, 1, 1]


def test_the_file_of_ec_is_that_which_the_script_writes():
    made = json.loads(make_sets.text_of(make_sets.make("ec")))
    assert made == json.loads((demo.FOLDER / "ec.json").read_text())


@pytest.mark.parametrize("task, script", [("psr", make_sets._psr), ("msp", make_sets._msp)])
def test_models_and_mutations_are_those_of_the_script(task, script):
    entry = min(entries(task), key=lambda e: e.size)
    (row,) = [row for row in bundle_index() if PurePath(row["file"]).name == f"{native_of(entry)}.pdb.gz"]
    content = json.loads((demo.FOLDER / f"{task}.json").read_text())
    bare = replace(entry, name=native_of(entry), label=None)
    listed = [e for e in content["entries"] if e["structure"] == native_of(entry)]
    made = [{"name": "", "split": "valid", "structure": native_of(entry)} | r for r in script(bare, row)]
    if task == "psr":
        for recipe in made:
            recipe["labels"]["values"] = [pytest.approx(make_sets.score(recipe, bare), abs=0.01)]
    assert sorted(made, key=lambda recipe: recipe["name"]) == listed and len(made) >= 4


def test_every_file_of_data_goes_into_the_wheel():
    root = Path(demo.__file__).parents[2]
    globs = re.search(r"package-data = \{ siamdiff_min = \[(.*?)\]", (root / "pyproject.toml").read_text())[1]
    packed = {path for glob in re.findall('"(.*?)"', globs) for path in (root / "siamdiff_min").glob(glob)}
    ignored = ("__pycache__", ".store")
    files = [path for path in (root / "siamdiff_min").rglob("*.*") if path.is_file() and path.suffix != ".py"]
    assert [f for f in files if f not in packed and not any(part in str(f) for part in ignored)] == []


@pytest.mark.parametrize("task", TASKS)
def test_entries_are_the_same_in_another_process_and_can_be_learnt_from(task, tmp_path):
    made = entries(task)[:2]
    one, two = made[0].read(), pickle.loads(pickle.dumps(made[0])).read()
    assert str(one.labels) == str(two.labels) and one.labels
    for field in TENSOR_FIELDS:
        assert torch.equal(getattr(one.protein, field), getattr(two.protein, field)), field
    store = open_store(Origin(tmp_path / task, "x", lambda: Listing(made, [])), store=tmp_path / "store")
    data = SAMPLES[task](store, classes=demo.demo_set(task).classes)
    sample = data[0, len(data) - 1]
    assert len(data) >= len(made) and sample.focus.any() and sample.target.isfinite().all()


@pytest.mark.parametrize("name", ["1LCD_A", "2BEG", "2XHE"])
def test_the_ideal_cb_is_where_the_real_one_is(name):
    """Of every residue but glycine. On the wrong side of the backbone it would be 2.5 angstrom away."""
    protein = real_protein(name)
    n, ca, c, cb = (make_sets.atoms_named(protein, atom) for atom in (N, CA, C, ATOM_INDEX["CB"]))
    there = (n >= 0) & (c >= 0) & (cb >= 0)
    error = length(make_sets.ideal_cb(*(protein.pos[x[there]] for x in (n, ca, c))) - protein.pos[cb[there]])
    assert there.sum() > 40 and error.median() < 0.2 and error.max() < 0.6
