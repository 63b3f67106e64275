"""From structure files to a store: several processes, resumable, the same bytes whatever happened on the way.

A store is built where it will lie, shard by shard. Each shard appears whole, and knows what it was made from: a build
that was killed, or whose data have changed since, writes again only the shards that are missing or out of date.
`meta.json` comes last. A file that no build has written is neither overwritten nor removed; it ends the build.

    python -m siamdiff_min.data.build PATH ...  # builds the stores that are missing, and checks all
"""

import contextlib
import hashlib
import os
import sys
from collections import Counter
from itertools import count, islice
from pathlib import Path

from tqdm import tqdm

from ..files import TEMPORARY, ConfigError, Parser, StoreError, console, escape, lock, write_file, writing
from . import store as stores
from .pool import read_all
from .sources import Origin, structure_files
from .store import STORE_SUFFIX, ProteinStore, is_ours, is_shard, load_shard, shard_file, write_shard

LEFT_OVER = f"meta.json{TEMPORARY}"  # of a build that was killed at its first step
FAILURES, HEADER = "failures.tsv", b"name\toutcome\treason\tfile\tdetail\n"


def open_store(path=None, store=None, workers: int | None = None, build: bool = True) -> ProteinStore | None:
    """Open the store of some data. If it is missing or out of date, build it first.

    Args:
        path: a folder, archive, structure file or finished store; None for the structures bundled with the package.
        store: folder of the store. By default `<path>.store` beside the data, or in the cache where that cannot be
            written (always for the bundle): `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`.
        workers: processes that read; the result does not depend on it. By default one for every 500 structures, up to
            one per core and 8. Without fork (not on Linux), a script needs `if __name__ == "__main__":`.
        build: False to change nothing on the disk; then None is returned if the store would have to be built.

    Files that cannot be read are counted, and listed in `failures.tsv` in the store; they do not stop the build, not
    even if they kill the process that reads them. Several processes may call this at once: one builds, the others wait.

    Raises:
        ConfigError: `store` for a finished store.
        StructureError: nothing at `path`, or a damaged archive.
        StoreError: no readable protein, a file at `store`, or in it in place of one of its own, that is not ours.
        WriteError: a disk that is full or cannot be written. Finished shards are kept for the next build.
    """
    if path is None:
        print("no data given: the structures bundled with the package are used", file=sys.stderr)
    elif is_ours(path):
        if store is not None:
            raise ConfigError(f"{path} is a finished store: nothing is built at {store}")
        return ProteinStore(path)
    return open_origin(structure_files(path), store, workers, build)


def open_origin(origin: Origin, store=None, workers: int | None = None, build: bool = True) -> ProteinStore | None:
    """`open_store` for anything that can be listed: ATOM3D, EC and demo sets too."""
    folder = _default_folder(origin) if store is None else Path(store)
    opened, _ = _reopen(folder, origin)  # without the lock, so that a store on a read-only disk can be used
    if opened is None and build:
        with writing(folder), lock(Path(f"{folder}.lock")):
            opened, reason = _reopen(folder, origin)  # another process may have built it in the meantime
            if opened is None:
                if reason:
                    print(f"{reason}; it is built anew", file=sys.stderr)
                _build(origin, folder, workers)
                opened = ProteinStore(folder)
                print(f"{folder}: {report(opened)}", file=sys.stderr)
    return opened if opened is None or origin.labels is None else opened.with_labels(origin.labels)


def report(store: ProteinStore) -> str:
    """Counts of all files that a store was built from: seen = used + skipped + failed."""

    def total(counts: dict[str, int]) -> str:
        listed = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
        return f"{sum(counts.values())} ({listed})" if counts else "0"

    meta = store.meta
    skipped, failed, dropped = (total(meta[name]) for name in ("skipped", "failed", "dropped"))
    return (
        f"seen {meta['seen']} = used {len(store)} + skipped {skipped} + failed {failed}; "
        f"{meta['residues']} residues, {meta['atoms']} atoms, left out or replaced {dropped}"
    )


def _default_folder(origin: Origin) -> Path:
    path = origin.path.resolve()
    name = path.name + (f"-{origin.variant}" if origin.variant else "")
    beside = path.with_name(name + STORE_SUFFIX)
    if not origin.in_cache and (is_ours(beside) or os.access(path.parent, os.W_OK)):
        return beside
    try:
        cache = Path(os.environ.get("SIAMDIFF_CACHE") or Path.home() / ".cache" / "siamdiff_min")
    except RuntimeError as error:
        raise StoreError("no home folder to keep a store in: set SIAMDIFF_CACHE to a folder") from error
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # several folders may be called `data`
    return cache / f"{name}-{place}{STORE_SUFFIX}"


def _reopen(folder: Path, origin: Origin) -> tuple[ProteinStore | None, str]:
    """The store if it is whole, of this version and made from data as they are now; otherwise None and the reason.

    Raises StoreError if something is there that is not ours, and so must not be written over.
    """
    if not is_ours(folder):
        with writing(folder):  # which may be closed to us
            empty = not os.path.lexists(folder) or (folder.is_dir() and not {*os.listdir(folder)} - {LEFT_OVER})
        if not empty:
            raise StoreError(f"{folder} exists and is not a store, or a damaged one; it is not overwritten")
        return None, ""
    try:
        opened = ProteinStore(folder)
    except StoreError as error:
        return None, str(error)
    if opened.meta["fingerprint"] != origin.fingerprint:
        return None, f"{folder}: the data have changed since it was built"
    return opened, ""


def _build(origin: Origin, folder: Path, workers: int | None) -> None:
    """Write the shards that are missing or out of date, then `failures.tsv` and `meta.json`."""
    listing, size = origin.listing(), stores.SHARD
    parts = [listing.sources[i : i + size] for i in range(0, len(listing.sources), size)]
    files = [shard_file(folder, number) for number in range(len(parts))]
    plans = [_plan(origin, part) for part in parts]
    _check_ours(folder, files)
    stores.write_meta(folder, {})  # from here on the folder is ours, and no finished store
    todo = [i for i, (file, plan) in enumerate(zip(files, plans, strict=True)) if _plan_of(file) != plan]
    sources = [source for i in todo for source in parts[i]]
    workers = workers or min(os.cpu_count() or 1, 8, 1 + len(sources) // 500)
    with (
        contextlib.closing(read_all(sources, workers)) as structures,
        tqdm(total=len(sources), unit="protein", disable=None) as bar,
    ):
        for i in todo:
            names = [source.name for source in parts[i]]
            write_shard(files[i], plans[i], zip(names, islice(structures, len(names)), strict=True))
            bar.update(len(names))
    for number in count(len(files)):  # shards of more data than there are now
        if not is_shard(shard_file(folder, number)):
            break
        shard_file(folder, number).unlink()
    _describe(origin, listing, folder, files)


def _check_ours(folder: Path, files: list[Path]) -> None:
    """Raise StoreError if one of the files that a build will write is there and no build has written it."""
    for file in [*files, folder / FAILURES]:
        ours = is_shard(file) if file.name != FAILURES else file.is_file() and file.read_bytes().startswith(HEADER)
        if os.path.lexists(file) and (not ours or file.is_symlink()):
            raise StoreError(f"{file} is not of this store, or damaged; it is not overwritten: move it away")


def _plan(origin: Origin, part: list) -> str:
    """The fingerprint of a shard's origin: the data, and its share of them."""
    names = [origin.fingerprint, str(stores.VERSION), *(source.name for source in part)]
    return hashlib.sha256("\n".join(names).encode("utf-8", "surrogatepass")).hexdigest()


def _plan_of(file: Path) -> str | None:
    """The plan that a shard file was made by; None if the file is missing or damaged."""
    try:
        return load_shard(file)["plan"]
    except (StoreError, LookupError, TypeError):
        return None


def _describe(origin: Origin, listing, folder: Path, files: list[Path]) -> None:
    """Write what became of all files, and the description that makes the folder a store."""
    failures, shards, total, dropped = [], [], Counter(), Counter()
    for file in files:
        shard = load_shard(file)
        failures += shard["failures"]
        dropped += shard["dropped"]
        shards.append(stores.describe_shard(file, shard))
        total.update(proteins=len(shards[-1]["names"]), residues=len(shard["residues"]) - 1, atoms=len(shard["atoms"]))
    failures += [("", "skipped", reason, file, "") for file, reason in listing.skipped]
    table = "".join("\t".join(map(escape, row)) + "\n" for row in failures)
    write_file(folder / FAILURES, HEADER + table.encode())
    counts = {kind: Counter(row[2] for row in failures if row[1] == kind) for kind in ("skipped", "failed")}
    seen = len(listing.sources) + len(listing.skipped)
    meta = {"path": str(origin.path.resolve()), "fingerprint": origin.fingerprint, "shards": shards, "seen": seen}
    if not total["proteins"]:
        reasons = ", ".join(f"{reason} {count}" for kind in counts.values() for reason, count in kind.items())
        raise StoreError(f"no protein that can be read in {origin.path} ({reasons}); see {folder / FAILURES}")
    stores.write_meta(folder, meta | dict(total) | counts | {"dropped": dropped})


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff-build", description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="structures (their store is built), or a store")
    args = parser.parse_args(argv)
    with console():
        for path in args.path:
            store = open_store(path)
            store.verify()
            print(f"{store.path}: {report(store)}; all checksums are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
