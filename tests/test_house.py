"""The structure of the package itself: imports go down, files stay readable, the README's map leads somewhere."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "siamdiff_min"
FLOOR = {
    "files": 0,
    "conventions": 0,
    "statistics": 0,
    "machine": 0,
    "protein": 1,
    "encoders": 2,
    "data": 2,
    "pretraining": 3,
    "downstream": 3,
    "training": 4,
}
REQUIRED = {"torch", "numpy", "Bio", "tqdm", "sklearn"}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> list[tuple[str, bool]]:
    """Absolute names of the modules a file imports, and whether at module level."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module_name(path).split(".")
            base = package[: len(package) - node.level + (path.name == "__init__.py")] if node.level else []
            found.append((".".join([*base, *([node.module] if node.module else [])]), id(node) in top))
    return found


def floor(name: str) -> int:
    parts = name.split(".")
    return FLOOR.get(parts[1], 5) if len(parts) > 1 else 5


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_down(path):
    for name, at_module_level in imported(path):
        library = name.split(".")[0]
        if library == "siamdiff_min":
            assert floor(name) <= floor(module_name(path)), f"{module_name(path)} imports {name}"
        elif at_module_level:
            assert library in REQUIRED or library in sys.stdlib_module_names, f"{path} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_are_read_in_one_sitting(path):
    assert len(path.read_text().splitlines()) <= 400
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no module docstring"


def test_a_clone_stays_small():
    """Below 29 MB and 300 files."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    sizes = {name: (ROOT / name).stat().st_size for name in files.split("\0") if (ROOT / name).is_file()}
    assert sum(sizes.values()) < 29e6 and len(sizes) <= 300, sorted(sizes, key=sizes.get)[-20:]


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


PAPER = [*(f"Eq. {n}" for n in range(1, 15)), "Alg. 1", *(f"Table {n}" for n in range(1, 7))]
PAPER += [f"App. {letter}" for letter in "ABCDEFGH"]


@pytest.mark.parametrize("element", PAPER)
def test_one_search_leads_from_the_paper_to_the_code(element):
    """Each is spelt this way, alone; but for App. D, the set-up of everything, it stands in a handful of files."""
    found = [path for path in FILES if re.search(rf"{re.escape(element)}\b", path.read_text())]
    assert found and (element == "App. D" or len(found) <= 6), found


def test_the_readme_is_read_in_a_few_minutes():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 200 and len(text.split()) <= 1300
