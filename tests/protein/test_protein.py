"""Packing, selecting, cropping; proteins from memory are checked as files are."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from conftest import generator, load_golden, real_protein
from helpers import Given

from siamdiff_min import ENCODERS, Structure, StructureError
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.check import check_protein
from siamdiff_min.protein.constants import (
    ATOM_ELEMENT,
    ATOM_INDEX,
    ATOM_NAMES,
    CHI_ATOMS,
    ELEMENTS,
    ONE_LETTER,
    PARENT,
    RESIDUE_ATOMS,
    RESIDUES,
    O,
)
from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein
from siamdiff_min.reading.pool import read_all, read_source
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.reading.structure import join


def same(a: Protein, b: Protein) -> bool:
    return a.num_proteins == b.num_proteins and all(torch.equal(getattr(a, f), getattr(b, f)) for f in TENSOR_FIELDS)


def test_unpack_undoes_pack():
    singles = [real_protein("1LCD_A"), real_protein("2BEG"), real_protein("1LCD_A").crop(3, 7)]
    batch = Protein.pack(singles)
    assert batch.num_proteins == 3
    assert batch.residues_per_protein.tolist() == [p.num_residues for p in singles]
    assert batch.atom_protein.bincount().tolist() == [p.num_atoms for p in singles]
    assert all(same(a, b) for a, b in zip(batch.unpack(), singles))
    assert same(Protein.pack([Protein.pack(singles[:2]), singles[2]]), batch)
    with pytest.raises(ConfigError, match="at least one protein"):
        Protein.pack([])


def test_crop_keeps_whole_residues_and_their_place():
    protein = real_protein("1LCD_A")
    crop = protein.crop(10, 5)
    assert crop.num_residues == 5
    assert torch.equal(crop.residue_type, protein.residue_type[10:15])
    assert crop.residue_index.tolist() == [10, 11, 12, 13, 14]
    inside = (protein.atom_residue >= 10) & (protein.atom_residue < 15)
    assert torch.equal(crop.pos, protein.pos[inside])
    assert torch.equal(crop.atom_residue, protein.atom_residue[inside] - 10)
    with pytest.raises(ValueError, match="batch of 2"):
        Protein.pack([protein] * 2).crop(0, 3)


def test_alpha_carbons_are_one_atom_per_residue():
    protein = real_protein("2BEG")
    view = protein.alpha_carbons()
    assert view.num_atoms == protein.num_residues == view.num_residues
    assert torch.equal(view.pos, protein.pos[protein.atom_name == 1])
    with pytest.raises(ValueError, match="one CA per residue"):
        protein.select_atoms(torch.arange(protein.num_atoms) > 5).alpha_carbons()


def test_nothing_is_written_in_place():
    protein = real_protein()
    before = [getattr(protein, f).clone() for f in TENSOR_FIELDS]
    protein.crop(2, 9).alpha_carbons()
    Protein.pack([protein, protein]).unpack()
    assert all(torch.equal(getattr(protein, f), x) for f, x in zip(TENSOR_FIELDS, before))
    with pytest.raises(AttributeError):
        protein.pos = None


# ---- arrays, what `embed` is given, what a store takes in ------------------------------------------------------------


WHOLE = real_protein("1LCD_A", torch.float32)
WHOLE = replace(WHOLE, chain=torch.zeros_like(WHOLE.chain))
CA = WHOLE.alpha_carbons()
WRONG = {
    "nanometres": (CA.pos / 10, "not the size of a protein (0.38 angstrom from CA to the next CA"),
    "zeros": (CA.pos * 0, "not the size of a protein (0.00"),
    "padding": (torch.where(torch.arange(51)[:, None] < 40, CA.pos, 0), "denser than matter"),
    "times ten": (CA.pos * 10, "not the size of a protein (38"),
    "another order": (CA.pos[torch.randperm(51, generator=generator())], "not the size of a protein (1"),
    "nan": (CA.pos.where(CA.pos < CA.pos.max(), torch.nan), "not finite"),
    "far away": (CA.pos + 1e6, "coordinates out of range"),
}


@pytest.mark.parametrize("pos, said", WRONG.values(), ids=list(WRONG))
def test_what_is_no_protein_is_refused(pos, said):
    with pytest.raises(StructureError) as caught:
        Protein.from_ca(pos, CA.residue_type)
    assert said in str(caught.value)
    wrong = replace(CA, pos=pos)
    with pytest.raises(StructureError, match=r"^1: ") as caught:
        ENCODERS["gearnet"]("residue", "tiny").embed([CA, wrong, Structure(CA, ("A",))])
    assert said in str(caught.value)


@pytest.mark.parametrize("scale", [0.1, 0.5, 0.7, 0.85, 1.2, 1.5, 1.8897, 2.5])
def test_another_unit_is_refused_by_name(scale):
    """A whole protein and its CA; the same over several chains that begin at other numbers."""
    calls = [partial(Protein.from_ca, CA.pos * scale, CA.residue_type)]
    for protein in (WHOLE, CA, real_protein("2BEG", torch.float32)):
        calls.append(partial(check_protein, "x", replace(protein, pos=protein.pos * scale)))
    for call in calls:
        with pytest.raises(StructureError, match="not the size of a protein") as caught:
            call()
        said = str(caught.value).rpartition("scaled by ")[2].partition("?")[0]
        assert float(said) == pytest.approx(scale, rel=0.02)
    gaps = replace(CA, residue_number=CA.residue_number * 2)  # no residue follows another: no sign
    check_protein("x", replace(gaps, pos=gaps.pos * 1.2))


@pytest.mark.parametrize("copies, apart", [(2, 0.3), (2, 1.2), (3, 1.2)])
def test_copies_of_a_chain_are_refused(copies, apart):
    moved = [replace(WHOLE, pos=WHOLE.pos + apart * i / 3**0.5) for i in range(copies)]
    joined = join([Structure(protein, (name,)) for protein, name in zip(moved, "QRS")])
    with pytest.raises(StructureError, match=r"\(chain 'Q' and 'R'\): joined models|denser than matter"):
        check_protein("x", joined.protein, joined.chain_names)
    pair = replace(joined, labels={"first": WHOLE.num_residues})
    if copies == 2:
        assert isinstance(read_source(Given("pair", pair)), Structure)  # the two sides of a mutation
    far = join([Structure(WHOLE, ("Q",)), Structure(replace(WHOLE, pos=WHOLE.pos + 60), ("R",))])
    check_protein("x", far.protein, far.chain_names)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(kind):
    """It moves atoms; the sentence names the way that does not."""
    pos = CA.pos.to(kind)
    with pytest.raises(StructureError, match=r"half precision .*torch\.autocast"):
        check_protein("x", replace(CA, pos=pos))
    with pytest.raises(StructureError, match=r"^pos: .*half precision .*torch\.autocast"):
        Protein.from_ca(pos, CA.residue_type)


def test_what_is_not_finite_is_named():
    nan = CA.pos.index_fill(0, torch.tensor([7]), torch.nan)
    number = int(CA.residue_number[7])
    with pytest.raises(StructureError, match=rf"out of range .*: CA of \w{{3}} {number} of chain 'Q'"):
        check_protein("x", replace(CA, pos=nan), ("Q",))


def test_an_encoder_of_residues_needs_their_carbons():
    for protein, said in ((CA.crop(0, 0), "no residue"), (WHOLE.select_atoms(WHOLE.atom_name != 1), "one CA")):
        with pytest.raises(StructureError, match=said):
            ENCODERS["gearnet"]("residue", "tiny").embed(protein)


def test_a_store_takes_in_nothing_else():
    wrong = {name: replace(CA, pos=pos) for name, (pos, _) in WRONG.items()}
    sources = [Given(name, Structure(protein, ("A",), Counter())) for name, protein in ({"right": CA} | wrong).items()]
    right, *others = read_all(sources)
    assert isinstance(right, Structure) and all(isinstance(error, StructureError) for error in others)


def test_all_atoms_are_looked_at():
    far = WHOLE.pos.index_add(0, torch.tensor([7]), torch.tensor([[0, 20.0, 0]]))
    with pytest.raises(StructureError, match=r"x: torn residue \(\w{3} \d+ of chain 'Q', \d\d angstrom"):
        check_protein("x", replace(WHOLE, pos=far), ("Q",))
    with pytest.raises(StructureError, match="not the size of a protein"):
        check_protein("x", replace(WHOLE, pos=WHOLE.pos * 10))


def test_real_structures_short_ones_and_sites_are_no_less_proteins():
    sources = find_structures(bundle_path()).sources[::20]
    assert len(sources) > 10 and all(isinstance(x, Structure) for x in read_all(sources))
    near = (CA.pos - CA.pos[20]).norm(dim=1) < 10  # the residues around one, as files of binding sites hold them
    check_protein("x", WHOLE.select_residues(near))
    check_protein("x", replace(CA.crop(0, 5), pos=CA.crop(0, 5).pos * 4))  # a few residues may lie apart
    check_protein("x", WHOLE.select_atoms(WHOLE.atom_name != 1))  # without CA: the encoder decides
    check_protein("x", WHOLE.select_atoms(WHOLE.atom_name > O))  # side chains alone
    check_protein("x", WHOLE.crop(0, 0))


# ---- the chemistry tables against counts from the literature and against bonds measured in real residues -------------


# Heavy atoms without OXT, and rotatable side-chain bonds (IUPAC-IUB 1970), by one-letter code.
HEAVY = dict(G=4, A=5, S=6, P=7, V=7, T=7, C=6, I=8, L=8, N=8, D=8, Q=9, K=9, E=9, M=8, H=10, F=11, R=11, Y=12, W=14)
CHI = dict(G=0, A=0, S=1, P=2, V=1, T=1, C=1, I=2, L=2, N=2, D=2, Q=3, K=4, E=3, M=3, H=2, F=2, R=4, Y=2, W=2)


def test_counts():
    assert len(RESIDUES) == len(set(RESIDUES)) == 20
    assert len(ATOM_NAMES) == len(set(ATOM_NAMES)) == 37 and ATOM_NAMES[:4] == ["N", "CA", "C", "O"]
    for residue, letter in zip(RESIDUES, ONE_LETTER):
        assert len(RESIDUE_ATOMS[residue]) == len(set(RESIDUE_ATOMS[residue])) == HEAVY[letter], residue
        assert len(CHI_ATOMS[residue]) == CHI[letter], residue
        assert all(atom in ATOM_INDEX for atom in RESIDUE_ATOMS[residue])
    assert set(PARENT.values()) <= set(RESIDUES)
    assert [ELEMENTS[e] for e in ATOM_ELEMENT] == [name[0] for name in ATOM_NAMES]
    assert ELEMENTS.index("C") == 6 and ELEMENTS.index("S") == 16  # atomic numbers (differences.md, row 13)


def test_chi_atoms_are_bonded_in_order_in_real_residues():
    golden = load_golden("rotamer_20types")  # three real residues of each type
    protein = golden.protein()
    seen = set()
    for r in range(protein.num_residues):
        residue = RESIDUES[protein.residue_type[r]]
        inside = (protein.atom_residue == r).nonzero().squeeze(1)
        at = {ATOM_NAMES[protein.atom_name[i]]: protein.pos[i] for i in inside}
        assert set(RESIDUE_ATOMS[residue]) <= set(at)
        for previous, chi in zip([None, *CHI_ATOMS[residue]], CHI_ATOMS[residue]):
            names = chi.split()
            for a, b in pairwise(names):
                assert 1.2 < (at[a] - at[b]).norm() < 1.95, (residue, a, b)  # C-C 1.5, C-S 1.8
            if previous:
                assert previous.split()[1:] == names[:3]  # each chi continues the chain of the one before
        seen.add(residue)
    assert seen == set(RESIDUES)


def test_a_letter_outside_the_20_is_left_out_of_the_table():
    """Other versions of Biopython may list X, U or B."""
    code = "from Bio.Data import PDBData as d; d.protein_letters_3to1_extended = {'MSE': 'M', 'ZZX': 'X'}\n"
    code += "from siamdiff_min.protein.constants import MODIFIED; print('MSE' in MODIFIED, 'ZZX' in MODIFIED)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]
