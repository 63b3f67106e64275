"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

`train` is the loop, read it from its end. A global batch is cut into parts of `batch_size`; part p of step s draws its
noise from a generator seeded with (seed, s, p), whichever process computes it, so a run is determined by its options
alone: by neither the number of loader workers, nor interruptions, nor (up to rounding) the number of processes.

`data` is (dataset, collate, indices) throughout: a dataset whose keys are (epoch, index) and whose `checksum` tells it
from others, what makes (batch, names) of a list of its items, and the items to use.
"""

import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ..files import ConfigError
from ..logs import Mean
from .log import Log, Step
from .ranks import Ranks, Record, catch_signals, means
from .run import Run


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


def train_keys(config: Namespace, indices: Sequence[int], steps: range, rank: int, world: int) -> Iterator[list]:
    """For every part of every step that is ours, the keys (epoch, index) of its proteins."""
    per_epoch = max(1, len(indices) // config.global_batch_size)
    for step in steps:
        epoch, place = divmod(step, per_epoch)
        if place == 0 or step == steps[0]:
            batches = epoch_batches(len(indices), config.global_batch_size, config.seed, epoch)
        for part in batches[place].reshape(-1, config.batch_size)[rank::world]:
            yield [(epoch, int(indices[i])) for i in part]


def valid_keys(indices: Sequence[int], batch_size: int) -> list[list]:
    """The batches of the held-out proteins: each once, the same in every epoch and for any number of processes."""
    keys = [(0, int(i)) for i in indices]
    return [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]


def record(loss: Tensor, logs: Record, size: int) -> Record:
    """What to remember of one batch, on its device."""
    loss = loss.detach().double()
    return {"loss": Mean(torch.stack([loss * size, torch.full_like(loss, size)]))} | logs


def _ignore_signals(worker: int) -> None:
    """Ctrl-C, and SIGTERM of a batch system, reach the loader's processes too. They end after the run's checkpoint."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def load(dataset: Dataset, collate: Callable, keys, config: Namespace, device: torch.device) -> Iterator[tuple]:
    """The batches whose keys are given, in order: (batch, names) of each.

    Close it (`contextlib.closing`) to end its workers: Python alone would send them SIGTERM, which they ignore.
    """
    workers = min(config.num_workers, len(keys)) if isinstance(keys, list) else config.num_workers
    if workers and dist.is_available() and dist.is_initialized():
        # gloo's threads may still be letting go of tensors. Up to Python 3.11 a worker that is forked meanwhile can
        # hang: 8 of 8,000 did; with a pause of 0.01 s none of 16,000.
        time.sleep(0.1)
    yield from DataLoader(
        dataset,
        batch_sampler=keys,
        collate_fn=collate,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        worker_init_fn=_ignore_signals,
        generator=torch.Generator(),  # unused by our sampler; without it torch would draw from its global one
    )


@torch.no_grad()
def held_out(model: nn.Module, data: tuple, config: Namespace, ranks: Ranks, measure: Callable) -> list:
    """`measure(number of the batch, batch, names)` of this process' held-out batches, for evaluation.

    Batches are dealt to the processes in turn, so that what is measured on them does not depend on the number of
    processes; every sample comes exactly once.
    """
    dataset, collate, indices = data
    if ranks.world > 1:  # batch norm: the running statistics of rank 0 are the ones that count, and that are saved
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    batches = valid_keys(indices, config.batch_size)
    mine, results = range(ranks.rank, len(batches), ranks.world), []
    model.eval()
    with closing(load(dataset, collate, [batches[b] for b in mine], config, ranks.device)) as loaded:
        for b, (batch, names) in zip(ranks.bar(mine, desc="held out", leave=False), loaded):
            with torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                results.append(measure(b, batch.to(ranks.device, non_blocking=True), names))
    model.train()
    return results


def evaluate(objective: nn.Module, data: tuple, config: Namespace, ranks: Ranks) -> dict[str, float]:
    """Means of the loss and of all logs over the held-out proteins, at the noise levels of the current stage."""
    generator = torch.Generator(ranks.device)

    def measure(b: int, batch, names: list[str]) -> Record:
        generator.manual_seed(seed_of(config.seed, 0, 0, 1 + b))  # four numbers: not the seed of any training step
        loss, logs = objective(batch, generator)
        return record(loss, logs, len(names))

    return means(held_out(objective, data, config, ranks, measure), ranks)


def minimise(run: Run, batches: Iterator, generator: torch.Generator) -> Step:
    """One step of the optimizer, from our parts of the global batch, whose gradients are added up."""
    config, device = run.config, run.ranks.device
    parts = range(run.ranks.rank, config.global_batch_size // config.batch_size, run.ranks.world)
    records, losses = [], []
    run.optimizer.zero_grad(set_to_none=True)
    for part in parts:
        batch, names = next(batches)
        seed = seed_of(config.seed, run.step, part)
        generator.manual_seed(seed)
        torch.manual_seed(seed)  # dropout
        with nullcontext() if part == parts[-1] or run.model is run.objective else run.model.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                loss, logs = run.model(batch.to(device, non_blocking=True), generator)
            (loss / len(parts)).backward()
        records.append(record(loss, logs, len(names)))
        losses.append((names, loss.detach()))
    norm = nn.utils.get_total_norm([p.grad for p in run.objective.parameters() if p.grad is not None])
    run.optimizer.step()
    return Step(records, losses, norm + sum(loss for _, loss in losses))


def train(
    config: Namespace,
    objective: nn.Module,
    data: tuple,
    validate: Callable[[float], dict[str, float]],
    ranks: Ranks,
    plateau: tuple[str, str] | None = None,
    unit: str = "proteins",
) -> int:
    """Minimise `objective`: (batch, generator) -> (loss, logs). Checkpoints and metrics.jsonl go to config.out.

    `validate` is called with the epochs done, after each and where --max-steps ends; what it returns is written down.
    `plateau` is that of `Run`, `unit` that of `Log`.

    Returns 0 when the run is complete, or the number of the signal that ended it after a checkpoint; one that came
    during the last validation or save counts too. Raises SiamDiffError on a non-finite loss, WriteError when a
    file cannot be written, ConfigError where there is nothing to train on or --out is of another run.
    """
    dataset, collate, indices = data
    if not len(indices):
        raise ConfigError("no proteins to train on")
    run = Run(config, objective, len(indices), dataset.checksum, ranks, plateau)
    keys = train_keys(config, indices, range(run.step, run.total), ranks.rank, ranks.world)
    loaded, generator, stop = load(dataset, collate, keys, config, ranks.device), torch.Generator(ranks.device), 0
    with closing(loaded) as batches, catch_signals() as caught, Log(run, unit) as log:
        while run.step < run.total and not stop:
            run.begin_step()
            log.begin_step()
            step = minimise(run, batches, generator)
            run.step += 1
            log.end_step(step)
            stop = max(ranks.gather(caught or [0]))
            saving = run.ends_epoch() or run.step % config.save_every == 0 or stop
            if saving or run.step % config.log_every == 0:
                run.epoch_loss += log.train()
            if run.ends_epoch():
                run.end_epoch(log.valid(validate(run.step / run.per_epoch)))
            if run.step == run.switch < run.full:  # validated at once, when its batch norm has seen stage 1
                run.begin_step()
                log.valid(validate(run.step / run.per_epoch))
            if saving:
                run.save()
        # One may have come after that of the last step, in its validation or its save. All wait here for rank 0.
        stop = max(ranks.gather(caught or [stop]))
    if stop:
        name = signal.Signals(stop).name
        ranks.say(f"stopped by {name} after step {run.step}; the same command continues from there")
    return stop
