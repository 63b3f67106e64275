"""What was read by half: several molecules under one chain id, names of force fields, numbers beyond 9999."""

from contextlib import nullcontext

import pytest
from helpers import as_mmcif, as_pdb, assert_equal, atom, residue

from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.reading.parse import read_structure

ONE, TWO = ("GLY", "ALA", "SER"), ("TRP", "ALA", "LYS", "VAL")


def molecule(names, x, **options):
    """Residues 1, 2, ... from x on, 3.64 angstrom from CA to CA."""
    return [row for i, name in enumerate(names, 1) for row in residue(name, i, x=x + 2.1 * i, **options)]


def names_of(structure):
    return [RESIDUES[t] for t in structure.protein.residue_type]


def test_a_name_of_a_chain_is_never_given_twice():
    one, two = molecule(ONE, 0.0, segment="X", chain="A"), molecule(TWO, 50.0, segment="", chain="A")
    assert read_structure("x", as_pdb(one + two).encode()).chain_names == ("A_X", "A")
    rows = molecule(("VAL",), 99.0, chain="A_2", label="Z")
    rows += molecule(ONE, 0.0, label="2") + molecule(TWO, 50.0, label="3")
    assert read_structure("x", as_mmcif(rows).encode()).chain_names == ("A_2", "A_2_", "A_3")


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_what_nothing_tells_apart_is_refused_by_name(write):
    """Numbers that start again."""
    with pytest.raises(StructureError, match=r"^dimer: the same residue twice \(chain A 1\)$"):
        read_structure("dimer", write(molecule(ONE, 0.0) + molecule(TWO, 50.0)).encode())


SIDE = {"N": 0.0, "CA": 0.7, "C": 1.4, "O": 1.5, "CB": 0.9}  # x; y and z change as x does, so N to CA has 1.2 A


def bonded(kind, number, k, names=("N", "CA", "C", "O"), **options):
    """Residue k of a straight chain: 1.39 A from C to N, 3.81 from CA to CA."""
    return [atom(name, kind, number, x=2.2 * k + SIDE[name], **options) for name in names]


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_residues_that_lost_their_insertion_codes_are_refused(write):
    """27, 27, 27, as some programs write 27, 27A, 27B."""
    rows = [row for k in range(3) for row in bonded("SER", 27, k)]
    with pytest.raises(StructureError, match=r"^x: the same residue twice \(chain A 27\)$"):
        read_structure("x", write(rows))


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
@pytest.mark.parametrize("name", ["ALA", "LEU"])
@pytest.mark.parametrize("first, second, apart, kept", [
    ("A", "B", 5.0, True), (" ", "B", 5.0, True), (" ", " ", 0.5, True), (" ", " ", 0.6, False), ("A", "A", 5.0, False),
])  # fmt: skip
def test_an_alternative_has_a_mark_or_its_ca_in_the_same_place(write, name, first, second, apart, kept):
    """x, y and z move by `apart`: 0.5 makes 0.87 angstrom, 0.6 makes 1.04."""
    rows = residue("ALA", 1, alt=first, occ=0.6, x=0.0) + residue(name, 1, alt=second, occ=0.4, x=apart)
    with nullcontext() if kept else pytest.raises(StructureError, match="the same residue twice"):
        assert names_of(read_structure("x", write(rows).encode())) == ["ALA"]


PLAIN = molecule(ONE, 25.0) + residue("ZN", 9, ("ZN",), het=True)


@pytest.mark.parametrize("number", ["****", "2710", "270F", "A000", "zzzz", "    ", "-  1", "1_00", "ZZ*Z"])
@pytest.mark.parametrize("name", ["HOH", "TIP3", "POPC", "SOD", "DA"])
def test_what_is_no_amino_acid_needs_no_number(number, name):
    """VMD, CHARMM, NAMD, Phenix: stars, hexadecimal, hybrid-36 from 10,000 on."""
    rows = PLAIN + [atom("O", name, number, chain="W", x=5.0, het=het) for het in (True, False)]
    structure = read_structure("x", as_pdb(rows).encode())
    assert_equal(structure.protein, read_structure("x", as_pdb(PLAIN).encode()).protein)
    assert structure.dropped.total() >= 2  # these and the ion


@pytest.mark.parametrize(
    "parts, chains, others",
    [
        ([(ONE, "A"), (TWO, "B")], ("A", "B"), 0),
        ([(ONE, "A"), (TWO, "A")], ("A", "A_2"), 0),
        ([(ONE, " "), (TWO, " ")], ("", "_2"), 0),
        ([(ONE, "A"), (ONE, "A"), (ONE, "A")], ("A",), 2),
        ([(ONE, "A"), (TWO, "B"), (TWO, "B")], ("A", "B"), 1),
        ([(ONE, "A"), (TWO, "B"), (ONE, "A"), (TWO, "B")], ("A", "B"), 1),
    ],
    ids=["docked", "both A", "no chains", "models", "poses", "models of two parts"],
)
def test_behind_end_stands_another_molecule_or_the_same_again(parts, chains, others):
    """`cat receptor.pdb ligand.pdb`: one structure. Residues that come again are a model, and are counted."""
    text = "".join(as_pdb(molecule(names, 50.0 * k, chain=chain)) for k, (names, chain) in enumerate(parts))
    structure = read_structure("x", text)
    assert structure.chain_names == chains
    assert structure.dropped["other models"] == others
