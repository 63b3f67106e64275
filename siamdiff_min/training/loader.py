"""Other processes make the batches of a run ahead of time. They end at once after an error, and when we end.

Each process has a connection of its own, through which a batch comes as arrays. The DataLoader of torch has queues in
shared memory instead: it waits for ever behind an error or a worker that the system kills, and needs room in /dev/shm.
"""

import multiprocessing
import signal
import time
import traceback
import warnings
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

import torch
import torch.distributed as dist

from ..data.pool import START
from ..files import SiamDiffError
from .order import Data

AHEAD = 2  # batches that each process is asked for: it makes one, and can begin the next at once
ADVICE = "memory ran out, try fewer --num-workers; 0 needs none"


def load_batches(data: Data, keys: Iterable[list], config: Namespace, device: torch.device) -> Iterator[tuple]:
    """Yield (batch, names) for each list of keys, in order.

    Close it (`contextlib.closing`) to end its processes. An error in a process is raised when its batch is due.
    SiamDiffError is raised if a process is killed or cannot be started.
    """
    number = min(config.num_workers, len(keys)) if isinstance(keys, list) else config.num_workers
    if not number:
        yield from (_pinned(_make(data, batch), device) for batch in keys)
        return
    workers, asked = [], deque()
    try:
        for worker in _started(number, data):
            workers.append(worker)  # one by one: also those before an error are ended below
        turn = cycle(workers)
        for batch in keys:
            if len(asked) == AHEAD * len(workers):
                yield _pinned(_answer(*asked.popleft()), device)
            asked.append(next(turn))
            with suppress(OSError):  # it has ended; its answer will tell
                asked[-1][1].send(batch)
        while asked:
            yield _pinned(_answer(*asked.popleft()), device)
    finally:
        for process, connection in workers:
            process.kill()  # not SIGTERM, which is blocked
            process.join()
            connection.close()


def _started(number: int, data: Data) -> Iterator[tuple]:
    """New processes, each with its connection. Raises SiamDiffError if there is no room for them.

    Ctrl-C, and SIGTERM of a batch system, reach them too, but stay blocked: they end after the run's checkpoint.
    """
    if dist.is_available() and dist.is_initialized():
        # gloo's threads may still be letting go of tensors. Up to Python 3.11 a worker that is forked meanwhile can
        # hang: 8 of 8,000 did; with a pause of 0.01 s none of 16,000.
        time.sleep(0.1)
    context, connections = multiprocessing.get_context(START), []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
            for _ in range(number):
                ours, theirs = context.Pipe()
                connections.append(ours)
                with theirs:
                    process = context.Process(target=_serve, args=(theirs, data, connections), daemon=True)
                    process.start()
                yield process, ours
    except OSError as error:
        problem = f"could not start {number} processes that load data: {error.strerror or error}"
        raise SiamDiffError(f"{problem}. Try fewer --num-workers; 0 needs none") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, data: Data, others: list[Connection]) -> None:
    """In a process: make the requested batches, until the connection ends because the parent has died."""
    torch.set_num_threads(1)
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.tensor, (tensor.numpy(),)))  # torch would share memory
    for other in others:  # an open copy of our parent's end would hide that it has died
        other.close()
    with suppress(EOFError, OSError):
        while True:
            connection.send(_tried(data, connection.recv()))


def _tried(data: Data, keys: list) -> tuple | Exception:
    """A batch, or an error. Our errors are sent as they are; any other becomes a text with its traceback."""
    try:
        return _make(data, keys)
    except SiamDiffError as error:
        return error
    except MemoryError:
        return SiamDiffError(f"a process that loads data had to stop: {ADVICE}")
    except Exception:
        return RuntimeError(traceback.format_exc())


def _make(data: Data, keys: list) -> tuple:
    return data.collate([data.dataset[key] for key in keys])


def _answer(process, connection: Connection) -> tuple:
    """The next batch of a process. Raises the error that it sends, and SiamDiffError if it has ended."""
    try:
        answer = connection.recv()
    except (EOFError, OSError) as error:
        process.join(10)
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        raise SiamDiffError(f"a process that loads data has ended ({how}); if {ADVICE}") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _pinned(batch: tuple, device: torch.device) -> tuple:
    """The batch; for a GPU in page-locked memory, so that nobody waits for its copy."""
    return (batch[0].pin_memory(), *batch[1:]) if device.type == "cuda" else batch
