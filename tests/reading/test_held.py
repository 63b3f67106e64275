"""What people hold in their hands: arrays, Biopython's objects, text, some chains of a structure."""

import gzip
import io
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from Bio.PDB import MMCIFIO, MMCIFParser, PDBParser
from conftest import real_protein
from helpers import as_mmcif, as_pdb, assert_equal, residue

from siamdiff_min import Protein, read_structure
from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import ATOM_NAMES, ONE_LETTER, RESIDUE_ATOMS, RESIDUES
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.tools.formats.arrays import AATYPE, ATOM37

TEXT = as_pdb(
    [row for chain, x in zip("ABC", (0, 20, 40)) for i in (1, 2) for row in residue("SER", i, chain=chain, x=x + i)]
)


def letters(protein: Protein) -> str:
    return "".join(ONE_LETTER[t] for t in protein.residue_type)


def atom37(protein: Protein) -> tuple[torch.Tensor, torch.Tensor]:
    """pos (R, 37, 3) and mask (R, 37), with rubbish where there is no atom."""
    place = torch.tensor([ATOM37.index(name) for name in ATOM_NAMES])[protein.atom_name]
    pos = torch.full((protein.num_residues, 37, 3), torch.nan)
    mask = torch.zeros(protein.num_residues, 37)
    pos[protein.atom_residue, place], mask[protein.atom_residue, place] = protein.pos, 1
    return pos, mask


@pytest.fixture(scope="module")
def bundled() -> list:
    """Three bundled structures of one and more chains."""
    names = ("1FFW", "1A19_A", "1A8O_A")
    sources = find_structures(bundle_path()).sources
    return [s for s in sources if s.name in names] or sources[:3]


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_the_37_atoms_of_alphafold_are_ours_in_another_order():
    """Its order: openfold/np/residue_constants.py, `atom_types`; AATYPE is sorted by the names of three letters."""
    assert sorted(ATOM37) == sorted(ATOM_NAMES) and len(ATOM37) == 37 and ATOM37 != ATOM_NAMES
    assert ATOM37[:5] == ["N", "CA", "C", "CB", "O"] and ATOM37[36] == "OXT"
    assert [RESIDUES[ONE_LETTER.index(letter)] for letter in AATYPE] == sorted(RESIDUES)


@pytest.mark.parametrize("kind", ["tensor", "float64", "list", "read-only", "strided"])
def test_from_ca(kind):
    """A copy: not the caller's array. Chains and types by numbers or letters."""
    whole = real_protein("2BEG", torch.float32)
    ca, sequence = whole.alpha_carbons(), letters(whole)
    pos = ca.pos.clone()
    if kind == "float64":
        pos = pos.double()
    elif kind == "list":
        pos = pos.tolist()
    elif kind != "tensor":
        pos = pos.numpy()[::-1][::-1].astype("f4")
        pos.flags.writeable = kind != "read-only"
    made = Protein.from_ca(pos, sequence, whole.chain.tolist())
    expected = replace(
        ca,
        chain=ca.chain.unique(return_inverse=True)[1],
        residue_index=torch.arange(26).repeat(5),
        residue_number=torch.arange(26).repeat(5) + 1,
    )
    types = whole.residue_type
    for numbers in (types, types.numpy(), types.tolist(), np.array(list(sequence), object)):
        assert_equal(Protein.from_ca(pos, numbers, "".join("ABCDE"[i] for i in made.chain)), made)
    alone = Protein.from_ca(pos, sequence)
    if kind == "tensor":
        pos += 1
    assert_equal(made, expected)
    assert not alone.chain.any() and alone.residue_index.tolist() == list(range(130))


def test_from_atom37_is_what_the_file_gives(bundled):
    """But for numbers and codes, which arrays do not hold, and the order of atoms in a residue."""
    for source in bundled:
        whole = source.read().protein
        pos, mask = atom37(whole)
        aatype = torch.tensor([AATYPE.index(letter) for letter in letters(whole)])
        made = Protein.from_atom37(pos, mask, letters(whole), whole.chain)
        order, expected = ((p.atom_residue * 37 + p.atom_name).argsort() for p in (made, whole))
        for name in ("residue_type", "residue_index", "chain", "masked", "atom_residue"):
            assert torch.equal(getattr(made, name), getattr(whole, name)), name
        for name in ("pos", "element", "atom_name"):
            assert torch.equal(getattr(made, name)[order], getattr(whole, name)[expected]), name
        for arrays in ((pos.numpy(), mask.numpy(), aatype.numpy()), (pos.double(), mask.bool(), aatype.int())):
            assert_equal(Protein.from_atom37(*arrays, whole.chain.numpy()), made)


def test_atoms_come_in_the_order_of_pdb_files():
    text = as_pdb(residue("LYS", 1, [*RESIDUE_ATOMS["LYS"], "OXT"]) + residue("TRP", 2, [*RESIDUE_ATOMS["TRP"], "OXT"]))
    whole = read_structure("x", text.encode()).protein
    assert_equal(Protein.from_atom37(*atom37(whole), "KW"), whole)


def test_padded_batches_are_one_comprehension():
    proteins = [real_protein(name, torch.float32) for name in ("1LCD_A", "2BEG")]
    size = max(p.num_residues for p in proteins)
    pos, mask, aatype = torch.zeros(2, size, 37, 3), torch.zeros(2, size, 37), torch.full((2, size), 20)
    for i, p in enumerate(proteins):
        pos[i, : p.num_residues], mask[i, : p.num_residues] = atom37(p)
        aatype[i, : p.num_residues] = torch.tensor([AATYPE.index(letter) for letter in letters(p)])
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    block = next(b for b in re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S) if "pack(" in b)
    ca, sequences = pos[:, :, 1], list(map(letters, proteins))
    as_printed, second = block.rpartition("batch = ")[::2]
    names = {"Protein": Protein, "pos": pos, "mask": mask, "aatype": aatype, "ca": ca, "sequences": sequences}
    exec(as_printed, names)
    batch = names["batch"]
    assert_equal(batch.alpha_carbons(), eval(second, names))
    assert repr(batch) == f"Protein(B=2, R=181, N={sum(p.num_atoms for p in proteins)})"
    for made, whole in zip(batch.unpack(), proteins):
        assert letters(made) == letters(whole) and torch.equal(made.alpha_carbons().pos, whole.alpha_carbons().pos)


POS, POS37, MASK = np.zeros((3, 3)), np.zeros((3, 37, 3)), np.ones((3, 37)) * (np.arange(37) < 3)


@pytest.mark.parametrize("call, said", [
    (lambda: Protein.from_ca(np.zeros((3, 2)), "GAS"), r"pos: of shape (3, 2) in place of (R, 3)"),
    (lambda: Protein.from_ca(np.zeros((2, 3, 3)), "GAS"), r"pos: of shape (2, 3, 3) in place of (R, 3), of one"),
    (lambda: Protein.from_ca([[1, 2, 3], [1, 2]], "GA"), "pos: not an array of numbers"),
    (lambda: Protein.from_ca(np.zeros((0, 3)), ""), "pos: no residue in it"),
    (lambda: Protein.from_ca(POS, "GA"), "sequence: of 2 residues beside pos of 3"),
    (lambda: Protein.from_ca(POS, "GAX"), "sequence: 'X' is none of the 20 amino acids GASPVTC"),
    (lambda: Protein.from_ca(POS, [0, 1, 20]), "sequence: 20 is none of the 20 amino acids GASPVTC"),
    (lambda: Protein.from_ca(POS, "GAS", "AB"), "chain: of 2 residues beside pos of 3"),
    (lambda: Protein.from_ca(POS, "GAS", [0, 1, 0]), "chain: residues of one chain do not stand together"),
    (lambda: Protein.from_ca(POS * np.nan, "GAS"), "pos: coordinates out of range (not finite or beyond"),
    (lambda: Protein.from_atom37(POS37, MASK[:, :14], "GAS"), "mask: of shape (3, 14) in place of (R, 37)"),
    (lambda: Protein.from_atom37(POS37, MASK[:2], "GAS"), "mask: of 2 residues beside pos of 3"),
    (lambda: Protein.from_atom37(POS37, MASK * 0, "GAS"), "mask: a residue without CA (residue 0; leave out"),
    (lambda: Protein.from_atom37(POS37, np.ones((3, 37)), "GAS"), "mask: GLY has no CB (residue 0; numbers of"),
])  # fmt: skip
def test_what_does_not_fit_is_a_sentence(call, said):
    with np.errstate(invalid="ignore"), pytest.raises(StructureError) as caught:
        call()
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


# ---- Biopython -------------------------------------------------------------------------------------------------------


def assert_same(a, b) -> None:
    assert_equal(a.protein, b.protein)
    assert (a.chain_names, a.dropped, a.labels) == (b.chain_names, b.dropped, b.labels)


@pytest.mark.repeats
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.soak) for part in range(2, 11))])
def test_biopython_gives_the_same(part):
    """All bundled structures, as PDB and as mmCIF: a tenth each from part 1 on."""
    sources = [s for s in find_structures(bundle_path() / "structures.tar").sources][max(part - 1, 0) :: 10]
    for source in sources if part else sorted(sources, key=lambda s: s.size)[:4]:
        text = gzip.decompress(source.member_bytes()).decode("latin-1")
        ours = read_structure(source.name, text)
        theirs = PDBParser(QUIET=True).get_structure("1abc", io.StringIO(text))
        assert_same(read_structure(theirs), ours)
        out, writer = io.StringIO(), MMCIFIO()
        writer.set_structure(theirs)
        writer.save(out)
        again = MMCIFParser(QUIET=True).get_structure("1abc", io.StringIO(out.getvalue()))
        assert_same(read_structure(again), read_structure("x.cif", out.getvalue()))
        assert_equal(read_structure(again).protein, ours.protein)
        for chain in theirs[0]:
            if chain.id in ours.chain_names:
                assert_same(read_structure(chain), read_structure("x", text, chain=[chain.id]))


def test_models_and_traps_of_biopython():
    """Altlocs, a point mutation, an insertion code, a modified residue, water, two models, no occupancy."""
    rows = residue("GLY", 1) + residue("SER", 2, alt="A", occ=0.4) + residue("THR", 2, alt="B", occ=0.6, x=2.1)
    rows += residue("ALA", 3, ("N", "CA", "C", "O", "HA")) + residue("ALA", 3, code="B", x=3.4)
    rows += residue("MSE", 4, het=True, x=4.5) + residue("HOH", 9, ("O",), het=True)
    rows += [{**row, "x": row["x"] + 50, "model": 2} for row in rows]
    for write, parser in ((as_pdb, PDBParser), (as_mmcif, MMCIFParser)):
        text = write(rows, models=True)
        theirs = parser(QUIET=True).get_structure("1abc", io.StringIO(text))
        for model, part in enumerate(theirs):
            ours, alone = read_structure("x", text, model=model), read_structure(part)
            assert_same(read_structure(theirs, model=model), ours)
            assert alone.dropped == ours.dropped - Counter({"other models": 1})
            assert_equal(alone.protein, ours.protein)
        with pytest.raises(StructureError, match=r"^1abc: no such model \(2 models, asked for number 2\)"):
            read_structure(theirs, model=2)
    with pytest.raises(StructureError, match=r"^1abc_A: no such chain \(asked for B, has A\)"):
        read_structure(part["A"], chain="B")
    with pytest.raises(StructureError, match="no atoms in it"):
        read_structure(next(theirs.get_residues()))


# ---- text, some chains ----------------------------------------------------------------------------------------------


def test_text_and_bytes(tmp_path):
    expected = read_structure("x", TEXT.encode())
    (tmp_path / "a.pdb").write_text(TEXT)
    (tmp_path / "a.pdb.gz").write_bytes(gzip.compress(TEXT.encode()))
    for name in ("a.pdb", "a.pdb.gz"):
        assert_same(read_structure(tmp_path / name), expected)
    for data in (TEXT, bytearray(TEXT.encode()), gzip.compress(TEXT.encode()), "REMARK \u4e2d\n" + TEXT):
        assert_same(read_structure("x", data=data), expected)


def test_chains_that_are_kept():
    whole = read_structure("x", TEXT)
    for chain, names in (("A", "A"), (["C", "A"], "AC"), (["C"], "C"), ({"A"}, "A"), (None, "ABC")):
        structure = read_structure("x", TEXT, chain=chain)
        assert structure.chain_names == tuple(names)
        rows = torch.tensor([whole.chain_names[c] in names for c in whole.protein.chain])
        assert torch.equal(structure.protein.pos, whole.protein.select_residues(rows).pos)
        assert structure.protein.chain.tolist() == [k for k in range(len(names)) for _ in "12"]
    for chain, missing in (("AB", "AB"), (["A", "D"], "D"), ("", ""), (["A", "X", "D"], "D, X")):
        with pytest.raises(StructureError, match=rf"no such chain \(asked for {missing}, has A, B, C\)"):
            read_structure("x", TEXT, chain=chain)


def test_chain_ids_of_several_letters():
    rows = []
    for i, chain in enumerate(("A", "B", "AB", "A_2")):
        rows += residue("GLY", 1, chain=chain, x=20.0 * i)
    text = as_mmcif(rows)
    for chain, names in (("AB", ["AB"]), (["B", "A"], ["A", "B"]), ("A_2", ["A_2"]), (["A", "AB"], ["A", "AB"])):
        assert read_structure("x", text, chain=chain).chain_names == tuple(names)


def test_what_is_wrong_in_other_chains_does_not_matter():
    """Of those that are kept alone residues are counted, and refused."""
    rows = residue("GLY", 1, chain="A") + residue("ALA", 1, ("N",), chain="B")
    rows += residue("GLY", 2, chain="C", x=50.0)
    twice = residue("GLY", 7, chain="D", x=70.0) + residue("GLY", 7, chain="D", x=90.0)
    assert read_structure("x", as_pdb(rows), chain="A").dropped == {}
    assert read_structure("x", as_pdb(rows), chain=["A", "B"]).dropped == {"residues without CA": 1}
    assert read_structure("x", as_pdb(rows + twice), chain=["A", "C"]).chain_names == ("A", "C")
    for chain in (None, "D", ["A", "D"]):
        with pytest.raises(StructureError, match=r"the same residue twice \(chain D 7\)"):
            read_structure("x", as_pdb(rows + twice), chain=chain)
