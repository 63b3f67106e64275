"""SIGKILL at any moment, and the same command again: what is left in the end is what an undisturbed run leaves.

At random moments, half of them inside a save that is made to last, and at every single operation on the disk in turn.
The long versions (`pytest -m soak tests/reliability/test_kills.py`) are the same functions with more kills.
"""

import errno
import itertools
import multiprocessing
import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import processes
import pytest
from processes import PATIENCE, RUNS, finish, kill, running, start, torchrun, until
from standin import lines

from siamdiff_min import files
from siamdiff_min.files import SiamDiffError, WriteError, lock
from siamdiff_min.training import checkpoint

SOAK = pytest.mark.soak
QUICK = ("training", "fine-tuning", "conversion")


def killed_until_done(begin, monitor: Path, patience: float, most: int) -> Counter:
    """Start a run again and again and kill it, until it ends by itself or was killed `most` times."""
    count = Counter()
    while True:
        children = begin(SLOW_SAVES=monitor) if count["killed"] < most else begin()
        if count["killed"] == most:
            assert finish(children) == [0] * len(children)
            return count
        if count["killed"] % 2:  # half of them inside a save, at a random point of it
            while not monitor.exists() and all(process.is_alive() for process in children):
                time.sleep(0.002)
            time.sleep(random.uniform(0, 0.05))
        else:  # the others at any time, from the start on
            time.sleep(random.uniform(0, patience))
        if not any(process.is_alive() for process in children):
            assert finish(children) == [0] * len(children)
            return count
        count += Counter(killed=1, inside=monitor.exists())
        kill(children)
        monitor.unlink(missing_ok=True)


@pytest.mark.repeats
@pytest.mark.parametrize(
    "name, world, kills",
    [
        pytest.param("training", 1, 6, marks=pytest.mark.full),
        ("training", 2, 3),
        ("fine-tuning", 1, 3),
        pytest.param("training", 1, 80, marks=SOAK),
        pytest.param("training", 2, 50, marks=SOAK),
        pytest.param("fine-tuning", 1, 50, marks=SOAK),
        pytest.param("fine-tuning", 2, 20, marks=SOAK),
        pytest.param("conversion", 1, 20, marks=SOAK),
    ],
)
def test_killed_at_random_moments(name, world, kills, tmp_path, enzymes):
    run = RUNS[name](tmp_path, enzymes)
    random.seed(world)
    expected = run.undisturbed(world)
    count = Counter()
    while count["killed"] < kills:
        place = tmp_path / f"run-{count['runs']}"
        begin = partial(start, tmp_path / "log", world, *run.command(place))
        count += killed_until_done(begin, tmp_path / "saving", run.seconds * world, kills - count["killed"])
        count["runs"] += 1
        assert run.result(place) == expected
    assert count["inside"] >= kills // 5


@pytest.mark.repeats
@pytest.mark.parametrize(
    "name, every", [*((name, False) for name in QUICK), *(pytest.param(name, True, marks=SOAK) for name in RUNS)]
)
def test_killed_at_operations_on_the_disk(name, every, tmp_path, enzymes):
    run = RUNS[name](tmp_path, enzymes)
    expected, killed = run.undisturbed(), 0
    for number in itertools.count(2, 1 if every else max(1, run.operations // 3)):
        place = tmp_path / str(number)
        codes = finish(start(tmp_path / "log", 1, *run.command(place), DISK=f"kill:{number}:{place}"))
        if codes == [0]:  # it has fewer operations than that
            break
        assert codes == [-signal.SIGKILL]
        killed += 1
        assert finish(start(tmp_path / "log", 1, *run.command(place))) == [0], (tmp_path / "log").read_text()
        assert run.result(place) == expected, number
    assert killed >= (0.6 * run.operations if every else 1)


# ---- SIGTERM and Ctrl-C: a checkpoint, and the end within seconds ----------------------------------------------------


def members(group: int) -> list[int]:
    """The processes of a group that are running."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if running(pid := int(place.name)) and os.getpgid(pid) == group:
                found.append(pid)
    return found


def send_to_group(process, number: int) -> None:
    """Unless the process has ended by itself. On a busy machine it may not be a group yet."""
    while process.is_alive():
        with suppress(ProcessLookupError):
            return os.killpg(process.pid, number)
        time.sleep(0.01)


def stopped(run, place: Path, world: int, number: int, in_a_save: bool, log: Path, more: list) -> tuple[list, bool]:
    """The exit codes of a run whose groups got a signal, and whether it got it before it had ended by itself."""
    monitor = place.with_name("saving")
    log.write_text("")
    children = start(log, world, *run.command(place), *more, SLOW_SAVES=monitor)
    while in_a_save and not monitor.exists() and all(process.is_alive() for process in children):
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.05 if in_a_save else 2 * run.seconds * world))
    alive = all(process.is_alive() for process in children)
    for process in children:
        send_to_group(process, number)
    monitor.unlink(missing_ok=True)
    codes = finish(children)
    until(lambda: not any(members(process.pid) for process in children), log)
    assert None not in codes, log.read_text()
    return codes, alive


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("name, world, signals", [
    ("training", 1, 3), ("conversion", 1, 1),
    *(pytest.param(*case, marks=SOAK) for case in (("training", 1, 12), ("training", 2, 5), ("fine-tuning", 1, 5))),
])  # fmt: skip
def test_signals_at_random_moments(name, world, signals, number, tmp_path, enzymes):
    """To whole groups, as `timeout`, a terminal and batch systems send them: processes that load data get them too."""
    run, log = RUNS[name](tmp_path, enzymes), tmp_path / "log"
    random.seed(number)
    expected, more = run.undisturbed(world), ["2"] if name == "conversion" else ["--num-workers", "2"]
    sent = saved = attempt = 0
    while sent < signals:
        attempt += 1
        assert attempt < 20 * signals + 20, "the runs end before their signals arrive"
        place = tmp_path / f"run-{attempt}"
        codes, alive = stopped(run, place, world, number, attempt % 2 == 1, log, more)
        said = log.read_text()
        in_the_loop = re.search(r"stopped by \w+ after step (\d+)", said)
        if 128 + number in codes and in_the_loop:  # after a checkpoint
            step = int(in_the_loop[1])
            folder = max(place.rglob("metrics.jsonl"), key=lambda file: file.stat().st_mtime).parent
            assert codes == [128 + number] * world and checkpoint.latest(folder)[1]["step"] == step
            saved += 1
        elif codes != [0] * world:  # where there is nothing to save: as any other program ends
            ended = {-number, 1} | ({128 + signal.SIGINT} if number == signal.SIGINT else set())
            assert set(codes) <= ended, (codes, said)
            assert "Traceback" not in said or "KeyboardInterrupt" in said, said
        sent += alive
        assert finish(start(log, world, *run.command(place), *more)) == [0] * world, log.read_text()
        assert run.result(place) == expected
    assert saved >= signals // 3 or name == "conversion"


@pytest.mark.repeats
@pytest.mark.parametrize(
    "below, numbers",
    [*(("/seed-3/checkpoint-000000004", [n]) for n in (1, 3)), pytest.param("", range(2, 100, 3), marks=SOAK)],
)
def test_a_signal_is_never_forgotten(below, numbers, tmp_path, enzymes):
    """At operations of fine-tuning on the disk; above all in the last save of the first of two seeds: the second must
    not be begun as if there were no signal."""
    run, log = RUNS["fine-tuning"](tmp_path, enzymes), tmp_path / "log"
    expected = run.undisturbed()
    for number in numbers:
        place = tmp_path / str(number)
        codes = finish(start(log, 1, *run.command(place), DISK=f"terminate:{number}:{place}{below}"))
        assert codes[0] in (128 + signal.SIGTERM, -signal.SIGTERM), log.read_text()
        assert finish(start(log, 1, *run.command(place))) == [0]
        assert run.result(place) == expected


@pytest.mark.full
def test_sigterm_to_one_rank_ends_both_after_a_checkpoint(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    children = start(log, 2, "stand-in", out, "--save-every", "1", SLOW_SAVES=tmp_path / "saving")
    until(lambda: checkpoint.checkpoints(out), log)
    children[1].terminate()
    assert finish(children) == [128 + signal.SIGTERM] * 2
    step = checkpoint.latest(out)[1]["step"]
    assert 1 <= step < 20 and lines(out)[-1]["step"] == step


@pytest.mark.full
@pytest.mark.parametrize("number, group", [(signal.SIGTERM, False), pytest.param(signal.SIGINT, True, marks=SOAK)])
def test_signals_to_torchrun(number, group, tmp_path):
    """To torchrun alone, or to everything that a terminal's Ctrl-C reaches."""
    out, settings = tmp_path / "out", {"SLOW_SAVES": str(tmp_path / "saving")}
    process = torchrun(2, processes.__file__, "stand-in", out, "--save-every", "1", **settings)
    until(lambda: checkpoint.checkpoints(out), tmp_path / "log")
    os.killpg(process.pid, number) if group else process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode and f"stopped by {number.name} after step" in said, said
    step = int(re.search(r"after step (\d+)", said)[1])
    assert checkpoint.latest(out)[1]["step"] == step and not members(process.pid)


# ---- a disk that is full, read-only or without locks -----------------------------------------------------------------


SCRIPTS = [name for name in RUNS if name != "training"]  # what a user starts, and therefore reads the messages of
WRITERS = ("pre-training", "fine-tuning", "conversion")


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
    "name, often", [*((name, False) for name in WRITERS), *(pytest.param(name, True, marks=SOAK) for name in SCRIPTS)]
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
    assert 1 not in codes or "another process writes it too" in said


def test_a_file_that_another_process_has_moved_meanwhile_is_said(tmp_path):
    said = pytest.raises(WriteError, match=r"out\.npz: another process writes it too")
    with said, files.replacing(tmp_path / "out.npz"):
        next(tmp_path.iterdir()).rename(tmp_path / "out.npz")


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
