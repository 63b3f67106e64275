"""Each row of the parsing policy and each known trap on a small file, as PDB and as mmCIF; a round trip."""

import gzip
import itertools
import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import as_mmcif, as_pdb, assert_equal, atom, residue

from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import ATOM_ELEMENT, ATOM_NAMES, MODIFIED, PARENT, RESIDUE_ATOMS, RESIDUES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading import policy
from siamdiff_min.reading.parse import read_structure


@pytest.fixture(params=[as_pdb, as_mmcif], ids=["pdb", "mmcif"])
def read(request):
    """Read rows through one of the two formats."""

    def function(rows, model=0, **options):
        return read_structure("test", request.param(rows, **options).encode(), model)

    return function


def names_of(protein: Protein) -> list[str]:
    return [RESIDUES[t] for t in protein.residue_type]


def atoms_of(protein: Protein, index: int = 0) -> dict[str, float]:
    """Atom name -> x of one residue."""
    rows = protein.atom_residue == index
    return {ATOM_NAMES[a]: float(x) for a, x in zip(protein.atom_name[rows], protein.pos[rows, 0])}


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_a_plain_file_gives_every_field(read):
    rows = residue("GLY", 7) + residue("SER", 9, RESIDUE_ATOMS["SER"]) + residue("LYS", 3, ("N", "CA"), chain="B")
    structure = read(rows)
    p = structure.protein
    expected = {
        "residue_type": [RESIDUES.index(name) for name in ("GLY", "SER", "LYS")],
        "residue_number": [7, 9, 3],
        "residue_index": [0, 1, 0],
        "chain": [0, 0, 1],
        "insertion_code": [32] * 3,
        "masked": [False] * 3,
        "atom_residue": [0] * 4 + [1] * 6 + [2] * 2,
        "element": [ATOM_ELEMENT[name] for name in p.atom_name],
        "pos": torch.tensor([[r["x"], r["x"] + 1, -r["x"]] for r in rows]).tolist(),
    }
    assert {name: getattr(p, name).tolist() for name in expected} == expected
    assert (p.num_proteins, structure.chain_names, structure.dropped) == (1, ("A", "B"), Counter())


def test_the_first_model_is_taken_or_the_one_asked_for(read):
    rows = [row for m in (1, 2, 3) for row in residue("GLY", 1, x=100.0 * m, model=m)]
    assert [atoms_of(read(rows, m, models=True).protein)["N"] for m in (0, 1, 2)] == [100, 200, 300]
    assert read(rows, models=True).protein.num_residues == 1
    assert read(rows, 1, models=True).dropped == {"other models": 2}
    odd = [{**row, "model": 9 - row["model"]} for row in rows]  # they count in file order, whatever their numbers
    assert [atoms_of(read(odd, m, models=True).protein)["N"] for m in (0, 1, 2)] == [100, 200, 300]
    for model in (3, -1):
        with pytest.raises(StructureError, match=f"no such model .3 models, asked for number {model}"):
            read(rows, model, models=True)


def test_rows_of_a_model_may_be_apart_in_mmcif():
    rows = [row for atoms in zip(*(residue("GLY", 1, x=50.0 * m, model=m) for m in (1, 2))) for row in atoms]
    for model in (0, 1):
        found = atoms_of(read_structure("x", as_mmcif(rows), model=model).protein)
        assert len(found) == 4 and found["N"] == 50 * (model + 1)


@pytest.mark.parametrize("damage, reason", [("", "no atoms"), ("ATOM  bad\n", "truncated"), (None, "truncated")])
def test_a_damaged_later_model_costs_that_model_only(damage, reason):
    """Models before it are read, and reading stops there."""
    text = as_pdb([row for m in (1, 2) for row in residue("GLY", 1, x=100.0 * m, model=m)], models=True)
    text = text.replace("END\n", "") + "MODEL        3\n" + ("" if damage is None else f"{damage}ENDMDL\nEND\n")
    for model in (0, 1):
        assert atoms_of(read_structure("x", text.encode(), model).protein)["N"] == 100 * (model + 1)
    with pytest.raises(StructureError, match=reason):
        read_structure("x", text.encode(), 2)


def test_a_real_ensemble():
    """1LCD of the PDB (CC0), three NMR models, as in the test files of Biopython 1.88."""
    first, *others = (read_structure(Path(__file__).parent / "1LCD.pdb.gz", model=i).protein for i in range(3))
    for other in others:  # the same atoms in the same order, which have moved a little
        assert torch.equal(other.atom_name, first.atom_name) and 0.05 < (first.pos - other.pos).norm(dim=1).median() < 3


@pytest.mark.parametrize("first, second, taken", [(0.3, 0.7, 1), (0.7, 0.3, 0), (0.5, 0.5, 0)])
def test_the_alternative_of_highest_occupancy_is_taken_ties_by_order(read, first, second, taken):
    """Of an atom, and of a residue that is a point mutation."""
    rows = [atom("CB", "SER", 1, alt=alt, occ=occ, x=x) for alt, occ, x in (("A", first, 5), ("B", second, 6))]
    structure = read(residue("SER", 1) + rows)
    assert atoms_of(structure.protein)["CB"] == 5 + taken and structure.dropped == {"alternative locations": 1}
    rows = residue("SER", 5, alt="A", occ=first) + residue("THR", 5, alt="B", occ=second)
    structure = read(residue("GLY", 4) + rows + residue("GLY", 6))
    assert names_of(structure.protein) == ["GLY", ("SER", "THR")[taken], "GLY"]
    assert structure.dropped == {"alternative residues": 1}


def test_insertion_codes_and_file_order_are_kept(read):
    rows = residue("GLY", 52) + residue("ALA", 52, code="A") + residue("SER", 52, code="B") + residue("VAL", 51)
    p = read(rows).protein
    assert names_of(p) == ["GLY", "ALA", "SER", "VAL"]
    assert p.residue_number.tolist() == [52, 52, 52, 51]
    assert "".join(map(chr, p.insertion_code)) == " AB "
    assert p.residue_index.tolist() == [0, 1, 2, 3]


def test_modified_residues_are_read_as_their_parent(read, monkeypatch):
    """All names of the table, in one chain, which is too long for the columns if it has the steps of a protein."""
    monkeypatch.setattr(policy, "check_protein", lambda *_: None)
    rows = [row for i, name in enumerate(PARENT) for row in residue(name, i, het=True, x=0.8 * i)]
    structure = read(rows)
    assert names_of(structure.protein) == list(PARENT.values())
    assert structure.dropped == {"modified residues (read as their parent)": len(MODIFIED)}
    assert len(MODIFIED) > 900 and {"SEP", "TPO", "PTR", "CSO", "HYP", "MLY", "KCX", "LLP", "CME"} <= MODIFIED


def test_a_modified_residue_keeps_the_atoms_that_its_parent_has(read):
    rows = residue("GLY", 1) + residue("SEP", 2, ("N", "CA", "CB", "OG", "C", "O", "P", "O1P", "HA"), het=True)
    rows += residue("HYP", 3, ("N", "CA", "C", "O", "CB", "CG", "CD", "OD1"), het=True)
    rows += residue("MSE", 4, ("N", "CA", "CB", "CG", "SE", "CE"), het=True) + residue("SEC", 5, ("CA", "CB", "SE"))
    structure = read(rows)
    assert names_of(structure.protein) == ["GLY", "SER", "PRO", "MET", "CYS"]
    kept = ["N CA CB OG C O", "N CA C O CB CG CD", "N CA CB CG SD CE", "CA CB SG"]  # selenium where sulphur is
    assert [" ".join(atoms_of(structure.protein, k)) for k in range(1, 5)] == kept
    counts = {"modified residues (read as their parent)": 4, "unknown atom names": 3, "hydrogens": 1}
    assert structure.dropped == counts


@pytest.mark.parametrize("name", ["GLU", "SEP", "SAH"])
@pytest.mark.parametrize("names", [("N", "CA", "C", "O"), ("CA",)], ids=["backbone", "CA only"])
def test_a_free_amino_acid_is_no_residue(read, name, names):
    """A ligand in its own place, far away or 4 angstrom from the end of a chain; the same one bonded is a residue."""
    chain = residue("GLY", 1, names) + residue("ALA", 2, names)
    for number, x in ((3, 40.0), (301, 40.0), (-5, 40.0), (3, 4.5)):
        structure = read(chain + residue(name, number, names, het=True, x=x))
        assert names_of(structure.protein) == ["GLY", "ALA"]
        assert structure.dropped["free amino acids"] == 1
    for number in (3, 301):
        rows = chain + residue(name, number, names, het=True, x=3.0)
        assert read(rows).protein.num_residues == 3
    rows = [
        *residue("GLY", 0, names, x=1.0),
        *residue("VAL", 9, names),
        *residue("ALA", 2, names, x=3.0),
        *residue(name, 1, names, het=True, x=2.0),  # bonded by number
    ]
    assert read(rows).protein.num_residues == 4


def test_waters_ligands_metals_and_nucleotides_inside_a_chain_are_skipped_and_counted(read):
    rows = [
        *residue("GLY", 1),
        *residue("HOH", 2, ("O",), het=True),
        *residue("HOH", 3, ("O",), het=True),
        *residue("ZN", 4, ("ZN",), het=True, element="ZN"),
        *residue("HEM", 5, ("FE", "NA"), het=True),
        *residue("DA", 6, ("P", "O5'", "C5'")),
        *residue("U", 7, ("P",)),
        *residue("UNK", 8),
        *residue("ALA", 9),
        *residue("DAL", 10, het=True),
        *residue("DAL", 11, het=True),
    ]
    structure = read(rows)
    assert names_of(structure.protein) == ["GLY", "ALA"]
    assert structure.protein.residue_index.tolist() == [0, 1]
    unknown = {"residues of unknown parent (UNK)": 1, "residues of unknown parent (DAL)": 2}
    assert structure.dropped == {"waters": 2, "nucleotides": 2, "ligands and unknown residues": 2, **unknown}


@pytest.mark.parametrize("element", [None, ""], ids=["element column", "no element column"])
def test_hydrogens_and_unknown_atoms_are_dropped_and_counted(read, element):
    rows = residue("ALA", 1, ("N", "CA", "C", "O", "CB", "OXT"), element=element)
    rows += [atom(n, "ALA", 1, element="" if element == "" else e) for n, e in (("HA", "H"), ("1HB", "H"), ("DA", "D"))]
    rows += [atom(n, "ALA", 1, element=element) for n in ("CG", "X", "OX")]  # CG is known, but not in alanine
    structure = read(rows)
    assert list(atoms_of(structure.protein)) == ["N", "CA", "C", "O", "CB", "OXT"]
    assert structure.dropped == {"hydrogens": 3, "unknown atom names": 3}


def test_residues_without_ca_are_skipped_and_of_duplicate_atoms_the_first_is_kept(read):
    rows = residue("TRP", 1) + residue("TRP", 2, ("N", "C", "O", "CB")) + residue("GLY", 3, ("CA",))
    structure = read([*rows, atom("CA", "GLY", 3, x=3.5)])
    assert structure.protein.residue_number.tolist() == [1, 3] and atoms_of(structure.protein, 1) == {"CA": 3}
    assert structure.dropped == {"residues without CA": 1, "duplicate atoms": 1}


def test_a_chain_that_reappears_stays_together(read):
    rows = residue("GLY", 1) + residue("ALA", 1, chain="B") + residue("SER", 2) + residue("HOH", 3, ("O",), chain="C")
    structure = read(rows + residue("VAL", 2, chain="B") + residue("LEU", 5, chain="D"))
    assert names_of(structure.protein) == ["GLY", "SER", "ALA", "VAL", "LEU"]
    assert structure.protein.chain.tolist() == [0, 0, 1, 1, 2]  # C is only water: no chain of the protein
    assert structure.protein.residue_index.tolist() == [0, 1, 0, 1, 0]
    assert structure.chain_names == ("A", "B", "D")


# ---- odd but readable ------------------------------------------------------------------------------------------------

PLAIN = residue("GLY", 1) + residue("SER", 2, RESIDUE_ATOMS["SER"]) + residue("VAL", 3, chain="B")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text + "\0" * 1000,
    ],
    ids=["CRLF", "CR", "BOM", "no last newline", "blank lines", "a last block that a tool filled"],
)
@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_line_ends_and_byte_order_mark(change, write):
    expected = read_structure("x", write(PLAIN).encode()).protein
    assert_equal(expected, read_structure("x", change(write(PLAIN)).encode()).protein)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "REMARK caf\xe9\n" + text,
        lambda text: "".join(f"{line[:6]}A000{i % 10}{line[11:]}\n" for i, line in enumerate(text.splitlines())),
        lambda text: "".join(f"{line[:6]}*****{line[11:]}\n" for line in text.splitlines()),
        lambda text: text.replace("ATOM      1 ", "ATOM 100001 "),
        lambda text: "\n".join(line[:54] for line in text.splitlines()),
        lambda text: "\n".join(line[:66] for line in text.splitlines()),
        lambda text: text.replace("END\n", ""),
        lambda text: text.replace("ATOM      3", "ANISOU    2  CA  GLY A   1     oops\nATOM      3"),
    ],
    ids=["latin-1", "hybrid-36", "starred serials", "long serial", "no occupancy", "no element", "no END", "ANISOU"],
)
def test_pdb_dialects(change):
    expected = read_structure("x", as_pdb(PLAIN).encode()).protein
    assert_equal(expected, read_structure("x", change(as_pdb(PLAIN)).encode("latin-1")).protein)


# ---- unreadable ------------------------------------------------------------------------------------------------------

PDB = as_pdb(PLAIN)


@pytest.mark.parametrize(
    "data, reason",
    [
        (b" \r\n\t", "empty"),
        (b"\n  <!DOCTYPE html><html>404</html>", "HTML"),
        (b"HEADER    NOTHING\nEND\n", "no atoms"),
        (b"data_X\n#\n", "no atoms"),
        (as_pdb(residue("HOH", 1, ("O",), het=True)).encode(), r"no protein in it \(skipped: waters 1\)"),
        (as_pdb(residue("GLY", 1, ("N",))).encode(), "no protein in it"),
        (as_pdb(PLAIN, models=True).replace("ENDMDL\nEND\n", "").encode(), "MODEL without ENDMDL"),
        (PDB.replace("   1.000", "     nan").encode(), "points of its coordinates"),
        (PDB.replace("   1.000", "  100001").encode(), "points of its coordinates"),
        (PDB.replace("   1.000", "********").encode(), "unreadable"),
        (PDB.replace("A   1 ", "A**** ").encode(), "unreadable"),
        (PDB.encode("utf-16"), "not a text file"),
        (as_mmcif(PLAIN)[:-40].encode(), "truncated"),
        (as_mmcif(PLAIN).replace(" 1.000 ", " nan ").encode(), "out of range"),
        (as_mmcif(PLAIN).replace(" 1.000 ", " ? ").encode(), "unreadable"),
        (as_mmcif(residue("GLY", 1, code="AB")).encode(), "insertion code"),
        (as_mmcif(PLAIN).replace("Cartn_x", "Cartn_q").encode(), "no column cartn_x"),
        (gzip.compress(PDB.encode(), mtime=0)[:-30], "gzip"),
        (gzip.compress(b"", mtime=0), "empty"),
        (bytes(range(1, 256)) * 10, "no atoms"),
        (PDB.replace("A   1 ", "A1 23 ").encode(), "the atom in line 1: invalid literal"),
    ],
)
def test_unreadable_files_raise_one_exception_that_names_file_and_reason(data, reason):
    with pytest.raises(StructureError, match=reason) as caught:
        read_structure("folder/bad.pdb", data)
    assert str(caught.value).startswith("folder/bad.pdb: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # it has to pass between processes


def test_a_column_of_mmcif_without_values_or_twice():
    for field in ("no_values", "Cartn_x", "CARTN_X"):
        for text in (f"loop_\n_atom_site.{field}\n_atom_site.other\nloop_\n_a.b\n1\n", f"_atom_site.{field} 1\n"):
            with pytest.raises(StructureError, match=r"damaged table|a new key should be"):
                read_structure("x", (as_mmcif(PLAIN) + text).encode())


def test_a_file_that_is_missing_or_a_folder(tmp_path):
    for path in (tmp_path / "missing.pdb", tmp_path):
        with pytest.raises(StructureError, match="cannot be opened"):
            read_structure(path)


# ---- what was read by half, or wrongly -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stray", ["data_z", "_z.a 1", "_z.a", "'_quoted' 1 2", "loop_", "save_z", "stop_", "_z.a 1 2", "loop_\n_z.a\n1"]
)
@pytest.mark.parametrize("row", [0, 7, -1])
def test_a_stray_line_in_a_table_of_mmcif_is_refused(stray, row):
    """To Biopython most of these end the table, and the rows behind them are lost without a word."""
    lines = as_mmcif(PLAIN).splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith("ATOM")][row]
    with pytest.raises(StructureError, match=r"a new key should be|damaged table|unreadable"):
        read_structure("x", "\n".join([*lines[:at], stray, *lines[at:], ""]).encode())


def test_the_densest_that_is_read():
    """40 atoms in a cube of 4.5 A and 3 CA in one of 1 A are read; one more is not."""
    fields = ("label_atom_id", "label_comp_id", "auth_asym_id", "auth_seq_id", "Cartn_x", "Cartn_y", "Cartn_z")
    head = "data_x\nloop_\n" + "".join(f"_atom_site.{field}\n" for field in fields)
    mixed = []
    for i, (x, y, z) in enumerate(itertools.product(range(3), repeat=3)):
        mixed.append(f"CA GLY A {2 * i} {2.1 * x} {2.1 * y} {2.1 * z}\n")  # no step of a chain
        mixed += [f"{name} GLY A {2 * i} 0 0 0\n" for name in "NCO"]
    equal = [f"CA GLY A {i} 0 0 0\n" for i in range(4)]
    for rows, most in ((mixed[:41], r"over 40 atoms .* 4\.5"), (equal, r"over 3 CA .* 1\.0")):
        whole = head + "".join(rows)
        fewer = head + "".join(rows[:-1])
        assert read_structure("x", fewer.encode()).protein.num_atoms == len(rows) - 1
        with pytest.raises(StructureError, match=f"denser than matter .{most} angstrom: nanometres"):
            read_structure("x", whole.encode())


def test_truncation_at_every_offset_never_moves_an_atom():
    """What a truncated file still gives is a beginning of the whole."""
    whole = read_structure("x", PDB.encode()).protein
    errors = 0
    for end in range(0, len(PDB), 3):
        try:
            part = read_structure("x", PDB[:end].encode()).protein
        except StructureError:
            errors += 1
        else:
            assert torch.equal(part.pos, whole.pos[: part.num_atoms])
    assert errors > len(PDB) / 6


# ---- what was read wrongly once --------------------------------------------------------------------------------------


CASES = (Path(__file__).parent / "cases" / "cases.txt").read_text().removeprefix("== ").split("\n== ")


def described(structure) -> str:
    """The structure as `cases.txt` writes it."""
    protein, words = structure.protein, []
    for row, (chain, number, code) in enumerate(structure.positions):
        atoms = (protein.atom_residue == row).nonzero().flatten().tolist()
        x = {ATOM_NAMES[protein.atom_name[atom]]: f"@{protein.pos[atom, 0]:g}" for atom in atoms}
        kind = RESIDUES[protein.residue_type[row]]
        words.append(f"{chain}:{kind}{number}{code.strip()}{x['CA']}")
        if len(x) == 1:
            continue
        for name, place in x.items():
            words.append(name + place if name in ("CB", "OG") else name)
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(structure.dropped.items()))
    return " ".join(words) + f" | {counts}" * bool(counts)


@pytest.mark.parametrize("case", CASES, ids=[case.partition("\n")[0] for case in CASES])
def test_what_was_read_wrongly_is_read_right(case):
    _, answer, text = case.split("\n", 2)
    if answer.startswith("error: "):
        with pytest.raises(StructureError) as caught:
            read_structure("x", text)
        assert answer.removeprefix("error: ") in str(caught.value)
    else:
        assert described(read_structure("x", text)) == answer


@pytest.mark.parametrize("head", ["", "\n", "# of a program\n\n"])
def test_an_mmcif_without_its_data_line_is_named(head):
    text = as_mmcif(residue("GLY", 1)).partition("\n")[2]
    with pytest.raises(StructureError, match=r"^x: mmCIF without its data_ line \(add one"):
        read_structure("x", head + text)
