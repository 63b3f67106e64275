"""Another commit beside the files of this folder: the same command of `benchmarks.speed` in both, in turns.

    python -m benchmarks.speed against [--repeats 5] COMMIT COMMAND ...
    python -m benchmarks.speed against 9c0e5ec step --level atom --repeats 3
    python -m benchmarks.speed against --in-turns 9c0e5ec step --size tiny --repeats 60

It checks COMMIT out into a folder of its own (git worktree), which it removes at the end. A pair is one process of
each, one after the other; every second pair begins with the other one. Printed are medians over the pairs, and the
median and range of the ratios here / COMMIT: of the whole processes, and of all times, rates and memory that both
print. CPU seconds hold up best on a busy machine, together with OMP_NUM_THREADS=1.

`--in-turns` is for `step`: one process of each stays alive, and they take single steps in turns. Neighbours on a shared
machine then slow both alike, and the quartiles of the ratios are narrow. Where whole processes of seven pairs gave .75
to 1.46, eighty steps gave .94 to 1.01.
"""

import argparse
import contextlib
import itertools
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import step

ROOT = Path(__file__).parent.parent
FIGURE = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|GB|structures/s|crops/s|/s)\b(?!/)")
Figures = dict[tuple[str, int, str], float]  # by label, its number among those of the label, and unit
STEPPER = """
import argparse, sys, time, torch
from benchmarks import step
parser = argparse.ArgumentParser()
step.add_options(parser)
args = parser.parse_args()
setting = *(x[0] for x in (args.method, args.level, args.encoder, args.size, args.amp)), "fast"
if args.device == "cpu":
    step.keep_freed_memory()
one = step.Step(setting, args.preset, args.part, args.copies, args.device)
for number in sys.stdin:
    before = time.process_time()
    one.run(int(number))
    memory = step.peak_memory(torch.device(args.device)) / 1e3
    print(one.seconds[-1], time.process_time() - before, memory, flush=True)
"""  # what a process of either checkout runs; `benchmarks.step` is its own


def compare(args: argparse.Namespace) -> None:
    """Compare, and print a table in Markdown."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree is removed
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, args.commit], cwd=ROOT, check=True)
        try:
            if args.in_turns:
                return step_in_turns(there, args)
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


def step_in_turns(there: Path, args: argparse.Namespace) -> None:
    """Steps of two processes in turns, for each level and size of the command line; prints a table in Markdown."""
    parser = argparse.ArgumentParser(prog="step", description=__doc__)
    step.add_options(parser)
    parser.add_argument("--repeats", type=int, default=20)
    name, *options = args.command
    if name != "step":
        raise SystemExit(f"--in-turns is for the command step, not {name}")
    chosen = parser.parse_args(options)
    print(f"| what | here | {args.commit} | here / {args.commit}: median (quartiles) |\n|---|---|---|---|")
    lists = {name: getattr(chosen, name) for name in ("method", "level", "encoder", "size", "amp")}
    plain = {name: getattr(chosen, name) for name in ("preset", "part", "copies", "device")}
    for setting in itertools.product(*lists.values()):
        words = [f"--{name}={value}" for name, value in [*zip(lists, setting), *plain.items()]]
        with contextlib.ExitStack() as stack:
            here, other = (stack.enter_context(stepper(tree, words)) for tree in (ROOT, there))
            pairs = []
            for number in range(-2, chosen.repeats):
                turns = {}
                for process in (here, other) if number % 2 else (other, here):
                    process.stdin.write(f"{max(number, 0)}\n")
                    process.stdin.flush()
                    if not (line := process.stdout.readline()):
                        raise SystemExit(f"a step of {' '.join(setting)} failed")
                    turns[process] = [float(x) for x in line.split()]
                pairs.append((turns[here], turns[other]))
        measured = pairs[2:]  # the first two warm up
        for i, (what, unit) in enumerate((("wall", "s"), ("CPU", "s"), ("peak memory", "GB"))):
            low, middle, high = statistics.quantiles([a[i] / b[i] for a, b in measured], n=4)
            mine, theirs = (statistics.median(pair[side][i] for pair in measured) for side in (0, 1))
            label = f"{' '.join(setting)}, {what}, {len(measured)} pairs"
            print(
                f"| {label} | {mine:.3f} {unit} | {theirs:.3f} {unit} | {middle:.3f} ({low:.3f} .. {high:.3f}) |",
                flush=True,
            )


def stepper(tree: Path, words: list[str]) -> subprocess.Popen:
    """A process that takes the step whose number it reads, and prints its seconds, CPU seconds and peak memory."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", STEPPER, *words]
    return subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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
