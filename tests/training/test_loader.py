"""Processes that load data: whatever happens to them, the run ends with a sentence, and the others with it."""

import multiprocessing
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import processes
import pytest
import standin
import torch
from processes import PATIENCE, cold, finish, start
from torch.utils.data import Subset

from siamdiff_min.data.store import open_store
from siamdiff_min.files import SiamDiffError
from siamdiff_min.training import evaluation, loader
from siamdiff_min.training.ranks import Ranks

CPU = torch.device("cpu")
SOON = 60  # seconds from the sentence to the end
TRAINED, HELD_OUT = 7, 43  # proteins of the stand-in
KILLED = "is killed by signal: Killed"


@pytest.mark.repeats
@pytest.mark.parametrize("workers, world", [(1, 2), (2, 1), (1, 1), (2, 2)])
@pytest.mark.parametrize(
    "how, index, sentence",
    [
        ("raises", TRAINED, "the store was replaced while it was in use"),
        ("killed", TRAINED, KILLED),
        ("raises", HELD_OUT, "the store was replaced while it was in use"),
        ("killed", HELD_OUT, KILLED),
    ],
)
def test_an_error_of_a_process_that_loads_ends_the_run(how, index, sentence, workers, world, tmp_path):
    """The message was printed, and then the workers were joined, which ignored SIGTERM; other ranks waited on."""
    log = tmp_path / "log"
    children = start(log, world, "framed", tmp_path / "out", "--num-workers", workers, LOADER=f"{how}:{index}")
    end = time.monotonic() + PATIENCE
    while sentence not in (log.read_text() if log.exists() else "") and time.monotonic() < end:
        time.sleep(0.05)
    codes = finish(children, SOON)
    said = log.read_text()
    assert codes == [1] * world and sentence in said, said
    assert world == 1 or "error: lost another process of this run, whose message tells why" in said, said


def test_a_shard_that_was_damaged_ends_the_command(enzymes, tmp_path):
    """`train.py` in an interpreter of its own, as a user starts it."""
    store = open_store(enzymes / "train", tmp_path / "mine.store").path
    (shard,) = store.glob("0*.pt")
    shard.write_bytes(bytes(shard.stat().st_size))
    options = (
        "--size tiny --level residue --batch-size 2 --max-length 20 --valid-fraction 0 --num-workers 1 --device cpu"
    )
    said = cold("train.py", "--data", store, "--out", tmp_path / "out", *options.split(), status=1)
    assert f"StoreError: {shard} is damaged" in said


def unshared() -> bool:
    """Whether we may mount a file system where only we see it."""
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


SMALL = "mount -t tmpfs -o size=64k tmpfs /dev/shm && "


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize(
    "case", [f"unshare -m sh -c '{SMALL}%s'", "ulimit -n 32; %s", f"unshare -m sh -c '{SMALL}ulimit -n 32; %s'"]
)
def test_batches_need_no_room_in_shared_memory_and_no_files(case, tmp_path):
    """A container has 64 MB of /dev/shm, here it has 64 KB; a tensor took a file each."""
    if "unshare" in case and not unshared():
        pytest.skip("we may not mount anything")
    command = f"{sys.executable} {processes.__file__} framed {tmp_path}/out --num-workers 2 --epochs 1"
    paths = f"{processes.ROOT}{os.pathsep}{processes.ROOT / 'tests'}"
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    how = {"env": environment, "capture_output": True, "text": True, "timeout": PATIENCE}
    done = subprocess.run(["sh", "-c", case % command], **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert standin.lines(tmp_path / "out")[-1]["step"] == 20


class Failing:
    collate = staticmethod(torch.stack)

    def __getitem__(self, key):
        if key == 4:
            raise KeyError("a fault of ours")
        return torch.full((2,), float(key))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_and_errors_in_their_turn(workers):
    """An error keeps its traceback; and nothing is drawn from the global generator."""
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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux tells who is whose child")
def test_processes_that_load_end_when_ours_is_killed(tmp_path):
    children = start(tmp_path / "log", 1, "stand-in", tmp_path / "out", "--num-workers", 2, "--epochs", 9999)
    end = time.monotonic() + PATIENCE

    def workers() -> list:
        listing = Path(f"/proc/{children[0].pid}/task/{children[0].pid}/children")
        return listing.read_text().split() if listing.exists() else []

    while len(found := workers()) < 2 or not (tmp_path / "out" / "metrics.jsonl").exists():
        assert time.monotonic() < end and children[0].is_alive(), (tmp_path / "log").read_text()
        time.sleep(0.02)
    processes.kill(children)
    while any(running(pid) for pid in found):
        assert time.monotonic() < end
        time.sleep(0.02)


def running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_error_does_not_stand_at_the_end_of_a_bar(monkeypatch, tmp_path, capsys):
    """That of held-out proteins stayed on its line, since nobody closed it."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # it moves every tenth of a second
    data = Subset(standin.Dataset(40), range(40))

    def measure(number, batch, names):
        time.sleep(0.15)
        if number == 3:
            raise SiamDiffError("the reason")

    with pytest.raises(SiamDiffError):
        evaluation.held_out(standin.Objective(), data, standin.configure(tmp_path), Ranks(CPU), measure)
    said = capsys.readouterr().err
    assert "held out: " in said and said.endswith("\r")


def test_a_message_does_not_draw_a_bar_whose_line_nobody_ends(capsys):
    """In a file, the bar of a run of less than half a minute; what came next stood behind it."""
    with Ranks(CPU).bar(total=2) as bar:
        for _ in range(2):
            Ranks(CPU).say("a message")
            bar.update()
    said = capsys.readouterr()
    assert said.out == "a message\na message\n" and "|" not in said.err
