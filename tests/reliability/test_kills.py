"""SIGKILL at any moment, and the same command again: what is left in the end is what an undisturbed run leaves.

At random moments, half of them inside a save that is made to last, and at every single operation on the disk in turn.
The long versions (`pytest -m soak tests/reliability/test_kills.py`) are the same functions with more kills.
"""

import itertools
import random
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from processes import RUNS, finish, kill, start

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
        ("training", 1, 6),
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
