"""The processes of a run under torchrun: how they meet, tell each other something, and end."""

import gc
import math
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

from ..files import ConfigError, SiamDiffError, lock
from ..machine import Bar, choose_device, keep_few_plans, keep_freed_memory, progress, world_size
from ..statistics import Statistic

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)  # SLURM can send the last one before the time is over
MINUTE = timedelta(minutes=1)  # until a process says that it waits for others
MEETING = timedelta(minutes=10)  # until all processes have to be there
PATIENCE = timedelta(days=7)  # timeout of collectives; the others wait while rank 0 converts data
STARTED = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")  # how many processes srun or mpirun has started
Record = dict[str, Statistic]  # of one batch, by name


@dataclass(frozen=True)
class Ranks:
    """The processes of a run: this one is `rank` of `world`."""

    device: torch.device
    rank: int = 0
    world: int = 1

    def all_gather(self, items: list) -> list:
        """The items of all processes, on all of them. Each waits for all, but not for its GPU."""
        if self.world == 1:
            return items
        by_rank: list = [None] * self.world
        dist.all_gather_object(by_rank, items)
        return [item for items_of_rank in by_rank for item in items_of_rank]

    def build_in_turn(self, build: Callable):
        """`build()` on rank 0, then on the others, so files are built once. All raise a SiamDiffError of rank 0."""
        result = failed = None
        try:
            result = None if self.rank else build()
        except SiamDiffError as error:
            failed = error
        failed = self.all_gather([failed])[0]  # here the others wait
        if failed:
            failed.everywhere = True
            raise failed
        return build() if self.rank else result

    def alone_in(self, out: str):
        """Keep other runs from writing to the folder `out`. Raises SiamDiffError if one does."""
        busy = f"another run is writing to {out}: wait for its end, or choose another --out"
        if self.world == 1 and any(int(os.environ.get(name) or 1) > 1 for name in STARTED):
            busy += ". Processes of srun or mpirun know nothing of each other: for one run let them start torchrun"
        return nullcontext() if self.rank else lock(Path(out) / "lock", busy)

    def say(self, text: str) -> None:
        """Print once."""
        if self.rank == 0:
            tqdm.write(text)
            sys.stdout.flush()

    def bar(self, items=None, **options) -> Bar:
        """A progress bar on rank 0."""
        return progress(items, disable=self.rank > 0, **options)


def local_rank(rank: int, count: int) -> int:
    """Which of `count` GPUs is ours: torchrun says so, SLURM may; without both, processes follow each other."""
    told = os.environ.get("LOCAL_RANK")
    return int(told) if told else int(os.environ.get("SLURM_LOCALID") or rank) % count


@contextmanager
def launch(
    device: str = "auto", threads: int | None = None, deterministic: bool = False, amp: str = "off"
) -> Iterator[Ranks]:
    """The processes of this run, while the context lasts. ConfigError without GPU, SiamDiffError if one ends."""
    world = world_size()
    rank = int(os.environ["RANK"]) if world > 1 else 0
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if choose_device(device) == "cuda":
        chosen = prepare_gpu(rank, world, deterministic)
    else:
        chosen = torch.device("cpu")
        keep_freed_memory()
        if amp == "bf16":
            keep_few_plans()
    if world > 1:
        meet("gloo" if chosen.type == "cpu" else "cpu:gloo,cuda:nccl", rank, world)
    with naming_lost_processes():
        yield Ranks(chosen, rank, world)
    if world > 1:  # not in a `finally`: on an error the other processes are not waited for
        dist.barrier()
        gc.collect()  # DDP holds on to the group, whose threads have to end before the interpreter does
        dist.destroy_process_group()


def prepare_gpu(rank: int, world: int, deterministic: bool) -> torch.device:
    """The GPU of this process. Raises ConfigError if there are more processes than GPUs."""
    count = torch.cuda.device_count()
    local = local_rank(rank, count) if world > 1 else 0
    started = max(local + 1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # on this machine; all see the same
    if started > count:
        raise ConfigError(f"torchrun started more processes than there are GPUs here ({count})")
    chosen = torch.device("cuda", local)
    torch.cuda.set_device(chosen)
    torch.set_float32_matmul_precision("highest" if deterministic else "high")  # the latter is TF32
    return chosen


def meet(backend: str, rank: int, world: int) -> None:
    """Connect the processes, which exchange tensors by `backend`. Raises SiamDiffError."""
    alone = "For one process alone: unset WORLD_SIZE"
    try:
        first = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # who holds the store
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, first, MEETING
        store = dist.TCPStore(*place, wait_for_workers=False, multi_tenant=True)  # type: ignore[attr-defined]

        # torchrun may keep this store through its restarts, with the stale addresses of those before.
        attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        store = dist.PrefixStore(attempt, store)  # type: ignore[attr-defined]

        # The last one to come tells all; after a minute the first says how many are missing.
        came = store.add("here", 1)
        if came == world:
            store.set("all", "here")
        try:
            store.wait(["all"], MINUTE)
        except RuntimeError:
            if came == 1:
                here = store.add("here", 0)
                print(f"waiting     {here} of {world} processes are here. {alone}", file=sys.stderr, flush=True)
            store.wait(["all"], MEETING)
        store.set_timeout(PATIENCE)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    except RuntimeError as error:
        raise SiamDiffError(f"the {world} processes of this run cannot meet: {error!s:.300}. {alone}") from error


@contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Make a sentence of errors that tell of another process."""
    try:
        yield
    except RuntimeError as error:
        reason = re.sub(r"^\[\S+\] ", "", str(error).partition("\n")[0]).partition(". ")[0]
        if reason.startswith(("DataLoader worker (pid", "DataLoader timed out")):
            help = "Memory may have run out (fewer --num-workers need less), or the disk of the data does not answer"
            raise SiamDiffError(f"{reason}. {help}") from error
        if isinstance(error, dist.DistError) or "/gloo/" in str(error):
            cause = "its own message tells why; if it left none, it was killed, as by a lack of memory"
            raise SiamDiffError(f"lost another process of this run: {cause} ({reason})") from error
        raise


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect SIGTERM, SIGUSR1, Ctrl-C (again: interrupts). Outside the main thread they are the host's."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def remember(number, frame):
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, remember) for number in CAUGHT}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def totals(records: list[Record], ranks: Ranks) -> dict[str, tuple[type[Statistic], list]]:
    """The statistic and sums of every log over all batches and processes, correctly rounded, in any order."""
    statistics = {name: type(log) for record in records for name, log in record.items()}
    mine = []
    for name, statistic in statistics.items():
        if not issubclass(statistic, Statistic):
            raise ConfigError(f"the objective logs {name} as a {statistic.__name__}: take Mean.of(the values)")
        sums = torch.stack([record[name].sums.double() for record in records if name in record])
        mine.append((name, statistic, sums.cpu().numpy()))
    everyone = ranks.all_gather(mine)

    # Another process may log what this one does not.
    found = {}
    for name, statistic in sorted({name: statistic for name, statistic, _ in everyone}.items()):
        sums = np.concatenate([sums for other, _, sums in everyone if other == name])
        total = np.apply_along_axis(math.fsum, 0, sums)
        if total.any():
            found[name] = statistic, total.tolist()
    return found


def means(records: list[Record], ranks: Ranks) -> dict[str, float]:
    """The value of every log over all batches and processes."""
    return {name: statistic.value(total) for name, (statistic, total) in totals(records, ranks).items()}
