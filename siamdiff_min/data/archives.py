"""Archives from elsewhere: which of their members are read at all, and how one is unpacked without trusting it.

Structure archives are read in place (`structures.py`, `ec.py`), there a hostile member is skipped. `extract` is for the
archives of the labelled sets: its files as they were packed, or a refusal of the whole archive.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from ..files import StructureError

MAX_MEMBERS = 50_000
MAX_BYTES = 2**38  # of all files together
MAX_RATIO = 100  # unpacked to packed: structure files shrink to a fifth, zeros to a thousandth
SLACK = 2**20  # bytes that may come out whatever the ratio, for small archives of nearly empty files
BLOCK = 2**18  # bytes read at once; no header may be larger
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError),
    *(OSError, ValueError, OverflowError, NotImplementedError, RecursionError, IndexError),
)


@contextlib.contextmanager
def reading(path):
    """Whatever goes wrong in reading an archive is a StructureError that names it."""
    try:
        yield
    except StructureError:
        raise
    except _DAMAGE as error:
        raise StructureError(path, "damaged archive", str(error)) from error


def refused(member: tarfile.TarInfo | zipfile.ZipInfo) -> str | None:
    """Why a member that is no folder is not read, None where it is."""
    if isinstance(member, tarfile.TarInfo):
        name, regular = member.name, member.isreg() and not member.issparse()
    else:
        name, regular = member.filename, stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
    if not regular:
        return "not a regular file"
    if _outside(name):
        return "path outside the archive"
    if isinstance(member, zipfile.ZipInfo):
        if member.flag_bits & 1:
            return "encrypted"
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            return "unknown compression"
    return None


def _outside(name: str) -> bool:
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")


class _Header(tarfile.TarInfo):
    """Without this check, tarfile takes long names and the like into memory whatever size they claim."""

    ADDITIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X")

    @classmethod
    def frombuf(cls, buf, encoding, errors):
        header = super().frombuf(buf, encoding, errors)
        if header.size > BLOCK and header.type in cls.ADDITIONS:
            raise tarfile.ReadError(f"a header of {header.size} bytes")
        return header


def tar_members(path: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The regular files of a `.tar` as (name, offset, size), and as (archive:member, reason) all else but folders.

    Only the bytes of a member are ever used, its name is but a label. Raises StructureError where it is damaged.
    """
    members, skipped, last = [], [], -1
    with reading(path), tarfile.open(path, "r:", tarinfo=_Header) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile keeps every header, a gigabyte for a million members
            if member.size < 0 or member.offset <= last:  # it would be listed without end
                raise StructureError(path, "damaged archive", f"a member of {member.size} bytes")
            last = member.offset
            reason = refused(member)
            if reason is None:
                members.append((member.name, member.offset_data, member.size))
            elif not member.isdir():
                skipped.append((f"{path}:{member.name}", reason))
        # tarfile takes a damaged header for the end; the true end is a block of zeros, or of the file.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(512).strip(b"\0"):
            raise StructureError(path, "damaged archive", f"no valid header at byte {archive.offset}")
    return members, skipped


# ---- unpacking -------------------------------------------------------------------------------------------------------


def extract(path, folder) -> dict[str, tuple[int, str]]:
    """Unpack a `.tar.gz` or `.zip` (told apart by their first bytes) into a new folder.

    Returns:
        Size and SHA-256 of every file, by its path in the folder. Permissions and times are not taken over.

    Raises:
        StructureError: a damaged archive, a member that is not a plain file inside it, names that collide, too many
            members, too many bytes for the size of the archive. What is in the folder then is to be thrown away.
        OSError: the disk is full or cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True)
    root, files = folder.resolve(), {}
    with reading(path), open(path, "rb") as file:
        limit = min(MAX_BYTES, SLACK + MAX_RATIO * os.fstat(file.fileno()).st_size)
        zipped = file.read(2) == b"PK"
    for name, content in (_zip_files if zipped else _tar_files)(path, root, limit):
        target = root.joinpath(*PurePosixPath(name).parts)
        if not target.is_relative_to(root):  # a drive, say; names with .. do not come here, nor do links
            raise StructureError(path, "refused", f"{name!r:.200}: path outside the archive")
        try:
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                with content:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    files[target.relative_to(root).as_posix()] = _write(path, target, content)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise StructureError(path, "refused", f"two members in the place of {name!r:.200}") from error
    if not files:
        raise StructureError(path, "refused", "no file in it")
    return files


def _write(path, target: Path, content: IO[bytes]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with open(target, "xb") as out:
        while True:
            with reading(path):
                piece = content.read(BLOCK)
            if not piece:
                break
            out.write(piece)
            size += len(piece)
            digest.update(piece)
        out.flush()
        os.fsync(out.fileno())
    return size, digest.hexdigest()


def _accept(path, member: tarfile.TarInfo | zipfile.ZipInfo, name: str, is_folder: bool, number: int) -> None:
    reason = ("path outside the archive" if _outside(name) else None) if is_folder else refused(member)
    if reason:
        raise StructureError(path, "refused", f"{name!r:.200}: {reason}")
    if number > MAX_MEMBERS:
        raise StructureError(path, "refused", f"more than {MAX_MEMBERS} members")


def _within(path, size: int, limit: int) -> None:
    if size > limit:
        raise StructureError(path, "refused", f"more than {limit} bytes come out of it")


class _Unzipped(gzip.GzipFile):
    """The content of a gzip file, within a limit: tarfile follows a header to wherever it leads."""

    limit = 0  # bytes

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        _within(self.name, self.tell(), self.limit)
        return data


def _tar_files(path, root: Path, limit: int):
    """Yield the name of every member and its content, None for a folder."""
    with reading(path), _Unzipped(path) as stream:
        stream.limit = limit
        with tarfile.open(fileobj=stream, tarinfo=_Header, mode="r:") as archive:
            for number, member in enumerate(iter(archive.next, None), 1):
                archive.members.clear()
                _accept(path, member, member.name, member.isdir(), number)
                tarfile.data_filter(member, str(root))  # a second opinion; raises what is not to be extracted
                yield member.name, None if member.isdir() else archive.extractfile(member)
            # tarfile takes a damaged header for the end: only zeros may follow, up to the checksum of gzip.
            end = stream.tell()
            while block := stream.read(BLOCK):
                if block.strip(b"\0"):
                    raise StructureError(path, "damaged archive", f"no valid header at byte {archive.offset}")
            if stream.tell() == end:
                raise StructureError(path, "damaged archive", "no end of the archive")


def _zip_files(path, root: Path, limit: int):
    """Yield the name of every member and its content, None for a folder."""
    with reading(path), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for number, member in enumerate(members, 1):
            _accept(path, member, member.filename, member.filename.endswith("/"), number)
        _within(path, sum(member.file_size for member in members), limit)
        for member in members:  # opened, it ends after the announced size, and compares the checksum
            yield member.filename, None if member.filename.endswith("/") else archive.open(member)
