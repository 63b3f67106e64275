"""The documents: the walkthrough prints what it says, recipes run as printed, and links, paths, commands and options
exist.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import walkthrough
from siamdiff_min import ENCODERS, OBJECTIVES
from siamdiff_min.data.sources import bundle_path
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import FINETUNE, PRETRAIN, flag

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "studies").rglob("*.md")]
PAGES += [ROOT / "benchmarks" / "README.md", ROOT / "tests" / "reliability" / "README.md"]
PAST = {"CHANGELOG.md", "log.md", "plan.md"}  # they name what is no more, or not yet
CURRENT = [page for page in PAGES if page.name not in PAST and "2026-11" not in page.parts]
TEXT = (ROOT / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", TEXT, flags=re.M | re.S))
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TEXT, flags=re.M | re.S)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if "--plugin" in line]


def test_every_recipe_has_a_command():
    assert len(FILES) >= 3 and len(COMMANDS) >= 5
    assert all(any(f"--plugin {name}" in command for command in COMMANDS) for name in FILES)


@pytest.mark.repeats
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_recipe_runs_as_printed(command, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with tarfile.open(bundle_path() / "structures.tar") as bundle:
        few = sorted(bundle.getmembers(), key=lambda m: m.size)[:10]
        for member in few:
            path = tmp_path / "structures" / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bundle.extractfile(member).read())
    splits = ("train", "valid", "test")
    rows = [f"{Path(member.name).name}\t{k}\t{splits[k % 3]}\n" for k, member in enumerate(few)]
    (tmp_path / "labels.tsv").write_text("name\tvalue\tsplit\n" + "".join(rows))
    program, script, *options = shlex.split(command)
    assert program == "python"
    options += ["--max-steps", "2", "--num-workers", "0", "--device", "cpu", "--threads", "1", "--out", "run"]
    if script == "train.py":
        options += ["--data", "structures", "--batch-size", "2", "--valid-fraction", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SIAMDIFF_CACHE": str(tmp_path / "cache")}
    run = [sys.executable, str(ROOT / script), *options]
    result = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    assert list((tmp_path / "run").rglob("metrics.jsonl"))


@pytest.mark.slow
def test_mutations_and_neighbours_run_as_printed(tmp_path):
    """The wild type scores 0 everywhere, the others less; of two copies of a chain each finds the other first."""
    files = dict(re.findall(r"<!-- run: (\w+\.py) -->\n```python\n(.*?)^```$", TEXT, flags=re.M | re.S))
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        data = archive.extractfile("5PTI_A.pdb.gz").read()
    (tmp_path / "5PTI_A.pdb.gz").write_bytes(data)
    x = np.random.default_rng(0).normal(size=(6, 4))
    np.savez(tmp_path / "e.npz", id=np.array(list("abcdef")), mean=np.concatenate([x[:5], x[:1]]))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    said = {}
    for name, arguments in (("mutations.py", ("siamdiff-residue", "5PTI_A.pdb.gz")), ("nearest.py", ("e.npz", "a"))):
        (tmp_path / name).write_text(files[name])
        run = [sys.executable, name, *arguments]
        result = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr[-2000:]
        said[name] = result.stdout
    assert said["nearest.py"].splitlines()[0] == "+1.00 f" and len(said["nearest.py"].splitlines()) == 6
    header, *lines = (line.split("\t") for line in (tmp_path / "mutations.tsv").read_text().splitlines())
    wild = read_structure("5PTI_A", data).protein.residue_type.tolist()
    assert [float(line[1 + kind]) for line, kind in zip(lines, wild)] == [0.0] * len(wild) and len(header) == 21
    assert np.mean([[float(cell) for cell in line[1:]] for line in lines]) < -0.5
    assert (tmp_path / "mutations.png").stat().st_size > 1000


# ---- the walkthrough -------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?\d+\.\d+")


@pytest.fixture(scope="module")
def page():
    return walkthrough.run_page()


def test_the_walkthrough_prints_what_it_says(page):
    """Word for word, but for the last digits of numbers with a decimal point."""
    _, printed, said = page
    assert len(said.splitlines()) > 15
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", said)
    found, expected = ([float(x) for x in NUMBER.findall(text)] for text in (printed, said))
    assert found == pytest.approx(expected, rel=0.01, abs=0.011)


def test_the_pictures_of_the_walkthrough_are_drawn(page, tmp_path, capsys):
    walkthrough.draw(page[0], tmp_path)
    shown = re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "docs" / "walkthrough.md").read_text())
    assert sorted(shown) == sorted(path.name for path in tmp_path.iterdir()) and len(shown) == 4


def test_the_loss_in_python_runs_as_the_readme_prints_it(tmp_path):
    text = re.search(r"<!-- run -->\n```python\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.M | re.S)[1]
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        (tmp_path / "1abc.cif.gz").write_bytes(archive.extractfile("5PTI_A.pdb.gz").read())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", text + "print(float(loss))"]
    result = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert 1 < float(result.stdout) < 100


# ---- links, paths, commands ------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The names of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_the_links_are_seen():
    assert sum(len(re.findall(r"\]\([^)\s:]+\)", without_code(page.read_text()))) for page in PAGES) > 60


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page):
    """Paths that begin with a folder of the repository."""
    folders = "benchmarks|docs|siamdiff_min|studies|tests"
    for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w/?)", page.read_text()):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def commands() -> list[tuple[str, str]]:
    """Every command of the pages: (page, text), in blocks and in a line."""
    found = []
    for page in CURRENT:
        text = page.read_text().replace("\\\n", " ")
        parts = re.findall(r"^```(?:bash|)\n(.*?)^```$", text, flags=re.M | re.S)
        lines = [line for part in parts for line in part.splitlines()]
        lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
        for line in lines:
            line = line.partition(" # ")[0].rpartition("&& ")[2]
            if re.match(r"(python |torchrun |siamdiff-)", line):
                found.append((page.name, line))
    return found


COMMANDS_OF_PAGES = commands()
INSTALLED = dict(re.findall(r'^(siamdiff-\w+) = "(.+):main"$', (ROOT / "pyproject.toml").read_text(), flags=re.M))


def source_of(words: list[str]) -> str | None:
    """The text of the program that a command runs, None if it is not ours."""
    if words[0] in INSTALLED:
        return Path(importlib.util.find_spec(INSTALLED[words[0]]).origin).read_text()
    if "-m" in words[:4]:
        name = words[words.index("-m") + 1]
        if name in ("pytest", "pydoc", "venv"):
            return None
        spec = importlib.util.find_spec(name)
        assert spec and not spec.submodule_search_locations, f"python -m {name}"
        return Path(spec.origin).read_text()
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    return None if script in (None, "own.py", "mutations.py", "nearest.py") else (ROOT / script).read_text()


@pytest.mark.parametrize(("page", "command"), COMMANDS_OF_PAGES, ids=[c for _, c in COMMANDS_OF_PAGES])
def test_commands_and_their_options_exist(page, command):
    words = shlex.split(command.replace("...", ""))
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    if {"train.py", "finetune.py"} & set(words):
        script = "train.py" if "train.py" in words else "finetune.py"
        known = {flag(name) for name in (PRETRAIN if script == "train.py" else FINETUNE)} | {"--help"}
        assert given - {"--nproc_per_node", "--nnodes", "--rdzv_backend", "--rdzv_endpoint"} <= known, page
        options = PRETRAIN if script == "train.py" else FINETUNE
        for name in ("method", "task", "encoder", "size", "level", "ablation"):
            if flag(name) in words and name in options and "--plugin" not in words:
                value = words[words.index(flag(name)) + 1]
                assert value in options[name].about["choices"] or not value.isidentifier(), f"{page}: {value}"
    elif (text := source_of(words)) is not None:
        for option in given - {"--help"}:
            assert f'"{option}"' in text or "add_options" in text or "step" in words, f"{page}: {option}"


def test_the_commands_are_seen():
    assert len(COMMANDS_OF_PAGES) > 50
    assert not {"--stages", "--batch-nodes"} & {flag(name) for name in PRETRAIN}  # usage.md says that they are gone


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_a_sentence_exist(page):
    """`--option` alone in backticks is one of some program of ours, unless the page says that it is gone."""
    text = page.read_text().partition("## Options that are gone")[0]
    programs = [*ROOT.glob("*.py"), *(ROOT / "siamdiff_min").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    known = {flag(name) for name in (*PRETRAIN, *FINETUNE)} | {"--help"}
    known |= set(re.findall(r"\"(--[\w-]+)\"", "".join(path.read_text() for path in programs)))
    for option in re.findall(r"`(--[\w-]+)", text):
        assert option in known, f"{page.name}: {option}"


# ---- what the pages list ---------------------------------------------------------------------------------------------


def test_every_key_of_metrics_is_explained():
    """docs/usage.md names whatever an objective or a task logs, and what a line has besides."""
    text = (ROOT / "docs" / "usage.md").read_text().partition("## Every key of metrics.jsonl")[2]
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        data = archive.extractfile("5PTI_A.pdb.gz").read()
    protein = read_structure("5PTI_A", data).protein.crop(0, 20)
    names = {"step", "epoch", "stage", "split", "seconds", "lr", "loss", "peak_memory_mb", "proteins_per_second"}
    names |= {"global_spearman", "mean_spearman", "samples_per_second"}
    names |= {name for kind in FINETUNE["metric"].about["choices"] for name in [kind]}
    for objective in OBJECTIVES.values():
        made = objective(ENCODERS["gearnet"]("atom", "tiny"), "atom")
        names |= made(Protein.pack([protein, protein]), torch.Generator().manual_seed(0))[1].keys()
    assert len(names) > 35
    for name in names:
        assert f"{name.removesuffix('_constant')}" in text, name
    assert "..._constant" in text


def test_names_in_differences_exist():
    """Names of the last column are fields of Conventions, or stand in the package."""
    text = "".join(path.read_text() for path in (ROOT / "siamdiff_min").rglob("*.py"))
    table = [line for line in (ROOT / "docs" / "differences.md").read_text().splitlines() if line.startswith("| ")]
    names = [name for line in table for name in re.findall(r"`([A-Za-z_.]+)`", line.rpartition(" | ")[2] or line)]
    assert len(names) > 25
    for name in names:
        assert re.search(rf"\b{name.split('.')[-1]}\b", text), name


WORDS = {  # each page says what it has to say in about so many
    "README.md": 1100,
    "CONTRIBUTING.md": 350,
    "docs/walkthrough.md": 1500,
    "docs/architecture.md": 500,
    "docs/differences.md": 1300,
    "docs/usage.md": 1300,
    "docs/data.md": 650,
    "docs/extending.md": 1100,
    "docs/encoders.md": 450,
    "docs/results.md": 1500,
    "docs/performance.md": 1100,
    "docs/reliability.md": 700,
}


@pytest.mark.parametrize("name", WORDS)
def test_pages_stay_short(name):
    assert len((ROOT / name).read_text().split()) <= 1.1 * WORDS[name]
