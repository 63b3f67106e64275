"""The splits of labelled sets: structures of one sequence stay together, and what a user is told about the splits."""

import json
from argparse import Namespace
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import real_protein
from helpers import Given, dataset, structure

from benchmarks.pdb import write_pdb
from siamdiff_min.downstream import metrics
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import StoreError, StructureError
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.crops import split
from siamdiff_min.reading.sources import Listing, Origin
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets.labelled_set import SPLITS
from siamdiff_min.sets.samples import SAMPLES, ValueSamples
from siamdiff_min.tools.evidence import bootstrap
from siamdiff_min.tools.evidence.wording import finish
from siamdiff_min.tools.table.relatives import SHORTEST, groups_of, near_copies
from siamdiff_min.tools.table.table_set import remarks, split_by_sequence, table_set
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training import results


@pytest.fixture
def copies(tmp_path):
    """Twenty pieces of a chain, each as two files of other names, and one of two equal chains."""
    chain, folder = real_protein("1LCD_A"), tmp_path / "data"
    folder.mkdir()
    for i in range(20):
        for name in "ab":
            write_pdb(folder / f"{name}{i}.pdb", chain.crop(i, 30))
    return folder


def set_of(folder, values):
    table = folder.parent / "labels.csv"
    table.write_text("name,value\n" + "".join(f"{name},{value}\n" for name, value in values.items()))
    return table_set(table, folder)


def test_copies_are_on_one_side_in_pre_training_and_in_tables(copies):
    store = open_store(copies, workers=1)
    assert len({*store.sequences}) == 20
    data = set_of(copies, {name: i for i, name in enumerate(store.names)})
    tables = [data.open(name, workers=1).names for name in SPLITS]
    assert [*map(len, tables)] == [32, 4, 4]
    for sides in (tables, [[store.names[i] for i in side] for side in split(store, 0.3)]):
        side_of = {name: number for number, side in enumerate(sides) for name in side}
        assert len(side_of) == 40 and len({*side_of.values()}) == len(sides)
        assert all(side_of[f"a{i}"] == side_of[f"b{i}"] for i in range(20))


def write_chains(path, parts):
    """Write some proteins as the chains A, B, ... of one file."""
    whole = Protein.pack([replace(part, pos=part.pos + 40 * i) for i, part in enumerate(parts)])
    one = {"residue_protein": torch.zeros_like(whole.chain), "num_proteins": 1}
    write_pdb(path, replace(whole, chain=whole.residue_protein, **one), tuple("ABCDEF"[: len(parts)]))


def test_a_chain_and_its_dimer_have_one_sequence(copies):
    """And a chain with others beside it has another, whatever their order; the same in every process and version."""
    whole = real_protein("1LCD_A")
    pieces = [whole.crop(5 * i, 8) for i in range(6)]
    for name, parts in (("dimer", [whole.crop(0, 30)] * 2), ("six", pieces), ("turned", pieces[::-1])):
        write_chains(copies / f"{name}.pdb", parts)
    store = open_store(copies, workers=1)
    of = dict(zip(store.names, store.sequences))
    assert Counter(store.sequences)[of["dimer"]] == 3 and of["six"] == of["turned"] == "b9097420b70e9a90"


def test_a_table_may_name_chains_of_files_that_have_several(tmp_path):
    """As NAME_A or in a column `chain`; both read one store, with an entry for every chain."""
    folder, table = tmp_path / "data", tmp_path / "labels.csv"
    folder.mkdir()

    def data_of(*lines):
        table.write_text("\n".join(lines))
        return table_set(table, folder, needed=["train"])

    chains = ["f0_A", "f0_B", "f1_A", "f1_B"]
    proteins = [real_protein("1LCD_A").crop(i, 9) for i in range(4)]
    for i in range(2):
        write_chains(folder / f"f{i}.pdb", proteins[2 * i : 2 * i + 2])
    named = [f"{name},{value},train" for value, name in enumerate(chains)]
    split = [f"{name[:2]}.pdb,{name[3]},{value},train" for value, name in enumerate(chains)]
    for lines in (["name,value,split", *named], ["name,chain,value,split", *split]):
        store = data_of(*lines).open("train", workers=1)
        assert store.names == chains and [store.labels(i)["values"] for i in range(4)] == [[0], [1], [2], [3]]
        assert all(torch.equal(store[i].residue_type, proteins[i].residue_type) for i in range(4))

    # What is not there; a file of the name of a chain comes before the chain.
    assert data_of("name,value,split", named[0], "f1_Q,2,train").open("train").not_found == "1 structures (f1_Q)"
    with pytest.raises(StructureError, match=r"match no structure \(1 of 2: f0_A;"):
        data_of("name,value,split", named[0], "f1,2,train")
    (folder / "f0_A.pdb").write_bytes((folder / "f1.pdb").read_bytes())
    assert not data_of("name,value,split", named[0]).train.each_chain


def test_few_structures_and_sequences_with_many_copies():
    """One each is held out of nine without any splits, none of nine beside named ones. A large family is trained on."""
    nine = {f"x{i}": str(i) for i in range(9)}
    unsaid = dict.fromkeys(nine, "")
    assert Counter(split_by_sequence(nine, unsaid).values()) == {"train": 7, "valid": 1, "test": 1}
    named = {"a": "valid", "b": "test"}
    beside = split_by_sequence({**nine, "a": "a", "b": "b"}, unsaid | named)
    assert beside == dict.fromkeys(nine, "train") | named
    family = dict.fromkeys([f"f{i}" for i in range(30)], "00")
    sequence = family | {f"y{i}": str(10 + i) for i in range(10)}
    sides = split_by_sequence(sequence, dict.fromkeys(sequence, ""))
    assert {sides[name] for name in family} == {"train"}
    assert Counter(sides.values()) == {"train": 32, "valid": 4, "test": 4}


def test_a_split_that_no_sequence_is_left_for_is_a_sentence(copies):
    data = set_of(copies, {"a1": 1, "b1": 2})
    with pytest.raises(StoreError, match="2 structures leave none for train: those of one sequence stay together"):
        data.open("train", workers=1)


def test_what_is_said_of_the_splits(copies):
    """A class that is in the test split only, or not in validation."""
    rows = ["name,value,split", "a1,x,train", "a2,y,train", "a4,x,valid", "b4,z,test", "b1,z,test", "a3,z,test"]
    table = copies.parent / "given.csv"
    table.write_text("\n".join(rows))
    data = table_set(table, copies)
    datasets = {name: ValueSamples(data.open(name, workers=1), data.classes) for name in SPLITS}
    assert remarks(datasets) == [
        "1 of 3 classes do not occur in train: z",
        "2 of 3 classes do not occur in valid: y, z",
    ]
    assert remarks({"test": datasets["test"]}) == []


def test_a_name_that_fits_several_files_is_refused_with_all_of_them(copies):
    (copies / "sub").mkdir()
    (copies / "a1.pdb").rename(copies / "sub" / "a2.pdb")
    (copies / "A3.PDB").write_bytes((copies / "a3.pdb").read_bytes())
    with pytest.raises(StructureError, match=r"fits several structures \(a2: a2, sub/a2\)"):
        set_of(copies, {"a2": 1, "a4": 2})
    set_of(copies, {"a2": 1, "sub/a2": 2, "a4": 2})
    with pytest.raises(StructureError, match=r"match no structure \(4 of 4: A4, q1, q2, \.\.\.; .* has 41: A3, a0,"):
        set_of(copies, {"A4": 1, "q1": 2, "q2": 3, "q3": 4})
    assert set_of(copies, {"a4": 1, "a5": 2}).notes == [
        "2 of 41 structures have a label; without one: A3, a0, a10, ..."
    ]


def test_a_family_is_on_one_side(copies):
    """Of 40 structures every third is of one family: with the hash alone they would be on all sides."""
    names = open_store(copies, workers=1).names
    table = copies.parent / "family.csv"
    rows = [f"{name},{i},{'' if i % 3 else 'kinase'}" for i, name in enumerate(names)]
    table.write_text("\n".join(["name,value,family", *rows]))
    data = table_set(table, copies)
    side = {name: split for split in SPLITS for name in data.open(split, workers=1).names}
    assert len({side[name] for name in names[::3]}) == 1 and len(side) == len(names)


def test_crops_to_train_on_are_windows_drawn_anew_that_keep_a_label(tmp_path):
    """Values stay at their residues: here each is the number of its row."""
    rows = [0, 1, 30, 49, 50]
    labels = {"kind": "regression", "values": [float(row) for row in rows], "rows": rows, "places": [*map(str, rows)]}
    origin = Origin(tmp_path, "x", lambda: Listing([Given("a", structure(**labels))], []))
    store = open_store(origin, store=tmp_path / "s")
    samples = SAMPLES["table"](store, max_residues=10)
    starts = set()
    for epoch in range(60):
        sample = samples[epoch, 0]
        found = sample.target.int().tolist()
        start = found[0] - int(sample.focus.nonzero()[0])
        assert found == [row for row in rows if row in range(start, start + 10)] and 0 <= start <= 41
        assert (sample.focus.nonzero()[:, 0] + start).tolist() == found
        assert torch.equal(sample.protein.pos, store.read(0, start, 10).pos)
        assert sample.names == tuple(f"a:{row}" for row in found) == samples[epoch, 0].names
        starts.add(start)
    assert len(starts) > 10  # of 14
    assert SAMPLES["table"](store)[0, 0].protein.num_residues == 51


# ---- relatives: near copies by k-mers, families of a table -----------------------------------------------------------


RANDOM = np.random.default_rng(0)


def changed(types: np.ndarray, identity: float) -> np.ndarray:
    rows = RANDOM.permutation(len(types))[: round(len(types) * (1 - identity))]
    other = types.copy()
    other[rows] = (types[rows] + RANDOM.integers(1, 20, len(rows))) % 20
    return other


def test_sequences_of_90_percent_identity_are_found_and_of_80_are_not():
    found = Counter()
    for _ in range(20):
        types = RANDOM.integers(20, size=150)
        for identity in (0.95, 0.9, 0.8):
            found[identity] += len(near_copies([types, changed(types, identity)]))
    assert found[0.95] == 20 and found[0.9] >= 18 and found[0.8] == 0


def test_cut_ends_are_found_and_short_peptides_are_not():
    types = RANDOM.integers(20, size=100)
    pairs = near_copies([types[4:], RANDOM.integers(20, size=100), types, types[:-3]])
    assert {tuple(pair) for pair in pairs.tolist()} == {(0, 2), (0, 3), (2, 3)}
    short = types[: SHORTEST - 1]
    assert len(near_copies([short, short[1:]])) == 0


def store_of(sequences):
    hashes = {types.tobytes(): f"h{i}" for i, types in enumerate(sequences.values())}
    return SimpleNamespace(
        names=[*sequences],
        sequences=[hashes[types.tobytes()] for types in sequences.values()],
        read=lambda row: SimpleNamespace(residue_type=torch.tensor([*sequences.values()][row])),
    )


def test_families_and_near_copies_are_one_group():
    """a and b are near copies, b and c a family; d is alone, e is not in the table."""
    a, d = RANDOM.integers(20, size=(2, 60))
    store = store_of({"a": a, "b": a[1:], "c": RANDOM.integers(20, size=60), "d": d, "e": d})
    together = {"a": "h0", "b": "h0", "c": "h0", "d": "h4"}
    assert groups_of(store, "abcd", {"b": "kinases", "c": "kinases"}) == [together] * 2
    assert groups_of(store, "abcd", {}) == [{**together, "c": "h2"}] * 2


def test_relatives_are_found_that_are_no_near_copies():
    """Three of 45 % identity to one ancestor, 30 strangers; a chain of links makes one family."""
    ancestor = RANDOM.integers(20, size=200)
    sequences = {f"s{i}": RANDOM.integers(20, size=200) for i in range(30)}
    sequences |= {f"r{i}": changed(ancestor, 0.65) for i in range(3)}
    copies, families = groups_of(store_of(sequences), sequences, {})
    assert len({*copies.values()}) == 33 and len({*families.values()}) == 31
    assert families["r0"] == families["r1"] == families["r2"]


# ---- results.json ----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 200)


ENCODER = ENCODERS["gearnet"]("residue", "tiny")
RNG = np.random.default_rng(0)


def written(path, task, trained_on, target, scores: list, groups=None) -> dict:
    """What results.json has, and `said`, the rows on the screen by their first word."""
    task.known = {"answer": task.baseline(np.array(trained_on)), "splits": {"train": {"samples": 9, "structures": 3}}}
    names = [str(i) for i in range(len(target))]
    tested = {k: results.Predictions(names, groups or names, target, score) for k, score in enumerate(scores)}
    result = results.result_of(Namespace(device="cpu"), task, tested, {"0": 2.0, "1": 1.0}, {})
    said = finish(path / "results.json", result, task, tested).splitlines()
    found = json.loads((path / "results.json").read_text(), parse_constant=pytest.fail)  # JSON knows no NaN
    return found | {"said": {line.split()[0]: line for line in said if line}}


def test_a_model_that_is_worse_than_the_mean_stands_beside_it(tmp_path):
    """The mean has the smallest squared error, the median the smallest absolute one; neither ranks anything."""
    trained_on = [0.0, 0.0, 1.0, 11.0]
    target = RNG.normal(3, 5, size=30)
    found = written(tmp_path, table_task(ENCODER), trained_on, target, [target + RNG.normal(2, 9, size=30)])
    constant = found["constant"]
    rmse = np.sqrt(np.mean((target - 3) ** 2))
    assert np.isclose(constant["rmse"], rmse)
    assert np.isclose(constant["mae"], np.mean(np.abs(target - 0.5)))
    assert constant["pearson"] == constant["spearman"] == 0
    low, high = found["gain_interval"]["rmse"]
    assert 0 < low < found["mean"]["rmse"] - rmse < high  # above by more than chance: worse
    assert found["said"]["rmse"].split()[-4:] == [f"{rmse:.4f}", "worse", "than", "it"]


def test_the_interval_of_a_difference_is_of_the_same_draws(tmp_path):
    """A model that says nearly the mean: each rmse varies a lot, their difference does not."""
    target = RNG.normal(size=40) * np.repeat([1.0, 9.0], 20)
    found = written(tmp_path, table_task(ENCODER), [-1.0, 1.0], target, [np.full(40, 0.01)])
    width, gain = (np.diff(found[name]["rmse"])[0] for name in ("interval", "gain_interval"))
    assert width > 50 * gain


def test_accuracies_are_counted_and_the_commonest_class_is_the_constant(tmp_path):
    target, score = RNG.integers(3, size=50), RNG.random((2, 50, 3))
    groups = [str(i // 5) for i in range(50)]
    found = written(tmp_path, table_task(ENCODER, 3, "classes"), [0, 2, 2, 1], target, score, groups)
    correct = [str((of_seed.argmax(1) == target).sum()) for of_seed in score]
    counts = found["counts"]
    assert [str(count) for count in counts["correct"].values()] == correct
    assert (counts["samples"], counts["structures"]) == (50, 10)
    assert found["constant"]["accuracy"] == (target == 2).mean()
    assert found["answer"]["mean"] == [0.25, 0.25, 0.5]
    assert found["said"]["test"] == "test split  50 samples of 10 structures (train 9)"
    assert found["said"]["correct"].split()[1:] == correct
    assert found["said"]["best"].split()[2:] == ["2", "1"]


@pytest.mark.repeats
@pytest.mark.parametrize("task", ["pip", "msp"])
def test_a_constant_of_two_classes(tmp_path, task, few_draws):
    target = np.repeat([1.0, 0.0], [4, 12])
    found = written(tmp_path, TASKS[task](ENCODER), [1.0, 0.0], target, [RNG.random(16)])
    assert found["constant"]["auroc"] == 0.5 and found["counts"]["positives"] == 4
    if task == "msp":  # of random orders, above the share of yes
        random = np.mean([metrics.auprc(RNG.random(16), target) for _ in range(1000)])
        assert abs(found["constant"]["auprc"] - random) < 0.02


def test_what_is_not_defined_is_none_and_not_nan(tmp_path):
    """One class, one structure: no AUROC, no interval."""
    found = written(tmp_path, TASKS["msp"](ENCODER), [1.0, 1.0], np.ones(3), [RNG.random(3)], ["a"] * 3)
    assert found["mean"]["auroc"] is None and found["interval"] == {"auroc": None, "auprc": None}


@pytest.mark.parametrize("task", TASKS)
def test_targets_are_those_of_the_samples(tmp_path, task):
    """The constant answer is that of all training samples."""
    data = dataset(task, tmp_path)
    every = np.concatenate([data[0, i].target.numpy() for i in range(len(data))])
    found = data.targets()
    assert found.shape == every.shape and len(every) > 1 and type(data) is SAMPLES[task]
    if task == "pip":  # drawn by complex: as many of each
        found, every = np.sort(found), np.sort(every)
    assert np.allclose(found, every)


def test_whole_structures_are_drawn(tmp_path):
    """Of eight structures one has an error of 2 in all its samples: the draws have it 0, 1, 2, ... times."""
    target, groups = RNG.normal(size=80), [f"{i // 10}" for i in range(80)]
    found = written(tmp_path, table_task(ENCODER), [0.0], target, [target + np.repeat([2.0, 0.0], [10, 70])], groups)
    low, high = found["interval"]["rmse"]
    assert low == 0 and np.isclose(high, np.sqrt(3 / 8 * 4)) and found["counts"]["structures"] == 8
    draws = np.load(tmp_path / "draws.npz")["rmse"]
    assert set(np.round(2 * draws**2, 9) % 1) == {0.0} and len(draws) == 200


@pytest.mark.parametrize("structures", [2, 7])
def test_too_few_structures_have_no_interval(tmp_path, structures):
    target = RNG.normal(size=2 * structures)
    found = written(tmp_path, table_task(ENCODER), [0.0], target, [target], [str(i // 2) for i in range(len(target))])
    assert not any((found["interval"] | found["gain_interval"]).values()) and found["mean"]["rmse"] == 0
    reason = f"no interval of {structures} structures, too few to draw again: it takes 8"
    assert found["said"]["no"] == reason and found["said"]["rmse"].split()[4] == "-"


@pytest.mark.parametrize(("rarer", "drawn"), [(3, False), (4, True)])
def test_few_samples_of_yes_or_of_no_have_no_interval(tmp_path, rarer, drawn, few_draws):
    for target in (np.arange(20) < rarer, np.arange(20) >= rarer):
        found = written(tmp_path, table_task(ENCODER, kind="binary"), [0, 1], target * 1.0, [RNG.random(20)])
        assert bool(found["interval"]["auroc"]) == bool(found["gain_interval"]["auroc"]) == drawn
        assert ("no" in found["said"]) != drawn


@pytest.mark.parametrize(("size", "draws"), [(9_999, 1000), (10_000, 300), (100_000, 100)])
def test_draws_of_large_splits_are_fewer(monkeypatch, size, draws):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 1000)
    assert len([*bootstrap.drawn_rows([*"abcdefgh"], size)]) == draws
