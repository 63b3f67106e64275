"""Everything to know about a GPU, in less than ten minutes: is it right, is it fast, does it fit. Prints Markdown.

    python -m benchmarks.gpu | tee gpu.md

The golden tests on the device, bfloat16 against float32 over 50 steps, determinism, steps of both levels at several
batches in float32, TF32 and bfloat16 with their memory and the waits of the host, the kernels that take longest,
training with its loader, and torchrun (two processes, or one on a single card). If a part fails, it says why, and the
next one follows. On a CPU it does the same with the smallest networks, to show that it works.
"""

import argparse
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.machine import keep_freed_memory, peak_memory
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.protein import Protein

from .step import load_batch

ROOT = Path(__file__).parent.parent
KINDS = {"float32": ("off", "highest"), "TF32": ("off", "high"), "bf16": ("bf16", "highest")}  # amp, float32 products


class Run:
    """SiamDiff on a batch of the benchmark, again and again."""

    def __init__(self, level: str, size: str, kind: str, copies: int, device: str):
        torch.manual_seed(0)
        self.device, (self.amp, precision) = device, KINDS[kind]
        torch.set_float32_matmul_precision(precision)
        self.objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"](level, size), level).to(device)
        self.adam = torch.optim.Adam(self.objective.parameters(), lr=1e-4, fused=True)
        proteins = load_batch(level).unpack()
        if device == "cpu":
            proteins = [p.crop(0, 25) for p in proteins]
        self.batch = Protein.pack(proteins * copies).to(device)
        self.generator = torch.Generator(device)

    def step(self, number: int) -> torch.Tensor:
        """One step; its draws are those of its number."""
        self.generator.manual_seed(number)
        self.adam.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.amp == "bf16"):
            loss, _ = self.objective(self.batch, self.generator)
        loss.backward()
        self.adam.step()
        return loss.detach()

    def seconds(self, steps: int) -> float:
        """Of one of some steps, all given to the device at once."""
        started = time.perf_counter()
        loss = torch.stack([self.step(number) for number in range(steps)])
        loss.tolist()  # waits for all of them
        return (time.perf_counter() - started) / steps

    def waits(self) -> int:
        """How often the host waits for the device in one step; 0 on a CPU."""
        if self.device == "cpu":
            return 0
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.step(0)
        torch.cuda.set_sync_debug_mode("default")
        return sum("synchronizing" in str(warning.message) for warning in caught)


def losses(level: str, size: str, kind: str, device: str, steps: int = 50) -> list[float]:
    """Of every step of a short training on the benchmark's batch."""
    run = Run(level, size, kind, 1, device)
    return torch.stack([run.step(number) for number in range(steps)]).tolist()


def deviation(level: str, size: str, device: str, steps: int = 50) -> float:
    """The loss in bfloat16 over that in float32, less 1: means over the second half of the steps."""
    means = [statistics.mean(losses(level, size, kind, device, steps)[steps // 2 :]) for kind in ("bf16", "float32")]
    return means[0] / means[1] - 1


def train(device: str, size: str, *options: str, ranks: int = 0, timeout: float) -> dict:
    """The last training line of metrics.jsonl of a run of train.py on the bundle, and hashes of its weights.

    With `ranks` it is started by torchrun.
    """
    with tempfile.TemporaryDirectory() as out:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"] if ranks else []
        command = [sys.executable, *launch, "train.py", "--device", device, "--size", size, "--out", out, *options]
        execute(command, timeout)
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
        saved = torch.load(Path(out) / "encoder.pt", weights_only=True)["state"]
    last = next(line for line in reversed(lines) if line["split"] == "train")
    return last | {"weights": {name: hashlib.sha256(x.numpy()).hexdigest() for name, x in saved.items()}}


def execute(command: list[str], timeout: float) -> str:
    """What a command prints. Raises RuntimeError with its last words if it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not finished within {timeout:.0f} s") from None
    if done.returncode:
        lines = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        words = [line for line in lines if re.search(r"[Ee]rror: *\S", line)] or lines or [""]
        raise RuntimeError(f"status {done.returncode}: {words[-1][:300]}")
    return done.stdout


@contextmanager
def section(title: str) -> Iterator[None]:
    """A part of the report; an error ends it, and is told."""
    print(f"\n### {title}\n", flush=True)
    started = time.perf_counter()
    try:
        yield
    except Exception as error:  # whatever it is, the next section may still tell something
        print(f"\n**{type(error).__name__}**: {str(error).splitlines()[0] if str(error) else ''}")
    print(f"\n({time.perf_counter() - started:.0f} s)", flush=True)


def table(level: str, size: str, device: str, copies: list[int], left: Callable[[], float]) -> None:
    """Steps of a level: one row for every batch and kind of numbers."""
    columns = ["level", "proteins", "numbers", "step, ms", "proteins/s", "peak memory, GB", "waits"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for number, kind in ((n, kind) for n in copies for kind in KINDS):
        row = f"| {level} | {4 * number} | {kind}"
        if left() < 20:
            print(f"{row} | no time left | | | |")
            continue
        try:
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            run = Run(level, size, kind, number, device)
            run.seconds(2)
            times = [run.seconds(3 if device == "cuda" else 1) for _ in range(3)]
            median, memory = statistics.median(times), peak_memory(torch.device(device)) / 1e3
            figures = f"{median * 1e3:.1f} | {4 * number / median:.1f} | {memory:.2f} | {run.waits()}"
        except torch.OutOfMemoryError:
            figures = "out of memory | | |"
        print(f"{row} | {figures} |", flush=True)


def longest(level: str, size: str, device: str, copies: int) -> None:
    """The operations that take most of a step in bfloat16."""
    run = Run(level, size, "bf16", copies, device)
    run.step(0)
    cuda = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiled:
        run.step(1).item()
    events = {e.key: e.self_device_time_total if cuda else e.self_cpu_time_total for e in profiled.key_averages()}
    whole = sum(events.values())
    print(f"{level}, {4 * copies} proteins, bf16: {whole / 1e3:.1f} ms on the device\n\n| what | share |\n|---|---|")
    for name in sorted(events, key=events.get, reverse=True)[:12]:
        print(f"| `{name[:100].replace('|', '/')}` | {events[name] / whole:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--minutes", type=float, default=9.5, help="what does not fit is left out")
    parser.add_argument("--copies", type=int, nargs="+", help="batches of the table, 4 proteins each (1 4 16; CPU: 1)")
    parser.add_argument("--steps", type=int, help="of the comparisons (50; CPU: 4)")
    args = parser.parse_args()
    device, cuda, started = args.device, args.device == "cuda", time.perf_counter()
    copies, steps, size = args.copies or [1, 4, 16] if cuda else [1], args.steps or (50 if cuda else 4), "tiny"
    if cuda:
        size, name = "paper", torch.cuda.get_device_name()
        name += f" ({torch.cuda.get_device_properties(0).total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda})"
    else:
        keep_freed_memory()
        name = f"CPU, {torch.get_num_threads()} threads"

    def left() -> float:
        return max(args.minutes * 60 - (time.perf_counter() - started), 1.0)

    print(f"## {name}, torch {torch.__version__}, {os.cpu_count()} cores; networks of size {size}")
    with section("Golden tests"):
        tests = ["-k", f"golden and {device}", "tests/encoders", "tests/pretraining"]
        print(execute([sys.executable, "-m", "pytest", "-q", *tests], left()).splitlines()[-1])
    with section(f"bfloat16 against float32, {steps} steps: relative difference of the loss"):
        for level in ("atom", "residue"):
            print(f"- {level}: {deviation(level, size, device, steps):+.2%}")
    with section("Deterministic: are two runs the same?"):
        some = ["--deterministic", "--level", "atom", "--max-steps", "3", "--batch-size", "4", "--num-workers", "0"]
        first, second = (train(device, "tiny", *some, timeout=left() / 2)["weights"] for _ in range(2))
        print("the same to the last bit" if first == second else "**they differ**")
    for level in ("atom", "residue"):
        with section(f"Steps, {level} level"):
            table(level, size, device, copies, left)
    for level in ("atom", "residue") if left() > 60 else ():
        with section(f"What takes longest, {level} level"):
            longest(level, size, device, copies[-1] // 4 or 1)
    cores = str(min(8, os.cpu_count() or 1)) if cuda else "0"
    for level in ("atom", "residue") if left() > 40 else ():
        with section(f"Training with its loader, {level} level"):
            batch, most = ("16", "60") if cuda else ("4", "2")
            options = ["--batch-size", batch, "--max-steps", most, "--log-every", str(int(most) // 2)]
            options += ["--level", level, "--amp", "bf16", "--num-workers", cores]
            found = train(device, size, *options, timeout=left())
            rate, memory = found["proteins_per_second"], found["peak_memory_mb"] / 1e3
            print(f"batches of {batch}, bf16, {cores} processes that load: {rate:.1f} proteins/s, {memory:.2f} GB")
    with section("torchrun"):  # NCCL wants a card for every process
        ranks, backend = (min(2, torch.cuda.device_count()), "nccl") if cuda else (2, "gloo")
        options = ["--level", "atom", "--batch-size", "4", "--max-steps", "4", "--log-every", "2", "--num-workers", "0"]
        found = train(device, "tiny", *options, ranks=ranks, timeout=left())
        print(f"processes: {ranks}, {backend}, size tiny: {found['proteins_per_second']:.1f} proteins/s")
    print(f"\nall in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
