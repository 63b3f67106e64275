"""Foldcomp: `.fcz` files and databases give the structures that the package itself unpacks."""

import gzip
import tarfile

import pytest
from helpers import assert_equal

from siamdiff_min.files import StructureError
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools.embed.embedder import structures_in

foldcomp = pytest.importorskip("foldcomp")
NAMES = ("1A19_A", "1A2K_B", "19HC_A")


@pytest.fixture
def packed(tmp_path):
    """Three chains as files, and as a database of three files in the format of the program."""
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        texts = {n: gzip.decompress(archive.extractfile(f"{n}.pdb.gz").read()).decode() for n in NAMES}
    content = {name: foldcomp.compress(f"{name}.pdb", text) for name, text in texts.items()}
    files, base = tmp_path / "files", tmp_path / "base"
    for folder in (files, base):
        folder.mkdir()
    for name, data in content.items():
        (files / f"{name}.fcz").write_bytes(data)
    (base / "set").write_bytes(b"".join(content.values()))
    (base / "set.dbtype").write_bytes(b"\x0c\0\0\0")
    sizes = [*map(len, content.values())]
    (base / "set.index").write_text("".join(f"{k}\t{sum(sizes[:k])}\t{size}\n" for k, size in enumerate(sizes)))
    (base / "set.lookup").write_text("".join(f"{k}\t{name}\t0\n" for k, name in enumerate(content)))
    return files, base


def test_files_and_databases_give_the_same_proteins(packed):
    files, base = packed
    texts = {name: foldcomp.decompress((files / f"{name}.fcz").read_bytes())[1] for name in NAMES}
    with foldcomp.open(base / "set") as database:
        assert len(database) == 3  # the program itself reads what we wrote
    for path, skipped in ((files, 0), (base, 3), (base / "set", 0)):
        store = open_store(path, workers=1)
        assert store.names == sorted(NAMES) and store.meta["skipped"].get("not a structure file", 0) == skipped
        assert store.path.parent == path.with_name(f"{path.name}.store")
        for i, name in enumerate(store.names):
            assert_equal(store[i], read_structure(name, data=texts[name]).protein)
    assert [name for name, _ in structures_in(base / "set", [])] == store.names


def test_what_is_damaged_fails_by_name(packed):
    """Foldcomp itself may end the process that reads."""
    files, base = packed
    (files / "bad.fcz").write_bytes(b"")
    (files / "half.fcz").write_bytes((files / "1A19_A.fcz").read_bytes()[:300])
    store = open_store(files, workers=1)
    assert store.names == sorted(NAMES) and sum(store.meta["failed"].values()) == 2
    (base / "set").write_bytes((base / "set").read_bytes()[:-10])
    store = open_store(base, workers=1)
    assert len(store) == 2 and store.meta["failed"] == {"truncated": 1}
    (base / "set").write_bytes(b"FCM" * 33_333)
    with pytest.raises(StructureError, match=r"set:19HC_A\.fcz: no atoms in it"):
        find_structures(base).sources[0].read()
