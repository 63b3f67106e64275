"""What comes when, and its loading: the batches of a run as pure functions of (seed, epoch, step), the seeds of all its
draws, and the processes of torch's DataLoader that make batches ahead of time.
"""

import multiprocessing
import signal
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ..files import SiamDiffError
from ..machine import START, begin_worker, cores, no_processes, warn_once
from .ranks import CAUGHT

PATIENCE = 600  # seconds to wait for a batch: longer than any disk takes, so a process hangs


def seed_of(*key: int) -> int:
    """A seed for torch from a few integers, well mixed. A zero at the end of the key changes nothing."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1


def epoch_batches(num: int, size: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the global batches of one epoch (steps, size): a pure function of (seed, epoch).

    The incomplete last batch is dropped. If it is the only one, it is filled by going round.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num)
    steps = num // size
    return order[: steps * size].reshape(steps, size) if steps else np.resize(order, (1, size))


def train_keys(config: Namespace, indices: Sequence[int], steps: range, rank: int, world: int) -> Iterator[list]:
    """The keys (epoch, index) of the proteins of every part that is ours, step by step."""
    per_epoch = max(1, len(indices) // config.global_batch_size)
    for step in steps:
        epoch, batch = divmod(step, per_epoch)
        if batch == 0 or step == steps[0]:
            batches = epoch_batches(len(indices), config.global_batch_size, config.seed, epoch)
        for part in batches[batch].reshape(-1, config.batch_size)[rank::world]:
            yield [(epoch, int(indices[i])) for i in part]


def valid_keys(indices: Sequence[int], batch_size: int) -> list[list]:
    """Batches of held-out proteins, each once. A last one that would be alone joins the batch before it."""
    keys = [(0, int(i)) for i in indices]
    batches = [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]
    if len(batches) > 1 and len(batches[-1]) == 1 < batch_size:
        alone = batches.pop()
        batches[-1] += alone
    return batches


def load_batches(dataset, keys: Iterable[list], config: Namespace, device: torch.device) -> Iterator[tuple]:
    """Yield (batch, names) for each list of keys, in order. Close it (`contextlib.closing`) to end its processes.

    `dataset[key]` is an item, and `dataset.collate(items)` gives (batch, names).
    Raises SiamDiffError if the processes cannot be started, and as the data do. If one is killed or hangs, torch raises
    RuntimeError, in whatever code runs just then; `launch` makes it a sentence.
    """
    number = min(config.num_workers, cores(), len(keys) if isinstance(keys, list) else config.num_workers)
    if number and (reason := no_processes()):
        warn_once(f"the process that trains loads the data too, no others can be started here ({reason})")
        number = 0
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        collate_fn=dataset.collate,
        num_workers=number,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # or it would draw from the global one
        timeout=PATIENCE if number else 0,
        multiprocessing_context=START if number else None,
        worker_init_fn=begin_worker if number else None,
    )
    if number and dist.is_available() and dist.is_initialized():
        # gloo's threads may still be letting go of tensors. Up to Python 3.11 a worker that is forked meanwhile can
        # hang: one in a thousand did.
        time.sleep(0.1)
    if number and START == "spawn":
        resource_tracker.ensure_running()  # its own start would lift the mask
    # The workers inherit this mask: Ctrl-C, and signals of a batch system, are for the run, which writes a checkpoint.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    others = multiprocessing.active_children()
    try:
        batches = iter(loader)
    except OSError as error:
        for process in {*multiprocessing.active_children()} - {*others}:  # Python would wait for them at its end
            process.kill()
            process.join()
        problem = f"could not start {number} processes that load data: {error.strerror}"
        raise SiamDiffError(f"{problem}. Try fewer --num-workers; 0 needs none") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield from batches
    except SiamDiffError as error:
        if not number:
            raise
        # Of a worker it is a traceback, whose last line has the sentence.
        raise SiamDiffError(str(error).rstrip().rpartition(f"{type(error).__name__}: ")[2]) from error
    finally:
        if number:
            batches._shutdown_workers()  # type: ignore[attr-defined]  # a traceback may keep them alive, and Python would wait for them at its end
            for process in batches._workers:  # type: ignore[attr-defined]  # those that hang: torch sends them SIGTERM only, which is blocked
                process.kill()
