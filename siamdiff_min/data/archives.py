"""Archives from elsewhere: which of their members are read at all, and how one is unpacked without trusting it.

Archives of structures are read in place (`structures.py`), and their hostile members are skipped. Archives of labelled
sets are unpacked; a single hostile member refuses the whole archive.
"""

import gzip
import shutil
import stat
import tarfile
import zipfile
from pathlib import Path

from ..files import SiamDiffError, StructureError, structure_errors, writing

MAX_MEMBERS = 50_000
MAX_RATIO = 100  # unpacked to packed: structure files shrink to a fifth, zeros to a thousandth
SLACK = 2**20  # bytes that may come out whatever the ratio, for small archives of nearly empty files
MAX_NAME = 1000  # characters


def refused(member: tarfile.TarInfo | zipfile.ZipInfo) -> str | None:
    """Why a member is not read; None if it is, or is a folder."""
    if isinstance(member, tarfile.TarInfo):
        name, plain = member.name, member.isdir() or (member.isreg() and not member.issparse())
    else:
        name, plain = member.filename, stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    if not plain:
        return "not a regular file"
    if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
        return "path outside the archive"
    return "name too long" if len(name) > MAX_NAME else None


def tar_members(path: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The regular files of a `.tar` as (name, offset, size); all else but folders as (archive:member, reason).

    Only the bytes of a member are ever used; its name is a mere label. Raises StructureError if the tar is damaged.
    """
    members, skipped, last = [], [], -1
    with structure_errors(path, "damaged archive"), tarfile.open(path, "r:") as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # tarfile keeps every header, a gigabyte for a million members
            if member.size < 0 or member.offset <= last:  # it would be listed without end
                raise ValueError(f"a member of {member.size} bytes")
            last = member.offset
            if member.isdir():
                continue
            if reason := refused(member):
                skipped.append((f"{path}:{member.name}", reason))
            else:
                members.append((member.name, member.offset_data, member.size))
        # tarfile takes a damaged header for the end; the true end is a block of zeros, or of the file.
        archive.fileobj.seek(archive.offset)
        if archive.fileobj.read(512).strip(b"\0"):
            raise ValueError(f"no valid header at byte {archive.offset}")
    return members, skipped


def zip_members(path: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]]]:
    """The same of a `.zip`. Its members are read by name, so their offsets are 0."""
    with structure_errors(path, "damaged archive"), zipfile.ZipFile(path) as archive:
        listed = [(member, refused(member)) for member in archive.infolist() if not member.filename.endswith("/")]
    members = [(member.filename, 0, member.file_size) for member, reason in listed if reason is None]
    return members, [(f"{path}:{member.filename}", reason) for member, reason in listed if reason]


def unpack(path: Path, folder: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` (told apart by their content) into a new folder; if it fails, there is none.

    Raises:
        StructureError: the archive is damaged, or holds anything but files and folders inside `folder`, no two in one
            place, of bounded number and size.
        WriteError: the disk is full or cannot be written.
        SiamDiffError: this Python is too old to unpack archives safely.
    """
    if not hasattr(tarfile, "data_filter"):
        advice = "take Python 3.10.12, 3.11.4 or later, or unpack it yourself and give the folder to --data"
        raise SiamDiffError(f"{path} is not unpacked: this Python has no filters for archives; {advice}")
    zipped, number = zipfile.is_zipfile(path), 0
    try:
        with structure_errors(path, "damaged or refused"), writing(folder):
            _read(path, zipped)
            with zipfile.ZipFile(path) if zipped else tarfile.open(path, "r:gz") as archive:
                for number, member in enumerate(archive.infolist() if zipped else archive, 1):
                    name = member.filename if zipped else member.name
                    reason = refused(member)
                    if number > MAX_MEMBERS:
                        reason = f"more than {MAX_MEMBERS} members"
                    elif (folder / name).is_file():
                        reason = "two members in one place"
                    if reason:
                        raise ValueError(f"{name!r:.200}: {reason}")
                    try:
                        archive.extract(member, folder, **({} if zipped else {"filter": "data"}))
                    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                        raise ValueError(f"{name!r:.200}: two members in one place") from error
            if not number:
                raise ValueError("no file in it")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, MemoryError):  # tarfile reads as much of a header as that says it has
            raise StructureError(path, "damaged or refused", "memory ran out") from error
        raise


def _read(path: Path, zipped: bool) -> None:
    """Raise ValueError if too much comes out of an archive; of gzip, also compare the checksum at its end."""
    limit, size = SLACK + MAX_RATIO * path.stat().st_size, 0
    if zipped:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    else:
        with gzip.open(path) as content:
            while size <= limit and (piece := content.read(2**20)):
                size += len(piece)
    if size > limit:
        raise ValueError(f"more than {limit} bytes come out of it")
