"""The published and the fast formulas: the environment chooses, nothing else; sums against double loops."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import generator, real_protein

from siamdiff_min.encoders import ENCODERS, Encoding, fast, formulas, rowsum
from siamdiff_min.encoders.fast import pair_linear
from siamdiff_min.encoders.ops import MLP, Links, segment_mean, segment_sum
from siamdiff_min.encoders.piecewise import Piecewise, scalar_layers
from siamdiff_min.encoders.rowsum import RowSum
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES


def test_a_form_that_does_not_exist_is_a_sentence(monkeypatch):
    monkeypatch.setattr(formulas, "form", "quick")
    with pytest.raises(ConfigError, match="SIAMDIFF_FORMULAS is 'quick'; there are plain and fast"):
        formulas.aggregate(torch.zeros(0), None, torch.nn.Linear(1, 1))


def test_the_environment_chooses(monkeypatch):
    monkeypatch.setenv("SIAMDIFF_FORMULAS", "plain")
    spec = importlib.util.spec_from_file_location("siamdiff_min.encoders.formulas_again", formulas.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert not again.is_fast()


# ---- modules that behave ---------------------------------------------------------------------------------------------


def objective(encoder: str):
    torch.manual_seed(0)
    return OBJECTIVES["siamdiff"](ENCODERS[encoder]("residue", "tiny"), "residue").double()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of torch: the first layers' inputs are data
@pytest.mark.parametrize("encoder", ["gearnet", "esm-gearnet-edge"])
def test_hooks_on_every_module_fire_and_keep_what_it_returned(encoder):
    siamdiff, protein, returned, gradient = objective(encoder), real_protein(), {}, set()
    expected, _ = siamdiff(protein, generator())
    modules = {name: m for name, m in siamdiff.named_modules() if not isinstance(m, torch.nn.ModuleList)}

    def keep(module, given, out):
        returned[module] = out, out.clone() if isinstance(out, torch.Tensor) else None

    for module in modules.values():
        module.register_forward_hook(keep)
    found, _ = siamdiff(protein, generator())
    assert returned.keys() == {*modules.values()} and torch.isclose(found, expected, rtol=1e-12)
    tensors = {name: returned[module] for name, module in modules.items() if returned[module][1] is not None}
    assert len(tensors) > 20 and [name for name, (out, was) in tensors.items() if not torch.equal(out, was)] == []
    for name in tensors:
        modules[name].register_full_backward_hook(lambda *_, name=name: gradient.add(name))
    siamdiff(protein, generator())[0].backward()
    assert gradient == tensors.keys()


def test_heads_of_another_kind_or_depth_are_called():
    siamdiff, protein = objective("gearnet"), real_protein()
    expected, _ = siamdiff(protein, generator())
    first, second, third = siamdiff.dist_mlp.layers
    siamdiff.dist_mlp = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)
    assert torch.isclose(siamdiff(protein, generator())[0], expected, rtol=1e-10)
    siamdiff.dist_mlp = MLP(1, 8, 8, 8, third.out_features).double()
    assert siamdiff(protein, generator())[0].isfinite()


def test_the_gradient_of_coordinates_counts_the_lengths_that_the_heads_see(monkeypatch):
    siamdiff, gradients = objective("gearnet"), []
    for layer in siamdiff.dist_mlp.layers:
        layer.weight.data *= 30  # or the part of the lengths would be small
    for form in formulas.FORMS:
        monkeypatch.setattr(formulas, "form", form)
        protein = real_protein()
        protein.pos.requires_grad_()
        siamdiff(protein, generator())[0].backward()
        gradients.append(protein.pos.grad)
    assert (gradients[0] - gradients[1]).norm() < 1e-9 * gradients[0].norm()


class LoRA(torch.nn.Module):
    """W x + B A x in place of W x."""

    def __init__(self, base: torch.nn.Linear):
        super().__init__()
        base.requires_grad_(False)
        self.base = base
        self.a = torch.nn.Parameter(torch.randn(2, base.in_features, generator=generator(1), dtype=torch.float64) / 4)
        self.b = torch.nn.Parameter(torch.randn(base.out_features, 2, generator=generator(2), dtype=torch.float64) / 4)

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def test_replaced_linear_layers_are_called():
    lora, merged, protein = objective("gearnet"), objective("gearnet"), real_protein()
    for name, layer in list(lora.named_modules()):
        if isinstance(layer, torch.nn.Linear):
            lora.set_submodule(name, added := LoRA(layer))
            merged.get_submodule(name).weight.data += (added.b @ added.a).detach()
    found, _ = lora(protein, generator())
    found.backward()
    assert torch.isclose(found, merged(protein, generator())[0], rtol=1e-10)
    learning = {name for name, x in lora.named_parameters() if x.grad is not None and x.grad.any()}
    assert {name for name, _ in lora.named_parameters() if name.endswith((".a", ".b"))} <= learning


def test_misspelt_names_and_other_precisions_are_sentences():
    with pytest.raises(ConfigError, match="there is no encoder 'gearNet'; there are gearnet, gvp, esm-gearnet"):
        ENCODERS["gearNet"]
    encoder, protein = ENCODERS["gearnet"]("residue", "tiny"), real_protein(dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"are torch.float64, the coordinates torch.float32: give"):
        encoder.double()(protein)
    for half in (torch.float16, torch.bfloat16):  # vectors of rounded coordinates are 9 % off
        for pos in (protein.pos, protein.pos.to(half)):
            with pytest.raises(ConfigError, match=r"moves atoms by up to .25 angstrom; keep both in float32"):
                encoder.to(half)(replace(protein, pos=pos))


# ---- under bf16 ------------------------------------------------------------------------------------------------------


def weights(*layers: tuple[list, list], device: str) -> MLP:
    """An MLP of these weights and biases."""
    mlp = MLP(len(layers[0][0][0]), *(len(bias) for _, bias in layers))
    for layer, (weight, bias) in zip(mlp.layers, layers, strict=True):
        layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    return mlp.to(device)


def scores(a, pos, i, j, dist_mlp, struct_mlp):
    """The scores of the pairs i, j under bf16."""
    pair = torch.minimum(i, j) * len(pos) + torch.maximum(i, j)
    graph = SimpleNamespace(src=i, dst=j, pair=pair, once=lambda name, make: make())
    noisy, crossed = SimpleNamespace(protein=SimpleNamespace(pos=pos), graph=graph), Encoding(a, a, a)
    with torch.autocast(pos.device.type, torch.bfloat16):
        return formulas.edge_scores([noisy], [crossed], dist_mlp, struct_mlp)[0]


def test_layers_that_see_a_distance_stay_in_float32_under_bf16(device):
    """Here they give 0.3 as the difference of two large numbers, (100.3 - r) - (100 - r): 0 or 0.5 in bfloat16."""
    dist_mlp = weights(([[-1.0], [-1.0]], [100.3, 100.0]), ([[1.0, -1.0]], [0.0]), ([[1.0]], [0.0]), device=device)
    struct_mlp = weights(([[0.0, 1.0]], [0.0]), ([[1.0]], [0.0]), ([[1.0]], [0.0]), device=device)
    pos = torch.tensor([[0.0, 0, 0], [1.7, 0, 0], [0, 23.1, 0], [0, 0, 61.3]], device=device)
    i, j = torch.combinations(torch.arange(4, device=device)).t()
    found = scores(torch.ones(4, 1, device=device), pos, i, j, dist_mlp, struct_mlp)
    assert torch.allclose(found, torch.full_like(found, 0.3), rtol=1e-2)


def test_gradients_of_many_pairs_add_up_in_float32_under_bf16(device):
    """A node of 512 pairs, 257 with the gradient 1 and 255 with -1; in bfloat16 257 is 256."""
    one = ([[1.0]], [0.0])
    dist_mlp, struct_mlp = (
        weights(one, one, one, device=device),
        weights(([[1.0, 0.0]], [0.0]), one, one, device=device),
    )
    node = torch.arange(513, device=device)
    a, pos = torch.ones(513, 1, device=device, requires_grad=True), torch.rand(513, 3, generator=generator()).to(device)
    i, j = node[node != 255], torch.full_like(node[1:], 255)
    sign = torch.where(i > 255, 1.0, -1.0)
    (sign * scores(a, pos, i, j, dist_mlp, struct_mlp)).sum().backward()
    assert a.grad[255].item() == 2 and torch.equal(a.grad[i, 0], sign)


# ---- sums against double loops ---------------------------------------------------------------------------------------


def test_segments_equal_loops():
    x = torch.randn(20, 3, dtype=torch.float64, generator=generator())
    index = torch.randint(0, 6, (20,), generator=generator(1))
    for k in range(8):  # 6 and 7 are empty
        rows = [x[i] for i in range(20) if index[i] == k]
        total = sum(rows, torch.zeros(3, dtype=torch.float64))
        assert torch.allclose(segment_sum(x, index, 8)[k], total, atol=1e-14)
        assert torch.allclose(segment_mean(x, index, 8)[k], total / max(len(rows), 1), atol=1e-14)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_segments_are_summed_and_counted_in_float32(kind):
    index = torch.arange(3).repeat_interleave(1000)
    x = torch.rand(3000, 4, generator=generator()).to(kind)
    expected = x.double().view(3, 1000, 4)
    for function, by_hand in ((segment_sum, expected.sum(1)), (segment_mean, expected.mean(1))):
        found = function(x, index, 3)
        assert found.dtype == torch.float32 and torch.allclose(found.double(), by_hand, rtol=1e-5)


def test_mlp_has_no_activation_at_the_end():
    torch.manual_seed(0)
    mlp = MLP(3, 5, 2)
    assert [tuple(layer.weight.shape) for layer in mlp.layers] == [(5, 3), (2, 5)]
    x = torch.randn(40, 3, generator=generator())
    expected = mlp.layers[1](mlp.layers[0](x).relu())
    assert torch.equal(mlp(x), expected) and (expected < 0).any()


# ---- the parts of the fast forms against plain sums and layers, their gradients against finite differences -----------


def random_row_sum(rows: int, sums: int, terms: int, **more) -> tuple[RowSum, torch.Tensor, torch.Tensor]:
    source = torch.randint(0, rows, (terms,), generator=generator(2))
    target = torch.randint(0, sums, (terms,), generator=generator(3)).sort()[0]
    return RowSum.of(source, target, rows, sums, **more), source, target


def rows_of_one_hots(rows: int, columns: int) -> torch.Tensor:
    """Two ones and a length in most rows, as edges have; some rows are all 0, some numbers -0."""
    x = torch.zeros(rows, columns, dtype=torch.float64)
    for k in range(2):
        x[torch.arange(rows), torch.randint(0, columns - 1, (rows,), generator=generator(k))] = 1
    x[:, -1] = torch.rand(rows, generator=generator(2), dtype=torch.float64) * 5
    x[::7], x[3::7, 0] = 0, -0.0
    return x


@pytest.mark.parametrize("rows", [fast.ONE_HOTS, 2 * fast.ONE_HOTS + 5])
def test_few_entries_are_a_product(rows):
    x = rows_of_one_hots(rows, 40)
    weight = torch.randn(3, 5, 40, dtype=torch.float64, generator=generator(), requires_grad=True)
    grad = torch.randn(rows, 15, dtype=torch.float64, generator=generator(1))
    expected = x @ weight.flatten(0, 1).T
    result = fast.few_entries(x)(weight)
    assert torch.allclose(result, expected, rtol=0, atol=1e-14)
    (ours,), (theirs,) = (torch.autograd.grad(y, weight, grad) for y in (result, expected))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_few_entries_pass_on_what_is_not_finite():
    """A length of nan or inf must end a run (`engine.train_step`), not vanish."""
    x = rows_of_one_hots(fast.ONE_HOTS, 40)
    x[1, -1], x[2, -1] = torch.nan, torch.inf
    result = fast.few_entries(x)(torch.ones(1, 2, 40, dtype=torch.float64))
    assert result[1].isnan().all() and result[2].isinf().all() and result[3:].isfinite().all()


def test_row_sum_adds_rows_of_bfloat16_in_float32():
    """Only the result is rounded; a sum that is kept in bfloat16 ends at 256 times its rows."""
    row_sum, source, target = random_row_sum(30, 5, 4000)
    x = torch.rand(30, 4, generator=generator()).bfloat16()
    expected = torch.zeros(5, 4).index_add_(0, target, x.float()[source])
    assert row_sum(x).dtype == torch.bfloat16 and expected.min() > 256
    assert torch.allclose(row_sum(x).float(), expected, rtol=2**-8)


def test_pair_linear_equals_products_of_rows():
    x, weight = (torch.randn(k, 3, dtype=torch.float64, generator=generator(k), requires_grad=True) for k in (6, 4))
    i, j = torch.randint(0, 6, (2, 15), generator=generator(1))
    assert torch.allclose(pair_linear(x, i, j, weight), (x[i] * x[j]) @ weight.T, atol=1e-14)
    assert torch.autograd.gradcheck(pair_linear, (x, i, j, weight))


def layers_of_one_number(*sizes: int, dtype=torch.float64) -> list[torch.nn.Linear]:
    torch.manual_seed(0)
    return [torch.nn.Linear(a, b).to(dtype) for a, b in zip((1, *sizes), sizes)]


def tabulated(x: torch.Tensor, first, second, third):
    """What `scalar_layers` makes of three layers, and of the numbers."""
    function = scalar_layers(x, first, second, third.weight, third.bias)
    return function, function(x)


def published(x: torch.Tensor, first, second, third) -> torch.Tensor:
    return third(second(first(x[:, None]).relu()).relu())


def assert_same(x: torch.Tensor, layers: list[torch.nn.Linear], tolerance: float) -> None:
    """Values and the gradients of all weights are those of the layers."""
    plain, (_, found) = published(x, *layers), tabulated(x, *layers)
    assert found.shape == plain.shape
    target = torch.randn(plain.shape, generator=generator(1)).to(plain)
    weights = [p for layer in layers for p in layer.parameters()]
    for a, b in zip(*([y, *torch.autograd.grad((y * target).sum(), weights)] for y in (found, plain))):
        largest = float(b.detach().abs().max()) if b.numel() else 0.0
        assert torch.allclose(a, b, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("count", [500, 220, 50], ids=["a table", "half a table", "no table"])
def test_scalar_layers_equal_the_layers(count, dtype, tolerance):
    """All of it, its first two layers, or the first alone is a table, if there are more numbers than knots."""
    layers, x = layers_of_one_number(300, 200, 7, dtype=dtype), 20 * torch.rand(count, generator=generator()).to(dtype)
    assert isinstance(tabulated(x, *layers)[0], Piecewise) == (count == 500)
    assert_same(x, layers, tolerance)


def zero_weights(first, second, third):
    first.weight[:3], first.bias[:3] = torch.tensor([[0.0], [0.0], [-0.0]]), torch.tensor([1.0, -1.0, 0.0])
    second.weight[:3], second.bias[:3] = -0.0, torch.tensor([1.0, -1.0, -0.0])


def equal_knots(first, second, third):
    first.weight[3:6], first.bias[3:6] = 0.5, -2.0  # at exactly 4
    first.weight[6:8], first.bias[6:8] = torch.tensor([[1.0], [-1.0]]), torch.tensor([-4.0, 4.0])  # one on, one off
    second.weight[5], second.bias[5] = second.weight[4], second.bias[4]


def a_knot_at_the_ends(first, second, third):
    first.weight[:2], first.bias[:2] = 1.0, torch.tensor([0.0, -20.0])


def all_off(first, second, third):
    first.weight.abs_().neg_()
    first.bias.abs_().neg_()


DEGENERATE = [zero_weights, equal_knots, a_knot_at_the_ends, all_off]


@pytest.mark.parametrize("change", DEGENERATE, ids=lambda change: change.__name__)
def test_scalar_layers_of_degenerate_weights(change):
    layers = layers_of_one_number(40, 30, 7)
    with torch.no_grad():
        change(*layers)
    x = torch.cat([torch.rand(200, generator=generator()) * 20, torch.tensor([0.0, 20.0])]).double()
    assert isinstance(tabulated(x, *layers)[0], Piecewise)
    assert_same(x, layers, 1e-12)


@pytest.mark.parametrize("numbers", [[], [3.0], [0.0, 0.0], [3.0] * 60, [0.0, 1e4, *range(60)]], ids=len)
def test_scalar_layers_of_few_equal_and_far_numbers(numbers):
    assert_same(torch.tensor(numbers, dtype=torch.float64), layers_of_one_number(9, 5, 2), 1e-12)


def random_links(num_targets: int) -> Links:
    """From 30 sources, in 4 relations, sorted."""
    slot = torch.randint(0, num_targets * 4, (300,), generator=generator(2)).sort()[0]
    return Links(torch.randint(0, 30, (300,), generator=generator(1)), slot // 4, slot % 4, 30, num_targets, 4)


def test_links_may_come_in_any_order_on_a_cpu():
    links, linear = random_links(40), torch.nn.Linear(24, 5).double()
    x = torch.randn(30, 6, generator=generator(), dtype=torch.float64)
    order = torch.randperm(300, generator=generator(3))
    mixed = replace(links, **{name: getattr(links, name)[order] for name in ("source", "target", "relation")})
    assert torch.allclose(fast.aggregate(x, mixed, linear), fast.aggregate(x, links, linear), atol=1e-13)


@pytest.mark.parametrize("num_targets, relations", [(40, 4), (20, 4), (40, 1), (0, 4)])
@pytest.mark.parametrize("one_hots", [False, True])
def test_sums_without_gradients(num_targets, relations, one_hots, monkeypatch):
    """They come in blocks, the last of which is smaller, of links in any order within a target, as between edges.

    One-hots between edges are looked up.
    """
    monkeypatch.setattr(rowsum, "BLOCK", 7)
    monkeypatch.setattr(fast, "ONE_HOTS", 10)
    count = 300 if num_targets else 0
    target = torch.randint(0, num_targets, (count,), generator=generator(2)).sort()[0] if count else torch.arange(0)
    source, relation = (torch.randint(0, k, (count,), generator=generator(k)) for k in (30, relations))
    links = Links(source, target, relation, 30, num_targets, relations)
    linear = torch.nn.Linear(relations * 9, 5).double()
    x = torch.eye(9).repeat(4, 1)[:30] if one_hots else torch.randn(30, 9, generator=generator())
    x = x.double()
    with torch.no_grad():
        found = fast.aggregate(x, links, linear)
    sums = torch.zeros(num_targets * relations, 9).double().index_add_(0, target * relations + relation, x[source])
    assert torch.allclose(found, linear(sums.view(num_targets, relations * 9)), atol=1e-13)
    assert all("transposed" not in vars(row_sum) for row_sum in links.prepared.values())
