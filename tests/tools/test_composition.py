"""Length and composition, and the surroundings of a residue, by hand."""

import numpy as np
import torch
from conftest import real_protein

from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein
from siamdiff_min.tools.table.composition import RADIUS, composition, surroundings


def test_composition_and_log_length():
    two = Protein.pack([real_protein("1LCD_A"), real_protein("1LCD_A").crop(3, 10)])
    found = composition(two).numpy()
    for row, types in zip(found, (two.residue_type[:51], two.residue_type[51:])):
        count = np.bincount(types.numpy(), minlength=20)
        assert np.abs(row[:20] - count / len(types)).max() < 1e-12 and row[20] == np.log(len(types))


def test_surroundings_of_a_residue():
    """Its type, those of two neighbours on each side in its chain, and the number of residues within 10 angstrom."""
    protein = real_protein("2BEG")
    focus = torch.zeros(protein.num_residues, dtype=torch.bool)
    rows = [0, 1, 60, protein.num_residues - 1]
    focus[rows] = True
    found = surroundings(protein, focus).numpy()
    ca = protein.pos[protein.atom_name == CA].numpy()
    types = protein.residue_type.tolist()
    for row, i in zip(found, rows):
        blocks = row[:100].reshape(5, 20)
        for block, offset in zip(blocks, (0, -1, 1, -2, 2)):
            j = i + offset
            there = 0 <= j < len(types) and protein.chain[j] == protein.chain[i]
            assert np.array_equal(block, np.eye(20)[types[j]] if there else np.zeros(20))
        distance = np.linalg.norm(ca - ca[i], axis=1)
        assert row[100] == (distance <= RADIUS).sum() - 1
