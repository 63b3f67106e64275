"""Finding structure files: in a folder, in a `.tar` or `.zip` (read in place, nothing is unpacked), or a single file.

What is found is a list of `Source`, cheap to send to another process and readable on its own: for a member of an
archive it remembers where the bytes lie. The structures bundled with the package are found here too.
"""

import hashlib
import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from ..files import StructureError, read_rows, structure_errors
from ..protein.parse import MAX_BYTES, read_structure
from ..protein.structure import Structure
from .store import STORE_SUFFIX, is_ours

# The first is taken if a structure has several.
KINDS = (".pdb", ".ent", ".cif", ".mmcif", ".pdb.gz", ".ent.gz", ".cif.gz", ".mmcif.gz")
ARCHIVES = (".tar", ".zip")
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")  # would have to be unpacked for every structure


@dataclass(frozen=True, slots=True)
class Source:
    """One structure file, on its own or inside an archive, and what turns it into an entry of a labelled set."""

    name: str  # of the protein: the file name without extensions, with its folder where that alone is not unique
    path: str  # the file, or the archive
    member: str | None = None  # name inside the archive
    offset: int = 0  # of the member's first byte in a tar
    size: int = 0  # of the member, bytes
    label: Callable[[Structure], Structure] | None = None  # adds the labels; can be pickled

    def __str__(self) -> str:
        return self.path if self.member is None else f"{self.path}:{self.member}"

    def read(self) -> Structure:
        """Parse the structure and add its labels. Raises StructureError."""
        structure = self.parse()
        return structure if self.label is None else self.label(structure)

    def parse(self, reader: Callable = read_structure):
        """The structure without labels; with `read_models` as `reader` all of its models. Raises StructureError."""
        if self.member is None:
            return reader(self.path)
        if self.size > MAX_BYTES:
            raise StructureError(self, "too large", f"{self.size} bytes")
        with structure_errors(self, "damaged archive"):
            if self.path.endswith(".zip"):
                data = _opened(self.path, os.stat(self.path).st_mtime_ns, os.getpid()).read(self.member)
            else:
                with open(self.path, "rb") as archive:
                    archive.seek(self.offset)
                    data = archive.read(self.size)
        if len(data) < self.size:
            raise StructureError(self, "truncated", f"{len(data)} of {self.size} bytes")
        return reader(str(self), data)


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


def structure_files(path=None) -> Origin:
    """The structures under `path`, or those bundled with the package."""
    place = bundle_path() if path is None else Path(path)
    return Origin(place, fingerprint(place), partial(find_structures, place), in_cache=path is None)


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


def list_files(path) -> list[str]:
    """Every file under a folder, or the one file that `path` is; sorted. Raises StructureError if nothing is there.

    Folders that are not entered, because they are links or cannot be opened, are in the list themselves.
    """
    if os.path.isfile(path):
        return [str(path)]
    if not os.path.isdir(path):
        raise StructureError(path, "cannot be opened", "no such file or folder")
    files, closed = [], []
    for folder, subfolders, names in os.walk(path, onerror=closed.append):
        subfolders[:] = (n for n in subfolders if not (n.endswith(STORE_SUFFIX) and is_ours(Path(folder, n))))
        files += (os.path.join(folder, name) for name in names)
        files += (link for name in subfolders if os.path.islink(link := os.path.join(folder, name)))
    return sorted([*files, *(error.filename for error in closed)])


def find_structures(path) -> Listing:
    """List the structures under a folder (recursively), in an archive, or in a single file.

    Raises StructureError if nothing is at `path`, or it is itself an archive that is damaged.
    """
    found: list[tuple[str, Source]] = []  # and the path inside the folder, or inside folder and archive
    skipped: list[tuple[str, str]] = []
    alone = not os.path.isdir(path)
    for file in list_files(path):
        inside = os.path.basename(file) if alone else os.path.relpath(file, path)
        if not os.path.isfile(file):
            skipped.append((file, "folder that is not entered" if os.path.isdir(file) else "not a regular file"))
        elif not file.endswith(ARCHIVES):
            found.append((inside, Source("", file)))
        else:
            try:
                members = _members(file, skipped)
            except StructureError as error:
                if alone:
                    raise
                skipped.append((file, error.reason))
            else:
                folder = "" if alone else os.path.splitext(inside)[0]
                found += ((os.path.join(folder, m), Source("", file, m, *place)) for m, *place in members)
    return _named(found, skipped)


def _members(file: str, skipped: list) -> list[tuple[str, int, int]]:
    """The files in an archive: name, offset of the first byte (0 in a zip), size. Raises StructureError."""
    with structure_errors(file, "damaged archive"):
        if file.endswith(".zip"):
            with zipfile.ZipFile(file) as archive:
                found = [(info.filename, 0, info.file_size) for info in archive.infolist()]
            return [member for member in found if not member[0].endswith("/")]
        members = []
        with tarfile.open(file, "r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # tarfile keeps every header, a gigabyte for a million members
                if member.size < 0:  # it would be listed without end
                    raise ValueError(f"a member of {member.size} bytes")
                if member.isreg() and not member.issparse():
                    members.append((member.name, member.offset_data, member.size))
                elif not member.isdir():
                    skipped.append((f"{file}:{member.name}", "not a regular file"))
            # tarfile takes a damaged header for the end; the true end is a block of zeros, or of the file.
            archive.fileobj.seek(archive.offset)
            if archive.fileobj.read(512).strip(b"\0"):
                raise ValueError(f"no valid header at byte {archive.offset}")
        return members


def kind_of(file: str) -> str | None:
    """The longest of KINDS that `file` ends with."""
    return next((kind for kind in reversed(KINDS) if file.lower().endswith(kind)), None)


def _named(found: list[tuple[str, Source]], skipped: list[tuple[str, str]]) -> Listing:
    """One source for every structure, each with a name of its own, sorted by it; the others are skipped."""
    files: list[tuple[int, str, Source]] = []  # place in KINDS, path without extensions
    for inside, source in found:
        kind = kind_of(inside)
        stem = os.path.normpath(inside)[: -len(kind or ".")]
        if kind is not None and os.path.basename(inside).lower() != kind:
            files.append((KINDS.index(kind), stem, source))
        else:
            packed = inside.lower().endswith(PACKED)
            skipped.append((str(source), "a packed archive, unpack it first" if packed else "not a structure file"))
    chosen: dict[str, Source] = {}
    for _, stem, source in sorted(files, key=lambda item: (*item[:2], item[2].offset)):
        if stem in chosen:
            skipped.append((str(source), "another file of the same structure"))
        else:
            chosen[stem] = source
    count = Counter(map(os.path.basename, chosen))
    names = {stem: name if count[name := os.path.basename(stem)] == 1 else stem for stem in chosen}
    sources = [replace(source, name="/".join(Path(names[stem]).parts)) for stem, source in chosen.items()]
    return Listing(sorted(sources, key=lambda source: source.name), skipped)


def bundle_path() -> Path:
    """Folder with the bundled structures: 180 single chains and 37 two-sided complexes of the PDB, see its README."""
    return Path(__file__).parent / "bundle"


def bundle_index() -> list[dict[str, str]]:
    """Rows of the bundle's index.tsv as text: `file`, `pdb_id`, `chains`, `n_residues`, `ec`, `split` and more."""
    header, *rows = read_rows(bundle_path() / "index.tsv")
    return [dict(zip(header, row)) for row in rows]
