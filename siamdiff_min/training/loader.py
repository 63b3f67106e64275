"""The batches of a run, made ahead of time in the processes of torch's DataLoader."""

import multiprocessing
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from ..files import SiamDiffError
from ..machine import START, begin_worker, cores, no_processes, warn_once
from .ranks import CAUGHT

PATIENCE = 60 if START == "fork" else 300  # seconds to wait for a batch: a process may hang. Others import torch first
MOST_CPU = 600  # seconds for one batch; more is an endless loop


def load_batches(dataset: Dataset, keys: Iterable[list], config: Namespace, device: torch.device) -> Iterator[tuple]:
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
        yield from _patiently(batches, number)
    except SiamDiffError as error:
        if not number:
            raise
        # Of a worker it is a traceback, whose last line has the sentence.
        raise SiamDiffError(str(error).rstrip().rpartition(f"{type(error).__name__}: ")[2]) from error
    finally:
        if number:
            batches._shutdown_workers()  # a traceback may keep them alive, and Python would wait for them at its end
            for process in batches._workers:  # those that hang: torch sends them SIGTERM only, which is blocked
                process.kill()


def _patiently(batches: Iterator, number: int) -> Iterator:
    """The batches. If one is late because its processes get no CPU, as on a busy machine, wait, and say so once.

    Raises torch's RuntimeError if they hang: none of them has used CPU time while we waited, nor asks for any; or all
    have used more than MOST_CPU for this batch.
    """
    said = False
    while True:
        # The CPU time of all processes, now that this batch is asked for.
        asked = {process.pid: _cpu_seconds(process.pid) for process in batches._workers} if number else {}
        seen = asked
        batch = None
        # torch gives up after PATIENCE; ask again while one of them works.
        while batch is None:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                now = {pid: _cpu_seconds(pid) for pid in asked}
                alive = any(_works(pid, now[pid] - seen[pid], now[pid] - asked[pid]) for pid in now)
                if not str(error).startswith("DataLoader timed out") or not alive:
                    raise
                seen = now
                if not said:
                    print("waiting     for the data: this machine is busy, or its disk is slow", file=sys.stderr)
                said = True
        yield batch


def _works(pid: int, used: float, for_this_batch: float) -> bool:
    """Whether a process has used CPU seconds of late, or waits for a CPU (state R) or a disk (D)."""
    return for_this_batch < MOST_CPU and (used > 0 or _stat(pid)[0] in "RD")


def _stat(pid: int) -> list[str]:
    """The state of a process and the numbers behind it (proc_pid_stat, from the third on); else as if it slept."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # not Linux, or it has ended
        return ["S"] + ["0"] * 12


def _cpu_seconds(pid: int) -> float:
    """The CPU seconds that a process has used."""
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
