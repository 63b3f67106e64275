"""Reading files in other processes, in order. Whatever a file does to its reader is a failure of that file alone."""

import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from ..files import SiamDiffError, StructureError, structure_errors
from ..protein.structure import Structure

# The largest entry of the PDB, as mmCIF with 2.4 million atoms, takes 40 s and 1.9 GB.
MAX_SECONDS = 300  # by the clock, for one file: a pipe or a device that never answers takes no CPU time
MAX_MEMORY = 3 * 2**30  # bytes that one file may add to the memory of its reader
WINDOW = 1024  # files that one pool reads; the next one starts with fresh processes and fresh memory
START = "fork" if sys.platform == "linux" else "spawn"  # a fork is ready at once, but only Linux survives it


class _TooLong(BaseException):
    """The time for a file is up. No reader takes this for a malformed file, as it is no Exception."""


def read_all(sources: Sequence, processes: int = 1) -> Iterator[Structure | StructureError]:
    """`source.read()` of all sources, in order; a StructureError takes the place of a file that cannot be read.

    A file that ends the process that reads it (no memory left, a fault in a library) ends the pool. The files that are
    lost with it are then read one by one, so that only the one at fault fails.
    """
    for start in range(0, len(sources), WINDOW):
        window, done = sources[start : start + WINDOW], 0
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context(START), _begin)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of a fork beside threads
                results = pool.map(_read, window)
            pool._result_queue._writer.close()  # else we wait for ever for an answer whose writer is killed amid it,
            _when_one_ends([*pool._processes.values()], lambda process: process.kill())  # and for those it locked out
            for structure in results:
                yield structure
                done += 1
        except BrokenProcessPool:
            if len(window) == 1:
                yield StructureError(window[0].path, "ended the process that read it", "no memory left, or a fault")
            else:
                for source in window[done:]:
                    yield from read_all([source])
        finally:
            for process in list((pool._processes or {}).values()):
                process.kill()  # it may hang in a file that nobody waits for any more, after Ctrl-C, say
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """The first steps of every process of a pool."""
    torch.set_num_threads(1)
    # A tensor is sent as the array that it is. torch would make a file in shared memory of each.
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _when_one_ends([multiprocessing.parent_process()], lambda _: os._exit(1))


def _when_one_ends(processes: Sequence, act: Callable) -> None:
    """Call `act` for all these processes as soon as one of them has ended; a thread waits for that."""
    threading.Thread(target=lambda: (wait([p.sentinel for p in processes]), *map(act, processes)), daemon=True).start()


def _read(source) -> Structure | StructureError:
    """The structure of one source; an error is returned, not raised."""
    try:
        with structure_errors(source.path, "unreadable"):
            _set_limits()
            try:
                return source.read()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except SiamDiffError as error:
        return error if isinstance(error, StructureError) else StructureError(source.path, "unreadable", str(error))
    except _TooLong:
        return StructureError(source.path, "took too long", f"more than {MAX_SECONDS} s")


def _set_limits() -> None:
    """The limits for one file, counted from what this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    # A library that never gives control back to Python does not see the clock. CPU time ends its process.
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + 2 * MAX_SECONDS)}
    with contextlib.suppress(OSError):  # only Linux counts memory that is written to: not a mapped file of LMDB, say
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limits[resource.RLIMIT_DATA] = pages * resource.getpagesize() + MAX_MEMORY
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)


def _stop(*_) -> None:
    raise _TooLong
