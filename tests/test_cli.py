"""`siamdiff COMMAND`: one name for all commands; old names stay."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from siamdiff_min import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def siamdiff(monkeypatch, capsys):
    """Run a command line; its status, stdout and stderr."""

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["/bin/siamdiff", *argv])
        try:
            status = cli.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, siamdiff):
    status, said, _ = siamdiff(command, "--help")
    assert status == 0 and said.startswith(f"usage: siamdiff {command} ")


def test_the_list_of_commands(siamdiff):
    status, said, _ = siamdiff("--help")
    assert status == 0 and all(f"  {name} " in said and about in said for name, (_, about) in cli.COMMANDS.items())
    status, _, said = siamdiff("trian")
    assert status == 2 and "Did you mean train?" in said
    assert siamdiff()[0] == 2


def test_a_run_of_each_kind(siamdiff, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert siamdiff("train", "--size", "tiny", "--device", "cpu", "--dry-run")[0] == 0
    status, said, _ = siamdiff("finetune", "--task", "psr", "--device", "cpu", "--dry-run")
    assert status == 0 and re.search(r"^task +psr$", said, flags=re.M)
    status, _, said = siamdiff("train", "--data", "nowhere", "--device", "cpu")
    assert status == "error: nowhere: cannot be opened (no such file or folder)"
    assert siamdiff("report", "nowhere")[0] == 1 or "nowhere" in str(siamdiff("report", "nowhere")[0])


def test_the_installed_names_lead_to_functions():
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {"siamdiff", "siamdiff-embed", "siamdiff-report", "siamdiff-build"} == set(scripts)
    for target in scripts.values():
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function))
