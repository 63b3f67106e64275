"""Packing, selecting, cropping."""

import pytest
import torch
from conftest import real_protein

from siamdiff_min.files import ConfigError
from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein


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
