"""Unpacking archives that nobody vouches for: all of it, or a StructureError and nothing outside the folder."""

import gzip
import io
import os
import random
import stat
import struct
import tarfile
import time
import zipfile
from collections import Counter

import pytest
from conftest import needs_filters

from siamdiff_min.data import archives
from siamdiff_min.data.archives import tar_members, unpack
from siamdiff_min.files import SiamDiffError, StructureError

pytestmark = needs_filters
DATA = random.Random(0).randbytes(3000)
FILES = {"set/data/train/data.mdb": DATA, "set/empty.txt": b"", "set/a.txt": b"atom\n" * 999}


def tar(path, members, gz=True):
    """A tar of (name or TarInfo, bytes); None for a folder."""
    with tarfile.open(path, "w:gz" if gz else "w") as archive:
        for name, data in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o000
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data or b""))
    return path


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(f"{name}/" if data is None else name, data or b"")
    return path


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def pax_named(name):
    info = tarfile.TarInfo("a")
    info.pax_headers = {"path": name}
    return info


def zip_special(name, mode):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


def content(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def refuses(root, archive, reason):
    """The archive is refused, and nothing of it is there afterwards."""
    root.mkdir(exist_ok=True)
    before = {p for p in root.parent.rglob("*")}
    (root / "deep").mkdir()
    with pytest.raises(SiamDiffError, match=reason):
        unpack(archive, root / "deep" / "out")
    (root / "deep").rmdir()
    assert {p for p in root.parent.rglob("*")} == before


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_all_files_come_out(tmp_path, pack, prefix):
    members = [*((prefix + name, data) for name, data in FILES.items()), (prefix + "set/nothing", None)]
    archive = pack(tmp_path / "x.part", [(prefix + "set", None), *members])
    unpack(archive, tmp_path / "out")
    assert content(tmp_path / "out") == FILES and (tmp_path / "out" / "set" / "nothing").is_dir()
    assert all(os.access(p, os.R_OK | os.W_OK) for p in (tmp_path / "out").rglob("*"))


OUTSIDE = ["../x", "a/../../x", "/tmp/absolute-x", "..\\x", "\\x", "a/.."]
TARS = {
    **{f"outside {i}": ([(name, b"x")], "path outside") for i, name in enumerate(OUTSIDE)},
    "folder outside": ([("../x", None), ("a", b"")], "path outside"),
    "symlink out": ([(special("a", tarfile.SYMTYPE, "/"), b""), ("a/x", b"x")], "not a regular file"),
    "symlink inside": ([("b", b""), (special("a", tarfile.SYMTYPE, "b"), b"")], "not a regular file"),
    "hard link": ([("b", b""), (special("a", tarfile.LNKTYPE, "b"), b"")], "not a regular file"),
    "device": ([(special("a", tarfile.CHRTYPE), b"")], "not a regular file"),
    "pipe": ([(special("a", tarfile.FIFOTYPE), b"")], "not a regular file"),
    "twice": ([("a", b"1"), ("b", b""), ("a", b"2")], "two members"),
    "twice in other words": ([("a", b"1"), ("./a", b"2")], "two members"),
    "file, then folder": ([("a", b"1"), ("a/b", b"2")], "two members"),
    "folder, then file": ([("a/b", b"1"), ("a", b"2")], "two members"),
    "no name": ([(".", b"1")], "two members"),
    "odd name": ([(pax_named("a\0b"), b"1")], "embedded null"),
    "nothing": ([], "no file in it"),
}
ZIPS = {
    **{f"outside {i}": ([(name, b"x")], "path outside") for i, name in enumerate(OUTSIDE)},
    "folder outside": ([("../x", None), ("a", b"")], "path outside"),
    "symlink": ([(zip_special("a", stat.S_IFLNK | 0o777), b"/etc/passwd")], "not a regular file"),
    "device": ([(zip_special("a", stat.S_IFCHR), b"")], "not a regular file"),
    "file, then folder": ([("a", b"1"), ("a/b", b"2")], "two members"),
    "twice in other words": ([("a", b"1"), ("./a", b"2")], "two members"),
    "nothing": ([], "no file in it"),
}


@pytest.mark.parametrize("case", TARS)
def test_hostile_tars(tmp_path, case):
    members, reason = TARS[case]
    refuses(tmp_path / "root", tar(tmp_path / "x.tar.gz", members), reason)
    assert not os.path.lexists("/tmp/absolute-x")


@pytest.mark.parametrize("case", ZIPS)
def test_hostile_zips(tmp_path, case):
    members, reason = ZIPS[case]
    refuses(tmp_path / "root", zipped(tmp_path / "x.zip", members), reason)
    assert not os.path.lexists("/tmp/absolute-x")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_a_zip_with_one_name(tmp_path):
    refuses(tmp_path / "root", zipped(tmp_path / "x.zip", [("a", b"1"), ("a", b"2")]), "two members")


def test_encrypted_and_unknown_compression(tmp_path):
    for offset, value, reason in ((8, 1, "encrypted"), (10, 99, "compression")):
        path = zipped(tmp_path / "x.zip", [("a", b"1" * 99)])
        data = bytearray(path.read_bytes())
        struct.pack_into("<H", data, data.index(b"PK\1\2") + offset, value)
        path.write_bytes(data)
        refuses(tmp_path / reason, path, reason)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_bombs(tmp_path):
    """10 MB of zeros are 10 KB of gzip; what comes out of it is bounded, and so is the time."""
    zeros = b"\0" * 10**7
    for name, pack in (("x.tar.gz", tar), ("x.zip", zipped)):
        refuses(tmp_path / name.replace(".", "-"), pack(tmp_path / name, [("a", zeros)]), "bytes come out of it")
        many = [(f"a{i}", b"\0" * 10**5) for i in range(100)]  # none of them is large
        refuses(tmp_path / f"{name}-many", pack(tmp_path / name, many), "bytes come out of it")


def test_a_header_that_claims_a_gigabyte(tmp_path):
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
        info = special("a", kind)
        info.size = 2**30
        (tmp_path / "x.tar.gz").write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 10**6))
        refuses(tmp_path / kind.decode(), tmp_path / "x.tar.gz", "damaged or refused")


def test_a_header_that_claims_more_than_memory(tmp_path):
    header = bytearray(special("a", tarfile.GNUTYPE_LONGNAME).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\x80" + (2**60).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(bytes(header) + b"\0" * 2048))
    refuses(tmp_path / "root", tmp_path / "x.tar.gz", "memory ran out")


def test_headers_of_headers(tmp_path):
    """Each announces a longer name for the next: tarfile follows them by recursion."""
    info = special("././@LongLink", tarfile.GNUTYPE_LONGNAME)
    info.size = 2
    chain = (info.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 3000
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(chain + b"\0" * 1024, 1))
    refuses(tmp_path / "root", tmp_path / "x.tar.gz", "damaged or refused")
    (tmp_path / "x.tar").write_bytes(chain + b"\0" * 1024)
    with pytest.raises(StructureError, match="damaged archive"):
        tar_members(str(tmp_path / "x.tar"))


def sparse(blocks: int) -> bytes:
    """A header that goes on in further blocks, each of which announces another one."""
    header = bytearray(special("a", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + (b"00000000001\0" * 42 + b"\1".ljust(8, b"\0")) * blocks


def test_a_header_without_end(tmp_path):
    """Of a few kilobytes of gzip; it ends at the limit, or where the file does."""
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(sparse(10)))
    refuses(tmp_path / "short", tmp_path / "x.tar.gz", "damaged or refused")
    (tmp_path / "x.tar").write_bytes(sparse(10))
    with pytest.raises(StructureError, match="damaged archive"):
        tar_members(str(tmp_path / "x.tar"))
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(sparse(10**4)))
    refuses(tmp_path / "long", tmp_path / "x.tar.gz", "bytes come out of it")


def test_too_many_members(tmp_path, monkeypatch):
    """10^4 folders are a few kilobytes of gzip; it ends at the limit, not at their end."""
    info = tarfile.TarInfo("a")
    info.type = tarfile.DIRTYPE
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(info.tobuf(tarfile.GNU_FORMAT) * 10**4, 1))
    assert 19_198 < archives.MAX_MEMBERS < 10**5  # the EC set has 19,198 structures
    monkeypatch.setattr(archives, "MAX_MEMBERS", 100)
    seen, why = [], archives.refused
    monkeypatch.setattr(archives, "refused", lambda member: (seen.append(member), why(member))[1])
    refuses(tmp_path / "number", path, "more than 100 members")
    assert len(seen) == 101
    names = [f"{i}" for i in range(101)]
    refuses(tmp_path / "zip", zipped(tmp_path / "x.zip", [(name, b"") for name in names]), "more than 100 members")
    unpack(zipped(tmp_path / "x.zip", [(name, b"") for name in names[1:]]), tmp_path / "all")
    assert len(content(tmp_path / "all")) == 100


# ---- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [tar, zipped])
def test_every_damage_is_noticed(tmp_path, pack):
    """Cuts, flips and splices: the same files as before, or a StructureError."""
    archive = pack(tmp_path / "x", list(FILES.items()))
    whole, draw, outcomes, started = archive.read_bytes(), random.Random(0), Counter(), time.monotonic()
    for trial in range(200):
        data, place = bytearray(whole), draw.randrange(len(whole))
        if trial % 3 == 0:
            del data[place:]
        elif trial % 3 == 1:
            data[place] ^= 1 << draw.randrange(8)
        else:
            data[place:place] = data[draw.randrange(len(data)) :][: 1 + draw.randrange(40)]
        archive.write_bytes(data)
        try:
            unpack(archive, tmp_path / f"out-{trial}")
        except StructureError as error:
            assert error.path == str(archive)
            outcomes["refused"] += 1
        else:
            found = content(tmp_path / f"out-{trial}")
            # names, and how many there are, are beyond the checksums of a zip: that takes one of the whole archive
            assert found == FILES or (pack is zipped and set(found.values()) <= set(FILES.values()))
            outcomes["same"] += 1
    assert outcomes["refused"] > 150 and time.monotonic() - started < 60


def test_a_tar_that_ends_within_a_member(tmp_path):
    plain = tar(tmp_path / "x.tar", [("a", b"x" * 512), ("b", b"y" * 512)], gz=False).read_bytes()
    path = tmp_path / "x.tar.gz"
    for data in (plain[:1536], plain[:1600], plain[:512]):
        path.write_bytes(gzip.compress(data))
        refuses(tmp_path / f"root-{len(data)}", path, "damaged or refused")
    path.write_bytes(gzip.compress(plain[:2048] + b"\0" * 1024))
    unpack(path, tmp_path / "good")
    assert content(tmp_path / "good").keys() == {"a", "b"}


def test_without_filters_nothing_is_unpacked(tmp_path, monkeypatch):
    """Python 3.10 before 3.10.12 and 3.11 before 3.11.4 have none."""
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(SiamDiffError, match=r"x\.tar\.gz is not unpacked: .* take Python 3\.10\.12, 3\.11\.4 or later"):
        unpack(tar(tmp_path / "x.tar.gz", [("a", b"1")]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
