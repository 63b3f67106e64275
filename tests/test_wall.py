"""The wall: without siamdiff_min/tools/ everything of the paper runs, and nothing else imports that folder."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers import as_pdb, residue

PACKAGE = Path(__file__).parent.parent / "siamdiff_min"
REFERENCE = [path for path in sorted(PACKAGE.rglob("*.py")) if "tools" not in path.relative_to(PACKAGE).parts]
# Where the reference names a module of tools/: the list of commands; the face, for those who read types too.
LAZY = {"cli.py": "load_module", "finetune.py": "load_module", "__init__.py": "TYPE_CHECKING"}
WORKS = """
import json, sys, torch
from pathlib import Path
from Bio.PDB.Entity import Entity

# An editable install would add what the copy lacks.
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")]
import siamdiff_min
from siamdiff_min import cli

torch.set_num_threads(1)
file, data = sys.argv[1:]
quick = ["--max-steps", "2", "--num-workers", "0", "--threads", "1"]
small = ["--data", f"{data}/valid", "--level", "residue", "--size", "tiny", "--batch-size", "2"]
assert cli.main(["train", *small, *quick, "--valid-fraction", "0.3", "--out", "pre"]) == 0
start = ["--task", "ec", "--data", data, "--init-from", "pre/encoder.pt", "--seeds", "0", "1"]
assert cli.main(["finetune", *start, *quick, "--out", "ec"]) == 0
results = json.load(open("ec/results.json"))
assert results["std"]["fmax"] is not None and len(results["test"]) == 2
assert results["splits"]["test"]["structures"] == results["counts"]["structures"] == 5
again = ["finetune", "--eval-only", "ec/seed-0/best.pt", "--num-workers", "0", "--predict", file]
assert cli.main(again) == 0

encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
protein = siamdiff_min.read_structure(file).protein
assert encoder.embed(protein).mean.shape == (encoder.out_dim,)
assert not hasattr(siamdiff_min, "rank_mutants") and not [name for name in sys.modules if "siamdiff_min.tools" in name]
files = {name: str(Path(file).with_name(name)) for name in ("3JQH.cif.gz", "twice.pdb")}
entity = Entity("x")
assert siamdiff_min.read_structure(files["3JQH.cif.gz"]).protein.num_residues == 23
for given, error in ((entity, siamdiff_min.ConfigError), (files["twice.pdb"], siamdiff_min.StructureError)):
    try:
        siamdiff_min.read_structure(given)
    except error as said:
        print("said:", said)
for command in (["embed", file], ["finetune", "--task", "table", "--labels", "x.tsv"]):
    try:
        cli.main(command)
    except SystemExit as error:
        print("said:", error.code)
    else:
        raise AssertionError(command)
"""


def test_without_tools_everything_of_the_paper_runs(tmp_path, enzymes):
    """Train, fine-tune over two seeds, score again, apply, embed; a command of tools/ ends with a sentence."""
    whole = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "siamdiff_min", ignore=whole)
    shutil.rmtree(tmp_path / "siamdiff_min" / "tools")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    for name in ("1LCD.pdb.gz", "3JQH.cif.gz"):
        shutil.copy(PACKAGE.parent / "tests" / "reading" / name, tmp_path)
    (tmp_path / "twice.pdb").write_text(as_pdb(residue("GLY", 1, segment="X") + residue("GLY", 1, x=50.0, segment="Y")))
    run = [sys.executable, "-c", WORKS, str(tmp_path / "1LCD.pdb.gz"), str(enzymes)]
    done = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    without = "this copy of siamdiff_min is without its folder tools"
    said = re.findall(rf"said: .*?(tools[.\w]+) is not there: {without}", done.stdout)
    assert said == ["tools.formats.biopython", "tools.options", "tools.table.options"]
    assert "the same residue twice (chain A 1)" in done.stdout


def test_the_reference_names_tools_in_lazy_lines_alone():
    for path in REFERENCE:
        text, name = path.read_text(), str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(text)):
            of_tools = isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tools"
            assert not of_tools or (name == "__init__.py" and node.level == 1), f"{name}:{node.lineno}"
            word = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if re.match(r"(siamdiff_min)?\.tools\.\w", word):
                assert name in LAZY and LAZY[name] in text, f"{name}:{node.lineno}"
