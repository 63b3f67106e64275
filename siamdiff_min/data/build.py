"""From structure files to a store: several processes, resumable, the same bytes whatever happened on the way.

Several processes read, one appends what they read to the flat arrays, in order (`growing.py`). It notes from time to
time how long each file is, so a build that was killed goes on from there. The finished folder gets its name at the end.
Only files that a build has written are ever deleted, each by its name.

    python -m siamdiff_min.data.build PATH ...  # builds the stores of these data where there are none, and checks all
"""

import argparse
import contextlib
import hashlib
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..files import ConfigError, StoreError, console, lock, sync_folder, writing
from .conformers import with_conformers
from .growing import NAMES, GrowingStore
from .store import ARRAYS, ProteinStore, encode_name, has_format, is_store, write_checked
from .structures import STORE_SUFFIX, Origin, structure_files
from .worker import read_all

_PARTS = {name + end for name in (*NAMES, "meta.json", "progress.json") for end in ("", ".tmp")}


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

        return (
            f"seen {self.seen} = used {self.used} + skipped {total(self.skipped)} + failed {total(self.failed)}; "
            f"{self.residues} residues, {self.atoms} atoms, left out {total(self.dropped)}"
        )


def report_of(store: ProteinStore) -> BuildReport:
    """What became of the files that a store was built from."""
    meta = store.meta
    counts = (Counter(meta["report"][name]) for name in ("skipped", "failed", "dropped"))
    return BuildReport(meta["proteins"], meta["residues"], meta["atoms"], *counts)


def open_store(
    path=None, store=None, workers: int | None = None, build: bool = True, conformers: bool = False, pairs=None
) -> ProteinStore | None:
    """Open the store of some data, and build it first where there is none or the data have changed.

    Args:
        path: a folder, archive, structure file or finished store; None for the structures bundled with the package.
        store: folder of the store. By default `<path>.store` beside the data, or in the cache where that cannot be
            written (always for the bundle): `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`.
        workers: processes that read; the result does not depend on it. By default one for fewer than 1,000 structures,
            else one per core up to 8. Where they cannot be forked (not on Linux), a script needs
            `if __name__ == "__main__":`.
        conformers: keep all models of every structure; with those that the table `pairs` names, see `conformers.py`.
        build: False to change nothing on the disk: None where the store would have to be built.

    Files that cannot be read are counted, and listed in `failures.tsv` in the store; they do not stop the build, not
    even if they take too long or kill the process that reads them. Several processes may call this at once: one builds,
    the others wait for it.

    Raises:
        ConfigError: `pairs` or `store` for a finished store.
        StructureError: nothing at `path`, or a damaged archive; a malformed table.
        StoreError: no readable protein, something at `store` that is not ours, or a disk that is full or cannot be
            written. What was done is kept, the next build goes on from there.
    """
    if path is None:
        print("no data given: the structures bundled with the package are used", file=sys.stderr)
    elif is_store(path):
        if pairs is not None:
            raise ConfigError(f"{path} is a finished store: its conformers are those it was built with, not {pairs}")
        if store is not None:
            raise ConfigError(f"{path} is a finished store: there is none to build at {store}")
        return ProteinStore(path)
    origin = structure_files(path)
    return open_origin(with_conformers(origin, pairs) if conformers else origin, store, workers, build)


def open_origin(origin: Origin, store=None, workers: int | None = None, build: bool = True) -> ProteinStore | None:
    """`open_store` for anything that can be listed: ATOM3D, EC and demo sets too."""
    store = _default_store(origin) if store is None else Path(store)
    if store.is_symlink():
        store = store.resolve()  # the folder is replaced, not the link to it
    opened, _ = _reopen(store, origin)  # without the lock, so that a store on a read-only disk can be used
    if opened is None and not build:
        _check_replaceable(store)
    elif opened is None:
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


def _check_replaceable(folder: Path) -> None:
    """Raise StoreError unless `folder` is a store, finished or not, with nothing else in it, or there is none."""
    if not os.path.lexists(folder):
        return
    children = sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else [folder]
    for child in children:
        if child.name not in _PARTS or child.is_symlink() or not child.is_file():
            raise StoreError(
                f"{child} is no part of a store: {folder} is not overwritten; remove it or choose another place"
            )
    names = {child.name for child in children}
    begun = names <= {"progress.json.tmp"}  # killed before it had a first note
    if not (begun or names >= {*NAMES} or any(has_format(folder / name) for name in ("meta.json", "progress.json"))):
        raise StoreError(f"{folder} exists and is not a store, or a damaged one; it is not overwritten")


def _build(origin: Origin, store: Path, workers: int | None) -> None:
    partial = Path(f"{store}.partial")
    for folder in (store, partial):
        _check_replaceable(folder)
    if _reopen(partial, origin)[0] is None:  # otherwise a build was killed that had only to give the store its name
        _fill(partial, origin, workers)
    (partial / "progress.json").unlink(missing_ok=True)
    if store.exists():  # the files that say what it is go last, so that what a kill leaves is known as ours
        for name in sorted(_PARTS, key=lambda name: name in ("meta.json", "progress.json")):
            (store / name).unlink(missing_ok=True)
        store.rmdir()
    os.rename(partial, store)
    sync_folder(store.parent)
    print(f"{store}: {report_of(ProteinStore(store))}", file=sys.stderr)


def _fill(folder: Path, origin: Origin, workers: int | None) -> None:
    """Write the files of a store, or go on where a build that was killed noted it was; `meta.json` comes last."""
    listing = origin.listing()
    names = hashlib.sha256(b"\n".join(encode_name(source.name) for source in listing.sources)).hexdigest()
    with contextlib.closing(GrowingStore(folder, f"{origin.fingerprint} {names}")) as growing:
        todo, count = listing.sources[growing.done :], len(listing.sources)
        workers = workers or (1 if count < 1000 else min(os.cpu_count() or 1, 8))
        with (
            contextlib.closing(read_all(todo, workers)) as structures,
            tqdm(total=count, initial=growing.done, unit="protein", disable=None) as bar,
        ):
            for source, structure in zip(todo, structures):
                growing.add(source, structure)
                bar.update()
        for file, reason in listing.skipped:
            growing.row("", "skipped", reason, file, "")
        growing.sync()
        rows = {name: growing.rows(name) for name in ARRAYS}
    used, residues, atoms = rows["atom_offset"] - 1, rows["residue_type"], rows["atom_name"]
    report = BuildReport(used, residues, atoms, listing.reasons, growing.failed, growing.dropped)
    path = origin.path.resolve()
    if used == 0:
        raise StoreError(f"no protein that can be read in {path}: {report}; {folder / 'failures.tsv'} names the files")
    meta = {
        "proteins": used,
        "residues": residues,
        "atoms": atoms,
        "arrays": {
            name: {
                "dtype": kind,
                "shape": [atoms, 3] if name == "pos" else [rows[name]],
                "sha256": growing.digests[f"{name}.bin"].hexdigest(),
            }
            for name, kind in ARRAYS.items()
        },
        "source": {"path": str(path), "fingerprint": origin.fingerprint},
        "report": {"seen": report.seen, "skipped": report.skipped, "failed": report.failed, "dropped": report.dropped},
    }
    write_checked(folder / "meta.json", meta)


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = argparse.ArgumentParser(prog="siamdiff-data build", description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="structures (their store is built), or a store")
    args = parser.parse_args(argv)
    with console():
        for path in args.path:
            store = open_store(path)
            store.verify()
            print(f"{store.path}: {report_of(store)}; all checksums are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
