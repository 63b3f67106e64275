"""Time and memory of one full pre-training step of SiamDiff: both views forward, all heads, backward, Adam.

    python -m benchmarks.speed step --level atom --preset official

The batches are real: four chains of 100 residues (atom level) or of 150 (residue level), in `benchmarks/batches.npz`.
Noise levels and masks of a step follow from its number, so all configurations see the same. Prints for each median and
range in seconds, the rate of its matrix products beside that of large ones, and its memory. `--against plain` takes
steps with the formulas as published (`encoders/formulas.py`) in turn with these. `--part encoder` is the encoder alone,
one view, forward and backward.

`python -m benchmarks.speed against HEAD~1 --level atom --size paper tiny --repeats 30` takes steps of another commit
beside those of this folder, in turns: neighbours on a shared machine slow both alike. The commit is one whose `Step`
takes the same; its files lie in a temporary folder. Prints medians and quartiles of the ratios here / COMMIT. CPU
seconds hold up best, together with OMP_NUM_THREADS=1.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from siamdiff_min.encoders import ENCODERS, formulas
from siamdiff_min.machine import keep_few_plans, keep_freed_memory, peak_memory
from siamdiff_min.pretraining import build_siamdiff
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import SIZES

BATCHES = Path(__file__).with_name("batches.npz")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def timed(work, device: str = "cpu"):
    """What `work()` returns, and its seconds, until the GPU has done its part."""
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def load_batch(level: str) -> Protein:
    """The four proteins of a level, as float32 on the CPU."""
    with np.load(BATCHES, allow_pickle=False) as arrays:
        names = [name for name in arrays.files if name.startswith(level)]
        return Protein(**{name.split("/")[1]: torch.from_numpy(arrays[name]) for name in names}, num_proteins=4)


class Step:
    """One configuration, ready to be stepped."""

    def __init__(self, level, encoder, size, amp, preset, part, device, form="fast", copies=1):
        self.name = " ".join([level, encoder, size, amp, preset, form])
        self.amp, self.part, self.device, self.form = amp, part, device, form
        if device == "cpu":
            keep_freed_memory()
        torch.manual_seed(0)
        self.objective = build_siamdiff(ENCODERS[encoder](level, size, preset), level, preset).to(device)
        self.adam = torch.optim.Adam(self.objective.parameters(), lr=1e-4, fused=True)
        self.batch = Protein.pack([load_batch(level)] * copies).to(device)
        self.seconds = []

    def update(self, number: int) -> torch.Tensor:
        """One step, and its loss."""
        self.adam.zero_grad()
        generator = torch.Generator(self.device).manual_seed(number)
        with (
            patch.object(formulas, "form", self.form),
            torch.autocast(self.device, torch.bfloat16, enabled=self.amp == "bf16"),
        ):
            if self.part == "encoder":
                loss = self.objective.encoder(self.batch).node.square().mean()
            else:
                loss, _ = self.objective(self.batch, generator)
        loss.backward()
        if self.part == "all":
            self.adam.step()
        return loss.detach()

    def run(self, number: int) -> None:
        """One step, timed."""
        self.seconds.append(timed(lambda: self.update(number), self.device)[1])

    def memory(self) -> float:
        """Most memory so far, in GB."""
        return peak_memory(torch.device(self.device)) / 1e3


def product_rate(device: str, amp: str, width: int) -> float:
    """FLOP/s of a product of 16,384 rows with a square matrix of the width of the heads."""
    kind = torch.bfloat16 if amp == "bf16" else torch.float32
    x, w = torch.randn(16384, width, device=device, dtype=kind), torch.randn(width, width, device=device, dtype=kind)
    return 2 * x.numel() * width / statistics.median(timed(lambda: x @ w, device)[1] for _ in range(8))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of a step; graphs, embeddings and `against` take some of them."""
    parser.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    parser.add_argument("--encoder", nargs="+", default=["gearnet"], choices=list(ENCODERS))
    parser.add_argument("--size", nargs="+", default=["paper"], choices=SIZES)
    parser.add_argument("--amp", nargs="+", default=["off"], choices=["off", "bf16"])
    parser.add_argument("--preset", default="paper", choices=["paper", "official"])
    parser.add_argument("--part", default="all", choices=["all", "encoder"])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--against", choices=["plain"], help="step: also the formulas as published (CPU)")


def settings(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """What `Step` takes, for every configuration of a command line."""
    lists = args.level, args.encoder, args.size, args.amp, [args.preset], [args.part], [args.device]
    return list(itertools.product(*lists))


def measure(args: argparse.Namespace) -> None:
    """Run the configurations of one command line, and print a few lines for each."""
    if "bf16" in args.amp:
        keep_few_plans()
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads")
    for setting in settings(args):
        steps = [Step(*setting, form) for form in ("fast", *([args.against] if args.against else []))]
        for step in steps:
            step.run(0)
            step.seconds = []
        first, *plain = steps
        memory, rates = first.memory(), []
        for number in range(1, args.repeats + 1):
            for step in steps:
                step.run(number)
            rates.append(product_rate(args.device, first.amp, min(first.objective.encoder.out_dim, 3072)))
        with FlopCounterMode(display=False) as counter:
            first.update(1)
        flop, median, rate = counter.get_total_flops(), statistics.median(first.seconds), statistics.median(rates)
        print(f"{first.name}: {median:.3f} s ({min(first.seconds):.3f} .. {max(first.seconds):.3f}), ", end="")
        print(f"{first.batch.num_proteins / median:.1f} proteins/s, peak memory so far {memory:.2f} GB")
        print(f"    products {flop / 1e12:.2f} TFLOP, {flop / median / rate:.0%} of the rate of large products")
        for step in plain:
            ratios = [a / b for a, b in zip(step.seconds, first.seconds)]
            print(f"    {statistics.median(ratios):.2f} x as fast as plain ({min(ratios):.2f} .. {max(ratios):.2f})")


# ---- steps of another commit -----------------------------------------------------------------------------------------


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
        for setting in settings(args):
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
