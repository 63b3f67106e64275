"""Finding structures in folders and archives, hostile archives, and the bundle."""

import errno
import gzip
import os
import zipfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers import as_mmcif, as_pdb, reasons, residue, tar

from siamdiff_min.encoders.weights import load_encoder
from siamdiff_min.files import MachineError, StructureError
from siamdiff_min.protein.constants import RESIDUE_INDEX
from siamdiff_min.reading.endings import ARCHIVES, ENDINGS, UNREAD
from siamdiff_min.reading.pool import read_all
from siamdiff_min.reading.sources import LOCK, bundle_index, bundle_path, data_files, find_structures
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools.table.labels import structure_called

TEXT = b"".join(
    b"ATOM  %5d  CA  GLY A%4d    %8.3f   0.000   0.000  1.00  0.00           C\n" % (i, i, 3.8 * i) for i in range(1, 4)
)


def write(path: Path, members) -> Path:
    """A folder or an archive of any kind, by the ending of its path."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members:
                archive.writestr(name, data)
    elif ".tar" in path.name:
        path.write_bytes(tar(members))
    else:
        for name, data in members:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return path


def names(listing):
    return [source.name for source in listing.sources]


def test_a_folder_is_searched_recursively_and_sorted(tmp_path):
    files = ["b.pdb", "a.cif", "x/c.ent", "x/y/d.pdb.gz", "x/Z.CIF.gz", "readme.txt", ".pdb", "my.store/f.pdb"]
    stores = LOCK, f"{'0' * 16}/e.pdb", f"{'0' * 16}-{'1' * 12}/e.pdb", "g.pdb", f"sub/{'0' * 16}/h.pdb"
    write(tmp_path, [(file, TEXT) for file in (*files, *(f"data.store/{file}" for file in stores))])
    listing = find_structures(tmp_path)
    assert names(listing) == ["Z", "a", "b", "c", "d", "f"]
    assert reasons(listing) == {"not a structure file": 2}  # stores are not searched, what is only called so is
    (tmp_path / "x" / "a.cif").write_bytes(TEXT)
    assert [name for name in names(find_structures(tmp_path)) if "a" in name] == ["a", "x/a"]


def test_hidden_files_of_macos_are_skipped(tmp_path):
    write(tmp_path, [("a.pdb", TEXT), ("._a.pdb", b"\0\5\x16\7"), ("__MACOSX/b.pdb", b"\0\5\x16\7")])
    write(tmp_path / "x.tar", [("c.pdb", TEXT), ("._c.pdb", b"\0\5\x16\7"), ("__MACOSX/._c.pdb", b"")])
    listing = find_structures(tmp_path)
    assert names(listing) == ["a", "c"] and reasons(listing) == {"a hidden file of macOS": 4}


def test_a_folder_of_archives_and_a_single_file(tmp_path):
    write(tmp_path / "one.tar", [("a.pdb", TEXT)])
    write(tmp_path / "two.tar", [("a.pdb", TEXT), ("b.pdb", TEXT)])
    write(tmp_path, [("c.pdb", TEXT)])
    before = data_files(tmp_path)
    write(tmp_path / "six.zip", [("sub/d.pdb", TEXT)])
    listing = find_structures(tmp_path)
    assert names(listing) == ["b", "c", "d", "one/a", "two/a"] and data_files(tmp_path).items() > before.items()
    assert listing.sources[2].read().protein.num_residues == 3
    (alone,) = find_structures(tmp_path / "c.pdb").sources
    assert alone.name == "c" and alone.read().protein.num_residues == 3


def test_processes_that_read_a_zip_at_once_do_not_move_each_others_place(tmp_path):
    """Also if the process that they are forked from has read it before."""
    members = [(f"{i}.pdb", b"REMARK %d\n" % i * 1000 + TEXT) for i in range(100)]
    sources = find_structures(write(tmp_path / "a.zip", members)).sources
    sources[0].read()
    assert [str(x) for x in read_all(sources, 2) if isinstance(x, StructureError)] == []


def test_damaged_archives_are_an_error_that_names_them(tmp_path):
    whole = write(tmp_path / "x.tar", [("a.pdb", TEXT), ("b.pdb", TEXT), ("c.pdb", TEXT)]).read_bytes()
    path = tmp_path / "y.tar"
    second = 512 + 512  # the first member is a header and one block
    for data in (b"", b"not an archive" * 100, whole[: second + 700], whole[: second + 100], b"\x1f\x8b" + whole):
        path.write_bytes(data)
        for place in (path, tmp_path):
            with pytest.raises(StructureError, match=r"y\.tar: damaged archive"):
                find_structures(place)
    path.write_bytes(whole[:second] + b"\1" * 512 + whole[second + 512 :])  # tarfile would end the list here
    with pytest.raises(StructureError, match="no valid header at byte 1024"):
        find_structures(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_fault_of_the_machine_is_none_of_a_folder(tmp_path, monkeypatch, number):
    """A folder that cannot be entered is skipped by name; a disk that fails ends it all."""

    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "scandir", fails)
    if number == errno.EACCES:
        assert reasons(find_structures(tmp_path)) == {"folder that is not entered": 1}
    else:
        with pytest.raises(MachineError, match=rf"{tmp_path.name}: {os.strerror(number)}; that is a fault of the mach"):
            find_structures(tmp_path)


def test_the_bundle_holds_what_its_index_says_and_credits_every_entry():
    index = bundle_index()
    listing = find_structures(bundle_path())
    assert len(listing.sources) == len(index) == 217
    assert Counter(row["set"] for row in index) == {"structure": 180, "complex": 37}
    by_file = {f"{os.path.basename(s.path).removesuffix('.tar')}/{s.member}": s for s in listing.sources}
    assert by_file.keys() == {row["file"] for row in index}
    text = (bundle_path() / "README.md").read_text()
    assert "CC0 1.0" in text
    for row in index:
        package = row["source_package"].partition(":")[2]
        assert f"| {row['file']} | {row['pdb_id']} | {row['chains']} | {package} (" in text


@pytest.mark.parametrize("newer, older", [(TEXT, TEXT * 2), (TEXT * 2, TEXT)], ids=["smaller", "larger"])
@pytest.mark.parametrize("ending", [".tar", ".zip"])
def test_of_a_member_that_is_there_twice_the_last_counts(tmp_path, ending, newer, older):
    """`tar -r` adds the new one at the end."""
    members = [("x.pdb", older), ("notes", b"1"), ("y.pdb", TEXT), ("notes", b"2"), ("x.pdb", newer)]
    with pytest.warns(UserWarning, match="Duplicate name") if ending == ".zip" else nullcontext():
        path = write(tmp_path / f"a{ending}", members)
    listing = find_structures(path)
    assert names(listing) == ["x", "y"] and reasons(listing) == {
        "an older member of the same name": 2,
        "not a structure file": 1,
    }
    assert listing.sources[0].size == len(newer) == len(listing.sources[0].member_bytes())


def test_biological_assemblies_are_read(tmp_path):
    files = "a.pdb1", "b.pdb1.gz", "b.cif"
    write(tmp_path, [(file, gzip.compress(TEXT) if file.endswith("gz") else TEXT) for file in files])
    listing = find_structures(tmp_path)
    assert names(listing) == ["a", "b"] and listing.sources[0].read().protein.num_residues == 3
    assert listing.sources[1].path.endswith("b.cif") and reasons(listing) == {"another file of the same structure": 1}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["data", "a.tar", "a.zip"])
def test_two_files_of_one_name_and_different_structures_are_both_read(tmp_path, packed, kind):
    """p.pdb and p.CIF are one structure if atoms share a place. Otherwise each file's name means its own."""
    one, other = residue("GLY", 1) + residue("SER", 2), residue("VAL", 31)
    pack, end = (gzip.compress, ".gz") if packed else (bytes, "")
    contents = {
        "same.pdb": as_pdb(one), "same.cif": as_mmcif(one), "p.pdb": as_pdb(one), "p.CIF": as_mmcif(other),
        "p.mmcif": as_mmcif(other), "no.pdb": as_pdb(one), "no.cif": "<html>",
    }  # fmt: skip
    members = [(f"{name}{end}", pack(text.encode())) for name, text in contents.items()]
    listing = find_structures(write(tmp_path / kind, members))
    assert names(listing) == ["no", "p", f"p.CIF{end}", "same"]
    assert reasons(listing) == {"another file of the same structure": 3}
    types = [source.read().protein.residue_type.tolist() for source in listing.sources[1:3]]
    assert types == [[RESIDUE_INDEX["GLY"], RESIDUE_INDEX["SER"]], [RESIDUE_INDEX["VAL"]]]
    written = [f"p.pdb{end}", "p", f"p.CIF{end}", f"same.cif{end}", "new.pdb"]
    assert [structure_called(name, names(listing)) for name in written] == ["p", "p", f"p.CIF{end}", "same", "new"]


def test_files_without_an_ending_are_read_by_their_content(tmp_path):
    """As those of CATH and CASP: named alone, in a folder or archive where no file has an ending that is known."""
    contents = {"1oaiA00": TEXT, "T1024TS001_1": b"PFRMAT TS\nMODEL 1\n" + TEXT + b"TER\nEND\n", "README": b"atoms\n"}
    contents |= {"T1024.v2": gzip.compress(as_mmcif(residue("GLY", 1)).encode())}
    for kind in ("data", "a.tar"):
        listing = find_structures(write(tmp_path / kind, contents.items()))
        assert names(listing) == ["1oaiA00", "README", "T1024.v2", "T1024TS001_1"]
        readme = listing.sources.pop(1)
        assert [source.read().protein.num_residues for source in listing.sources] == [3, 1, 3]
        with pytest.raises(StructureError, match="no atoms in it"):
            readme.read()
    assert len(data_files(tmp_path / "data")) == 4 and open_store(tmp_path / "data" / "1oaiA00").names == ["1oaiA00"]
    (tmp_path / "data" / "b.pdb").write_bytes(TEXT)
    assert names(find_structures(tmp_path / "data")) == ["b"]
    b, one, archive = tmp_path / "data" / "b.pdb", tmp_path / "data" / "1oaiA00", tmp_path / "a.tar"
    assert names(find_structures(b, one)) == ["1oaiA00", "b"]
    assert names(find_structures(b, archive)) == ["1oaiA00", "README", "T1024.v2", "T1024TS001_1", "b"]


def test_formats_that_are_not_read_are_named(tmp_path):
    files = ["a.mmtf", "b.pqr", "c.pdb.BZ2", "d.tar.gz", "e.pqr"]
    listing = find_structures(write(tmp_path, [(file, b"") for file in files]))
    endings = [f".{file.lower().partition('.')[2]}".removeprefix(".pdb") for file in files]
    advice = "unpack or convert it to PDB or mmCIF, plain or .gz"
    expected = {file: f"{end} is not read: {advice}" for file, end in zip(files, endings)}
    assert {Path(file).name: reason for file, reason in listing.skipped} == expected
    with pytest.raises(StructureError, match=r"e\.pqr: no structure in it \(\.pqr is not read: unpack or convert it"):
        load_encoder("siamdiff-residue", "cpu").embed(tmp_path / "e.pqr")


def test_every_ending_has_its_row_in_the_page():
    """Add a new format to docs/data.md."""
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    known = {*ENDINGS, *UNREAD, *ARCHIVES} - {f"{ending}.gz" for ending in (*ENDINGS, *UNREAD)}
    assert [ending for ending in sorted(known) if f"`{ending}`" not in page] == []
