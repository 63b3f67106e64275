"""What is installed: the wheel works without a checkout, and the encoders in it give the stored numbers."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
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
from siamdiff_min.reading.sources import bundle_path
from siamdiff_min.training.config import pretrain_options

ROOT = Path(__file__).parents[1]
CHECK = """
import os, siamdiff_min
from importlib.metadata import distribution
from siamdiff_min.reading.sources import bundle_index, bundle_path
from siamdiff_min.encoders.weights import BUNDLED
scripts = [entry for entry in distribution("siamdiff-min").entry_points if callable(entry.load())]
print(siamdiff_min.__file__, len(bundle_index()), sorted(os.listdir(bundle_path())), sep="\\n")
print(*sorted(entry.name for entry in scripts))
print(distribution("siamdiff-min").version)
print(*sorted(path.name for path in BUNDLED.glob("*")))
"""
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_requirements_are_those_of_the_project():
    (listed,) = re.findall(r"^dependencies = \[(.*?)\]", PROJECT, flags=re.M | re.S)
    assert sorted(re.findall(r'"(.+?)"', listed)) == sorted((ROOT / "requirements.txt").read_text().split())


def output_of(*command, **options) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what is in the wheel."""
    try:
        enough = version("pip") and int(version("setuptools").split(".")[0]) >= 77
    except PackageNotFoundError:
        enough = False
    if not enough:
        pytest.skip("needs pip and setuptools 77: pip install -e '.[test]'")
    place = tmp_path_factory.mktemp("install")
    shutil.copytree(ROOT / "siamdiff_min", place / "source" / "siamdiff_min", ignore=shutil.ignore_patterns("__py*"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    output_of(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", place, place / "source")
    (wheel,) = place.glob("*.whl")
    assert wheel.name == f"siamdiff_min-{siamdiff_min.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place / "installed")
    return place / "installed"


@pytest.mark.full
def test_the_wheel_embeds_a_file_where_there_is_no_checkout(installed, tmp_path):
    save_encoder_file(tmp_path / "e.pt", ENCODERS["gearnet"]("residue", "tiny"), "gearnet", "residue", "tiny", "paper")
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        member = min((m for m in archive if m.name.endswith(".gz")), key=lambda m: m.size)
        (tmp_path / "mine.pdb.gz").write_bytes(archive.extractfile(member).read())
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = {"cwd": tmp_path, "env": {**settings, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(installed)}}
    embed = ["-m", "siamdiff_min", "embed", "mine.pdb.gz", "--checkpoint", "e.pt", "--device", "cpu"]
    said = output_of(sys.executable, *embed, **options)
    assert "seen 1 = embedded 1" in said
    expected = siamdiff_min.load_encoder(tmp_path / "e.pt", "cpu").embed(tmp_path / "mine.pdb.gz")
    with np.load(tmp_path / "embeddings.npz") as arrays:
        assert arrays["id"].tolist() == ["mine"] and np.allclose(arrays["mean"][0], expected.mean, atol=1e-6)
    checked = output_of(sys.executable, "-c", CHECK, **options)
    file, rows, bundled, commands, version, weight_files = checked.splitlines()
    assert Path(file).is_relative_to(installed) and Path(file).with_name("py.typed").is_file()
    assert int(rows) > 200 and bundled == str(sorted(path.name for path in bundle_path().iterdir()))
    assert commands == "siamdiff"
    assert version == siamdiff_min.__version__
    assert weight_files.split() == sorted(path.name for path in weights.BUNDLED.glob("*"))


# ---- the encoders that come with it ----------------------------------------------------------------------------------


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
