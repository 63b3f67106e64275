"""The verdict on a table: better than the baseline by a test, better than length and composition by an interval."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import real_protein
from scipy import stats
from sklearn.linear_model import Ridge

from siamdiff_min.downstream import metrics
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein
from siamdiff_min.tools.evidence import bootstrap, permutation, wording
from siamdiff_min.tools.evidence.bootstrap import difference_interval
from siamdiff_min.tools.evidence.conformal import within
from siamdiff_min.tools.table import folds as folds_module
from siamdiff_min.tools.table import linear
from siamdiff_min.tools.table.composition import RADIUS, composition, surroundings
from siamdiff_min.tools.table.folds import baseline_of_folds
from siamdiff_min.tools.table.results import TablePredictions, columns_of_doubt, write_table_results
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training.results import result_of, write_predictions

ENCODER = ENCODERS["gearnet"]("residue", "tiny")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 200)


def table_of(path, target, prediction, composition=None, units=None, properties=(), kind="regression") -> dict:
    """The results of one split of a table, with predictions of a head and of its floor."""
    task = table_task(ENCODER, kind=kind, linear=True, properties=properties, num_outputs=len(properties) or None)
    task.fit(target, "tiny")
    task.known = {"answer": task.baseline(target)}
    names = [str(i) for i in range(len(target))]
    tested = TablePredictions(names, names, target, prediction, units or names)
    if composition is not None:
        tested = replace(tested, composition=replace(tested, prediction=composition))
    return written(path, task, tested)


def written(path, task, tested) -> dict:
    """The content of results.json, and what a finished run says of it."""
    result = result_of(Namespace(device="cpu"), task, {0: tested}, {}, {})
    content = write_table_results(path / "results.json", result, task, {0: tested})
    said = wording.summary(content, path / "results.json")
    return json.loads((path / "results.json").read_text()) | {"said": said}


def test_better_than_the_baseline_and_composition(tmp_path):
    random = np.random.default_rng(0)
    target = random.normal(size=40)
    good = target + 0.2 * random.normal(size=40)
    middling = target + 0.8 * random.normal(size=40)
    found = table_of(tmp_path, target, good, middling)
    assert {*found["verdict"].values()} == {"better"} and found["floor"]["verdict"]["rmse"] == "better"
    assert "verdict     by rmse better than the baseline, better than length and composition" in found["said"]
    assert found["chance"]["rmse"][0] == 1 / 400 and found["floor"]["mean"]["rmse"] == metrics.rmse(middling, target)
    other = table_of(tmp_path, target, middling, good)
    assert other["verdict"]["rmse"] == "better" and other["floor"]["verdict"]["rmse"] == "worse"
    noise = table_of(tmp_path, target, 0.01 * random.normal(size=40), 0.01 * random.normal(size=40))
    assert noise["verdict"]["rmse"] == noise["floor"]["verdict"]["rmse"] == "untold"
    turned = table_of(tmp_path, target, -good)
    assert {*turned["verdict"].values()} == {"worse"} and not turned["floor"]
    decided = {"metric": "rmse", "baseline": "better", "composition": "better", "features": "length and composition"}
    assert found["decision"] == decided | {"few": None}


def test_a_head_worse_than_composition_is_so_in_tables_too_large_to_permute(tmp_path):
    random = np.random.default_rng(0)
    target = random.normal(size=60)
    task = table_task(ENCODER, kind="regression", linear=True)
    task.fit(target, "tiny")
    task.known = {"answer": task.baseline(target)}
    names = [str(i) for i in range(60)]
    fold = np.arange(60) % 10
    composition = TablePredictions(names, names, target, target + 0.01 * random.normal(size=60), names, fold=fold)
    tested = replace(composition, prediction=target + 0.6 * random.normal(size=60), composition=composition)
    found = written(tmp_path, task, tested)
    assert found["chance"] == {} and found["verdict"]["rmse"] == "better"
    assert found["floor"]["verdict"]["rmse"] == "worse"


def test_what_cannot_be_told_is_no_verdict_and_said_beside_predictions(tmp_path):
    """Two positives; a test split of one class, whose AUROC is not defined."""
    few = table_of(tmp_path, np.repeat([1.0, 0.0], [2, 38]), RNG.random(40), kind="binary")
    assert (
        "verdict     too few to tell the model from the baseline: 2 samples of the rarer class"
        in few["said"].splitlines()
    )
    assert "too few to tell" in wording.doubt(wording.verdict_of(few))
    assert few["decision"]["few"] == few["too_few"] == {"count": 2, "of": "samples of the rarer class", "needed": 4}

    task = table_task(ENCODER, 2, kind="classes", metric="auroc")
    task.known = {"answer": task.baseline(np.repeat([0, 1], 20))}
    names = [str(i) for i in range(20)]
    share = RNG.random(20)
    tested = TablePredictions(names, names, np.zeros(20), np.column_stack([share, 1 - share]), names)
    found = written(tmp_path, task, tested)
    assert "auroc" not in found["verdict"] and "accuracy" in found["verdict"]
    assert (
        wording.doubt(wording.verdict_of(found))
        == "auroc cannot be measured: all values of the test split are the same"
    )
    assert f"verdict     {wording.doubt(wording.verdict_of(found))}" in found["said"].splitlines()


def test_copies_are_drawn_and_permuted_together(tmp_path):
    """Nine sequences of five copies, a random number for each, which the predictions know for three sequences."""
    random = np.random.default_rng(3)
    sequences = np.repeat(np.arange(9), 5)
    target = random.normal(size=9)[sequences]
    prediction = np.where(sequences < 2, target, 0) + 0.3 * random.normal(size=9)[sequences]
    units = [f"s{i}" for i in sequences]
    found = table_of(tmp_path, target, prediction, units=units)
    alone = table_of(tmp_path, target, prediction)
    assert found["counts"] == {"samples": 45, "structures": 45, "families": 9}
    assert found["chance"]["spearman"][0] > 3 * alone["chance"]["spearman"][0]
    low, high = np.diff([found["interval"]["rmse"], alone["interval"]["rmse"]])[:, 0]
    assert low > 1.5 * high
    few = table_of(tmp_path, target[:30], prediction[:30], units=units[:30])
    assert few["no_interval"] == "of 6 families, too few to draw again: it takes 8" and not few["verdict"]


@pytest.mark.parametrize("right", [0, 10])
def test_an_interval_of_all_wrong_or_all_right_is_exact(tmp_path, monkeypatch, right):
    """Clopper and Pearson: 0 of 10 is 0 to .31."""
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 20)  # each takes 20 ms for classes
    monkeypatch.setattr(permutation, "PERMUTATIONS", 20)
    task = table_task(ENCODER, 2, kind="classes", metric="accuracy")
    task.known = {"answer": task.baseline(np.repeat([0, 1], 5))}
    names = [str(i) for i in range(10)]
    target = np.repeat([0, 1], 5)
    prediction = np.eye(2)[target if right else 1 - target]
    found = written(tmp_path, task, TablePredictions(names, names, target, prediction, names))
    low, high = found["interval"]["accuracy"]
    assert (low, high) == pytest.approx((0.6915, 1) if right else (0, 0.3085), abs=1e-4)


def test_an_interval_of_a_perfect_order_is_exact(tmp_path):
    eight = np.arange(8.0)
    perfect = table_of(tmp_path, eight, eight + 1)["interval"]
    assert perfect["spearman"] == pytest.approx([2 * 0.025 ** (1 / 8) - 1, 1]) and perfect["rmse"] == [1, 1]


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
    own = baseline_of_folds(task, target, fold)
    assert np.allclose(own["mean"], [12, 12, 12, 2, 2, 2]) and np.allclose(own["median"], [11, 11, 11, 2, 2, 2])
    names = ["a"] * 6
    folds = TablePredictions(names, names, target, target, names, own_baseline=own)
    assert folds.baseline_metrics(task, slice(None), names) == {
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
        (reach,) = within(target[:-1], np.zeros(29))
        covered.append(abs(target[-1]) <= reach)
    assert 0.86 < np.mean(covered) < 0.94
    assert within(np.arange(9.0), np.zeros(9)) == [8.0] and within(np.arange(8.0), np.zeros(8)) == [np.inf]


def test_predictions_of_a_doubtful_model_say_so(tmp_path):
    predictions = TablePredictions(["a"], ["a"], np.array([np.nan]), np.array([2.0]))
    more = columns_of_doubt(predictions, (), [0.5], "by rmse not told apart")
    write_predictions(tmp_path / "p.tsv", predictions, (), more=more)
    assert (tmp_path / "p.tsv").read_text().splitlines() == [
        "id\tgroup\tprediction\tlow\thigh\tverdict",
        "a\ta\t2\t1.5\t2.5\tby rmse not told apart",
    ]


# ---- permuted labels -------------------------------------------------------------------------------------------------


def test_labels_move_in_whole_groups_and_stay_in_their_fold():
    groups = np.repeat(np.arange(12), 3)
    fold = groups % 4
    source = permutation.permuted_rows(groups, fold, 50)
    assert source.shape == (50, 36) and np.array_equal(source[0], np.arange(36))
    assert (fold[source] == fold).all() and len({*map(bytes, source)}) == 50
    whole = source.reshape(50, 12, 3)
    assert (np.diff(whole) == 1).all() and (whole[:, :, 0] % 3 == 0).all()  # the rows of a group in their order
    assert np.array_equal(np.sort(source, 1), np.tile(np.arange(36), (50, 1)))  # all labels, each once
    assert np.array_equal(permutation.permuted_rows(groups, fold, 50), source)


def test_groups_of_other_sizes_are_repeated_or_cut():
    """A group of one and a group of three change places."""
    source = permutation.permuted_rows(["a", "b", "b", "b"], np.zeros(4, dtype=int), 40)
    assert {tuple(rows) for rows in source.tolist()} == {(0, 1, 2, 3), (1, 0, 0, 0)}


@pytest.mark.parametrize("together", [True, False])
def test_the_closed_form_is_ridge_regression_on_the_other_folds(together):
    """Both columns with one alpha, or as if each were alone."""
    random = np.random.default_rng(0)
    groups = np.arange(40) // 2
    fold = groups % 5
    part = folds_module.parts_of(groups, fold)
    x = random.normal(size=(40, 60))
    y = random.normal(size=(40, 2, 3)) + x[:, :1, None]
    found = folds_module.ridge_out_of_fold(x, y, fold, part, together)
    if not together:
        alone = [folds_module.ridge_out_of_fold(x, y[:, [c]], fold, part, together=True) for c in range(2)]
        assert np.abs(found - np.concatenate(alone, axis=1)).max() < 1e-10
        return
    z = (x - x.mean(0)) / x.std(0)
    for t in range(3):
        for k in range(5):
            others = fold != k
            losses = []
            for alpha in linear.ALPHAS:
                loss = 0
                for p in range(folds_module.PARTS):
                    out = others & (part == p)
                    head = Ridge(alpha).fit(z[others & ~out], y[others & ~out, :, t])
                    loss += np.square(head.predict(z[out]) - y[out, :, t]).sum()
                losses.append(loss)
            head = Ridge(linear.ALPHAS[np.argmin(losses)]).fit(z[others], y[others, :, t])
            assert np.abs(head.predict(z[~others]) - found[~others, :, t]).max() < 1e-10


def test_shares_by_hand():
    assert permutation.shares(np.array([3.0, 1.0, 3.0, 5.0]), less_is_better=False) == (0.75, 0.75)
    assert permutation.shares(np.array([1.0, 2.0, 3.0, 4.0]), less_is_better=True) == (0.25, 1.0)
    assert permutation.shares(np.array([9.0, np.nan, 1.0, 1.0]), less_is_better=False) == (
        0.5,
        1.0,
    )  # nan counts as both


@pytest.mark.full
@pytest.mark.parametrize("signal, expected", [(0.0, 0.025), (3.0, 1.0)])
def test_size_and_power(signal, expected):
    """Of noise 2.5 % are called better; of a clear signal all."""
    found = []
    for seed in range(120):
        random = np.random.default_rng(seed)
        x = random.normal(size=(24, 8))
        y = signal * x[:, 0] + random.normal(size=24)
        groups = np.arange(24)
        fold = linear.folds_of(y, groups, 6)
        dealt = y[permutation.permuted_rows(groups, fold, 40)].T
        error = (
            folds_module.ridge_out_of_fold(x, dealt[:, None], fold, folds_module.parts_of(groups, fold))[:, 0] - dealt
        )
        good, _ = permutation.shares(np.square(error).mean(0), less_is_better=True)
        found.append(good <= permutation.LEVEL)
    low, high = stats.binom.interval(0.999, len(found), expected)
    assert low <= sum(found) <= high


def test_the_interval_of_a_difference():
    """Student's t for one split; with folds the variance is doubled."""
    drawn = np.array([-1.0, 1.0, -1.0, 1.0, np.nan])
    half = stats.t.ppf(0.975, 9)
    assert difference_interval(0.5, drawn, 10, folds=False) == pytest.approx([0.5 - half, 0.5 + half])
    wide = difference_interval(0.5, drawn, 10, folds=True)
    assert wide == pytest.approx([0.5 - half * 2**0.5, 0.5 + half * 2**0.5])
    assert difference_interval(np.nan, drawn, 10, folds=False) is None


# ---- length and composition, and the surroundings of a residue, by hand ----------------------------------------------


def test_composition_and_log_length():
    two = Protein.pack([real_protein("1LCD_A"), real_protein("1LCD_A").crop(3, 10)])
    found = composition(two).numpy()
    for row, types in zip(found, (two.residue_type[:51], two.residue_type[51:])):
        count = np.bincount(types.numpy(), minlength=20)
        assert np.abs(row[:20] - count / len(types)).max() < 1e-12 and row[20] == np.log(len(types))


def test_surroundings_of_a_residue():
    """Its type, those of two neighbours on each side in its chain, and the number of residues within 10 angstrom."""
    protein = real_protein("2BEG")
    focus = torch.zeros(protein.num_residues, dtype=torch.bool)
    rows = [0, 1, 60, protein.num_residues - 1]
    focus[rows] = True
    found = surroundings(protein, focus).numpy()
    ca = protein.pos[protein.atom_name == CA].numpy()
    types = protein.residue_type.tolist()
    for row, i in zip(found, rows):
        blocks = row[:100].reshape(5, 20)
        for block, offset in zip(blocks, (0, -1, 1, -2, 2)):
            j = i + offset
            there = 0 <= j < len(types) and protein.chain[j] == protein.chain[i]
            assert np.array_equal(block, np.eye(20)[types[j]] if there else np.zeros(20))
        distance = np.linalg.norm(ca - ca[i], axis=1)
        assert row[100] == (distance <= RADIUS).sum() - 1
