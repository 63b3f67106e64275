"""`siamdiff COMMAND`: one name for all commands; their help; misspelt options; an old Python."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from processes import ROOT, cold, run
from standin import lines

from siamdiff_min import __version__, cli
from siamdiff_min.downstream.tasks import KINDS, TASKS
from siamdiff_min.encoders import ENCODERS, GEARNET_DIMS, weights
from siamdiff_min.encoders.esm import ESM_SIZES
from siamdiff_min.names import ESM_NAMES, SIZES
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.tools import options
from siamdiff_min.tools.table import options as of_tables
from siamdiff_min.training import checkpoint, config
from siamdiff_min.training.config import FINETUNE, OPTIONS, PRETRAIN, finetune_options, pretrain_options

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
    assert status == 2 and "invalid choice: 'trian'" in said
    assert siamdiff()[0] == 2


@pytest.mark.parametrize(
    "read, argv, said",
    [
        (pretrain_options, ["--metod", "siamdiff"], "unrecognized arguments: --metod siamdiff. Did you mean --method?"),
        (pretrain_options, ["--max-step=3"], "Did you mean --max-steps?"),
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
    "train --encoder gearnt": "invalid choice: 'gearnt' (choose from",
    "finetune --eval-only nowhere": "could not read nowhere",
    "finetune --predict nowhere": "nowhere: cannot be opened",
    "finetune --plugin nowhere.py": "--plugin nowhere.py: no such file",
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
import os, sys
sys.path.insert(0, sys.argv[1])
from siamdiff_min import cli
for number, line in enumerate(sys.argv[2:]):
    if os.fork() == 0:  # each line in a process that has loaded nothing yet
        sys.stdout = sys.stderr = open(f"said-{number}", "w")
        try:
            cli.main(line.split())
        except SystemExit as end:
            print(end.code)
        print(*sys.modules)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_help_and_what_is_wrong_are_said_before_torch_is_loaded(tmp_path):
    """Torch takes two seconds, scikit-learn one more. So no second list of names may differ from the tables."""
    (tmp_path / "table.csv").write_text("a,b\n")
    lines = [*(f"{command} --help" for command in cli.COMMANDS), "finetune --task table --help", *WRONG]
    subprocess.run([sys.executable, "-c", COLD, str(ROOT), *lines], cwd=tmp_path, check=True)
    for number, line in enumerate(lines):
        said = (tmp_path / f"said-{number}").read_text()
        assert WRONG.get(line, "usage: ") in said, line
        loaded = said.splitlines()[-1].split()
        assert "siamdiff_min.cli" in loaded and not SLOW & {*loaded}, line


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


# ---- `train.py` as a user runs it ------------------------------------------------------------------------------------


SMALL = "--size tiny --batch-size 2 --max-length 30 --valid-fraction 0.2 --num-workers 1 --device cpu --threads 1"


def train(*argv, **how) -> str:
    return run("train", *SMALL.split(), *argv, **how)


def train_cold(*argv, **how) -> str:
    return cold("train.py", *SMALL.split(), *argv, **how)


@pytest.fixture
def few(enzymes):
    """A folder of eight small chains."""
    return enzymes / "train"


@pytest.mark.full
def test_interrupted_and_resumed_as_documented(tmp_path, few):
    common = ["--method", "siamdiff", "--level", "residue", "--size", "tiny", "--data", few]
    said = train(*common, "--max-steps", 2, "--out", tmp_path / "a")
    assert "encoder.pt" in said
    assert re.search(r"^1      valid  sequence_loss  +[\d.]+ \([\d.]+\)$", said, re.M)  # the summary
    assert re.search(r"valid, \d+ proteins: loss ", said)
    train(*common, "--max-steps", 1, "--out", tmp_path / "b")
    said = train(*common, "--max-steps", 2, "--out", tmp_path / "b")
    assert "resumed from" in said and "at step 1" in said
    a, b = (checkpoint.latest(tmp_path / x)[1]["objective"] for x in "ab")
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert {"loss", "structure_loss", "sequence_loss", "sequence_accuracy"} <= lines(tmp_path / "a")[-1].keys()

    said = train(*common, "--seed", 5, "--out", tmp_path / "b", status=1)
    assert "--seed was 0, is 5" in said
    said = train(*common, "--resume", "never", "--out", tmp_path / "b", status=1)
    assert "b holds checkpoints: choose another --out" in said
    said = train(
        *common, "--max-steps", 2, "--resume", tmp_path / "b" / "checkpoint-000000001.pt", "--out", tmp_path / "c"
    )
    assert "checkpoint-000000001.pt at step 1" in said

    head = weights.load_encoder_file(tmp_path / "a" / "encoder.pt")["seq_mlp"]
    assert len(head) == 6 and all(torch.equal(tensor, a[f"seq_mlp.{name}"]) for name, tensor in head.items())


@pytest.mark.parametrize("ablation", ["none", "no-sequence"])
def test_a_sequence_head_that_has_learned_nothing_is_not_in_the_file(ablation, tmp_path):
    """Scores of mutations would be those of random weights."""
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "tests" / "reading" / "1LCD.pdb.gz", tmp_path / "data")
    options = [
        "--method",
        "siamdiff",
        "--ablation",
        ablation,
        "--level",
        "residue",
        "--size",
        "tiny",
        "--data",
        tmp_path / "data",
    ]
    options += ["--batch-size", 1, "--valid-fraction", 0, "--max-steps", 1]
    said = train(*options, "--out", tmp_path / "run")
    assert "1 proteins to train on, 0 held out" in said and "warning     no protein is held out" in said
    assert ("seq_mlp" in weights.load_encoder_file(tmp_path / "run" / "encoder.pt")) is (ablation == "none")


@pytest.mark.slow
def test_stage_2_from_an_encoder_file(tmp_path, few):
    options = ["--method", "diffpret", "--size", "tiny", "--data", few, "--max-steps", 1]
    train(*options, "--epochs", 5, 0, "--out", tmp_path / "1")
    source = tmp_path / "1" / "encoder.pt"
    said = train(*options, "--epochs", 0, 6, "--init-from", source, "--out", tmp_path / "2")
    assert f"loaded from {source}: encoder.layers" in said and "to be learned: dist_mlp" in said
    assert {line["stage"] for line in lines(tmp_path / "2")} == {2}
    said = train(*options, "--init-from", source, "--preset", "official", "--out", tmp_path / "3", status=1)
    assert f"--preset official, but {source} holds: paper" in said


def test_dry_run_and_errors(tmp_path, few):
    said = train_cold("--dry-run", "--data", few, "--out", tmp_path / "none", "--lr", 0.25)
    assert "parameters" in said and "per epoch" in said and not (tmp_path / "none").exists()
    assert any(line.split() == ["lr", "0.25"] for line in said.splitlines())
    said = train("--dry-run", "--data", few, "--encoder", "esm-gearnet")
    assert ["level", "residue"] in [line.split() for line in said.splitlines()]
    wrong = {
        "--encoder gvp --level residue": "error: the encoder gvp exists at atom level only",
        "--level residue --encoder esm-gearnet-8M": "esm-gearnet-8M is of --size paper",
    }
    if not torch.cuda.is_available():
        wrong["--device cuda"] = "error: --device cuda, but this torch sees no GPU"
    for line, message in wrong.items():
        said = train(*line.split(), "--data", few, status=1)
        assert message in said and "Traceback" not in said


@pytest.mark.slow
def test_changed_data_are_not_resumed(enzymes, tmp_path):
    """Their content decides, and not the name of the folder, as when they have moved."""
    shutil.copytree(enzymes / "train", tmp_path / "data")
    options = "--data", tmp_path / "data", "--out", tmp_path / "out", "--level", "residue", "--size", "tiny"
    train(*options, "--max-steps", 1)
    os.utime(tmp_path / "data" / "1000-A.pdb")  # the store is built anew, with the same content
    assert "at step 1" in train(*options, "--max-steps", 2)
    os.rename(tmp_path / "data", tmp_path / "moved")
    options = "--data", os.path.relpath(tmp_path / "moved", ROOT), *options[2:]
    assert "at step 2" in train(*options, "--max-steps", 3)
    shutil.copy(enzymes / "test" / "1011-A.pdb", tmp_path / "moved" / "1000-A.pdb")
    said = train(*options, "--max-steps", 4, status=1)
    assert "with other data: fingerprint was " in said
    assert "Traceback" not in said


@pytest.mark.full
@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_its_loaders(tmp_path, few):
    """`train` fails after ten minutes: Python waits at its exit for processes that nobody ended."""
    options = ["--method", "diffpret", "--data", few, "--lr", 1e30, "--max-steps", 9, "--num-workers", 2]
    said = train_cold(*options, "--out", tmp_path, status=1)
    assert "the loss is not finite. Proteins: loss" in said
    assert "error: step " in said and "Traceback" not in said
