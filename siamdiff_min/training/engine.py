"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

Read `train`, the last function, first. A global batch is cut into parts of `batch_size`. Part p of step s draws its
noise from a generator seeded with (seed, s, p), whichever process computes it. So the options alone determine a run.
Loader workers and interruptions change nothing. The number of processes changes rounding and batch norm: on CPUs a
process normalises each of its parts alone, and the running statistics are those of rank 0; on GPUs the processes
normalise their parts together (SyncBatchNorm).
"""

import json
import math
import os
import shlex
import signal
import sys
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset

from ..encoders.weights import CHECKPOINT, load_weights, not_readable, read_weights
from ..files import ConfigError, SiamDiffError, checksum, printable, write_file, writing
from ..machine import peak_memory, versions
from ..statistics import Mean
from . import checkpoint
from .batches import seed_of, train_keys
from .config import check_resumable, flag
from .evaluation import out_of_memory
from .loader import load_batches
from .metrics_file import lines_before, shown
from .ranks import Ranks, Record, catch_signals, means

# ---- the state of a run ----------------------------------------------------------------------------------------------


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
        self.config, self.ranks, self.unit = config, ranks, unit
        self.data, self.trained_on = data, {"samples": len(data.indices), "fingerprint": data.dataset.checksum}
        self.trained_on["validation split or classes"] = bound_to
        self.trained_on["code of --plugin"] = ", ".join(checksum(Path(file)) for file in config.plugin or [])
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
        self.before = 0.0, 0.0  # seconds of the clock and of the CPU, before this process went on
        self.window: deque[list[Record]] = deque(maxlen=config.log_every)  # the logs of the stage's last steps
        self.restore()
        self.metrics = Path(config.out) / "metrics.jsonl"
        if ranks.rank == 0:
            written = lines_before(self.metrics, self.step)  # without the lines after the checkpoint
            self.describe()
            write_file(self.metrics, written)
        self.bar = ranks.bar(total=self.last_step, initial=self.step, unit="step")
        self.start, self.cpu_start = time.perf_counter(), time.process_time()

        self.model, self.alone = self.objective, ranks.world == 1
        self.leaves_out = getattr(config, "ablation", "none") != "none"  # a loss: some parameters have no gradient
        if not self.alone:
            # DDP reorders its buckets after step 1, unless find_unused_parameters is set. With three or more processes
            # that changes the last bit, and a resumed run would differ.
            exact = ranks.device.type == "cpu" and ranks.world > 2
            self.model = DistributedDataParallel(self.objective, find_unused_parameters=self.leaves_out or exact)

    def save(self) -> None:
        """Write a checkpoint; rank 0 does."""
        if self.ranks.rank == 0:
            state = {
                "config": vars(self.config),
                "data": [*self.trained_on.values()],
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
        out, resume = Path(self.config.out), self.config.resume
        if resume not in ("auto", "never") and Path(resume).resolve() == out.resolve():
            resume = "auto"
        if resume == "auto":
            saved = checkpoint.latest(out, self.ranks.say)
        elif checkpoint.checkpoints(out) and (resume == "never" or Path(resume).resolve().parent != out.resolve()):
            raise ConfigError(f"{out} holds checkpoints: choose another --out, remove them, or take --resume auto")
        else:
            saved = None if resume == "never" else (Path(resume), read_weights(resume, CHECKPOINT))
        if len(set(self.ranks.gather([saved and saved[0].name]))) > 1:
            raise ConfigError(f"not all processes see the same checkpoints in {out}: it must lie on a shared disk")
        if saved is None:
            return
        path, state = saved
        check_resumable(self.config, state["config"], path)
        before = dict(zip(self.trained_on, state["data"]))
        changed = [name for name, now in self.trained_on.items() if before[name] != now]
        if changed:
            words = "; ".join(f"{name} was {before[name]!s:.12}, is {self.trained_on[name]!s:.12}" for name in changed)
            help = f"Choose another --out, or start from its weights with --init-from {path}"
            raise ConfigError(f"cannot resume {path} with other data: {words}. {help}")
        load_weights(self.objective, state["objective"], str(path))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(state["scheduler"])
        self.step, self.epoch_loss, self.before = state["step"], state["epoch_loss"], state["seconds"]
        self.ranks.say(f"resumed from {path} at step {self.step}")

    def seconds(self) -> list[float]:
        """Of the clock and of the CPU since the run began; the time between two processes does not count."""
        now = time.perf_counter() - self.start, time.process_time() - self.cpu_start
        return [before + since for before, since in zip(self.before, now)]

    def describe(self) -> None:
        """Write options.json, which says of the folder: by which command, from which data, how many steps."""
        path = Path(self.config.out) / "options.json"
        if path.exists() and b'"command": ' not in path.read_bytes()[:20]:
            raise ConfigError(f"{path} was not written by a run: choose another --out, or remove it")
        content = {
            "command": f"{sys.argv[0]} {shlex.join(sys.argv[1:])}",
            "options": vars(self.config),
            "versions": versions(),
            "processes": f"{self.ranks.world} x {self.ranks.device.type}",
            "data": {name: self.trained_on[name] for name in ("samples", "fingerprint")},
            "steps": self.last_step,
        }
        write_file(path, json.dumps(content, indent=1, default=str).encode())

    def prepare(self) -> None:
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

    def log_train(self, steps: dict[int, Step], since: float) -> None:
        """Write a line with the means over the last --log-every steps of the stage.

        `steps` are those after the line before; they began at `since`. Here the host waits for the device.
        """
        memory = peak_memory(self.ranks.device)
        new = [[record for _, record in step.parts] for step in steps.values()]
        self.window.extend(new)
        values = means([record for records in self.window for record in records], self.ranks)
        loss = means([{"loss": record["loss"]} for records in new for record in records], self.ranks)["loss"]
        rate = len(steps) * self.config.global_batch_size / (time.perf_counter() - since)
        speed = {"lr": self.optimizer.param_groups[-1]["lr"], f"{self.unit}_per_second": rate}
        self.log("train", values | speed | {"peak_memory_mb": memory})
        self.epoch_loss += loss * len(steps)
        self.bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {self.unit}/s", refresh=False)

    def log(self, split: str, values: dict[str, float]) -> None:
        """Print the values of a validation, and write a line of metrics.jsonl; its `step` is the number that is done.

        Nothing is written if there are no values. Raises WriteError.
        """
        if not values:
            return
        if split == "valid":
            at = f"step {self.step:>6}  epoch {self.step / self.per_epoch:.4g}" + f"  stage {self.stage}" * self.staged
            self.ranks.say(f"{at}  valid, {values['samples']} {self.unit}: {shown(values)}")
        if self.ranks.rank == 0:
            stage = {"stage": self.stage} if self.staged else {}
            line = {"step": self.step, "epoch": self.epoch, **stage, "split": split, **values}
            line |= dict(zip(("seconds", "cpu_seconds"), self.seconds()))
            with writing(self.metrics), open(self.metrics, "ab") as file:
                file.write((json.dumps(line) + "\n").encode())
                file.flush()
                os.fsync(file.fileno())


def groups(objective: nn.Module, lr: float) -> list[dict]:
    """Parameters to train by initial learning rate: `lr`, or a part of it if the encoder says so (ESM-2)."""
    factors = objective.encoder.lr_factors()
    by_lr: dict[float, list] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            by_lr.setdefault(lr * factors.get(name.removeprefix("encoder."), 1.0), []).append(parameter)
    return [{"params": parameters, "lr": rate, "initial_lr": rate} for rate, parameters in by_lr.items()]


# ---- step by step ----------------------------------------------------------------------------------------------------


def minimise(run: Run, batches: Iterator, generator: torch.Generator) -> Step:
    """One step of the optimizer. The gradients of our parts of the global batch are added up."""
    config, device = run.config, run.ranks.device
    parts = range(run.ranks.rank, config.global_batch_size // config.batch_size, run.ranks.world)
    done = []
    run.optimizer.zero_grad(set_to_none=True)
    for part in parts:
        batch, names = next(batches)
        generator.manual_seed(seed_of(config.seed, run.step, part))
        torch.manual_seed(seed_of(config.seed, run.step, part, 0, 1))  # dropout; with another seed than the noise has
        with out_of_memory(names, batch), nullcontext() if part == parts[-1] or run.alone else run.model.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                loss, logs = run.model(batch.to(device, non_blocking=True), generator)
            (loss / len(parts)).backward()
        done.append((names, logs | {"loss": Mean.of(loss.double().expand(len(names)))}))
    gradients = {name: p.grad for name, p in run.objective.named_parameters() if p.requires_grad}
    missing = [name for name, gradient in gradients.items() if gradient is None]
    if missing and not run.leaves_out:
        problem = f"the loss gives no gradient to {', '.join(missing):.500}"
        if not run.alone:  # each process waits for the gradients of the others
            raise ConfigError(f"{problem}; with several processes it must, or they need requires_grad_(False)")
        run.ranks.say(f"warning     {problem}: it stays as it is")
        run.leaves_out = True  # said once
    trained = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    norms = torch.stack(torch._foreach_norm([*trained.values()]))
    if config.clip:
        nn.utils.clip_grads_with_norm_(run.objective.parameters(), config.clip, norms.norm())
    run.optimizer.step()  # Alg. 1, line 12
    return Step(done, [*trained], norms)


def train(run: Run, validate: Callable[[float], dict[str, float]]) -> int:
    """Minimise the objective of `run`. Checkpoints and metrics.jsonl go to --out.

    `validate` is called with the number of epochs done, after each epoch, at --max-steps and after --max-minutes. Its
    measures are written down, with the number of `samples` they are over.

    Returns 0 when the run is complete. After a signal it writes a checkpoint and returns the signal's number, even if
    the signal came during the last validation or save. Raises SiamDiffError on a non-finite loss, and WriteError.
    """
    config, ranks = run.config, run.ranks
    keys = train_keys(config, run.data.indices, range(run.step, run.last_step), ranks.rank, ranks.world)
    loaded, generator = load_batches(run.data.dataset, keys, config, ranks.device), torch.Generator(ranks.device)
    first, stop, steps = run.step, 0, {}  # the steps since the last line of the training
    with closing(loaded) as batches, catch_signals() as caught, run.bar:
        while run.step < run.last_step and not stop:  # Alg. 1, line 1
            run.prepare()
            if not steps:
                since = time.perf_counter()
            steps[run.step + 1] = minimise(run, batches, generator)
            run.step += 1
            run.bar.update()

            stop = max(ranks.gather(caught or [0]))
            seconds, left = time.perf_counter() - run.start, run.last_step - run.step
            if run.step - first == 10 and left:  # validations and checkpoints are not in it
                estimate = run.bar.format_interval(seconds / 10 * left)
                ranks.say(f"estimate    {estimate} for the {left:,} steps that are left")
            if config.max_minutes and max(ranks.gather([seconds])) > 60 * config.max_minutes:
                run.last_step = run.step
            whole_epoch = run.step % run.per_epoch == 0
            ends = whole_epoch or run.step == run.last_step
            saving = ends or run.step % config.save_every == 0 or stop

            if saving or run.step % config.log_every == 0:
                check_finite(steps, ranks)
                run.log_train(steps, since)
                steps = {}
            if ends:
                measured = validate(run.step / run.per_epoch)
                run.log("valid", measured)
            if whole_epoch:
                value = (measured | {"loss": run.epoch_loss}).get(run.measure, math.nan)
                if math.isfinite(value):  # undefined if all samples have one label
                    run.scheduler.step(value)
                run.epoch_loss = 0.0
            if run.step == run.stage_2_begins < run.planned_steps:  # validated at once, with the batch norm of stage 1
                run.prepare()
                run.log("valid", validate(run.step / run.per_epoch))
            if saving:
                run.save()
        # A signal may have come since, during the validation or the save. All wait here for rank 0.
        stop = max(ranks.gather(caught or [stop]))
    if stop:
        name = signal.Signals(stop).name
        ranks.say(f"stopped by {name} after step {run.step}; the same command continues from there")
    return stop


def check_finite(steps: dict[int, Step], ranks: Ranks) -> None:
    """Raise SiamDiffError, on all ranks, that names the proteins of the first step that went wrong."""
    bad = ranks.gather([number for number, step in steps.items() if not step.finite()])
    if bad:
        step = steps[min(bad)]
        losses = ranks.gather([(names, float(logs["loss"].sums[0]) / len(names)) for names, logs in step.parts])
        losses = [loss for loss in losses if not math.isfinite(loss[1])] or losses
        listing = "; ".join(f"loss {loss:.4g}: {', '.join(map(printable, names))}" for names, loss in losses)
        infinite = [name for name, norm in zip(step.trained, step.norms.isfinite()) if not norm]
        if all(math.isfinite(loss) for _, loss in losses):
            problem = f"the loss is finite, but not the gradient of {', '.join(infinite):.500}"
            mend = "Look for a square root, a norm, or a division at zero in what is new; or leave the proteins out"
        else:
            problem, mend = "the loss is not finite", "Lower --lr, or leave them out"
        raise SiamDiffError(f"step {min(bad)}: {problem}. Proteins: {listing}. {mend}")
