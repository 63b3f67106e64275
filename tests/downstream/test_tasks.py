"""Every task learns four samples by heart, reads what it should, is scored the same on any number of ranks."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from conftest import move
from given import CLASSES, dataset, encoder
from sklearn.linear_model import LogisticRegression, Ridge

from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, GEARNET_DIMS
from siamdiff_min.encoders.ops import segment_mean, segment_sum
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import CA, NUM_RESIDUE_TYPES
from siamdiff_min.sets.sets import SETS
from siamdiff_min.tools.table import linear
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training import evaluation, ranks, results
from siamdiff_min.training.config import TABLE_5, TABLE_6, finetune_options

CASES = [(task, level) for task, levels in TABLE_6.items() for level in levels]
ALONE = ranks.Ranks(torch.device("cpu"))


def make(task: str, level: str):
    torch.manual_seed(0)
    return TASKS[task](encoder(task, level), **({"num_outputs": len(CLASSES)} if task == "ec" else {}))


def batch_of(data, num: int = 4):
    return pack_samples([data[0, i] for i in range(num)])[0]


def test_methods_and_tasks_are_those_of_the_tables():
    assert OBJECTIVES.keys() == TABLE_5.keys() and TASKS.keys() == SETS.keys()
    assert TASKS.keys() == {*TABLE_6, "table"}


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
    for _ in range(80):
        optimizer.zero_grad()
        loss, _ = model(batch)
        loss.backward()
        optimizer.step()
        first = first or loss.item()
        if loss.item() < 0.01 * first:
            break
    assert loss.item() < 0.01 * first
    model.eval()
    score = model.to_prediction(model.predict(batch)).detach()
    assert score.shape == {"ec": (4, 3), "res": (4, NUM_RESIDUE_TYPES)}.get(task, (4,))


@pytest.mark.repeats
@pytest.mark.parametrize("task, level", [("ec", "residue"), ("pip", "atom"), ("psr", "atom")])
def test_predictions_do_not_depend_on_pose_or_batch(task, level, tmp_path):
    data = dataset(task, tmp_path)
    batch, model = batch_of(data), make(task, level).double().eval()
    protein = replace(batch.protein, pos=batch.protein.pos.double())
    batch = replace(batch, protein=protein)
    together = model.predict(batch)
    moved = model.predict(replace(batch, protein=move(protein, 1)))
    assert torch.allclose(moved, together, atol=1e-6)
    for i in (0, 3):
        one = pack_samples([data[0, i]])[0]
        one = replace(one, protein=replace(one.protein, pos=one.protein.pos.double()))
        assert torch.allclose(model.predict(one)[0], together[i], atol=1e-6)


@pytest.mark.parametrize("task, sees", [("pip", "the CA"), ("res", "the CA"), ("msp", "all atoms"), ("psr", "protein")])
def test_what_the_head_of_a_task_sees(task, sees, tmp_path):
    """Of the residue in focus its CA, or the mean over its atoms; else the readout of the whole structure."""
    batch, model = batch_of(dataset(task, tmp_path)), make(task, "atom").eval()
    p, encoding = batch.protein, model.encoder(batch.protein)
    every = [*zip(p.atom_protein.tolist(), batch.focus[p.atom_residue].tolist(), p.atom_name.tolist())]
    for i, value in enumerate(model.represent(batch)):
        atoms = [a for a, (of, focus, _) in enumerate(every) if of == i and focus]
        atoms = [a for a in atoms if sees == "all atoms" or every[a][2] == CA]
        assert sees == "protein" or (len(atoms) > 3 if sees == "all atoms" else len(atoms) == 1)
        expected = encoding.protein[i] if sees == "protein" else encoding.node[atoms].mean(0)
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


def test_a_frozen_encoder_stays_as_it_is(tmp_path):
    batch, model = batch_of(dataset("psr", tmp_path)), make("psr", "atom")
    model.encoder.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    model(batch)[0].backward()
    optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert changed and all(name.startswith("head.") for name in changed)


def test_psr_is_standardised_by_the_training_targets(tmp_path):
    data = dataset("psr", tmp_path)
    batch, model = batch_of(data), make("psr", "atom")
    model.fit(data.targets(), "tiny")
    targets = data.targets()
    assert np.isclose(model.mean.item(), targets.mean()) and np.isclose(model.std.item(), targets.std())
    output = torch.zeros(4, 1)
    assert torch.allclose(model.to_prediction(output), model.mean.expand(4))  # predicts the mean
    assert np.isclose(model.loss(output, batch.target).mean().item(), 1, atol=1e-5)  # which explains nothing
    model.fit(1e-9 * targets, "tiny")  # dissociation constants in mol/l
    assert np.isclose(model.std.item(), 1e-9 * targets.std(), atol=0)
    model.fit(np.full(3, 0.1), "tiny")
    assert model.std.item() == 1


def test_a_kind_of_a_plugin_is_asked_for(tmp_path):
    with pytest.raises(ConfigError, match=r"the kind 'count' are not known here\. Do they come from a --plugin"):
        TASKS["table"](encoder("gearnet", "residue"), kind="count")


def test_mutations_of_one_complex_are_drawn_together(tmp_path):
    data = dataset("msp", tmp_path)
    data.store.names = ["2VLO_A_B_AB95K", "2VLO_A_B_AB95K,CB96A#3", "1QA9_D134A", "17"]
    assert [data[0, i].groups for i in range(4)] == [("2VLO_A_B",), ("2VLO_A_B",), ("1QA9",), ("17",)]
    assert data[0, 1].names == ("2VLO_A_B_AB95K,CB96A#3",)


@pytest.mark.repeats
@pytest.mark.parametrize("task, num", [("psr", 7), ("psr", 9), ("res", 8)])
def test_metrics_do_not_depend_on_the_number_of_ranks(task, num, tmp_path, monkeypatch):
    """Plain functions: every rank is asked in turn, and what they would gather is put together by hand."""
    data, model = dataset(task, tmp_path, num), make(task, "atom")
    config = finetune_options(["--task", task, "--batch-size", "4", "--num-workers", "0"])
    alone = results.predict(model, data, config, ALONE)
    assert len(set(alone.names)) == num == len(alone.prediction)
    monkeypatch.setattr(evaluation.dist, "broadcast", lambda buffer, rank: None)
    for world in (2, 3):
        parts = []
        monkeypatch.setattr(ranks.Ranks, "all_gather", lambda self, items, parts=parts: parts.extend(items) or parts)
        for rank in range(world):
            together = results.predict(model, data, config, replace(ALONE, rank=rank, world=world))
        assert together.names == alone.names and np.array_equal(together.prediction, alone.prediction)
        assert np.array_equal(together.target, alone.target) and together.groups == alone.groups
        a, b = (model.metrics(x.prediction, x.target, x.groups) for x in (alone, together))
        assert a == b and all(np.isfinite(list(a.values())))


def test_ec_of_the_small_sizes_begins_at_the_frequencies_of_its_classes():
    targets = np.zeros((9, 4), dtype=np.float32)
    targets[:3, 1] = targets[:, 2] = 1
    for size, expected in {"tiny": np.array([0.05, 0.35, 0.95, 0.05]), "paper": None}.items():
        model = TASKS["ec"](ENCODERS["gearnet"]("residue", "tiny"), 4)
        before = model.head.layers[-1].bias.detach().clone()
        model.fit(targets, size)
        bias = model.head.layers[-1].bias.detach()
        if expected is None:
            assert torch.equal(bias, before)
        else:
            np.testing.assert_allclose(bias.sigmoid().numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("size", GEARNET_DIMS)
def test_readout_at_residue_level(size):
    """The sum of App. D in the paper's network alone."""
    assert ENCODERS["gearnet"]("residue", size).readout is (segment_sum if size == "paper" else segment_mean)


@pytest.mark.parametrize(("kind", "outputs", "logit"), [("binary", 1, 18.0), ("labels", 2, 18.0), ("classes", 2, 9.0)])
def test_large_logits_are_no_ties(kind, outputs, logit):
    """In float32 the sigmoid of 17 and of 30 is 1."""
    task = table_task(ENCODERS["gearnet"]("residue", "tiny"), outputs, kind)
    logits = torch.tensor([logit, 1.3 * logit, 1.6 * logit])[:, None] * torch.tensor([1.0, -1.0])[:outputs]
    assert len(task.to_prediction(logits).unique()) == logits.numel()


# ---- the linear head in closed form ----------------------------------------------------------------------------------


RANDOM = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(40), 2)


def features(width: int) -> tuple[np.ndarray, np.ndarray]:
    """80 rows with features of all sizes, one of them constant, and a value that depends on them."""
    x = RANDOM.normal(size=(80, width)) * RANDOM.uniform(0.01, 100, width) + RANDOM.normal(size=width)
    x[:, 0] = 7
    return x, (x - x.mean(0))[:, 1:4].sum(1) / 30 + RANDOM.normal(size=80) * 0.1


@pytest.mark.covers
@pytest.mark.parametrize("width", [6, 300])
@pytest.mark.parametrize("kind", linear.LOSSES)
def test_the_head_is_that_of_scikit_learn(kind, width):
    x, y = features(width)
    if kind != "regression":
        y = np.digitize(y, np.quantile(y, [0.3, 0.6] if kind == "classes" else [0.5])).astype(float)
    head = linear.fit(x, y, GROUPS, kind, 4)  # the last class is never there
    z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    penalty = head.penalty[0]
    if kind == "regression":
        expected = Ridge(penalty).fit(z, y).predict(z)
        assert np.allclose(head(x)[:, 0], expected, rtol=1e-10, atol=1e-10)
        return
    model = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=10_000).fit(z, y)
    found = head(x)[:, 0]
    if kind == "classes":
        share = np.exp(head(x))
        assert (share[:, 3] / share.sum(1) < 0.05).all()
        found = share[:, :3] / share[:, :3].sum(1, keepdims=True)
    expected = model.predict_proba(z) if kind == "classes" else model.decision_function(z)
    assert np.allclose(found, expected, atol=0.02)


def test_every_output_has_its_own_penalty_and_its_own_rows():
    x, y = features(6)
    both = np.stack([y, RANDOM.normal(size=80)], 1)
    both[::3, 0] = np.nan
    head, there = linear.fit(x, both, GROUPS, "regression"), ~np.isnan(both[:, 0])
    alone = linear.fit(x[there], y[there], GROUPS[there], "regression")
    assert np.array_equal(head.weight[:1], alone.weight) and head.penalty[0] < head.penalty[1]


def test_one_class_only_has_the_odds_of_half_a_row():
    x, _ = features(6)
    head = linear.fit(x, np.ones(80), GROUPS, "binary")
    assert np.allclose(head(x), np.log(160))


def test_a_head_that_does_not_converge_warns_nobody(monkeypatch):
    """Warnings are errors in tests. One step is too few for any penalty."""
    solver = linear.LogisticRegression
    monkeypatch.setattr(linear, "LogisticRegression", lambda C, max_iter: solver(C=C, max_iter=1))
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 5))
    head = linear.fit(x, (x[:, 0] > 0) * 1.0, np.arange(40), "binary")
    assert np.isfinite(head.weight).all() and np.abs(head.weight).argmax() == 0


def test_folds_keep_groups_together_and_are_alike():
    y = RANDOM.permutation(np.repeat([0.0, 1.0], [30, 10])).repeat(2)
    fold = linear.folds_of(y, GROUPS, 5)
    assert (fold[::2] == fold[1::2]).all() and np.bincount(fold).tolist() == [16] * 5
    assert np.bincount(fold, y).tolist() == [4] * 5
    with pytest.raises(ValueError, match="41 folds need as many different structures with a value, there are 40"):
        linear.folds_of(y, GROUPS, 41)


def test_no_row_is_scored_by_a_head_that_has_seen_its_group():
    """Random features, and copies of every row: a head that had seen the copy would be right."""
    x, y = RANDOM.normal(size=(40, 200)).repeat(2, 0), RANDOM.normal(size=40).repeat(2)
    fit = partial(linear.fit, kind="regression")
    seen = linear.out_of_fold(fit, x, y, np.arange(80), 10)[:, 0]
    apart = linear.out_of_fold(fit, x, y, GROUPS, 10)[:, 0]
    assert np.corrcoef(seen, y)[0, 1] > 0.8 and abs(np.corrcoef(apart, y)[0, 1]) < 0.5
