"""`python -m benchmarks.speed`: its commands run, on small inputs, and print their figures."""

import subprocess

import pytest
import torch
from conftest import real_protein

from benchmarks import speed
from benchmarks.pdb import write_pdb
from siamdiff_min.data.store import open_store
from siamdiff_min.protein.protein import Protein


@pytest.fixture
def two_structures(tmp_path, monkeypatch):
    """Two structures in place of the bundle, and a batch of 40 residues."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("1LCD_A", "2BEG"):
        write_pdb(data / f"{name}.pdb", real_protein(name))
    small = Protein.pack([real_protein(dtype=torch.float32).crop(0, 20)] * 2)
    monkeypatch.setattr(speed, "load_batch", lambda level: small)
    monkeypatch.setattr(speed.step, "load_batch", lambda level: small)
    monkeypatch.setattr(speed, "bundle_path", lambda: data)
    monkeypatch.setattr(speed, "open_store", lambda path=data, *more: open_store(path, *more))


@pytest.mark.parametrize(
    "command, said",
    [
        ("step --level residue --size tiny", "proteins/s"),
        ("graph --level residue --sizes 100", "| residue | 2 | 100 |"),
        ("encoders gvp", "per node is"),
        ("reading", "parsing 2 gzip-compressed PDB entries"),
        ("store --proteins 5 --crops 20 --cold", "does not fit into memory: the first 2 crops"),
    ],
)
def test_a_command_comes_to_its_end(command, said, two_structures, capsys):
    speed.main([*command.split(), "--repeats", "1"])
    assert said in capsys.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("command", ["embedding --level residue --size tiny", "ddp --steps 4 -- --level residue"])
def test_a_command_that_starts_processes_comes_to_its_end(command, two_structures, capsys):
    before, *options = command.split(" -- ")
    speed.main([*before.split(), "--repeats", "1", *(["--", *options[0].split()] if options else [])])
    assert "/s" in capsys.readouterr().out


STAND_IN = """
import sys
sys.stdout.write(f"a step of {sys.argv[1]}: {SECONDS} s (1.5 .. 2.5), 4.0 proteins/s\\n")
sys.stdout.write("    peak memory so far 0.50 GB\\n")
"""


STAND_IN_STEP = """
keep_freed_memory = lambda: None
peak_memory = lambda device: 500
def add_options(parser):
    for name in "method", "level", "encoder", "size", "amp":
        parser.add_argument(f"--{name}", nargs="+")
    for name in "preset", "part", "copies", "device":
        parser.add_argument(f"--{name}")
class Step:
    def __init__(self, *about):
        self.seconds = []
    def run(self, number):
        self.seconds.append(SECONDS + number)
"""


def two_commits(folder, monkeypatch, name: str, content: str):
    """A checkout whose commit has a script that says 2 seconds, and whose folder has one that says 1; its git."""

    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@y.z", *words]
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    script = folder / "benchmarks" / name
    script.parent.mkdir()
    script.write_text(content.replace("SECONDS", "2.0"))
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "slow")
    script.write_text(content.replace("SECONDS", "1.0"))
    monkeypatch.setattr(speed.against, "ROOT", folder)
    return git


@pytest.mark.full
def test_steps_of_another_commit_are_taken_in_turns(tmp_path, monkeypatch, capfd):
    """Step n takes 2 + n seconds in the commit and 1 + n in the folder, as both say."""
    git = two_commits(tmp_path, monkeypatch, "step.py", STAND_IN_STEP)
    options = "--method siamdiff --level atom --encoder gearnet --size tiny --amp off --copies 1 --device cpu"
    speed.main(["against", "--in-turns", "HEAD", "step", *options.split(), "--repeats", "3"])
    rows = [line.split(" | ") for line in capfd.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[1][0] == "| siamdiff atom gearnet tiny off, wall, 3 pairs"
    assert rows[1][1:] == ["2.000 s", "3.000 s", "0.667 (0.500 .. 0.750) |"]
    assert rows[3][1:] == ["0.500 GB", "0.500 GB", "1.000 (1.000 .. 1.000) |"]
    assert git("worktree", "list").count("\n") == 1
    with pytest.raises(SystemExit, match="--in-turns is for the command step"):
        speed.main(["against", "--in-turns", "HEAD", "graph"])


def test_another_commit_is_measured_in_turns_and_leaves_nothing(tmp_path, monkeypatch, capfd):
    """A stand-in takes 2 seconds in the commit and 1 in the folder, as it prints."""
    git = two_commits(tmp_path, monkeypatch, "speed.py", STAND_IN)
    speed.main(["against", "--repeats", "2", "HEAD", "fast", "--repeats", "7"])
    rows = [line.split(" | ") for line in capfd.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == [
        "| what",
        "| whole process, CPU",
        "| whole process, wall",
        "| whole process, peak memory",
        "| a step of fast",
        "| peak memory so far",
    ]
    assert rows[4] == ["| a step of fast", "1 s", "2 s", "0.500 (0.500 .. 0.500) |"]
    assert git("worktree", "list").count("\n") == 1
    with pytest.raises(subprocess.CalledProcessError):
        speed.main(["against", "no-such-commit", "fast"])
