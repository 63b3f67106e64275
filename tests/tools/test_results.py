"""results.json: every metric beside that of the best answer that looks at nothing, with intervals and counts."""

import json
from argparse import Namespace

import numpy as np
import pytest

from siamdiff_min.downstream import metrics
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.sets.samples import SAMPLES
from siamdiff_min.tools.evidence import bootstrap
from siamdiff_min.tools.evidence.wording import finish
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training import results


@pytest.fixture(autouse=True)
def _draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 200)


ENCODER = ENCODERS["gearnet"]("residue", "tiny")
RNG = np.random.default_rng(0)


def written(path, task, trained_on, target, scores: list, groups=None) -> dict:
    task.known = {"answer": task.baseline(np.array(trained_on)), "splits": {"train": {"samples": 9, "structures": 3}}}
    names = [str(i) for i in range(len(target))]
    tested = {k: results.Predictions(names, groups or names, target, score) for k, score in enumerate(scores)}
    config, epochs = Namespace(device="cpu"), {"0": 2.0, "1": 1.0}
    result = results.result_of(config, task, tested, epochs, {})
    said = finish(path / "results.json", result, task, tested)
    return json.loads((path / "results.json").read_text()) | {"said": said}


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


@pytest.mark.repeats
@pytest.mark.parametrize("task", ["pip", "msp"])
def test_a_constant_of_two_classes(tmp_path, task, few_draws):
    target = np.repeat([1.0, 0.0], [4, 12])
    found = written(tmp_path, TASKS[task](ENCODER), [1.0, 0.0], target, [RNG.random(16)])
    assert found["constant"]["auroc"] == 0.5
    if task == "msp":  # of random orders, above the share of yes
        random = np.mean([metrics.auprc(RNG.random(16), target) for _ in range(1000)])
        assert abs(found["constant"]["auprc"] - random) < 0.02
    assert found["counts"]["positives"] == 4


def test_what_is_not_defined_is_none_and_not_nan(tmp_path):
    """One class, one structure: no AUROC, no interval. JSON knows no NaN."""
    found = written(tmp_path, TASKS["msp"](ENCODER), [1.0, 1.0], np.ones(3), [RNG.random(3)], ["a"] * 3)
    assert found["mean"]["auroc"] is None and found["interval"] == {"auroc": None, "auprc": None}
    assert "NaN" not in (tmp_path / "results.json").read_text()


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
def test_few_samples_of_yes_or_of_no_have_no_interval(tmp_path, rarer, drawn, few_draws):
    for target in (np.arange(20) < rarer, np.arange(20) >= rarer):
        found = written(tmp_path, table_task(ENCODER, kind="binary"), [0, 1], target * 1.0, [RNG.random(20)])
        assert bool(found["interval"]["auroc"]) == bool(found["gain_interval"]["auroc"]) == drawn
        assert (f"no interval of {rarer} samples of the rarer class, too few" in found["said"]) != drawn


@pytest.mark.parametrize(("size", "draws"), [(9_999, 1000), (10_000, 300), (100_000, 100)])
def test_draws_of_large_splits_are_fewer(monkeypatch, size, draws):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 1000)
    assert len([*bootstrap.drawn_rows([*"abcdefgh"], size)]) == draws
