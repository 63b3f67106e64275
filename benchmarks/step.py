"""Time and memory of one full pre-training step: both views forward, all heads, backward, Adam.

    python -m benchmarks.speed step [--method all] [--level atom residue] [--size paper small tiny] [--amp off bf16]
                                    [--device cpu] [--preset official] [--against plain] [--part all|encoder]

The batches are real: four 100-residue chains (atom level) or four 150-residue chains (residue level), in
`benchmarks/batches/`. Every step draws its noise levels and masks from its number, so that all configurations see the
same. Prints one line per configuration: median and range of the step in seconds, proteins per second, the matrix
products in it against the rate of the large ones measured in the same run, and the parts of the step. What is timed is
interleaved, so that a shared machine slows all of it alike. `--against plain` also runs the formulas as they are
published (`encoders/formulas.py`). `--part encoder` times the encoder alone, one view, forward and backward.
"""

import argparse
import itertools
import platform
import statistics
import time
from collections import defaultdict
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest import mock
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from siamdiff_min.encoders import ENCODERS, GraphBuilder, fast, formulas, gearnet
from siamdiff_min.machine import keep_few_plans, keep_freed_memory, peak_memory
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import ATOM_ELEMENT
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import SIZES


def timed(work, device: str = "cpu"):
    """What `work()` returns, and its seconds, until the GPU has done its part where there is one."""
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def load_batch(level: str) -> Protein:
    """The benchmark batch of a level, as float32 on the CPU."""
    with np.load(Path(__file__).parent / "batches" / f"{level}.npz", allow_pickle=False) as arrays:
        a = {name: torch.from_numpy(x) for name, x in arrays.items()}
    sizes = a["num_residues"]
    return Protein(
        pos=a["pos"],
        element=torch.tensor(ATOM_ELEMENT)[a["atom_name"].long()],
        atom_name=a["atom_name"].long(),
        atom_residue=a["atom_residue"].long(),
        residue_type=a["residue_type"].long(),
        masked=torch.zeros(len(a["residue_type"]), dtype=torch.bool),
        residue_number=a["residue_number"].long(),
        insertion_code=torch.full((len(a["residue_type"]),), ord(" ")),
        residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]),
        chain=torch.zeros(len(a["residue_type"]), dtype=torch.long),
        residue_protein=torch.arange(len(sizes)).repeat_interleave(sizes),
        num_proteins=len(sizes),
    )


class Clock:
    """Seconds spent in each part of a step; a part inside of another one is not counted twice."""

    def __init__(self, device: str):
        self.device, self.seconds, self.stack, self.since = device, defaultdict(float), [], 0.0

    def lap(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.stack:
            self.seconds[self.stack[-1]] += now - self.since
        self.since = now

    @contextmanager
    def part(self, name: str):
        self.lap()
        self.stack.append(name)
        yield
        self.lap()
        self.stack.pop()

    def wrap(self, name: str, function):
        def timed(*args, **kwargs):
            with self.part(name):
                return function(*args, **kwargs)

        return timed


class Step:
    """One configuration, ready to be stepped and timed."""

    def __init__(self, setting: tuple, preset: str, part: str, copies: int, device: str):
        method, level, encoder, size, amp, form = setting
        self.name = " ".join([method, level, encoder, size, preset, f"amp={amp}", form])
        torch.manual_seed(0)
        self.objective = OBJECTIVES[method](ENCODERS[encoder](level, size, preset), level, preset).to(device)
        self.adam = torch.optim.Adam(self.objective.parameters(), lr=1e-4, fused=True)
        self.batch = Protein.pack([load_batch(level)] * copies).to(device)
        self.amp, self.device, self.part, self.form = amp, device, part, form
        self.seconds, self.flop, self.clock = [], [], Clock(device)

    def run(self, number: int, count: bool = False) -> None:
        """One step; with `count` its matrix products are counted instead of its time."""
        generator = torch.Generator(self.device).manual_seed(number)
        clock, counter = self.clock, FlopCounterMode(display=False) if count else nullcontext()
        self.adam.zero_grad()
        started = time.perf_counter()
        with patch.object(formulas, "form", self.form), counter:
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.amp == "bf16"), self.timed_parts():
                if self.part == "encoder":
                    loss = self.objective.encoder(self.batch).node.square().mean()
                else:
                    loss, _ = self.objective(self.batch, generator)
            with clock.part("backward"):
                loss.backward()
            with clock.part("optimizer"):
                if self.part == "all":
                    self.adam.step()
        if count:
            self.flop.append(counter.get_total_flops())
        else:
            self.seconds.append(time.perf_counter() - started)

    @contextmanager
    def timed_parts(self):
        """The forward pass by parts; what has no name of its own is the objective: noise, heads and losses."""
        wrap, encoder = self.clock.wrap, self.objective.encoder
        with (
            mock.patch.object(GraphBuilder, "__call__", wrap("graph", GraphBuilder.__call__)),
            mock.patch.object(gearnet, "line_graph", wrap("line graph", gearnet.line_graph)),
            mock.patch.object(fast, "prepare", wrap("sums prepared", fast.prepare)),
            mock.patch.object(encoder, "forward", wrap("encoder", encoder.forward)),
            self.clock.part("heads and noise"),
        ):
            if getattr(self.objective, "conformer", None) is None:
                yield
            else:
                timed = wrap("conformer", self.objective.conformer)
                with mock.patch.object(self.objective, "conformer", timed):
                    yield


def matmul_rate(device: str, amp: str, width: int) -> float:
    """FLOP/s of a product of 16,384 rows with a square matrix of the width of the heads."""
    kind = torch.bfloat16 if amp == "bf16" else torch.float32
    x, w = torch.randn(16384, width, device=device, dtype=kind), torch.randn(width, width, device=device, dtype=kind)
    out = x @ w
    times = [timed(lambda: torch.mm(x, w, out=out), device)[1] for _ in range(8)]
    return 2 * x.numel() * width / statistics.median(times)


def report(step: Step, rates: list[float], plain_step: Step | None) -> None:
    """What was measured of one configuration."""
    median, rate = statistics.median(step.seconds), statistics.median(rates)
    print(f"{step.name}: {median:.3f} s ({min(step.seconds):.3f} .. {max(step.seconds):.3f}), ", end="")
    print(f"{step.batch.num_proteins / median:.1f} proteins/s", flush=True)
    flop = statistics.mean(step.flop) * len(step.seconds) / sum(step.seconds)
    print(f"    products {statistics.mean(step.flop) / 1e12:.2f} TFLOP per step, {flop / 1e9:.0f} GFLOP/s; ", end="")
    print(f"large products {rate / 1e9:.0f} GFLOP/s: {flop / rate:.0%}")
    parts = {name: seconds / sum(step.clock.seconds.values()) for name, seconds in step.clock.seconds.items()}
    print("    " + ", ".join(f"{name} {share:.1%}" for name, share in parts.items() if share >= 5e-4))
    if plain_step:
        ratios = [a / b for a, b in zip(plain_step.seconds, step.seconds)]
        print(f"    {statistics.median(ratios):.2f} x as fast as plain ({min(ratios):.2f} .. {max(ratios):.2f})")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", nargs="+", default=["siamdiff"], choices=["all", *OBJECTIVES])
    parser.add_argument("--encoder", nargs="+", default=["gearnet"], choices=list(ENCODERS))
    parser.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    parser.add_argument("--size", nargs="+", default=["paper"], choices=SIZES)
    parser.add_argument("--amp", nargs="+", default=["off"], choices=["off", "bf16"])
    parser.add_argument("--preset", default="paper", choices=["paper", "official"])
    parser.add_argument("--against", choices=["plain"], help="also time the formulas as published (CPU)")
    parser.add_argument("--part", default="all", choices=["all", "encoder"])
    parser.add_argument("--copies", type=int, default=1, help="the batch is repeated so many times (4 proteins each)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def measure(args: argparse.Namespace) -> None:
    """Run the configurations of one command line, and print a few lines for each."""
    if args.device == "cpu":
        keep_freed_memory()
        if "bf16" in args.amp:
            keep_few_plans()

    name = torch.cuda.get_device_name() if args.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {args.device} ({name}), {platform.machine()}")
    forms = ["fast", args.against] if args.against else ["fast"]
    before = peak_memory(torch.device(args.device)) / 1e3  # GB
    for method in list(OBJECTIVES) if "all" in args.method else args.method:  # one at a time: some weigh 1.4 GB
        for setting in itertools.product([method], args.level, args.encoder, args.size, args.amp):
            try:
                steps = [Step((*setting, form), args.preset, args.part, args.copies, args.device) for form in forms]
            except ValueError as error:  # there is no such thing at this level
                print(f"{' '.join(setting)}: {error}")
                continue
            rates, width = [], min(steps[0].objective.encoder.out_dim, 3072)
            for number in range(2):
                steps[0].run(number)  # warms up, and takes what memory steps alone take
            memory = peak_memory(torch.device(args.device)) / 1e3
            for step in steps:
                step.run(0)
                step.seconds, step.clock = [], Clock(args.device)
            for number in range(1, args.repeats + 1):
                for step in steps:
                    step.run(number)
                rates.append(matmul_rate(args.device, setting[-1], width))
            for number in range(1, args.repeats + 1):
                steps[0].run(number, count=True)
            report(steps[0], rates, steps[1] if args.against else None)
            print(f"    peak memory so far {memory:.2f} GB, {before:.2f} GB of it before the first step")
