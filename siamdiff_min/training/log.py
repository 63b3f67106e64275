"""What a run writes down: metrics.jsonl line by line, lines for those who watch, and the table at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from tqdm import tqdm

from ..files import writing
from .ranks import Record, means
from .run import Run

try:
    import resource
except ImportError:  # Windows
    resource = None

NO_MEASURE = {"step", "epoch", "stage", "split", "seconds", "lr", "peak_memory_mb"}


class Log:
    """The metrics of a run, as a context; `unit` is what the items are, in the plural.

    On resuming, the lines that were written after the checkpoint are removed.
    """

    def __init__(self, run: Run, unit: str):
        self.run, self.unit, self.start = run, unit, time.perf_counter()
        self.path, self.file = Path(run.config.out) / "metrics.jsonl", None
        self.records: list[Record] = []  # of the steps since the last line of the training

    def __enter__(self) -> Log:
        if self.run.ranks.rank == 0:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self.file = open(self.path, "ab")
                self.file.truncate(min(self.run.metrics_size, self.file.tell()))
        hidden = None if self.run.ranks.rank == 0 else True  # None: shown on a terminal only
        self.bar = tqdm(total=self.run.total, initial=self.run.step, unit="step", disable=hidden)
        return self

    def __exit__(self, *error) -> None:
        self.bar.close()
        if self.file:
            with writing(self.path):  # the last lines may still be in memory
                self.file.close()

    def begin_step(self) -> None:
        """Start the clock, unless it is running since the last line."""
        if not self.records:
            self.since, self.since_step = time.perf_counter(), self.run.step

    def end_step(self, records: list[Record]) -> None:
        """Remember what was measured in a step."""
        self.records += records
        self.bar.update()
        run = self.run
        run.ranks.still(lambda: f"step {run.step:>6} of {run.total}  loss {means(self.records, 1)['loss']:.4g}")

    def train(self) -> float:
        """A line with the means over all steps since the last one. Returns the sum of their losses."""
        values, steps = means(self.records, self.run.ranks.world), self.run.step - self.since_step
        rate = steps * self.run.config.global_batch_size / (time.perf_counter() - self.since)
        speed = {"lr": self.run.optimizer.param_groups[-1]["lr"], f"{self.unit}_per_second": rate}
        memory = peak_memory(self.run.ranks.device)
        self.write(split="train", **values, **speed, **({} if memory is None else {"peak_memory_mb": memory}))
        self.bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {self.unit}/s")
        self.records = []
        return values["loss"] * steps

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
        """One line of metrics.jsonl; `step` counts those that are done."""
        if self.file:
            stage = {"stage": self.run.stage} if self.run.staged else {}
            line = {"step": self.run.step, "epoch": self.run.epoch, **stage, **values}
            line["seconds"] = time.perf_counter() - self.start
            with writing(self.path):
                self.file.write((json.dumps(line) + "\n").encode())
                self.file.flush()  # for those who watch the file

    def sync(self) -> int:
        """Wait until the lines are on the disk; the size of the file, on rank 0."""
        if not self.file:
            return 0
        with writing(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()


def in_order(values: dict[str, float]) -> list[tuple[str, float]]:
    """Measures as a reader wants them: loss, accuracies, other losses, the rest; without the constant predictors."""
    names = sorted(values, key=lambda name: (name != "loss", "accuracy" not in name, not name.endswith("_loss")))
    return [(name, values[name]) for name in names if not name.endswith("_constant")]


def beside(name: str, values: dict[str, float]) -> str:
    """The loss of the best constant prediction, in brackets."""
    constant = values.get(f"{name}_constant")
    return "" if constant is None else f" ({constant:.4g})"


def summary(metrics: Path) -> str:
    """The first and the last line of every measure of a metrics.jsonl, stage by stage, as a table.

    Losses have beside them what the best constant prediction costs.
    """
    first, last = {}, {}
    for text in Path(metrics).read_text().splitlines():
        line = json.loads(text)
        values = {k: v for k, v in line.items() if k not in NO_MEASURE and not k.endswith("_per_second")}
        key = line.get("stage", 1), line["split"]
        first[key], last[key] = values | first.get(key, {}), last.get(key, {}) | values
    rows = [f"{'stage':5}  {'split':5}  {'measure':24}  {'start':>10}  {'end':>10} (of a constant)"]
    for stage, split in sorted(first):
        begin, end = first[stage, split], last[stage, split]
        for name, value in in_order(end):
            at = f"{stage:<5}  {split:5}  {name:24}"
            rows.append(f"{at}  {begin[name]:>10.4g}  {value:>10.4g}{beside(name, end)}")
    return "\n".join(rows)


def peak_memory(device: torch.device) -> float | None:
    """Most memory this process has used so far, in MB: of the GPU's tensors when on one. None on Windows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
