"""Batches cut by cost: nothing lost, in order, and no piece over the limit."""

import pytest
import torch
from given import real_protein

from siamdiff_min.data import crops, samples
from siamdiff_min.data.crops import cut
from siamdiff_min.data.samples import Sample

NAMES = ["1LCD_A", "2BEG", "1LCD_A", "2BEG", "1LCD_A"]


@pytest.fixture(scope="module")
def proteins():
    return [real_protein(name) for name in NAMES]


@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_crops(proteins, level, count):
    sizes = [p.num_atoms if level == "atom" else p.num_residues for p in proteins]
    limit = count * max(sizes)
    pieces = cut(list(zip(proteins, NAMES)), crops.collate, limit, level)
    assert [name for _, names in pieces for name in names] == NAMES
    assert torch.equal(torch.cat([batch.pos for batch, _ in pieces]), torch.cat([p.pos for p in proteins]))
    cost = [batch.num_atoms if level == "atom" else batch.num_residues for batch, _ in pieces]
    assert all(c <= limit for c in cost)
    first = [sizes[NAMES.index(names[0])] for _, names in pieces]
    assert all(a + b > limit for a, b in zip(cost, first[1:]))  # no piece ends early


def test_an_item_over_the_limit_is_a_piece_of_its_own(proteins):
    assert [names for _, names in cut(list(zip(proteins, NAMES)), crops.collate, 1, "atom")] == [[n] for n in NAMES]


def test_samples_of_two_structures_stay_together(proteins):
    def sample(k: int) -> Sample:
        both = crops.collate([(proteins[k], ""), (proteins[k + 1], "")])[0]
        return Sample(both, torch.ones(both.num_residues).bool(), torch.zeros(1), (NAMES[k],), ("",))

    pieces = cut([sample(k) for k in range(3)], samples.pack_samples, proteins[0].num_atoms, "atom")
    assert [(batch.protein.num_proteins, names) for batch, names in pieces] == [(2, [n]) for n in NAMES[:3]]


def test_no_limit_is_one_batch(proteins):
    ((batch, names),) = cut(list(zip(proteins, NAMES)), crops.collate, None, "atom")
    assert batch.num_proteins == len(NAMES) and names == NAMES
