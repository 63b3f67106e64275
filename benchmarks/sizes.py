"""Every encoder at every size: parameters, width, and what a step of SiamDiff costs. The table of docs/performance.md.

    OMP_NUM_THREADS=1 python -m benchmarks.sizes [--repeats 3]

Steps are those of `benchmarks.step`, on four proteins: 100 residues each (atom level) or 150 (residue level). Each row
is measured in a process of its own, after one step that does not count: median CPU seconds, and the most memory beyond
that of the process before it made the network.
"""

import argparse
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.step import Step
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.machine import peak_memory
from siamdiff_min.training.config import SIZES

ROWS = [("gearnet", "atom"), ("gearnet", "residue"), ("gvp", "atom"), ("esm-gearnet", "residue")]
UNTIMED = {("esm-gearnet", "paper")}  # ESM-2 of 650M parameters: its step is that of ESM-2


def million(count: int) -> str:
    """A number of parameters."""
    return f"{count / 1e6:.3g} M"


def row(name: str, level: str, size: str, repeats: int) -> str:
    """One row of the table."""
    cells = [name, level, size]
    with torch.device("meta" if (name, size) in UNTIMED else "cpu"):
        encoder = ENCODERS[name](level, size)
    cells += [million(sum(x.numel() for x in encoder.parameters())), str(encoder.out_dim)]
    if (name, size) in UNTIMED:
        return f"| {' | '.join(cells)} | - | - |"
    before = peak_memory(torch.device("cpu"))
    step = Step(level, name, size, "off", "paper", "all", "cpu")
    seconds = []
    for number in range(repeats + 1):
        started = time.process_time()
        step.update(number)
        seconds.append(time.process_time() - started)
    cells += [f"{statistics.median(seconds[1:]):.2g} s", f"{(peak_memory(torch.device('cpu')) - before) / 1e3:.1f} GB"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table, or with --row one of its rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--row", nargs=3)
    args = parser.parse_args()
    if args.row:
        print(row(*args.row, args.repeats))
        return
    print("| encoder | level | size | parameters | width | a step, CPU | memory |\n|---|---|---|---|---|---|---|")
    for name, level in ROWS:
        for size in SIZES:
            command = [sys.executable, "-m", "benchmarks.sizes", "--repeats", str(args.repeats)]
            subprocess.run([*command, "--row", name, level, size], check=True)


if __name__ == "__main__":
    main()
