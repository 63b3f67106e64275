"""Steps of another commit beside those of this folder, in turns: neighbours on a shared machine slow both alike.

    python -m benchmarks.speed against HEAD~1 --level atom --size paper tiny --repeats 30

The options are those of `benchmarks.speed step`. The commit is one whose `benchmarks.step.Step` takes the same; its
files lie in a temporary folder. One process of each stays alive, and they take single steps in turns. Prints medians
and quartiles of the ratios here / COMMIT. CPU seconds hold up best, together with OMP_NUM_THREADS=1.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import step

ROOT = Path(__file__).parent.parent
STEPPER = """
import sys, time
from benchmarks.step import Step
step = Step(*sys.argv[1:])
for number in sys.stdin:
    before = time.process_time()
    step.run(int(number))
    print(step.seconds[-1], time.process_time() - before, step.memory(), flush=True)
"""  # what a process of either checkout runs; `benchmarks.step` is its own


def stepper(tree: Path, setting: tuple[str, ...]) -> subprocess.Popen:
    """A process that takes the step whose number it reads, and prints its seconds, CPU seconds and peak memory."""
    environment, command = {**os.environ, "PYTHONPATH": str(tree)}, [sys.executable, "-c", STEPPER, *setting]
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
    with tempfile.TemporaryDirectory() as folder:
        archive, there = Path(folder) / "commit.zip", Path(folder) / "commit"
        subprocess.run(["git", "archive", "--output", archive, args.commit], cwd=ROOT, check=True)
        shutil.unpack_archive(archive, there)
        print(f"| what | here | {args.commit} | here / {args.commit}: median (quartiles) |\n|---|---|---|---|")
        for setting in step.settings(args):
            with contextlib.ExitStack() as stack:
                both = [stack.enter_context(stepper(tree, setting)) for tree in (ROOT, there)]
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
