"""`--help` of every file that can be run: the two scripts, `python -m siamdiff_min...`, benchmarks and studies."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from siamdiff_min.training.config import FINETUNE, OPTIONS, PRETRAIN

ROOT = Path(__file__).parents[1]
FOLDERS = ("siamdiff_min", "benchmarks", "studies")
FILES = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if '\nif __name__ == "__main__"' in path.read_text()
)


def test_the_entry_points_are_found():
    expected = {"train", "finetune", "siamdiff_min.embed", "siamdiff_min.report", "siamdiff_min.build"}
    assert expected | {"benchmarks.speed", "studies.2026-11.study"} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_help(module, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests have imported it before
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.parametrize("script, options", [("train", PRETRAIN), ("finetune", FINETUNE)])
def test_help_has_every_option_in_a_group_and_defaults_that_are_0(script, options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / f"{script}.py"), run_name="__main__")
    said = capsys.readouterr().out
    listed = re.findall(r"^(\w+):$|^  --([\w-]+)", said, re.M)
    assert [group for group, _ in listed if group] == ["options", *OPTIONS]
    assert sorted(name.replace("-", "_") for _, name in listed if name) == sorted(options)
    assert "weight decay of Adam (default: 0.0)" in said
    assert re.search(r"seed[^-]*\(default: 0\)", said)


@pytest.mark.full
def test_a_reader_who_leaves_early_is_no_error(tmp_path):
    """`train.py --dry-run | head -1`"""
    environment = {**os.environ, "SIAMDIFF_CACHE": str(tmp_path)}
    options = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "train.py", "--dry-run", "--size", "tiny"], **options) as process:
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 128 + 13 and "Error" not in said and "Exception" not in said, said
