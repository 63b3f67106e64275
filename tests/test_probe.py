"""`benchmarks.probe`: labels of real chains, scores and intervals against values found otherwise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score, roc_auc_score

from benchmarks import probe
from benchmarks.pdb import write_pdb
from benchmarks.probe_report import holm
from benchmarks.residue_labels import exposure, labels_of, secondary_structure
from siamdiff_min.reading.bundled import bundle_index, bundle_path
from siamdiff_min.reading.sources import find_structures


@pytest.fixture(scope="module")
def bundled():
    return {source.name: source for source in find_structures(bundle_path()).sources}


def test_scores_are_those_of_scikit_learn():
    """Also where the sums of families are drawn again: each family twice changes nothing."""
    random, item = np.random.default_rng(2), np.repeat(np.arange(300), 40)
    x = random.normal(size=(len(item), 5))
    y = random.normal(size=len(item)) + 0.7 * x[:, 0]
    answer = Ridge(alpha=1.0).fit(x, y).predict(x)
    sums = probe.sums("number", answer[:, None], y, item, 300)
    assert probe.score("number", sums.sum(0)) == pytest.approx(r2_score(y, answer), abs=1e-12)
    assert probe.score("number", 2 * sums.sum(0)) == pytest.approx(r2_score(y, answer), abs=1e-12)
    binary = (y > 0.3).astype(int)
    sums = probe.sums("yes or no", np.stack([-answer, answer], 1), binary, item, 300)
    assert sums.sum() == len(y)
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


def test_holm_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9}) == pytest.approx(
        {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9}
    )
