"""The fuzzer: damaged inputs for one reader after the other, each with a limit of time and memory.

`PYTHONPATH=. python tests/reliability/fuzz.py READER --inputs N --seed S` prints the outcomes as JSON. Input i of a
reader is a pure function of (seed, reader, i): `--start i --inputs 1` makes it again. What went wrong is written to
`--findings`, with its seed and number in the name.
"""

from __future__ import annotations

import argparse
import json
import mmap
import resource
import signal
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fuzz_targets import TARGETS, Target, make
from mutations import mutate

SECONDS = 10  # of CPU time for one input; most take a millisecond
MEGABYTES = 1024  # by which one input may raise the memory of the process
OUTCOMES = ("accepted", "refused", "crash", "hang", "wrong")


@dataclass(frozen=True)
class Finding:
    """An input that went wrong."""

    outcome: str
    index: int
    file: str
    detail: str
    data: bytes


class _Late(BaseException):
    """Passes every `except Exception` of the reader."""


def damaged(target: Target, reader: str, seed: int, index: int) -> tuple[str, bytes]:
    """Input `index`: which file of the target, and its content."""
    rng = np.random.default_rng([seed, zlib.crc32(reader.encode()), index])
    name = list(target.files)[rng.integers(len(target.files))]
    return name, mutate(target.files[name], rng, target.families)


def outcome(target: Target, name: str, data: bytes) -> tuple[str, str]:
    """What a reader makes of an input, and the details where that is not as it should be."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        result, detail = _outcome(target, name, data)
    except _Late:
        return "hang", f"more than {SECONDS} s"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    if grown > MEGABYTES or "MemoryError" in detail:
        return "hang", f"{grown} MB more memory; {detail}"
    return result, detail


def _outcome(target: Target, name: str, data: bytes) -> tuple[str, str]:
    try:
        value = target.read(name, data)
    except target.error as error:
        return "refused", str(error)
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"
    try:
        target.check(name, data, value)
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {error}"
    return "accepted", ""


def run(target: Target, reader: str, seed: int, indices, progress=None) -> Iterator[tuple[str, Finding | None]]:
    """The outcome of every input, with a finding where it is one."""

    def late(*_):
        raise _Late

    previous = signal.signal(signal.SIGVTALRM, late)
    try:
        for index in indices:
            if progress is not None:
                progress[:8] = struct.pack("<q", index)
            name, data = damaged(target, reader, seed, index)
            result, detail = outcome(target, name, data)
            good = result in ("accepted", "refused")
            yield result, None if good else Finding(result, index, name, detail, data)
    finally:
        signal.signal(signal.SIGVTALRM, previous)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reader", choices=TARGETS)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--progress", type=Path, help="file that always holds the number of the present input")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if sys.platform == "linux":  # elsewhere only the memory that was used is looked at
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + 2 * MEGABYTES * 2**20,) * 2)
    counts: Counter = Counter()
    progress = None
    if args.progress:
        args.progress.write_bytes(bytes(8))
        with open(args.progress, "r+b") as file:
            progress = mmap.mmap(file.fileno(), 8)
    with tempfile.TemporaryDirectory() as folder:
        target = make(args.reader, Path(folder) / "work")
        indices = range(args.start, args.start + args.inputs)
        for result, finding in run(target, args.reader, args.seed, indices, progress):
            counts[result] += 1
            if finding:
                args.findings.mkdir(exist_ok=True)
                file = args.findings / f"{args.reader}-seed{args.seed}-{finding.index}"
                file.write_bytes(finding.data)
                print(f"{finding.outcome}: {file} as {finding.file!r}: {finding.detail[:300]}", file=sys.stderr)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
