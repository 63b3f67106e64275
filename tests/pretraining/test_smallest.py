"""The smallest batches: graphs without an edge, and a single node, must be trained on like all others."""

from dataclasses import replace

import pytest
import torch
from conftest import generator, real_protein

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.ops import BatchNorm
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein


def lonely() -> Protein:
    """Four residues whose atoms are all further apart than any edge is long."""
    protein = real_protein("1LCD_A", torch.float32).crop(0, 4)
    return replace(protein, pos=protein.pos * 1000)


def dipeptides() -> Protein:
    """Two residues of two atoms each: their three edges may all be hidden."""
    protein = real_protein("1LCD_A", torch.float32).crop(5, 2)
    return protein.select_atoms((protein.atom_name == CA) | (protein.atom_name == CA + 1))


def one_node() -> Protein:
    protein = real_protein("1LCD_A", torch.float32).crop(0, 1)
    return protein.select_atoms(protein.atom_name == CA)


ALL = [name for name in OBJECTIVES if name not in ("residue-type+distance", "residue-type+angle")]
FEW = ["siamdiff", "residue-type+dihedral", "multiview", "score-matching"]
OF = {("atom", "gearnet"): ALL, ("residue", "gearnet"): ALL, ("atom", "gvp"): FEW, ("residue", "esm-gearnet"): FEW}
CASES = [
    pytest.param(method, *of, marks=() if of[1] == "gearnet" or method == "siamdiff" else pytest.mark.full)
    for of in OF
    for method in OF[of]
    if (method, of[0]) != ("torsional", "residue")
]


@pytest.mark.parametrize("method, level, encoder", CASES)
def test_every_method_trains_on_it(method, level, encoder):
    torch.manual_seed(0)
    objective = OBJECTIVES[method](ENCODERS[encoder](level, "tiny"), level)
    adam = torch.optim.Adam(objective.parameters(), lr=1e-3)
    for step, batch in enumerate((lonely, one_node, dipeptides, lonely, one_node)):
        loss, _ = objective(batch(), generator(step))
        adam.zero_grad()
        loss.backward()
        adam.step()
        assert loss.isfinite(), batch
    assert all(x.isfinite().all() for x in objective.state_dict().values())


def test_a_batch_norm_of_one_row_uses_its_running_statistics_and_keeps_them():
    torch.manual_seed(0)
    norm, x = BatchNorm(5), torch.randn(9, 5)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    for rows in (0, 1):
        before = {k: v.clone() for k, v in norm.state_dict().items()}
        found = norm.train()(x[:rows])
        assert torch.equal(found, norm.eval()(x[:rows]))
        assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())
    plain = torch.nn.BatchNorm1d(5)
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(norm.train()(x), plain(x)) and torch.equal(norm.running_mean, plain.running_mean)
