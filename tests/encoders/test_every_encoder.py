"""What every encoder promises: pose, packing, hidden types, precision, and gradients for all of its weights."""

import importlib.util
from dataclasses import fields, replace

import pytest
import torch
from conftest import generator, move, real_protein, relative_error
from helpers import CLASSES, dataset
from processes import ROOT

import siamdiff_min
from siamdiff_min.conventions import CONVENTIONS, PAPER
from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, Encoder, Encoding, weights
from siamdiff_min.files import CheckpointError, ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import TABLE_6, pretrain_options

CASES = [("gearnet", "atom"), ("gearnet", "residue"), ("gvp", "atom"), ("esm-gearnet", "residue")]
every_encoder = pytest.mark.parametrize("name, level", CASES)
OUTPUTS = ("node", "residue", "protein")


def small_net(name: str, level: str, preset: str = "paper") -> Encoder:
    """In double precision, with running statistics as after some training."""
    torch.manual_seed(0)
    net = ENCODERS[name](level, "tiny", preset).double()
    for norm in (m for m in net.modules() if isinstance(m, torch.nn.BatchNorm1d)):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    return net.eval()


@every_encoder
def test_invariance(name, level):
    net, protein = small_net(name, level), real_protein("1LCD_A")
    here, there = net(protein), net(move(protein, 1))
    assert all(relative_error(getattr(there, x), getattr(here, x).detach()) < 1e-9 for x in OUTPUTS)


@every_encoder
def test_packing_equals_encoding_singly(name, level):
    net = small_net(name, level)
    proteins = [real_protein("1LCD_A"), real_protein("2BEG").crop(16, 40), real_protein("1LCD_A").crop(5, 20)]
    together, apart = net(Protein.pack(proteins)), [net(p) for p in proteins]
    for x in OUTPUTS:
        assert relative_error(getattr(together, x), torch.cat([getattr(e, x) for e in apart]).detach()) < 1e-12


@pytest.mark.covers
@pytest.mark.parametrize("preset", ["paper", "official"])
@every_encoder
def test_the_type_of_a_masked_residue_changes_nothing(name, level, preset):
    net, protein = small_net(name, level, preset), real_protein("1LCD_A")
    protein = replace(protein, masked=torch.arange(51) % 2 == 0)
    protein = protein.select_atoms((protein.atom_name < 4) | ~protein.masked[protein.atom_residue])
    other = torch.where(protein.masked, (protein.residue_type + 3) % 20, protein.residue_type)
    assert torch.equal(net(protein).node, net(replace(protein, residue_type=other)).node)
    shown = replace(protein, masked=torch.zeros_like(protein.masked))
    assert not torch.equal(net(protein).node, net(shown).node)


@every_encoder
def test_lengths_are_those_at_hand_and_edges_those_of_the_graph(name, level):
    net = small_net("esm-gearnet-edge" if name == "esm-gearnet" else name, level)  # the published one reads no length
    protein = net.builder.select_nodes(real_protein("1LCD_A"))
    graph, noise = net.builder(protein), torch.randn(protein.pos.shape, dtype=torch.float64, generator=generator(1))
    noisy = replace(protein, pos=protein.pos + noise)
    given = net(noisy, graph).node
    assert not torch.allclose(given, net(protein, graph).node) and not torch.allclose(given, net(noisy).node)
    fewer = graph.select_edges(torch.arange(graph.num_edges) % 3 > 0)
    assert not torch.allclose(net(protein, fewer).node, net(protein, graph).node)


@pytest.mark.parametrize("name, level", CASES[2:])
def test_autocast_stays_near_single_precision(name, level):
    net, protein = small_net(name, level).float(), real_protein("2BEG", torch.float32)
    single = net(protein)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = net(protein)
    for x in OUTPUTS:
        assert getattr(half, x).dtype == torch.float32
        assert 1e-6 < relative_error(getattr(half, x), getattr(single, x).detach()) < 0.05


def without_gradient(module: torch.nn.Module) -> list[str]:
    return [n for n, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()]


@pytest.mark.covers
@pytest.mark.parametrize("name, level", [CASES[0], *(pytest.param(*x, marks=pytest.mark.full) for x in CASES[1:])])
@pytest.mark.parametrize("method", [x for x in OBJECTIVES if x not in ("residue-type+distance", "residue-type+angle")])
def test_pre_training_reaches_every_weight_under_bf16_too(method, name, level):
    if (method, level) == ("torsional", "residue"):
        return
    torch.manual_seed(0)
    objective = OBJECTIVES[method](ENCODERS[name](level, "tiny"), level)
    proteins = [real_protein("1LCD_A", torch.float32).crop(0, 25), real_protein("2BEG", torch.float32).crop(10, 30)]
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = objective(Protein.pack(proteins), generator(1))
    loss.backward()
    assert loss.isfinite() and without_gradient(objective) == []


@pytest.mark.parametrize(
    "task, name, level",
    [
        pytest.param(t, *x, marks=() if t in ("ec", "psr") else pytest.mark.full)
        for t, levels in TABLE_6.items()
        for x in CASES[2:]
        if x[1] in levels
    ],
)
def test_fine_tuning_reaches_every_weight(task, name, level, tmp_path):
    data = dataset(task, tmp_path)
    torch.manual_seed(0)
    more = {"num_outputs": len(CLASSES)} if task == "ec" else {}
    model = TASKS[task](ENCODERS[name](level, "tiny"), **more)
    loss, _ = model(pack_samples([data[0, i] for i in range(2)])[0])
    loss.backward()
    assert loss.isfinite() and without_gradient(model) == []


# ---- Encoding --------------------------------------------------------------------------------------------------------


@every_encoder
def test_padded_rows_are_the_residues_of_a_protein(name, level):
    sizes = [9, 30, 1]
    batch = Protein.pack([real_protein("2BEG", torch.float32).crop(3, size) for size in sizes])
    encoder = ENCODERS[name](level, "tiny").eval()
    encoding = encoder(batch)
    padded, mask = encoding.padded()
    assert padded.shape == (3, 30, encoder.out_dim) and mask.dtype == torch.bool
    assert mask.tolist() == [[k < size for k in range(30)] for size in sizes]
    assert torch.equal(padded[mask], encoding.residue) and not padded[~mask].any()


def test_an_encoding_moves_as_a_whole():
    encoding = Encoding(torch.zeros(5, 2), torch.zeros(3, 2), torch.zeros(1, 2), torch.zeros(3, dtype=torch.long))
    assert {x.device.type for x in vars(encoding.to("meta")).values()} == {"meta"}
    assert encoding.to("cpu").padded()[0].shape == (1, 3, 2)


def test_an_encoding_that_does_not_know_its_proteins_says_what_it_needs():
    encoding = Encoding(torch.zeros(5, 2), torch.zeros(3, 2), torch.zeros(1, 2))
    assert encoding.to("cpu").residue_protein is None
    with pytest.raises(ConfigError, match=r"padded needs Encoding\(\.\.\., residue_protein=protein.residue_protein\)"):
        encoding.padded()


# ---- the file of an encoder carries the conventions of its graphs, so that it is read alike wherever it is r----------


OWN = replace(PAPER, max_neighbors=5, radial_basis=9.0, rows_as_distance=True)


def assert_same_graph(found, expected) -> None:
    protein = found.builder.select_nodes(real_protein("2BEG", torch.float32))
    one, two = found.builder(protein), expected.builder(protein)
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name


def saved(name: str, level: str, preset: str, path, monkeypatch):
    """An encoder of a plugin that changes this preset, its file, and the preset as it is without the plugin."""
    with monkeypatch.context() as plugin:
        plugin.setitem(CONVENTIONS, preset, OWN)
        encoder = ENCODERS[name](level, "tiny", preset)
        encoder.save(path)
    return encoder


@pytest.mark.covers
@every_encoder
@pytest.mark.parametrize("preset", ["paper", "mine"])
def test_an_encoder_is_loaded_with_the_graph_it_was_saved_with(name, level, preset, tmp_path, monkeypatch):
    encoder = saved(name, level, preset, tmp_path / "own.pt", monkeypatch)
    loaded = siamdiff_min.load_encoder(tmp_path / "own.pt", "cpu")
    assert loaded.builder == encoder.builder and loaded.builder.conventions == OWN
    assert loaded.identity == (name, level, "tiny", preset)
    assert_same_graph(loaded, encoder)
    assert ENCODERS[name](level, "tiny").builder.conventions == PAPER  # nothing else has changed
    if name == "gvp":
        assert loaded.longest == encoder.longest == 9.0
    if name == "esm-gearnet":
        assert loaded.gearnet.builder.conventions == OWN
    protein = real_protein("2BEG", torch.float32)
    with torch.inference_mode():
        assert torch.equal(loaded(protein).residue, encoder.eval()(protein).residue)
    loaded.save(tmp_path / "again.pt")
    assert siamdiff_min.load_encoder(tmp_path / "again.pt", "cpu").builder.conventions == OWN


def test_training_from_a_file_has_its_graph(tmp_path, monkeypatch):
    """And a line says so."""
    path = tmp_path / "own.pt"
    encoder, said = saved("gearnet", "residue", "paper", path, monkeypatch), []
    found = weights.new_encoder(pretrain_options(["--init-from", str(path)]), said.append)
    assert_same_graph(found, encoder)
    assert said == [f"note        graphs follow the conventions in {path}, not the preset paper as it is here"]


def test_files_of_before_and_of_later_versions(tmp_path, monkeypatch):
    """Without conventions, the preset's; with one that is not known, or a preset that is not, a sentence."""
    path = tmp_path / "own.pt"
    saved("gearnet", "residue", "paper", path, monkeypatch)
    content = torch.load(path)
    known = content.pop("conventions")
    torch.save(content, path)
    assert siamdiff_min.load_encoder(path, "cpu").builder.conventions == PAPER
    torch.save({**content, "conventions": {**known, "twist": True}}, path)
    with pytest.raises(CheckpointError, match=r"own.pt has conventions that this version does not know: .*'twist'"):
        siamdiff_min.load_encoder(path, "cpu")
    torch.save({**content, "preset": "mine"}, path)
    with pytest.raises(
        CheckpointError, match=r"own.pt is of the preset 'mine', which is not known here: import the file"
    ):
        siamdiff_min.load_encoder(path, "cpu")
    with pytest.raises(ConfigError, match="conventions is a name of its own"):
        ENCODERS["gearnet"]("residue", "tiny").save(path, conventions={})


def test_the_example_of_an_encoder_follows_its_preset():
    spec = importlib.util.spec_from_file_location("my_encoder", ROOT / "examples" / "my_encoder.py")
    example = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(example)
        for preset, conventions in CONVENTIONS.items():
            assert ENCODERS["mean-of-neighbours"]("residue", "tiny", preset).builder.conventions == conventions
    finally:
        ENCODERS.pop("mean-of-neighbours", None)
