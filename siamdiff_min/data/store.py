"""The store: proteins and their labels, read once, then mapped into memory. `open_store` is its one door.

    PATH.store/siamdiff-lock         held by the process that builds
    PATH.store/siamdiff-index.json   which names, sizes and times of files had which content
    PATH.store/CONTENT/              a store: shards, what could not be read, and `meta.json`, which comes last

CONTENT is a hash of the format and of the names and bytes of all files that the store is made from. So a store is never
out of date and never replaced: other data have another folder. A killed build goes on, because its shards are there.
The index saves time: a file is hashed once, and again only if its name, size or times are new to the index.

    siamdiff build PATH ...  # builds the stores that are missing, and checks all
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tqdm import tqdm

from ..files import (
    TEMPORARY,
    ConfigError,
    Parser,
    SiamDiffError,
    StoreError,
    StructureError,
    checksum,
    console,
    lock,
    structure_errors,
    write_file,
    writing,
)
from ..protein.parse import MAX_BYTES
from . import shards
from .shards import FAILURES, META, ProteinStore
from .sources import ARCHIVES, ENDINGS, INDEX, LMDB, LOCK, STORE_NAME, Origin, data_files, structure_files

SUFFIX = ".store"
OURS = re.compile(rf"(\d{{5}}\.pt|{META}|{FAILURES})({re.escape(TEMPORARY)})?")  # the files of a store


def open_store(
    path=None, store=None, workers: int | None = None, build: bool = True, beside: bool = True, mend: bool = False
) -> ProteinStore | None:
    """Open the store of some data. If there is none, build it first.

    Args:
        path: a folder, archive, structure file or finished store; None for the structures bundled with the package; an
            Origin for a labelled set.
        store: folder of its stores. By default `<path>.store` beside the data, or in the cache if that cannot be
            written: `$SIAMDIFF_CACHE`, by default `~/.cache/siamdiff_min`. Stores of the bundle and of a single
            structure file are always there.
        workers: processes that read; the result does not depend on it. By default one for every 500 structures, up to
            one per core and 8. Without fork (not on Linux), a script needs `if __name__ == "__main__":`.
        build: False to change nothing on the disk. If there is no store, None is returned.
        beside: False to build nothing beside the data. A store that is there is used all the same.
        mend: True to check a store that is there, and to build its damaged files again.

    Files that cannot be read are counted, and listed in the store's `failures.tsv`. They do not stop the build, even if
    they kill the process that reads them. Several processes may call this at once: one builds, the others wait.

    Raises:
        ConfigError: `store` or a pLDDT for a finished store; a path of the store that is not UTF-8.
        StructureError: nothing at `path`, or a damaged archive.
        StoreError: no readable protein, a damaged store, data that change while they are read.
        MachineError, WriteError: no room or no rights, on the disk or elsewhere. Finished shards are kept.
    """
    if path is None:
        print("no data given: the structures bundled with the package are used", file=sys.stderr)
    elif finished := finished_store(path.path if isinstance(path, Origin) else Path(path)):
        if store is not None:
            raise ConfigError(f"{path} is a finished store: nothing is built at {store}")
        if isinstance(path, Origin) and path.key:
            raise ConfigError(
                f"{finished} is a finished store, which cannot be asked for {path.key}: give its structures"
            )
        opened = ProteinStore(finished)
        if mend:
            opened.verify()
        return labelled(opened, path)
    data = _Data(path if isinstance(path, Origin) else structure_files(path), store, beside)
    folder = data.finished
    if build and folder is None and str(data.home) != _as_utf8(data.home):
        raise ConfigError(f"{data.home}: torch opens no file on a path that is not UTF-8. Give --store another folder")
    if build and (folder is None or (mend and _damage(folder))):
        home = folder.parent if folder else data.home
        with writing(home), lock(home / LOCK):
            data.remember()
            for file in _damage(folder) if folder else []:
                file.unlink(missing_ok=True)
            if data.finished is None:  # another process may have built it in the meantime
                _build_store(data, home / data.name, workers)
            folder = data.finished
    elif build and data.new:  # the store was copied with its data, so times are new
        with contextlib.suppress(SiamDiffError), lock(data.home / LOCK, busy="another process builds"):
            data.remember()
    if folder is None:
        return None
    return labelled(ProteinStore(folder), data.origin)


def _as_utf8(path: Path) -> str:
    """A path, with a mark for every byte that is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def labelled(store: ProteinStore, origin) -> ProteinStore:
    """The store with the labels that its Origin adds, if it adds some."""
    label_of = origin.label_of if isinstance(origin, Origin) else None
    return store if label_of is None else store.with_labels(label_of)


def _is_store(folder: Path) -> bool:
    """True for a finished store of any version, and for a damaged one that still has its name and its files."""
    if STORE_NAME.fullmatch(folder.name) and os.path.isfile(shards.shard_file(folder, 0)):
        return os.path.isfile(folder / META)
    try:
        return json.loads((folder / META).read_bytes())["format"] == shards.FORMAT
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def finished_store(path: Path) -> Path | None:
    """The finished store that a path is, or the only one in a folder of stores. Raises StoreError for several."""
    if path.name.endswith(SUFFIX) and os.path.isfile(path / LOCK):
        stores = [x for x in sorted(path.iterdir()) if STORE_NAME.fullmatch(x.name) and _is_store(x)]
        if len(stores) != 1:
            names = ", ".join(folder.name for folder in stores)
            raise StoreError(f"{path} has {len(stores)} finished stores{names and ', give one of them: '}{names}")
        return stores[0]
    return path if _is_store(path) else None


# ---- what data there are, and where their stores lie -----------------------------------------------------------------


@dataclass
class _Data:
    """The files of an origin as they are now, and the folders that may have a store of them."""

    origin: Origin
    store: Path | None
    beside: bool

    def __post_init__(self):
        self.files = self.origin.files
        self.new: dict[str, str] = {}  # file -> hash, if no index knew it

    @cached_property
    def homes(self) -> list[Path]:
        """The folders where a store of these data may lie."""
        if self.store is not None:
            return [Path(self.store)]
        path = self.origin.path.resolve()
        try:
            cache = Path(os.environ.get("SIAMDIFF_CACHE") or Path.home() / ".cache" / "siamdiff_min")
        except RuntimeError as error:
            raise StoreError("no home folder to keep a store in: set SIAMDIFF_CACHE to a folder") from error
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]  # several folders may be called `data`
        return [path.with_name(path.name + SUFFIX), cache / f"{_as_utf8(Path(path.name))}-{digest}{SUFFIX}"]

    @property
    def home(self) -> Path:
        """The folder among `homes` that a build writes to."""
        beside, path = self.homes[0], self.origin.path
        single = os.path.isfile(path) and not path.name.endswith(ARCHIVES)
        unmapped = str(beside) != _as_utf8(beside)  # torch maps no file on such a path
        if self.store is None and (single or unmapped or self.origin.in_cache or not self.beside):
            return self.homes[-1]
        return beside if os.access(beside if os.path.exists(beside) else beside.parent, os.W_OK) else self.homes[-1]

    @property
    def finished(self) -> Path | None:
        """The folder of the finished store; None before it is built."""
        return next((home / self.name for home in self.homes if os.path.isfile(home / self.name / META)), None)

    @cached_property
    def name(self) -> str:
        """The name of the store's folder: a hash of all file names and contents; of a labelled set also of its key."""
        digests, root = self._digests(), str(self.origin.data)
        lines = [f"{shards.FORMAT} {shards.VERSION} {shards.SHARD}"]
        lines += [f"{file[len(root) :] or Path(file).name}\n{digests[file]}" for file in self.files]
        name, key = (
            hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
            for text in ("\n".join(lines), self.origin.key)
        )
        return name[:16] + f"-{key[:12]}" * bool(self.origin.key)

    def _digests(self) -> dict[str, str]:
        """The hash of every file's content: from an index, or computed."""
        digests = {}
        for home in self.homes:
            index = _read_index(home)
            for file, key in self._keys(home).items() if index else ():
                *state, digest = index.get(key, [None])
                if tuple(state) == self.files[file]:
                    digests[file] = digest
        unknown = [file for file in self.files if file not in digests]
        size = sum(self.files[file][0] for file in unknown)
        with tqdm(total=size, unit="B", unit_scale=True, desc="hashing", disable=None, delay=2) as bar:
            for file in unknown:
                bar.update(self.files[file][0])
                if not file.endswith((*ARCHIVES, LMDB)) and self.files[file][0] > MAX_BYTES:
                    digests[file] = f"{self.files[file][0]} bytes"  # too large to be read, so no store has its content
                    continue
                try:
                    with structure_errors(file, "cannot be opened"):
                        self.new[file] = digests[file] = checksum(Path(file))
                except StructureError as error:
                    digests[file] = error.reason
        return digests

    def _keys(self, home: Path) -> dict[str, str]:
        """The key of every file in the index of a folder of stores: its path, relative to that folder."""
        root = str(self.origin.data)
        base = os.path.relpath(os.path.realpath(root), os.path.realpath(home)) if self.files else ""
        return {file: base + file[len(root) :] for file in self.files}

    def remember(self) -> None:
        """Add new hashes to the index, and remove files that are gone from it. Raises WriteError."""
        if self.new:
            keys, index = self._keys(self.home), _read_index(self.home)
            added = {keys[file]: [*self.files[file], digest] for file, digest in self.new.items()}
            kept = {key: row for key, row in index.items() if os.path.exists(os.path.join(self.home, key))}
            write_file(self.home / INDEX, json.dumps(kept | added).encode())

    def check_unchanged(self, paths: set[str] = frozenset()) -> None:
        """Raise StoreError if files have changed since they were listed: those among `paths`, or all."""
        chosen, now = self.files.keys() & paths or self.files, {}  # the path of an LMDB item is a folder
        for path in chosen if paths else [self.origin.data] * bool(self.files):
            with contextlib.suppress(StructureError):  # it is gone
                now |= data_files(path)
        if changed := now.items() ^ {file: self.files[file] for file in chosen}.items():
            file = min(name for name, _ in changed)
            raise StoreError(f"{file} has changed while {self.origin.path} was read: start again when it is complete")


def _read_index(home: Path) -> dict[str, list]:
    """The index of a folder of stores. It is empty if it is missing or damaged: then files are hashed again."""
    try:
        index = json.loads((home / INDEX).read_bytes())
        return index if all(isinstance(entry, list) and len(entry) == 4 for entry in index.values()) else {}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


# ---- building --------------------------------------------------------------------------------------------------------


def _build_store(data: _Data, folder: Path, workers: int | None) -> None:
    """Find the structures, and write what is missing of their store."""
    listing = data.origin.listing()
    data.check_unchanged()
    if not listing.sources:
        skipped = Counter(reason for _, reason in listing.skipped)
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "it is empty"
        wanted = f"{', '.join(ENDINGS)}, in folders, {', '.join(ARCHIVES)}"
        raise StoreError(f"no structure in {data.origin.path} ({reasons}); looked for {wanted}")
    shards.write_store(folder, data.origin.path, listing.sources, listing.skipped, data.check_unchanged, workers)


def _damage(folder: Path) -> list[Path]:
    """The files to remove from a finished store, in this order, so that a build mends it. Every damaged one is said."""
    try:
        described = shards.read_meta(folder)["shards"]
        files = {shards.shard_file(folder, number): shard["sha256"] for number, shard in enumerate(described)}
        bad = [file for file, expected in files.items() if not file.is_file() or checksum(file) != expected]
    except StoreError:
        bad = [folder / META]
    for file in bad:
        print(f"{file} is damaged: it is built again", file=sys.stderr)
    return [*bad, folder / META] if bad else []


def _prune(path, store) -> None:
    """Remove the stores of earlier data at `path`, and of other versions. Files of the user's stay."""
    data = _Data(structure_files(path), store, beside=True)
    if not data.files:
        raise StoreError(f"no structures in {path}: is it there? Nothing is removed")
    for home in data.homes:
        if os.path.isfile(home / LOCK):
            with writing(home), lock(home / LOCK):
                for folder in home.iterdir():
                    if STORE_NAME.fullmatch(folder.name) and folder.name[:16] != data.name[:16] and folder.is_dir():
                        for file in sorted(folder.iterdir(), key=lambda file: file.name != META):  # META goes first
                            if OURS.fullmatch(file.name):
                                file.unlink()
                        with contextlib.suppress(OSError):  # a file of the user's is in it
                            folder.rmdir()
                        print(f"{folder}: removed")


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff build", description="Build, check and mend stores.")
    parser.add_argument("path", nargs="+", help="structures (their store is built), or a store")
    parser.add_argument("--store", type=Path, help="folder of the stores (default: PATH.store)")
    text = "skip predicted structures whose mean pLDDT is below; the store's folder, which is printed, is --data then"
    parser.add_argument("--min-plddt", type=float, help=text)
    parser.add_argument("--prune", action="store_true", help="build nothing; remove stores of data that have changed")
    args = parser.parse_args(argv)
    with console():
        for path in args.path:
            if args.prune:
                _prune(path, args.store)
            else:
                wanted = path if args.min_plddt is None else structure_files(path, args.min_plddt)
                store = open_store(wanted, args.store, mend=True)
                print(f"{store.path}: {store.report_counts()}; all checksums are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
