"""What was read by half: several molecules under one chain id, names of force fields, numbers beyond 9999."""

from contextlib import nullcontext

import pytest
import torch
from helpers import as_mmcif, as_pdb, assert_equal, atom, residue

from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.tools.color import read_atoms

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


CODES = "numbers already taken (the residue is given an insertion code)"
SIDE = {"N": 0.0, "CA": 0.7, "C": 1.4, "O": 1.5, "CB": 0.9}  # x; y and z change as x does, so N to CA has 1.2 A


def bonded(kind, number, k, names=("N", "CA", "C", "O"), **options):
    """Residue k of a straight chain: 1.39 A from C to N, 3.81 from CA to CA."""
    return [atom(name, kind, number, x=2.2 * k + SIDE[name], **options) for name in names]


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_insertions_without_codes_are_residues_of_their_own(write):
    """27, 27, 27, as programs write 27, 27A, 27B; two of one kind, one with alternatives in its side chain."""
    rows = [
        *bonded("ALA", 26, -1),
        *bonded("GLN", 27, 0),
        *bonded("SER", 27, 1),
        atom("CB", "SER", 27, x=3.0, alt="A", occ=0.4),
        atom("CB", "SER", 27, x=3.1, alt="B", occ=0.6),
        *bonded("SER", 27, 2, SIDE),
        *bonded("VAL", 27, 3),
        *bonded("LEU", 27, 4, code="A"),
        *bonded("ALA", 28, 5),
    ]
    structure = read_structure("x", write(rows).encode())
    assert names_of(structure) == ["ALA", "GLN", "SER", "SER", "VAL", "LEU", "ALA"]
    assert [code for _, number, code in structure.positions if number == 27] == [" ", "B", "C", "D", "A"]
    assert structure.chain_names == ("A",)
    assert structure.dropped == {CODES: 3, "alternative locations": 1}
    protein = structure.protein
    assert protein.residue_index.tolist() == [*range(7)]
    assert torch.bincount(protein.atom_residue).tolist() == [4, 4, 5, 5, 4, 4, 4]
    found = protein.pos[protein.atom_residue == 2][:, 0].tolist()
    assert found == pytest.approx([2.2, 2.9, 3.6, 3.7, 3.1], abs=1e-6)


NOT_INSERTED = {
    "no bond": bonded("SER", 27, 0) + bonded("SER", 27, 1.2),  # 2.2 A from C to N
    "the bond leads back": bonded("SER", 27, 1) + bonded("SER", 27, 0),
    "alternatives along the chain": bonded("SER", 27, 0) + bonded("THR", 27, 0.63),  # 0.03 A from C to N, CA 2.4
    "atoms of two copies in turns": [
        row for pair in zip(bonded("SER", 27, 0, SIDE), bonded("SER", 27, 1, SIDE)) for row in pair
    ],
    "residues of two copies in turns": [row for n in (1, 2) for k in (0, 5) for row in bonded("ALA", n, n + k)],
    "the first without N": bonded("SER", 27, 0, ("CA", "C", "O")) + bonded("SER", 27, 1),
    "another order of atoms": bonded("SER", 27, 0, ("CA", "C", "N")) + bonded("SER", 27, 1, ("CA", "C", "N")),
    "the third without CA": bonded("SER", 1, 0) + bonded("GLY", 1, 1) + bonded("SER", 1, 2, ("N", "C")),
    "a side chain in another place": [
        *bonded("SER", 27, 0), *bonded("SER", 27, 1), *bonded("GLY", 28, 2), *bonded("SER", 27, 1, ["CB"])
    ],
    "alternatives of a backbone": bonded("SER", 27, 0) + bonded("GLY", 27, 1)
    + [{**row, "alt": alt} for row in bonded("THR", 27, 2) for alt in "AB"],
    "more than the alphabet has": [row for k in range(28) for row in bonded("GLY", 27, k)],
}  # fmt: skip


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
@pytest.mark.parametrize("case", NOT_INSERTED)
def test_what_may_be_something_else_is_refused(case, write):
    with pytest.raises(StructureError, match=r"^x: the same residue twice \(chain A \d+\)$"):
        read_structure("x", write(NOT_INSERTED[case]).encode())


def test_insertions_of_molecules_under_one_chain_id():
    """Both get the same codes, and are counted where they are asked for."""
    parts = [[row for i, n in enumerate((26, 27, 27, 28)) for row in bonded("GLY", n, i + k)] for k in (0, 50)]
    text = "".join(as_pdb(part).replace("END", "TER") for part in parts)
    both = read_structure("x", text.encode())
    assert both.chain_names == ("A", "A_2") and both.dropped == {CODES: 2}
    assert [code for *_, code in both.positions] == [" ", " ", "A", " "] * 2
    for name in both.chain_names:
        assert read_structure("x", text.encode(), chain=[name]).dropped == {CODES: 1}


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
    assert structure.dropped["other models"] == others == len(list(read_atoms("x", text))) - 1
