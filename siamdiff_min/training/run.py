"""The state of a run, what of it a checkpoint keeps, and what it writes down."""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from argparse import Namespace
from collections import deque
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from ..encoders.weights import CHECKPOINT, find_weights, load_weights, not_readable, read_weights
from ..files import ConfigError, checksum, write_file, writing
from ..machine import Bar, peak_memory, versions
from . import checkpoint
from .config import flag
from .metrics_file import shown
from .presets import LR_DECAYS, differences
from .ranks import Ranks, Record, means


class Step(NamedTuple):
    """The measurements of one step of the optimizer, on its device."""

    parts: list[tuple[list[str], Record]]  # the proteins of each of our parts of the global batch, and their logs
    trained: list[str]  # the parameters that have a gradient
    norms: Tensor  # (parameters,) of their gradients

    def finite(self) -> bool:
        """Whether all losses and gradients are finite numbers."""
        return math.isfinite(self.norms.sum() + sum(logs["loss"].sums[0] for _, logs in self.parts))


class Run:
    """The state of a run: weights, optimizer, schedule, step. It begins at step 0, or where its checkpoint left off.

    Args:
        config: the options; `epochs` are one number, or two for the stages of `objective.set_stage`.
        objective: (batch, generator) -> (loss, logs).
        data: what it trains on. A run is not resumed on other data.
        plateau: (measure of the validation, or "loss" for the training loss; "max" or "min"): the learning rate falls
            to 0.6 of itself after six epochs in a row without a better one (differences.md, row 21: in fine-tuning).
        unit: what the items of the data are, in the plural.
        bound_to: a hash of the validation data and the classes. A run is not resumed if it differs.

    Raises CheckpointError, and ConfigError if the checkpoint does not fit the options or the data, if --out belongs to
    another run, or if there is nothing to train on.
    """

    bar: Bar  # of its steps, from `begin` on

    def __init__(
        self,
        config: Namespace,
        objective: nn.Module,
        data: Subset,
        ranks: Ranks,
        plateau: tuple[str, str] | None = None,
        unit: str = "proteins",
        bound_to: str = "",
    ):
        if not len(data.indices):
            raise ConfigError("no proteins to train on")
        for name in not_readable(vars(config)):  # an option of a plugin
            problem = f"{flag(name)} is {getattr(config, name)!r:.50}, which no checkpoint can give back"
            raise ConfigError(f"{problem}: options must be numbers, words, or lists of them")
        self.config = config
        self.ranks = ranks
        self.alone = ranks.world == 1
        self.metrics = Path(config.out) / "metrics.jsonl"

        # What it trains on, in the order in which a checkpoint keeps it.
        self.data = data
        self.unit = unit
        self.trained_on = {
            "samples": len(data.indices),
            "fingerprint": data.dataset.checksum,  # type: ignore[attr-defined]
            "validation split or classes": bound_to,
            "code of --plugin": ", ".join(plugins(config).values()),
        }

        # How long it takes, in steps.
        self.per_epoch = max(1, len(data.indices) // config.global_batch_size)
        self.staged = len(config.epochs) > 1
        self.stage_2_begins = config.epochs[0] * self.per_epoch
        self.planned_steps = sum(config.epochs) * self.per_epoch
        self.last_step = min(self.planned_steps, config.max_steps or self.planned_steps)

        # What learns, and how fast. `model` is the objective as DDP wraps it for several processes, see `begin`.
        self.objective = objective.to(ranks.device).train()
        if not self.alone and ranks.device.type == "cuda":
            self.objective = nn.SyncBatchNorm.convert_sync_batchnorm(self.objective)
        self.model = self.objective
        trained = groups(self.objective, config.lr)
        self.optimizer = torch.optim.Adam(trained, weight_decay=config.weight_decay, fused=True)
        self.leaves_out = getattr(config, "ablation", "none") != "none"  # a loss: some parameters have no gradient
        self.scheduler = None
        self.measure = None  # that the learning rate follows
        if plateau and config.lr_decay == "none":
            self.measure, mode = plateau
            self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, mode, factor=0.6, patience=5)

        # How far it is.
        self.step = 0  # the number of steps that are done
        self.stage = 0  # of the current step, as is the epoch; 0 before the first
        self.epoch = 0
        self.epoch_loss = 0.0  # sum over the steps of this epoch
        self.window: deque[list[Record]] = deque(maxlen=config.log_every)  # the logs of the stage's last steps
        self.measured: dict[str, float] = {}  # by the last validation
        self.before = (0.0, 0.0)  # seconds of the clock and of the CPU, before this process went on
        self.start = time.perf_counter()
        self.cpu_start = time.process_time()

    def save(self) -> None:
        """Write a checkpoint; rank 0 does."""
        if self.ranks.rank == 0:
            state = {
                "config": vars(self.config),
                "data": [*self.trained_on.values()],
                "processes": self.ranks.world,
                "step": self.step,
                "epoch_loss": self.epoch_loss,
                "seconds": self.seconds(),
                "objective": self.objective.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scheduler": self.scheduler and self.scheduler.state_dict(),
            }
            checkpoint.save(Path(self.config.out), self.step, state, self.config.keep)

    def restore(self) -> None:
        """Go on from the checkpoint that --resume asks for, if it exists."""
        # Which one; the same for all processes.
        out = Path(self.config.out)
        resume = self.config.resume
        beside = Path(resume).resolve().parent == out.resolve() and resume != "never"
        if resume == "auto":
            saved = checkpoint.latest(out, self.ranks.say)
        elif checkpoint.checkpoints(out) and not beside:
            raise ConfigError(f"{out} holds checkpoints: choose another --out, remove them, or take --resume auto")
        else:
            saved = None if resume == "never" else (Path(resume), read_weights(resume, CHECKPOINT))
        name = saved and saved[0].name
        if len(set(self.ranks.all_gather([name]))) > 1:
            raise ConfigError(f"not all processes see the same checkpoints in {out}: it must lie on a shared disk")
        if saved is None:
            return

        # Whether it is of this run: the same options, data and code.
        path, state = saved
        compared = getattr(self.objective, "compared", 1) > 1
        checkpoint.check_resumable(self.config, state["config"], path, self.ranks.world, compared)
        changed = []
        for (name, now), was in zip(self.trained_on.items(), state["data"]):
            if was != now:
                changed.append(f"{name} was {was!s:.12}, is {now!s:.12}")
        if changed:
            help = f"Choose another --out, or start from its weights with --init-from {path}"
            raise ConfigError(f"cannot resume {path} with other data: {'; '.join(changed)}. {help}")

        # All that the run has come to.
        load_weights(self.objective, state["objective"], str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step = state["step"]
        self.epoch_loss = state["epoch_loss"]
        self.before = state["seconds"]
        self.ranks.say(f"resumed from {path} at step {self.step}")
        now = [self.ranks.world, self.config.batch_size]
        before = [state.get("processes", self.ranks.world), state["config"]["batch_size"]]
        if before != now:
            change = "{} processes with parts of {}, before {} processes with parts of {}".format(*now, *before)
            self.ranks.say(f"note        {change}: batch norm, rounding, noise of other parts differ")

    def seconds(self) -> list[float]:
        """Of the clock and of the CPU since the run began; the time between two processes does not count."""
        clock, cpu = self.before
        return [clock + time.perf_counter() - self.start, cpu + time.process_time() - self.cpu_start]

    def describe(self) -> None:
        """Write options.json, which says of the folder: by which command, from which data, how many steps."""
        path = Path(self.config.out) / "options.json"
        if path.exists() and b'"command": ' not in path.read_bytes()[:20]:
            raise ConfigError(f"{path} was not written by a run: choose another --out, or remove it")
        content = {
            "command": f"{sys.argv[0]} {shlex.join(sys.argv[1:])}",
            "options": vars(self.config),
            "by preset": [difference._asdict() for difference in differences(self.config)],
            "versions": versions(),
            **provenance(self.config, self.ranks),
            "data": {name: self.trained_on[name] for name in ("samples", "fingerprint")},
            "steps": self.last_step,
        }
        write_file(path, json.dumps(content, indent=1, default=str).encode())

    def warn_of_infinite(self) -> None:
        """Say which losses of the last validation are no numbers."""
        bad = [name for name, value in self.measured.items() if name.endswith("loss") and not math.isfinite(value)]
        if bad:
            self.ranks.say(f"warning     of the held-out {self.unit}, {', '.join(bad)} is not finite")

    def prepare(self) -> None:
        """Set epoch, stage and learning rate of the next step."""
        self.epoch = self.step // self.per_epoch
        stage = 1 if self.step < self.stage_2_begins else 2
        if self.staged and stage != self.stage:
            self.objective.set_stage(stage)
        self.stage = stage
        if self.step == self.stage_2_begins:
            self.window.clear()
        decay = LR_DECAYS[self.config.lr_decay]
        if decay:
            factor = decay(self.step, self.planned_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def log_train(self, steps: dict[int, Step], since: float) -> None:
        """Write a line with the means over the last --log-every steps of the stage; `steps` began at `since`."""
        memory = peak_memory(self.ranks.device)
        losses = []
        for step in steps.values():
            records = [record for _, record in step.parts]
            self.window.append(records)
            losses += [{"loss": record["loss"]} for record in records]

        # The line is over the whole window, so that a short rest of an epoch makes no spike. The loss of the epoch is
        # over every step once.
        values = means([record for records in self.window for record in records], self.ranks)
        self.epoch_loss += means(losses, self.ranks)["loss"] * len(steps)
        rate = len(steps) * self.config.global_batch_size / (time.perf_counter() - since)
        speed = {"lr": self.optimizer.param_groups[-1]["lr"], f"{self.unit}_per_second": rate}
        self.log("train", values | speed | {"peak_memory_mb": memory})
        self.bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {self.unit}/s", refresh=False)

    def log(self, split: str, values: dict[str, float]) -> None:
        """Print the values of a validation, if any, and write a line of metrics.jsonl. Raises WriteError."""
        if not values:
            return
        if split == "valid":
            at = f"step {self.step:>6}  epoch {self.step / self.per_epoch:.4g}"
            if self.staged:
                at += f"  stage {self.stage}"
            self.ranks.say(f"{at}  valid, {values['samples']} {self.unit}: {shown(values)}")
            self.measured = values
            self.warn_of_infinite()
        if self.ranks.rank == 0:
            stage = {"stage": self.stage} if self.staged else {}
            line = {"step": self.step, "epoch": self.epoch, **stage, "split": split, **values}
            line["seconds"], line["cpu_seconds"] = self.seconds()
            with writing(self.metrics), open(self.metrics, "ab") as file:
                file.write((json.dumps(line) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())


def plugins(config: Namespace) -> dict[str, str]:
    """The files of --plugin and what they have imported from beside themselves, with their checksums."""
    files = [Path(file).resolve() for file in config.plugin or []]
    names = [name.replace(".", "/") for name in sys.modules if not name.startswith("siamdiff_min")]
    ends = [name + end for name in names for end in (".py", "/__init__.py")]
    beside = [file.parent / end for file in files for end in ends]
    files += sorted(filter(Path.is_file, beside))
    return {str(file): checksum(file) for file in files}


def provenance(config: Namespace, ranks: Ranks) -> dict:
    """What a run was made with, beside its options: code, processes and threads, and the file it started from."""
    return {
        "commit": commit(),
        "plugins": plugins(config),
        "processes": f"{ranks.world} x {ranks.device.type}",
        "threads": torch.get_num_threads(),
        "started_from": started_from(config),
    }


@cache
def commit() -> str:
    """The commit of the package, if it lies in a repository of git, and "changed" if it has; else empty."""
    file = Path(__file__)
    git = ["git", "-C", str(file.parent)]
    tracked = [*git, "ls-files", "--error-unmatch", file.name]
    described = [*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=, changed"]
    try:
        done = [subprocess.run(x, capture_output=True, text=True, timeout=10, check=True) for x in (tracked, described)]
    except (OSError, subprocess.SubprocessError):  # no git here, or it does not know the file
        return ""
    return done[-1].stdout.strip()


def started_from(config: Namespace) -> dict[str, str] | None:
    """The file of --init-from or --eval-only, and its checksum."""
    file = getattr(config, "eval_only", None) or config.init_from
    return {"file": file, "sha256": checksum(find_weights(file))} if file else None


def groups(objective: nn.Module, lr: float) -> list[dict]:
    """Parameters to train by initial learning rate: `lr`, or a part of it if the encoder says so (ESM-2)."""
    factors = objective.encoder.lr_factors()
    by_lr: dict[float, list] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            by_lr.setdefault(lr * factors.get(name.removeprefix("encoder."), 1.0), []).append(parameter)
    return [{"params": parameters, "lr": rate, "initial_lr": rate} for rate, parameters in by_lr.items()]
