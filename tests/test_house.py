"""The house: imports go down, lines and files stay readable, all stays within bounds, the maps lead somewhere."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
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
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# Bounds. A node is an expression, a statement, an argument or a keyword of the syntax tree.
MOST_NODES = {"reference": 57_000, "package": 92_000, "tests": 115_000}
MOST_LINES = {"reference": 11_500, "package": 17_800}
MOST_FILES, MOST_WORDS, MOST_README = 330, 18_000, 1_300  # tracked; of docs/*.md together; of the README
FULL, FULL_FUNCTION, FULL_TEST = 8.2, 12, 14  # nodes on a line of code: of a room; of a function of 8 lines or more
MOST_TUPLES = 0.07  # the share of assignments of a room that set several names at once


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> list[tuple[str, bool]]:
    """Absolute names of the modules a file imports, and whether at module level; without those for type checkers."""
    tree = tree_of(path)
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


def test_imports_go_down():
    for path in FILES:
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


# ---- bounds ----------------------------------------------------------------------------------------------------------


def nodes_of(*trees: ast.AST) -> int:
    counted = ast.expr, ast.stmt, ast.arg, ast.keyword
    return sum(isinstance(node, counted) for tree in trees for node in ast.walk(tree))


def lines_of_code(text: str, first: int = 1, last: int | None = None) -> list[int]:
    """The numbers of the lines that are neither blank nor a comment."""
    numbered = enumerate(text.splitlines()[first - 1 : last], first)
    return [number for number, line in numbered if line.strip() and not line.strip().startswith("#")]


def lines_of_docstrings(tree: ast.AST) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            found.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def full_functions(path: Path, most: float) -> list[str]:
    """The functions of eight lines or more with more than `most` nodes on a line of code."""
    text, found = path.read_text(), []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno - node.lineno >= 8:
            documented = ast.get_docstring(node) is not None and len(node.body) > 1
            code = lines_of_code(text, node.body[documented].lineno, node.end_lineno)
            if len(code) >= 8 and nodes_of(*node.body) > most * len(code):
                found.append(f"{path.relative_to(ROOT)}: {node.name}")
    return found


def rooms() -> dict[str, list[Path]]:
    """The folders of the package, and its single files, which are rooms of their own."""
    found: dict[str, list[Path]] = {}
    for path in FILES:
        found.setdefault(path.relative_to(PACKAGE).parts[0], []).append(path)
    return found


def test_files_are_read_in_one_sitting():
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 400, path
        assert ast.get_docstring(tree_of(path)), f"{path} has no module docstring"


def test_lines_are_not_too_full():
    full = [name for path in FILES for name in full_functions(path, FULL_FUNCTION)]
    full += [name for path in TESTS for name in full_functions(path, FULL_TEST)]
    assert full == []


@pytest.mark.parametrize("room", rooms())
def test_a_room_is_not_too_full(room):
    """Of rooms with more than 60 lines of code, or 20 assignments."""
    code, nodes, assigned, several = 0, 0, 0, 0
    for path in rooms()[room]:
        tree = tree_of(path)
        code += len({*lines_of_code(path.read_text())} - lines_of_docstrings(tree))
        nodes += nodes_of(tree)
        assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        assigned += len(assignments)
        for node in assignments:
            both = isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
            several += both or len(node.targets) > 1
    assert code <= 60 or nodes / code <= FULL
    assert assigned <= 20 or several / assigned <= MOST_TUPLES


def test_the_reference_the_package_and_the_tests_stay_small():
    groups = {"reference": [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "tools"]}
    groups |= {"package": FILES, "tests": TESTS}
    nodes = {name: nodes_of(*map(tree_of, paths)) for name, paths in groups.items()}
    lines = {name: sum(path.read_text().count("\n") for path in groups[name]) for name in MOST_LINES}
    assert not {name: count for name, count in nodes.items() if count > MOST_NODES[name]}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES[name]}


def test_the_pages_are_read_in_an_hour():
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs").glob("*.md")}
    assert sum(words.values()) <= MOST_WORDS, words
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 200 and len(readme.split()) <= MOST_README


def git(*arguments: str) -> list[str]:
    """The lines that git prints; the test is skipped where this is no clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_clone_stays_small():
    """Below 30 MB, and few files."""
    files = [ROOT / name for name in git("ls-files") if (ROOT / name).is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    assert len(files) <= MOST_FILES


def test_a_commit_says_one_thing():
    """In at most 72 letters: the last twenty."""
    assert [subject for subject in git("log", "-20", "--format=%s") if len(subject) > 72] == []


def test_a_finding_pins_its_packages_and_needs_no_code_of_ours():
    for script in (ROOT / "findings").glob("*.sh"):
        text = script.read_text()
        assert "==" in text and "mktemp" in text and "siamdiff" not in text, script


# ---- maps ------------------------------------------------------------------------------------------------------------


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


ONLY_FASTER = {"encoders.fast", "encoders.piecewise", "encoders.rowsum", "protein.neighbors"}
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
    """Lines that are not blank, to 5 %."""
    text = (ROOT / "README.md").read_text()
    (said,) = re.findall(r"\| lines to read for the loss \|.*\| about ([\d,]+)", text)
    lines = sum(bool(line.strip()) for path in read_for_the_loss() for line in path.read_text().splitlines())
    assert abs(int(said.replace(",", "")) / lines - 1) < 0.05, lines
