"""Processes that load data: whatever happens to them, the run ends with a sentence, and the others with it.

And the order of the data, which depends on (seed, epoch) alone.
"""

import itertools
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace

import processes
import pytest
import standin
import torch
from processes import PATIENCE, descendants, finish, running, start, until
from standin import configure

from siamdiff_min import machine
from siamdiff_min.files import SiamDiffError
from siamdiff_min.reading.store import open_store
from siamdiff_min.training import loader
from siamdiff_min.training.batches import epoch_batches, seed_of, train_keys, valid_keys

CPU = torch.device("cpu")
SOON = 60  # seconds from the sentence to the end
TRAINED, HELD_OUT = 7, 43  # proteins of the stand-in
SENTENCES = {
    "raises": "error: the store was replaced while it was in use\n",
    "killed": "error: DataLoader worker (pid",  # "is killed by signal", or if it is spawned "exited unexpectedly"
    "hangs": "error: DataLoader timed out after 3 seconds. Memory may have run out",
}


@pytest.mark.repeats
@pytest.mark.parametrize(
    "how, index, method, workers, world",
    [
        ("raises", TRAINED, "fork", 1, 2),
        ("killed", TRAINED, "fork", 1, 2),
        ("hangs", TRAINED, "fork", 1, 2),
        ("raises", HELD_OUT, "fork", 2, 1),
        ("killed", HELD_OUT, "spawn", 1, 2),
    ],
)
def test_a_process_that_loads_and_fails_is_killed_or_hangs_ends_the_run(how, index, method, workers, world, tmp_path):
    """With a sentence, on all ranks."""
    log, options = tmp_path / "log", ("--num-workers", workers)
    harm = {"LOADER": f"{how}:{index}", "START": method}
    children = start(log, world, "framed", tmp_path / "out", *options, **harm)
    until(lambda: SENTENCES[how] in (log.read_text() if log.exists() else ""), log)
    codes, said = finish(children, SOON), log.read_text()
    assert codes == [1] * world and "Traceback" not in said, said
    assert world == 1 or "error: lost another process of this run: its own message tells why" in said, said


def test_a_shard_that_was_damaged_ends_the_command(enzymes, tmp_path):
    store = open_store(enzymes / "train", tmp_path / "mine.store").path
    (shard,) = store.glob("0*.pt")
    shard.write_bytes(bytes(shard.stat().st_size))
    options = "--size tiny --level residue --batch-size 2 --max-length 20 --valid-fraction 0 --num-workers 1"
    more = [*options.split(), "--device", "cpu"]
    said = processes.run("train", "--data", store, "--out", tmp_path / "out", *more, status=1)
    assert f"error: {shard} is damaged" in said and "Traceback" not in said


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize("small", ["unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && %s'", "%s"])
def test_batches_need_no_room_in_shared_memory_and_few_files(small, tmp_path):
    """A container has 64 MB of /dev/shm, here it has 1 MB."""
    if "unshare" in small and subprocess.run(small % "true", shell=True, capture_output=True).returncode:
        pytest.skip("we may not mount anything")
    command = f"{sys.executable} {processes.__file__} framed {tmp_path}/out --num-workers 2 --epochs 1"
    environment = os.environ | {"PYTHONPATH": f"{processes.ROOT}:{processes.ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    how = {"env": environment, "capture_output": True, "text": True, "timeout": PATIENCE, "shell": True}
    done = subprocess.run(small % f"ulimit -n 32; {command}", **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert standin.lines(tmp_path / "out")[-1]["step"] == 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's, of a loader half made
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # torch's, if this process may use one core
def test_processes_that_cannot_be_started_are_a_sentence(monkeypatch):
    """As in a container with a limit on processes; and the one that was started does not stay."""
    begin = multiprocessing.context.ForkProcess.start

    def refuse(self):
        if "-2" in self.name or multiprocessing.active_children():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begin(self)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(loader, "cores", lambda: 2)
    loaded = loader.load_batches(Failing(), [[0], [1]], Namespace(num_workers=2), CPU)
    with pytest.raises(SiamDiffError, match="could not start 2 processes that load data: Resource temporarily unavail"):
        next(loaded)
    assert not multiprocessing.active_children()


def test_without_semaphores_the_process_that_trains_loads_the_data(monkeypatch, capsys):
    """As in a container without a /dev/shm that can be written; said once."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(multiprocessing.synchronize._multiprocessing, "SemLock", refuse)
    machine.warn_once.cache_clear()
    for _ in range(2):
        loaded = [*loader.load_batches(Failing(), [[0], [1, 2]], Namespace(num_workers=2), CPU)]
        assert [batch[:, 0].tolist() for batch in loaded] == [[0], [1, 2]]
    said = "warning: the process that trains loads the data too, no others can be started here (/dev/shm: Read-only"
    assert capsys.readouterr().err.count(said) == 1


class Failing:
    collate = staticmethod(torch.stack)

    def __getitem__(self, key):
        if key == 4:
            raise KeyError("a fault of ours")
        return torch.full((2,), float(key))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_and_errors_in_their_turn(workers, recwarn):
    """An error keeps its traceback; nothing is drawn from the global generator; no more processes than cores."""
    data, config = Failing(), Namespace(num_workers=workers)
    keys, state = [[i, i + 1] for i in (5, 0, 1, 7, 6, 8, 1, 0, 5, 7)], torch.get_rng_state()
    batches = list(loader.load_batches(data, keys, config, CPU))
    assert [batch.tolist() for batch in batches] == [[[i, i], [i + 1, i + 1]] for i, _ in keys]
    assert torch.equal(torch.get_rng_state(), state)
    loaded = loader.load_batches(data, [[0, 1], [4, 3]], config, CPU)
    next(loaded)
    with pytest.raises(KeyError, match=r"(?s)a fault of ours"):
        next(loaded)
    assert not multiprocessing.active_children()
    assert not [warning for warning in recwarn if "fork()" not in str(warning.message)]  # from Python 3.12 on


class Late:
    """Items that take long."""

    collate = staticmethod(torch.stack)

    def __getitem__(self, key):
        time.sleep(30)


def test_a_process_that_hangs_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(loader, "PATIENCE", 0.2)
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)  # seconds to wait for one that hangs
    with pytest.raises(RuntimeError, match="DataLoader timed out"):
        list(loader.load_batches(Late(), [["hangs"]], Namespace(num_workers=1), CPU))


class Signalled(list):
    @staticmethod
    def collate(batch: list) -> list:
        os.kill(os.getpid(), signal.SIGTERM) if multiprocessing.parent_process() else None
        return batch


def test_a_signal_to_all_is_for_the_run():
    """Batch systems send SIGTERM to the processes that load data too."""
    assert [*loader.load_batches(Signalled(range(10)), [[3], [1]], Namespace(num_workers=2), CPU)] == [[3], [1]]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTERM, signal.SIGINT}


@pytest.mark.repeats
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_that_load_end_within_15_seconds_of_ours(number, tmp_path):
    log = tmp_path / "log"
    slow = {"SLOW_FORKS": 1} if number == signal.SIGKILL else {}  # they begin when ours is gone
    (child,) = start(log, 1, "stand-in", tmp_path / "out", "--num-workers", 2, "--epochs", 9999, **slow)
    until(lambda: len(descendants(child.pid)) > 1, log)  # one alone may be git, which tells the commit
    found = descendants(child.pid)
    os.kill(child.pid, number)
    begin = time.monotonic()
    until(lambda: not any(map(running, found)), log)
    assert time.monotonic() - begin < 15
    assert finish([child]) == [-9 if number == signal.SIGKILL else 128 + signal.SIGTERM]


# ---- the order of the data: a pure function of (seed, epoch), dealt evenly to processes ------------------------------


def test_an_epoch_takes_each_at_most_once():
    batches = epoch_batches(103, 10, seed=1, epoch=2)
    assert batches.shape == (10, 10) and len(set(batches.ravel())) == 100 and batches.max() < 103
    assert (batches == epoch_batches(103, 10, seed=1, epoch=2)).all()
    assert (batches != epoch_batches(103, 10, seed=1, epoch=3)).any()
    assert (batches != epoch_batches(103, 10, seed=2, epoch=2)).any()


def test_a_batch_larger_than_the_data_goes_round():
    batch = epoch_batches(3, 8, seed=0, epoch=0)
    assert batch.shape == (1, 8) and set(batch[0, :3]) == {0, 1, 2} and (batch[0, 3:6] == batch[0, :3]).all()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("num", [5, 30, 101])
def test_ranks_share_the_same_global_batches(num, world):
    config = configure("x", "--batch-size", 4, "--global-batch-size", 24, world=world)
    indices, steps = [7 * i for i in range(num)], range(0, 9)
    one = list(train_keys(config, indices, steps, 0, 1))
    ranks = [list(train_keys(config, indices, steps, rank, world)) for rank in range(world)]
    assert {len(r) for r in ranks} == {9 * 6 // world}
    assert [part for together in zip(*ranks) for part in together] == one  # dealt in turn
    resumed = list(train_keys(config, indices, range(5, 9), 0, 1))
    assert resumed == one[5 * 6 :]
    for epoch, keys in itertools.groupby((key for part in one for key in part), key=lambda key: key[0]):
        keys = list(keys)
        assert num < 24 or len(set(keys)) == len(keys), epoch


@pytest.mark.parametrize("num", [0, 1, 7, 8, 9, 101])
def test_held_out_proteins_come_once(num):
    """None is alone if there are others: `multiview` compares the proteins of a batch."""
    batches = valid_keys(range(num), 4)
    assert [key for batch in batches for key in batch] == [(0, i) for i in range(num)]
    assert all(len(batch) == 4 for batch in batches[:-1]) and all(2 <= len(batch) <= 5 or num == 1 for batch in batches)
    assert [len(batch) for batch in valid_keys(range(num), 1)] == [1] * num


def test_seeds_differ():
    keys = [(s, a, b) for s in range(5) for a in range(50) for b in range(5)]
    validation = [(s, 0, 0, 1 + b) for s in range(5) for b in range(50)]
    dropout = [(*key, 0, 1) for key in keys]
    seeds = {seed_of(*key) for key in keys + validation + dropout}
    assert len(seeds) == len(keys) + len(validation) + len(dropout) and min(seeds) >= 0 and max(seeds) < 2**63
