"""A disk that is full or read-only from any operation on: a message, no traceback, and nothing of before is lost.

The same command afterwards, with the disk in order, leaves what an undisturbed run leaves.
"""

import errno
import itertools
import os

import pytest
from processes import RUNS, finish, start

SOAK = pytest.mark.soak
SCRIPTS = [name for name in RUNS if name != "training"]  # what a user starts, and therefore reads the messages of
QUICK = ("pre-training", "fine-tuning", "conversion anew")


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
def test_a_disk_that_fails_from_some_operation_on(name, often, disk, number, tmp_path, enzymes, record_property):
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
    record_property("failures, each said and made good", failed)


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, enzymes):
    run, log = RUNS["embedding"](tmp_path, enzymes), tmp_path / "log"
    assert finish(start(log, 1, *run.command("/dev/null/embeddings"))) == [1]
    assert "error: could not write /dev/null/embeddings.npz" in log.read_text() and "seen" not in log.read_text()
