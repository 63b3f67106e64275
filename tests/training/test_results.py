"""results.json: every metric beside that of the best answer that looks at nothing, with intervals and counts."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest

from siamdiff_min.downstream import metrics
from siamdiff_min.downstream.tasks import TASKS, table_task
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.sets.samples import SAMPLES
from siamdiff_min.training import results, verdict, wording


@pytest.fixture(autouse=True)
def _draws(monkeypatch):
    monkeypatch.setattr(results, "MOST_DRAWS", 200)


ENCODER = ENCODERS["gearnet"]("residue", "tiny")
RNG = np.random.default_rng(0)


def written(path, task, trained_on, target, scores: list, groups=None) -> dict:
    task.known = {"answer": task.baseline(np.array(trained_on)), "splits": {"train": {"samples": 9, "structures": 3}}}
    names = [str(i) for i in range(len(target))]
    tested = {k: results.Predictions(names, groups or names, target, score) for k, score in enumerate(scores)}
    config, epochs = Namespace(device="cpu"), {"0": 2.0, "1": 1.0}
    said = results.write_results(path / "results.json", config, task, tested, epochs)
    return json.loads((path / "results.json").read_text()) | {"said": said}


def test_options_that_play_no_part_are_not_among_those_of_a_run():
    """A head in closed form has neither epochs nor a learning rate; batches measure batch norm of random weights."""
    options = Namespace(epochs=[50], lr=1e-4, batch_size=8, global_batch_size=8, folds=5, init_from="siamdiff-residue")
    linear = table_task(ENCODER, linear=True)
    assert results.decisive(options, linear) == {"folds": 5, "init_from": "siamdiff-residue"}
    options.init_from = None
    assert results.decisive(options, linear) == {"folds": 5, "init_from": None, "batch_size": 8}
    assert results.decisive(options, table_task(ENCODER)) == vars(options) and options.epochs == [50]


def test_a_model_that_is_worse_than_the_mean_stands_beside_it(tmp_path):
    """The mean has the smallest squared error, the median the smallest absolute one; neither ranks anything."""
    trained_on, target = [0.0, 0.0, 1.0, 11.0], RNG.normal(3, 5, size=30)
    found = written(tmp_path, table_task(ENCODER), trained_on, target, [target + RNG.normal(2, 9, size=30)])
    constant = found["constant"]
    assert (
        np.isclose(constant["rmse"], np.sqrt(np.mean((target - 3) ** 2))) and found["mean"]["rmse"] > constant["rmse"]
    )
    assert np.isclose(constant["mae"], np.mean(np.abs(target - 0.5)))
    assert constant["pearson"] == constant["spearman"] == 0
    low, high = found["gain_interval"]["rmse"]
    assert 0 < low < found["mean"]["rmse"] - constant["rmse"] < high  # above by more than chance: worse
    row = next(line.split() for line in found["said"].splitlines() if line.startswith("rmse"))
    assert row[-6:] == ["to", row[-5], f"{constant['rmse']:.4f}", "worse", "than", "it"]


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
    assert found["counts"]["correct"] == {str(k): int((score[k].argmax(1) == target).sum()) for k in (0, 1)}
    assert found["counts"]["samples"] == 50 and found["counts"]["structures"] == 10
    assert found["constant"]["accuracy"] == (target == 2).mean() and found["answer"]["mean"] == [0.25, 0.25, 0.5]
    assert "test split  50 samples of 10 structures (train 9)" in found["said"]
    rows = {line.split()[0]: line.split() for line in found["said"].splitlines()}
    assert rows["correct"][1:] == [*map(str, found["counts"]["correct"].values())] and rows["best"][2:] == ["2", "1"]


@pytest.mark.parametrize("task", ["pip", "msp"])
def test_a_constant_of_two_classes(tmp_path, task):
    target = np.repeat([1.0, 0.0], [4, 12])
    found = written(tmp_path, TASKS[task](ENCODER), [1.0, 0.0], target, [RNG.random(16)])
    assert found["constant"]["auroc"] == 0.5
    if task == "msp":  # of random orders, above the share of yes
        random = np.mean([metrics.auprc(RNG.random(16), target) for _ in range(2000)])
        assert abs(found["constant"]["auprc"] - random) < 0.015
    assert found["counts"]["positives"] == 4


def test_what_is_not_defined_is_none_and_not_nan(tmp_path):
    """One class, one structure: no AUROC, no interval. JSON knows no NaN."""
    found = written(tmp_path, TASKS["msp"](ENCODER), [1.0, 1.0], np.ones(3), [RNG.random(3)], ["a"] * 3)
    assert found["mean"]["auroc"] is None and found["interval"] == {"auroc": None, "auprc": None}
    assert "NaN" not in (tmp_path / "results.json").read_text()


def test_a_constant_score_has_no_correlation_at_all():
    """0.1 has a mean that is not quite 0.1."""
    for n in (10, 100, 1001):
        assert metrics.pearson(np.full(n, 0.1), RNG.random(n)) == metrics.pearson(np.full(n, 4.7), RNG.random(n)) == 0


@pytest.mark.parametrize("task", TASKS)
def test_targets_are_those_of_the_samples(tmp_path, task):
    """The constant answer is that of all training samples."""
    from given import dataset

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
    assert reason in found["said"].splitlines()
    row = next(line.split() for line in found["said"].splitlines() if line.startswith("rmse"))
    assert row[4] == "-"


@pytest.mark.parametrize(("rarer", "drawn"), [(3, False), (4, True)])
def test_few_samples_of_yes_or_of_no_have_no_interval(tmp_path, rarer, drawn):
    for target in (np.arange(20) < rarer, np.arange(20) >= rarer):
        found = written(tmp_path, table_task(ENCODER, kind="binary"), [0, 1], target * 1.0, [RNG.random(20)])
        assert bool(found["interval"]["auroc"]) == bool(found["gain_interval"]["auroc"]) == drawn
        assert (f"no interval of {rarer} samples of the rarer class, too few" in found["said"]) != drawn


@pytest.mark.parametrize(("size", "draws"), [(9_999, 1000), (10_000, 300), (100_000, 100)])
def test_draws_of_large_splits_are_fewer(monkeypatch, size, draws):
    monkeypatch.setattr(results, "MOST_DRAWS", 1000)
    assert len([*results.draws([*"abcdefgh"], size)]) == draws


# ---- the verdict on a table ------------------------------------------------------------------------------------------


def table_of(path, target, prediction, floor=None, units=None, properties=(), kind="regression") -> dict:
    """The results of one split of a table, with predictions of a head and of its floor."""
    task = table_task(ENCODER, kind=kind, linear=True, properties=properties, num_outputs=len(properties) or None)
    task.fit(target, "tiny")
    task.known = {"answer": task.baseline(target)}
    names = [str(i) for i in range(len(target))]
    tested = results.Predictions(names, names, target, prediction, units or names)
    if floor is not None:
        tested = replace(tested, floor=replace(tested, prediction=floor))
    said = results.write_results(path / "results.json", Namespace(device="cpu"), task, {0: tested}, {})
    return json.loads((path / "results.json").read_text()) | {"said": said}


def test_better_than_the_baseline_and_the_floor(tmp_path):
    random = np.random.default_rng(0)
    target = random.normal(size=40)
    good = target + 0.2 * random.normal(size=40)
    middling = target + 0.8 * random.normal(size=40)
    found = table_of(tmp_path, target, good, middling)
    assert {*found["verdict"].values()} == {"better than"} and found["floor"]["verdict"]["rmse"] == "better than"
    assert "verdict     by rmse better than the baseline, better than length and composition" in found["said"]
    assert found["chance"]["rmse"][0] == 1 / 400 and found["floor"]["mean"]["rmse"] == metrics.rmse(middling, target)
    other = table_of(tmp_path, target, middling, good)
    assert other["verdict"]["rmse"] == "better than" and other["floor"]["verdict"]["rmse"] == "worse than"
    noise = table_of(tmp_path, target, 0.01 * random.normal(size=40), 0.01 * random.normal(size=40))
    assert noise["verdict"]["rmse"] == noise["floor"]["verdict"]["rmse"] == "not told apart from"
    turned = table_of(tmp_path, target, -good)
    assert {*turned["verdict"].values()} == {"worse than"} and "floor" not in turned


def test_a_head_worse_than_its_floor_is_so_in_tables_too_large_to_deal_out(tmp_path):
    random = np.random.default_rng(0)
    target = random.normal(size=60)
    task = table_task(ENCODER, kind="regression", linear=True)
    task.fit(target, "tiny")
    task.known = {"answer": task.baseline(target)}
    names = [str(i) for i in range(60)]
    fold = np.arange(60) % 10
    floor = results.Predictions(names, names, target, target + 0.01 * random.normal(size=60), names, fold)
    tested = replace(floor, prediction=target + 0.6 * random.normal(size=60), floor=floor)
    results.write_results(tmp_path / "results.json", Namespace(device="cpu"), task, {0: tested}, {})
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["chance"] == {} and found["verdict"]["rmse"] == "better than"
    assert found["floor"]["verdict"]["rmse"] == "worse than"


def test_what_cannot_be_told_is_no_verdict_and_said_beside_predictions(tmp_path):
    """Two positives; a test split of one class, whose AUROC is not defined."""
    few = table_of(tmp_path, np.repeat([1.0, 0.0], [2, 38]), RNG.random(40), kind="binary")
    assert (
        "verdict     too few to tell the model from the baseline: 2 samples of the rarer class"
        in few["said"].splitlines()
    )
    assert "too few to tell" in wording.doubt(few)

    task = table_task(ENCODER, 2, kind="classes", metric="auroc")
    task.known = {"answer": task.baseline(np.repeat([0, 1], 20))}
    names = [str(i) for i in range(20)]
    share = RNG.random(20)
    tested = results.Predictions(names, names, np.zeros(20), np.column_stack([share, 1 - share]), names)
    said = results.write_results(tmp_path / "results.json", Namespace(device="cpu"), task, {0: tested}, {})
    found = json.loads((tmp_path / "results.json").read_text())
    assert "auroc" not in found["verdict"] and "accuracy" in found["verdict"]
    assert wording.doubt(found) == "auroc cannot be measured: all values of the test split are the same"
    assert f"verdict     {wording.doubt(found)}" in said.splitlines()


def test_copies_are_drawn_and_dealt_out_together(tmp_path):
    """Nine sequences of five copies, a random number for each, which the predictions know for three sequences."""
    random = np.random.default_rng(3)
    sequences = np.repeat(np.arange(9), 5)
    target = random.normal(size=9)[sequences]
    prediction = np.where(sequences < 2, target, 0) + 0.3 * random.normal(size=9)[sequences]
    units = [f"s{i}" for i in sequences]
    found = table_of(tmp_path, target, prediction, units=units)
    alone = table_of(tmp_path, target, prediction)
    assert found["counts"] == {"samples": 45, "structures": 45, "sequences": 9}
    assert found["chance"]["spearman"][0] > 3 * alone["chance"]["spearman"][0]
    low, high = np.diff([found["interval"]["rmse"], alone["interval"]["rmse"]])[:, 0]
    assert low > 1.5 * high
    few = table_of(tmp_path, target[:30], prediction[:30], units=units[:30])
    assert few["no_interval"] == "of 6 sequences, too few to draw again: it takes 8" and "verdict" not in few


def test_rare_classes_are_counted_in_each_property(tmp_path):
    """Many in one, three in the other; gaps are no "no"."""
    target = np.tile([[1.0, 0.0], [0.0, 0.0]], (15, 1))
    target[:3, 1] = 1
    target[20:, 1] = np.nan
    found = table_of(tmp_path, target, RNG.random((30, 2)), properties=("x", "y"), kind="binary")
    assert found["no_interval"] == "of 3 samples of the rarer class, too few to draw again: it takes 4"


def test_the_baseline_of_folds_is_that_of_the_other_folds():
    """Errors by it, orders not: the mean of the others falls where a fold rises."""
    task = table_task(ENCODER, kind="regression")
    target = np.array([1.0, 2.0, 3.0, 10.0, 11.0, 15.0])
    fold = np.array([0, 0, 0, 1, 1, 1])
    own = verdict.baseline_of_folds(task, target, fold)
    assert np.allclose(own["mean"], [12, 12, 12, 2, 2, 2]) and np.allclose(own["median"], [11, 11, 11, 2, 2, 2])
    found = verdict.errors_of_baseline(task, own, target, ["a"] * 6)
    assert found == {
        "rmse": pytest.approx(np.sqrt(np.mean((own["mean"] - target) ** 2))),
        "mae": pytest.approx(np.mean(np.abs(own["median"] - target))),
    }


def test_two_classes_have_auroc_and_the_rarer_is_positive(tmp_path):
    task = table_task(ENCODER, 2, kind="classes")
    target = np.repeat([0, 1], [6, 14])
    share = RNG.random(20)
    task.known = {"answer": task.baseline(target)}
    found = task.metrics(np.column_stack([share, 1 - share]), target, ["a"] * 20)
    assert found["auroc"] == metrics.auroc(share, target == 0) and found["auprc"] == metrics.auprc(share, target == 0)
    constant = task.baseline_metrics(task.known["answer"], target, ["a"] * 20)
    assert constant["auprc"] == metrics.auprc_of_chance(20, 6) and constant["balanced_accuracy"] == 0.5
    assert "auroc" not in table_task(ENCODER, 3, kind="classes").measures


def test_an_interval_of_a_prediction_covers_90_percent():
    random = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        target = random.normal(size=30)
        (within,) = verdict.within(target[:-1], np.zeros(29))
        covered.append(abs(target[-1]) <= within)
    assert 0.86 < np.mean(covered) < 0.94
    assert verdict.within(np.arange(9.0), np.zeros(9)) == [8.0] and verdict.within(np.arange(8.0), np.zeros(8)) == []


def test_predictions_of_a_doubtful_model_say_so(tmp_path):
    predictions = results.Predictions(["a"], ["a"], np.array([np.nan]), np.array([2.0]))
    said = {"verdict": "by rmse not told apart"}
    results.write_predictions(tmp_path / "p.tsv", predictions, (), within=[0.5], said=said)
    assert (tmp_path / "p.tsv").read_text().splitlines() == [
        "id\tgroup\tprediction\tlow\thigh\tverdict",
        "a\ta\t2\t1.5\t2.5\tby rmse not told apart",
    ]
