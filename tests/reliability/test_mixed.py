"""A folder as people have them, real entries among everything else: seen = used + skipped + failed, nothing silent."""

import gzip
import os
from collections import Counter

import pytest
from helpers import tar
from rows import as_mmcif, as_pdb, residue

from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.reading.store import open_store

ROWS = residue("GLY", 1) + residue("SER", 2) + residue("VAL", 3, chain="B")
PDB, MMCIF = as_pdb(ROWS).encode(), as_mmcif(ROWS).encode()
WATER = b"HETATM    1  O   HOH A   1       1.000   2.000   3.000  1.00  0.00           O\nEND\n"
DNA = b"".join(
    b"ATOM  %5d  P    DA A%4d    %8.3f   2.000   3.000  1.00  0.00           P\n" % (i, i, i) for i in range(1, 9)
)


def packed(source):
    """The bytes of a bundled entry, as they are in its archive."""
    with open(source.path, "rb") as archive:
        archive.seek(source.offset)
        return archive.read(source.size)


@pytest.fixture
def mixed(tmp_path):
    """The folder, and what is to become of every file in it, those inside of archives too."""
    entries = {source.name: packed(source) for source in find_structures(bundle_path()).sources[::10]}
    names = sorted(entries)
    first, second, third, *_ = (entries[name] for name in names)
    plain = gzip.decompress(first)
    files = {f"real/{name}.pdb.gz": (data, "used") for name, data in entries.items()}
    files |= {
        "x.pdb/inside a folder called x.pdb.ent": (plain, "used"),
        "SMALL.CIF.GZ": (gzip.compress(MMCIF), "used"),
        "crlf.pdb": (plain.replace(b"\n", b"\r\n"), "used"),
        "no extension on the disk": (plain, "not a structure file"),
        "README.txt": (b"where from", "not a structure file"),
        ".pdb": (plain, "not a structure file"),
        "small.pdb": (PDB, "used"),
        "small.cif": (MMCIF, "another file of the same structure"),
        "water.pdb": (WATER, "no protein in it"),
        "dna.pdb": (DNA, "no protein in it"),
        "404.pdb": (b"<!DOCTYPE html><html>Not found</html>", "an HTML or XML page, not a PDB or mmCIF file"),
        "empty.pdb": (b"", "empty"),
        "forged\nx\tused\x1b[2J.pdb": (b"", "empty"),
        "nothing inside.cif.gz": (gzip.compress(b""), "empty"),
        "cut.pdb": (plain[: len(plain) // 2].rpartition(b"\n")[0] + b"\nATOM   9999  N   AL", "truncated"),
        "cut.pdb.gz.ent.gz": (second[:-100], "damaged or truncated gzip data"),
        "flipped.pdb.gz": (third[:500] + bytes([third[500] ^ 8]) + third[501:], "damaged or truncated gzip data"),
        "stars.pdb": (plain.replace(plain[30:38], b"********"), "used"),  # of the header, not of an atom
        "nan.pdb": (PDB.replace(b"   1.000", b"     nan"), "unreadable"),
        "more stars.pdb": (PDB.replace(b"   1.000", b"********"), "unreadable"),
        "picture.ent": (bytes(range(256)) * 20, "not a text file"),
    }
    inside = {
        "a/in a tar.pdb": (plain, "used"),
        "water in a tar.pdb": (WATER, "no protein in it"),
        "../outside.pdb": (plain, "used"),  # nothing is written: a name is a mere label
        "/absolute.pdb": (plain, "used"),
        "notes": (b"", "not a structure file"),
    }
    root = tmp_path / "deep" / "data"
    for name, (data, _) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "some.tar").write_bytes(tar([(name, data) for name, (data, _) in inside.items()]))
    (root / "secret.pdb").write_bytes(plain)
    (root / "secret.pdb").chmod(0)
    readable = os.access(root / "secret.pdb", os.R_OK)  # as it is for root
    (root / "empty folder.pdb").mkdir()
    (root / "nowhere.pdb").symlink_to(root / "missing")
    (root / "elsewhere").symlink_to(root / "real")
    expected = Counter(outcome for _, outcome in [*files.values(), *inside.values()])
    others = ["not a regular file", "folder that is not entered", "used" if readable else "cannot be opened"]
    return root, expected + Counter(others)


def test_every_file_of_a_mixed_folder_is_accounted_for(mixed, tmp_path, capsys):
    root, expected = mixed
    before = sorted(tmp_path.rglob("*"))
    store = open_store(root, tmp_path / "s")
    skipped, failed, seen = Counter(store.meta["skipped"]), Counter(store.meta["failed"]), store.meta["seen"]
    assert skipped + failed == expected - Counter({"used": expected["used"]})
    assert len(store) == expected["used"] == len(set(store.names))
    assert seen == expected.total() == len(store) + skipped.total() + failed.total()
    assert f"seen {seen} = used {len(store)} + skipped {skipped.total()} (" in capsys.readouterr().err
    lines = (store.path / "failures.tsv").read_text().splitlines()[1:]
    table = [line.split("\t") for line in lines]
    assert {len(row) for row in table} == {5} and all(cell.isprintable() for row in table for cell in row)
    assert Counter(row[1] for row in table) == {"skipped": skipped.total(), "failed": failed.total()}
    assert len({row[3] for row in table}) == len(table)  # each names its file
    store.verify()
    new = {path for path in tmp_path.rglob("*") if tmp_path / "s" not in path.parents} - set(before)
    assert {path.name for path in new} == {"s"}  # nothing of the archives was written anywhere
    print(store.report_counts())  # pytest -rP
