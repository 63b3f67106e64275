"""`--help` of every file that can be run: the two scripts, `python -m siamdiff_min...`, benchmarks and studies."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("siamdiff_min", "benchmarks", "studies")
FILES = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if '__name__ == "__main__"' in path.read_text()
)


def test_the_entry_points_are_found():
    expected = {"train", "finetune", "siamdiff_min.embed", "siamdiff_min.report", "siamdiff_min.data.build"}
    assert expected | {"siamdiff_min.data.download", "benchmarks.speed", "studies.2026-11.study"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_help(module, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests have imported it before
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out
