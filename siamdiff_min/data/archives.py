"""Archives from elsewhere: which of their members are read at all, and how one is unpacked without trusting it.

Structure archives are read in place (`structures.py`), there a hostile member is skipped. `unpack` is for the
archives of the labelled sets: all files as they were packed, or a refusal of the whole archive.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from ..files import SiamDiffError, StructureError, structure_errors

MAX_MEMBERS = 50_000
MAX_UNPACKED = 2**38  # of all files together
MAX_RATIO = 100  # unpacked to packed: structure files shrink to a fifth, zeros to a thousandth
SLACK = 2**20  # bytes that may come out whatever the ratio, for small archives of nearly empty files
MAX_NAME = 1000  # characters; a table of names takes the width of the longest
BLOCK = 2**18  # bytes read at once; no header may be larger


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
    if len(name) > MAX_NAME:
        return "name too long"
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
    with structure_errors(path, "damaged archive"), tarfile.open(path, "r:", tarinfo=_Header) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile keeps every header, a gigabyte for a million members
            if member.size < 0 or member.offset <= last:  # it would be listed without end
                raise StructureError(path, "damaged archive", f"a member of {member.size} bytes")
            last = member.offset
            if (reason := refused(member)) is None:
                members.append((member.name, member.offset_data, member.size))
            elif not member.isdir():
                skipped.append((f"{path}:{member.name}", reason))
        # tarfile takes a damaged header for the end; the true end is a block of zeros, or of the file.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(512).strip(b"\0"):
            raise StructureError(path, "damaged archive", f"no valid header at byte {archive.offset}")
    return members, skipped


def zip_members(path: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The same of a `.zip`. Its members are read by name, so their offsets are 0."""
    with structure_errors(path, "damaged archive"), zipfile.ZipFile(path) as archive:
        listed = [(member, refused(member)) for member in archive.infolist() if not member.filename.endswith("/")]
    members = [(member.filename, 0, member.file_size) for member, reason in listed if reason is None]
    return members, [(f"{path}:{member.filename}", reason) for member, reason in listed if reason]


# ---- unpacking -------------------------------------------------------------------------------------------------------


def unpack(path: Path, folder: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` (told apart by their first bytes) into a new folder.

    The whole archive is read first. Nothing of it is written unless its checksums are right and it holds nothing but
    files and folders inside `folder`, no two in one place, of bounded number and size.

    Raises:
        StructureError: the archive is damaged or refused.
        SiamDiffError: this Python is too old to unpack archives safely.
        OSError: the disk is full or cannot be written. What is in the folder then is to be thrown away.
    """
    if not hasattr(tarfile, "data_filter"):
        advice = "take Python 3.10.12, 3.11.4 or later, or unpack it yourself and give the folder to --data"
        raise SiamDiffError(f"{path} is not unpacked: this Python has no filters for archives; {advice}")
    with open(path, "rb") as file:
        zipped = file.read(2) == b"PK"
    with structure_errors(path, "damaged or refused"):
        _check(_zip_members(path) if zipped else _tar_gz_members(path), _most_bytes(path))
    with zipfile.ZipFile(path) if zipped else tarfile.open(path, tarinfo=_Header) as archive:
        archive.extraction_filter = tarfile.data_filter  # of tars; a zip has nothing that needs one
        archive.extractall(folder)


def _most_bytes(path: Path) -> int:
    return min(MAX_UNPACKED, SLACK + MAX_RATIO * path.stat().st_size)


def _zip_members(path: Path) -> Iterator[tuple[str, int, bool, str | None]]:
    """Name, size and whether it is a folder of every member, and why it is refused, if it is; then read all of it."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            yield member.filename, member.file_size, member.is_dir(), refused(member)
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged!r:.200} differs")


def _tar_gz_members(path: Path) -> Iterator[tuple[str, int, bool, str | None]]:
    with _Unzipped(path) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        for member in iter(archive.next, None):
            yield member.name, member.size, member.isdir(), refused(member)
        end = stream.seek(archive.offset)
        while block := stream.read(BLOCK):  # up to the checksum of gzip
            if block.strip(b"\0"):  # tarfile takes a damaged header for the end
                raise ValueError(f"no valid header at byte {archive.offset}")
        if stream.tell() == end:
            raise ValueError("no end of the archive")


class _Unzipped(gzip.GzipFile):
    """The content of a gzip file, within a limit of bytes: tarfile follows a header to wherever it leads."""

    def read(self, size: int = -1) -> bytes:
        data, limit = super().read(size), _most_bytes(Path(self.name))
        if self.tell() > limit:
            raise ValueError(f"more than {limit} bytes come out of it")
        return data


def _check(members: Iterable[tuple[str, int, bool, str | None]], limit: int) -> None:
    total, files, folders = 0, [], {PurePosixPath(".")}
    for number, (name, size, is_folder, reason) in enumerate(members, 1):
        if is_folder:
            reason = "path outside the archive" if _outside(name) else None
        if reason or not name.isprintable():
            raise ValueError(f"{name!r:.200}: {reason or 'control characters in a name'}")
        total += size
        if size < 0 or total > limit:
            raise ValueError(f"more than {limit} bytes come out of it")
        if number > MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} members")
        place = PurePosixPath(os.path.normpath(name))
        folders.update(place.parents, [place] * is_folder)
        files += [place] * (not is_folder)
    if not files:
        raise ValueError("no file in it")
    if len({*files}) < len(files) or folders & {*files}:
        raise ValueError("two members in one place")
