"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

`train` is the loop, read it from top to bottom. A global batch is cut into parts of `batch_size`; part p of step s
draws its noise from a generator seeded with (seed, s, p), whichever process computes it, so a run is determined by its
options alone: by neither the number of loader workers, nor interruptions, nor (up to rounding) the number of processes.
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from tqdm import tqdm

from ..data.pieces import cut
from ..files import ConfigError, writing
from . import checkpoint
from .config import RunConfig
from .ranks import Flags, Ranks, Record, catch_signals, gather, means


def seed_of(*key: int) -> int:
    """A seed for torch from a few integers, well mixed."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1


def epoch_batches(num: int, size: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the global batches of one epoch (steps, size): a pure function of (seed, epoch).

    The incomplete last batch is dropped, unless it is the only one: then it is filled by going round.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num)
    steps = num // size
    return order[: steps * size].reshape(steps, size) if steps else np.resize(order, (1, size))


def train_keys(config: RunConfig, indices: Sequence[int], steps: range, rank: int, world: int) -> Iterator[list]:
    """For every part of every step that is ours, the keys (epoch, index) of its proteins."""
    per_epoch = max(1, len(indices) // config.global_batch_size)
    epoch, batches = -1, None
    for step in steps:
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            batches = epoch_batches(len(indices), config.global_batch_size, config.seed, epoch)
        for part in batches[step % per_epoch].reshape(-1, config.batch_size)[rank::world]:
            yield [(epoch, int(indices[i])) for i in part]


def valid_keys(indices: Sequence[int], batch_size: int) -> list[list]:
    """The batches of the held-out proteins: each once, the same in every epoch and for any number of processes."""
    keys = [(0, int(i)) for i in indices]
    return [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]


def record(loss: Tensor, logs: Record, size: int) -> Record:
    """What to remember of one batch, on its device."""
    loss = loss.detach().double()
    return {"loss": torch.stack([loss * size, torch.full_like(loss, size)])} | {k: v.detach() for k, v in logs.items()}


def load(dataset: torch.utils.data.Dataset, collate: Callable, keys, config: RunConfig, device: torch.device):
    """A loader of the batches whose keys are given, in order: of each a list of pieces (batch, names)."""
    workers = min(config.num_workers, len(keys)) if isinstance(keys, list) else config.num_workers
    if workers:
        _end_workers_at_exit()
    return DataLoader(
        dataset,
        batch_sampler=keys,
        collate_fn=partial(cut, collate=collate, limit=config.batch_nodes, level=config.level),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # unused by our sampler; without it torch would draw from its global one
    )


@torch.no_grad()
def held_out(model: nn.Module, data: tuple, config: RunConfig, ranks: Ranks, measure: Callable) -> list:
    """`measure((number of the batch, of its piece), batch, names)` of this process' held-out samples, for evaluation.

    `data` is (dataset, collate, indices). Batches are dealt to the processes in turn, so that what is measured on them
    does not depend on the number of processes; every sample comes exactly once.
    """
    dataset, collate, indices = data
    if ranks.world > 1:  # batch norm: the running statistics of rank 0 are the ones that count, and that are saved
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    batches = valid_keys(indices, config.batch_size)
    mine, results = range(ranks.rank, len(batches), ranks.world), []
    model.eval()
    for b, pieces in zip(mine, load(dataset, collate, [batches[b] for b in mine], config, ranks.device)):
        for k, (batch, names) in enumerate(pieces):
            with torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                results.append(measure((b, k), batch.to(ranks.device, non_blocking=True), names))
    model.train()
    return results


def evaluate(objective: nn.Module, data: tuple, config: RunConfig, ranks: Ranks) -> dict[str, float]:
    """Means of the loss and of all logs over the held-out proteins, at the noise levels of the current stage."""
    generator = torch.Generator(ranks.device)

    def measure(place: tuple[int, int], batch, names: list[str]) -> Record:
        b, k = place
        if k == 0:
            generator.manual_seed(seed_of(config.seed, 0, 0, 1 + b))  # four numbers: not the seed of any training step
        loss, logs = objective(batch, generator)
        return record(loss, logs, len(names))

    return means(held_out(objective, data, config, ranks, measure), ranks.world)


def decay(config: RunConfig, progress: float) -> float:
    """Factor of the learning rate when this part, from 0 to 1, of all epochs is done."""
    return {"none": 1.0, "cosine": 0.5 + 0.5 * math.cos(math.pi * progress)}[config.lr_decay]


def groups(objective: nn.Module, lr: float) -> list[dict]:
    """Parameters by learning rate: `lr`, or a part of it where the encoder's `lr_factors` says so (ESM-2)."""
    factors = objective.encoder.lr_factors() if hasattr(objective.encoder, "lr_factors") else {}
    by_factor: dict[float, list] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            by_factor.setdefault(factors.get(name.removeprefix("encoder."), 1.0), []).append(parameter)
    return [{"params": parameters, "lr": lr * factor} for factor, parameters in by_factor.items()]


def resume(config: RunConfig, ranks: Ranks, per_epoch: int) -> tuple[Path | None, dict | None]:
    """The checkpoint to continue from, found by rank 0; (None, None) on a first start."""
    out, found = Path(config.out), None
    if ranks.rank == 0:
        if config.resume == "auto":
            found = checkpoint.latest(out, ranks.say)
        elif checkpoint.checkpoints(out) and Path(config.resume).parent != out:
            raise ConfigError(f"{out} holds checkpoints of another run: choose another --out or remove them")
        elif config.resume != "never":
            found = Path(config.resume), checkpoint.load(Path(config.resume))
    if ranks.world > 1:  # the path only: the processes share a file system
        paths = [str(found[0]) if found else None]
        dist.broadcast_object_list(paths, 0)
        if ranks.rank and paths[0]:
            found = Path(paths[0]), checkpoint.load(Path(paths[0]))
    if not found:
        return None, None
    config.check_resumable(found[1]["config"], found[0], -(-found[1]["step"] // per_epoch))
    return found


def train(
    config: RunConfig,
    objective: nn.Module,
    dataset: torch.utils.data.Dataset,
    collate: Callable,
    indices: Sequence[int],
    validate: Callable[[float], dict[str, float]],
    ranks: Ranks,
    plateau: tuple[str, str] | None = None,
    unit: str = "proteins",
) -> int:
    """Minimise `objective` on `dataset`, whose keys are (epoch, index); checkpoints and metrics.jsonl go to config.out.

    Args:
        config: `epochs` is one number, or two for the stages of `objective.set_stage`.
        objective: (batch, generator) -> (loss, logs): an objective of pre-training, or a downstream task.
        dataset: its `checksum` tells whether a run is resumed on the same data.
        collate: list of items -> (batch, names); a batch can go to a device.
        indices: the items to train on.
        validate: called with the epochs done, after each and where --max-steps ends; what it returns is written down.
        ranks: connected, where they are several.
        plateau: name of a measure of `validate`, or "loss" for the training loss, and "max" or "min": the learning rate
            falls to 0.6 of itself after every six epochs in a row without a better one (README, row 21).
        unit: what the items are, in the plural.

    Returns 0 when the run is complete, or the number of the signal that ended it after a checkpoint; one that came
    during the last validation or save counts too. Raises FloatingPointError on a non-finite loss, CheckpointError when
    a checkpoint cannot be written, ConfigError where there is nothing to train on or --out is of another run.
    """
    if not len(indices):
        raise ConfigError("no proteins to train on")
    device, out, start_time = ranks.device, Path(config.out), time.perf_counter()
    objective.to(device).train()
    if ranks.world > 1 and device.type == "cuda" and not config.batch_nodes:  # it needs as many pieces on all ranks
        objective = nn.SyncBatchNorm.convert_sync_batchnorm(objective)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(groups(objective, config.lr), weight_decay=config.weight_decay, fused=True)
    if config.lr_decay != "none":
        plateau = None
    scheduler = plateau and torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, plateau[1], factor=0.6, patience=5)

    per_epoch = max(1, len(indices) // config.global_batch_size)
    path, state = resume(config, ranks, per_epoch)
    start, metrics_size, epoch_loss = 0, 0, 0.0
    if state is not None:
        before = state["num_train"], state.get("data", dataset.checksum)  # none in checkpoints of version 0.2
        if before != (len(indices), dataset.checksum):
            raise ConfigError(
                f"{path} was trained on {before[0]} samples of the data {before[1][:12]}, but now there are "
                f"{len(indices)} of {dataset.checksum[:12]}. Choose another --out, or start from its weights with "
                "--init-from"
            )
        checkpoint.load_weights(objective, state["objective"], str(path))
        optimizer.load_state_dict(state["optimizer"])
        if scheduler:
            scheduler.load_state_dict(state["scheduler"])
        start, metrics_size = state["step"], state["metrics_size"] if path.parent == out else 0
        epoch_loss = state["epoch_loss"]
        ranks.say(f"resumed from {path} at step {start}")
    model = objective
    if ranks.world > 1:  # parameters go without a gradient only where an ablation leaves out a loss
        unused = getattr(config, "ablation", "none") != "none"
        # Unless it looks for them, DDP sorts the gradients anew after its first step. Sums over three processes depend
        # on the place, so a resumed run would differ in the last bit from one that was not interrupted.
        exact = device.type == "cpu" and ranks.world > 2
        model = DistributedDataParallel(objective, find_unused_parameters=unused or exact)

    epochs = config.epochs if isinstance(config.epochs, tuple) else (config.epochs,)
    switch, total = epochs[0] * per_epoch, sum(epochs) * per_epoch
    all_steps, total = total, min(total, config.max_steps or total)
    parts = range(ranks.rank, config.global_batch_size // config.batch_size, ranks.world)

    flags, records, line_time, line_step = Flags(ranks), [], time.perf_counter(), start
    generator = torch.Generator(device)
    keys = train_keys(config, indices, range(start, total), ranks.rank, ranks.world)
    batches = iter(load(dataset, collate, keys, config, device))

    def write(step: int, **values) -> None:
        """One line of metrics.jsonl; `step` counts the finished ones."""
        if ranks.rank == 0:
            at = {"step": step, "epoch": epoch, "stage": stage} if len(epochs) > 1 else {"step": step, "epoch": epoch}
            line = {**at, **values, "seconds": time.perf_counter() - start_time}
            with writing(metrics.name):
                metrics.write((json.dumps(line) + "\n").encode())
                metrics.flush()  # for those who watch the file

    def check(step: int) -> dict[str, float]:
        values = validate(step / per_epoch)
        if values:
            write(step, split="valid", **values)
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            at = f"step {step:>6}  epoch {epoch}" + f"  stage {stage}" * (len(epochs) > 1)
            ranks.say(f"{at}  valid: {shown}")
        return values

    bar = tqdm(total=total, initial=start, unit="step", disable=None if ranks.rank == 0 else True)
    stop, done = 0, start
    with catch_signals() as caught, bar, _open_metrics(out, metrics_size, ranks) as metrics:
        for step in range(start, total):
            epoch, stage = step // per_epoch, 1 if step < switch else 2
            if len(epochs) > 1 and step in (start, switch):
                objective.set_stage(stage)
            if step == switch and step:  # stage 2 begins; an untrained batch norm makes no sense in evaluation
                check(step)

            losses = []
            if config.lr_decay != "none":
                for group, initial in zip(optimizer.param_groups, groups(objective, config.lr)):
                    group["lr"] = initial["lr"] * decay(config, step / all_steps)
            optimizer.zero_grad(set_to_none=True)
            for part in parts:
                pieces = next(batches)
                seed = seed_of(config.seed, step, part)
                generator.manual_seed(seed)
                torch.manual_seed(seed)  # dropout
                size = sum(len(names) for _, names in pieces)
                for k, (batch, names) in enumerate(pieces):
                    last = part == parts[-1] and k == len(pieces) - 1
                    with model.no_sync() if model is not objective and not last else nullcontext():
                        with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                            loss, logs = model(batch.to(device, non_blocking=True), generator)
                        (loss * (len(names) / size) / len(parts)).backward()
                    records.append(record(loss, logs, len(names)))
                    losses.append((names, loss.detach()))
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            bad = ~(norm + sum(loss for _, loss in losses)).isfinite()
            flags.add(step, bad, caught[-1] if caught else 0, losses)
            optimizer.step()

            done = step + 1
            bar.update()
            boundary = done % per_epoch == 0 or done == total
            saving = boundary or done % config.save_every == 0
            logging = saving or done % config.log_every == 0
            stop = flags.read(everything=logging)  # where we log, the host waits for the device
            if stop:
                saving = logging = True
                flags.read(everything=True)
            if logging:
                values, now = means(records, ranks.world), time.perf_counter()
                rate = (done - line_step) * config.global_batch_size / (now - line_time)
                speed = {"lr": optimizer.param_groups[-1]["lr"], "peak_memory_mb": peak_memory(device)}
                speed[f"{unit}_per_second"] = rate
                write(done, split="train", **values, **speed)
                bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} {unit}/s")
                epoch_loss += values["loss"] * (done - line_step)
            if boundary:
                measured = check(done) | {"loss": epoch_loss}
                if done % per_epoch == 0:
                    epoch_loss = 0.0
                    if scheduler:
                        scheduler.step(measured[plateau[0]])
            if saving and ranks.rank == 0:
                with writing(metrics.name):
                    metrics.flush()
                    os.fsync(metrics.fileno())
                state = {
                    "config": config.plain(),
                    "step": done,
                    "num_train": len(indices),
                    "data": dataset.checksum,
                    "metrics_size": metrics.tell(),
                    "objective": objective.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler and scheduler.state_dict(),
                    "epoch_loss": epoch_loss,
                }
                checkpoint.save(out, done, state, config.keep)
            if logging:
                records, line_time, line_step = [], time.perf_counter(), done
            if stop:
                break
        # One may have come after the flags of the last step, in its validation or its save.
        stop = max(gather([caught[-1] if caught else stop], ranks.world))

    if stop:
        ranks.say(f"stopped by {signal.Signals(stop).name} after step {done}; the same command continues from there")
    return stop


def summary(metrics: Path) -> str:
    """The first and the last line of every measure of a metrics.jsonl, stage by stage, as a table."""
    first, last = {}, {}
    skip = {"step", "epoch", "stage", "split", "seconds", "lr", "peak_memory_mb"}
    for text in Path(metrics).read_text().splitlines():
        line = json.loads(text)
        for name in [name for name in line if name not in skip and not name.endswith("_per_second")]:
            key = (line.get("stage", 1), line["split"], name)
            first.setdefault(key, line[name])
            last[key] = line[name]
    rows = [f"{'stage':5}  {'split':5}  {'measure':24}  {'start':>10}  {'end':>10}"]
    rows += [
        f"{s:<5}  {split:5}  {name:24}  {first[s, split, name]:>10.4g}  {last[s, split, name]:>10.4g}"
        for s, split, name in sorted(first)
    ]
    return "\n".join(rows)


@contextmanager
def _open_metrics(out: Path, size: int, ranks: Ranks):
    """metrics.jsonl for appending on rank 0, without the lines written after the checkpoint that is resumed."""
    if ranks.rank:
        yield None
        return
    path = out / "metrics.jsonl"
    with writing(path):
        out.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")  # noqa: SIM115 (closed below)
        file.truncate(min(size, file.tell()))
    try:
        yield file
    finally:
        with writing(path):  # the last lines may still be in memory
            file.close()


def _ignore_signals(worker: int) -> None:
    """Ctrl-C, and SIGTERM from a batch system, reach the loader's processes too; they end with the run, after its
    checkpoint."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@cache
def _end_workers_at_exit() -> None:
    """Where an error leaves processes of a loader, Python at its exit sends them SIGTERM and waits for their end; they
    ignore it, so they are killed before that."""

    def end() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would complain of their death
        for child in multiprocessing.active_children():
            if child.daemon:  # others are none of ours
                child.kill()

    atexit.register(end)


def peak_memory(device: torch.device) -> float:
    """Most memory this process has used so far, in MB: of the GPU's tensors when on one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
