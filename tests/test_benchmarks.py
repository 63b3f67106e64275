"""The scripts of benchmarks/: scores against scikit-learn, all subsets, and by hand; commands on small inputs."""

import importlib
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from Bio.SVDSuperimposer import SVDSuperimposer
from conftest import generator, real_protein
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score, matthews_corrcoef, r2_score, roc_auc_score

import siamdiff_min
from benchmarks import ddg, encoder_card, gpu, ppis, probe, relatives, speed, step
from benchmarks.alike import CUTOFFS, families, gdt_ts, superpose
from benchmarks.pdb import write_pdb
from benchmarks.probe_report import holm
from benchmarks.residue_labels import exposure, labels_of, secondary_structure
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.encoders.ops import MLP
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import CA, ONE_LETTER
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_index, bundle_path, find_structures
from siamdiff_min.reading.store import open_store
from siamdiff_min.training.config import TABLE_5


@pytest.fixture(scope="module")
def bundled():
    return {source.name: source for source in find_structures(bundle_path()).sources}


@pytest.fixture(scope="module")
def chains(bundled):
    """Eight short single chains of as many families."""
    short = sorted((s for name, s in bundled.items() if "_" in name), key=lambda source: source.size)[:16]
    found = {source.name: source.read() for source in short}
    family = families({name: structure.protein for name, structure in found.items()})
    return {name: found[name] for name in sorted(set(family.values()))[:8]}


@pytest.fixture(scope="module")
def encoder_file(tmp_path_factory):
    """Random weights, with a sequence head."""
    torch.manual_seed(0)
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    head = MLP(encoder.out_dim, encoder.out_dim, encoder.out_dim, 20)
    path = tmp_path_factory.mktemp("run") / "encoder.pt"
    identity = "gearnet", "residue", "tiny", "paper"
    weights.save_encoder_file(path, encoder, *identity, seq_mlp=head.state_dict())
    return str(path)


def write_structures(folder, chains) -> None:
    folder.mkdir()
    for name, structure in chains.items():
        write_pdb(folder / f"{name}.pdb", structure.protein, structure.chain_names)


def test_families():
    """Relatives by sequence, by entry, and by a third one that joins them; chance is no reason."""
    random = np.random.default_rng(0)
    base = "".join(random.choice(list(ONE_LETTER), 120))
    half = "".join(random.choice(list(ONE_LETTER), 120))
    sequences = {
        "1aaaA": base,
        "2bbbA": "".join(a if random.random() < 0.6 else "A" for a in base),
        "3cccA": half,
        "3cccB": base[:90] + "G" * 20,
        "4dddA": "".join(random.choice(list(ONE_LETTER), 120)),
        "5eeeA": base[:40] + "".join(random.choice(list(ONE_LETTER), 80)),  # identical, but in a third of it only
    }
    types = {name: torch.tensor([ONE_LETTER.index(letter) for letter in x]) for name, x in sequences.items()}
    found = families({name: SimpleNamespace(residue_type=x) for name, x in types.items()})
    assert len({found[name] for name in ("1aaaA", "2bbbA", "3cccA", "3cccB")}) == 1
    assert found["4dddA"] == "4dddA" and found["5eeeA"] == "5eeeA"


def test_counts_by_hand(chains):
    """Of the residue in the middle of a chain."""
    protein = next(iter(chains.values())).protein
    ca = protein.pos[protein.atom_name == CA].double()
    i = len(ca) // 2
    distance = (ca - ca[i]).norm(dim=1)
    distance[i] = torch.inf
    found, types = probe.counts(protein), probe.neighbours(protein)
    for k, radius in enumerate(probe.RADII):
        place = (distance < radius).nonzero().flatten() - i
        ranges = [(-5, 0), (1, 6), (-23, -5), (6, 24), (-len(ca), -23), (24, len(ca))]
        expected = [int(((place >= low) & (place < high)).sum()) for low, high in ranges]
        assert found[i, 6 * k : 6 * k + 6].tolist() == expected
    assert types[i, 20:40].tolist() == protein.residue_type[distance < 10].bincount(minlength=20).tolist()


def test_names_joined_with_plus(chains, encoder_file):
    protein = next(iter(chains.values())).protein
    with torch.inference_mode():
        beside = probe.load(f"{encoder_file}+counts", [])(protein)
        alone = probe.load(encoder_file, [])(protein)
    assert torch.equal(beside, torch.cat([alone, probe.counts(protein)], 1))
    assert probe.short(f"{encoder_file}+counts") == f"{Path(encoder_file).parent.name}+counts"


# ---- ppis ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sites(tmp_path_factory, chains):
    """The label is whether a residue is polar, which types tell; two chains each for validation and test."""
    folder = tmp_path_factory.mktemp("sites")
    write_structures(folder / "structures", chains)
    lines = ["name\tchain\tnumber\tvalue\tsplit"]
    for k, (name, structure) in enumerate(chains.items()):
        split = ("train", "train", "train", "train", "valid", "valid", "test", "test")[k]
        for (chain, number, code), kind in zip(structure.positions, structure.protein.residue_type.tolist()):
            value = int(ONE_LETTER[kind] in "STNQDEKRH")
            lines.append(f"{name}\t{chain}\t{f'{number}{code}'.strip()}\t{value}\t{split}")
    (folder / "labels.tsv").write_text("\n".join(lines[:-1]) + "\n")  # one residue has no label
    return folder


def test_scores_are_those_of_scikit_learn(sites, tmp_path, capsys):
    """On the test split, and with chains drawn twice or not at all."""
    ppis.main([str(sites), "floor", "--test", "--out", str(tmp_path)])
    found = ppis.with_labels(dict(np.load(tmp_path / "floor.npz")), ppis.read_chains(sites, True))
    for weight in (np.array([1, 1]), np.array([3, 1])):
        rows = np.repeat(np.arange(len(found["y"])), weight[found["chain"]])
        y, answer = found["y"][rows], found["answer"][rows]
        expected = average_precision_score(y, answer), roc_auc_score(y, answer)
        expected += (matthews_corrcoef(y, answer >= found["threshold"]),)
        assert list(ppis.scores(found, weight).values()) == pytest.approx(expected)
    capsys.readouterr()


def test_the_best_threshold_calls_equal_answers_together():
    """Against all thresholds that there are: of two equal answers none can be called alone."""
    draw = np.random.default_rng(0)
    cases = [(np.array([0.5, 0.5, 0.4, 0.1]), np.array([1.0, 0, 1, 0]))]
    cases += [(draw.integers(0, 5, 30) / 4, draw.integers(0, 2, 30).astype(float)) for _ in range(30)]
    for answer, y in cases:
        reached = {t: matthews_corrcoef(y, answer >= t) for t in np.unique(answer)}
        assert reached[ppis.best_threshold(answer, y)] == pytest.approx(max(reached.values()))


# ---- ddg -------------------------------------------------------------------------------------------------------------


def test_log_odds_by_hand(tmp_path, chains, encoder_file):
    """Of the head on the features of the masked residue; they do not depend on the wild type that is hidden."""
    name, structure = next(iter(chains.items()))
    write_structures(tmp_path / "structures", {name: structure})
    chain, number, _ = structure.positions[9]
    wild = int(structure.protein.residue_type[9])
    row = [name, chain, ONE_LETTER[wild], str(number), ONE_LETTER[wild - 1], "0.5"]
    titles = ["structure", "chain", "wild", "number", "mutant", "ddg"]
    (tmp_path / "train.tsv").write_text("\n".join(map("\t".join, (titles, row))))
    (mutation,) = ddg.read_mutations(tmp_path, "train.tsv")
    head = MLP(128, 128, 128, 20)
    head.load_state_dict(weights.load_encoder_file(encoder_file)["seq_mlp"])
    hidden = ddg.hide_residues(structure.protein, torch.tensor([9]), backbone=4)
    with torch.inference_mode():
        p = head(probe.load(encoder_file, [])(hidden)[9]).log_softmax(-1)
        found = ddg.log_odds(encoder_file, [mutation])[0]
    assert found[0] == pytest.approx(float(p[wild - 1] - p[wild]), abs=1e-5)


# ---- nearly clean structures -----------------------------------------------------------------------------------------


def test_the_noise_of_nearly_clean_structures(chains):
    """Half of the t have less than 0.1 angstrom, 68 % lie within a factor of e; a batch has finite losses."""
    plugin = importlib.import_module("benchmarks.nearly_clean")
    sigma = (1 / plugin.SCHEDULE.alpha_bar - 1).sqrt()
    assert len(sigma) == 100 and (sigma.diff() > 0).all() and int((sigma < 0.1).sum()) == 50
    assert int(((sigma > 0.1 / np.e) & (sigma < 0.1 * np.e)).sum()) == 68
    batch = Protein.pack([structure.protein for structure in chains.values()][:3])
    for name in ("diffpret-clean", "siamdiff-clean"):
        del TABLE_5[name]  # other tests know the methods of the package only
        loss, _ = OBJECTIVES.pop(name)(ENCODERS["gearnet"]("residue", "tiny"), "residue")(batch, generator())
        assert loss.isfinite()


# ---- superpose -------------------------------------------------------------------------------------------------------


def alpha_carbons(name="1LCD_A") -> torch.Tensor:
    protein = real_protein(name)
    return protein.pos[protein.atom_name == CA]


def randn(*shape, seed=0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


@pytest.mark.parametrize("seed", range(6))
def test_superposition_is_that_of_biopython(seed):
    """A point of weight 2 counts as two points; a mirror image must not be used."""
    mobile, fixed = 10 * randn(2, 3 + 4 * (seed // 2), 3, seed=seed)
    if seed % 2:
        fixed = mobile * fixed.new_tensor([1.0, 1.0, -1.0])
    weight = torch.randint(1, 4, (len(mobile),), generator=generator(seed))
    rotation, shift = superpose(mobile, fixed, weight.double())
    expected = SVDSuperimposer()
    expected.set(*(points.repeat_interleave(weight, 0).numpy() for points in (fixed, mobile)))
    expected.run()
    rot, tran = map(torch.from_numpy, expected.get_rotran())
    assert torch.allclose(mobile @ rotation.T + shift, mobile @ rot + tran, atol=1e-9)
    assert torch.linalg.det(rotation) == pytest.approx(1, abs=1e-10)


def test_gdt_is_close_to_the_best_over_all_subsets():
    """Ten atoms: every subset of three or more is superposed, which the search can reach but not exceed."""
    subsets = [s for k in range(3, 11) for s in combinations(range(10), k)]
    weight = torch.zeros(len(subsets), 10, dtype=torch.float64)
    for row, subset in zip(weight, subsets):
        row[list(subset)] = 1
    found, best = [], []
    for seed in range(12):
        native = alpha_carbons()[seed : seed + 10]
        model = native + 1.5 * randn(10, 3, seed=seed)
        rotation, shift = superpose(model, native, weight)
        distance = length(model @ rotation.mT + shift[:, None] - native)
        best.append(sum(float((distance <= cutoff).sum(1).max()) for cutoff in CUTOFFS) / 40)
        found.append(gdt_ts(model, native))
        assert found[-1] <= best[-1] + 1e-12
    assert sum(found) > 0.95 * sum(best)


def test_the_nearest_relatives_are_counted(tmp_path, capsys):
    """Two copies of each of two chains are relatives; by composition, states and vectors each finds the other."""
    lines = ["id\tcluster"]
    for name in ("1A19_A", "5PTI_A"):
        for copy in "xy":
            write_pdb(tmp_path / f"{name}{copy}.pdb", siamdiff_min.bundled(name).protein)
            lines.append(f"{name}{copy}\t{name}")
    (tmp_path / "table.tsv").write_text("\n".join(lines) + "\n")
    states = {file.stem: np.arange(30) * (1 + (file.stem[0] == "1")) % 20 for file in tmp_path.glob("*.pdb")}
    np.savez(tmp_path / "states.npz", **states)
    command = [str(tmp_path), str(tmp_path / "table.tsv"), "composition", "random", "siamdiff-residue"]
    relatives.main([*command, "--states", str(tmp_path / "states.npz")])
    rows = ["composition", "random weights, as built", "siamdiff-residue", "siamdiff-residue, whitened"]
    rows += ["3Di states", "pairs of 3Di states"]
    assert capsys.readouterr().out.splitlines() == [f"{row}: 4 of 4" for row in rows]


def test_vectors_without_an_error_are_not_moved():
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    assert encoder_card.moved_by_error([x], [x]) == (0.0, 1.0)
    swapped = torch.cat([x[1:2], x[:1], x[2:]])
    shift, own = encoder_card.moved_by_error([x], [swapped])
    expected = 2 * (x[0] - x[1]).norm() / (x - x.mean(0)).norm(dim=1).sum()
    assert own == pytest.approx(7 / 9) and shift == pytest.approx(float(expected), rel=1e-5)


def test_a_component_along_the_length_is_found():
    lengths = torch.arange(20, 60)
    noise = 0.01 * torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    means = lengths.log()[:, None] * torch.tensor([3.0, 0, -1, 0, 0]) + noise
    assert encoder_card.correlation_with_length(means, lengths) > 0.999


# ---- benchmarks.probe: labels of real chains, scores and intervals found otherwise -----------------------------------


def test_scores_of_the_probe_are_those_of_scikit_learn():
    """Also where the sums of families are drawn again: each family twice changes nothing."""
    random = np.random.default_rng(2)
    item = np.repeat(np.arange(300), 40)
    x = random.normal(size=(len(item), 5))
    y = random.normal(size=len(item)) + 0.7 * x[:, 0]
    answer = Ridge(alpha=1.0).fit(x, y).predict(x)
    sums = probe.sums("number", answer[:, None], y, item, 300)
    for times in (1, 2):
        assert probe.score("number", times * sums.sum(0)) == pytest.approx(r2_score(y, answer), abs=1e-12)
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
    """Of distances of CB, and a residue alone is exposed while none of a chain is more so than a lone one."""
    protein = bundled["2GB1_A"].read().protein
    labels = labels_of(protein, None)
    beta = {}
    for pos, name, residue in zip(protein.pos, protein.atom_name.tolist(), protein.atom_residue.tolist()):
        if name == 4 or (name == 1 and residue not in beta):
            beta[residue] = pos
    beta = torch.stack([beta[i] for i in range(56)]).double()
    distance = torch.cdist(beta, beta).fill_diagonal_(torch.inf)
    far = (torch.arange(56) - torch.arange(56)[:, None]).abs() >= 24
    assert labels["contacts"].tolist() == (distance < 10).sum(1).tolist()
    assert labels["longrange"].tolist() == ((distance < 8) & far).sum(1).tolist() and max(labels["longrange"]) > 3
    alone = [float(exposure(protein.crop(i, 1))[0]) for i in range(0, 56, 11)]
    assert all(1.1 < value < 1.8 for value in alone)
    assert (labels["exposure"][::11] < alone).all() and 0.2 < labels["exposure"].mean() < 0.5
    half = [protein.crop(0, 28), protein.crop(28, 28)]
    near = torch.cdist(half[0].pos.double(), half[1].pos.double()) < 6
    touching = half[0].atom_residue[near.any(1)].unique()
    assert labels_of(*half)["interface"].nonzero()[0].tolist() == touching.tolist()


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
    chains, pairs = [], []
    for row in bundle_index():
        name = Path(row["file"]).name.split(".")[0]
        size = int(row["n_residues"])
        if row["partners"] and size < 200:
            pairs.append(name)
        elif not row["partners"] and 40 < size < 90:
            chains.append(name)
    splits = ["train", "train", "train", "val", "test", "test"]
    rows = [(name, split, f"c{k}") for k, (name, split) in enumerate(zip(chains, splits))]
    rows += [(name, split, f"p{k}") for k, (name, split) in enumerate(zip(pairs, splits[2:5]))]
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
    expected = {"a": 0.04, "c": 0.09, "b": 0.09, "d": 0.9}
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.9}) == pytest.approx(expected)


# ---- benchmarks.speed and .gpu: their commands run on small inputs ---------------------------------------------------


@pytest.fixture
def two_structures(tmp_path, monkeypatch):
    """Two structures in place of the bundle, and a batch of 40 residues."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("1LCD_A", "2BEG"):
        write_pdb(data / f"{name}.pdb", real_protein(name))
    small = Protein.pack([real_protein(dtype=torch.float32).crop(0, 20)] * 2)
    monkeypatch.setattr(step, "load_batch", lambda level: small)
    monkeypatch.setattr(speed, "bundle_path", lambda: data)
    monkeypatch.setattr(speed, "open_store", lambda path=data, *more: open_store(path, *more))


COMMANDS = {
    "graph --level residue --sizes 100": "| residue | 2 | 100 |",
    "step --level residue --size tiny --against plain": "x as fast as plain",
    "reading --every 1": "| 2 .cif.gz | 1,299 |",
    "store --proteins 5 --crops 20": "6 proteins, in the page cache: ",
    "embedding --level residue --size tiny": "structures/s",
    "commands --rows wrong": "| wrong option | ",
}


@pytest.mark.repeats
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_comes_to_its_end(command, two_structures, capsys):
    words = command.split()
    speed.main([words[0], "--repeats", "1", *words[1:]])
    assert COMMANDS[command] in capsys.readouterr().out


@pytest.mark.full
def test_every_section_of_the_gpus_report_comes_to_its_end(two_structures, monkeypatch, capsys):
    result = {"weights": {"w": 1.0}, "proteins_per_second": 2.0, "peak_memory_mb": 3.0}
    monkeypatch.setattr(gpu, "train", lambda *_, **__: result)
    gpu.main("cpu")
    out = capsys.readouterr().out
    assert "Error" not in out and "- residue: " in out and "the same to the last bit" in out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| residue |")]
    assert len(rows) == 3 and all(float(row[4]) > 0 and len(row) == 7 for row in rows)
    with gpu.section("One"):
        raise ValueError("a reason")
    assert "**ValueError**: a reason" in capsys.readouterr().out
