"""Another commit beside the files of this folder: the same command of `benchmarks.speed` in both, in turns.

    python -m benchmarks.speed against [--repeats 5] COMMIT COMMAND ...
    python -m benchmarks.speed against 9c0e5ec step --level atom --repeats 3

It checks COMMIT out into a folder of its own (git worktree), which it removes at the end. A pair is one process of
each, one after the other; every second pair begins with the other one. Printed are medians over the pairs, and the
median and range of the ratios here / COMMIT: of the whole processes, and of all times, rates and memory that both
print. CPU seconds hold up best on a busy machine, together with OMP_NUM_THREADS=1.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIGURE = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|GB|structures/s|crops/s|/s)\b(?!/)")
Figures = dict[tuple[str, int, str], float]  # by label, its number among those of the label, and unit


def compare(args: argparse.Namespace) -> None:
    """Compare, and print a table in Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, args.commit], cwd=ROOT, check=True)
        try:
            pairs = [measure_pair(there, args.command, number) for number in range(args.repeats)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=ROOT, check=True)
    print(f"{' '.join(args.command)}: {args.repeats} pairs\n")
    print(f"| what | here | {args.commit} | here / {args.commit} |\n|---|---|---|---|")
    for key in pairs[0][0]:
        found = [(a[key], b[key]) for a, b in pairs if key in a and key in b]
        if ratios := [a / b for a, b in found if b]:
            here, other = (statistics.median(values) for values in zip(*found))
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f})"
            print(f"| {key[0]} | {here:g} {key[2]} | {other:g} {key[2]} | {spread} |")


def measure_pair(there: Path, command: list[str], number: int) -> tuple[Figures, Figures]:
    """The figures of one process here and of one there."""
    trees = [ROOT, there][:: -1 if number % 2 else 1]
    found = {tree: measure(tree, command) for tree in trees}
    return found[ROOT], found[there]


def measure(tree: Path, command: list[str]) -> Figures:
    """The figures of one process: what it took, with the processes that it started, and what it printed."""
    started, whole = time.perf_counter(), [sys.executable, "-m", "benchmarks.speed", *command]
    environment = {**os.environ, "PYTHONPATH": str(tree)}  # not the package that is installed
    with subprocess.Popen(whole, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True) as process:
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)  # its memory, which `wait` does not tell
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {tree}")
    totals = {"CPU": (used.ru_utime + used.ru_stime, "s"), "wall": (time.perf_counter() - started, "s")}
    totals["peak memory"] = used.ru_maxrss / 1e6, "GB"
    figures = {(f"whole process, {name}", 0, unit): value for name, (value, unit) in totals.items()}
    for line in printed.splitlines():
        for match in FIGURE.finditer(line):
            label = re.sub(r"\d+(\.\d+)?", "#", line[: match.start()]).strip(" :,(")
            nth = sum(label == other for other, *_ in figures)
            figures[label, nth, match[2]] = float(match[1])
    return figures
