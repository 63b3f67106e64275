"""The page docs/api.md, from the docstrings of the public names: `python -m benchmarks.api > docs/api.md`.

Every name of `siamdiff_min.__all__` with its arguments, the beginning of its docstring and what it raises; classes with
their public methods and properties. A test compares the page with what this prints.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator

import siamdiff_min
import siamdiff_min.tools.table.command  # the task `table`
from siamdiff_min.files import Parser

HEAD = """# The public names

Made of the docstrings by `python -m benchmarks.api`. N atoms, R residues, B proteins, E edges, d width; coordinates in
angstrom. [How to use them](python.md).
"""
GROUPS = {  # a title, and the names below it
    "Structures": ("read_structure", "bundled", "Structure", "Protein"),
    "Encoders": (
        "load_encoder",
        "list_encoders",
        "random_encoder",
        "Encoder",
        "Encoding",
        "Embedding",
        "Embedder",
        "whiten",
    ),
    "Networks": ("GearNet", "GVPGNN", "ESMGearNet"),
    "Pre-training": ("SiamDiff", "Schedule"),
    "Measurements": ("rank_mutants", "Ranking", "Task"),
}
TABLES = ("ENCODERS", "OBJECTIVES", "SCHEDULES", "TASKS")  # names by which things are built
OTHER_PAGES = {"SiamDiff": "walkthrough.md", "Schedule": "walkthrough.md", "Task": "extending.md#a-new-task"}
OTHER_PAGES |= dict.fromkeys(("GearNet", "GVPGNN", "ESMGearNet"), "extending.md#a-new-encoder")
INNER = {"layout", "follow", "lr_factors", "with_graph", "map", "pin_memory", "check", "embed_group"}  # called by ours


def text_of(thing) -> str:
    """The first paragraph of a docstring, and its sentences about errors, as Markdown in one line."""
    first, *others = (inspect.getdoc(thing) or "").split("\n\n")
    raised = re.findall(r"Raises? [^.]*(?:\.\w[^.]*)*\.", " ".join(" ".join(others).split()))
    return " ".join([" ".join(first.split()), *raised]).replace("*", r"\*")


def signature(thing) -> str:
    """(arguments) without their types."""
    try:
        given = inspect.signature(thing)
    except ValueError:  # of C
        return "(...)"
    plain = [x.replace(annotation=inspect.Parameter.empty) for x in given.parameters.values() if x.name != "self"]
    text = str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty)).replace("'", '"')
    return re.sub(r"(\w+)\([^()]*\)(?=[,)])", r"\1(...)", text).replace("<factory>", "{}")


def members(kind: type) -> Iterator[str]:
    """A line for every public method and property that a class defines."""
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if name.startswith("_") or name in INNER or not (inspect.isfunction(function) or isinstance(value, property)):
            continue
        arguments = signature(getattr(kind, name)) if inspect.isfunction(function) else ""
        yield f"  * `.{name}{arguments}`: {text_of(value)}".removesuffix(": ")


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            thing = getattr(siamdiff_min, name)
            lines.append(f"* `{name}{signature(thing)}`: {text_of(thing)}")
            if name in OTHER_PAGES:
                lines[-1] += f" [Its methods]({OTHER_PAGES[name]})."
            elif inspect.isclass(thing):
                lines += members(thing)
        lines.append("")
    lines += ["## Names and errors", ""]
    for name in TABLES:
        keys = (str(key) for key in getattr(siamdiff_min, name))
        lines.append(f"* `{name}`: {', '.join(keys)}.")
    for name in siamdiff_min.__all__:
        if name.endswith("Error"):
            kind = getattr(siamdiff_min, name)
            lines.append(f"* `{name}({kind.__base__.__name__})`: {text_of(kind)}")
    return "".join(f"{wrapped(line)}\n" for line in lines)


def wrapped(line: str) -> str:
    """The line of a list, in lines of at most 120 characters."""
    if not line.lstrip().startswith("* "):
        return line
    indent = " " * (line.index("*") + 2)
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    Parser(description=__doc__.splitlines()[0]).parse_args()
    print(page(), end="")
