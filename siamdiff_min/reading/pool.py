"""Reading many structures at once, in processes that live no longer than the one that started them."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from ..files import StructureError, structure_errors
from ..machine import START, begin_worker, no_processes, warn_once
from .sources import Source
from .structure import Structure

WINDOW = 1024  # sources that are read ahead


def read_all(sources: Sequence[Source], processes: int = 1, work: Callable | None = None) -> Iterator:
    """`read_source` of all sources, or `work`, in order, in other processes of one thread each; with 0 in this one.

    If the system kills a process (no memory left, a fault in a library), the next sources are read by one process
    alone. If that one ends too, the source that it was reading fails. Where no process can be started, this one reads.
    """
    work = work or read_source
    done = 0
    alone = False
    while done < len(sources):
        pool = _start_pool(1 if alone else processes)
        if pool is None:
            yield from (_on_one_thread(work, source) for source in sources[done:])
            return
        try:
            for first in [done] if alone else range(done, len(sources), WINDOW):
                part = sources[first : first + WINDOW]
                # one at a time, where only one source is to be blamed, or each takes long
                answers = pool.map(work, part, chunksize=4 if work is read_source and not alone else 1)
                for answer in answers:
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


def _start_pool(processes: int) -> ProcessPoolExecutor | None:
    """The processes that read; None if none are wanted, or can be had."""
    reason = no_processes()
    if reason and processes > 1:
        warn_once(f"one process reads, no others can be started here ({reason})")
    if reason or not processes:
        return None
    return ProcessPoolExecutor(processes, multiprocessing.get_context(START), _begin_reading)


def _on_one_thread(work: Callable, source: Source):
    """What `work` gives here: to the last bit what it gives in a process of its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return work(source)
    finally:
        torch.set_num_threads(threads)


def _begin_reading() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    begin_worker()
    torch.set_num_threads(1)


def read_source(source: Source) -> Structure | StructureError:
    """The structure, or why it cannot be read."""
    try:
        with structure_errors(source.path, "unreadable"):
            structure = source.read()
            if not isinstance(source, Source):  # of one's own: our reader has checked
                structure.check(source.path)
            return structure
    except StructureError as error:
        return error
