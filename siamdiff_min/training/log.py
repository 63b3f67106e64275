"""What a run writes down: metrics.jsonl line by line, and lines for those who watch."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..files import SiamDiffError, printable, write_file, writing
from .ranks import Ranks, Record, means
from .run import Run

try:
    import resource
except ImportError:  # Windows
    resource = None

NO_MEASURE = {"step", "epoch", "stage", "split", "seconds", "lr", "peak_memory_mb"}


class Step(NamedTuple):
    """What was measured in one step of the optimizer, on its device."""

    records: list[Record]  # of each of our parts of the global batch
    losses: list[tuple[list[str], Tensor]]  # the proteins of each part, and their loss ()
    total: Tensor  # () loss and norm of the gradient; not finite if one of them is not


class Log:
    """The metrics of a run, as a context; `unit` is what the items are, in the plural.

    On resuming, the lines that were written after the checkpoint are removed.
    """

    def __init__(self, run: Run, unit: str):
        self.run, self.unit, self.start = run, unit, time.perf_counter()
        self.path, self.file = Path(run.config.out) / "metrics.jsonl", None
        self.steps: dict[int, Step] = {}  # those since the last line of the training

    def __enter__(self) -> Log:
        run = self.run
        if run.ranks.rank == 0:
            text = self.path.read_bytes() if self.path.exists() else b""
            kept = [line for line in text.splitlines(keepends=True) if is_before(line, run.step)]
            write_file(self.path, b"".join(kept))
            self.file = open(self.path, "ab")
        self.bar = run.ranks.bar(total=run.total, initial=run.step, unit="step")
        return self

    def __exit__(self, *error) -> None:
        self.bar.close()
        if self.file:
            self.file.close()

    def begin_step(self) -> None:
        """Start the clock, unless it is running since the last line."""
        if not self.steps:
            self.since = time.perf_counter()

    def end_step(self, step: Step) -> None:
        """Remember what was measured."""
        self.steps[self.run.step] = step
        self.bar.update()

    def train(self) -> float:
        """A line with the means over all steps since the last one. Returns the sum of their losses.

        Here the host waits for the device. Raises SiamDiffError, on all ranks, if a loss or gradient is not finite.
        """
        run = self.run
        check_finite(self.steps, run.ranks)
        values = means([record for step in self.steps.values() for record in step.records], run.ranks)
        rate = len(self.steps) * run.config.global_batch_size / (time.perf_counter() - self.since)
        speed = {"lr": run.optimizer.param_groups[-1]["lr"], f"{self.unit}_per_second": rate}
        memory = peak_memory(run.ranks.device)
        self.write(split="train", **values, **speed, **({} if memory is None else {"peak_memory_mb": memory}))
        self.bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {self.unit}/s", refresh=False)
        total = values["loss"] * len(self.steps)
        self.steps = {}
        return total

    def valid(self, values: dict[str, float]) -> dict[str, float]:
        """A line with what a validation has measured, if anything, and the same to read."""
        run = self.run
        if values:
            self.write(split="valid", **values)
            at = f"step {run.step:>6}  epoch {run.epoch}" + f"  stage {run.stage}" * run.staged
            shown = (f"{name} {value:.4g}{beside(name, values)}" for name, value in in_order(values))
            run.ranks.say(f"{at}  valid: {'  '.join(shown)}")
        return values

    def write(self, **values) -> None:
        """One line of metrics.jsonl, to the disk; `step` counts those that are done."""
        if self.file:
            stage = {"stage": self.run.stage} if self.run.staged else {}
            line = {"step": self.run.step, "epoch": self.run.epoch, **stage, **values}
            line["seconds"] = time.perf_counter() - self.start
            with writing(self.path):
                self.file.write((json.dumps(line) + "\n").encode())
                self.file.flush()
                os.fsync(self.file.fileno())


def is_before(line: bytes, step: int) -> bool:
    """Whether a line of metrics.jsonl is whole, and of no later step."""
    return line.endswith(b"\n") and json.loads(line)["step"] <= step


def check_finite(steps: dict[int, Step], ranks: Ranks) -> None:
    """Raise SiamDiffError, on all ranks, that names the proteins of the first step that went wrong."""
    bad = ranks.gather([number for number, step in steps.items() if not math.isfinite(step.total)])
    if bad:
        losses = ranks.gather([(names, float(loss)) for names, loss in steps[min(bad)].losses])
        losses = [loss for loss in losses if not math.isfinite(loss[1])] or losses
        listing = "; ".join(f"loss {loss:.4g}: {', '.join(map(printable, names))}" for names, loss in losses)
        problem = f"step {min(bad)}: the loss or its gradient is not finite. Proteins: {listing}"
        raise SiamDiffError(f"{problem}. Lower --lr, or leave them out")


def in_order(values: dict[str, float]) -> list[tuple[str, float]]:
    """Measures as a reader wants them: loss, accuracies, other losses, the rest; without the constant predictors."""
    names = sorted(values, key=lambda name: (name != "loss", "accuracy" not in name, not name.endswith("_loss")))
    return [(name, values[name]) for name in names if not name.endswith("_constant")]


def beside(name: str, values: dict[str, float]) -> str:
    """The loss of the best constant prediction, in brackets."""
    constant = values.get(f"{name}_constant")
    return "" if constant is None else f" ({constant:.4g})"


def peak_memory(device: torch.device) -> float | None:
    """Most memory this process has used so far, in MB: of the GPU's tensors when on one. None on Windows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
