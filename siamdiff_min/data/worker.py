"""Reading files that nobody vouches for, in processes of their own with limits on CPU time and memory.

Whatever a file does to the process that reads it (never ends, swells, crashes, raises anything) is a failure of that
file with a reason, and the run goes on with the next one.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from ..files import SiamDiffError, StructureError
from ..protein.structure import Structure

try:
    import resource
except ImportError:  # Windows: no limits, but what kills a worker is still a failure of one file
    resource = None

# The largest entry of the PDB, as mmCIF with 2.4 million atoms, takes 40 s and 1.9 GB.
MAX_SECONDS = 300  # of CPU time for one file
MAX_MEMORY = 3 * 2**30  # bytes that one file may add to the memory of a worker
AHEAD = 1024  # files that may be read before the slowest one is done
# On Linux workers are forked, as torch's DataLoader forks its own: they are ready in milliseconds, while one that is
# spawned imports torch first, for seconds. A fork has none of the threads of its parent, so torch must not wait for
# them: a worker sets one thread before it does anything else. Elsewhere the system's libraries do not survive a fork.
START = "fork" if sys.platform == "linux" else "spawn"

Task = tuple  # (path for messages, function, *arguments)


def read_all(sources: Sequence, processes: int = 1) -> Iterator[Structure | StructureError]:
    """`source.read()` for all sources, in order and in other processes; an error takes the place of a structure."""
    return run([(source.path, source.read) for source in sources], processes)


def run(tasks: Sequence[Task], processes: int = 1) -> Iterator:
    """Call the functions of all tasks in other processes; yield in order what they return, or a StructureError.

    Raises SiamDiffError if no process can be started.
    """
    workers, busy, done, begun = [], {}, {}, 0
    try:
        workers += (_Worker() for _ in range(min(processes, len(tasks))))
        idle = [*workers]
        for number in range(len(tasks)):
            while True:
                while idle and begun < min(len(tasks), number + AHEAD):
                    worker = idle.pop()
                    worker.begin(tasks[begun])
                    busy[worker.connection] = worker, begun
                    begun += 1
                if number in done:
                    break
                for connection in wait(list(busy)):
                    worker, finished = busy.pop(connection)
                    done[finished] = worker.result()
                    idle.append(worker)
            yield done.pop(number)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """A process that does one task after the other; another process takes its place if it dies."""

    def __init__(self):
        self.start()

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        context = multiprocessing.get_context(START)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork next to threads
            self.process.start()
        theirs.close()
        try:
            self.connection.recv()
        except (EOFError, OSError) as error:
            raise SiamDiffError(f"no process can be started to read files (exit status {self.end()})") from error

    def begin(self, task: Task) -> None:
        """Send a task; `connection` is readable once `result` does not have to wait."""
        self.task = task
        with contextlib.suppress(OSError):  # it may be dead: then `result` finds out
            self.connection.send(task)

    def result(self):
        """What the task returned, or a StructureError.

        A task that kills its worker gets a second one: the system may have killed the first for another one's memory.
        """
        path, *_ = self.task
        for _ in range(2):
            try:
                return self.connection.recv()
            except (EOFError, OSError):
                status = self.end()
                self.start()
            if status == -getattr(signal, "SIGXCPU", 0):
                return StructureError(path, "took too long", f"more than {MAX_SECONDS} s of CPU time")
            self.begin(self.task)
        return StructureError(path, "ended the process that read it", "a fault in a library, or no memory left")

    def end(self) -> int | None:
        """Stop the process if it still runs; returns its exit status."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


# ---- in the worker ---------------------------------------------------------------------------------------------------


def _serve(connection: Connection) -> None:
    """Do the tasks that come, until the process that sends them ends or ends us."""
    torch.set_num_threads(1)
    # A tensor is sent as the array that it is. torch would make a file in shared memory of each.
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the process that sent the tasks has ended
        connection.send(True)
        while True:
            _do(connection, *connection.recv())


def _do(connection: Connection, path: str, function: Callable, *arguments) -> None:
    _limit()
    try:
        connection.send(function(*arguments))
    except StructureError as error:
        connection.send(error)
    except MemoryError:
        connection.send(StructureError(path, "too large", "memory ran out"))
    except BaseException as error:
        connection.send(StructureError(path, "unreadable", f"{type(error).__name__}: {error}"[:200]))


def _limit() -> None:
    """Set the limits for the next task, counted from what this process has used so far."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: math.ceil(used.ru_utime + used.ru_stime) + MAX_SECONDS}
    with contextlib.suppress(OSError):  # only Linux counts memory that is written to: not a mapped file, say of LMDB
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limits[resource.RLIMIT_DATA] = pages * resource.getpagesize() + MAX_MEMORY
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
