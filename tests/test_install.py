"""The wheel works in an environment of its own, without the checkout; what it needs is said in one way."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

import siamdiff_min
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.encoders.weights import save_encoder_file
from siamdiff_min.reading.sources import bundle_path

ROOT = Path(__file__).parents[1]
CHECK = """
import os, siamdiff_min
from importlib.metadata import distribution
from siamdiff_min.reading.bundled import bundle_index, bundle_path
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


def run(*command, **options) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The commands of an environment that has the wheel; libraries are those of this one."""
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
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", place, place / "source")
    (wheel,) = place.glob("*.whl")
    assert wheel.name == f"siamdiff_min-{siamdiff_min.__version__}-py3-none-any.whl"
    shutil.rmtree(place / "source")
    venv.create(place / "env", symlinks=os.name != "nt")
    (python,) = place.glob("env/[bS]*/python*[!0-9]") if os.name == "nt" else [place / "env" / "bin" / "python"]
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip()
    ours = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    Path(packages, "libraries.pth").write_text("\n".join(ours))
    return python.parent


@pytest.mark.full
def test_the_wheel_embeds_a_file_where_there_is_no_checkout(installed, tmp_path):
    save_encoder_file(tmp_path / "e.pt", ENCODERS["gearnet"]("residue", "tiny"), "gearnet", "residue", "tiny", "paper")
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        member = min((m for m in archive if m.name.endswith(".gz")), key=lambda m: m.size)
        (tmp_path / "mine.pdb.gz").write_bytes(archive.extractfile(member).read())
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    options = {"cwd": tmp_path, "env": {**settings, "OMP_NUM_THREADS": "1"}}
    said = run(installed / "siamdiff", "embed", "mine.pdb.gz", "--checkpoint", "e.pt", "--device", "cpu", **options)
    assert "seen 1 = embedded 1" in said
    expected = siamdiff_min.load_encoder(tmp_path / "e.pt", "cpu").embed(tmp_path / "mine.pdb.gz")
    with np.load(tmp_path / "embeddings.npz") as arrays:
        assert arrays["id"].tolist() == ["mine"] and np.allclose(arrays["mean"][0], expected.mean, atol=1e-6)
    checked = run(installed / "python", "-c", CHECK, **options)
    file, rows, bundled, commands, version, weight_files = checked.splitlines()
    assert Path(file).is_relative_to(installed.parent) and Path(file).with_name("py.typed").is_file()
    assert int(rows) > 200 and bundled == str(sorted(path.name for path in bundle_path().iterdir()))
    assert commands == "siamdiff"
    assert version == siamdiff_min.__version__
    assert {path.stem for path in installed.glob("siamdiff*")} == set(commands.split())
    assert weight_files.split() == sorted(path.name for path in weights.BUNDLED.glob("*"))
