"""Reading files in other processes, in order. Whatever a file does to its reader is a failure of that file alone."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler

import torch

from ..files import StructureError
from ..protein.structure import Structure

WINDOW = 1024  # files that one pool reads; the next one starts with fresh processes and fresh memory
START = "fork" if sys.platform == "linux" else "spawn"  # a fork is ready at once, but only Linux survives it


def read_all(sources: Sequence, processes: int = 1) -> Iterator[Structure | StructureError]:
    """`source.read()` of all sources, in order; a StructureError takes the place of what cannot be read.

    A file that ends the process that reads it (no memory left, a fault in a library) ends the pool. The files that are
    lost with it are then read one by one, so that only the one at fault fails.
    """
    for start in range(0, len(sources), WINDOW):
        window, done = sources[start : start + WINDOW], 0
        pool = ProcessPoolExecutor(processes, multiprocessing.get_context(START), _begin)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, of a fork beside threads
                results = pool.map(_read, window)
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
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """What every process of a pool does first."""
    torch.set_num_threads(1)
    # A tensor is sent as the array that it is. torch would make a file in shared memory of each.
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _read(source) -> Structure | StructureError:
    """What one source holds; an error is returned, not raised."""
    try:
        return source.read()
    except StructureError as error:
        return error
    except MemoryError:
        return StructureError(source.path, "too large", "memory ran out")
    except Exception as error:
        return StructureError(source.path, "unreadable", f"{type(error).__name__}: {error}"[:200])
