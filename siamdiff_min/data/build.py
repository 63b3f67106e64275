"""From structure files to a store: several processes, resumable, the same bytes whatever happened on the way.

The sources are cut into shards of fixed size. Each becomes one file in `<store>.partial/`, written under another name
and renamed, so that what has its name is complete and a build that was killed goes on where it stopped. At the end
the shards are appended to the flat arrays in order, one in memory at a time, and the finished folder gets its name.

    python -m siamdiff_min.data.build PATH ...  # builds the stores of these data where there are none, and checks all
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sys
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from ..files import SiamDiffError, StoreError, StructureError, escape, lock, sync_folder, write_file, writing
from .store import ARRAYS, FORMAT, VERSION, ProteinStore, encode_name, is_store, meta_checksum
from .structures import STORE_SUFFIX, Listing, Origin, Source, read_in_time, structure_files

SHARD_SIZE = 128  # structures; part of the plan, so that a build is only continued with the same
_COUNTS = {
    "atom_offset": "atoms",
    "residue_offset": "residues",
    "name_offset": "name_bytes",
    "note_offset": "note_bytes",
}


@dataclass(frozen=True)
class BuildReport:
    """What became of every file: seen = used + skipped + failed."""

    used: int  # structures in the store
    residues: int
    atoms: int
    skipped: Counter  # reason -> files that are no structure, or another file of one
    failed: Counter  # reason -> files that could not be read
    dropped: Counter  # reason -> atoms or residues inside the used files that the parsing policy leaves out

    @property
    def seen(self) -> int:
        return self.used + self.skipped.total() + self.failed.total()

    def __str__(self) -> str:
        def total(counts: Counter) -> str:
            listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
            return f"{counts.total()} ({listed})" if counts else "0"

        parts = f"used {self.used} + skipped {total(self.skipped)} + failed {total(self.failed)}"
        return f"seen {self.seen} = {parts}; {self.residues} residues, {self.atoms} atoms"


def report_of(store: ProteinStore) -> BuildReport:
    """What became of the files that a store was built from."""
    meta = store.meta
    counts = (Counter(meta["report"][name]) for name in ("skipped", "failed", "dropped"))
    return BuildReport(meta["proteins"], meta["residues"], meta["atoms"], *counts)


def open_store(path=None, store=None, workers: int | None = None) -> ProteinStore:
    """Open the store of some data, and build it first where there is none or the data have changed.

    Args:
        path: a folder, `.tar`, structure file or finished store; None for the structures bundled with the package.
        store: folder of the store. By default `<path>.store` beside the data, or in the cache where that cannot be
            written (always for the bundle): `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`.
        workers: processes; the result does not depend on it. By default one for fewer than 1,000 structures, else one
            per core up to 8. More than one start by `spawn`, so a script needs `if __name__ == "__main__":`.

    Files that cannot be read are counted, and listed in `failures.tsv` in the store; they do not stop the build. Nor do
    those that take too long, or kill one of several processes. Several processes may call this at once: one builds, the
    others wait for it.

    Raises:
        StructureError: nothing at `path`, or a damaged archive.
        StoreError: no readable protein, something that is no store at `store`, or a disk that is full or cannot be
            written. What was done is kept, the next build goes on from there.
    """
    if path is None:
        print("no data given: the structures bundled with the package are used", file=sys.stderr)
    elif is_store(path):
        return ProteinStore(path)
    return open_origin(structure_files(path), store, workers)


def open_origin(origin: Origin, store=None, workers: int | None = None) -> ProteinStore:
    """`open_store` for anything that can be listed: ATOM3D, EC and demo sets too."""
    store = _default_store(origin) if store is None else Path(store)
    opened, _ = _reopen(store, origin)  # without the lock, so that a store on a read-only disk can be used
    if opened is None:
        with writing(store), lock(Path(f"{store}.lock")):
            opened, reason = _reopen(store, origin)  # another process may have built it in the meantime
            if opened is None:
                if reason:
                    print(f"{reason}; it is built anew", file=sys.stderr)
                _build(origin, store, workers)
                opened = ProteinStore(store)
    return opened


def _default_store(origin: Origin) -> Path:
    path = origin.path.resolve()
    name = path.name + (f"-{origin.variant}" if origin.variant else "")
    beside = path.with_name(name + STORE_SUFFIX)
    if not origin.in_cache and (is_store(beside) or os.access(path.parent, os.W_OK)):
        return beside
    cache = Path(os.environ.get("SIAMDIFF_CACHE") or Path.home() / ".cache" / "siamdiff_min")
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # several folders may be called `data`
    return cache / f"{name}-{place}{STORE_SUFFIX}"


def _reopen(store: Path, origin: Origin) -> tuple[ProteinStore | None, str]:
    """The store if it is whole, of this version and made from data as they are now; otherwise None and the reason."""
    if not is_store(store):
        return None, ""
    try:
        opened = ProteinStore(store)
    except StoreError as error:
        return None, str(error)
    if opened.meta["source"]["fingerprint"] != origin.fingerprint:
        return None, f"{store}: the data have changed since it was built"
    return opened, ""


# ---- building --------------------------------------------------------------------------------------------------------


def _build(origin: Origin, store: Path, workers: int | None) -> None:
    if store.exists() and not is_store(store):
        raise StoreError(f"{store} exists and is not a store; it is not overwritten")
    listing = origin.listing()
    partial = Path(f"{store}.partial")
    plan = {"format": FORMAT, "version": VERSION, "source": origin.fingerprint, "shard": SHARD_SIZE}
    _start_or_continue(partial, plan)
    merged, outdated = partial / "merged", partial / "outdated"
    if not is_store(merged):  # otherwise a build was killed after it had done everything but give the store its name
        _fill(merged, origin, listing, workers)
    for file in partial.glob("shard-*"):
        file.unlink()
    # All that takes much space is gone before the store has its name: from then on nobody would look for leftovers.
    if store.exists():
        os.rename(store, outdated)
    shutil.rmtree(outdated, ignore_errors=True)
    os.rename(merged, store)
    sync_folder(store.parent)
    shutil.rmtree(partial, ignore_errors=True)
    print(f"{store}: {report_of(ProteinStore(store))}", file=sys.stderr)


def _fill(merged: Path, origin: Origin, listing: Listing, workers: int | None) -> None:
    """Write all shards that are not there yet, then put them together."""
    shards = [
        (merged.with_name(f"shard-{start // SHARD_SIZE:06d}.npz"), listing.sources[start : start + SHARD_SIZE])
        for start in range(0, len(listing.sources), SHARD_SIZE)
    ]
    todo = [(file, sources) for file, sources in shards if not file.exists()]
    done = len(listing.sources) - sum(len(sources) for _, sources in todo)
    with tqdm(total=len(listing.sources), initial=done, unit="protein", disable=None) as bar:
        for count in _work(todo, workers or _default_workers(len(listing.sources))):
            bar.update(count)
    _merge(shards, listing, {"path": str(origin.path.resolve()), "fingerprint": origin.fingerprint}, merged)


def _default_workers(count: int) -> int:
    return 1 if count < 1000 else min(os.cpu_count() or 1, 8)


def _start_or_continue(partial: Path, plan: dict) -> None:
    """Keep the finished shards of an interrupted build of the same plan; begin anew where the plan is another."""
    file = partial / "plan.json"
    text = json.dumps(plan)
    if partial.exists():
        # A build may have been killed before it had a plan, or while it tidied up: the plan need not be there.
        if any(not child.name.startswith(("plan.json", "shard-", "merged", "outdated")) for child in partial.iterdir()):
            raise StoreError(f"{partial} is not an unfinished store; remove it or choose another place")
        if file.exists() and file.read_text(encoding="utf-8") == text:
            return
        shutil.rmtree(partial)
    partial.mkdir()
    write_file(file, text.encode())


def _work(todo: list[tuple[Path, list[Source]]], workers: int):
    """Write the shards; yields the number of sources done, as they are done."""
    if workers == 1 or len(todo) < 2:
        for file, sources in todo:
            yield _write_shard(file, sources)
        return
    while todo:
        try:
            yield from _work_in_processes(todo, workers)
        except BrokenProcessPool:
            # By a fault in a library, or for want of memory. It was reading one of the first shards that are missing.
            for file, sources in [shard for shard in todo if not shard[0].exists()][:workers]:
                yield _write_shard(file, list(_survived(sources)))
        todo = [(file, sources) for file, sources in todo if not file.exists()]


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_prepare_worker)


def _work_in_processes(todo: list[tuple[Path, list[Source]]], workers: int):
    """`_work` in several processes. Raises BrokenProcessPool where one of them was killed."""
    with _processes(min(workers, len(todo))) as pool:
        futures = [pool.submit(_write_shard, file, sources) for file, sources in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class _Deadly:
    """In place of a source that ends the process which reads it."""

    name: str
    path: str

    def read(self):
        raise StructureError(self.path, "ended the process that read it", "a fault in a library, or no memory left")


def _survived(sources: list[Source]):
    """Read the sources one after the other in a process of their own; a failure takes the place of the deadly ones.

    Raises BrokenProcessPool where no process can be started.
    """
    pool = None
    for source in sources:
        if pool is None:
            pool = _processes(1)
            pool.submit(os.getpid).result()  # where not even this works, no source is to blame
        try:
            pool.submit(_read_and_forget, source).result()
            yield source
        except BrokenProcessPool:
            yield _Deadly(source.name, source.path)
            pool = None
    if pool is not None:
        pool.shutdown()


def _read_and_forget(source: Source) -> None:
    with contextlib.suppress(StructureError):
        read_in_time(source)


def _prepare_worker() -> None:
    """One thread for each process; and end with the parent, which may be killed without a chance to say so."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _write_shard(file: Path, sources: list[Source]) -> int:
    """Read the sources and write one shard: the arrays of ARRAYS, sizes in place of offsets, and a log as JSON.

    The file is a sha256 and the .npz that it is of. Zip has checksums too, but not of its own list of contents.
    """
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS if name not in _COUNTS}
    sizes: dict[str, list[int]] = {name: [] for name in _COUNTS.values()}
    failures, dropped = [], Counter()
    for source in sources:
        try:
            structure = read_in_time(source)
            protein = structure.protein
            if len(structure.chain_names) > np.iinfo(ARRAYS["chain"]).max:
                raise StructureError(source.path, "too many chains", str(len(structure.chain_names)))
        except StructureError as error:
            failures.append([source.name, error.reason, error.path, error.detail])
            continue
        dropped += structure.dropped
        name, note = (np.frombuffer(text, np.uint8) for text in (encode_name(source.name), structure.note))
        residue_atoms = np.bincount(protein.atom_residue.numpy(), minlength=protein.num_residues)
        for key, values in pieces.items():
            field = {"residue_atoms": residue_atoms, "names": name, "notes": note}.get(key)
            field = getattr(protein, key).numpy() if field is None else field
            values.append(field.astype(ARRAYS[key]))
        for key, size in zip(sizes, (protein.num_atoms, protein.num_residues, len(name), len(note))):
            sizes[key].append(size)
    arrays = {key: np.concatenate(values) for key, values in pieces.items() if values}
    arrays |= {key: np.array(values, dtype=np.int64) for key, values in sizes.items()}
    log = json.dumps({"failures": failures, "dropped": dropped}).encode()
    packed = io.BytesIO()
    np.savez(packed, log=np.frombuffer(log, np.uint8), **arrays)
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as out:
        out.write(hashlib.sha256(packed.getbuffer()).digest())
        out.write(packed.getbuffer())
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
    return len(sources)


def _load_shard(file: Path, sources: list[Source]) -> dict[str, np.ndarray]:
    """The arrays of a shard. One that a crash of the machine has damaged is made again."""
    try:
        return _read_shard(file)
    except (OSError, ValueError):
        _write_shard(file, sources)
        return _read_shard(file)


def _read_shard(file: Path) -> dict[str, np.ndarray]:
    content = memoryview(file.read_bytes())
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError(f"{file} is damaged (its checksum differs)")
    with np.load(io.BytesIO(content[32:]), allow_pickle=False) as arrays:
        return dict(arrays)


def _merge(shards: list, listing: Listing, source: dict, merged: Path) -> None:
    """Append the shards to the flat arrays, then write the offsets, the list of failures and `meta.json`."""
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir()
    digests = {name: hashlib.sha256() for name in ARRAYS}
    rows = dict.fromkeys(ARRAYS, 0)
    counts: dict[str, list[np.ndarray]] = {name: [np.zeros(1, np.int64)] for name in _COUNTS}
    failures: list[list[str]] = []
    dropped: Counter = Counter()
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(merged / f"{name}.bin", "wb")) for name in ARRAYS}

        def append(name: str, values: np.ndarray) -> None:
            data = values.astype(ARRAYS[name]).tobytes()
            files[name].write(data)
            digests[name].update(data)
            rows[name] += len(values)

        for file, sources in shards:
            shard = _load_shard(file, sources)
            log = json.loads(shard["log"].tobytes())
            failures += log["failures"]
            dropped.update(log["dropped"])
            for name, count in _COUNTS.items():
                counts[name].append(shard[count])
            for name in ARRAYS.keys() & shard.keys():
                append(name, shard[name])
        for name, sizes in counts.items():
            append(name, np.cumsum(np.concatenate(sizes)))
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    failed = Counter(reason for _, reason, _, _ in failures)
    report = BuildReport(
        rows["atom_offset"] - 1, rows["residue_type"], rows["atom_name"], listing.reasons, failed, dropped
    )
    if report.used == 0:
        example = f", e.g. {failures[0][2]}: {failures[0][1]}" if failures else ""
        raise StoreError(f"no protein that can be read in {source['path']}: {report}{example}")
    table = [("name", "outcome", "reason", "file", "detail")]
    table += [(name, "failed", reason, file, detail) for name, reason, file, detail in failures]
    table += [("", "skipped", reason, file, "") for file, reason in listing.skipped]
    lines = ("\t".join(map(escape, row)) + "\n" for row in table)
    write_file(merged / "failures.tsv", "".join(lines).encode())
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "proteins": report.used,
        "residues": report.residues,
        "atoms": report.atoms,
        "arrays": {
            name: {
                "dtype": ARRAYS[name],
                "shape": [rows[name], 3] if name == "pos" else [rows[name]],
                "sha256": digests[name].hexdigest(),
            }
            for name in ARRAYS
        },
        "source": source,
        "report": {"seen": report.seen, "skipped": report.skipped, "failed": failed, "dropped": dropped},
    }
    text = json.dumps(meta | {"sha256": meta_checksum(meta)}, indent=1, sort_keys=True)
    write_file(merged / "meta.json", text.encode())
    sync_folder(merged)


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-data build", description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="folder, tar or file of structures (its store is built), or a store")
    args = parser.parse_args(argv)
    try:
        for path in args.path:
            store = open_store(path)
            store.verify()
            print(f"{store.path}: {report_of(store)}; all checksums are right")
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
