"""A weighted metric is that of the samples repeated; draws are the same everywhere, and as wide as they should be."""

import numpy as np
import pytest

from siamdiff_min.downstream import intervals, metrics

RNG = np.random.default_rng(0)
K = 40
GROUPS = np.array([f"p{i}" for i in RNG.integers(8, size=K)])
ROUGH, TARGET = RNG.random(K).round(1), (RNG.random(K) * 4).round()  # with equal ones
RARE, MANY = (RNG.random(K) > 0.9) * 1.0, (RNG.random((K, 5)) > 0.9) * 1.0
CASES = [(name, ROUGH, TARGET) for name in ("global_spearman", "spearman", "pearson", "rmse", "mae", "mean_spearman")]
CASES += [(name, ROUGH, RARE) for name in ("auroc", "auprc", "accuracy")]
CASES += [(name, RNG.random((K, 5)).round(1), MANY) for name in ("fmax", "auprc")]
CASES += [("accuracy", RNG.random((K, 4)), RNG.integers(4, size=K))]


@pytest.mark.parametrize("name, score, target", CASES)
def test_a_weighted_metric_is_that_of_repeated_samples(name, score, target):
    """Scores that are all the same, too. A group that comes twice is two groups."""
    plain = getattr(metrics, name.removeprefix("global_"))
    names = np.unique(GROUPS)
    for scores in (score, np.broadcast_to(score[:1], score.shape)):
        measure, undefined = getattr(intervals, name)(scores, target, GROUPS), 0
        for times in RNG.multinomial(8, [1 / 8] * 8, size=30):
            copies = [np.flatnonzero(names[k] == GROUPS) for k in range(8) for _ in range(times[k])]
            rows, groups = np.concatenate(copies), np.repeat(np.arange(8), [*map(len, copies)])
            expected = plain(scores[rows], target[rows], *([groups] if name == "mean_spearman" else []))
            with np.errstate(divide="ignore", invalid="ignore"):
                (found,) = measure(times[np.searchsorted(names, GROUPS)][None])
            assert np.isclose(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
            undefined += np.isnan(found)
        assert undefined < 15


def test_every_metric_of_every_task_has_an_interval():
    from siamdiff_min.downstream.tasks import KINDS, TASKS

    tasks = [task for task in (*KINDS.values(), *TASKS.values()) if isinstance(task, type)]
    assert all(hasattr(intervals, name) for task in tasks for name in task.measures) and len(tasks) == 9


def test_whole_structures_are_drawn_and_the_interval_is_that_of_their_mean():
    """Of 100 structures with five equal errors each: the interval of a mean of 100 numbers, not of 500."""
    error = RNG.normal(size=100)
    score, groups = np.repeat(error + 10, 5), np.repeat(np.arange(100), 5)
    values = intervals.redrawn([intervals.mae(score, np.zeros(500), groups)], groups)
    low, high = intervals.interval(values[:, 0])
    assert np.isclose(high - low, 2 * 1.96 * error.std() / 10, rtol=0.1)
    assert np.array_equal(values, intervals.redrawn([intervals.mae(score, np.zeros(500), groups)], groups))


def test_large_splits_are_drawn_in_parts_that_do_not_matter(monkeypatch):
    measure = intervals.auroc(ROUGH, RARE, GROUPS)
    whole = intervals.redrawn([measure], GROUPS)
    monkeypatch.setattr(intervals, "AT_ONCE", 7 * K)
    assert np.array_equal(whole, intervals.redrawn([measure], GROUPS), equal_nan=True) and len(whole) == 1000
    monkeypatch.setattr(intervals, "AT_ONCE", 1)
    assert len(intervals.redrawn([measure], GROUPS)) == 200


def test_an_interval_of_nothing():
    assert intervals.interval(np.array([np.nan, np.nan])) is None
    assert intervals.interval(np.array([np.nan, 1.0])) == [1.0, 1.0]
