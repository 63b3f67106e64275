"""`benchmarks.probe`: labels of real chains, scores and intervals against values found otherwise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, roc_auc_score

from benchmarks import probe, probe_report
from benchmarks.pdb import write_pdb
from benchmarks.probe import Rows
from benchmarks.probe_report import PAPER, SCRATCH, difference, holm, read_all, result_of
from benchmarks.residue_labels import exposure, labels_of, secondary_structure
from siamdiff_min.data.bundled import bundle_index, bundle_path
from siamdiff_min.data.sources import find_structures


@pytest.fixture(scope="module")
def bundled():
    return {source.name: source for source in find_structures(bundle_path()).sources}


def rows(kind: str, feature=None, chains: int = 300) -> Rows:
    """Labels of chains of 40 residues, and by default the labels themselves as features."""
    random = np.random.default_rng(0)
    y = (
        random.normal(size=chains * 40)
        if kind == "number"
        else random.integers(3 if kind == "class" else 2, size=chains * 40)
    )
    item = np.repeat(np.arange(chains), 40)
    x = (y[:, None] if kind == "number" else np.eye(3)[y.astype(int)]) if feature is None else feature(len(y))
    return Rows(x.astype(float), y, item % 3, item)


def result(data: Rows, kind: str, share: int = 100) -> float:
    return float(probe.score(kind, probe.fit(data, kind, share, 300)["sums"].sum(0)))


def test_scores_are_those_of_scikit_learn():
    """Also where the sums of families are drawn again: each family twice changes nothing."""
    data = rows("number", lambda n: np.random.default_rng(2).normal(size=(n, 5)))
    y = data.y + 0.7 * data.x[:, 0]
    item, ones = data.item, np.ones(len(y))
    answer = Ridge(alpha=1.0).fit(data.x, y).predict(data.x)
    sums = probe.sums("number", answer[:, None], y, item, 300)
    assert probe.score("number", sums.sum(0)) == pytest.approx(r2_score(y, answer), abs=1e-12)
    assert probe.score("number", 2 * sums.sum(0)) == pytest.approx(r2_score(y, answer), abs=1e-12)
    binary = (y > 0.3).astype(int)
    sums = probe.sums("yes or no", np.stack([-answer, answer], 1), binary, item, 300)
    assert sums.sum() == len(ones)
    assert probe.score("yes or no", sums.sum(0)) == pytest.approx(roc_auc_score(binary, answer), abs=2e-3)


def test_ridge_is_that_of_scikit_learn():
    random = np.random.default_rng(3)
    x, y = random.normal(size=(50, 4)) * [1, 10, 0.1, 1] + 3, random.normal(size=(50, 2))
    z = (x - x.mean(0)) / x.std(0)
    for penalty, answer in zip(probe.PENALTIES, probe.solve(x, y)):
        assert np.allclose(answer(x), Ridge(alpha=penalty).fit(z, y).predict(z), atol=1e-9)


def test_secondary_structure_of_a_known_fold(bundled):
    """Domain B1 of protein G (2GB1): strands 1-8, 13-20, 42-46, 51-55 and a helix 23-36 (Gronenborn et al. 1991)."""
    found = secondary_structure(bundled["2GB1_A"].read().protein)
    inside = np.zeros(56, dtype=int)
    for first, last, kind in ((1, 8, 2), (13, 20, 2), (23, 36, 1), (42, 46, 2), (51, 55, 2)):
        inside[first - 1 : last] = kind
    assert (found[found > 0] == inside[found > 0]).all()
    assert ((found == 1).sum(), (found == 2).sum()) == (13, 22)


def test_labels_by_hand(bundled):
    """Against double loops, and a residue alone is exposed while none of a chain is more so than a lone one."""
    protein = bundled["2GB1_A"].read().protein
    labels = labels_of(protein, None)
    beta = {}
    for pos, name, residue in zip(protein.pos, protein.atom_name.tolist(), protein.atom_residue.tolist()):
        if name == 4 or (name == 1 and residue not in beta):
            beta[residue] = pos
    near = [[(i, j) for j in beta if i != j and (beta[i] - beta[j]).norm() < 10] for i in range(56)]
    close = [[(i, j) for j in beta if abs(i - j) >= 24 and (beta[i] - beta[j]).norm() < 8] for i in range(56)]
    assert labels["contacts"].tolist() == [len(pairs) for pairs in near]
    assert labels["longrange"].tolist() == [len(pairs) for pairs in close] and max(labels["longrange"]) > 3
    alone = [float(exposure(protein.crop(i, 1))[0]) for i in range(0, 56, 11)]
    assert all(1.1 < value < 1.8 for value in alone)
    assert (labels["exposure"][::11] < alone).all() and 0.2 < labels["exposure"].mean() < 0.5
    half = [protein.crop(0, 28), protein.crop(28, 28)]
    near = torch.cdist(half[0].pos.double(), half[1].pos.double()) < 6
    touching = set(half[0].atom_residue[near.any(1)].tolist())
    assert labels_of(*half)["interface"].nonzero()[0].tolist() == sorted(touching)


def write_data(folder, bundled, rows: list[tuple[str, str, str]]) -> None:
    """A probe.tsv of bundled structures: (name, split, family); a complex has partners."""
    lines = ["file\tsplit\tfamily\tcluster\tpartners"]
    for name, split, family in rows:
        structure = bundled[name].read()
        write_pdb(folder / f"{name}.pdb", structure.protein, structure.chain_names)
        partners = ":".join(structure.chain_names) if len(structure.chain_names) == 2 else ""
        lines.append(f"{name}.pdb\t{split}\t{family}\t{family}\t{partners}")
    (folder / "probe.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory, bundled):
    folder = tmp_path_factory.mktemp("probe")
    sizes = {Path(row["file"]).name.split(".")[0]: (int(row["n_residues"]), row["partners"]) for row in bundle_index()}
    chains = [name for name, (size, partners) in sizes.items() if 40 < size < 90 and not partners]
    pairs = [name for name, (size, partners) in sizes.items() if size < 200 and partners]
    splits = ["train"] * 3 + ["val", "test", "test"]
    rows = [(name, split, f"c{k}") for k, (name, split) in enumerate(zip(chains, splits))]
    rows += [(name, split, f"p{k}") for k, (name, split) in enumerate(zip(pairs, ("train", "val", "test")))]
    write_data(folder, bundled, rows)
    return folder


def test_a_masked_residue_shows_nothing_of_its_type(data):
    """What the probe of types reads is the same whatever the type of the masked residues was."""
    items = probe.read_items(data / "probe.tsv")
    hidden = probe.hide_residues(items[0].protein, items[0].chosen, backbone=4)
    assert hidden.masked.nonzero().flatten().tolist() == items[0].chosen.tolist()
    kinds = hidden.residue_type.index_fill(0, items[0].chosen, 5)
    for name in ("random-gearnet-residue-tiny-1", "random-gearnet-atom-tiny-1", "both"):
        features = probe.load(name, items)
        with torch.inference_mode():
            assert torch.equal(features(hidden), features(replace(hidden, residue_type=kinds)))


# ---- `benchmarks.probe_report`: skills, intervals and tests of results made up here ----------------------------------


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


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9}) == pytest.approx(
        {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9}
    )
