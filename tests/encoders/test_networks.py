"""GVP: the numbers of gvp-pytorch and of the official network, equivariance of every layer, promises of an encoder."""

import ast
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from conftest import Golden, generator, golden_graph, load_golden, relative_error, rigid_motion
from helpers import wave

from siamdiff_min.conventions import CONVENTIONS
from siamdiff_min.encoders import ENCODERS, formulas, rowsum
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.encoders.graph import ATOM_GRAPH, RESIDUE_GRAPH, Graph, one_hot, sort_key
from siamdiff_min.encoders.gvp import GVP, GVPGNN, GVPConv, GVPConvLayer, TupleDropout, TupleNorm
from siamdiff_min.encoders.ops import Links
from siamdiff_min.protein.protein import Protein

LAYERS = {  # fixture -> the layer it was made with
    "gvp_gate_relu_none": lambda: GVP((10, 4), (8, 3)),
    "gvp_no_vout": lambda: GVP((10, 4), (8, 0)),
    "gvp_no_vin": lambda: GVP((10, 0), (8, 3)),
    "layernorm": lambda: TupleNorm(10),
    "layernorm_no_v": lambda: TupleNorm(10),
    "layernorm_zero_v": lambda: TupleNorm(10),
}


def weights(golden: Golden, prefix: str) -> dict[str, torch.Tensor]:
    """The weights of a fixture, without gvp-pytorch's empty `dummy_param`, and with one name spelled correctly."""
    state = {k.replace("embdding", "embedding"): v for k, v in golden.state(prefix).items()}
    return {k: v for k, v in state.items() if not k.endswith("dummy_param")}


def space_first(v: torch.Tensor) -> torch.Tensor:
    """(K, c, 3) of gvp-pytorch <-> (K, 3, c) of this package."""
    return v.transpose(1, 2)


def links(src: torch.Tensor, dst: torch.Tensor, num_nodes: int) -> Links:
    return Links(src, dst, torch.zeros_like(src), num_nodes, num_nodes, 1)


@pytest.mark.parametrize("name", LAYERS)
def test_golden_layer(name):
    golden = load_golden("gvp_layers")
    layer = LAYERS[name]()
    layer.load_state_dict(weights(golden, f"{name}/sd/"), strict=True)
    if name == "layernorm_zero_v":
        golden["v"][0] = 0
    v = {"gvp_no_vin": None, "layernorm_no_v": None}.get(name, space_first(golden["v"]))
    s, v = layer(golden["s"], v)
    assert relative_error(s, golden[f"{name}/out_s"]) < 1e-5
    assert (v is None) == (f"{name}/out_v" not in golden)
    assert v is None or (space_first(v) - golden[f"{name}/out_v"]).abs().max() < 1e-5


def golden_input(golden: Golden, dtype: torch.dtype) -> tuple[Protein, Graph]:
    """The atoms and edges that were given to the official network."""
    residue = golden["in_atom2residue"]
    atom_feature = one_hot(golden["in_atom_type"], 18, dtype)
    residue_feature = golden["in_residue_feature"].to(dtype)[residue]
    none = torch.zeros(40, dtype=torch.long)
    of = torch.arange(2).repeat_interleave(golden["in_num_residues"])
    pos = golden["in_node_position"].to(dtype)
    protein = Protein(pos, residue, residue, residue, none, none.bool(), none, none, none, none, of, 2)
    src, dst, relation = golden["in_edge_list"].unbind(1)
    order = sort_key(src, dst, relation, len(pos), 1).argsort()
    src, dst, relation = src[order], dst[order], relation[order]
    x = torch.cat([atom_feature, residue_feature], dim=1)
    return protein, Graph(src, dst, relation, relation[:, None].to(dtype), x, 1)


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("dtype, bits, tolerance", [(torch.float32, 32, 1e-5), (torch.float64, 64, 1e-12)])
def test_golden_network(dtype, bits, tolerance):
    golden = load_golden("gvpgnn_atom")
    net = GVPGNN(ATOM_GRAPH, longest=20.0).to(dtype).eval()
    net.load_state_dict(weights(golden, "sd/"), strict=True)
    encoding = net(*golden_input(golden, dtype))
    assert relative_error(encoding.node, golden[f"out{bits}/node_feature"]) < tolerance
    assert relative_error(encoding.protein, golden[f"out{bits}/graph_feature"]) < tolerance
    assert sum(p.numel() for p in net.parameters()) == 874_982


@pytest.mark.usefixtures("kernel_form")
def test_golden_gradients():
    """In float64 against the stored float32: one of the four is a single number, a sum that cancels to 1e-5."""
    golden = load_golden("gvpgnn_atom")
    net = GVPGNN(ATOM_GRAPH, longest=20.0).double().eval()
    net.load_state_dict(weights(golden, "sd/"))
    wave(net(*golden_input(golden, torch.float64)).node).backward()
    parameters, expected = dict(net.named_parameters()), golden.state("out32/grad/")
    assert len(expected) == 4
    assert max(relative_error(parameters[name].grad, g) for name, g in expected.items()) < 1e-5


def test_a_node_without_edges_receives_zeros():
    torch.manual_seed(0)
    conv = GVPConv((7, 3), (5, 4), (6, 2))
    src, dst = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 1])
    node = torch.randn(3, 7), torch.randn(3, 3, 3)
    edge = torch.randn(3, 6), torch.randn(3, 3, 2)
    s, v = conv(node, edge, links(src, dst, 3))
    assert not s[0].any() and not v[0].any() and s[1:].all()


@pytest.mark.parametrize("name", [*LAYERS, "conv", "convlayer", "dropout"])
def test_every_layer_is_equivariant(name):
    """Scalars stay, vectors turn with the input; reflections included, as no layer knows left from right."""
    torch.manual_seed(0)
    g, rotation = generator(1), -rigid_motion(2)[0]
    src, dst = torch.randint(0, 12, (2, 40), generator=g)
    s, es = (torch.randn(n, c, dtype=torch.float64, generator=g) for n, c in ((12, 10), (40, 6)))
    v, ev = (torch.randn(n, 3, c, dtype=torch.float64, generator=g) for n, c in ((12, 4), (40, 2)))
    if name in ("conv", "convlayer"):
        layer = GVPConv((10, 4), (8, 3), (6, 2)) if name == "conv" else GVPConvLayer((10, 4), (6, 2)).eval()
    else:
        layer = TupleDropout(0.5) if name == "dropout" else LAYERS[name]()
    layer = layer.double()

    def turn(x):
        return None if x is None else rotation @ x

    def run(v, ev):
        torch.manual_seed(1)  # dropout
        if name in ("conv", "convlayer"):
            return layer((s, v), (es, ev), links(src, dst, 12))
        return layer(s, None if name in ("gvp_no_vin", "layernorm_no_v") else v)

    (here_s, here_v), (there_s, there_v) = run(v, ev), run(turn(v), turn(ev))
    assert relative_error(there_s, here_s.detach()) < 1e-9
    assert here_v is None or (there_v - turn(here_v)).abs().max() < 1e-9
    if here_v is not None and name != "gvp_no_vin":
        assert (here_v - turn(here_v)).abs().max() > 0.01


def test_dropout_drops_whole_vectors_and_nothing_in_evaluation():
    torch.manual_seed(0)
    drop = TupleDropout(0.25)
    s, v = drop(torch.ones(400, 10), torch.ones(400, 3, 10))
    assert torch.equal(s.unique(), torch.tensor([0.0, 4 / 3])) and torch.equal(v[:, 0], v[:, 2])
    for x in (s, v[:, 0]):
        assert abs((x == 0).float().mean() - 0.25) < 0.03  # 4 standard deviations of 4,000 draws
    assert not torch.equal(s, v[:, 0])
    s, v = drop.eval()(torch.ones(4, 10), torch.ones(4, 3, 10))
    assert s.eq(1).all() and v.eq(1).all()


@pytest.mark.parametrize("size, layers, dims", [("paper", 5, (100, 16)), ("tiny", 3, (32, 8))])
def test_sizes_of_the_builder(size, layers, dims):
    for preset in ("paper", "official"):
        net = ENCODERS["gvp"]("atom", size, preset)
        last = net.layers[0].conv.message_func[2]
        assert (len(net.layers), last.ws.out_features, last.wv.out_features) == (layers, *dims)
        assert net.out_dim == sum(net.layer_dims) == dims[0]
        assert net.builder == replace(ATOM_GRAPH, conventions=CONVENTIONS[preset]) and net.builder.radius == 4.5
        assert net.longest == {"paper": 4.5, "official": 20}[preset]
        assert net.layers[0].dropout.rate == 0.1  # App. H
        kinds = {type(module.scalar_norm) for module in net.modules() if isinstance(module, TupleNorm)}
        assert kinds == {torch.nn.LayerNorm}
        with pytest.raises(ValueError, match=r"gvp exists at atom level only .* not at residue level"):
            ENCODERS["gvp"]("residue", size, preset)


# ---- gearnet-edge ----------------------------------------------------------------------------------------------------


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
def test_golden_gradients_of_gearnet(mode):
    """To 2e-3: a ReLU whose input is zero to rounding passes its gradient or not."""
    golden = load_golden("gearnet_res_6x32")
    net = GearNet(*CASES["gearnet_res_6x32"])
    net.load_state_dict(golden.state())
    net.train(mode == "train")
    protein, graph = golden_graph(golden)
    x = graph.node_feature.requires_grad_()
    encoding = net(protein, graph)
    (wave(encoding.node) + wave(encoding.protein)).backward()
    grads = {"input": x.grad, **{n: p.grad for n, p in net.named_parameters()}}
    for name, expected in golden.state(f"out32/{mode}/grad/").items():
        assert relative_error(grads[name], expected) < 2e-3, name


@pytest.mark.parametrize("level, short", [("atom", "atom"), ("residue", "res")])
def test_sizes_and_names_are_those_of_the_released_encoders(level, short):
    golden = load_golden(f"ckpt_keys_{short}")
    net = ENCODERS["gearnet"](level)
    assert sum(p.numel() for p in net.parameters()) == {"atom": 834_503, "residue": 20_145_635}[level]
    shapes = {k: tuple(v.shape) for k, v in net.state_dict().items()}
    assert shapes == {str(k): ast.literal_eval(str(s)) for k, s in zip(golden["sd_keys"], golden["sd_shapes"])}


@pytest.mark.parametrize("sources, relations", [(9, 4), (9, 1), (14, 3)])
@pytest.mark.parametrize("block", [2, 1024])  # rows of sums at a time, the last fewer; all at once
def test_relational_sums_equal_the_plain_formula_and_a_double_loop(monkeypatch, block, sources, relations):
    """Values and gradients in both forms."""
    monkeypatch.setattr(rowsum, "BLOCK", block)
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
