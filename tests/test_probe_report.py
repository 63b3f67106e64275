"""`benchmarks.probe_report`: skills, intervals and tests of results made up here, against values found otherwise."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import probe_report
from benchmarks.probe_report import PAPER, SCRATCH, difference, holm, page, read_all, result_of

FAMILIES = 40


def write(path, right: np.ndarray) -> None:
    """A result with one item for each family, of 100 residues, of which so many are right; only classes, all alike."""
    sums = {
        f"{name}/{share}/sums": np.stack([right, np.full(FAMILIES, 100.0)], 1)
        for name in probe_report.KIND
        for share in (1, 10, 100)
    }
    constant = {key.replace("sums", "constant"): np.array(0.2) for key in sums}
    np.savez(path, item=np.arange(FAMILIES).astype(str), family=np.arange(FAMILIES).astype(str), **sums, **constant)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Every method of Table 1 for three seeds, in the order of the paper, half a point apart, and a floor."""
    monkeypatch.setattr(probe_report, "KIND", dict.fromkeys(probe_report.KIND, "class"))
    random = np.random.default_rng(0)
    order = [name for name in PAPER["atom"] if name != "columns"]
    base = random.normal(60, 5, size=FAMILIES)
    for place, method in enumerate(order):
        for seed in range(3):
            name = f"{'random-gearnet' if method == SCRATCH else method}-atom-tiny-{seed}"
            write(tmp_path / f"{name}.npz", base - 0.5 * place + 0.01 * seed + random.normal(0, 0.2, size=FAMILIES))
    write(tmp_path / "onehot.npz", base - 20)
    return tmp_path


def test_skill_is_counted_from_the_constant_answer(folder):
    row = dict(np.load(folder / "onehot.npz"))
    result, accuracy = result_of(row), row["masked/100/sums"][:, 0].mean() / 100
    assert result.scores["masked", 100][0] == pytest.approx(accuracy)
    assert result.skill()[0] == pytest.approx((accuracy - 0.2) / 0.8)
    assert np.std(result.scores["masked", 100][1:]) == pytest.approx(0.05 / np.sqrt(FAMILIES), rel=0.3)


def test_intervals_hold_families_and_runs(folder):
    """Families that are the same in both leave nothing; the variance of runs is pooled over all methods."""
    methods = read_all([folder])["atom", "tiny"]
    value, low, high, p = difference(methods, "siamdiff", "diffpret", probe_report.Result.skill)
    assert low < 0.5 / 80 < high and low < value < high and p < 0.01
    values = np.array([[run.skill()[0] for run in methods[name].values()] for name in methods if name != "onehot"])
    variance, freedom = values.var(axis=1, ddof=1).mean(), 2 * 9
    assert probe_report.pooled(methods, probe_report.Result.skill) == (pytest.approx(variance), freedom)
    alone = stats.t(freedom).ppf(0.975) * np.sqrt(variance * 2 / 3)
    assert (high - low) / 2 >= alone
    same = difference(methods | {"again": methods["siamdiff"]}, "again", "siamdiff", probe_report.Result.skill)
    assert same[0] == 0 and same[1] == -same[2] and same[3] == 1


def test_one_run_each_leaves_families(folder, capsys):
    """No run was made twice, so nothing is known of runs: families alone are drawn, and the table says so."""
    for path in [*folder.glob("*-1.npz"), *folder.glob("*-2.npz")]:
        path.unlink()
    methods = read_all([folder])["atom", "tiny"]
    value, low, high, p = difference(methods, "siamdiff", "multiview", probe_report.Result.skill)
    drawn = methods["siamdiff"][0].skill() - methods["multiview"][0].skill()
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn[1:], [0.025, 0.975])), abs=1e-4)
    assert low < value < high and p < 0.01
    probe_report.main([str(folder)])
    assert "| mean skill | minus scratch | 95 % interval, families alone | p (Holm) |" in capsys.readouterr().out


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9}) == pytest.approx(
        {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9}
    )


def test_trend_and_correlations(folder):
    methods = read_all([folder])["atom", "tiny"]
    said = page(methods, "atom", probe_report.Result.skill)
    assert "9 methods in 3 replicates: L = 855, p = 0.0000" in said  # 3 x (1 + 4 + ... + 81)
    turned = {**methods, "siamdiff": methods[SCRATCH], SCRATCH: methods["siamdiff"]}
    assert "L = 855" not in page(turned, "atom", probe_report.Result.skill)
    del methods["angle"]
    assert "8 methods in 3 replicates, without angle" in page(methods, "atom", probe_report.Result.skill)
    said = probe_report.correlations(methods, "atom", probe_report.Result.skill)
    assert "(8 methods): mean rank +1.00" in said
