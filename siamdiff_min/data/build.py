"""From structure files to a store: several processes, resumable, the same bytes whatever happened on the way.

The sources are cut into shards of fixed size. Each becomes one file in `<store>.partial/`, which has its name only when
it is complete, so a build that was killed goes on where it stopped. At the end the shards are appended to the flat
arrays in order, one in memory at a time, and the finished folder gets its name. Only files that a build has written are
ever deleted, each by its name.

    python -m siamdiff_min.data.build PATH ...  # builds the stores of these data where there are none, and checks all
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..files import (
    SiamDiffError,
    StoreError,
    StructureError,
    escape,
    lock,
    sync_folder,
    tolerant_output,
    write_file,
    writing,
)
from ..protein.structure import Structure
from .store import ARRAYS, FILES, FORMAT, VERSION, ProteinStore, encode_name, has_format, is_store, meta_checksum
from .structures import STORE_SUFFIX, Listing, Origin, Source, structure_files
from .worker import read_all

SHARD_SIZE = 128  # structures; part of the plan, so that a build is only continued with the same
_COUNTS = {
    "atom_offset": "atoms",
    "residue_offset": "residues",
    "name_offset": "name_bytes",
    "note_offset": "note_bytes",
}
_UNFINISHED = re.compile(r"plan\.json(\.tmp)?|shard-[0-9]+\.npz(\.[0-9]+)?(\.tmp)?|merged|outdated")


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


def open_store(path=None, store=None, workers: int | None = None, build: bool = True) -> ProteinStore | None:
    """Open the store of some data, and build it first where there is none or the data have changed.

    Args:
        path: a folder, `.tar`, structure file or finished store; None for the structures bundled with the package.
        store: folder of the store. By default `<path>.store` beside the data, or in the cache where that cannot be
            written (always for the bundle): `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`.
        workers: processes that read; the result does not depend on it. By default one for fewer than 1,000 structures,
            else one per core up to 8. Where they cannot be forked (not on Linux), a script needs
            `if __name__ == "__main__":`.
        build: False to change nothing on the disk: None where the store would have to be built.

    Files that cannot be read are counted, and listed in `failures.tsv` in the store; they do not stop the build, not
    even if they take too long or kill the process that reads them. Several processes may call this at once: one builds,
    the others wait for it.

    Raises:
        StructureError: nothing at `path`, or a damaged archive.
        StoreError: no readable protein, something at `store` that is not ours, or a disk that is full or cannot be
            written. What was done is kept, the next build goes on from there.
    """
    if path is None:
        print("no data given: the structures bundled with the package are used", file=sys.stderr)
    elif is_store(path):
        return ProteinStore(path)
    return open_origin(structure_files(path), store, workers, build)


def open_origin(origin: Origin, store=None, workers: int | None = None, build: bool = True) -> ProteinStore | None:
    """`open_store` for anything that can be listed: ATOM3D, EC and demo sets too."""
    store = _default_store(origin) if store is None else Path(store)
    if store.is_symlink():
        store = store.resolve()  # the folder is replaced, not the link to it
    opened, _ = _reopen(store, origin)  # without the lock, so that a store on a read-only disk can be used
    if opened is None:
        _check_replaceable(store)
    if opened is None and build:
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
    try:
        cache = Path(os.environ.get("SIAMDIFF_CACHE") or Path.home() / ".cache" / "siamdiff_min")
    except RuntimeError as error:
        raise StoreError("no home folder to keep a store in: set SIAMDIFF_CACHE to a folder") from error
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


# ---- what may be replaced --------------------------------------------------------------------------------------------


def _check_replaceable(store: Path) -> None:
    """Raise StoreError if there is anything at `store` that is not a store, or in it that is not a part of one."""
    if not store.exists():
        return
    if not is_store(store):
        raise StoreError(f"{store} exists and is not a store, or a damaged one; it is not overwritten")
    foreign = sorted(child.name for child in store.iterdir() if child.name not in FILES)
    if foreign:
        raise StoreError(f"{store} holds {foreign[0]}, which is not part of a store; it is not overwritten")


def _remove_store(folder: Path) -> None:
    """Delete the files of a store by name, and then the folder: it stays, with an OSError, if there is more in it."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _clear(partial: Path) -> None:
    """Delete an unfinished store, the plan last: whatever is left after a kill can still be told as ours."""
    for child in sorted(partial.iterdir(), key=lambda child: child.name == "plan.json"):
        if child.is_dir():
            _remove_store(child)
        else:
            child.unlink()
    partial.rmdir()


def _start_or_continue(partial: Path, plan: dict) -> None:
    """Keep the finished shards of an interrupted build of the same plan; begin anew if the plan is another."""
    file, text = partial / "plan.json", json.dumps(plan)
    if os.path.lexists(partial):
        names = [] if partial.is_symlink() or not partial.is_dir() else [child.name for child in partial.iterdir()]
        begun = set(names) <= {"plan.json.tmp"}  # killed before it had a plan
        if partial.is_symlink() or not all(map(_UNFINISHED.fullmatch, names)) or not (begun or has_format(file)):
            raise StoreError(f"{partial} is not an unfinished store; remove it or choose another place")
        if not begun and file.read_text(encoding="utf-8") == text:
            return
        _clear(partial)
    partial.mkdir()
    write_file(file, text.encode())


# ---- building --------------------------------------------------------------------------------------------------------


def _build(origin: Origin, store: Path, workers: int | None) -> None:
    listing, partial = origin.listing(), Path(f"{store}.partial")
    names = hashlib.sha256(b"\n".join(encode_name(source.name) for source in listing.sources)).hexdigest()
    plan = {"format": FORMAT, "version": VERSION, "source": origin.fingerprint, "names": names, "shard": SHARD_SIZE}
    _start_or_continue(partial, plan)
    merged, outdated = partial / "merged", partial / "outdated"
    if not is_store(merged):  # otherwise a build was killed after it had done everything but give the store its name
        _fill(merged, origin, listing, workers)
    for file in partial.glob("shard-*"):
        file.unlink()
    # All that takes much space is gone before the store has its name: from then on nobody would look for leftovers.
    if store.exists():
        _check_replaceable(store)
        os.rename(store, outdated)
    if outdated.exists():
        _remove_store(outdated)
    os.rename(merged, store)
    sync_folder(store.parent)
    _clear(partial)
    print(f"{store}: {report_of(ProteinStore(store))}", file=sys.stderr)


def _fill(merged: Path, origin: Origin, listing: Listing, workers: int | None) -> None:
    """Write all shards that are not there yet, then put them together."""
    shards = {
        merged.with_name(f"shard-{start // SHARD_SIZE:06d}.npz"): listing.sources[start : start + SHARD_SIZE]
        for start in range(0, len(listing.sources), SHARD_SIZE)
    }
    count, missing = len(listing.sources), {file: sources for file, sources in shards.items() if not file.exists()}
    todo = [source for sources in missing.values() for source in sources]
    workers = workers or (1 if count < 1000 else min(os.cpu_count() or 1, 8))
    with (
        contextlib.closing(read_all(todo, workers)) as structures,
        tqdm(total=count, initial=count - len(todo), unit="protein", disable=None) as bar,
    ):
        for file, sources in missing.items():
            _write_shard(file, sources, structures)
            bar.update(len(sources))
    _merge(shards, listing, {"path": str(origin.path.resolve()), "fingerprint": origin.fingerprint}, merged)


def _write_shard(file: Path, sources: list[Source], structures: Iterator[Structure | StructureError]) -> None:
    """Write one shard: the arrays of ARRAYS, sizes in place of offsets, and a log as JSON.

    The file is a sha256 and the .npz that it is of. Zip has checksums too, but not of its own list of contents.
    """
    pieces: dict[str, list[np.ndarray]] = {name: [] for name in ARRAYS if name not in _COUNTS}
    sizes: dict[str, list[int]] = {name: [] for name in _COUNTS.values()}
    failures, dropped = [], Counter()
    for source, structure in zip(sources, structures):
        if isinstance(structure, Structure) and len(structure.chain_names) > np.iinfo(ARRAYS["chain"]).max:
            structure = StructureError(source.path, "too many chains", str(len(structure.chain_names)))
        if isinstance(structure, StructureError):
            failures.append([source.name, structure.reason, structure.path, structure.detail])
            continue
        protein = structure.protein
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
    write_file(file, hashlib.sha256(packed.getbuffer()).digest() + packed.getvalue())


def _load_shard(file: Path, sources: list[Source]) -> dict[str, np.ndarray]:
    """The arrays of a shard. One that a crash of the machine has damaged is made again."""
    try:
        return _read_shard(file)
    except (OSError, ValueError):
        _write_shard(file, sources, read_all(sources))
        return _read_shard(file)


def _read_shard(file: Path) -> dict[str, np.ndarray]:
    content = memoryview(file.read_bytes())
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError(f"{file} is damaged (its checksum differs)")
    with np.load(io.BytesIO(content[32:]), allow_pickle=False) as arrays:
        return dict(arrays)


def _merge(shards: dict[Path, list[Source]], listing: Listing, source: dict, merged: Path) -> None:
    """Append the shards to the flat arrays, then write the offsets, the list of failures and `meta.json`."""
    if merged.exists():
        _remove_store(merged)
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

        for file, sources in shards.items():
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
    used, residues, atoms = rows["atom_offset"] - 1, rows["residue_type"], rows["atom_name"]
    report = BuildReport(used, residues, atoms, listing.reasons, failed, dropped)
    if used == 0:
        example = f", e.g. {failures[0][2]}: {failures[0][1]}" if failures else ""
        raise StoreError(f"no protein that can be read in {source['path']}: {report}{example}")
    table = [("name", "outcome", "reason", "file", "detail")]
    table += [(name, "failed", reason, file, detail) for name, reason, file, detail in failures]
    table += [("", "skipped", reason, file, "") for file, reason in listing.skipped]
    write_file(merged / "failures.tsv", "".join("\t".join(map(escape, row)) + "\n" for row in table).encode())
    shapes = {name: [count, 3] if name == "pos" else [count] for name, count in rows.items()}
    arrays = {n: {"dtype": ARRAYS[n], "shape": shapes[n], "sha256": digests[n].hexdigest()} for n in ARRAYS}
    counted = {"seen": report.seen, "skipped": report.skipped, "failed": failed, "dropped": dropped}
    sizes = {"proteins": used, "residues": residues, "atoms": atoms}
    meta = {"format": FORMAT, "version": VERSION, **sizes, "arrays": arrays, "source": source, "report": counted}
    text = json.dumps(meta | {"sha256": meta_checksum(meta)}, indent=1, sort_keys=True)
    write_file(merged / "meta.json", text.encode())


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-data build", description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="folder, tar or file of structures (its store is built), or a store")
    args = parser.parse_args(argv)
    tolerant_output()
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
