"""A training run: its state, with `save` and `restore` side by side, and its lines of metrics.jsonl."""

from __future__ import annotations

import json
import math
import os
import time
from argparse import Namespace
from collections import deque
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..encoders.weights import CHECKPOINT, load_weights, not_readable, read_weights
from ..files import ConfigError, SiamDiffError, printable, write_file, writing
from ..machine import peak_memory
from . import checkpoint
from .batches import Data
from .config import check_resumable, flag
from .log import beside, in_order, lines_before
from .ranks import Ranks, Record, means


class Step(NamedTuple):
    """The measurements of one step of the optimizer, on its device."""

    parts: list[tuple[list[str], Record]]  # the proteins of each of our parts of the global batch, and their logs
    loss_and_norm: Tensor  # () loss plus norm of the gradient; not finite if one of them is not


class Run:
    """The state of a run: weights, optimizer, schedule, step. It begins at step 0, or where its checkpoint left off.

    Args:
        config: the options; `epochs` are one number, or two for the stages of `objective.set_stage`.
        objective: (batch, generator) -> (loss, logs).
        data: what it trains on. A run is not resumed on other data.
        plateau: (measure of the validation, or "loss" for the training loss; "max" or "min"): the learning rate falls
            to 0.6 of itself after six epochs in a row without a better one (differences.md, row 21: in fine-tuning).
        unit: what the items of the data are, in the plural.
        also: the other data that decide on the result, as a word: validation, classes. They must not change either.

    Raises CheckpointError, and ConfigError if the checkpoint does not fit the options or the data, if --out belongs to
    another run, or if there is nothing to train on.
    """

    def __init__(
        self,
        config: Namespace,
        objective: nn.Module,
        data: Data,
        ranks: Ranks,
        plateau: tuple[str, str] | None = None,
        unit: str = "proteins",
        also: str = "",
    ):
        if not len(data.indices):
            raise ConfigError("no proteins to train on")
        for name in not_readable(vars(config)):  # an option of a plugin
            problem = f"{flag(name)} is {getattr(config, name)!r:.50}, which no checkpoint can give back"
            raise ConfigError(f"{problem}: options must be numbers, words, or lists of them")
        self.config, self.ranks, self.unit = config, ranks, unit
        self.data, self.trained_on = data, [len(data.indices), data.dataset.checksum, also]
        self.per_epoch = max(1, len(data.indices) // config.global_batch_size)  # steps
        self.staged, self.stage_2_begins = len(config.epochs) > 1, config.epochs[0] * self.per_epoch
        self.planned_steps = sum(config.epochs) * self.per_epoch
        self.last_step = min(self.planned_steps, config.max_steps or self.planned_steps)

        self.objective = objective.to(ranks.device).train()
        if ranks.world > 1 and ranks.device.type == "cuda":
            self.objective = nn.SyncBatchNorm.convert_sync_batchnorm(self.objective)
        trained = groups(self.objective, config.lr)
        self.optimizer = torch.optim.Adam(trained, weight_decay=config.weight_decay, fused=True)
        self.scheduler, self.measure = None, None
        if plateau and config.lr_decay == "none":
            self.measure, mode = plateau
            self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, mode, factor=0.6, patience=5)
        self.step = 0  # the number of steps that are done
        self.stage = self.epoch = None  # of the current step
        self.epoch_loss = 0.0  # sum over the steps of this epoch
        self.steps: dict[int, Step] = {}  # the steps since the last line of the training
        self.window: deque[list[Record]] = deque(maxlen=config.log_every)  # the logs of the stage's last steps
        self.restore()
        self.path = Path(config.out) / "metrics.jsonl"
        if ranks.rank == 0:  # without the lines that were written after the checkpoint
            write_file(self.path, lines_before(self.path, self.step))
        self.start, self.cpu_start = time.perf_counter(), time.process_time()
        self.first = self.step  # of this process
        self.bar = ranks.bar(total=self.last_step, initial=self.step, unit="step")

        self.model = self.objective
        if ranks.world > 1:
            # DDP reorders its buckets after step 1, unless find_unused_parameters is set. With three or more processes
            # that changes the last bit, and a resumed run would differ.
            leaves_out = getattr(config, "ablation", "none") != "none"  # a loss, so some parameters have no gradient
            exact = ranks.device.type == "cpu" and ranks.world > 2
            self.model = DistributedDataParallel(self.objective, find_unused_parameters=leaves_out or exact)

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint; rank 0 does."""
        if self.ranks.rank == 0:
            state = {
                "config": vars(self.config),
                "data": self.trained_on,
                "step": self.step,
                "epoch_loss": self.epoch_loss,
                "objective": self.objective.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler and self.scheduler.state_dict(),
            }
            checkpoint.save(Path(self.config.out), self.step, state, self.config.keep)

    def restore(self) -> None:
        """Go on from the checkpoint that --resume asks for, if it exists."""
        out, resume = Path(self.config.out), self.config.resume
        saved = None
        own_folder = resume != "never" and Path(resume).is_dir() and Path(resume).resolve() == out.resolve()
        if resume == "auto" or own_folder:
            saved = checkpoint.latest(out, self.ranks.say)
        elif checkpoint.checkpoints(out) and (resume == "never" or Path(resume).resolve().parent != out.resolve()):
            raise ConfigError(f"{out} holds checkpoints: choose another --out, remove them, or take --resume auto")
        elif resume != "never":
            saved = Path(resume), read_weights(resume, CHECKPOINT)
        if len(set(self.ranks.gather([saved and saved[0].name]))) > 1:
            raise ConfigError(f"not all processes see the same checkpoints in {out}: it must lie on a shared disk")
        if saved is None:
            return
        path, state = saved
        check_resumable(self.config, state["config"], path)
        if state["data"] != self.trained_on:
            both = state["data"], self.trained_on
            was, now = (f"{num} samples of the data {digest[:12]}" for num, digest, _ in both)
            if was == now:
                was, now = f"{was} with another validation split or other classes", "those of today"
            raise ConfigError(
                f"{path} was trained on {was}, but now there are {now}. Choose another --out, or start from its "
                "weights with --init-from"
            )
        load_weights(self.objective, state["objective"], str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step, self.epoch_loss = state["step"], state["epoch_loss"]
        self.ranks.say(f"resumed from {path} at step {self.step}")

    # ---- step by step ------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Set epoch, stage and learning rate of the next step."""
        self.epoch, stage = self.step // self.per_epoch, 1 if self.step < self.stage_2_begins else 2
        if self.staged and stage != self.stage:
            self.objective.set_stage(stage)
        self.stage = stage
        if self.step == self.stage_2_begins:
            self.window.clear()
        if self.config.lr_decay == "cosine":
            factor = 0.5 + 0.5 * math.cos(math.pi * self.step / self.planned_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        if not self.steps:
            self.since = time.perf_counter()

    def end_step(self, step: Step) -> None:
        """Count a step, and remember what was measured in it."""
        self.step += 1
        self.steps[self.step] = step
        self.bar.update()

    def watch_time(self) -> None:
        """After ten steps say how long the run will take. After --max-minutes this step becomes the last."""
        seconds, done, left = time.perf_counter() - self.start, self.step - self.first, self.last_step - self.step
        if done == 10 and left:
            # Validations and checkpoints are not in it.
            self.ranks.say(f"estimate    {duration(seconds / done * left)} for the {left:,} steps that are left")
        if self.config.max_minutes and max(self.ranks.gather([seconds])) > 60 * self.config.max_minutes:
            self.last_step = self.step

    def ends_epoch(self) -> bool:
        """Whether the last step ended an epoch, or the run."""
        return self.step % self.per_epoch == 0 or self.step == self.last_step

    def end_epoch(self, measured: dict[str, float]) -> None:
        """At the end of a whole epoch, let the learning rate follow the measured values."""
        if self.step % self.per_epoch == 0:
            values = measured | {"loss": self.epoch_loss}
            if self.scheduler and math.isfinite(values[self.measure]):  # undefined if all samples have one label
                self.scheduler.step(values[self.measure])
            self.epoch_loss = 0.0

    # ---- metrics.jsonl -----------------------------------------------------------------------------------------------

    def log_train(self) -> None:
        """Write a line with the means over the last --log-every steps of the stage. Here the host waits for the device.

        Raises SiamDiffError, on all ranks, if a loss or gradient is not finite.
        """
        check_finite(self.steps, self.ranks)
        new = [[record for _, record in step.parts] for step in self.steps.values()]
        self.window.extend(new)
        values = means([record for records in self.window for record in records], self.ranks)
        since = means([{"loss": record["loss"]} for records in new for record in records], self.ranks)
        rate = len(self.steps) * self.config.global_batch_size / (time.perf_counter() - self.since)
        speed = {"lr": self.optimizer.param_groups[-1]["lr"], f"{self.unit}_per_second": rate}
        self.write_line(split="train", **values, **speed, peak_memory_mb=peak_memory(self.ranks.device))
        self.bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {self.unit}/s", refresh=False)
        self.epoch_loss += since["loss"] * len(self.steps)
        self.steps = {}

    def log_valid(self, values: dict[str, float]) -> dict[str, float]:
        """Write and print the values of a validation, if there are any; return them."""
        if values:
            self.write_line(split="valid", **values)
            at = f"step {self.step:>6}  epoch {self.epoch}" + f"  stage {self.stage}" * self.staged
            shown = "  ".join(f"{name} {value:.4g}{beside(name, values)}" for name, value in in_order(values))
            self.ranks.say(f"{at}  valid, {values['samples']} {self.unit}: {shown}")
        return values

    def write_line(self, **values) -> None:
        """Write one line to the disk; its `step` is the number of steps that are done."""
        if self.ranks.rank == 0:
            stage = {"stage": self.stage} if self.staged else {}
            line = {"step": self.step, "epoch": self.epoch, **stage, **values}
            line["seconds"] = time.perf_counter() - self.start
            line["cpu_seconds"] = time.process_time() - self.cpu_start
            with writing(self.path), open(self.path, "ab") as file:
                file.write((json.dumps(line) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())


def duration(seconds: float) -> str:
    """A time in words, with two digits that count: "48 s", "12 min", "3.4 h"."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}" if seconds < 9.95 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def groups(objective: nn.Module, lr: float) -> list[dict]:
    """Parameters to train by initial learning rate: `lr`, or a part of it if the encoder says so (ESM-2)."""
    factors = objective.encoder.lr_factors()
    by_lr: dict[float, list] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            by_lr.setdefault(lr * factors.get(name.removeprefix("encoder."), 1.0), []).append(parameter)
    return [{"params": parameters, "lr": rate, "initial_lr": rate} for rate, parameters in by_lr.items()]


def check_finite(steps: dict[int, Step], ranks: Ranks) -> None:
    """Raise SiamDiffError, on all ranks, that names the proteins of the first step that went wrong."""
    bad = ranks.gather([number for number, step in steps.items() if not math.isfinite(step.loss_and_norm)])
    if bad:
        parts = steps[min(bad)].parts
        losses = ranks.gather([(names, float(logs["loss"].sums[0]) / len(names)) for names, logs in parts])
        losses = [loss for loss in losses if not math.isfinite(loss[1])] or losses
        listing = "; ".join(f"loss {loss:.4g}: {', '.join(map(printable, names))}" for names, loss in losses)
        problem = f"step {min(bad)}: the loss or its gradient is not finite. Proteins: {listing}"
        raise SiamDiffError(f"{problem}. Lower --lr, or leave them out")
