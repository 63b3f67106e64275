"""A disk that is full, read-only or without locks: a message, no traceback, nothing of before is lost.

The same command afterwards, with the disk in order, leaves what an undisturbed run leaves. One run at a time in a
folder: the second gets a sentence, and nothing that has ended keeps the folder locked.
"""

import errno
import itertools
import multiprocessing
import os
import time

import pytest
from processes import RUNS, finish, start

from siamdiff_min import files
from siamdiff_min.files import SiamDiffError, WriteError, lock

SOAK = pytest.mark.soak
SCRIPTS = [name for name in RUNS if name != "training"]  # what a user starts, and therefore reads the messages of
QUICK = ("pre-training", "fine-tuning", "conversion")


def assert_ends_well_or_says_why(run, place, log, reason, expected, **harm):
    """True where the run ended by itself although it was harmed."""
    log.write_text("")
    codes = finish(start(log, 1, *run.command(place), **harm))
    said = log.read_text()
    assert codes == [0] or (codes == [1] and "error: " in said and reason in said), said
    assert "Traceback" not in said and (codes == [0] or str(place.parent) in said), said
    assert codes == [0] or finish(start(log, 1, *run.command(place))) == [0], log.read_text()
    assert run.result(place) == expected, said
    return codes == [0]


@pytest.mark.repeats
@pytest.mark.parametrize("disk, number", [("full", errno.ENOSPC), ("read-only", errno.EROFS)])
@pytest.mark.parametrize(
    "name, often", [*((name, False) for name in QUICK), *(pytest.param(name, True, marks=SOAK) for name in SCRIPTS)]
)
def test_a_disk_that_fails_from_some_operation_on(name, often, disk, number, tmp_path, enzymes):
    run = RUNS[name](tmp_path, enzymes)
    expected, failed = run.undisturbed(), 0
    first = run.operations // 2 if disk == "full" and not often else 1
    for begin in itertools.count(first, 1 + run.operations // 12):
        place = tmp_path / str(begin)
        harm = f"{disk}:{begin}:{place}"
        if assert_ends_well_or_says_why(run, place, tmp_path / "log", os.strerror(number), expected, DISK=harm):
            break  # nothing that matters comes after this
        failed += 1
        if not often:
            break
    assert failed >= 1


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, enzymes):
    run, log = RUNS["embedding"](tmp_path, enzymes), tmp_path / "log"
    assert finish(start(log, 1, *run.command("/dev/null/embeddings"))) == [1]
    assert "error: could not write /dev/null/embeddings.npz" in log.read_text() and "seen" not in log.read_text()


@pytest.mark.repeats
@pytest.mark.parametrize("name, world", [("pre-training", 1), ("pre-training", 2), ("fine-tuning", 1)])
def test_the_second_run_in_a_folder_is_refused(name, world, tmp_path, enzymes):
    run, log, place = RUNS[name](tmp_path, enzymes), tmp_path / "log", tmp_path / "out"
    with lock(place / "lock"):
        assert finish(start(log, world, *run.command(place))) == [1] * world
    said = log.read_text()
    assert f"error: another run is writing to {place}: wait for its end, or choose another --out" in said
    assert os.listdir(place) == ["lock"] and (world > 1 or "Traceback" not in said)


def test_two_commands_that_embed_into_one_file_leave_a_whole_one(tmp_path, enzymes):
    run, log, place = RUNS["embedding"](tmp_path, enzymes), tmp_path / "log", tmp_path / "out"
    expected = run.undisturbed()
    codes = finish([child for _ in range(2) for child in start(log, 1, *run.command(place))])
    said = log.read_text()
    assert 0 in codes and {*codes} <= {0, 1} and "Traceback" not in said and run.result(place) == expected, said
    assert 1 not in codes or "error: another siamdiff embed writes to " in said


def test_a_disk_without_locks_is_said(tmp_path, monkeypatch):
    """As NFS without its daemon."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "lockf", refuse)
    with pytest.raises(WriteError, match="lock: No locks available"), lock(tmp_path / "lock", "busy"):
        pass


def hold_with_a_child(path, orphan) -> None:
    with lock(path):
        if os.fork() == 0:
            orphan.value = os.getpid()
        time.sleep(60)
        os._exit(0)


def test_a_child_that_outlives_a_killed_run_does_not_keep_the_lock(tmp_path):
    """As loaders of data do for seconds; torchrun starts the next run at once."""
    context = multiprocessing.get_context("forkserver")
    orphan = context.Value("i", 0)
    process = context.Process(target=hold_with_a_child, args=(tmp_path / "lock", orphan))
    process.start()
    while not orphan.value:
        assert process.is_alive()
        time.sleep(0.01)
    try:
        with pytest.raises(SiamDiffError, match="busy"), lock(tmp_path / "lock", "busy"):
            pass
        process.kill()
        process.join()
        with lock(tmp_path / "lock", "busy"):
            pass
    finally:
        os.kill(orphan.value, 9)
