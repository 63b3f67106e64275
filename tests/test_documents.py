"""The documents: the walkthrough prints what it says, recipes run as printed, and links, paths, commands and options
exist.
"""

import gzip
import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import real_protein
from processes import TWO_RANKS, run

import siamdiff_min
from benchmarks import api, pictures, walkthrough
from benchmarks.pdb import write_pdb
from siamdiff_min import ENCODERS, OBJECTIVES
from siamdiff_min.cli import COMMANDS as INSTALLED
from siamdiff_min.encoders import GEARNET_DIMS
from siamdiff_min.pretraining import SCHEDULES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_path
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools import color
from siamdiff_min.training.config import FINETUNE, PRETRAIN, flag

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "studies").rglob("*.md")]
PAGES += [ROOT / folder / "README.md" for folder in ("findings", "siamdiff_min/reading/bundle", "tests/golden")]
PAGES += [EXAMPLES / "libraries.md", ROOT / "benchmarks" / "measured.md"]
PAST = {"CHANGELOG.md", "tried.md", "plan.md"}  # they name what is no more, or not yet
ENDED = {"2026-11", "2026-11-benchmarks", "2026-11-scale"}  # studies, whose pages name commands as they were run
CURRENT = [page for page in PAGES if page.name not in PAST and not ENDED & {*page.parts}]
TEXT = (ROOT / "docs" / "extending.md").read_text()
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall("^python .*--plugin.*$", TEXT, flags=re.M)


def blocks_of(text: str, marker: str, language: str = "python") -> list:
    """The blocks of a page below a comment, `<!-- MARKER -->`, or all of a language."""
    above = f"<!-- {marker} -->\n" if marker else ""
    return re.findall(rf"^{above}```{language}\n(.*?)^```$", text, flags=re.M | re.S)


def unpack_bundle(folder: Path, number: int) -> list[Path]:
    """The smallest bundled structures, in the folder."""
    folder.mkdir()
    with tarfile.open(bundle_path() / "structures.tar") as bundle:
        members = sorted((member for member in bundle if member.isfile()), key=lambda member: member.size)[:number]
        for member in members:
            (folder / Path(member.name).name).write_bytes(bundle.extractfile(member).read())
    return [folder / Path(member.name).name for member in members]


def test_every_example_stands_on_a_page():
    assert len(COMMANDS) >= 5
    pages = "".join(page.read_text() for page in PAGES)
    for path in EXAMPLES.glob("*.py"):
        assert f"examples/{path.name}" in pages, path
        assert path.name[:3] != "my_" or path.stem == "my_source" or any(f"/{path.name} " in x for x in COMMANDS), path


@pytest.mark.repeats
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_recipe_runs_as_printed(command, tmp_path):
    (tmp_path / "examples").symlink_to(EXAMPLES)
    few, splits = unpack_bundle(tmp_path / "structures", 10), ("train", "valid", "test")
    rows = [f"{path.name}\t{k}\t{splits[k % 3]}\n" for k, path in enumerate(few)]
    (tmp_path / "labels.tsv").write_text("name\tvalue\tsplit\n" + "".join(rows))
    program, script, *options = shlex.split(command)
    assert program == "python"
    options += ["--max-steps", "2", "--num-workers", "0", "--device", "cpu", "--threads", "1", "--out", "run"]
    if script == "train.py":
        options += ["--data", "structures", "--batch-size", "2", "--valid-fraction", "0"]
    run("script in", tmp_path, script, *options, SIAMDIFF_CACHE=tmp_path / "cache")
    assert list((tmp_path / "run").rglob("metrics.jsonl"))


def test_a_gearnet_of_another_size_saves_and_loads(tmp_path, monkeypatch):
    monkeypatch.setitem(SCHEDULES["paper"], 1, SCHEDULES["paper"][1])
    try:
        runpy.run_path(str(EXAMPLES / "my_gearnet.py"))
        encoder, protein = ENCODERS["wide"]("residue").eval(), real_protein("2BEG", torch.float32)
        encoder.save(tmp_path / "wide.pt")
        again = siamdiff_min.load_encoder(tmp_path / "wide.pt", "cpu")
    finally:
        ENCODERS.pop("wide", None)
    assert torch.equal(again(protein).node, encoder(protein).node) and again.layer_dims == [192] * 4
    assert (again.builder.radius, again.builder.num_neighbors) == (8.0, 20) and SCHEDULES["paper"][1].steps == 500


def recipe(name: str, folder: Path, *arguments) -> str:
    """What a script of docs/extending.md as it is printed, or one of the examples, prints."""
    printed = blocks_of(TEXT, f"run: {name}")
    (folder / name).write_text(printed[0] if printed else (EXAMPLES / name).read_text())
    return run("script in", folder, name, *arguments)


def test_a_source_of_ones_own_is_a_store_to_train_on(tmp_path):
    for k, size in enumerate((12, 30)):
        turn = np.arange(size) * np.radians(100)  # a helix: 1.5 angstrom and 100 degrees for each residue
        ca = np.stack([2.3 * np.cos(turn), 2.3 * np.sin(turn), 1.5 * np.arange(size) + k], axis=1)
        np.savez(tmp_path / f"p{k}.npz", ca=ca, sequence="AG" * (size // 2))
    (tmp_path / "bad.npz").write_text("no numbers")
    store = open_store(recipe("my_source.py", tmp_path, tmp_path).splitlines()[-1])
    assert store.names == ["p0", "p1"]
    assert [store[i].num_residues for i in (0, 1)] == [12, 30]
    assert store.positions(0)[0] == ("A", 1, " ")
    np.savez(tmp_path / "p0.npz", ca=ca[:8], sequence="AG" * 4)  # as many files, another content
    again = open_store(recipe("my_source.py", tmp_path, tmp_path).splitlines()[-1])
    assert again.path != store.path
    assert [again[i].num_residues for i in (0, 1)] == [8, 30]


# ---- the walkthrough -------------------------------------------------------------------------------------------------

NUMBER = re.compile(r"[-+]?\d+\.\d+")


def assert_says(printed: str, said: str, within: float, lines: int) -> None:
    """Word for word, but for the last digits of numbers with a decimal point."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", said) and len(said.splitlines()) >= lines
    found, expected = ([float(x) for x in NUMBER.findall(text)] for text in (printed, said))
    assert found == pytest.approx(expected, rel=0.01, abs=within)


def test_the_walkthrough_prints_what_it_says():
    _, printed, said = walkthrough.run_page()
    assert_says(printed, said, 0.011, 16)


@pytest.mark.full
def test_the_pictures_of_the_pages_are_drawn(tmp_path):
    """All that docs/ shows; the figure of Algorithm 1 with the words of the published one; no internal run."""
    pytest.importorskip("matplotlib")
    pictures.main(["--out", str(tmp_path)])
    docs = ROOT / "docs"
    shown = {*re.findall(r"docs/([\w-]+\.(?:png|svg))", "".join(page.read_text() for page in PAGES))}
    shown |= {*re.findall(r"\]\(([\w-]+\.(?:png|svg))", "".join(page.read_text() for page in docs.glob("*.md")))}
    assert {path.name for path in tmp_path.iterdir()} == shown == {path.name for path in docs.glob("*.[ps][nv]g")}
    drawn, published = ({*re.findall("<!-- (.*?) -->", (x / "algorithm.svg").read_text())} for x in (tmp_path, docs))
    assert drawn == published and len(drawn) > 10
    folders = [ROOT / "studies" / folder for folder in pictures.PROBED]
    rows = pictures.rows_of(pictures.read_all(folders), "atom")
    labels = [label for *_, label in rows]
    assert labels[-1] == "siamdiff-atom, in the package (1 run)" and not any("begin" in label for label in labels)


@pytest.mark.parametrize("block", blocks_of(README, "run"))
def test_python_of_the_readme_runs_as_printed(block, tmp_path):
    """In a folder of its own."""
    block += "print(len(embedding.sequence) if 'embedding' in globals() else loss.item())"
    (tmp_path / "block.py").write_text(block)
    assert 1 < float(run("script in", tmp_path, "block.py")) < 100  # a loss, or the residues of a chain


# ---- pages of recipes ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files that the recipes name, where they run."""
    monkeypatch.chdir(tmp_path)
    smallest, *_ = unpack_bundle(Path("structures"), 5)
    shutil.copy(smallest, "1abc.cif.gz")
    return tmp_path


IN_PYTHON = (ROOT / "docs" / "python.md").read_text() + (EXAMPLES / "libraries.md").read_text()
RECIPES = {name: blocks_of(IN_PYTHON, f"run: {name}.py")[0] for name in re.findall(r"<!-- run: (\w+)\.py", IN_PYTHON)}


def run_recipe(name: str) -> dict:
    path = Path(f"{name}.py")
    path.write_text(RECIPES[name])
    return runpy.run_path(str(path))


def run_alone(name: str, check: str, *launcher: str) -> str:
    """What a recipe and a check behind it print in a process of their own, as libraries register things and warn."""
    Path("recipe.py").write_text(RECIPES[name] + check)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, *launcher, "recipe.py"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_recipes_in_python_run_as_printed(folder, capsys):
    """All that need nothing but the package."""
    own = {"chains", "compiled", "confident", "frames", "loop"}
    assert RECIPES.keys() == own | OTHER_LIBRARIES.keys()
    start = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
    run_recipe("loop")
    mine = siamdiff_min.load_encoder("mine.pt", "cpu")
    assert mine.identity == start.identity and mine.state_dict().keys() == start.state_dict().keys()
    assert not torch.equal(mine.layers[0].linear.weight, start.layers[0].linear.weight)

    made = run_recipe("frames")
    with torch.inference_mode():
        alone = made["encoder"](replace(made["protein"], pos=made["frames"][3])).residue
    assert made["per_frame"].shape == (10, *alone.shape) and torch.allclose(made["per_frame"][3], alone, atol=1e-4)

    text = gzip.decompress(Path("1abc.cif.gz").read_bytes()).decode()
    atoms = [line for line in text.splitlines() if line.startswith("ATOM")]
    unsure = [f"{line[:60]} {90 - 60 * (line[25] == '3')}.00{line[66:]}" for line in atoms]  # residues 3, 13, ...
    Path("1abc.cif.gz").write_bytes(gzip.compress("\n".join(unsure).encode()))
    made = run_recipe("confident")
    number = made["embedding"].residue_number
    assert made["confident"].tolist() == [k % 10 != 3 for k in number] and not made["confident"].all()
    assert np.allclose(made["mean"], made["embedding"].per_residue[number % 10 != 3].mean(0))

    write_pdb(Path("complex.pdb"), real_protein("2BEG", torch.float32))
    run_recipe("chains")
    said = re.findall(r"chain \w: 26 residues, cosine to itself alone (0\.\d+)", capsys.readouterr().out)
    assert len(said) == 5 and all(0 < float(cosine) < 1 for cosine in said)


OTHER_LIBRARIES = {  # recipe -> what it needs, and what has to hold behind it
    "lora": (["peft"], """
with torch.no_grad():
    merged, loaded = encoder(proteins[0]).residue, again(proteins[0]).residue
assert type(encoder).__name__ == "GearNet" and torch.allclose(merged, loaded, atol=1e-4)
plain = siamdiff_min.load_encoder("siamdiff-residue", "cpu")(proteins[0]).residue
assert not torch.allclose(merged, plain, atol=1e-3)
"""),
    "lightning_loop": (["lightning"], """
saved = siamdiff_min.load_encoder("mine.pt", "cpu").state_dict()
start = siamdiff_min.load_encoder("siamdiff-residue", "cpu").state_dict()
assert not torch.equal(saved["layers.0.batch_norm.running_mean"], start["layers.0.batch_norm.running_mean"])
"""),
    "accelerated": (["accelerate"], """
assert accelerator.num_processes == 2
if accelerator.is_main_process:
    saved = siamdiff_min.load_encoder("mine.pt", "cpu").state_dict()
    start = siamdiff_min.load_encoder("siamdiff-residue", "cpu").state_dict()
    assert saved.keys() == start.keys()
    assert not torch.equal(saved["layers.0.linear.weight"], start["layers.0.linear.weight"])
"""),
    "exported": ([], """
assert torch.allclose(program.module()(protein, graph).residue, encoder(protein, graph).residue, atol=1e-4)
"""),
    "sharded": ([], """
if rank == 0:
    saved = siamdiff_min.load_encoder("mine.pt", "cpu").state_dict()
    start = siamdiff_min.load_encoder("siamdiff-residue", "cpu").state_dict()
    assert saved.keys() == start.keys()
    assert not torch.equal(saved["layers.0.linear.weight"], start["layers.0.linear.weight"])
"""),
    "mdtraj_frames": (["mdtraj"], """
assert np.allclose(vectors, encoder.embed("run.pdb").per_residue, atol=1e-3)  # nanometres in float32 round
"""),
    "hub": (["huggingface_hub", "safetensors"], """
assert all(torch.equal(x, again.state_dict()[name]) for name, x in encoder.state_dict().items())
"""),
    "board": (["tensorboard"], """
from pathlib import Path
assert list(Path("board").iterdir())
"""),
    "curve": (["pandas", "matplotlib"], """
from pathlib import Path
assert Path("loss.png").stat().st_size > 1000
"""),
    "vectors": (["faiss", "anndata"], """
assert rows[0, 0] == 0 and abs(cosines[0, 0] - 1) < 1e-5
assert np.array_equal(anndata.read_h5ad("embeddings.h5ad").X, vectors)
"""),
}  # fmt: skip
TWO_PROCESSES = ("accelerated", "sharded")


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_LIBRARIES)
def test_recipes_with_other_libraries_run_as_printed(name, folder):
    packages, check = OTHER_LIBRARIES[name]
    for package in packages:
        pytest.importorskip(package)
    found = siamdiff_min.load_encoder("siamdiff-residue", "cpu").embed("structures")
    np.savez("embeddings.npz", id=[e.id for e in found], mean=[e.mean for e in found])
    lines = [{"step": 20, "split": "train", "loss": 3.5}, {"step": 40, "split": "valid", "loss": 3.25}]
    Path("metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if name == "mdtraj_frames":
        import mdtraj

        write_pdb(Path("run.pdb"), siamdiff_min.bundled("1FFW").protein)
        mdtraj.load("run.pdb").save_xtc("run.xtc")
    run_alone(name, check, *(TWO_RANKS if name in TWO_PROCESSES else ()))


@pytest.mark.soak  # a minute of C++
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_torch_compile_runs_as_printed(folder):
    check = "print(float((encoder(protein).residue - encoding.residue).abs().max()))\n"
    assert float(run_alone("compiled", check).split()[-1]) < 1e-4


def test_the_page_on_gearnets_weights_runs_and_prints_what_it_says(folder, monkeypatch, capsys):
    """With a file of torchdrug's engine and random weights, of less width than the published ones."""
    monkeypatch.setitem(GEARNET_DIMS, "paper", {"residue": [32] * 6, "atom": [128] * 6})
    state = ENCODERS["gearnet"]("residue", "paper", "official").state_dict()
    torch.save({"model": {f"model.{name}": x for name, x in state.items()}, "optimizer": {}}, "mc_gearnet_edge.pth")
    page = (ROOT / "docs" / "encoders.md").read_text()
    (said,) = blocks_of(page, "", "text")
    Path("gearnet.py").write_text("\n".join(blocks_of(page, "run")))
    with pytest.warns(UserWarning, match="mc_gearnet_edge.pth names no preset"):
        runpy.run_path("gearnet.py")
    runpy.run_path(EXAMPLES / "check_input.py")
    assert_says(capsys.readouterr().out, said, 0.11, 6)


def test_the_notebook_is_the_page(tmp_path):
    page, book = walkthrough.DOCS / "walkthrough.md", tmp_path / "walkthrough.ipynb"
    walkthrough.main(["--notebook", str(book)])
    cells = json.loads(book.read_text())["cells"]
    blocks = walkthrough.BLOCK.findall(page.read_text())
    code = ["".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"]
    assert code == [text for kind, text in blocks if kind == "python"]
    said = ["".join(cell["outputs"][0]["text"]) + "\n" for cell in cells if cell.get("outputs")]
    assert said == [text for kind, text in blocks if kind == "text"] and len(said) > 5


# ---- links, paths, commands ------------------------------------------------------------------------------------------


def without_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", without_blocks(text))


def anchors(page: Path) -> set[str]:
    """The names of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page.read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page):
    """A path is a word that begins with a folder of the repository."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"
    folders = "benchmarks|docs|siamdiff_min|studies|tests"
    for path in re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./-]*\w/?)", page.read_text() if page in CURRENT else ""):
        assert (ROOT / path).exists(), f"{page.name}: {path}"


def commands() -> list[tuple[str, str]]:
    """Every command of the pages: (page, text), in blocks and in a line."""
    found = []
    for page in CURRENT:
        text = page.read_text().replace("\\\n", " ")
        lines = "".join(blocks_of(text, "", "(?:bash|)")).splitlines()
        lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", without_blocks(text))
        for line in lines:
            line = line.partition(" # ")[0].rpartition("&& ")[2]
            if re.match(r"(python|torchrun|siamdiff) ", line):
                found.append((page.name, line))
    return found


COMMANDS_OF_PAGES = commands()
OURS = [command.split() for _, command in COMMANDS_OF_PAGES if command.startswith("siamdiff ")]


def source_of(words: list[str]) -> str | None:
    """The text of the program that a command runs, None if it is not ours."""
    if words[0] == "siamdiff":
        module = INSTALLED[words[1]][0].partition(":")[0]  # which reads its options
        return Path(importlib.util.find_spec(module, "siamdiff_min").origin).read_text()
    if "-m" in words[:4]:
        name = words[words.index("-m") + 1]
        if name in ("pytest", "pydoc", "venv"):
            return None
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{name}.__main__")
        assert spec, f"python -m {name}"
        return Path(spec.origin).read_text()
    script = next((word for word in words[1:] if word.endswith(".py")), None)
    return None if script is None else (ROOT / script).read_text()


def test_commands_and_their_options_exist():
    for page, command in COMMANDS_OF_PAGES:
        check_command(f"{page}: {command}", shlex.split(command.replace("...", "")))


def check_command(page: str, words: list[str]) -> None:
    """Of the command of a page: its program, options (those of a recipe too), and choices."""
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    options = {"train": PRETRAIN, "finetune": FINETUNE}
    script = next((name for name in options if f"{name}.py" in words or words[:2] == ["siamdiff", name]), None)
    if script:
        options = options[script]
        of_recipe = re.findall(r'^PRETRAIN\["(\w+)"\]', (EXAMPLES / "my_objective.py").read_text(), flags=re.M)
        known = {flag(name) for name in (*options, *of_recipe)} | {"--help"}
        assert given - {"--nproc_per_node", "--nnodes", "--rdzv_backend", "--rdzv_endpoint"} <= known, page
        for name in ("method", "task", "encoder", "size", "level", "ablation"):
            if flag(name) in words and name in options and "--plugin" not in words:
                value = words[words.index(flag(name)) + 1]
                assert value in options[name].arguments["choices"] or not value.isidentifier(), f"{page}: {value}"
    elif (text := source_of(words)) is not None:
        for option in given - {"--help"}:
            assert f'"{option}"' in text or "add_options" in text or "step" in words, f"{page}: {option}"


def test_the_commands_are_seen():
    assert len(COMMANDS_OF_PAGES) > 50 and {words[1] for words in OURS} == INSTALLED.keys()
    assert not {"--stages", "--batch-nodes"} & {flag(name) for name in PRETRAIN}  # they are gone


def test_options_in_a_sentence_exist():
    """`--option` alone in backticks is one of some program of ours."""
    programs = [*ROOT.glob("*.py"), *(ROOT / "siamdiff_min").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    known = {flag(name) for name in (*PRETRAIN, *FINETUNE)} | {"--help"}
    known |= set(re.findall(r"\"(--[\w-]+)\"", "".join(path.read_text() for path in programs)))
    assert {*re.findall(r"`(--[\w-]+)", "".join(page.read_text() for page in CURRENT))} - known == set()


# ---- what the pages list ---------------------------------------------------------------------------------------------


def test_the_page_of_public_names_is_made_of_the_docstrings():
    """All of them are there; if this fails: `python -m benchmarks.api > docs/api.md`."""
    page = (ROOT / "docs" / "api.md").read_text()
    assert page == api.page()
    assert {name for name in siamdiff_min.__all__ if f"* `{name}" not in page} == set()


def test_every_promise_names_tests_that_exist():
    """In the table of docs/reliability.md."""
    rows = re.findall(r"^\| .* \| (`.*`) \|$", (ROOT / "docs" / "reliability.md").read_text(), flags=re.M)
    named = [name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]
    assert len(rows) > 10 and len(named) >= len(rows)
    assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_every_key_of_metrics_is_explained():
    """docs/outputs.md names whatever an objective or a task logs, and what a line has besides."""
    text = (ROOT / "docs" / "outputs.md").read_text().partition("## Every key of metrics.jsonl")[2]
    protein = siamdiff_min.bundled("5PTI_A").protein.crop(0, 20)
    names = {"step", "epoch", "stage", "split", "seconds", "cpu_seconds", "lr", "loss"}
    names |= {"global_spearman", "mean_spearman", "proteins_per_second", "samples_per_second", "peak_memory_mb"}
    names |= {*FINETUNE["metric"].arguments["choices"]}
    for objective in OBJECTIVES.values():
        made = objective(ENCODERS["gearnet"]("atom", "tiny"), "atom")
        names |= made(Protein.pack([protein, protein]), torch.Generator().manual_seed(0))[1].keys()
    assert len(names) > 35 and "..._constant" in text
    assert [name for name in names if name.removesuffix("_constant") not in text] == []


def test_names_in_differences_exist():
    """Names of the last column are fields of Conventions, or stand in the package."""
    text = "".join(path.read_text() for path in (ROOT / "siamdiff_min").rglob("*.py"))
    table = [line for line in (ROOT / "docs" / "differences.md").read_text().splitlines() if line.startswith("| ")]
    names = [name for line in table for name in re.findall(r"`([A-Za-z_.]+)`", line.rpartition(" | ")[2] or line)]
    assert len(names) > 25
    assert [name for name in names if not re.search(rf"\b{name.split('.')[-1]}\b", text)] == []


# ---- examples/compare.py: where two structures of one protein differ -------------------------------------------------


@pytest.mark.full
def test_a_loop_that_has_moved_stands_out(tmp_path, monkeypatch, capsys):
    """Seven residues of barnase by 2.5 angstrom; the numbers of the other file are there, but of other residues."""
    barnase = siamdiff_min.bundled("1A2P_A").protein
    shift = 0.05 * torch.randn(barnase.pos.shape, generator=torch.Generator().manual_seed(0))
    shift[((barnase.residue_number - 39).abs() <= 3)[barnase.atom_residue], 2] += 2.5
    other = replace(barnase, pos=barnase.pos + shift, residue_number=barnase.residue_number + 1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare.py", "a.pdb", "b.pdb"])
    write_pdb(Path("a.pdb"), barnase)
    write_pdb(Path("b.pdb"), other, ("Z",))
    runpy.run_path(str(EXAMPLES / "compare.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("108 of 108 and 108 residues matched")
    number, value = np.loadtxt("compare.csv", delimiter=",", skiprows=1, usecols=(1, 4), unpack=True)
    assert (np.abs(number[value.argsort()[-5:]] - 39) <= 4).all()
    assert value[np.abs(number - 39) <= 4].mean() > 1.5 and np.median(value[np.abs(number - 39) > 15]) < 0.8
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")
    _, values = color.read_values(Path("compare.csv"), "a")
    assert len(color.color(Path("a.pdb"), values)[1]) == 108
