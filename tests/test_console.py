"""The frame of all commands: outputs that are closed or full, misspelt options, an old Python."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from siamdiff_min import build, embed, report
from siamdiff_min.files import Parser
from siamdiff_min.training.config import finetune_options, pretrain_options

ROOT = Path(__file__).parents[1]
PROGRAM = """
import importlib.util, sys
from tqdm import tqdm
spec = importlib.util.spec_from_file_location("files", sys.argv[1])  # without torch, which loads slowly
files = importlib.util.module_from_spec(spec)
spec.loader.exec_module(files)
with files.console():
    print("a message")
    sys.stdout.flush()
    for _ in tqdm(range(3)):
        tqdm.write("another")
    print("to stderr", file=sys.stderr)
    with open("result", "x") as file:
        file.write("whole")
    if sys.argv[2:]:
        raise files.SiamDiffError("the reason")
"""
EVERY = [f"{out} {err}" for out in ("", ">&-", ">/dev/full") for err in ("", "2>&-", "2>/dev/full")] + ["<&- >&- 2>&-"]


@pytest.mark.parametrize(
    "outputs", [pytest.param(x, marks=() if x in (">/dev/full ", ">&- 2>&-") else pytest.mark.full) for x in EVERY]
)
def test_outputs_that_are_full_or_closed_change_no_result(outputs, tmp_path):
    """They ended in tracebacks, or in status 120; and a file that was opened got what others print."""
    if "full" in outputs and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    (tmp_path / "program.py").write_text(PROGRAM)
    for argument, status in (("", 0), ("fail", 1)):
        command = f"{sys.executable} program.py {ROOT}/siamdiff_min/files.py {argument} {outputs}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
        said = done.stdout + done.stderr
        assert done.returncode == status and (tmp_path / "result").read_text() == "whole", said
        assert "Traceback" not in said and "Exception ignored" not in said, said
        if "2>" not in outputs:
            assert (status == 0) == ("error: the reason" not in said)
            lost = "warning: messages to stdout were lost: No space left on device" in said
            assert lost == (">/dev/full" in outputs), said
        if ">&-" not in outputs and ">/dev/full" not in outputs:
            assert done.stdout.startswith("a message\n") and done.stdout.count("another") == 3
        (tmp_path / "result").unlink()


@pytest.mark.parametrize(
    "read, argv, said",
    [
        (pretrain_options, ["--metod", "siamdiff"], "unrecognized arguments: --metod siamdiff. Did you mean --method?"),
        (pretrain_options, ["--epoch", "3"], "unrecognized arguments: --epoch 3. Did you mean --epochs?"),
        (pretrain_options, ["--max-step=3"], "Did you mean --max-steps?"),
        (pretrain_options, ["--method", "simdiff"], "Did you mean siamdiff?"),
        (finetune_options, ["--task", "psrr"], "Did you mean psr?"),
        (finetune_options, ["--seed", "3"], "Did you mean --seeds?"),
        (embed.main, ["x.pdb", "--check", "y"], "Did you mean --checkpoint?"),
        (embed.main, ["x.pdb", "--include", "per-residue"], "Did you mean per_residue?"),
        (build.main, ["x", "--hel"], "Did you mean --help?"),
        (report.main, ["x", "--hel"], "Did you mean --help?"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(read, argv, said, capsys):
    """And a part of an option is not taken for it."""
    with pytest.raises(SystemExit) as end:
        read(argv)
    assert end.value.code == 2 and capsys.readouterr().err.rstrip().endswith(said)


@pytest.mark.parametrize("argv", [["--option", "far"], ["--zzz"], ["surplus"], ["--number", "x"]])
def test_nothing_is_proposed_if_nothing_is_near(argv, capsys):
    parser = Parser()
    parser.add_argument("--option", choices=("one", "two"))
    parser.add_argument("--number", type=int)
    with pytest.raises(SystemExit):
        parser.parse_args(argv)
    assert "error: " in (said := capsys.readouterr().err) and "Did you mean" not in said


def test_an_old_python_is_told_in_a_sentence():
    """Before anything is imported that it lacks; it must be able to read as far as that."""
    early = f"import sys; sys.version_info = (3, 9, 18); sys.path.insert(0, {str(ROOT)!r}); import siamdiff_min"
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: siamdiff_min needs Python 3.10 or newer, and this is 3.9\n")
    ast.parse((ROOT / "siamdiff_min" / "__init__.py").read_text(), feature_version=(3, 9))
    for command in ("train.py", "finetune.py"):
        tree = ast.parse((ROOT / command).read_text(), feature_version=(3, 9))
        imported = [name for node in tree.body for name in _modules(node)]
        assert next(name for name in imported if name not in sys.stdlib_module_names) == "siamdiff_min"


def _modules(node) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return ["siamdiff_min" if node.level else node.module.partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names] if isinstance(node, ast.Import) else []
