"""GearNet-Edge: the official code's numbers, sizes, and what an encoder promises."""

import ast
from unittest.mock import patch

import pytest
import torch
from conftest import deviation, generator, golden_graph, load_golden, relative_error
from helpers import wave

from siamdiff_min.encoders import ENCODERS, fast, formulas
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.encoders.graph import RESIDUE_GRAPH
from siamdiff_min.encoders.ops import Links

CASES = {  # fixture -> the network it was made with
    "gearnet_res_6x32": (RESIDUE_GRAPH, [32] * 6, 8, "sum"),
    "gearnet_noedge_3x24": (RESIDUE_GRAPH, [24] * 3, 0, "mean"),
}


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_golden_output(mode, device):
    name, golden, tolerance = "gearnet_res_6x32", load_golden("gearnet_res_6x32"), {"cpu": 1e-5, "cuda": 5e-5}[device]
    net = GearNet(*CASES[name]).to(device)
    net.load_state_dict(golden.state(), strict=True)
    encoding = net.train(mode == "train")(*golden_graph(golden, device=device))
    assert relative_error(encoding.node[::16], golden[f"out32/{mode}/node_feature"]) < tolerance
    assert relative_error(encoding.protein, golden[f"out32/{mode}/graph_feature"]) < tolerance
    double = GearNet(*CASES[name]).double().to(device)
    double.load_state_dict(golden.state())
    encoding = double.train(mode == "train")(*golden_graph(golden, torch.float64, device))
    assert relative_error(encoding.protein, golden[f"out64/{mode}/graph_feature"]) < 1e-7


@pytest.mark.usefixtures("kernel_form")
def test_golden_without_edge_messages():
    golden = load_golden("gearnet_noedge_3x24")
    net = GearNet(*CASES["gearnet_noedge_3x24"])
    net.load_state_dict(golden.state(), strict=True)
    encoding = net.eval()(*golden_graph(golden))
    assert relative_error(encoding.node[:, -24:], golden["node_feature"]) < 1e-5  # made without concatenation
    assert relative_error(encoding.protein[:, -24:], golden["graph_feature"]) < 1e-5


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_golden_gradients(mode, near_zero_relus):
    golden = load_golden("gearnet_res_6x32")
    net = GearNet(*CASES["gearnet_res_6x32"])
    net.train(mode == "train")
    protein, graph = golden_graph(golden)
    x = graph.node_feature.requires_grad_()
    prefix = f"out32/{mode}/grad/"
    expected = golden.state(prefix)

    def error() -> torch.Tensor:
        net.load_state_dict(golden.state())
        net.zero_grad()
        x.grad = None
        encoding = net(protein, graph)
        (wave(encoding.node) + wave(encoding.protein)).backward()
        grads = {"input": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
        return torch.cat([deviation(grads[n], g) for n, g in expected.items()])

    assert near_zero_relus(error) < 1e-5


@pytest.mark.parametrize("level, short", [("atom", "atom"), ("residue", "res")])
def test_sizes_and_names_are_those_of_the_released_encoders(level, short):
    golden = load_golden(f"ckpt_keys_{short}")
    net = ENCODERS["gearnet"](level)
    assert sum(p.numel() for p in net.parameters()) == {"atom": 834_503, "residue": 20_145_635}[level]
    shapes = {k: tuple(v.shape) for k, v in net.state_dict().items()}
    assert shapes == {str(k): ast.literal_eval(str(s)) for k, s in zip(golden["sd_keys"], golden["sd_shapes"])}


@pytest.mark.parametrize("sources, relations", [(9, 4), (9, 1), (14, 3)])  # maps first, sums first, sums first
@pytest.mark.parametrize("block", [1, 48 << 20])  # bytes: 16 columns at a time, the last fewer; all at once
def test_relational_sums_equal_the_plain_formula_and_a_double_loop(monkeypatch, block, sources, relations):
    """Values and gradients in both forms."""
    monkeypatch.setattr(fast, "BLOCK", block)
    linear = torch.nn.Linear(6 * relations, 40).double()
    source, target, relation = (
        torch.randint(0, size, (40,), generator=generator(k)) for k, size in enumerate((sources, 9, relations))
    )
    order = (target * relations + relation).argsort()  # as the links of a graph
    source, target, relation = source[order], target[order], relation[order]
    x = torch.randn(sources, 6, dtype=torch.float64, generator=generator(3), requires_grad=True)
    expected = [linear.bias.clone() for _ in range(9)]
    for s, t, r in zip(source.tolist(), target.tolist(), relation.tolist()):
        expected[t] = expected[t] + linear.weight[:, 6 * r : 6 * r + 6] @ x[s]
    results = [torch.stack(expected)]
    for form in formulas.FORMS:
        with patch.object(formulas, "form", form):
            results.append(formulas.aggregate(x, Links(source, target, relation, sources, 9, relations), linear))
    results = [(y, *torch.autograd.grad(wave(y), [x, linear.weight, linear.bias])) for y in results]
    for found in results[1:]:
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, results[0]))
