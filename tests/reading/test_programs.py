"""Files as other programs write them: mdtraj, Foldcomp, AutoDock, PDB2PQR, RDKit, AtomWorks."""

import gzip
import tarfile

import pytest
from helpers import as_mmcif, as_pdb, assert_equal, atom, residue
from test_molecules import CODES, bonded, names_of

from siamdiff_min.files import StructureError
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools.embed.embedder import structures_in


def test_a_segment_that_cuts_a_peptide_bond_is_no_molecule():
    """mdtraj reads an insertion code into the segment and writes it as one: 27, 27A, 27B of an antibody."""
    rows = bonded("ALA", 26, 0)
    for k, (kind, segment) in enumerate([("GLN", ""), ("SER", "A"), ("SER", "B")], 1):
        rows += bonded(kind, 27, k, segment=segment)
    rows += bonded("VAL", 28, 4)
    structure = read_structure("x", as_pdb(rows))
    assert structure.chain_names == ("A",) and names_of(structure) == ["ALA", "GLN", "SER", "SER", "VAL"]
    assert [code for *_, code in structure.positions] == [" ", " ", "A", "B", " "]
    assert structure.dropped == {CODES: 2}


@pytest.mark.parametrize("number", [2, 3, 9])
def test_the_last_oxygen_of_foldcomp_belongs_to_the_residue_before_it(number):
    """Its number is the count of residues, which may be that of another residue. 1.25 angstrom from C."""
    rows = bonded("ALA", 5, 0) + bonded("GLY", 2, 1) + bonded("SER", 7, 2)
    rows += [{**atom("OXT", "SER", number), "x": 2.2 * 2 + 1.4 + 0.72}]
    for write in (as_pdb, as_mmcif):
        structure = read_structure("x", write(rows))
        assert structure.dropped == {} and structure.protein.atom_residue.bincount().tolist() == [4, 4, 5]
    far = [*rows[:-1], {**rows[-1], "x": 30.0, "number": 9}]
    assert read_structure("x", as_pdb(far)).dropped == {"residues without CA": 1}


def test_formats_that_are_no_pdb_or_mmcif_are_named():
    text = as_pdb(residue("GLY", 1))
    for record in ("ROOT", "BRANCH   1   2"):
        with pytest.raises(StructureError, match="PDBQT with a torsion tree"):
            read_structure("x", f"{record}\n{text}")
    for pqr in ("ATOM  1 N MET 1 27.340 24.430 2.614 0.1592 1.8240\n", f"ATOM  1 N MET A 1{' -127.340' * 5}\n"):
        with pytest.raises(StructureError, match=r"a PQR file .*convert it to PDB"):
            read_structure("x", pqr)
    head = "data_x\nloop_\n_atom_site_label\n_atom_site_fract_x\n_atom_site_fract_y\n_atom_site_fract_z\n"
    with pytest.raises(StructureError, match=r"fractional coordinates .a cif of small molecules"):
        read_structure("x", f"{head}C1 0.1 0.2 0.3\n")


def test_coordinates_that_are_not_numbers_are_named():
    text = as_mmcif(residue("GLY", 1) + residue("ALA", 2, x=2.2)).replace(" 2.325 ", " nan ")
    with pytest.raises(StructureError, match=r"out of range \(.*: CA of ALA 2 of chain 'A'\)"):
        read_structure("x", text)


def test_hydrogens_of_an_inserted_residue_are_hydrogens_alone():
    """RDKit numbers them without the code."""
    rows = residue("GLY", 1) + residue("SER", 1, code="A", x=3.2) + residue("SER", 2, ("H", "HA"))
    assert read_structure("x", as_pdb(rows)).dropped == {"hydrogens": 2}


# ---- foldcomp: `.fcz` files and databases give the structures that the package itself unpacks ------------------------


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
    (base / "set").write_bytes(bytes(99_999))
    with pytest.raises(StructureError, match=r"damaged Foldcomp data \(it begins with"):
        find_structures(base).sources[0].read()
