"""Permuted labels: by hand, against refits by scikit-learn; the size and the power of the verdict."""

import numpy as np
import pytest
import torch
from conftest import real_protein
from scipy import stats
from sklearn.linear_model import Ridge

from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein
from siamdiff_min.tools.evidence import permutation
from siamdiff_min.tools.evidence.bootstrap import difference_interval
from siamdiff_min.tools.table import folds as folds_module
from siamdiff_min.tools.table import linear
from siamdiff_min.tools.table.composition import RADIUS, composition, surroundings


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
