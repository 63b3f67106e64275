"""The recipes of docs/extending.md, as printed: files are written as they stand there, commands run for two steps."""

import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", TEXT, flags=re.M | re.S))
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, flags=re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if "--plugin" in line]


def test_every_recipe_has_a_command():
    assert len(FILES) >= 2 and len(COMMANDS) >= 4
    assert all(any(f"--plugin {name}" in command for command in COMMANDS) for name in FILES)


@pytest.mark.repeats
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_recipe_runs_as_printed(command, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    program, script, *options = shlex.split(command)
    assert program == "python"
    options += ["--max-steps", "2", "--num-workers", "0", "--device", "cpu", "--threads", "1", "--out", "run"]
    if script == "train.py":
        with tarfile.open(ROOT / "siamdiff_min/data/bundle/structures.tar") as bundle:
            for member in sorted(bundle.getmembers(), key=lambda m: m.size)[:4]:
                path = tmp_path / "data" / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bundle.extractfile(member).read())
        options += ["--data", "data", "--batch-size", "2", "--valid-fraction", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SIAMDIFF_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, str(ROOT / script), *options]
    result = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    assert list((tmp_path / "run").rglob("metrics.jsonl"))
