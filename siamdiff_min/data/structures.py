"""Finding structure files: in a folder, in a `.tar` or `.zip` (read in place, nothing is unpacked), or a single file.

What is found is a list of `Source`, cheap to send to another process and readable on its own: for a member of an
archive it remembers where the bytes lie. Nothing here ever writes, so a hostile archive gains nothing by its names.
The structures bundled with the package are found here too.
"""

import csv
import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from ..files import StructureError, structure_errors
from ..protein.parse import MAX_BYTES, read_structure
from .archives import tar_members, zip_members
from .store import has_format, is_store
from .worker import run

# The first is taken if a structure has several.
KINDS = (".pdb", ".ent", ".cif", ".mmcif", ".pdb.gz", ".ent.gz", ".cif.gz", ".mmcif.gz")
ARCHIVES = (".tar", ".zip")
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # would have to be unpacked for every structure
STORE_SUFFIX = ".store"


@dataclass(frozen=True, slots=True)
class Source:
    """One structure file, on its own or inside an archive."""

    name: str  # of the protein: the file name without extensions, with its folder where that alone is not unique
    path: str  # the file, or the archive
    member: str | None = None  # name inside the archive
    offset: int = 0  # of the member's first byte in a tar
    size: int = 0  # of the member, bytes
    problem: StructureError | None = None  # of an archive whose members cannot be listed

    @property
    def label(self) -> str:
        """The file, or archive and member, for messages."""
        return self.path if self.member is None else f"{self.path}:{self.member}"

    def read(self, parse: Callable = read_structure):
        """Parse the structure; `read_models` for all of its models. Raises StructureError."""
        if self.problem is not None:
            raise self.problem
        if self.member is None:
            return parse(self.path)
        if self.size > MAX_BYTES:
            raise StructureError(self.label, "too large", f"{self.size} bytes")
        if self.path.endswith(".zip"):
            with structure_errors(self.label, "damaged archive"):
                archive = _opened(self.path, os.stat(self.path).st_mtime_ns, os.getpid())
                data = archive.read(self.member)  # compares the checksum
        else:
            with structure_errors(self.path, "cannot be opened"), open(self.path, "rb") as archive:
                archive.seek(self.offset)
                data = archive.read(self.size)
            if len(data) < self.size:
                raise StructureError(self.label, "truncated", f"{len(data)} of {self.size} bytes")
        return parse(self.label, data)


@lru_cache(maxsize=4)  # reading the list of contents takes a while; forked processes would share a place in the file
def _opened(path: str, changed: int, process: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@dataclass(frozen=True)
class Listing:
    """What a path holds. Every file or archive member seen is either in `sources` or in `skipped`."""

    sources: list[Source]  # sorted by name
    skipped: list[tuple[str, str]]  # (file or archive:member, reason)

    @property
    def reasons(self) -> Counter:
        """Number of skipped files for each reason."""
        return Counter(reason for _, reason in self.skipped)


@dataclass(frozen=True)
class Origin:
    """What a store is made from. A source has a `name`, a `path` and `read() -> Structure`, and can be pickled."""

    path: Path
    fingerprint: str  # another one: a store made before is out of date
    listing: Callable[[], Listing]  # called only where the store has to be built
    in_cache: bool = False  # the store never goes beside the data
    variant: str = ""  # part of the store's name, where several are made from the same data


def list_files(path) -> list[str]:
    """Every file under a folder, or the one file that `path` is; sorted. Raises StructureError if nothing is there.

    Folders that are not entered, because they are links or cannot be opened, are in the list themselves.
    """
    if os.path.isfile(path):
        return [str(path)]
    if not os.path.isdir(path):
        raise StructureError(path, "cannot be opened", "no such file or folder")
    files = []
    for folder, subfolders, names in os.walk(path, onerror=lambda error: files.append(error.filename)):
        subfolders[:] = [name for name in subfolders if not _is_built(Path(folder, name))]
        files.extend(os.path.join(folder, name) for name in names)
        files.extend(link for name in subfolders if os.path.islink(link := os.path.join(folder, name)))
    return sorted(files)


def _is_built(folder: Path) -> bool:
    """True for a store, finished or not, which was built among the data and is none of them."""
    return STORE_SUFFIX in folder.suffixes and (is_store(folder) or has_format(folder / "progress.json"))


def fingerprint(path) -> str:
    """SHA-256 over names, sizes and modification times of all structure files and archives under `path`.

    If it changes, a store built from `path` is out of date. A file that changes at equal size and time is not noticed.
    No file is opened, so it is cheap for a large archive.
    """
    digest = hashlib.sha256()
    for file in list_files(path):
        if kind_of(file) is not None or file.endswith(ARCHIVES):
            status = os.stat(file, follow_symlinks=os.path.exists(file))
            entry = os.path.relpath(file, path), status.st_size, status.st_mtime_ns
            digest.update(f"{entry}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def structure_files(path=None) -> Origin:
    """The structures under `path`, or those bundled with the package."""
    place = bundle_path() if path is None else Path(path)
    return Origin(place, fingerprint(place), partial(find_structures, place), in_cache=path is None)


def find_structures(path) -> Listing:
    """List the structures under a folder (recursively), in an archive, or in a single file.

    An archive in the folder that cannot be listed becomes a source that cannot be read, and so a failure. Raises
    StructureError if nothing is at `path`, or it is itself an archive that is damaged or truncated.
    """
    found: list[tuple[str, Source]] = []  # and the path inside the folder, or inside folder and archive
    skipped: list[tuple[str, str]] = []
    files = list_files(path)
    archives = [file for file in files if file.endswith(ARCHIVES) and os.path.isfile(file)]
    tasks = [(file, zip_members if file.endswith(".zip") else tar_members, file) for file in archives]
    content = dict(zip(archives, run(tasks)))
    for file in files:
        relative = os.path.relpath(file, path)  # "." where `path` is the file itself
        if not os.path.isfile(file):
            skipped.append((file, "folder that is not entered" if os.path.isdir(file) else "not a regular file"))
        elif file not in content:
            found.append((os.path.basename(file) if relative == "." else relative, Source("", file)))
        elif isinstance(problem := content[file], StructureError):
            if relative == ".":
                raise problem
            found.append((relative, Source("", file, problem=problem)))
        else:
            members, refused = content[file]
            skipped += refused
            inside = os.path.splitext(relative)[0]
            found += ((os.path.join(inside, m), Source("", file, m, offset, size)) for m, offset, size in members)
    return Listing(_named(found, skipped), skipped)


def kind_of(file: str) -> str | None:
    """The longest of KINDS that `file` ends with."""
    return next((kind for kind in reversed(KINDS) if file.lower().endswith(kind)), None)


def _named(found: list[tuple[str, Source]], skipped: list[tuple[str, str]]) -> list[Source]:
    """One source for every structure, each with a name of its own, sorted by it; the others are added to `skipped`."""
    kinds: list[tuple[str, str, int, Source]] = []  # folder, name without extensions, which of KINDS
    for relative, source in found:
        folder, base = os.path.split(os.path.normpath(relative))
        kind = "" if source.problem else kind_of(base)
        if kind is None or len(kind) == len(base):
            packed = base.lower().endswith(PACKED)
            skipped.append((source.label, "a packed archive, unpack it first" if packed else "not a structure file"))
        else:
            kinds.append((folder, base[: len(base) - len(kind)], [*KINDS, ""].index(kind), source))
    chosen: dict[tuple[str, str], Source] = {}
    for folder, stem, _, source in sorted(kinds, key=lambda item: (*item[:3], item[3].offset)):
        if (folder, stem) in chosen:
            skipped.append((source.label, "another file of the same structure"))
        else:
            chosen[folder, stem] = source
    count = Counter(stem for _, stem in chosen)
    names = {key: key[1] if count[key[1]] == 1 else "/".join([*Path(key[0]).parts, key[1]]) for key in chosen}
    return sorted((replace(source, name=names[key]) for key, source in chosen.items()), key=lambda s: s.name)


def bundle_path() -> Path:
    """Folder with the bundled structures: 180 single chains and 37 two-sided complexes of the PDB, see its README."""
    return Path(__file__).parent / "bundle"


def bundle_index() -> list[dict[str, str]]:
    """Rows of the bundle's index.tsv as text: `file`, `pdb_id`, `chains`, `n_residues`, `ec`, `split` and more."""
    with open(bundle_path() / "index.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
