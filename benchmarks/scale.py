"""Stores of up to a million entries: CPU time and memory to open, split and read them, to build them, and ATOM3D's RES.

    python -m benchmarks.scale entries           # 1,000 to 1,000,000 entries, by linking shards
    python -m benchmarks.scale run               # a run on a million entries, up to its third step
    python -m benchmarks.scale build             # from archives of fragments, as AlphaFold DB has them; trains on them
    python -m benchmarks.scale res FOLDER        # an ATOM3D set with its items again and again under new ids

CPU seconds, and memory that no other process shares (`Anonymous` of Linux), or of the whole process where it says peak.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.pdb import write_pdb
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.crops import Crops, split
from siamdiff_min.reading.shards import ATOM, RESIDUE, content_hash, pack_shard, sequence_hashes, shard_file
from siamdiff_min.reading.store import FORMAT, META, SHARD, ProteinStore, open_store
from siamdiff_min.reading.structure import Structure
from siamdiff_min.training.loader import epoch_batches

SIZES = 1_000, 5_000, 20_000, 100_000, 1_000_000
ARCHIVE = 5_000  # members of an archive; AlphaFold DB has one for a proteome
CROPS = 4_000  # drawn by each process before and after it has mapped every shard


def fragments(count: int) -> list[Protein]:
    """Windows of 30 to 60 residues of the bundled chains."""
    store = open_store()
    random = np.random.default_rng(0)
    found = []
    while len(found) < count:
        index = int(random.integers(len(store)))
        length = int(random.integers(30, 61))
        room = store.num_residues(index) - length
        if room >= 0:
            start = int(random.integers(room + 1))
            piece = store.read(index, start, length)
            if int(piece.chain.max()) == 0:
                found.append(piece)
    return found


def linked_store(folder: Path, entries: int) -> Path:
    """A store of one shard that is linked again and again; every entry has a name and a sequence of its own."""
    folder.mkdir()
    structures = [Structure(protein, ("A",)) for protein in fragments(SHARD)]
    sources = [Namespace(name=f"f{i}") for i in range(SHARD)]
    shard = pack_shard(sources, structures)
    torch.save(shard, shard_file(folder, 0))
    described = []
    for number in range(-(-entries // SHARD)):
        if number:
            os.link(shard_file(folder, 0), shard_file(folder, number))
        names = [f"AF-F{number * SHARD + i:07d}-F1-model_v6" for i in range(SHARD)]
        keys = [hashlib.sha256(name.encode()).hexdigest()[:16] for name in names]
        described.append({"names": names, "sequences": keys, "content": content_hash(shard) if not number else "0"})
    assert len(sequence_hashes(shard)) == SHARD
    counted = {"proteins": entries, "residues": 0, "atoms": 0, "seen": entries}
    counted["bytes"] = len(described) * shard_file(folder, 0).stat().st_size
    meta = {"format": FORMAT, **counted, "skipped": {}, "failed": {}, "dropped": {}, "shards": described}
    (folder / META).write_text(json.dumps(meta))
    return folder


def anonymous(process: str = "self") -> float:
    """MB of a process that lie in no file, shared with its parent or not."""
    rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Anonymous")) / 1e3


def timed(work: Callable):
    """What `work` returns, and its CPU seconds."""
    begin = time.process_time()
    result = work()
    return result, time.process_time() - begin


def read_crops(crops: Crops, seed: int, answers) -> None:
    """In a process of its own: draw crops, and others once each shard is mapped. Sends CPU seconds, and memory."""
    random = np.random.default_rng(seed)
    torch.set_num_threads(1)
    before = dirty()
    taken = []
    for epoch in range(2):
        for row in range(0, len(crops), SHARD) if epoch else ():
            crops[0, row]
        rows = random.integers(len(crops), size=CROPS)
        begin = time.process_time()
        for row in rows.tolist():
            crops[epoch, row]  # and forget it
        taken.append(time.process_time() - begin)
    answers.put((*taken, dirty() - before))


def dirty() -> float:
    """MB that this process has written and shares with nobody."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Private_Dirty")) / 1e3


def measure(folder: Path) -> None:
    """One line of the table of `entries`, for a process that does nothing else."""
    torch.set_num_threads(1)
    before = anonymous()
    store, opening = timed(lambda: ProteinStore(folder))
    (train, _), splitting = timed(lambda: split(store, 0.05))
    _, ordering = timed(lambda: epoch_batches(len(train), 256, 0, 0))
    held = anonymous() - before
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    workers = [context.Process(target=read_crops, args=(Crops(store, 100, 0), seed, answers)) for seed in range(2)]
    for worker in workers:
        worker.start()
    found = np.mean([answers.get() for _ in workers], axis=0)
    for worker in workers:
        worker.join()
    first, warm, grown = found
    cells = f"{len(store):9,} {opening:6.2f} {splitting:6.2f} {ordering:6.2f} {held:7.0f}"
    print(f"{cells} {1e6 * first / CROPS:9.0f} {1e6 * warm / CROPS:9.0f} {grown:9.1f}", flush=True)


def entries(args: argparse.Namespace) -> None:
    print("  entries   open  split  order  MB held  us first   us warm  MB a worker (CPU seconds; of a random crop)")
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = linked_store(Path(folder) / "store", size)
            subprocess.run([sys.executable, "-m", "benchmarks.scale", "measure", str(path)], check=True)


def family(process: int) -> list[int]:
    """A process and all that it started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(other for child in children for other in family(int(child)))]


def proportional(processes: list[int]) -> float:
    """MB of these processes, what they share counted once."""
    total = 0
    for process in processes:
        for row in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if row.startswith("Pss:"):
                total += int(row.split()[1])
    return total / 1e3


def train(data: Path, folder: Path, steps: int) -> tuple[float, float]:
    """Train shortly with two workers. Returns CPU seconds and peak memory (MB), summed over all processes."""
    options = f"--size tiny --level residue --device cpu --batch-size 8 --max-steps {steps} --num-workers 2"
    command = [sys.executable, "-m", "siamdiff_min", "train", "--data", data, *options.split()]
    command += ["--valid-fraction", "0", "--threads", "1", "--out", folder / "run"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    most = 0.0
    while child.poll() is None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one of them ended meanwhile
            most = max(most, proportional(family(child.pid)))
        time.sleep(0.2)
    if child.returncode:
        raise SystemExit(f"{command} ended with {child.returncode}")
    shutil.rmtree(folder / "run")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most


def run(args: argparse.Namespace) -> None:
    """A run up to its third step."""
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            path = linked_store(Path(folder) / "store", size)
            seconds, most = train(path, Path(folder), steps=3)
            print(f"{size:9,} entries: {seconds:.1f} CPU s, {most:.0f} MB in all processes", flush=True)


def archives(folder: Path, size: int) -> int:
    """Write `size` fragments into archives in `folder`. Returns how many atoms they have."""
    folder.mkdir()
    pieces = fragments(500)
    packed = []
    for piece in pieces:
        write_pdb(folder / "x.pdb", piece)
        packed.append(gzip.compress((folder / "x.pdb").read_bytes()))
    (folder / "x.pdb").unlink()
    for first in range(0, size, ARCHIVE):
        with tarfile.open(folder / f"UP{first:09d}_v6.tar", "w") as archive:
            for i in range(first, min(first + ARCHIVE, size)):
                member = tarfile.TarInfo(f"AF-F{i:07d}-F1-model_v6.pdb.gz")
                member.size = len(packed[i % len(packed)])
                archive.addfile(member, io.BytesIO(packed[i % len(packed)]))
    return sum(pieces[i % len(pieces)].num_atoms for i in range(size))


_BUILD = """
import resource, sys
from siamdiff_min.reading.store import open_store
store = open_store(sys.argv[1], workers=2)
mine, readers = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(sum(x.ru_utime + x.ru_stime for x in (mine, readers)), mine.ru_maxrss / 1e3, readers.ru_maxrss / 1e3)
print(store.meta["bytes"], store.meta["residues"], store.path)
"""


def build(args: argparse.Namespace) -> None:
    """CPU seconds of all processes, and peak memory of parent and readers; then the store is read and trained on."""
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            data = Path(folder) / "data"
            atoms = archives(data, size)
            built = subprocess.run([sys.executable, "-c", _BUILD, data], capture_output=True, text=True, check=True)
            *numbers, store = built.stdout.split()
            seconds, parent, readers, stored, residues = map(float, numbers)
            cells = f"{size:9,} structures: {seconds:.1f} CPU s, {1e6 * seconds / atoms:.2f} us an atom"
            cells += f", {atoms / residues:.2f} atoms a residue, peak {parent:.0f} MB and {readers:.0f} MB"
            print(f"{cells}, {stored / residues:.0f} bytes a residue", flush=True)
            subprocess.run([sys.executable, "-m", "benchmarks.scale", "measure", store], check=True)
            for steps in (3, 103):
                seconds, most = train(data, Path(folder), steps)
                print(f"{steps} steps: {seconds:.1f} CPU s, {most:.0f} MB in all processes", flush=True)


def write_set(folder: Path, items: list[bytes], size: int, task: str) -> None:
    """One split of an ATOM3D set: these items again and again, under new ids."""
    import lmdb

    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=2**36) as written:
        for first in range(0, size, 200):  # a transaction is held in memory
            with written.begin(write=True) as writing:
                for i in range(first, min(first + 200, size)):
                    writing.put(str(i).encode(), items[i % len(items)])
        names = (str((f"t{i}", "d")) if task == "psr" else f"c{i}" for i in range(size))
        with written.begin(write=True) as writing:
            writing.put(b"num_examples", str(size).encode())
            writing.put(b"serialization_format", b"json")
            writing.put(b"id_to_idx", json.dumps({name: i for i, name in enumerate(names)}).encode())


def res(args: argparse.Namespace) -> None:
    """Seconds and bytes of an ATOM3D set, from its LMDB to a first sample; how much memory this process then holds."""
    import lmdb

    from siamdiff_min.sets.atom3d import atom3d_set

    with lmdb.open(str(Path(args.set) / "train"), readonly=True, lock=False) as given, given.begin() as reading:
        items = [reading.get(str(i).encode()) for i in range(int(reading.get(b"num_examples")))]
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            for name in ("train", "val", "test"):
                write_set(Path(folder) / "set" / name, items, size if name == "train" else 1, args.task)
            data = atom3d_set(Path(folder) / "set", args.task)
            before = anonymous()
            begin = os.times()
            store = open_store(data.train, workers=1)
            samples = data.samples(store)
            samples[0, 0]
            built = os.times()
            held = anonymous() - before
            seconds = sum(built[:4]) - sum(begin[:4])
            chosen = np.linspace(0, len(samples) - 1, 50).astype(int).tolist()
            _, drawing = timed(lambda samples=samples, chosen=chosen: [samples[0, i] for i in chosen])
            stored = store.meta["bytes"] / len(samples)
            tables = store.meta["atoms"] * ATOM.itemsize + store.meta["residues"] * RESIDUE.itemsize
            cells = f"{size} items, {len(samples)} samples: {seconds:.1f} CPU s to open and build"
            cells += f", {1e3 * seconds / size:.2f} ms an item, {stored:.0f} bytes a sample"
            cells += f" ({stored - tables / len(samples):.0f} without its protein)"
            print(f"{cells}, {20 * drawing:.2f} ms to draw one, {held:.0f} MB more", flush=True)
            shutil.rmtree(store.path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("entries", "run", "build", "res", "measure"))
    parser.add_argument("set", nargs="?", help="folder of an ATOM3D set")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--task", default="res")
    parser.add_argument("--folder", help="where to make stores, on one disk with links (default: temporary folder)")
    args = parser.parse_args()
    if args.what == "measure":
        return measure(Path(args.set))
    defaults = {"entries": SIZES, "run": (1_000, 1_000_000), "build": SIZES[1:4], "res": (100, 200)}
    args.sizes = args.sizes or defaults.get(args.what)
    globals()[args.what](args)


if __name__ == "__main__":
    main()
