"""Make docs/walkthrough.ipynb of docs/walkthrough.md: `python -m benchmarks.notebook`. A test compares the two."""

import argparse
import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "walkthrough.md"


def made(page: str) -> str:
    """The notebook of a page: its Python blocks are cells, a block of text after one is what the cell prints."""
    cells = []
    for kind, block, text in re.findall(r"^```(python|text)\n(.*?)^```$|(.+?)(?=^```|\Z)", page, flags=re.M | re.S):
        source = (block or text).strip("\n").splitlines(keepends=True)
        if kind == "python":
            cells.append(
                {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source}
            )
        elif kind == "text":
            cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": source}]
        elif text.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": source})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    argparse.ArgumentParser(prog="python -m benchmarks.notebook", description=__doc__).parse_args()
    path = PAGE.with_suffix(".ipynb")
    path.write_text(made(PAGE.read_text()))
    print(path)


if __name__ == "__main__":
    main()
