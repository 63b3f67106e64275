"""Every task learns four samples by heart, reads what it should, is scored the same on any number of ranks."""

import inspect
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import load_golden, move
from helpers import CLASSES, dataset, encoder
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from siamdiff_min.downstream import metrics
from siamdiff_min.downstream.metrics import accuracy, auprc, auroc, fmax, mean_spearman, spearman
from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, GEARNET_DIMS
from siamdiff_min.encoders.ops import segment_mean, segment_sum
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import CA, NUM_RESIDUE_TYPES
from siamdiff_min.sets.sets import SETS
from siamdiff_min.training import evaluation, ranks, results
from siamdiff_min.training.config import TABLE_5, TABLE_6, finetune_options

CASES = [(task, level) for task, levels in TABLE_6.items() for level in levels]


def make(task: str, level: str):
    torch.manual_seed(0)
    return TASKS[task](encoder(task, level), **({"num_outputs": len(CLASSES)} if task == "ec" else {}))


def batch_of(data, num: int = 4):
    return pack_samples([data[0, i] for i in range(num)])[0]


def test_methods_and_tasks_are_those_of_the_tables():
    assert OBJECTIVES.keys() == TABLE_5.keys() and TASKS.keys() == SETS.keys()
    assert TASKS.keys() == {*TABLE_6, "table"}


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.slow
@pytest.mark.parametrize("task, level", [case for case in CASES if case[0] != "table"])
def test_overfits_four_samples(task, level, tmp_path):
    data = dataset(task, tmp_path)
    batch, model = batch_of(data), make(task, level)
    if task == "psr":
        model.fit(data.targets(), "tiny")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = None
    for _ in range(60):
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        first = first or loss.item()
        if loss.item() < 0.1 * first:
            break
    assert loss.item() < 0.1 * first
    model.eval()
    score = model.to_prediction(model.predict(batch)).detach()
    assert score.shape == {"ec": (4, 3), "res": (4, NUM_RESIDUE_TYPES)}.get(task, (4,))


@pytest.mark.repeats
@pytest.mark.parametrize("task, level", [("ec", "residue"), ("pip", "atom"), ("psr", "atom")])
def test_predictions_do_not_depend_on_pose_or_batch(task, level, tmp_path):
    data = dataset(task, tmp_path)
    model = make(task, level).double().eval()
    batch = in_double(batch_of(data))
    together = model.predict(batch)
    moved = model.predict(replace(batch, protein=move(batch.protein, 1)))
    assert torch.allclose(moved, together, atol=1e-6)
    for i in (0, 3):
        alone = in_double(pack_samples([data[0, i]])[0])
        assert torch.allclose(model.predict(alone)[0], together[i], atol=1e-6)


def in_double(sample):
    return replace(sample, protein=replace(sample.protein, pos=sample.protein.pos.double()))


@pytest.mark.parametrize("task, sees", [("pip", "CA"), ("res", "CA"), ("msp", "atoms"), ("psr", "structure")])
def test_what_the_head_of_a_task_sees(task, sees, tmp_path):
    """Of the residue in focus its CA, or the mean over its atoms; else the readout of the whole structure."""
    batch, model = batch_of(dataset(task, tmp_path)), make(task, "atom").eval()
    p, encoding = batch.protein, model.encoder(batch.protein)
    for i, value in enumerate(model.represent(batch)):
        atoms = (p.atom_protein == i) & batch.focus[p.atom_residue]
        if sees == "CA":
            atoms &= p.atom_name == CA
        assert sees == "structure" or (atoms.sum() > 3 if sees == "atoms" else atoms.sum() == 1)
        expected = encoding.protein[i] if sees == "structure" else encoding.node[atoms].mean(0)
        assert torch.allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("task, level", CASES)
def test_the_head_has_three_layers_as_wide_as_the_encoder(task, level):
    model = make(task, level)
    d, outputs = model.encoder.out_dim, {"ec": 3, "res": 20}.get(task, 1)
    inputs = 2 * d if task in ("pip", "msp") else d
    assert [(x.in_features, x.out_features) for x in model.head.layers] == [(inputs, d), (d, d), (d, outputs)]


def test_global_rho_is_over_all_models_and_mean_rho_over_those_of_each_protein():
    """Within each of two proteins the order is right, but the one with the better models has the lower scores."""
    score, target = np.array([3.0, 4.0, 1.0, 2.0]), np.array([0.1, 0.2, 0.8, 0.9])
    found = make("psr", "atom").metrics(score, target, ["a", "a", "b", "b"])
    assert found == {"global_spearman": pytest.approx(-0.6), "mean_spearman": pytest.approx(1)}


def test_psr_is_standardised_by_the_training_targets(tmp_path):
    """Without any output it predicts the mean, which explains nothing."""
    data = dataset("psr", tmp_path)
    model, targets = make("psr", "atom"), data.targets()
    model.fit(targets, "tiny")
    assert np.isclose(model.mean.item(), targets.mean()) and np.isclose(model.std.item(), targets.std())
    output = torch.zeros(4, 1)
    assert torch.allclose(model.to_prediction(output), model.mean.expand(4))
    assert np.isclose(model.loss(output, batch_of(data).target).mean().item(), 1, atol=1e-5)


@pytest.mark.parametrize("targets, std", [(np.array([1e-9, 3e-9]), 1e-9), (np.full(3, 0.1), 1)])
def test_dissociation_constants_are_standardised_and_equal_values_are_not(targets, std):
    model = make("psr", "atom")
    model.fit(targets, "tiny")
    assert model.std.item() == pytest.approx(std, rel=1e-5, abs=0)


def test_a_kind_of_a_plugin_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"the kind 'count' are not known here\. Do they come from a --plugin"):
        TASKS["table"](encoder("gearnet", "residue"), kind="count")


def test_mutations_of_one_complex_are_drawn_together(tmp_path):
    data = dataset("msp", tmp_path)
    data.store.names = ["2VLO_A_B_AB95K", "2VLO_A_B_AB95K,CB96A#3", "1QA9_D134A", "17"]
    assert [data[0, i].groups for i in range(4)] == [("2VLO_A_B",), ("2VLO_A_B",), ("1QA9",), ("17",)]
    assert data[0, 1].names == ("2VLO_A_B_AB95K,CB96A#3",)


@pytest.mark.parametrize("num", [7, 8, 21])
def test_metrics_do_not_depend_on_the_number_of_ranks(num, tmp_path, monkeypatch):
    """Every rank is asked in turn, and what they would gather is put together by hand: each sample exactly once."""
    data = dataset("res", tmp_path, num)
    model = make("res", "atom")
    config = finetune_options(["--task", "res", "--batch-size", "4", "--num-workers", "0"])
    one = ranks.Ranks(torch.device("cpu"))
    alone = results.predict(model, data, config, one)
    assert len(set(alone.names)) == num == len(alone.prediction)
    monkeypatch.setattr(evaluation.dist, "broadcast", lambda buffer, rank: None)
    for world in (2, 3):
        parts = []
        monkeypatch.setattr(ranks.Ranks, "all_gather", lambda self, items, parts=parts: parts.extend(items) or parts)
        for rank in range(world):
            together = results.predict(model, data, config, replace(one, rank=rank, world=world))
        assert together.names == alone.names and together.groups == alone.groups
        assert np.array_equal(together.prediction, alone.prediction) and np.array_equal(together.target, alone.target)


@pytest.mark.parametrize("size, expected", [("tiny", [0.05, 0.35, 0.95, 0.05]), ("paper", None)])
def test_ec_of_the_small_sizes_begins_at_the_frequencies_of_its_classes(size, expected):
    targets = np.zeros((9, 4), dtype=np.float32)
    targets[:3, 1] = targets[:, 2] = 1
    model = TASKS["ec"](ENCODERS["gearnet"]("residue", "tiny"), 4)
    bias = model.head.layers[-1].bias
    expected = expected or bias.detach().sigmoid().tolist()
    model.fit(targets, size)
    assert bias.detach().sigmoid().tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", GEARNET_DIMS)
def test_readout_at_residue_level(size):
    """The sum of App. D in the paper's network alone."""
    assert ENCODERS["gearnet"]("residue", size).readout is (segment_sum if size == "paper" else segment_mean)


# ---- metrics against sweeps over all thresholds, scikit-learn, scipy, and the numbers of the official code -----------


GOLDEN = {name: np.asarray(value) for name, value in load_golden("metrics").items()}


def golden(kind: str) -> list[str]:
    return sorted({name.split("/")[0] for name in GOLDEN if name.startswith(kind)})


def of_threshold(score: np.ndarray, target: np.ndarray, t: float) -> float:
    """F at one threshold, after Eq. 29-31."""
    predicted = score >= t
    hits = (predicted & target).sum(1)
    covered = predicted.any(1)
    precision = np.mean(hits[covered] / predicted[covered].sum(1))
    recall = np.mean(hits / np.maximum(target.sum(1), 1))
    return 2 * precision * recall / (precision + recall) if recall else 0


SCORES = {
    "distinct": lambda score: score,
    "ties": lambda score: np.round(3 * score) / 3,
    "bfloat16": lambda score: torch.from_numpy(score).bfloat16().float().numpy(),
    "no spread": lambda score: torch.from_numpy(0.5 + 0.02 * score).bfloat16().float().numpy(),
}


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", SCORES)
def test_fmax_is_the_best_of_all_thresholds(kind, seed):
    random = np.random.default_rng(seed)
    size = random.integers(1, 13, 2)
    target = random.random(size) < random.choice([0.05, 0.3, 0.8])
    target[0, 0] = True
    score = SCORES[kind](random.random(size))
    swept = [of_threshold(score, target, t) for t in np.unique(score)]
    assert fmax(score, target) == pytest.approx(max(swept), abs=1e-12)


MEASURES = {  # first letters of a case -> ours, and the key of the number that it should be
    "ml": (fmax, "f1_max_bruteforce"),
    "reg": (spearman, "spearmanr_scipy"),
    "cls": (accuracy, "accuracy"),
}
# No class at all; scipy has no rho of what is constant.
LEFT_OUT = {"ml_all_zero", "reg_const_both", "reg_const_pred"}


@pytest.mark.parametrize("case", sorted({*golden("ml_"), *golden("reg_"), *golden("cls_")} - LEFT_OUT))
def test_numbers_of_the_official_code_and_of_scipy(case):
    metric, key = MEASURES[case.partition("_")[0]]
    value = metric(GOLDEN[f"{case}/pred"], GOLDEN[f"{case}/target"])
    assert value == pytest.approx(float(GOLDEN[f"{case}/{key}"]), rel=1e-7, abs=1e-12)


def test_the_official_fmax_is_too_high_where_scores_are_equal():
    """Its own brute force, after the paper's definition, agrees with ours; without equal scores all three do."""
    ties, distinct = (GOLDEN[f"{case}/f1_max"] for case in ("ml_ties_rounded", "ml_ec_like"))
    assert ties - GOLDEN["ml_ties_rounded/f1_max_bruteforce"] > 5e-4
    assert distinct == pytest.approx(GOLDEN["ml_ec_like/f1_max_bruteforce"], rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_areas_are_those_of_scikit_learn(seed):
    """To the last bit; with equal scores, of one output and of several."""
    random = np.random.default_rng(seed)
    shape = random.integers(2, 20, 1 + seed % 2)
    score = random.integers(0, 40, shape) / 40
    target = random.permutation(np.arange(score.size) % 3 == 0).reshape(shape)
    assert auroc(score, target) == roc_auc_score(target.ravel(), score.ravel())
    assert auprc(score, target) == average_precision_score(target.ravel(), score.ravel())


def test_mean_spearman_is_over_groups_of_any_size():
    """One alone, and one whose models are all equally good, say nothing; equal scores count as zero."""
    random = np.random.default_rng(0)
    score, target = random.random((2, 30))
    group = np.repeat(["a", "b", "c"], [5, 10, 15])[random.permutation(30)]
    each = [spearmanr(score[group == g], target[group == g]).statistic for g in "abc"]
    assert mean_spearman(score, target, group) == pytest.approx(np.mean(each), abs=1e-12)
    group = tuple("xyyyzzzwww")
    target = np.array([0.3, 0.5, 0.5, 0.5, 1, 2, 3, 1, 2, 3])
    score = np.array([0.1, 1.0, 2.0, 3.0, 4, 5, 6, 7, 7, 7])
    assert mean_spearman(score, target, group) == pytest.approx(0.5)
    assert math.isnan(mean_spearman(score[:4], target[:4], group[:4]))


def test_the_score_of_two_classes_is_the_probability_of_one():
    assert accuracy(np.array([0.9, 0.2, 0.8, 0.6]), np.array([1, 0, 1, 0])) == 0.75


NONE = np.zeros(0)
BOTH = np.array([0.0, 1.0])
DIVERGED = np.array([0.5, np.nan])


@pytest.mark.parametrize(
    "metric, prediction, target",
    [
        *((metric, *split) for metric in (auprc, auroc, spearman) for split in ((NONE, NONE), (DIVERGED, BOTH))),
        *((metric, BOTH, np.ones(2)) for metric in (auprc, auroc, spearman)),
        *((fmax, np.zeros((0, 5)), np.zeros((0, 5))), (fmax, np.ones((3, 5)), np.zeros((3, 5)))),
        *((accuracy, np.zeros((0, 20)), NONE), (accuracy, DIVERGED[:, None], BOTH)),
        (fmax, DIVERGED[None], BOTH[None]),
    ],
)
def test_what_is_not_defined_is_nan(metric, prediction, target):
    assert math.isnan(metric(prediction, target))


def test_what_has_no_order_is_as_good_as_a_random_one():
    assert spearman(np.ones(4), np.arange(4)) == 0
    assert auprc(np.full(7, 0.3), np.arange(7) < 3) == metrics.auprc_of_chance(7, 3)


def test_every_metric_says_which_of_its_values_are_better_and_has_its_row_in_the_page():
    """A new one takes `@metric("max")` or `@metric("min")`; without, nothing could be told better or worse."""
    for name, function in vars(metrics).items():
        if inspect.isfunction(function) and [*inspect.signature(function).parameters][:2] == ["prediction", "target"]:
            assert metrics.BEST.get(name) in ("max", "min"), f"{name}: @metric says which values are better"
    page = (Path(__file__).parents[1] / "docs" / "outputs.md").read_text()
    assert [name for name in metrics.BEST if f"`{name}`" not in page] == []


@pytest.mark.parametrize("count, positive", [(5, 1), (6, 3), (7, 6)])
def test_average_precision_of_a_random_order_over_all_orders(count, positive):
    order = np.arange(count)
    found = []
    for rows in itertools.combinations(range(count), positive):
        found.append(metrics.auprc(order, np.isin(order, rows)))
    assert np.isclose(np.mean(found), metrics.auprc_of_chance(count, positive), atol=1e-12)
