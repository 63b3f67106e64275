"""Reading random crops from a small store and from one of 100,000 proteins.

    python -m benchmarks.store [--proteins 100000] [--crops 2000] [--length 100] [--cold]

The large store repeats the arrays of the bundled structures (a few GB in the temporary folder, removed at the end).
Both are read in turn by one process, through the data set and the batches that training uses. Prints bytes per
structure, seconds to open a store and to split and shuffle its proteins, and crops per second. With `--cold` also the
first crops of the large store while nothing of it is in memory, read as one that fits there and as one that does not.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from siamdiff_min.data.build import open_store
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.data.store import ProteinStore, shard_file
from siamdiff_min.training.log import peak_memory

from .timing import timed


def repeat(store: ProteinStore, proteins: int, folder: Path) -> ProteinStore:
    """A store that holds the shards of another one again and again, `proteins` in all or a few more."""
    folder.mkdir()
    times = -(-proteins // len(store))
    for number, file in enumerate(store.files * times):
        shutil.copyfile(file, shard_file(folder, number))
    meta = store.meta | {"shards": store.meta["shards"] * times, "fingerprint": "repeated"}
    (folder / "meta.json").write_text(json.dumps(meta))
    return ProteinStore(folder)


def read(crops: Crops, keys: list[tuple[int, int]]) -> None:
    """Crops in batches of 64, as training takes them."""
    for first in range(0, len(keys), 64):
        collate([crops[key] for key in keys[first : first + 64]])


def cold(path: Path, count: int, length: int, fits: bool, seed: int) -> tuple[float, float]:
    """The first crops of a store that is on the disk only: crops per second, and kB read for each."""
    for file in path.glob("*.pt"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    keys = [(0, int(i)) for i in np.random.default_rng(seed).integers(len(ProteinStore(path)), size=count)]
    with mock.patch("siamdiff_min.data.store.memory", lambda: math.inf if fits else 0):
        before = read_bytes()
        seconds = timed(partial(read, Crops(ProteinStore(path), length, seed), keys))[1]
    return count / seconds, (read_bytes() - before) / count / 1e3


def read_bytes() -> int:
    """What this process has read from the disk so far (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proteins", type=int, default=100_000)
    parser.add_argument("--crops", type=int, default=2000)
    parser.add_argument("--length", type=int, default=100, help="residues of a crop")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="also from the disk (Linux)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = open_store()
        stores = [small, repeat(small, args.proteins, Path(folder) / "store")]
        rates = [[], []]
        for repeat_number in range(args.repeats):
            for store, rate in zip(stores, rates):
                crops = Crops(store, args.length, repeat_number)
                random = np.random.default_rng(repeat_number)
                keys = [(0, int(i)) for i in random.integers(len(store), size=args.crops)]
                rate.append(args.crops / timed(partial(read, crops, keys))[1])
        for store, rate in zip(stores, rates):
            size = sum(file.stat().st_size for file in store.path.glob("*.pt"))
            opened, opening = timed(partial(ProteinStore, store.path))
            (train, _), splitting = timed(partial(split, opened, 0.02))
            _, shuffling = timed(partial(np.random.default_rng(0).permutation, train))
            print(
                f"{len(store)} proteins: {size / len(store) / 1e3:.1f} kB each; opened in {opening * 1e3:.1f} ms, "
                f"split in {splitting:.2f} s, shuffled in {shuffling * 1e3:.1f} ms; "
                f"{statistics.median(rate):.0f} crops/s ({min(rate):.0f} .. {max(rate):.0f}) of {args.length} "
                "residues, one process, in the page cache"
            )
        measured = {fits: [] for fits in (True, False)} if args.cold else {}
        del small, store, stores, crops, opened  # pages that are mapped stay in memory
        for repeat_number in range(args.repeats):
            for fits, results in measured.items():
                results.append(cold(Path(folder) / "store", args.crops // 10, args.length, fits, repeat_number))
        for fits, results in measured.items():
            rate, size = (statistics.median(values) for values in zip(*results))
            rates = [rate for rate, _ in results]
            print(
                f"from the disk, as a store that {'fits' if fits else 'does not fit'} into memory: the first "
                f"{args.crops // 10} crops at {rate:.0f}/s ({min(rates):.0f} .. {max(rates):.0f}), {size:.0f} kB each"
            )
    peak = peak_memory(torch.device("cpu")) / 1e3
    print(f"peak memory of the process, mapped pages included: {peak:.2f} GB")


if __name__ == "__main__":
    main()
