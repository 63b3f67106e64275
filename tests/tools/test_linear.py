"""The linear head in closed form, and the classes of a table."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import real_protein
from scipy import special
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score, recall_score
from torch.nn.utils import parameters_to_vector

import siamdiff_min
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError
from siamdiff_min.tools.table import linear, task
from siamdiff_min.tools.table.task import table_task

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
    found = head(x)
    if kind == "regression":
        assert np.allclose(found[:, 0], Ridge(head.alpha[0]).fit(z, y).predict(z), rtol=1e-10, atol=1e-10)
        return
    model = LogisticRegression(C=1 / head.alpha[0], tol=1e-8, max_iter=10_000).fit(z, y)
    if kind != "classes":
        assert np.allclose(found[:, 0], model.decision_function(z), atol=0.02)
        return
    share = special.softmax(found, 1)
    assert (share[:, 3] < 0.05).all()
    assert np.allclose(special.softmax(found[:, :3], 1), model.predict_proba(z), atol=0.02)


def test_every_output_has_its_own_alpha_and_its_own_rows():
    x, y = features(6)
    both = np.stack([y, RANDOM.normal(size=80)], 1)
    both[::3, 0] = np.nan
    head, there = linear.fit(x, both, GROUPS, "regression"), ~np.isnan(both[:, 0])
    alone = linear.fit(x[there], y[there], GROUPS[there], "regression")
    assert np.array_equal(head.weight[:1], alone.weight) and head.alpha[0] < head.alpha[1]


def test_one_class_only_has_the_odds_of_half_a_row():
    x, _ = features(6)
    head = linear.fit(x, np.ones(80), GROUPS, "binary")
    assert np.allclose(head(x), np.log(160))


def test_a_head_that_does_not_converge_warns_nobody():
    """Warnings are errors in tests. Classes that a line sets apart, with features of all sizes."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 300)) * 10.0 ** random.integers(-8, 8, 300)
    head = linear.fit(x, (x[:, 0] > 0) * 1.0, np.arange(40), "binary")
    assert np.isfinite(head.weight).all()


def test_folds_keep_groups_together_and_are_alike():
    y = RANDOM.permutation(np.repeat([0.0, 1.0], [30, 10])).repeat(2)
    fold = linear.folds_of(y, GROUPS, 5)
    assert (fold[::2] == fold[1::2]).all() and np.bincount(fold).tolist() == [16] * 5
    assert np.bincount(fold, y).tolist() == [4] * 5


@pytest.mark.parametrize("groups, low, high", [(np.arange(80), 0.8, 1), (GROUPS, -0.5, 0.5)])
def test_no_row_is_scored_by_a_head_that_has_seen_its_group(groups, low, high):
    """Random features, and copies of every row: a head that has seen the copy is right."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 200)).repeat(2, 0), random.normal(size=40).repeat(2)
    fit = partial(linear.fit, kind="regression")
    found = linear.out_of_fold(fit, x, y, groups, linear.folds_of(y, groups, 10))[:, 0]
    assert low < np.corrcoef(found, y)[0, 1] < high


# ---- classes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_balanced_accuracy_and_macro_f1_are_scikit_learns(seed):
    """One class does not occur, but may be chosen."""
    random = np.random.default_rng(seed)
    prediction = random.random((30, 4))
    target = random.integers(3, size=30)
    chosen = prediction.argmax(1)
    recall = recall_score(target, chosen, labels=np.unique(target), average="macro")
    assert task.balanced_accuracy(prediction, target) == pytest.approx(recall, abs=1e-12)
    f1 = f1_score(target, chosen, average="macro", zero_division=0)
    assert task.macro_f1(prediction, target) == pytest.approx(f1, abs=1e-12)


@pytest.mark.parametrize(("kind", "outputs", "logit"), [("binary", 1, 18.0), ("labels", 2, 18.0), ("classes", 2, 9.0)])
def test_large_logits_are_no_ties(kind, outputs, logit):
    """In float32 the sigmoid of 17 and of 30 is 1."""
    head = table_task(ENCODERS["gearnet"]("residue", "tiny"), outputs, kind)
    logits = torch.tensor([logit, 1.3 * logit, 1.6 * logit])[:, None] * torch.tensor([1.0, -1.0])[:outputs]
    assert len(head.to_prediction(logits).unique()) == logits.numel()


# ---- an encoder without training whose batch norms are measured ------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize("level", ["atom", "residue"])
def test_the_statistics_of_batch_norm_are_measured(level):
    """On another protein the input of every batch norm has about the mean and variance that it divides by."""
    encoder = siamdiff_min.random_encoder("gearnet", level, "tiny", seed=1, device="cpu")
    torch.manual_seed(1)
    built = ENCODERS["gearnet"](level, "tiny").eval()
    assert not encoder.training
    assert all(0.2 < value < 5 for value in squares_of(encoder)) and max(squares_of(built)) > 100
    for (name, ours), theirs in zip(encoder.named_parameters(), built.parameters(), strict=True):
        assert torch.equal(ours, theirs), name  # weights are those of the seed


def squares_of(encoder) -> list[float]:
    """The mean squared input of every batch norm in units of what it divides by."""
    found = []

    def look(norm, given):
        squares = (given[0] - norm.running_mean).square() / (norm.running_var + norm.eps)
        found.append(squares.mean().item())

    for module in encoder.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.register_forward_pre_hook(look)
    with torch.inference_mode():
        encoder(encoder.builder.select_nodes(real_protein("1LCD_A", torch.float32)))
    return found


def test_a_random_encoder_follows_from_its_seed_and_changes_no_generator(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    of_seeds = [siamdiff_min.random_encoder("gvp", "atom", "tiny", seed, device="cpu") for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    one, two, other = map(parameters_to_vector, map(torch.nn.Module.parameters, of_seeds))
    assert torch.equal(one, two) and not torch.equal(one, other)
    encoder = siamdiff_min.random_encoder("gearnet", "residue", "tiny", preset="official", device="cpu")
    encoder.save(tmp_path / "random.pt")
    loaded = siamdiff_min.load_encoder(tmp_path / "random.pt", "cpu")
    assert all(torch.equal(x, loaded.state_dict()[name]) for name, x in encoder.state_dict().items())
    assert loaded.identity == ("gearnet", "residue", "tiny", "official")
    with pytest.raises(ConfigError, match="there is no encoder 'gearNet'"):
        siamdiff_min.random_encoder("gearNet", "residue", device="cpu")
