"""Means and sums over 1,000 rows and more are right under bfloat16, which itself counts to 256 only."""

from dataclasses import replace

import pytest
import torch
from conftest import generator, real_protein

from siamdiff_min.data.samples import Sample
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.ops import segment_mean, segment_sum
from siamdiff_min.protein.protein import Protein


def large(level: str) -> Protein:
    """One protein of more than 1,000 nodes: copies of five chains, far from each other."""
    part = real_protein("2BEG", torch.float32)
    part = part.alpha_carbons() if level == "residue" else part
    copies = [replace(part, pos=part.pos + 200 * k) for k in range(2 if level == "atom" else 8)]
    protein = Protein.pack(copies)
    assert protein.num_atoms > 1000
    return replace(protein, residue_protein=torch.zeros_like(protein.residue_protein), num_proteins=1)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_segments_are_summed_and_counted_in_float32(kind):
    index = torch.arange(3).repeat_interleave(1000)
    x = torch.rand(3000, 4, generator=generator()).to(kind)
    expected = x.double().view(3, 1000, 4)
    for function, by_hand in ((segment_sum, expected.sum(1)), (segment_mean, expected.mean(1))):
        found = function(x, index, 3)
        assert found.dtype == torch.float32 and torch.allclose(found.double(), by_hand, rtol=1e-5)


@pytest.mark.parametrize("encoder, level", [
    ("gearnet", "atom"), ("gearnet", "residue"), ("gvp", "atom"), ("esm-gearnet", "residue"),
])  # fmt: skip
def test_readouts_of_every_encoder_under_autocast(encoder, level):
    torch.manual_seed(0)
    net, protein = ENCODERS[encoder](level, "tiny").eval(), large(level)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        encoding = net(protein)
    node = encoding.node.double()
    mean, sums = node.mean(0), node.sum(0)
    found = encoding.protein[0].double()
    either = torch.minimum((found - mean).abs() / mean.abs().max(), (found - sums).abs() / sums.abs().max())
    assert either.max() < 1e-3, either.max()  # every channel is the mean or the sum of the nodes
    per_residue = torch.stack([node[protein.atom_residue == r].mean(0) for r in (0, 7)])
    assert torch.allclose(encoding.residue[[0, 7]].double(), per_residue, rtol=1e-2, atol=1e-3)


def test_the_mean_over_the_atoms_in_focus_under_autocast():
    torch.manual_seed(0)
    net, protein = ENCODERS["gearnet"]("atom", "tiny").eval(), large("atom")
    everywhere = torch.ones(protein.num_residues, dtype=torch.bool)
    sample = Sample(protein, everywhere, torch.zeros(1), ("x",), ("x",))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        encoding, task = net(protein), TASKS["msp"](net)
        found = task.represent(sample)[0]
    expected = encoding.node.double().mean(0)
    assert (found - expected).abs().max() < 1e-3 * expected.abs().max()
