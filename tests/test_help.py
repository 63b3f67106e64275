"""`--help` of every file that can be run: train.py, finetune.py, `python -m siamdiff_min...` and the benchmarks."""

import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [*ROOT.glob("*.py"), *(ROOT / "siamdiff_min").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if '__name__ == "__main__"' in path.read_text()
)


def test_the_entry_points_are_found():
    expected = {"train", "finetune", "siamdiff_min.embed", "siamdiff_min.report", "siamdiff_min.data.build"}
    assert expected | {"siamdiff_min.data.download", "benchmarks.step"} <= set(MODULES)


def test_help_of_a_module_that_registers_a_device_with_torch():
    """Once per process, so not in this one."""
    command = [sys.executable, "-m", "benchmarks.simulated", "--help"]
    assert "usage: " in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("module", [module for module in MODULES if module != "benchmarks.simulated"])
def test_help(module, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests have imported it before
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out
