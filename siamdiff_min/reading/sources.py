"""Finding structure files: in a folder, an archive or Foldcomp database (read in place), or a single file.

The result is a list of `Source`. Each can be read on its own, in another process too.
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

from ..files import ConfigError, StructureError, blame_machine, part, part_or_none, read_rows, structure_errors
from .endings import ARCHIVES, ENDINGS, LOOKUP, NOT_A_STRUCTURE, ending_of, why_skipped, without_ending
from .parse import read_structure
from .structure import Structure

ENOUGH = 100  # pairs of files in an archive that are alike; then one program wrote all of them, in several formats
LMDB = "data.mdb"
LOCK = "siamdiff-lock"  # a folder with this file in it holds stores, and no data


@dataclass(frozen=True, slots=True)
class Source:
    """One structure file, alone or in an archive. In a labelled set it also has a function for its labels."""

    name: str  # of the protein: the file name without its ending; with its folder if several have this name
    path: str  # the file, archive or database
    member: str | None = None  # name inside the archive
    offset: int = 0  # of the member's first byte in a tar or database
    size: int = 0  # of the member, bytes
    label: Callable[[Structure], Structure] | None = None  # adds the labels; can be pickled

    def __str__(self) -> str:
        return self.path if self.member is None else f"{self.path}:{self.member}"

    def read(self) -> Structure:
        """Parse the structure and add its labels. Raises StructureError."""
        structure = read_structure(str(self), self.member_bytes())
        return structure if self.label is None else self.label(structure)

    def member_bytes(self) -> bytes | None:
        """The bytes of a member of an archive; None for a file, which the parser opens itself."""
        if self.member is None:
            return None
        with structure_errors(self, "damaged archive"):
            if self.path.endswith(".zip"):
                data = _opened(self.path, os.stat(self.path).st_mtime_ns, os.getpid()).read(self.member)
            else:
                with open(self.path, "rb") as archive:
                    archive.seek(self.offset)
                    data = archive.read(self.size)
        if len(data) < self.size:
            raise StructureError(self, "truncated", f"{len(data)} of {self.size} bytes")
        return data


@lru_cache(maxsize=64)  # as opening lists it, which takes a while. Forked processes would share the file's position
def _opened(path: str, changed: int, process: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)


@dataclass(frozen=True)
class Listing:
    """The contents of a path. Every file or archive member seen is either in `sources` or in `skipped`."""

    sources: list[Source]  # sorted by name
    skipped: list[tuple[str, str]]  # (file or archive:member, reason)


@dataclass(frozen=True)
class Origin:
    """The data of a store. Its sources have a `name`, a `path` and `read() -> Structure`, and can be pickled."""

    path: Path  # the store is named after it
    key: str  # what decides on the store besides the files: the task and its labels; "" for plain structures
    listing: Callable[[], Listing]  # called only if the store has to be built
    data: Path | None = None  # the file or folder whose names, sizes and times decide on the store
    in_cache: bool = False  # the store never goes beside the data
    each_chain: bool = False  # an entry for every chain, NAME_A, in place of one for every source

    def fingerprint(self, format: str) -> str:
        """A name for the store: a hash of its format, and of all names, sizes and times of the files."""
        root = str(self.data)
        files = data_files(self.data) if self.data else {}
        described = []
        for file, state in files.items():
            inside = file[len(root) :] or Path(file).name
            described.append(f"{inside} {state}")
        text = "\n".join([format, self.key, *described])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def bundle_path() -> Path:
    """Folder with the structures that come with the package: 180 chains and 37 complexes, see its README."""
    return Path(__file__).parent / "bundle"


def bundle_index() -> list[dict[str, str]]:
    """Rows of the bundle's index.tsv as text: `file`, `pdb_id`, `chains`, `n_residues`, `ec`, `split` and more."""
    header, *rows = read_rows(bundle_path() / "index.tsv").values()
    return [dict(zip(header, row, strict=True)) for row in rows]


def bundled(name: str = "5PTI_A") -> Structure:
    """A chain or complex of the bundle by its name: the PDB id, an underscore, its chains. Raises ConfigError."""
    sources = {source.name: source for source in find_structures(bundle_path()).sources}
    if name not in sources:
        raise ConfigError(f"{name} is not in the bundle, which has {', '.join([*sources][:3])}, ...")
    return sources[name].read()


def structure_files(path=None, each_chain: bool = False) -> Origin:
    """The structures under `path`, or those bundled with the package; see `Origin` for the other."""
    root = bundle_path() if path is None else Path(path)
    key = " each chain" if each_chain else ""
    listing = partial(find_structures, root)
    return Origin(root, key, listing, data=root, in_cache=path is None, each_chain=each_chain)


def data_files(path) -> dict[str, tuple[int, int]]:
    """Size (bytes) and mtime (ns) of every structure file, archive, database and LMDB. No file is opened."""
    files = {}
    listed = list_files(path)
    known = [f for f in listed if ending_of(f) or f.endswith(ARCHIVES) or os.path.basename(f) == LMDB]
    for file in known or listed:  # without any ending the content tells
        try:
            status = os.stat(file.removesuffix(LOOKUP))
        except OSError as error:  # a link to nowhere, or in a folder that cannot be entered
            blame_machine(file, error)
        else:
            files[file] = status.st_size, status.st_mtime_ns
    return files


def list_files(path) -> list[str]:
    """Every file under a folder, or the one file that `path` is; sorted. Raises StructureError if nothing is there.

    A folder that is a link, or cannot be opened, is in the list itself, a Foldcomp database by its table of names.
    """
    if os.path.isfile(path):
        return [f"{path}{LOOKUP}" if os.path.isfile(f"{path}{LOOKUP}") else str(path)]
    if not os.path.isdir(path):
        raise StructureError(path, "cannot be opened", "no such file or folder")
    files = []
    folders = [str(path)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as opened:
                entries = [(e.name, e.path, e.is_dir(follow_symlinks=False)) for e in opened]
        except OSError as error:
            blame_machine(folder, error)
            files.append(folder)
            continue
        if folder != str(path) and any(name == LOCK for name, _, _ in entries):
            continue
        for _, inner, is_folder in entries:
            (folders if is_folder else files).append(inner)
    return sorted(files)


def is_archive(path) -> bool:
    """Whether a path is an archive or a Foldcomp database, by its name or the table of names beside it."""
    return os.fspath(path).endswith(ARCHIVES) or os.path.isfile(f"{path}{LOOKUP}")


def find_structures(*paths) -> Listing:
    """List the structures under a folder (recursively), in an archive, or in a single file; or in several of these.

    Several are named as in the folder that holds all of them. Raises StructureError if nothing is at a path, or an
    archive is damaged.
    """
    files: list[tuple[str, Source, str]] = []  # (path inside the folder and archive, source, under which of the paths)
    skipped: list[tuple[str, str]] = []
    given = dict.fromkeys(map(os.fspath, paths))
    listed = {file: file if file in given else path for path in given for file in list_files(path)}
    alone = len(paths) == 1 and not os.path.isdir(paths[0])
    root = paths[0]
    if listed and (alone or len(paths) > 1):
        root = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in listed])
    for file, under in listed.items():
        inside = os.path.relpath(file, root)
        if not os.path.isfile(file):
            skipped.append((file, "folder that is not entered" if os.path.isdir(file) else "not a regular file"))
        elif not file.endswith(ARCHIVES):
            files.append((inside, Source("", file), under))
        else:
            members, left_out = _members(file)
            folder = "" if alone else os.path.splitext(inside)[0]
            data = file.removesuffix(LOOKUP)
            files += ((os.path.join(folder, name), Source("", data, name, *where), under) for name, *where in members)
            skipped += left_out
    sources, left_out = _named(files)
    return Listing(sorted(sources, key=lambda source: source.name), skipped + left_out)


def _members(file: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The files in an archive, each as (name, offset of its first byte, size); and (name, reason) of what is skipped.

    The offset is 0 in a zip. Of members of one name the last counts, as when unpacked. Raises StructureError.
    """
    skipped: list[tuple[str, str]] = []
    with structure_errors(file, "damaged archive"):
        if file.endswith(LOOKUP):
            members = part("foldcomp_members")(file)
        elif file.endswith(".zip"):
            with zipfile.ZipFile(file) as archive:
                members = [(x.filename, 0, x.file_size) for x in archive.infolist() if not x.is_dir()]
        else:
            members, skipped = _members_of_tar(file)
    last = {member[0]: member for member in members}
    for member in members:
        if last[member[0]] is not member:
            skipped.append((f"{file}:{member[0]}", "an older member of the same name"))
    return [*last.values()], skipped


def _members_of_tar(file: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The same of a tar. Raises ValueError where a header is damaged."""
    members = []
    skipped = []
    with tarfile.open(file, "r:") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every header, a gigabyte for a million members
            if member.isreg() and not member.issparse():
                members.append((member.name, member.offset_data, member.size))
            elif not member.isdir():
                skipped.append((f"{file}:{member.name}", "not a regular file"))
        # tarfile takes a damaged header for the end; the true end is a block of zeros, or of the file.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(512).strip(b"\0"):
            raise ValueError(f"no valid header at byte {archive.offset}")
    return members, skipped


def _named(files: list[tuple[str, Source, str]]) -> tuple[list[Source], list[tuple[str, str]]]:
    """One source for every structure, with a name of its own; and the other files, with the reason.

    Of several files of one structure the first one of ENDINGS counts.
    """
    # The files that may be structures. No name leads out of the data.
    candidates: list[tuple[str, Source]] = []
    skipped: list[tuple[str, str]] = []
    with_endings = {under for inside, _, under in files if ending_of(inside)}
    for inside, source, under in files:
        reason = why_skipped(inside)
        if not reason or (under not in with_endings and reason == NOT_A_STRUCTURE):
            candidates.append((os.path.normpath(f"/./{inside}")[1:], source))
        else:
            skipped.append((str(source), reason))

    def place(item: tuple[str, Source]) -> tuple:
        path, source = item
        ending = ending_of(path)
        return ENDINGS.index(ending) if ending else 0, without_ending(path), source.offset

    # One file of each structure.
    chosen: dict[str, Source] = {}
    of_stem: dict[str, list[Source]] = {}
    alike: Counter = Counter()  # files of an archive that another file's structure is in
    is_different = part_or_none("is_different")
    for path, source in sorted(candidates, key=place):
        stem = without_ending(path)
        others = of_stem.setdefault(stem, [])
        if others:
            looked_at = is_different and path not in chosen and (source.member is None or alike[source.path] < ENOUGH)
            if not (looked_at and is_different(source, others)):
                alike[source.path] += 1
                skipped.append((str(source), "another file of the same structure"))
                continue
        chosen[path if others else stem] = source
        others.append(source)

    # A name is the file's, and where several have it, also the folder's.
    count = Counter(map(os.path.basename, chosen))
    sources = []
    for path, source in chosen.items():
        name = os.path.basename(path)
        sources.append(replace(source, name=name if count[name] == 1 else path))
    return sources, skipped
