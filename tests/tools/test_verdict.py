"""The verdict on a table: better than the baseline by a test, better than length and composition by an interval."""

import itertools
import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import real_protein
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from siamdiff_min.downstream import metrics
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein
from siamdiff_min.tools.evidence import bootstrap, permutation, wording
from siamdiff_min.tools.evidence.bootstrap import difference_interval
from siamdiff_min.tools.evidence.intervals import conformal_quantile
from siamdiff_min.tools.table import folds as folds_module
from siamdiff_min.tools.table import linear
from siamdiff_min.tools.table.composition import RADIUS, composition, surroundings
from siamdiff_min.tools.table.folds import baseline_of_folds
from siamdiff_min.tools.table.results import TablePredictions, columns_of_doubt, repeated_in_file, write_table_results
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training.results import result_of, write_predictions

ENCODER = ENCODERS["gearnet"]("residue", "tiny")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _draws(monkeypatch):
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 200)


def table_of(path, target, prediction, composition=None, units=None, task=None, **more) -> dict:
    """The results of a table, with predictions of a head and of the same head of length and composition."""
    task = task or table_task(ENCODER, linear=True)
    task.fit(target, "tiny")
    task.known = {"answer": task.baseline(target)} | task.known
    names = [str(i) for i in range(len(target))]
    tested = TablePredictions(names, names, target, prediction, units or names, **more)
    if composition is not None:
        tested = replace(tested, composition=replace(tested, prediction=composition))
    result = result_of(Namespace(device="cpu"), task, {0: tested}, {}, {})
    content = write_table_results(path / "results.json", result, task, {0: tested})
    said = wording.summary(content, path / "results.json")
    return json.loads((path / "results.json").read_text()) | {"said": said}


@pytest.mark.parametrize(
    "sign, noise, of_composition, side, floor",
    [(1, 0.2, 0.8, "better", "better"), (1, 0.6, 0.1, "better", "worse"), (-1, 0.2, 0.2, "worse", "untold")],
)
def test_better_than_the_baseline_and_composition(tmp_path, sign, noise, of_composition, side, floor):
    target, one, two = np.random.default_rng(0).normal(size=(3, 40))
    composition = sign * target + of_composition * two
    found = table_of(tmp_path, target, sign * target + noise * one, composition)
    assert found["verdict"]["rmse"] == side and found["floor"]["verdict"]["rmse"] == floor
    assert found["floor"]["mean"]["rmse"] == metrics.rmse(composition, target)
    than = "not told apart from" if floor == "untold" else f"{floor} than"
    assert f"verdict     by rmse {side} than the baseline, {than} length and composition" in found["said"]
    decided = {"metric": "rmse", "baseline": side, "composition": floor, "features": "length and composition"}
    assert found["decision"] == decided | {"few": None}
    assert found["chance"]["rmse"][side == "worse"] == 1 / 400


def test_a_head_worse_than_composition_is_so_in_tables_too_large_to_permute(tmp_path):
    random = np.random.default_rng(0)
    target, near, far = random.normal(size=(3, 60))
    found = table_of(tmp_path, target, target + 0.6 * far, target + 0.01 * near, fold=np.arange(60) % 10)
    assert found["chance"] == {} and found["verdict"]["rmse"] == "better"
    assert found["floor"]["verdict"]["rmse"] == "worse"


def test_what_cannot_be_told_is_no_verdict_and_said_beside_predictions(tmp_path):
    """Two positives; a test split of one class, whose AUROC is not defined."""
    target = np.repeat([1.0, 0.0], [2, 38])
    few = table_of(tmp_path, target, RNG.random(40), task=table_task(ENCODER, kind="binary"))
    doubt = "too few to tell the model from the baseline: 2 samples of the rarer class"
    assert f"verdict     {doubt}" in few["said"].splitlines()
    assert wording.doubt(wording.verdict_of(few)) == doubt
    assert few["decision"]["few"] == few["too_few"] == {"count": 2, "of": "samples of the rarer class", "needed": 4}

    task = table_task(ENCODER, 2, kind="classes", metric="auroc")
    task.known = {"answer": task.baseline(np.repeat([0, 1], 20))}
    share = RNG.random(20)
    found = table_of(tmp_path, np.zeros(20, dtype=int), np.column_stack([share, 1 - share]), task=task)
    assert "auroc" not in found["verdict"] and "accuracy" in found["verdict"]
    doubt = "auroc cannot be measured: all values of the test split are the same"
    assert f"verdict     {doubt}" in found["said"].splitlines()
    assert wording.doubt(wording.verdict_of(found)) == doubt


def test_copies_are_drawn_and_permuted_together(tmp_path):
    """Nine sequences of five copies, a random number for each, which the predictions know for two sequences."""
    random = np.random.default_rng(3)
    sequences = np.repeat(np.arange(9), 5)
    values, noise = random.normal(size=(2, 9))
    target = values[sequences]
    prediction = np.where(sequences < 2, target, 0) + 0.3 * noise[sequences]
    units = [f"s{i}" for i in sequences]
    found = table_of(tmp_path, target, prediction, units=units)
    alone = table_of(tmp_path, target, prediction)
    assert found["counts"] == {"samples": 45, "structures": 45, "families": 9}
    assert found["chance"]["spearman"][0] > 3 * alone["chance"]["spearman"][0]
    low, high = np.diff([found["interval"]["rmse"], alone["interval"]["rmse"]])[:, 0]
    assert low > 1.5 * high
    few = table_of(tmp_path, target[:30], prediction[:30], units=units[:30])
    assert few["no_interval"] == "of 6 families, too few to draw again: it takes 8" and not few["verdict"]


@pytest.mark.parametrize("right, expected", [(True, (0.6915, 1)), (False, (0, 0.3085))])
def test_an_interval_of_all_wrong_or_all_right_is_exact(tmp_path, right, expected):
    """Clopper and Pearson: 0 of 10 is 0 to .31."""
    target = np.repeat([0, 1], 5)
    prediction = np.eye(3)[target if right else 1 - target]
    found = table_of(tmp_path, target, prediction, task=table_task(ENCODER, 3, kind="classes"))
    assert found["interval"]["accuracy"] == pytest.approx(expected, abs=1e-4)


def test_an_interval_of_a_perfect_order_is_exact(tmp_path):
    found = table_of(tmp_path, np.arange(8.0), np.arange(8.0) + 1)["interval"]
    assert found["spearman"] == pytest.approx([2 * 0.025 ** (1 / 8) - 1, 1]) and found["rmse"] == [1, 1]


def test_the_baseline_of_folds_is_that_of_the_other_folds():
    """Errors by it, orders not: the mean of the others falls where a fold rises."""
    task = table_task(ENCODER)
    target = np.array([1.0, 2.0, 3.0, 10.0, 11.0, 15.0])
    own = baseline_of_folds(task, target, np.repeat([0, 1], 3))
    assert own["mean"].tolist() == [12, 12, 12, 2, 2, 2] and own["median"].tolist() == [11, 11, 11, 2, 2, 2]
    folds = TablePredictions([], [], target, target, own_baseline=own)
    found = folds.baseline_metrics(task, slice(None), [])
    assert found == {"rmse": metrics.rmse(own["mean"], target), "mae": metrics.mae(own["median"], target)}


def test_rare_classes_are_counted_in_each_property(tmp_path):
    """Many in one, three in the other; gaps are no "no"."""
    target = np.tile([[1.0, 0.0], [0.0, 0.0]], (15, 1))
    target[:3, 1] = 1
    target[20:, 1] = np.nan
    task = table_task(ENCODER, 2, kind="binary", properties=("x", "y"))
    found = table_of(tmp_path, target, RNG.random((30, 2)), task=task)
    assert found["no_interval"] == "of 3 samples of the rarer class, too few to draw again: it takes 4"


def test_predictions_say_for_which_of_several_properties_a_model_is_not_better(tmp_path):
    """Their mean is: one is predicted without an error, of the other nothing is known."""
    target, noise = np.random.default_rng(0).normal(size=(2, 40, 2))
    prediction = np.column_stack([target[:, 0], noise[:, 1]])
    task = table_task(ENCODER, 2, properties=("Tm", "kcat"), linear=True)
    found = table_of(tmp_path, target, prediction, task=task)
    assert found["verdict"]["rmse"] == found["verdict"]["rmse:Tm"] == "better" != found["verdict"]["rmse:kcat"]
    kept = repeated_in_file(task, found, TablePredictions([*range(40)], [], target, prediction))
    assert kept["verdict"] == "by rmse better than the baseline; not better for kcat"
    assert kept["advice"] == "do not rely on these"


def test_two_classes_have_auroc_and_the_rarer_is_positive():
    task = table_task(ENCODER, 2, kind="classes")
    target = np.repeat([0, 1], [6, 14])
    share = RNG.random(20)
    task.known = {"answer": task.baseline(target)}
    found = task.metrics(np.column_stack([share, 1 - share]), target, ())
    assert found["auroc"] == metrics.auroc(share, target == 0) and found["auprc"] == metrics.auprc(share, target == 0)
    constant = task.baseline_metrics(task.known["answer"], target, ())
    assert constant["auprc"] == metrics.auprc_of_chance(20, 6) and constant["balanced_accuracy"] == 0.5
    assert "auroc" not in table_task(ENCODER, 3, kind="classes").measures


def test_an_interval_of_a_prediction_covers_90_percent():
    targets = np.random.default_rng(0).normal(size=(400, 30))
    covered = [abs(target[-1]) <= conformal_quantile(abs(target[:-1])) for target in targets]
    assert 0.86 < np.mean(covered) < 0.94
    assert conformal_quantile(np.arange(9.0)) == 8 and conformal_quantile(np.arange(8.0)) == np.inf


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
    rows = np.arange(36)
    assert source.shape == (50, 36) and np.array_equal(source[0], rows)
    assert (fold[source] == fold).all() and len({*map(bytes, source)}) == 50
    assert (source % 3 == rows % 3).all()  # the rows of a group in their order
    assert (np.diff(source.reshape(50, 12, 3)) == 1).all()
    assert (np.sort(source, 1) == rows).all()  # all labels, each once
    assert np.array_equal(permutation.permuted_rows(groups, fold, 50), source)


def test_groups_of_other_sizes_are_repeated_or_cut():
    """A group of one and a group of three change places."""
    source = permutation.permuted_rows(["a", "b", "b", "b"], np.zeros(4, dtype=int), 40)
    assert {tuple(rows) for rows in source.tolist()} == {(0, 1, 2, 3), (1, 0, 0, 0)}


@pytest.mark.parametrize("columns", [[[0, 1]], [[0], [1]]])
def test_the_closed_form_is_ridge_regression_on_the_other_folds(columns):
    """Both columns with one alpha, or each with its own."""
    random = np.random.default_rng(0)
    groups = np.arange(40) // 2
    fold = groups % 5
    part = folds_module.parts_of(groups, fold)
    x = random.normal(size=(40, 60))
    y = random.normal(size=(40, 2)) + x[:, :1]
    found = folds_module.ridge_out_of_fold(x, y[:, :, None], fold, part, together=len(columns) == 1)[:, :, 0]
    z = (x - x.mean(0)) / x.std(0)
    for k, column in itertools.product((0, 4), columns):
        out = fold == k
        search = GridSearchCV(Ridge(), {"alpha": linear.ALPHAS}, scoring=fit_of, cv=PredefinedSplit(part[~out]))
        search.fit(z[~out], y[~out][:, column])
        expected = search.predict(z[out]).reshape(-1, len(column))
        assert np.abs(found[out][:, column] - expected).max() < 1e-10


def fit_of(model, x: np.ndarray, y: np.ndarray) -> float:
    """The sum of the squared errors of a model, with a minus."""
    return -np.square(model.predict(x).reshape(y.shape) - y).sum()


@pytest.mark.parametrize(
    "values, less, expected",
    [
        ([3.0, 1.0, 3.0, 5.0], False, (0.75, 0.75)),
        ([1.0, 2.0, 3.0, 4.0], True, (0.25, 1.0)),
        ([9.0, np.nan, 1.0, 1.0], False, (0.5, 1.0)),  # nan counts as both
    ],
)
def test_shares_by_hand(values, less, expected):
    assert permutation.shares(np.array(values), less) == expected


@pytest.mark.full
@pytest.mark.parametrize("signal, expected", [(0.0, 0.025), (3.0, 1.0)])
def test_size_and_power(signal, expected):
    """Of noise 2.5 % are called better; of a clear signal all."""
    groups = np.arange(24)
    better = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        x = random.normal(size=(24, 8))
        y = signal * x[:, 0] + random.normal(size=24)
        fold = linear.folds_of(y, groups, 6)
        permuted = y[permutation.permuted_rows(groups, fold, 40)].T
        part = folds_module.parts_of(groups, fold)
        error = folds_module.ridge_out_of_fold(x, permuted[:, None], fold, part)[:, 0] - permuted
        good, _ = permutation.shares(np.square(error).mean(0), less_is_better=True)
        better += good <= permutation.LEVEL
    low, high = stats.binom.interval(0.999, 120, expected)
    assert low <= better <= high


@pytest.mark.parametrize("folds, factor", [(False, 1), (True, 2**0.5)])
def test_the_interval_of_a_difference(folds, factor):
    """Student's t for one split; with folds the variance is doubled."""
    drawn = np.array([-1.0, 1.0, -1.0, 1.0, np.nan])
    half = factor * stats.t.ppf(0.975, 9)
    assert difference_interval(0.5, drawn, 10, folds) == pytest.approx([0.5 - half, 0.5 + half])
    assert difference_interval(np.nan, drawn, 10, folds) is None


# ---- length and composition, and the surroundings of a residue, by hand ----------------------------------------------


def test_composition_and_log_length():
    whole = real_protein("1LCD_A")
    part = whole.crop(3, 10)
    found = composition(Protein.pack([whole, part])).numpy()
    for row, protein in zip(found, (whole, part)):
        share = np.bincount(protein.residue_type, minlength=20) / protein.num_residues
        assert np.abs(row - [*share, np.log(protein.num_residues)]).max() < 1e-12


def test_surroundings_of_a_residue():
    """Its type, those of two neighbours on each side in its chain, and the number of residues within 10 angstrom."""
    protein = real_protein("2BEG")
    rows = [0, 1, 60, protein.num_residues - 1]
    focus = torch.isin(torch.arange(protein.num_residues), torch.tensor(rows))
    found = surroundings(protein, focus).numpy()
    types = np.eye(20)[protein.residue_type]
    for row, i in zip(found, rows):
        blocks = np.zeros((5, 20))
        for block, j in zip(blocks, (i, i - 1, i + 1, i - 2, i + 2)):
            if 0 <= j < len(types) and protein.chain[j] == protein.chain[i]:
                block[:] = types[j]
        assert np.array_equal(row[:100], blocks.ravel())
    ca = protein.pos[protein.atom_name == CA]
    assert np.array_equal(found[:, 100], (torch.cdist(ca[rows], ca) <= RADIUS).sum(1) - 1)
