"""The machine: its processes and device, how much memory was used, and settings that save time and memory on CPUs.

Nothing here loads torch before it is called: options ask for the cores of the machine.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import platform
import resource
import sys
import threading
import time
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from .files import MACHINE, ConfigError

if TYPE_CHECKING:
    import torch

# How worker processes begin. A fork is ready at once, but only Linux survives it.
START = "fork" if sys.platform == "linux" else "spawn"


class Bar(tqdm):
    """A bar that appears after its delay. tqdm would draw it with every message before, and then not end its line."""

    monitor_interval = 0  # no thread of its own: processes are forked beside it

    def refresh(self, *args, **options):
        if time.time() >= self.start_t + self.delay:
            super().refresh(*args, **options)
            self.last_print_t = max(self.last_print_t, self.start_t + self.delay)


def progress(items=None, **options) -> Bar:
    """A progress bar: live on a terminal, elsewhere a line every half a minute."""
    seconds = 0.1 if sys.stderr.isatty() else 30
    return Bar(items, mininterval=seconds, delay=seconds, **options)


def choose_device(device: str = "auto") -> str:
    """`device`; "auto" is a GPU if there is any. Raises ConfigError if the GPU is missing."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}, but this torch sees no GPU")
    return device


def versions() -> dict[str, str]:
    """Of this package, of torch and of Python."""
    import torch

    package = sys.modules[__package__]
    return {package.__name__: package.__version__, "torch": torch.__version__, "python": platform.python_version()}


def peak_memory(device: torch.device) -> float:
    """Most memory this process has used so far, in MB: of the GPU's tensors when on one."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def keep_freed_memory() -> None:
    """With glibc: tensors that are freed on a CPU make room for the next ones, instead of going back to the system.

    Fetching large ones again takes a fifth of a step at atom level. Blocks above 64 MB still go back, as fast.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 64 << 20)
        libc.mallopt(trim_threshold, 2**31 - 1)


def keep_few_plans() -> None:
    """With bfloat16 a CPU keeps a plan for every shape it has seen: gigabytes, as no two batches have one.

    torch reads both numbers at its first product. Plans of the 64 last shapes take 0.13 GB, and save 15 % of a step.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def world_size() -> int:
    """The number of processes that torchrun has started, 1 without it. Raises ConfigError for half of its variables."""
    text = os.environ.get("WORLD_SIZE", "").strip()
    if text in ("", "1"):
        return 1
    names = ("RANK", "MASTER_PORT", "MASTER_ADDR")
    values = [os.environ.get(name) or "missing" for name in names]
    rank, port, address = values
    if address == "missing" or not all(map(str.isdecimal, (text, rank, port))):
        others = ", ".join(f"{name} is {value}" for name, value in zip(names, values))
        found = f"WORLD_SIZE is {text} in the environment, {others}"
        wrong = ConfigError(f"{found}: start several processes with torchrun, or one after `unset WORLD_SIZE`")
        wrong.everywhere = False  # of this process, so it says so even if it is not the first
        raise wrong
    return int(text)


def cores() -> int:
    """The CPU cores that this process may use: a batch system or a container gives fewer than the machine has."""
    try:
        own = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1
    return max(1, min(own, _quota()))


CGROUP = Path("/sys/fs/cgroup")


def _quota() -> int:
    """The CPU cores that a container may use, of cgroup version 2 or 1; a large number if there is no limit."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = " ".join((CGROUP / file).read_text() for file in files).split()
            if int(quota) > 0:  # version 1 writes -1 for no limit, version 2 "max"
                return int(quota) // int(period)
        except (OSError, ValueError):
            continue
    return sys.maxsize


def no_memory_left(error: BaseException) -> bool:
    """Whether a computation ended because there was no memory left, of the machine or of its GPU."""
    import torch

    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def begin_worker(number: int = 0) -> None:
    """In a process that works for another: end with it, and send tensors as arrays, as /dev/shm is often small."""
    import torch

    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()
    ForkingPickler.register(torch.Tensor, lambda tensor: (torch.from_numpy, (tensor.numpy(),)))


def no_processes() -> str:
    """Why no processes can be waited for: without a /dev/shm to write to there are no semaphores. Else empty."""
    try:
        multiprocessing.get_context(START).Lock()
    except (ImportError, OSError) as error:
        if getattr(error, "errno", None) not in MACHINE:  # too many open files say so where they are missed
            return f"/dev/shm: {getattr(error, 'strerror', None) or error}"
    return ""


@lru_cache
def warn_once(text: str) -> None:
    """Say it on standard error, once in a process."""
    print(f"warning: {text}", file=sys.stderr)


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_nothing_ahead(tensors: list[torch.Tensor]) -> None:
    """Tell the system not to read ahead in a mapped file: pages that nobody uses would fill the memory."""
    start = min(tensor.data_ptr() for tensor in tensors) // mmap.PAGESIZE * mmap.PAGESIZE
    size = max(tensor.data_ptr() + tensor.nbytes for tensor in tensors) - start
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_RANDOM)
