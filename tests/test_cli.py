"""`siamdiff COMMAND`: one name for all commands; their help; misspelt options; an old Python."""

import ast
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from siamdiff_min import __version__, cli
from siamdiff_min.downstream.tasks import KINDS, TASKS
from siamdiff_min.encoders import ENCODERS, GEARNET_DIMS
from siamdiff_min.encoders.esm import ESM_SIZES
from siamdiff_min.names import ESM_NAMES, SIZES
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.tools import options
from siamdiff_min.tools.table import options as of_tables
from siamdiff_min.training import config
from siamdiff_min.training.config import FINETUNE, OPTIONS, PRETRAIN, finetune_options, pretrain_options

ROOT = Path(__file__).parents[1]
FOLDERS = ("siamdiff_min", "benchmarks", "studies")
FILES = [*ROOT.glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in FILES
    if '\nif __name__ == "__main__"' in path.read_text()
)


@pytest.fixture
def siamdiff(monkeypatch, capsys):
    """Run a command line; its status, stdout and stderr."""

    def run(*argv):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["/bin/siamdiff", *argv])
        try:
            status = cli.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command, siamdiff):
    """And `train` and `finetune` every option, in a group, with defaults that are 0."""
    status, said, _ = siamdiff(command, "--help")
    assert status == 0 and said.startswith(f"usage: siamdiff {command} ")
    if options := {"train": PRETRAIN, "finetune": FINETUNE}.get(command):
        listed = re.findall(r"^(\w+):$|^  --([\w-]+)", said, re.M)
        groups = [title for title, rows in OPTIONS.items() if any(name in options for _, name, _ in rows)]
        assert [group for group, _ in listed if group] == ["options", *groups]
        assert sorted(name.replace("-", "_") for _, name in listed if name) == sorted(options)
        assert "weight decay of Adam (default: 0.0)" in said and re.search(r"seed[^-]*\(default: 0\)", said)


@pytest.mark.parametrize("module", MODULES)
def test_help_of_everything_that_can_be_run(module, monkeypatch, capsys):
    """The scripts, `python -m siamdiff_min...`, benchmarks and studies."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        warnings.simplefilter("ignore", RuntimeWarning)  # other tests have imported it before
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_the_package_is_a_command(monkeypatch, capsys):
    assert {"train", "finetune"} <= {*MODULES}
    monkeypatch.setattr(sys, "argv", ["siamdiff_min", "--version"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("siamdiff_min", run_name="__main__")
    assert end.value.code == 0 and capsys.readouterr().out == f"siamdiff_min {__version__}\n"


def test_the_list_of_commands(siamdiff):
    status, said, _ = siamdiff("--help")
    assert status == 0 and all(f"  {name} " in said and about in said for name, (*_, about) in cli.COMMANDS.items())
    status, _, said = siamdiff("trian")
    assert status == 2 and "Did you mean train?" in said
    assert siamdiff()[0] == 2


@pytest.mark.parametrize(
    "read, argv, said",
    [
        (pretrain_options, ["--metod", "siamdiff"], "unrecognized arguments: --metod siamdiff. Did you mean --method?"),
        (pretrain_options, ["--max-step=3"], "Did you mean --max-steps?"),
        (pretrain_options, ["--method", "simdiff"], "Did you mean siamdiff?"),
        (finetune_options, ["--task", "psrr"], "Did you mean psr?"),
        (finetune_options, ["--seed", "3"], "Did you mean --seeds?"),
        (options.embed, ["x.pdb", "--check", "y"], "Did you mean --checkpoint?"),
        (options.build, ["x", "--hel"], "Did you mean --help?"),
        (options.report, ["x", "--hel"], "Did you mean --help?"),
        (options.build, ["x", "--clip"], "error: unrecognized arguments: --clip"),  # --help is not near
        (pretrain_options, ["--seed", "x"], "argument --seed: invalid int value: 'x'"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest_if_any_is_near(read, argv, said, capsys):
    """And a part of an option is not taken for it."""
    with pytest.raises(SystemExit) as end:
        read(argv)
    assert end.value.code == 2 and capsys.readouterr().err.rstrip().endswith(said)


SLOW = {"torch", "scipy", "sklearn", "Bio.PDB", "matplotlib"}
WRONG = {  # what cannot be done, of every command -> what is said
    "train --metod x": "Did you mean --method?",
    "train --data nowhere": "nowhere: cannot be opened",
    "train --init-from nowhere": "could not read nowhere",
    "train --esm nowhere --encoder esm-gearnet": "nowhere: cannot be opened",
    "train --resume nowhere": "could not read nowhere",
    "train --method angle --head-dim 8": "--head-dim is for diffpret and siamdiff",
    "train --encoder gearnt": "Did you mean gearnet?",
    "finetune --task ec --ids nowhere": "nowhere: cannot be opened",
    "finetune --eval-only nowhere": "could not read nowhere",
    "finetune --predict nowhere": "nowhere: cannot be opened",
    "finetune --plugin nowhere.py": "--plugin nowhere.py: no such file",
    "finetune --task table --labels table.csv --data .": "table.csv: malformed table",
    "finetune --task table --data .": "needs --labels",
    "finetune --task table --folds 3 --labels x --data .": "--folds 3 needs --freeze",
    "embed nowhere": "nowhere: cannot be opened",
    "embed . --checkpoint nowhere": "could not read nowhere",
    "embed . --out vectors.txt": "is not the name of an .npz or .csv file",
    "mutants nowhere": "nowhere: cannot be opened",
    "mutants table.csv --measured nowhere": "nowhere: cannot be opened",
    "report nowhere": "nowhere: cannot be opened",
    "build nowhere": "nowhere: cannot be opened",
    "color nowhere table.csv": "nowhere: cannot be opened",
}
COLD = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from siamdiff_min import cli
try:
    cli.main(sys.argv[1].split())
except SystemExit as end:
    print(end.code)
print(*sys.modules)
"""


@pytest.mark.parametrize(
    "line", [*(f"{command} --help" for command in cli.COMMANDS), "finetune --task table --help", *WRONG]
)
def test_help_and_what_is_wrong_are_said_before_torch_is_loaded(line, tmp_path):
    """Torch takes two seconds, scikit-learn one more. So no second list of names may differ from the tables."""
    (tmp_path / "table.csv").write_text("a,b\n")
    run = [sys.executable, "-c", COLD, str(ROOT), line]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert WRONG.get(line, "usage: ") in done.stdout + done.stderr
    loaded = done.stdout.splitlines()[-1].split()
    assert "siamdiff_min.cli" in loaded and not SLOW & {*loaded}


def test_the_names_that_are_known_before_torch_are_those_of_the_tables():
    assert (config.METHODS.known, config.ENCODERS.known) == (
        sorted(OBJECTIVES, key=config.METHODS.known.index),
        [*ENCODERS],
    )
    assert (config.TASKS.known, of_tables.KINDS.known) == ([*TASKS], [*KINDS])
    assert (tuple(GEARNET_DIMS), tuple(ESM_SIZES)) == (SIZES, ESM_NAMES)
    assert tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.measures)) == of_tables.METRICS


def test_an_old_python_is_told_in_a_sentence():
    """Before anything is imported that it lacks; it must be able to read as far as that."""
    early = f"import sys; sys.version_info = (3, 9, 18); sys.path.insert(0, {str(ROOT)!r}); import siamdiff_min"
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: siamdiff_min needs Python 3.10 or newer, and this is 3.9\n")
    for file in ("siamdiff_min/__init__.py", "train.py", "finetune.py"):
        ast.parse((ROOT / file).read_text(), feature_version=(3, 9))
