"""What was read by half: several molecules under one chain id, names of force fields, numbers beyond 9999."""

import time

import pytest
import torch
from helpers import assert_equal
from rows import as_mmcif, as_pdb, atom, residue

from siamdiff_min.protein.constants import ATOM_NAMES, RESIDUES
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.structure import StructureError

ONE, TWO = ("GLY", "ALA", "SER"), ("TRP", "ALA", "LYS", "VAL")


def molecule(names, x, **options):
    """Residues 1, 2, ... from x on."""
    return [row for i, name in enumerate(names, 1) for row in residue(name, i, x=x + i, **options)]


def names_of(structure):
    return [RESIDUES[t] for t in structure.protein.residue_type]


def assert_both(structure, names):
    """Both molecules are there, whole, in chains of these names."""
    assert names_of(structure) == [*ONE, *TWO] and structure.chain_names == tuple(names) and not structure.dropped
    assert structure.protein.chain.tolist() == [0] * len(ONE) + [1] * len(TWO)
    assert structure.protein.residue_index.tolist() == [*range(len(ONE)), *range(len(TWO))]
    x = [row["x"] for row in molecule(ONE, 0.0) + molecule(TWO, 50.0)]
    assert structure.protein.pos[:, 0].tolist() == x


# ---- two molecules under one chain id --------------------------------------------------------------------------------


@pytest.mark.parametrize("waters", [False, True])
def test_ter_tells_two_molecules_of_one_id_apart(waters):
    text = as_pdb(molecule(ONE, 0.0)).replace("END\n", "TER\n") + as_pdb(molecule(TWO, 50.0)).replace("END\n", "TER\n")
    text += as_pdb(residue("HOH", 1, ("O",), het=True, x=9.0)) if waters else ""
    structure = read_structure("x", text.encode())
    waters = structure.dropped.pop("waters", 0)
    assert_both(structure, ["A", "A_2"])


@pytest.mark.parametrize("chain, segments, names", [
    ("A", ("PROA", "PROB"), ("A_PROA", "A_PROB")), (" ", ("PROA", "PROB"), ("PROA", "PROB")),
    (" ", ("", "B"), ("", "B")), ("A", ("A", "B"), ("A", "A_B")), ("A", ("", "A"), ("A", "A_")),
])  # fmt: skip
def test_segments_tell_two_molecules_of_one_id_apart(chain, segments, names):
    """CHARMM, XPLOR: columns 73 to 76."""
    one, two = (dict(chain=chain, segment=segment) for segment in segments)
    assert_both(read_structure("x", as_pdb(molecule(ONE, 0.0, **one) + molecule(TWO, 50.0, **two)).encode()), names)


def test_segments_count_before_ter():
    """TER also stands where residues are missing; segments do not part the first molecule."""
    rows = molecule(ONE, 0.0, segment="PROA"), molecule(TWO, 50.0, segment="PROB")
    text = (
        as_pdb(rows[0][:8]).replace("END\n", "TER\n") + as_pdb(rows[0][8:]).replace("END\n", "TER\n") + as_pdb(rows[1])
    )
    assert_both(read_structure("x", text.encode()), ("A_PROA", "A_PROB"))


def test_segments_and_ter_together():
    """Neither alone is enough: two dimers, each with a segment; TER ends the first molecule of each dimer."""
    parts = [as_pdb(molecule(ONE, 50.0 * i, segment=f"P{i // 2}")).replace("END\n", "") for i in range(4)]
    structure = read_structure("x", "TER\n".join([parts[0], parts[1] + parts[2], parts[3]]).encode())
    assert names_of(structure) == [*ONE] * 4 and structure.chain_names == ("A", "A_2", "A_3", "A_4")


@pytest.mark.parametrize("chains", [("AA", "BA"), ("AA", "AB"), ("A", "BA"), ("1 ", "2 ")])
def test_chain_ids_of_two_letters_in_columns_21_and_22(chains):
    """With or without residues of the same number; modified residues belong to such a chain too."""
    one, two = chains
    assert_both(
        read_structure("x", as_pdb(molecule(ONE, 0.0, chain=one) + molecule(TWO, 50.0, chain=two)).encode()),
        map(str.strip, chains),
    )
    rows = (
        molecule(ONE, 0.0, chain=one)
        + residue("SEP", 7, chain=two, x=8.0, het=True)
        + residue("ALA", 8, chain=two, x=9.0)
    )
    structure = read_structure("x", as_pdb(rows).encode())
    assert names_of(structure) == [*ONE, "SER", "ALA"] and structure.protein.chain.tolist() == [0, 0, 0, 1, 1]


def test_a_name_of_a_chain_is_never_given_twice():
    one, two = molecule(ONE, 0.0, segment="X", chain="A"), molecule(TWO, 50.0, segment="", chain="A")
    assert read_structure("x", as_pdb(one + two).encode()).chain_names == ("A_X", "A")
    rows = molecule(("VAL",), 99.0, chain="A_2", label="Z")
    rows += molecule(ONE, 0.0, label="2") + molecule(TWO, 50.0, label="3")
    assert read_structure("x", as_mmcif(rows).encode()).chain_names == ("A_2", "A_2_", "A_3")


@pytest.mark.parametrize(
    "auth, names", [("A", ("A_P", "A_Q")), (".", ("P", "Q")), ("?", ("P", "Q")), ("P", ("P", "P_Q"))]
)
def test_label_asym_id_tells_two_molecules_of_one_author_id_apart(auth, names):
    rows = molecule(ONE, 0.0, chain=auth, label="P") + molecule(TWO, 50.0, chain=auth, label="Q")
    assert_both(read_structure("x", as_mmcif(rows).encode()), names)


def test_blank_values_of_mmcif_are_taken_from_the_other_column_of_that_row():
    fields = [f"{who}_{what}_id" for what in ("atom", "comp", "asym", "seq") for who in ("label", "auth")]
    head = "data_x\nloop_\n" + "".join(f"_atom_site.{field}\n" for field in [*fields, "Cartn_x", "Cartn_y", "Cartn_z"])
    rows = [
        "CA CX GLY XXX P A 8 1 1 1 1",
        "? CA ALA XXX P A 8 2 4 1 1",
        "CA ? ? SER P A 8 3 8 1 1",
        "CA . VAL . Q . 8 . 12 1 1",
    ]
    structure = read_structure("x", (head + "\n".join([*rows, ""])).encode())
    assert names_of(structure) == ["GLY", "ALA", "SER", "VAL"] and not structure.dropped
    assert structure.positions == [("A", 1, " "), ("A", 2, " "), ("A", 3, " "), ("Q", 8, " ")]
    lost = read_structure(
        "x", (head + "\n".join([*rows, "CA . LEU . Q . . ? 16 1 1", "O O HOH HOH W W . . 20 1 1", ""])).encode()
    )
    assert lost.dropped == {"amino acids: atoms without a residue number": 1, "atoms without a residue number": 1}


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
@pytest.mark.parametrize("second", [ONE, TWO])
def test_what_nothing_tells_apart_is_refused_by_name(write, second):
    """Numbers that start again; a homodimer written twice as chain A."""
    with pytest.raises(StructureError, match=r"^dimer: the same residue twice \(chain A 1\)$"):
        read_structure("dimer", write(molecule(ONE, 0.0) + molecule(second, 50.0)).encode())


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_one_residue_twice_in_a_chain_is_refused(write):
    rows = molecule(ONE, 0.0) + residue("VAL", 2, code="B", x=20.0) + residue("LEU", 2, code="B", x=30.0)
    with pytest.raises(StructureError, match=r"the same residue twice \(chain A 2B\)"):
        read_structure("x", write(rows).encode())


CODES = "numbers already taken (the residue is given an insertion code)"
SIDE = {"N": 0.0, "CA": 0.7, "C": 1.4, "O": 1.5, "CB": 0.9}  # x; y and z change as x does, so N to CA has 1.2 A


def bonded(kind, number, k, names=("N", "CA", "C", "O"), **options):
    """Residue k of a straight chain: 1.39 A from C to N, 3.81 from CA to CA."""
    return [atom(name, kind, number, x=2.2 * k + SIDE[name], **options) for name in names]


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_insertions_without_codes_are_residues_of_their_own(write):
    """27, 27, 27, as programs write 27, 27A, 27B; two of one kind, one with alternatives in its side chain."""
    rows = bonded("ALA", 26, -1) + bonded("GLN", 27, 0) + bonded("SER", 27, 1)
    rows += [atom("CB", "SER", 27, x=x, alt=alt, occ=occ) for alt, occ, x in (("A", 0.4, 3.0), ("B", 0.6, 3.1))]
    rows += bonded("SER", 27, 2, SIDE) + bonded("VAL", 27, 3) + bonded("LEU", 27, 4, code="A") + bonded("ALA", 28, 5)
    structure = read_structure("x", write(rows).encode())
    assert names_of(structure) == ["ALA", "GLN", "SER", "SER", "VAL", "LEU", "ALA"]
    assert [code for _, number, code in structure.positions if number == 27] == [" ", "B", "C", "D", "A"]
    assert structure.protein.residue_index.tolist() == list(range(7)) and structure.chain_names == ("A",)
    assert structure.dropped == {CODES: 3, "alternative locations": 1}
    assert torch.bincount(structure.protein.atom_residue).tolist() == [4, 4, 5, 5, 4, 4, 4]
    found = structure.protein.pos[structure.protein.atom_residue == 2][:, 0].tolist()
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
    "the third without CA": bonded("SER", 1, 0) + bonded("GLY", 1, 1) + bonded("SER", 1, 2, ("N", "C")),
    "a side chain in another place": [
        *bonded("SER", 27, 0), *bonded("SER", 27, 1), *bonded("GLY", 28, 2), *bonded("SER", 27, 1, ["CB"])
    ],
    "another order of atoms": bonded("SER", 27, 0, ("CA", "C", "N")) + bonded("SER", 27, 1, ("CA", "C", "N")),
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
@pytest.mark.parametrize("first, second, apart, kept", [
    ("A", "B", 5.0, True), (" ", "B", 5.0, True), (" ", " ", 0.5, True), (" ", " ", 0.6, False), ("A", "A", 5.0, False),
])  # fmt: skip
def test_an_alternative_has_a_mark_or_its_ca_in_the_same_place(write, first, second, apart, kept):
    """x, y and z move by `apart`: 0.5 makes 0.87 angstrom, 0.6 makes 1.04."""
    for name in ("ALA", "LEU"):
        rows = residue("ALA", 1, alt=first, occ=0.6, x=0.0) + residue(name, 1, alt=second, occ=0.4, x=apart)
        if kept:
            assert names_of(read_structure("x", write(rows).encode())) == ["ALA"]
        else:
            with pytest.raises(StructureError, match="the same residue twice"):
                read_structure("x", write(rows).encode())


def test_molecules_are_told_apart_without_comparing_all_chains():
    """5,000 chains, each with two molecules: a pass over all rows for every chain would take a minute."""
    rows = [atom("CA", "GLY", 1, chain=f"c{i % 5000}", x=4.0 * i, label="PQ"[i // 5000]) for i in range(10_000)]
    start = time.process_time()
    structure = read_structure("x", as_mmcif(rows).encode())
    assert time.process_time() - start < 10  # under a second; 50 million rows would be looked at
    assert structure.protein.num_residues == len(set(structure.chain_names)) == 10_000


# ---- one letter of the record, and score tables ----------------------------------------------------------------------

PLAIN = molecule(ONE, 25.0) + residue("ZN", 9, ("ZN",), het=True)


@pytest.mark.parametrize("row", [0, 5, 12])
@pytest.mark.parametrize("at", range(6))
def test_a_letter_of_the_record_deleted_or_inserted_is_refused(row, at):
    """The atom was passed over, and uncounted."""
    lines = as_pdb(PLAIN).splitlines()
    line = lines[row]
    for changed in [
        line[:at] + line[at + 1 :],
        *(line[:at] + letter + line[at:] for letter in "A7 #"),
        line[:at] + "x" + line[at + 1 :],
    ]:
        if not changed.startswith(("ATOM", "HETATM")) or changed[26:54] != line[26:54]:
            with pytest.raises(StructureError, match=f"line {row + 1}"):
                read_structure("x", "\n".join([*lines[:row], changed, *lines[row + 1 :], ""]).encode())


SCORES = """\
#BEGIN_POSE_ENERGIES_TABLE relaxed.pdb
ALA_2 -2.315 0.11231 0.537 1.152 -0.220 1.512 -3.400 0.000 0.000 0.000 0.000 -12.345
LEU_1000 7.68917 1.07538 2.59486 0.60384 0.01634 0.12345 1.54321 2.71828
SER:CtermProteinFull_3 -12.345 0.11231 0.537 11.152 -10.220 1.512 -3.400 0.000
"""


def test_score_tables_of_rosetta_are_passed_over():
    """Short columns of numbers with three decimals looked like coordinates."""
    wide = "".join(
        f"{name:<29}" + "".join(f" {x:.3f}" for x in (0.1 * i, -2.5, 0, 12.25, 0)) + "\n"
        for i, name in enumerate(("GLY_1", "ALA_2"))
    )
    text = as_pdb(PLAIN).replace("END\n", "TER\n")
    expected = read_structure("x", text.encode())
    for table in (SCORES, wide):
        assert_equal(read_structure("x", (text + table).encode()).protein, expected.protein)


# ---- names of force fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_four_letter_names(write):
    """NLYS and CMET were cut to NLY and CME, which are modified GLY and CYS."""
    names = {
        "NLYS": "LYS",
        "ALA": "ALA",
        "CYX": "CYS",
        "HISB": "HIS",
        "ASPH": "ASP",
        "CHID": "HIS",
        "CMET": "MET",
        "NASN": "ASN",
    }
    structure = read_structure("x", write(molecule(names, 0.0)).encode())
    assert names_of(structure) == list(names.values()) and not structure.dropped
    assert structure.chain_names == ("A",)
    structure = read_structure("x", write(molecule(names, 0.0, chain=" " if write is as_pdb else "Z")).encode())
    assert names_of(structure) == list(names.values())


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
@pytest.mark.parametrize("name", ["DPPC", "POPE", "NLIG", "CSEP", "XALA"])
def test_other_four_letter_names_are_unknown(write, name):
    """DPP alone would be a modified ALA."""
    structure = read_structure("x", write(molecule([*ONE, name], 0.0)).encode())
    assert names_of(structure) == [*ONE] and structure.dropped == {f"residues of unknown parent ({name})": 1}


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_atoms_that_force_fields_name_otherwise(write):
    ile = ("N", "CA", "C", "O", "CB", "CG1", "CG2", "CD")
    for first, last in (("OT1", "OT2"), ("OC1", "OC2")):
        rows = residue("ILE", 1, ile) + residue("NILE", 2, ile) + residue("HSD", 3, ("N", "CA", "C", first, last))
        structure = read_structure("x", write(rows).encode())
        found = [ATOM_NAMES[a] for a in structure.protein.atom_name]
        assert found == [*ile[:-1], "CD1"] * 2 + ["N", "CA", "C", "O", "OXT"] and not structure.dropped
    assert read_structure("x", write(residue("LYS", 1, ("CA", "CD"))).encode()).protein.num_atoms == 2


# ---- residue numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["****", "2710", "270F", "A000", "zzzz", "    ", "-  1", "1_00", "ZZ*Z"])
@pytest.mark.parametrize("name", ["HOH", "TIP3", "POPC", "SOD", "DA"])
def test_what_is_no_amino_acid_needs_no_number(number, name):
    """VMD, CHARMM, NAMD, Phenix: stars, hexadecimal, hybrid-36 from 10,000 on."""
    rows = PLAIN + [atom("O", name, number, chain="W", x=5.0, het=het) for het in (True, False)]
    structure = read_structure("x", as_pdb(rows).encode())
    assert_equal(structure.protein, read_structure("x", as_pdb(PLAIN).encode()).protein)
    assert structure.dropped.total() >= 2  # these and the ion


@pytest.mark.parametrize(
    "number, value",
    [
        ("9999", 9999),
        ("A000", 10_000),
        ("A001", 10_001),
        ("AZZZ", 56_655),
        ("B000", 56_656),
        ("ZZZZ", 1_223_055),
        ("a000", 1_223_056),
        ("zzzz", 2_436_111),
    ],
)
@pytest.mark.parametrize("code", [" ", "C"])
def test_hybrid_36(number, value, code):
    """Values as in the definition: https://cci.lbl.gov/hybrid_36/."""
    structure = read_structure("x", as_pdb(residue("GLY", number, code=code, x=1.0)).encode())
    assert structure.positions == [("A", value, code)]


@pytest.mark.parametrize("number", ["****", "270F", "A_00", "Aa00", "    ", "A00 ", "-A00"])
@pytest.mark.parametrize("name", ["GLY", "NGLY", "MSE"])
def test_an_amino_acid_needs_a_number(number, name):
    with pytest.raises(StructureError, match="the atom in line 14"):
        read_structure("x", as_pdb([*PLAIN, *residue(name, number, x=1.0)]).encode())


# ---- atoms in one place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_a_few_atoms_in_one_place_are_read(write):
    """Real chains have such pairs; only what is denser than matter is refused."""
    rows = residue("GLY", 1) + [{**row, "x": 1.125} for row in residue("ALA", 2)]
    structure = read_structure("x", write(rows).encode())
    assert structure.protein.num_atoms == 8 and not structure.dropped
    assert (structure.protein.pos == structure.protein.pos[1]).all(1).sum() == 5
