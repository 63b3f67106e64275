"""The structure of the package itself: imports go down, files stay readable, the README's map leads somewhere."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import siamdiff_min

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "siamdiff_min"
GROUND = ("files", "names", "conventions", "statistics", "machine")
REFERENCE = ("protein", "encoders", "pretraining", "downstream", "training")  # the paper
FLOOR = {
    **dict.fromkeys(GROUND, 0),
    "protein": 1,
    "encoders": 2,
    "pretraining": 3,
    "downstream": 3,
    "training": 4,
    "reading": 2,
    "sets": 4,
    "embedding": 4,
    "tools": 7,  # behind the wall: nothing else imports it
}
COMMANDS = 6  # the floor of what has none of its own
REQUIRED = {"torch", "numpy", "Bio", "tqdm", "sklearn", "scipy"}  # scipy comes with scikit-learn
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> list[tuple[str, bool]]:
    """Absolute names of the modules a file imports, and whether at module level; without those for type checkers."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for_types = [x for x in tree.body if isinstance(x, ast.If) and ast.unparse(x.test) == "TYPE_CHECKING"]
    unread = {id(node) for block in for_types for node in ast.walk(block)}
    found = []
    for node in ast.walk(tree):
        if id(node) in unread:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".")
            base = package[: len(package) - node.level + (path.name == "__init__.py")] if node.level else []
            found.append((".".join([*base, *([node.module] if node.module else [])]), id(node) in top))
    return found


def floor(name: str) -> int:
    """Of a module. The face of the package, `siamdiff_min`, loads only errors: what it hands out it loads on demand."""
    _, *parts = name.split(".")
    return FLOOR.get(parts[0], COMMANDS) if parts else 0


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_down(path):
    for name, at_module_level in imported(path):
        library = name.split(".")[0]
        if library == "siamdiff_min":
            assert floor(name) <= floor(module_name(path)), f"{module_name(path)} imports {name}"
        elif at_module_level:
            assert library in REQUIRED or library in sys.stdlib_module_names, f"{path} imports {name}"


@pytest.mark.parametrize("folder", REFERENCE)
def test_the_reference_knows_neither_reading_nor_sets_nor_tools(folder):
    """It stands on the ground and on itself. One name leads out: `encoder.embed` asks the face for the `Embedder`."""
    for path in (PACKAGE / folder).rglob("*.py"):
        for name, _ in imported(path):
            library, *parts = name.split(".")
            if library == "siamdiff_min" and parts:
                assert parts[0] in GROUND + REFERENCE, f"{module_name(path)} imports {name}"
            elif library == "siamdiff_min":
                assert module_name(path) == "siamdiff_min.encoders.encoder", f"{module_name(path)} imports the face"


def test_the_face_says_which_folders_are_the_reference():
    """By name, in order; and the page their lines, to about 5 %."""
    assert f"{', '.join(REFERENCE[:-1])} and {REFERENCE[-1]}" in " ".join(siamdiff_min.__doc__.split())
    page = (ROOT / "docs" / "architecture.md").read_text()
    for folder in REFERENCE:
        lines = sum(len(path.read_text().splitlines()) for path in (PACKAGE / folder).rglob("*.py"))
        (said,) = re.findall(rf"`{folder}/` \(([\d,]+)\)", page)
        assert abs(int(said.replace(",", "")) / lines - 1) < 0.05, f"{folder}: {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_are_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 400
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no module docstring"


def test_a_clone_stays_small():
    """Below 30 MB."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = {name: (ROOT / name).stat().st_size for name in files.split("\0") if (ROOT / name).is_file()}
    assert sum(sizes.values()) < 30e6, sorted(sizes, key=sizes.get)[-20:]


def test_every_row_of_the_map_exists():
    """Rows of the table *paper element -> function* name an object of the package."""
    text = (ROOT / "docs" / "architecture.md").read_text() + (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| .*?\| `(siamdiff_min\.[\w.]+)` \|", text, flags=re.M)
    assert len(rows) > 15
    for row in rows:
        parts = row.split(".")
        for split in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:split]))
            except ModuleNotFoundError:
                continue
            for name in parts[split:]:
                found = getattr(found, name)
            break


NOT_COMPUTED = 6  # one reverse step of the sequence: training needs Eq. 7 alone
PAPER = [*(f"Eq. {n}" for n in range(1, 15) if n != NOT_COMPUTED), "Alg. 1", *(f"Table {n}" for n in range(1, 7))]
PAPER += [f"App. {letter}" for letter in "ABCDEFGH"]


@pytest.mark.parametrize("element", PAPER)
def test_one_search_leads_from_the_paper_to_the_code(element):
    """Each is spelt this way, alone; but for App. D, the set-up of everything, it stands in a handful of files."""
    found = [path for path in FILES if re.search(rf"{re.escape(element)}\b", path.read_text())]
    assert found and (element == "App. D" or len(found) <= 6), found


def test_the_readme_is_read_in_a_few_minutes():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200 and len(text.split()) <= 1300


ONLY_FASTER = {"encoders.fast", "encoders.rowsum", "protein.neighbors"}
NOT_THE_METHOD = {"files", "machine", "protein.check", "encoders.weights", "encoders.released"}


def read_for_the_loss() -> list[Path]:
    """SiamDiff, GearNet, and the modules that they import; without what only makes them faster or checks."""
    found: list[Path] = []
    todo = [PACKAGE / f"{name}.py" for name in ("pretraining/siamdiff", "encoders/gearnet", "encoders/formulas")]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.append(path)
        for name, _ in imported(path):
            below = name.removeprefix("siamdiff_min.")
            file = PACKAGE / f"{below.replace('.', '/')}.py"
            if file.exists() and below not in ONLY_FASTER | NOT_THE_METHOD:
                todo.append(file)
    return found


def test_the_readme_says_how_many_lines_to_read_for_the_loss():
    """Lines that are not blank, to 5 %; and those of the package."""
    text = (ROOT / "README.md").read_text()
    (said,) = re.findall(r"\| lines to read for the loss \|.*\| about ([\d,]+)", text)
    lines = sum(bool(line.strip()) for path in read_for_the_loss() for line in path.read_text().splitlines())
    assert abs(int(said.replace(",", "")) / lines - 1) < 0.05, lines
    (said,) = re.findall(r"\| lines of the package \| \| about ([\d,]+)", text)
    lines = sum(len(path.read_text().splitlines()) for path in FILES)
    assert abs(int(said.replace(",", "")) / lines - 1) < 0.05, lines
