"""Metrics against sweeps over all thresholds, scikit-learn, scipy, and the numbers of the official code."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from conftest import load_golden
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from siamdiff_min.downstream import metrics
from siamdiff_min.downstream.metrics import accuracy, auprc, auroc, fmax, mean_spearman, spearman

GOLDEN = {name: np.asarray(value) for name, value in load_golden("metrics").items()}


def golden(kind: str) -> list[str]:
    return sorted({name.split("/")[0] for name in GOLDEN if name.startswith(kind)})


def of_threshold(score, target, t) -> float:
    """F at one threshold, word by word after Eq. 29-31."""
    precisions, recalls = [], []
    for s, y in zip(score, target):
        predicted = {f for f in range(len(s)) if s[f] >= t}
        true = {f for f in range(len(y)) if y[f]}
        if predicted:
            precisions.append(len(predicted & true) / len(predicted))
        recalls.append(len(predicted & true) / len(true) if true else 0)
    precision, recall = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0


def draws(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    b, c = int(random.integers(1, 12)), int(random.integers(1, 14))
    target = random.random((b, c)) < random.choice([0.05, 0.3, 0.8])
    target[0, 0] = True
    score = random.random((b, c))
    if kind == "ties":
        score = np.round(score * random.integers(1, 6)) / 5
    if kind == "bfloat16":
        score = torch.from_numpy(score).bfloat16().float().numpy()
    if kind == "no spread":
        score = torch.from_numpy(0.5 + 0.02 * score).bfloat16().float().numpy()
    return score, target


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", ["distinct", "ties", "bfloat16", "no spread"])
def test_fmax_is_the_best_of_all_thresholds(kind, seed):
    score, target = draws(kind, seed)
    thresholds = np.unique(score)
    swept = [of_threshold(score, target, t) for t in thresholds]
    value = fmax(score, target)
    assert value == pytest.approx(max(swept), abs=1e-12)


@pytest.mark.parametrize("case", [name for name in golden("ml_") if name != "ml_all_zero"])
def test_golden_fmax(case):
    value = fmax(GOLDEN[f"{case}/pred"], GOLDEN[f"{case}/target"])
    assert value == pytest.approx(float(GOLDEN[f"{case}/f1_max_bruteforce"]), abs=1e-12)


def test_the_official_fmax_is_too_high_where_scores_are_equal():
    """Its own brute force, after the paper's definition, agrees with ours; without equal scores all three do."""
    ties, distinct = "ml_ties_rounded", "ml_ec_like"
    value = fmax(GOLDEN[f"{ties}/pred"], GOLDEN[f"{ties}/target"])
    assert GOLDEN[f"{ties}/f1_max"] - value > 5e-4
    value = fmax(GOLDEN[f"{distinct}/pred"], GOLDEN[f"{distinct}/target"])
    assert value == pytest.approx(float(GOLDEN[f"{distinct}/f1_max"]), rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_auroc_is_the_share_of_pairs_in_order(seed):
    random = np.random.default_rng(seed)
    score, target = random.integers(0, 5, 40) / 4, random.random(40) < 0.4
    pairs = [(p > n) + (p == n) / 2 for p in score[target] for n in score[~target]]
    assert auroc(score, target) == pytest.approx(np.mean(pairs), abs=1e-12)


@pytest.mark.parametrize("case", golden("bin_") + golden("ml_"))
def test_golden_areas(case):
    """Where scores are distinct and both classes occur; the official code orders equal scores by chance."""
    score, target = GOLDEN[f"{case}/pred"], GOLDEN[f"{case}/target"]
    suffix = "@micro" if case.startswith("ml_") else ""
    if len(np.unique(target)) < 2:
        assert math.isnan(auroc(score, target)) and math.isnan(auprc(score, target))
    elif len(np.unique(score)) == score.size:
        assert auroc(score, target) == pytest.approx(float(GOLDEN[f"{case}/auroc{suffix}"]), abs=2e-6)
        assert auprc(score, target) == pytest.approx(float(GOLDEN[f"{case}/auprc{suffix}"]), abs=2e-6)
    else:
        assert auroc(score, target) == pytest.approx(roc_auc_score(target.ravel(), score.ravel()), abs=1e-12)


@pytest.mark.parametrize("case", golden("reg_"))
def test_golden_spearman(case):
    value = spearman(GOLDEN[f"{case}/pred"], GOLDEN[f"{case}/target"])
    expected = float(GOLDEN[f"{case}/spearmanr_scipy"])
    if not math.isnan(expected):
        assert value == pytest.approx(expected, abs=1e-12)
    else:
        assert case in ("reg_const_pred", "reg_const_both")


@pytest.mark.parametrize("seed", range(20))
def test_spearman_shares_the_rank_of_equal_values(seed):
    random = np.random.default_rng(seed)
    score, target = random.integers(0, 7, 30) / 7, random.integers(0, 4, 30)
    assert spearman(score, target) == pytest.approx(spearmanr(score, target).statistic, abs=1e-12)


def test_spearman_of_what_does_not_vary():
    assert spearman(np.ones(4), np.arange(4)) == 0
    assert math.isnan(spearman(np.arange(4), np.ones(4)))


def test_mean_spearman_is_over_groups():
    random = np.random.default_rng(0)
    score, target = random.random(30), random.random(30)
    group = np.repeat(["a", "b", "c"], 10)[random.permutation(30)]
    each = [spearmanr(score[group == g], target[group == g]).statistic for g in "abc"]
    assert mean_spearman(score, target, group) == pytest.approx(np.mean(each), abs=1e-12)
    # one alone, and one whose models are all equally good, say nothing; equal scores count as zero
    group = ["x", *"yyy", *"zzz", *"www"]
    target = np.array([0.3, 0.5, 0.5, 0.5, 1, 2, 3, 1, 2, 3])
    score = np.array([0.1, 1.0, 2.0, 3.0, 4, 5, 6, 7, 7, 7])
    assert mean_spearman(score, target, tuple(group)) == pytest.approx(0.5)
    assert math.isnan(mean_spearman(score[:4], target[:4], group[:4]))


def test_a_protein_with_more_models_weighs_no_more_in_the_mean_rho():
    """Two models in order (rho 1), and ten whose order is reversed (rho -1): the mean is 0, whichever come first."""
    target, group = np.arange(12.0), np.array(["a"] * 2 + ["b"] * 10)
    score = np.where(group == "a", target, -target)
    assert mean_spearman(score, target, group) == mean_spearman(score[::-1], target[::-1], group[::-1]) == 0


def test_the_score_of_two_classes_is_the_probability_of_one():
    assert accuracy(np.array([0.9, 0.2, 0.8, 0.6]), np.array([1, 0, 1, 0])) == 0.75


@pytest.mark.parametrize("case", golden("cls_"))
def test_golden_accuracy(case):
    score, target = GOLDEN[f"{case}/pred"], GOLDEN[f"{case}/target"]
    right = [max(range(len(row)), key=lambda i, row=row: (row[i], -i)) == y for row, y in zip(score, target)]
    assert accuracy(score, target) == np.mean(right)
    if case == "cls_random":
        assert accuracy(score, target) == pytest.approx(float(GOLDEN[f"{case}/accuracy"]))


def test_what_is_not_defined_is_nan():
    none, both = np.zeros(0), np.array([0.0, 1.0])
    assert all(math.isnan(metric(none, none)) for metric in (auprc, auroc, spearman))
    assert math.isnan(mean_spearman(none, none, [])) and math.isnan(accuracy(np.zeros((0, 20)), none))
    assert np.isnan([fmax(np.zeros((0, 5)), np.zeros((0, 5))), fmax(np.ones((3, 5)), np.zeros((3, 5)))]).all()
    assert math.isnan(auroc(both, np.ones(2))) and math.isnan(auprc(both, np.zeros(2)))
    diverged = np.array([0.5, np.nan])
    assert all(math.isnan(metric(diverged, both)) for metric in (auprc, auroc, spearman))
    assert math.isnan(accuracy(diverged[:, None], both)) and math.isnan(fmax(diverged[None], both[None]))


def test_every_metric_says_which_of_its_values_are_better():
    """A new one takes `@metric("max")` or `@metric("min")`; without, nothing could be told better or worse."""
    for name, function in vars(metrics).items():
        if inspect.isfunction(function) and [*inspect.signature(function).parameters][:2] == ["prediction", "target"]:
            assert metrics.BEST.get(name) in ("max", "min"), f"{name}: @metric says which values are better"


@pytest.mark.parametrize("count, positive", [(5, 1), (6, 3), (7, 6)])
def test_average_precision_of_a_random_order_over_all_orders(count, positive):
    order = np.arange(count)
    found = []
    for rows in itertools.combinations(range(count), positive):
        found.append(metrics.auprc(order, np.isin(order, rows)))
    assert np.isclose(np.mean(found), metrics.auprc_of_chance(count, positive), atol=1e-12)
