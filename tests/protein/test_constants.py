"""The chemistry tables against counts from the literature and against bonds measured in real residues."""

import subprocess
import sys
from itertools import pairwise

import torch
from conftest import load_golden

from siamdiff_min.protein.constants import (
    ATOM_ELEMENT,
    ATOM_INDEX,
    ATOM_NAMES,
    CHI_ATOMS,
    ELEMENTS,
    GREEK_RANK,
    ONE_LETTER,
    PARENT,
    RESIDUE_ATOMS,
    RESIDUES,
)

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


def test_atoms_beyond_a_chi_are_those_cut_off_by_its_bond():
    """Remove the middle bond of a chi from the covalent graph: what is cut off from N must be what the rank moves."""
    protein = load_golden("rotamer_20types").protein()
    for r in range(protein.num_residues):
        residue = RESIDUES[protein.residue_type[r]]
        inside = (protein.atom_residue == r).nonzero().squeeze(1)
        names = [ATOM_NAMES[n] for n in protein.atom_name[inside]]
        bonded = torch.cdist(protein.pos[inside], protein.pos[inside]) < 1.95
        for chi in CHI_ATOMS[residue] if residue != "PRO" else []:  # proline is a ring: nothing is cut off
            _, a, b, last = chi.split()
            graph = bonded.clone()
            graph[names.index(a), names.index(b)] = graph[names.index(b), names.index(a)] = False
            reached = {"N"}
            while (more := {names[j] for n in reached for j in graph[names.index(n)].nonzero().flatten()}) - reached:
                reached |= more
            moved = {n for n in names if GREEK_RANK[ATOM_INDEX[n]] >= GREEK_RANK[ATOM_INDEX[last]]}
            assert set(names) - reached - {b} == moved, (residue, chi)


def test_a_letter_outside_the_20_is_left_out_of_the_table():
    """Other versions of Biopython may list X, U or B."""
    code = "from Bio.Data import PDBData as d; d.protein_letters_3to1_extended = {'MSE': 'M', 'ZZX': 'X'}\n"
    code += "from siamdiff_min.protein.constants import MODIFIED; print('MSE' in MODIFIED, 'ZZX' in MODIFIED)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]
