"""Files as other programs write them: mdtraj, Foldcomp, AutoDock, PDB2PQR, RDKit, AtomWorks."""

import pytest
from helpers import as_mmcif, as_pdb, atom, residue
from test_molecules import bonded

from siamdiff_min.files import StructureError
from siamdiff_min.reading.parse import read_structure


def test_a_segment_that_cuts_a_peptide_bond_is_no_molecule():
    """mdtraj reads an insertion code into the segment and writes it as one: 27, 27A, 27B of an antibody."""
    rows = bonded("ALA", 26, 0)
    for k, (kind, segment) in enumerate([("GLN", ""), ("SER", "A"), ("SER", "B")], 1):
        rows += bonded(kind, 27, k, segment=segment)
    rows += bonded("VAL", 28, 4)
    with pytest.raises(StructureError, match=r"^x: the same residue twice \(chain A 27\)$"):
        read_structure("x", as_pdb(rows))


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


def test_pdbqt_with_a_torsion_tree_is_named():
    text = as_pdb(residue("GLY", 1))
    for record in ("ROOT", "BRANCH   1   2"):
        with pytest.raises(StructureError, match="PDBQT with a torsion tree"):
            read_structure("x", f"{record}\n{text}")


def test_coordinates_that_are_not_numbers_are_named():
    text = as_mmcif(residue("GLY", 1) + residue("ALA", 2, x=2.2)).replace(" 2.325 ", " nan ")
    with pytest.raises(StructureError, match=r"out of range \(.*: CA of ALA 2 of chain 'A'\)"):
        read_structure("x", text)


def test_hydrogens_of_an_inserted_residue_are_hydrogens_alone():
    """RDKit numbers them without the code."""
    rows = residue("GLY", 1) + residue("SER", 1, code="A", x=3.2) + residue("SER", 2, ("H", "HA"))
    assert read_structure("x", as_pdb(rows)).dropped == {"hydrogens": 2}
