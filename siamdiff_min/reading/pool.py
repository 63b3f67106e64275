"""Reading many structures at once, in processes that live no longer than the one that started them."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from ..files import StructureError, structure_errors
from ..machine import START, begin_worker
from .sources import Source
from .structure import Structure

WINDOW = 1024  # sources that are read ahead


def read_all(sources: Sequence[Source], processes: int = 1, work: Callable | None = None) -> Iterator:
    """`read_source` of all sources, or `work`, in order, in other processes of one thread each.

    If the system kills a process (no memory left, a fault in a library), the next sources are read by one process
    alone. If that one ends too, the source that it was reading fails.
    """
    done, alone = 0, False
    while done < len(sources):
        chunk = 1 if alone or work else 4  # alone, so that only one source is blamed
        pool = ProcessPoolExecutor(1 if alone else processes, multiprocessing.get_context(START), _begin_reading)
        try:
            for first in [done] if alone else range(done, len(sources), WINDOW):
                for answer in pool.map(work or read_source, sources[first : first + WINDOW], chunksize=chunk):
                    yield answer
                    done += 1
            alone = False
        except BrokenProcessPool:
            if alone:
                yield StructureError(sources[done].path, "ended the process that read it", "no memory left, or a fault")
                done += 1
            alone = not alone
        except (GeneratorExit, KeyboardInterrupt):
            for process in pool._processes.values():  # a large structure takes a while
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_reading() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    begin_worker()
    torch.set_num_threads(1)


def read_source(source: Source) -> Structure | StructureError:
    """The structure, or why it cannot be read."""
    try:
        with structure_errors(source.path, "unreadable"):
            structure = source.read()
            if not isinstance(structure, Structure):
                given = f'{type(structure).__name__}, not Structure(protein, chain_names=("A",))'
                raise StructureError(source.path, "read() of its source gave no Structure", given)
            if not isinstance(source, Source):  # of one's own: our reader has checked
                structure.check(source.path)
            return structure
    except StructureError as error:
        return error
