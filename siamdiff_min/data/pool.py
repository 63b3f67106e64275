"""Reading files in other processes, in order. A file that crashes its reader fails alone."""

import contextlib
import multiprocessing
import os
import queue
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import torch

from ..files import MachineError, SiamDiffError, StructureError, structure_errors
from ..protein.structure import Structure

# The largest entry of the PDB, as mmCIF with 2.4 million atoms, takes 40 s and 1.9 GB.
MAX_SECONDS = 300  # by the clock, for one file: a pipe or a device that never answers takes no CPU time
MAX_MEMORY = 3 * 2**30  # bytes that one file may add to the memory of its reader
WINDOW = 1024  # files that are read ahead; then come fresh processes with fresh memory
START = "fork" if sys.platform == "linux" else "spawn"  # a fork is ready at once, but only Linux survives it


class _TooLong(BaseException):
    """The time for a file is up. It is no Exception, so that no reader takes it for a malformed file."""


def read_all(sources: Sequence, processes: int = 1) -> Iterator[Structure | StructureError]:
    """`source.read()` of all sources, in order. A file that cannot be read gives its StructureError instead.

    If the process that reads a file ends (no memory left, a fault in a library), the file is read again, alone: the
    system may have killed the process because another one took the memory. If it ends again, the file fails. Raises
    MachineError, see `files.py`.
    """
    number, suspect, answers = 0, -1, {}  # answers: by number; None if the reader ended
    while number < len(sources):
        end = min(number + (1 if number == suspect else WINDOW), len(sources))
        todo = [i for i in range(number, end) if i not in answers]
        with _readers(sources, [todo[k::processes] for k in range(min(processes, len(todo)))]) as arriving:
            while number < end:
                while number not in answers:
                    answers.update([arriving.get()])
                answer = answers.pop(number)
                if answer is None and number != suspect:
                    suspect = number
                    break
                if isinstance(answer, MachineError):
                    raise answer
                ended = "ended the process that read it", "no memory left, or a fault"
                yield answer or StructureError(sources[number].path, *ended)
                number += 1
        while not arriving.empty():  # what the other readers sent before they were stopped
            i, answer = arriving.get()
            answers |= {i: answer} if answer is not None else {}


@contextlib.contextmanager
def _readers(sources: Sequence, shares: list[list[int]]) -> Iterator[queue.SimpleQueue]:
    """Start a process for every share of the sources, and a thread that takes what it sends. Both end with the context.

    Every reader has a pipe of its own. If it is killed while it writes, its pipe ends, and nobody waits for it.
    """
    context, arriving, processes, threads = multiprocessing.get_context(START), queue.SimpleQueue(), [], []
    try:
        for share in shares:
            try:
                receiver, sender = context.Pipe(duplex=False)
                threads.append(threading.Thread(target=_receive, args=(receiver, share, arriving), daemon=True))
                processes.append(context.Process(target=_read_share, args=([sources[i] for i in share], sender)))
                processes[-1].daemon = True
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about a fork beside threads
                    processes[-1].start()
            except OSError as error:
                raise MachineError(f"no process can be started that reads files: {error.strerror}") from error
            sender.close()  # our end: otherwise the pipe outlives the reader, and we wait for ever
        for thread in threads:  # after the last fork
            thread.start()
        yield arriving
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()  # it may hang in a file that nobody waits for any more, after Ctrl-C, say
                process.join()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        time.sleep(0.01)  # up to Python 3.11 a process that is forked while a thread ends may hang


def _receive(receiver: Connection, share: list[int], arriving: queue.SimpleQueue) -> None:
    """Put (number, answer) of every file of a reader into the queue. If the reader ends, None is its last answer."""
    with receiver:
        for number in share:
            try:
                answer = receiver.recv()
            except Exception:  # the end of the pipe, or of a half-written answer
                answer = None
            arriving.put((number, answer))
            if answer is None:
                break


def _read_share(sources: Sequence, sender: Connection) -> None:
    """The main function of a reader: read its share, and send every answer."""
    torch.set_num_threads(1)
    # Tensors are sent as arrays: torch would put each into a file in shared memory.
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes; the one that started us ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    for source in sources:
        sender.send(_read_source(source))


def _read_source(source) -> Structure | StructureError | MachineError:
    """The structure of one source; an error is returned, not raised."""
    try:
        with structure_errors(source.path, "unreadable"):
            _set_limits()
            try:
                return source.read()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except (StructureError, MachineError) as error:
        return error
    except SiamDiffError as error:
        return StructureError(source.path, "unreadable", str(error))
    except _TooLong:
        return StructureError(source.path, "took too long", f"more than {MAX_SECONDS} s")


def _set_limits() -> None:
    """The limits for one file, counted from what this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    # The clock cannot stop a library that never returns to Python. A limit of CPU time ends its process.
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + 2 * MAX_SECONDS)}
    with contextlib.suppress(OSError):  # Linux only; counts memory that is written to, not a mapped LMDB
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limits[resource.RLIMIT_DATA] = pages * resource.getpagesize() + MAX_MEMORY
    for limited, limit in limits.items():
        hard = resource.getrlimit(limited)[1]
        resource.setrlimit(limited, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)


def _stop(*_) -> None:
    raise _TooLong
