"""The processes of a run: who we are under torchrun, what all of them have to agree on, and how they are stopped."""

import ctypes
import gc
import math
import os
import platform
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from ..files import ConfigError, SiamDiffError, lock, printable

QUIET = 25.0  # seconds
Record = dict[str, Tensor]  # name -> sums over the items of a batch, see `means`


@dataclass
class Ranks:
    """The processes of this run and the one we are."""

    rank: int
    world: int
    device: torch.device
    store: dist.Store | None  # where processes meet before there are collectives
    said: float = field(default_factory=time.monotonic)  # when the last line was printed, seconds

    def first(self, name: str, build: Callable):
        """`build()` on rank 0, then on the others: whatever it leaves on the disk is built once. Every use in a run has
        a `name` of its own."""
        if self.rank:
            self.store.wait([name], timedelta(days=30))
        result = build()
        if self.rank == 0 and self.store is not None:
            self.store.set(name, "yes")
        return result

    @contextmanager
    def connected(self):
        """A process group for the collectives, for as long as the context lasts. Nothing without torchrun."""
        if self.world == 1:
            yield
            return
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        limit = timedelta(minutes=10)
        dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.world, timeout=limit)
        yield  # not in a `finally`: on an error the other processes are not waited for
        dist.barrier()
        gc.collect()  # DDP holds on to the group, whose threads have to end before the interpreter does
        dist.destroy_process_group()

    def alone_in(self, out: str):
        """Keep other runs from writing to the folder `out`. Raises SiamDiffError if one does."""
        busy = f"another run is writing to {out}: wait for its end, or choose another --out"
        return nullcontext() if self.rank else lock(Path(out) / "lock", busy)

    def say(self, text: str) -> None:
        """Print once."""
        if self.rank == 0:
            self.said = time.monotonic()
            tqdm.write(text)
            sys.stdout.flush()

    def still(self, text: Callable[[], str]) -> None:
        """Print a sign of life if nothing was printed for QUIET seconds, and no bar moves on a terminal."""
        if self.rank == 0 and not sys.stderr.isatty() and time.monotonic() - self.said > QUIET:
            self.say(text())


def keep_freed_memory() -> None:
    """Let tensors that are freed on a CPU make room for the next ones, instead of going back to the system.

    glibc returns large blocks at once, and fetching them again as zeroed pages took 21 % of a step at atom level and
    12 % at residue level. Blocks above 64 MB still go back: keeping them too is no faster and takes more memory.
    Does nothing where there is no glibc.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 64 << 20)
        libc.mallopt(trim_threshold, 2**31 - 1)


def choose_device(device: str = "auto") -> str:
    """`device`, or what there is for "auto". Raises ConfigError for a GPU that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}, but this torch sees no GPU")
    return device


def launch(device: str = "auto", threads: int | None = None, deterministic: bool = False) -> Ranks:
    """Find out from torchrun's environment who we are; without it we are the only process."""
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if choose_device(device) == "cuda":
        if local >= torch.cuda.device_count():
            raise ConfigError(f"torchrun started more processes than there are GPUs here ({torch.cuda.device_count()})")
        chosen = torch.device("cuda", local)
        torch.cuda.set_device(chosen)
        torch.set_float32_matmul_precision("highest" if deterministic else "high")  # the latter is TF32
    else:
        chosen = torch.device("cpu")
        keep_freed_memory()
    if world == 1:
        return Ranks(0, 1, chosen, None)
    store, rank, world = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the store, with its stale addresses
    return Ranks(rank, world, chosen, dist.PrefixStore(f"attempt_{attempt}", store))


def gather(items: list, world: int) -> list:
    """The items of all ranks, on all ranks."""
    if world == 1:
        return items
    everyone = [None] * world
    dist.all_gather_object(everyone, items)
    return [item for one in everyone for item in one]


def means(records: list[Record], world: int) -> dict[str, float]:
    """What every log comes to over batches and ranks; sums are correctly rounded in any order.

    (total, count) gives the mean. The other two say what the best constant prediction costs: (total, count, squares)
    of the targets gives their variance, counts (C, k) of k classes give the entropy, averaged over C.
    """
    names = {name for record in records for name in record}
    mine = {name: torch.stack([r[name].double() for r in records if name in r]).cpu().numpy() for name in names}
    everyone, result = gather([mine], world), {}
    for name in sorted({name for one in everyone for name in one}):
        entries = np.concatenate([one[name] for one in everyone if name in one])
        sums = np.apply_along_axis(math.fsum, 0, entries).tolist()
        if isinstance(sums[0], list):
            entropies = [sum(-n / sum(row) * math.log(n / sum(row)) for n in row if n) for row in sums]
            if any(map(sum, sums)):
                result[name] = sum(entropies) / len(entropies)
        elif sums[1]:
            mean = sums[0] / sums[1]
            result[name] = mean if len(sums) == 2 else sums[2] / sums[1] - mean**2
    return result


@contextmanager
def catch_signals():
    """SIGTERM and Ctrl-C are put on the list that is yielded; a second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def remember(number, frame):
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Flags:
    """What all processes have to agree on after every step: has one gone non-finite, has one been told to stop.

    On a CPU they are read at once. On a GPU they are read one step later, so that no step waits for the device; before
    a save all are read.
    """

    def __init__(self, ranks: Ranks):
        self.ranks, self.lag, self.pending = ranks, int(ranks.device.type == "cuda"), deque()

    def agree(self, step: int, bad: Tensor, stop: int, parts: list[tuple[list[str], Tensor]], everything: bool) -> int:
        """The number of the signal to stop for, or 0. Raises SiamDiffError, on all ranks, that names the proteins.

        Args:
            bad: () bool, whether a loss or the gradient of this process is not finite.
            stop: the number of the signal that this process has received, or 0.
            parts: the proteins of this process and their losses.
            everything: read the flags of this step too.
        """
        flags = torch.stack([bad.float(), torch.full_like(bad, stop, dtype=torch.float32)])
        if self.ranks.world > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        flags = flags.to("cpu", non_blocking=True)
        event = torch.cuda.current_stream().record_event() if self.lag else None
        self.pending.append((step, flags, event, parts))
        agreed = 0
        while len(self.pending) > (0 if everything or agreed else self.lag):
            step, flags, event, parts = self.pending.popleft()
            if event is not None:
                event.synchronize()
            bad, agreed = int(flags[0]), max(agreed, int(flags[1]))
            if bad:
                parts = gather([(names, float(loss)) for names, loss in parts], self.ranks.world)
                named = [part for part in parts if not math.isfinite(part[1])] or parts
                listing = "; ".join(f"loss {loss:.4g}: {', '.join(map(printable, names))}" for names, loss in named)
                problem = f"step {step}: the loss or its gradient is not finite. Proteins: {listing}"
                raise SiamDiffError(f"{problem}. Lower --lr, or leave them out")
        return agreed
