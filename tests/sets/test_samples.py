"""Samples from labels: what each task sees, what it must not see, and that a sample depends on its key alone."""

import json
import pickle
import re
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import pytest
import torch
from conftest import real_protein
from helpers import Given, assert_equal, dataset, entries, structure, surroundings

from benchmarks import make_sets
from benchmarks.pdb import write_pdb
from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.protein.constants import ATOM_INDEX, CA, ONE_LETTER, RESIDUE_INDEX, C, N, O
from siamdiff_min.protein.geometry import length
from siamdiff_min.reading.sources import Listing, Origin, bundle_index
from siamdiff_min.reading.store import StoreError, open_store
from siamdiff_min.reading.structure import join
from siamdiff_min.sets import demo
from siamdiff_min.sets.samples import SAMPLES, Unlabelled, pack_lists, unpack_list
from siamdiff_min.sets.sets import SETS


def assert_equal_samples(a, b) -> None:
    """Two samples of a downstream task."""
    assert_equal(a.protein, b.protein)
    assert torch.equal(a.focus, b.focus) and torch.equal(a.target, b.target)
    assert (a.names, a.groups) == (b.names, b.groups)


def store_of(folder, *given):
    """A store of structures that have been read already."""
    return open_store(Origin(folder, "x", lambda: Listing([*given], [])), store=folder / "store")


@pytest.mark.parametrize("task", SETS)
def test_a_sample_depends_on_its_key_alone(task, tmp_path):
    data = dataset(task, tmp_path)
    assert len(data) == 4
    again = pickle.loads(pickle.dumps(data))
    for key in [(0, 0), (0, 3), (1, 2)]:
        assert_equal_samples(data[key], again[key])
    batch, names = pack_samples([data[0, i] for i in range(4)])
    assert names == [data[0, i].names[0] for i in range(4)] and len(set(names)) == 4
    assert batch.target.shape[0] == 4 and len(batch.focus) == batch.protein.num_residues
    assert batch.protein.num_proteins == (8 if task in ("pip", "msp") else 4)
    assert_equal_samples(batch.to("cpu"), batch)


def test_a_plain_store_has_no_labels(tmp_path):
    store = store_of(tmp_path, Given("a", structure()))
    with pytest.raises(StoreError, match="a has no labels"):
        SAMPLES["psr"](store)[0, 0]
    sample = Unlabelled(store)[0, 0]
    assert sample.target.isnan().all() and sample.protein.num_residues == 51 and sample.names == ("a",)


def test_crops_of_psr_are_windows(tmp_path):
    assert dataset("psr", tmp_path, 3)[0, 2].groups == ("t0",)  # the protein that it is a model of
    whole = dataset("psr", tmp_path, max_residues=20)[3, 1]
    assert whole.protein.num_residues == 20 and whole.focus.all() and whole.target.shape == (1,)


def test_msp_shows_the_mutation_in_both(tmp_path):
    whole, cut = dataset("msp", tmp_path)[0, 1], dataset("msp", tmp_path, max_residues=20)[0, 1]
    assert whole.protein.residues_per_protein.tolist() == [51, 51]
    assert whole.focus.nonzero().flatten().tolist() == [8, 59] and whole.target.tolist() == [1.0]
    assert whole.protein.residue_type[whole.focus][1] == RESIDUE_INDEX["TRP"]
    assert cut.protein.residues_per_protein.tolist() == [20, 20] and cut.focus.sum() == 2


@pytest.mark.parametrize("mutated", [[8], [2, 45]])
def test_msp_keeps_what_is_near_to_any_mutated_residue(tmp_path, mutated):
    """With two mutations at both ends of a chain the nearest one decides, not their mean or the first."""
    wild = structure()
    both = join([wild, wild], first=51, mutated=[mutated, [51 + row for row in mutated]], label=1)
    sample = SAMPLES["msp"](store_of(tmp_path, Given("x", both)), max_residues=20)[0, 0]
    ca = wild.protein.pos[wild.protein.atom_name == CA]
    nearest = sorted(range(51), key=lambda i: min(float(length(ca[i] - ca[k])) for k in mutated))[:20]
    for side in sample.protein.unpack():
        assert side.residue_number.tolist() == wild.protein.residue_number[sorted(nearest)].tolist()


@pytest.mark.covers
@pytest.mark.parametrize("name", ["GLY", "TRP", "ALA"])
@pytest.mark.parametrize("preset", ["paper", "official"])
def test_res_shows_no_bit_of_the_type(tmp_path, name, preset):
    """The type of the centre is changed in the file, with or without side chain: the network's input is the same."""
    (entry,) = entries("res", 1)
    protein, centre = entry.structure.protein, 5
    types = protein.residue_type.clone()
    types[centre] = RESIDUE_INDEX[name]
    changed = replace(protein, residue_type=types)
    side_chain = (protein.atom_residue == centre) & (protein.atom_name > O)
    assert side_chain.any() and RESIDUE_INDEX[name] != protein.residue_type[centre]
    trimmed = changed.select_atoms(~side_chain)
    # every atom of the neighbourhood, and the side chain of the centre too: the reader must not trust the file
    everything = [*surroundings(protein, centre), *side_chain.nonzero().flatten().tolist()]

    def sample(protein, atoms, key):
        labels = {"residues": [centre], **pack_lists([np.array(atoms)])}
        given = Given("r", replace(entry.structure, protein=protein, labels=labels))
        return SAMPLES["res"](store_of(tmp_path / key, given))[0, 0]

    a = sample(protein, everything, "a")
    b = sample(changed, everything, "b")
    c = sample(trimmed, surroundings(trimmed, centre), "c")
    encoder = ENCODERS["gearnet"]("atom", "tiny", preset)
    graph = encoder.builder(a.protein)
    for other in (b, c):
        assert_equal_samples(replace(a, target=other.target), other)
        same = encoder.builder(other.protein)
        for x, y in zip(vars(graph).values(), vars(same).values()):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert a.target.item() == protein.residue_type[centre] and b.target.item() == RESIDUE_INDEX[name]
    central = a.protein.atom_residue == a.focus.nonzero().item()
    assert a.protein.atom_name[central].tolist() == [0, 1, 2, 3] and a.protein.masked.equal(a.focus)


def test_res_environment_is_what_the_labels_say(tmp_path):
    data = dataset("res", tmp_path, 3)
    protein = entries("res", 3)[0].structure.protein
    for i, centre in enumerate((5, 6, 7)):
        near = surroundings(protein, centre)
        own = (protein.atom_residue == centre) & (protein.atom_name <= O)
        expected = torch.zeros(protein.num_atoms, dtype=torch.bool)
        expected[near] = True
        assert torch.equal(data[0, i].protein.pos, protein.pos[expected | own])


def test_pip_pairs(tmp_path):
    data = dataset("pip", tmp_path, 16)
    first, positive = 51, {(i, 51 + 3 * i) for i in range(2, 10)}
    drawn = set()
    for epoch in range(40):
        pairs, touch = data.pairs(epoch, 0)
        assert touch.tolist() == [1.0] * 8 + [0.0] * 8
        assert set(map(tuple, pairs[:8].tolist())) == positive
        negative = set(map(tuple, pairs[8:].tolist()))
        assert len(negative) == 8 and not negative & positive
        assert all(0 < i < first < j < 181 for i, j in negative)  # 0 and 51 are ambiguous
        drawn |= negative
    assert len(drawn) > 250  # of 320 draws among 6,450 pairs
    sample = data[0, 0]
    residues = data.pairs(0, 0)[0][0]
    whole = entries("pip", 16)[0].structure.protein
    for side, residue, protein in zip(range(2), residues, sample.protein.unpack()):
        inside = (whole.atom_residue >= 51) == bool(side)
        ca = whole.pos[(whole.atom_residue == int(residue)) & (whole.atom_name == CA)]
        assert torch.equal(protein.pos, whole.pos[inside & (length(whole.pos - ca) <= 30)])
    focus = sample.protein.pos[sample.focus[sample.protein.atom_residue] & (sample.protein.atom_name == CA)]
    assert torch.equal(focus, whole.pos[whole.atom_name == CA][torch.from_numpy(residues)])


def test_pip_draws_other_positives_in_every_epoch(tmp_path):
    """Ten of 30, each about as often."""
    data, epochs = dataset("pip", tmp_path, 60), 60
    drawn = Counter(tuple(pair) for epoch in range(epochs) for pair in data.pairs(epoch, 0)[0][:10].tolist())
    assert drawn.keys() == {(i, 51 + 3 * i) for i in range(2, 32)} and drawn.total() == 10 * epochs
    assert max(drawn.values()) < 2 * epochs / 3 and len(data) == 20


def test_pip_draws_for_every_complex_anew(tmp_path):
    """Two entries of the same complex: neither their positives nor their negatives are the same."""
    (given,) = entries("pip", 60)
    data = SAMPLES["pip"](store_of(tmp_path, given, replace(given, name="d")))
    one, other = (set(map(tuple, data.pairs(0, index)[0].tolist())) for index in (0, 1))
    assert len(one & other) < 10 and len(one) == len(other) == 20


def test_pip_takes_no_more_pairs_than_there_are(tmp_path):
    """Two residues against three, of which four pairs touch and one residue is ambiguous: two pairs are left."""
    whole = structure()
    parts = [replace(whole, protein=whole.protein.crop(0, n)) for n in (2, 3)]
    touching = [[0, 2], [0, 3], [1, 4], [0, 4]]
    both = join(parts, first=2, ambiguous=[4], pairs=torch.tensor(touching))
    data = SAMPLES["pip"](store_of(tmp_path, Given("c", both)))
    assert len(data) == 4
    for epoch in range(9):
        pairs, touch = data.pairs(epoch, 0)
        assert sorted(pairs[touch == 0].tolist()) == [[1, 2], [1, 3]]
        one, other = pairs[touch == 1].tolist()
        assert one != other
        assert one in touching
        assert other in touching


def test_structures_of_alpha_carbons_alone_are_counted(tmp_path):
    """And those without any oxygen."""
    protein = real_protein("1LCD_A", torch.float32)
    write_pdb(tmp_path / "whole.pdb", protein)
    assert open_store(tmp_path, workers=1).lacking_backbone() == ""
    write_pdb(tmp_path / "carbons.pdb", protein.alpha_carbons())
    write_pdb(tmp_path / "no_o.pdb", protein.select_atoms(protein.atom_name != O))
    assert open_store(tmp_path, workers=1).lacking_backbone() == "2 structures lack 204 atoms of the backbone"


# ---- demo sets -------------------------------------------------------------------------------------------------------


SPLITS = ("train", "valid", "test")
TASKS = [task for task in SAMPLES if task != "table"]  # which is of the user's own data


def written(task: str) -> dict:
    with zipfile.ZipFile(demo.FILE) as archive:
        return json.loads(archive.read(f"{task}.json"))


def demo_entries(task: str, split: str = "valid") -> list:
    return getattr(demo.demo_set(task), split).listing().sources


def native_of(entry) -> str:
    """Name of the bundled structure that an entry is made of."""
    return entry.label.args[0]["structure"]


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_by_protein(task):
    group = {row["file"].split("/")[1].removesuffix(".pdb.gz"): row["group30"] for row in bundle_index()}
    names, groups = [], []
    for split in SPLITS:
        entries = demo_entries(task, split)
        names += [e.name for e in entries]
        groups.append({group[native_of(e)] for e in entries})
    assert all(groups)
    train, valid, test = groups
    assert not train & valid
    assert not (train | valid) & test
    assert len(set(names)) == len(names)
    demo_set = demo.demo_set(task)
    assert demo_set.about.startswith("Demo: ")
    assert len({getattr(demo_set, split).key for split in SPLITS}) == 3


def test_res_surroundings_by_brute_force():
    """They are around an ideal CB, which is within 0.6 angstrom of the real one."""
    structure, radius = demo_entries("res")[0].read(), demo.ENVIRONMENT_RADIUS
    protein, values = structure.protein, structure.labels
    assert len(values["residues"]) == make_sets.ENVIRONMENTS == len(values["ends"])
    for number, centre in enumerate(values["residues"]):
        around = torch.zeros(protein.num_atoms, dtype=torch.bool)
        around[unpack_list(values, number)] = True
        own = protein.atom_residue == centre
        assert sorted(protein.atom_name[around & own].tolist()) == [N, CA, C, O]
        beta = ATOM_INDEX["CB" if (protein.atom_name[own] == ATOM_INDEX["CB"]).any() else "CA"]
        distance = length(protein.pos - protein.pos[own & (protein.atom_name == beta)])
        blur = 0.6 if beta == ATOM_INDEX["CB"] else 2
        assert not (around & (distance > radius + blur)).any()
        assert (around | own | (distance > radius - blur)).all()


def test_pip_contacts_by_brute_force():
    entry = min(demo_entries("pip"), key=lambda e: e.size)
    structure = entry.read()
    protein, first = structure.protein, structure.labels["first"]
    pairs = {*map(tuple, structure.labels["pairs"].reshape(-1, 2).tolist())}
    assert not {*protein.chain[:first].tolist()} & {*protein.chain[first:].tolist()}
    for i in range(0, first, 5):
        a = protein.pos[protein.atom_residue == i]
        for j in range(first, protein.num_residues, 3):
            b = protein.pos[protein.atom_residue == j]
            assert ((i, j) in pairs) == bool((length(a[:, None] - b) < 6).any())


def test_msp_rule_by_brute_force():
    """A residue becomes alanine, nothing else moves; it stabilises if no contact goes."""
    found = []
    for entry in demo_entries("msp")[:4]:
        structure = entry.read()
        labels, first = structure.labels, structure.labels["first"]
        ((residue,), (mutated,)) = labels["mutated"]
        wild, mutant = structure.protein.crop(0, first), structure.protein.crop(first, first)
        letter = ONE_LETTER[wild.residue_type[residue]]
        assert mutated == first + residue and letter not in "GA" and entry.name.endswith(f"_{letter}{residue}A")

        # All other residues are as they were, and of this one what alanine has too.
        types = wild.residue_type.clone()
        types[residue] = RESIDUE_INDEX["ALA"]
        own = wild.atom_residue == residue
        goes = own & (wild.atom_name > O) & (wild.atom_name != ATOM_INDEX["CB"])
        assert_equal(mutant, replace(wild, residue_type=types, chain=mutant.chain).select_atoms(~goes))

        # How many atoms of the other partner each atom that goes is in contact with.
        (row,) = [row for row in bundle_index() if PurePath(row["file"]).name == f"{native_of(entry)}.pdb.gz"]
        one = make_sets.sides(replace(entry, label=None).read(), row["partners"])[0].protein.num_residues
        other = (torch.arange(first) >= one) == (residue < one)
        distance = length(wild.pos[goes][:, None] - wild.pos[other[wild.atom_residue]])
        lost = int((distance < make_sets.CONTACT).sum())
        assert lost >= make_sets.MANY if labels["label"] == 0 else lost == 0
        found.append(labels["label"])
    assert sorted(found) == [0, 0, 1, 1]


def test_the_file_of_ec_is_that_which_the_script_writes():
    made = json.loads(make_sets.text_of(make_sets.make("ec")))
    assert made == written("ec")


@pytest.mark.parametrize("task, script", [("psr", make_sets._psr), ("msp", make_sets._msp)])
def test_models_and_mutations_are_those_of_the_script(task, script):
    entry = min(demo_entries(task), key=lambda e: e.size)
    (row,) = [row for row in bundle_index() if PurePath(row["file"]).name == f"{native_of(entry)}.pdb.gz"]
    content = written(task)
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
    made = demo_entries(task)[:2]
    one, two = made[0].read(), pickle.loads(pickle.dumps(made[0])).read()
    assert str(one.labels) == str(two.labels) and one.labels
    assert_equal(one.protein, two.protein)
    data = SAMPLES[task](store_of(tmp_path, *made), classes=demo.demo_set(task).classes)
    sample = data[0, len(data) - 1]
    assert len(data) >= len(made) and sample.focus.any() and sample.target.isfinite().all()
