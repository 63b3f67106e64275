"""Steps of another commit beside those of this folder, in turns: neighbours on a shared machine slow both alike.

    python -m benchmarks.speed against 9c0e5ec --level atom --size paper tiny --repeats 30

The options are those of `benchmarks.speed step`. The commit is checked out into a folder of its own (git worktree),
which is removed at the end. One process of each stays alive, and they take single steps in turns. Prints medians and
quartiles of the ratios here / COMMIT. CPU seconds hold up best, together with OMP_NUM_THREADS=1.
"""

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import step

ROOT = Path(__file__).parent.parent
STEPPER = """
import argparse, sys, time, torch
from benchmarks import step
parser = argparse.ArgumentParser()
step.add_options(parser)
args = parser.parse_args()
setting = *(x[0] for x in (args.method, args.level, args.encoder, args.size, args.amp)),
if args.device == "cpu":
    step.keep_freed_memory()
one = step.Step(setting, args)
for number in sys.stdin:
    before = time.process_time()
    one.run(int(number))
    memory = step.peak_memory(torch.device(args.device)) / 1e3
    print(one.seconds[-1], time.process_time() - before, memory, flush=True)
"""  # what a process of either checkout runs; `benchmarks.step` is its own


def stepper(tree: Path, words: list[str]) -> subprocess.Popen:
    """A process that takes the step whose number it reads, and prints its seconds, CPU seconds and peak memory."""
    environment, command = {**os.environ, "PYTHONPATH": str(tree)}, [sys.executable, "-c", STEPPER, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=tree, env=environment, stdin=pipe, stdout=pipe, text=True)


def take(process: subprocess.Popen, number: int) -> list[float]:
    """What a process prints of one step."""
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    if not (line := process.stdout.readline()):
        raise SystemExit("a step failed")
    return [float(x) for x in line.split()]


def compare(args: argparse.Namespace) -> None:
    """Print a row for every setting of the command line, and for wall, CPU seconds and memory."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree is removed
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "checkout"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", there, args.commit], cwd=ROOT, check=True)
        try:
            print(f"| what | here | {args.commit} | here / {args.commit}: median (quartiles) |\n|---|---|---|---|")
            for setting in itertools.product(*(getattr(args, name) for name in step.LISTS)):
                words = [f"--{name}={value}" for name, value in zip(step.LISTS, setting)]
                words += [f"--{name}={getattr(args, name)}" for name in ("preset", "part", "copies", "device")]
                with contextlib.ExitStack() as stack:
                    both = [stack.enter_context(stepper(tree, words)) for tree in (ROOT, there)]
                    pairs = []
                    for number in range(-2, args.repeats):  # the first two warm up
                        order = both if number % 2 else both[::-1]
                        turns = {process: take(process, max(number, 0)) for process in order}
                        pairs.append([turns[process] for process in both])
                for i, what in enumerate(("wall, s", "CPU, s", "peak memory, GB")):
                    mine, theirs = (statistics.median(pair[side][i] for pair in pairs[2:]) for side in (0, 1))
                    low, middle, high = statistics.quantiles([a[i] / b[i] for a, b in pairs[2:]], n=4)
                    row = f"{mine:.3f} | {theirs:.3f} | {middle:.3f} ({low:.3f} .. {high:.3f})"
                    print(f"| {' '.join(setting)}: {what}, {len(pairs) - 2} pairs | {row} |", flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", there], cwd=ROOT, check=True)
