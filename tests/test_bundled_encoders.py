"""The encoders that come with the package: loaded by name, without a network, with the numbers that were stored."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

import siamdiff_min
from benchmarks import bundle_encoder
from benchmarks.pdb import write_pdb
from siamdiff_min import names
from siamdiff_min.cli import run
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.encoders.weights import load_encoder_file, save_encoder_file
from siamdiff_min.files import CheckpointError, checksum
from siamdiff_min.training.config import pretrain_options

NAMES = ("siamdiff-atom", "siamdiff-residue")


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_of_the_package_gives_the_stored_vector(name, offline):
    """`python -m benchmarks.bundle_encoder` writes both the encoder and the vector."""
    file = weights.BUNDLED / f"{name}.pt"
    stored = json.loads(bundle_encoder.RECORD.read_text())[name]
    assert file.stat().st_size < 4e6 and checksum(file) == stored["sha256"]
    encoder, source = siamdiff_min.load_encoder(name, "cpu"), bundle_encoder.smallest()
    embedding = encoder.embed(source.read())
    assert source.name == stored["structure"] and len(embedding.mean) == sum(encoder.layer_dims)
    assert np.allclose(embedding.mean, stored["mean"], rtol=1e-3, atol=1e-3 * np.abs(embedding.mean).max())
    assert load_encoder_file(name)["level"] == name.split("-")[1]


@pytest.fixture
def bundled(tmp_path, monkeypatch) -> dict[str, Path]:
    """Stand-ins with random weights, put into a folder of their own."""
    monkeypatch.setattr(names, "BUNDLED", tmp_path / "bundled")
    monkeypatch.chdir(tmp_path)
    for level in ("atom", "residue"):
        torch.manual_seed(1)
        options = vars(pretrain_options(["--level", level, "--size", "tiny"]))
        encoder = ENCODERS["gearnet"](level, "tiny")
        file = tmp_path / "run" / "encoder.pt"
        save_encoder_file(file, encoder, "gearnet", level, "tiny", "paper", method="siamdiff", config=options)
        (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 7}\n{"step": 8}\n')
        bundle_encoder.put(file, f"siamdiff-{level}", "a few chains", tmp_path / "bundled.json")
    return {name: tmp_path / "bundled" / f"{name}.pt" for name in NAMES}


def test_a_bundled_encoder_says_where_it_comes_from(bundled):
    about = load_encoder_file("siamdiff-atom")
    assert about["data"] == "a few chains" and about["steps"] == 8 and about["method"] == "siamdiff"
    assert about["version"] == siamdiff_min.__version__ and "config" not in about
    entries = json.loads(Path("bundled.json").read_text())
    assert {name: entries[name]["sha256"] for name in NAMES} == {name: checksum(path) for name, path in bundled.items()}
    mean = siamdiff_min.load_encoder("siamdiff-atom", "cpu").embed(bundle_encoder.smallest().read()).mean
    assert np.allclose(mean, entries["siamdiff-atom"]["mean"], rtol=1e-5, atol=1e-5)


def test_embeddings_without_a_checkpoint(bundled, tmp_path, capsys):
    file = tmp_path / "mine.pdb"
    write_pdb(file, bundle_encoder.smallest().read().protein)
    for argv, name in (([], "siamdiff-residue"), (["--checkpoint", "siamdiff-atom"], "siamdiff-atom")):
        assert run("embed", [str(file), *argv, "--out", f"{name}.npz", "--device", "cpu"]) == 0
        assert f"encoder {bundled[name]}" in capsys.readouterr().out
        with np.load(f"{name}.npz") as arrays:
            expected = siamdiff_min.load_encoder(bundled[name], "cpu").embed(file)
            assert np.allclose(arrays["mean"], [expected.mean], rtol=1e-5, atol=1e-6)


def test_a_folder_does_not_hide_an_encoder_of_the_package(tmp_path, monkeypatch):
    """Such as the --out of a command that used it."""
    monkeypatch.chdir(tmp_path)
    Path("siamdiff-atom").mkdir()
    assert weights.find_weights("siamdiff-atom") == weights.BUNDLED / "siamdiff-atom.pt"
    Path("other").mkdir()
    with pytest.raises(CheckpointError, match="other cannot be read as a torch file"):
        weights.load_encoder("other")


def test_a_file_wins_and_an_unknown_name_lists_the_known(bundled):
    bundled["siamdiff-residue"].rename("siamdiff-atom")
    widths = siamdiff_min.load_encoder("siamdiff-atom", "cpu").layer_dims
    assert widths == ENCODERS["gearnet"]("residue", "tiny").layer_dims != ENCODERS["gearnet"]("atom", "tiny").layer_dims
    with pytest.raises(
        CheckpointError, match=r"siamdiff-other: No such file; encoders of the package are siamdiff-atom"
    ):
        siamdiff_min.load_encoder("siamdiff-other")
