"""Everything to know about a GPU, in less than ten minutes: is it right, is it fast, does it fit. Prints Markdown.

    python -m benchmarks.gpu | tee gpu.md

bfloat16 against float32 over 50 steps, determinism, steps of both levels at several batches in float32, TF32 and
bfloat16 with their memory and the waits of the host, and training with its loader. If a part fails, it says why, and
the next one follows. On a CPU it does the same with the smallest networks. `pytest -m gpu` runs the golden tests.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.step import Step, timed
from siamdiff_min.machine import keep_freed_memory, peak_memory

ROOT = Path(__file__).parent.parent
KINDS = {"float32": ("off", "highest"), "TF32": ("off", "high"), "bf16": ("bf16", "highest")}  # amp, float32 products


def stepper(level: str, size: str, kind: str, copies: int, device: str) -> Step:
    """SiamDiff on the batch of a level, taken so many times."""
    amp, precision = KINDS[kind]
    torch.set_float32_matmul_precision(precision)
    args = argparse.Namespace(device=device, preset="paper", part="all", copies=copies)
    return Step(("siamdiff", level, "gearnet", size, amp), args)


def losses(step: Step, steps: int) -> list[float]:
    """Of some steps, all given to the device at once."""
    return torch.stack([step.update(number) for number in range(steps)]).tolist()


def waits(step: Step) -> int:
    """How often the host waits for the device in one step."""
    if step.args.device == "cpu":
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step.update(0)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def train(device: str, size: str, *options: str, timeout: float) -> dict:
    """The last training line of metrics.jsonl of a run of train.py on the bundle, and hashes of its weights."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "train.py", "--device", device, "--size", size, "--out", out, *options]
        execute(command, timeout)
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
        saved = torch.load(Path(out) / "encoder.pt", weights_only=True)["state"]
    last = next(line for line in reversed(lines) if line["split"] == "train")
    return last | {"weights": {name: hashlib.sha256(x.numpy()).hexdigest() for name, x in saved.items()}}


def execute(command: list[str], timeout: float) -> str:
    """What a command prints. Raises RuntimeError with its last words if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")
    return done.stdout


@contextmanager
def section(title: str):
    """A part of the report; an error ends it, and is told."""
    print(f"\n### {title}\n", flush=True)
    started = time.perf_counter()
    try:
        yield
    except Exception as error:  # whatever it is, the next section may still tell something
        print(f"\n**{type(error).__name__}**: {error}")
    print(f"\n({time.perf_counter() - started:.0f} s)", flush=True)


def table(level: str, size: str, device: str, copies: list[int]) -> None:
    """Steps of a level: one row for every batch and kind of numbers."""
    print("| level | proteins | numbers | step, ms | proteins/s | peak memory, GB | waits |\n|" + "---|" * 7)
    for number, kind in ((n, kind) for n in copies for kind in KINDS):
        try:
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            step, steps = stepper(level, size, kind, number, device), 3 if device == "cuda" else 1
            losses(step, 2)
            median = statistics.median(timed(lambda: losses(step, steps))[1] for _ in range(3)) / steps  # noqa: B023
            memory = peak_memory(torch.device(device)) / 1e3
            figures = f"{median * 1e3:.1f} | {4 * number / median:.1f} | {memory:.2f} | {waits(step)}"
        except torch.OutOfMemoryError:
            figures = "out of memory | | |"
        print(f"| {level} | {4 * number} | {kind} | {figures} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--copies", type=int, nargs="+", help="batches of the table, 4 proteins each (1 4 16; CPU: 1)")
    parser.add_argument("--steps", type=int, help="of the comparisons (50; CPU: 4)")
    args = parser.parse_args()
    device, cuda = args.device, args.device == "cuda"
    copies, steps = args.copies or ([1, 4, 16] if cuda else [1]), args.steps or (50 if cuda else 4)
    size, cores = ("paper", str(min(8, os.cpu_count()))) if cuda else ("tiny", "0")
    if not cuda:
        keep_freed_memory()
    print(f"## {torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}; networks of size {size}")
    with section(f"bfloat16 against float32, {steps} steps: relative difference of the mean loss of the second half"):
        for level in ("atom", "residue"):
            both = (losses(stepper(level, size, kind, 1, device), steps)[steps // 2 :] for kind in ("bf16", "float32"))
            low, full = map(statistics.mean, both)
            print(f"- {level}: {low / full - 1:+.2%}")
    with section("Deterministic: are two runs the same?"):
        some = ["--deterministic", "--level", "atom", "--max-steps", "3", "--batch-size", "4", "--num-workers", "0"]
        first, second = (train(device, "tiny", *some, timeout=120)["weights"] for _ in range(2))
        print("the same to the last bit" if first == second else "**they differ**")
    for level in ("atom", "residue"):
        with section(f"Steps, {level} level"):
            table(level, size, device, copies)
        with section(f"Training with its loader, {level} level"):
            batch, most = ("16", "60") if cuda else ("4", "2")
            options = ["--batch-size", batch, "--max-steps", most, "--log-every", str(int(most) // 2)]
            options += ["--level", level, "--amp", "bf16", "--num-workers", cores]
            found = train(device, size, *options, timeout=120)
            rate, memory = found["proteins_per_second"], found["peak_memory_mb"] / 1e3
            print(f"batches of {batch}, bf16, {cores} processes that load: {rate:.1f} proteins/s, {memory:.2f} GB")


if __name__ == "__main__":
    main()
