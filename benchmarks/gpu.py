"""Everything to know about a GPU, in less than ten minutes: is it right, is it fast, does it fit. Prints Markdown.

    python -m benchmarks.gpu | tee gpu.md

bfloat16 against float32 over 50 steps, determinism, steps of both levels at several batches in float32, TF32 and
bfloat16 with their memory and the waits of the host, and training with its loader. If a part fails, it says why, and
the next one follows. On a CPU it does the same with the smallest networks. `pytest -m gpu` runs the golden tests.
"""

import argparse
import hashlib
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

from benchmarks.speed import ROOT, last_line
from benchmarks.step import DEVICE, Step, timed

KINDS = {"float32": ("off", "highest"), "TF32": ("off", "high"), "bf16": ("bf16", "highest")}  # amp, float32 products


def stepper(level: str, size: str, kind: str, copies: int, device: str) -> Step:
    """SiamDiff on the batch of a level, taken so many times."""
    amp, precision = KINDS[kind]
    torch.set_float32_matmul_precision(precision)
    return Step(level, "gearnet", size, amp, "paper", "all", device, copies=copies)


def losses(step: Step, steps: int) -> list[float]:
    """Of some steps, all given to the device at once."""
    return torch.stack([step.update(number) for number in range(steps)]).tolist()


def waits(step: Step) -> int:
    """How often the host waits for the device in one step."""
    if step.device == "cpu":
        return 0
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step.update(0)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)


def train(device: str, size: str, *options: str) -> dict:
    """The last training line of a run of train.py on the bundle, and hashes of its weights.

    Raises RuntimeError with the last words of a run that fails.
    """
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "train.py", "--device", device, "--size", size, "--out", out, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")
        saved = torch.load(Path(out) / "encoder.pt", weights_only=True)["state"]
        hashes = {name: hashlib.sha256(x.numpy()).hexdigest() for name, x in saved.items()}
        return last_line(Path(out)) | {"weights": hashes}


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
            figures = f"{median * 1e3:.1f} | {4 * number / median:.1f} | {step.memory():.2f} | {waits(step)}"
        except torch.OutOfMemoryError:
            figures = "out of memory | | |"
        print(f"| {level} | {4 * number} | {kind} | {figures} |", flush=True)


def main(device: str = DEVICE) -> None:
    cuda = device == "cuda"
    copies, steps = ([1, 4, 16], 50) if cuda else ([1], 4)  # of the batch of 4 proteins; of the comparisons
    size, cores = ("paper", str(min(8, os.cpu_count()))) if cuda else ("tiny", "0")
    print(f"## {torch.cuda.get_device_name() if cuda else 'CPU'}, torch {torch.__version__}; networks of size {size}")
    with section(f"bfloat16 against float32, {steps} steps: relative difference of the mean loss of the second half"):
        for level in ("atom", "residue"):
            both = (losses(stepper(level, size, kind, 1, device), steps)[steps // 2 :] for kind in ("bf16", "float32"))
            low, full = map(statistics.mean, both)
            print(f"- {level}: {low / full - 1:+.2%}")
    with section("Deterministic: are two runs the same?"):
        some = ["--deterministic", "--level", "atom", "--max-steps", "3", "--batch-size", "4", "--num-workers", "0"]
        first, second = (train(device, "tiny", *some)["weights"] for _ in range(2))
        print("the same to the last bit" if first == second else "**they differ**")
    for level in ("atom", "residue"):
        with section(f"Steps, {level} level"):
            table(level, size, device, copies)
        with section(f"Training with its loader, {level} level"):
            batch, most = ("16", "60") if cuda else ("4", "2")
            options = ["--batch-size", batch, "--max-steps", most, "--log-every", str(int(most) // 2)]
            options += ["--level", level, "--amp", "bf16", "--num-workers", cores]
            found = train(device, size, *options)
            rate, memory = found["proteins_per_second"], found["peak_memory_mb"] / 1e3
            print(f"batches of {batch}, bf16, {cores} processes that load: {rate:.1f} proteins/s, {memory:.2f} GB")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    main()
