"""The file of an encoder carries the conventions of its graphs, so that it is read alike wherever it is read."""

import importlib.util
from dataclasses import fields, replace

import pytest
import torch
from conftest import real_protein
from processes import ROOT

import siamdiff_min
from siamdiff_min.conventions import CONVENTIONS, PAPER
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.files import CheckpointError, ConfigError
from siamdiff_min.training.config import pretrain_options

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
@pytest.mark.parametrize(
    "name, level", [("gearnet", "residue"), ("gearnet", "atom"), ("gvp", "atom"), ("esm-gearnet", "residue")]
)
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
