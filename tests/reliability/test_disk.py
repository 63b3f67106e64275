"""A disk that is full or read-only from any operation on: a message, no traceback, and nothing of before is lost.

The disk fails at one operation after the other, then with a real limit on the size of files, so that the system ends
writes in the middle. The same command afterwards, with the disk in order, leaves what an undisturbed run leaves.
"""

import errno
import itertools
import os
import subprocess
import sys

import processes
import pytest
from processes import ROOT, RUNS, finish, start

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


@pytest.mark.repeats
@pytest.mark.parametrize(
    "name, limits",
    [
        ("pre-training", [20_000]),
        *(pytest.param(name, [5_000, 20_000, 80_000, 320_000, 1_280_000], marks=SOAK) for name in SCRIPTS),
    ],
)
def test_a_limit_on_the_size_of_files(name, limits, tmp_path, enzymes, record_property):
    run = RUNS[name](tmp_path, enzymes)
    expected, passed, reason = run.undisturbed(), 0, os.strerror(errno.EFBIG)
    for limit in limits:
        place = tmp_path / str(limit)
        passed += assert_ends_well_or_says_why(run, place, tmp_path / "log", reason, expected, LIMIT=limit)
    assert passed < len(limits) or name.startswith("embedding")
    record_property("limits that ended it, each said and made good", len(limits) - passed)


SMALL_DISK = """
mount -t tmpfs -o size=$1k none $2 || exit 77
place=$2 copy=$3; shift 3
"$@"; echo "status $?"
mount -o remount,size=200m $place
"$@"; echo "status $?"
cp -r $place/out $copy
"""


@SOAK
def test_a_small_file_system(tmp_path, enzymes, record_property):
    """A disk that is really full, where the system lets a user have one of his own; then it is made larger."""
    disk, failed = tmp_path / "disk", 0
    disk.mkdir()
    run = RUNS["pre-training"](tmp_path, enzymes)
    expected = run.undisturbed()
    for size in (40, 400, 1200, 2400, 3600):  # kB
        command = [sys.executable, processes.__file__, *map(str, run.command(disk / "out"))]
        copy = tmp_path / f"copy-{size}"
        settings = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
        result = subprocess.run(
            ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh", str(size), str(disk), str(copy), *command],
            capture_output=True, text=True, env=settings,
        )  # fmt: skip
        if result.returncode == 77 or "unshare failed" in result.stderr:
            pytest.skip("no file system of one's own here")
        said = result.stdout + result.stderr
        assert said.count("status 0") >= 1 and result.stdout.endswith("status 0\n") and "Traceback" not in said, said
        full = "status 1" in said
        assert not full or "No space left on device" in said, said
        assert run.result(copy) == expected
        failed += full
    assert failed >= 2
    record_property("full disks, each said and made good", failed)


def test_what_cannot_be_written_is_said_before_the_work(tmp_path, enzymes):
    run, log = RUNS["embedding"](tmp_path, enzymes), tmp_path / "log"
    assert finish(start(log, 1, *run.command("/dev/null/embeddings"))) == [1]
    assert "error: could not write /dev/null/embeddings.npz" in log.read_text() and "seen" not in log.read_text()
