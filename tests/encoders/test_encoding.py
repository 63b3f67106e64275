"""An `Encoding` on another device, and with a row for every protein."""

import pytest
import torch
from conftest import real_protein

from siamdiff_min.encoders import ENCODERS, Encoding
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.protein import Protein


@pytest.mark.parametrize(
    "name, level", [("gearnet", "atom"), ("gearnet", "residue"), ("gvp", "atom"), ("esm-gearnet", "residue")]
)
def test_padded_rows_are_the_residues_of_a_protein(name, level):
    sizes = [9, 30, 1]
    batch = Protein.pack([real_protein("2BEG", torch.float32).crop(3, size) for size in sizes])
    encoder = ENCODERS[name](level, "tiny").eval()
    encoding = encoder(batch)
    padded, mask = encoding.padded()
    assert padded.shape == (3, 30, encoder.out_dim) and mask.dtype == torch.bool
    assert mask.tolist() == [[k < size for k in range(30)] for size in sizes]
    assert torch.equal(padded[mask], encoding.residue) and not padded[~mask].any()
    for row, part in zip(padded, encoding.residue.split(sizes)):
        assert torch.equal(row[: len(part)], part)
    (gradient,) = torch.autograd.grad(padded.sum(), encoding.residue)
    assert torch.equal(gradient, torch.ones_like(encoding.residue))


def test_an_encoding_moves_as_a_whole():
    encoding = Encoding(torch.zeros(5, 2), torch.zeros(3, 2), torch.zeros(1, 2), torch.zeros(3, dtype=torch.long))
    assert {x.device.type for x in vars(encoding.to("meta")).values()} == {"meta"}
    assert encoding.to("cpu").padded()[0].shape == (1, 3, 2)


def test_an_encoding_that_does_not_know_its_proteins_says_what_it_needs():
    encoding = Encoding(torch.zeros(5, 2), torch.zeros(3, 2), torch.zeros(1, 2))
    assert encoding.to("cpu").residue_protein is None
    with pytest.raises(ConfigError, match=r"padded needs Encoding\(\.\.\., residue_protein=protein.residue_protein\)"):
        encoding.padded()
