"""Time and memory of one full pre-training step: both views forward, all heads, backward, Adam.

    python -m benchmarks.speed step [--method siamdiff] [--level atom residue] [--size paper tiny] [--amp off bf16]
                                    [--device cpu] [--preset official] [--against plain] [--part all|encoder]

The batches are real: four chains of 100 residues (atom level) or of 150 (residue level), in `benchmarks/batches/`.
Noise levels and masks of a step follow from its number, so all configurations see the same. Prints for each median and
range in seconds, the rate of its matrix products beside that of large ones, and its memory. `--against plain` takes
steps with the formulas as published (`encoders/formulas.py`) in turn with these. `--part encoder` is the encoder alone,
one view, forward and backward.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from siamdiff_min.encoders import ENCODERS, formulas
from siamdiff_min.machine import keep_few_plans, keep_freed_memory, peak_memory
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import ATOM_ELEMENT
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import SIZES

LISTS = ("method", "level", "encoder", "size", "amp")  # options with several values


def timed(work, device: str = "cpu"):
    """What `work()` returns, and its seconds, until the GPU has done its part."""
    started = time.perf_counter()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def load_batch(level: str) -> Protein:
    """The benchmark batch of a level, as float32 on the CPU."""
    with np.load(Path(__file__).parent / "batches" / f"{level}.npz", allow_pickle=False) as arrays:
        a = {name: torch.from_numpy(x) for name, x in arrays.items()}
    sizes, residues = a["num_residues"], len(a["residue_type"])
    return Protein(
        pos=a["pos"],
        element=torch.tensor(ATOM_ELEMENT)[a["atom_name"].long()],
        atom_name=a["atom_name"].long(),
        atom_residue=a["atom_residue"].long(),
        residue_type=a["residue_type"].long(),
        masked=torch.zeros(residues, dtype=torch.bool),
        residue_number=a["residue_number"].long(),
        insertion_code=torch.full((residues,), ord(" ")),
        residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]),
        chain=torch.zeros(residues, dtype=torch.long),
        residue_protein=torch.arange(len(sizes)).repeat_interleave(sizes),
        num_proteins=len(sizes),
    )


class Step:
    """One configuration, ready to be stepped."""

    def __init__(self, setting: tuple[str, ...], args: argparse.Namespace, form: str = "fast"):
        method, level, encoder, size, self.amp = setting
        self.name, self.args, self.form = " ".join([*setting, args.preset, form]), args, form
        torch.manual_seed(0)
        network = ENCODERS[encoder](level, size, args.preset)
        self.objective = OBJECTIVES[method](network, level, args.preset).to(args.device)
        self.adam = torch.optim.Adam(self.objective.parameters(), lr=1e-4, fused=True)
        self.batch = Protein.pack([load_batch(level)] * args.copies).to(args.device)
        self.seconds = []

    def update(self, number: int) -> torch.Tensor:
        """One step, and its loss."""
        self.adam.zero_grad()
        generator = torch.Generator(self.args.device).manual_seed(number)
        with (
            patch.object(formulas, "form", self.form),
            torch.autocast(self.args.device, torch.bfloat16, enabled=self.amp == "bf16"),
        ):
            if self.args.part == "encoder":
                loss = self.objective.encoder(self.batch).node.square().mean()
            else:
                loss, _ = self.objective(self.batch, generator)
        loss.backward()
        if self.args.part == "all":
            self.adam.step()
        return loss.detach()

    def run(self, number: int) -> None:
        """One step, timed."""
        self.seconds.append(timed(lambda: self.update(number), self.args.device)[1])


def product_rate(device: str, amp: str, width: int) -> float:
    """FLOP/s of a product of 16,384 rows with a square matrix of the width of the heads."""
    kind = torch.bfloat16 if amp == "bf16" else torch.float32
    x, w = torch.randn(16384, width, device=device, dtype=kind), torch.randn(width, width, device=device, dtype=kind)
    return 2 * x.numel() * width / statistics.median(timed(lambda: x @ w, device)[1] for _ in range(8))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", nargs="+", default=["siamdiff"], choices=list(OBJECTIVES))
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
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads")
    for setting in itertools.product(*(getattr(args, name) for name in LISTS)):
        steps = [Step(setting, args, form) for form in (["fast", "plain"] if args.against else ["fast"])]
        for step in steps:
            step.run(0)
            step.seconds = []
        memory, rates = peak_memory(torch.device(args.device)) / 1e3, []
        for number in range(1, args.repeats + 1):
            for step in steps:
                step.run(number)
            rates.append(product_rate(args.device, setting[-1], min(steps[0].objective.encoder.out_dim, 3072)))
        first, *plain = steps
        with FlopCounterMode(display=False) as counter:
            first.update(1)
        flop, median, rate = counter.get_total_flops(), statistics.median(first.seconds), statistics.median(rates)
        print(f"{first.name}: {median:.3f} s ({min(first.seconds):.3f} .. {max(first.seconds):.3f}), ", end="")
        print(f"{first.batch.num_proteins / median:.1f} proteins/s, peak memory so far {memory:.2f} GB")
        print(f"    products {flop / 1e12:.2f} TFLOP, {flop / median / rate:.0%} of the rate of large products")
        for step in plain:
            ratios = [a / b for a, b in zip(step.seconds, first.seconds)]
            print(f"    {statistics.median(ratios):.2f} x as fast as plain ({min(ratios):.2f} .. {max(ratios):.2f})")
