"""The parts of the fast forms against plain sums and layers, their gradients against finite differences."""

from types import SimpleNamespace

import pytest
import torch
from conftest import generator, relative_error

from siamdiff_min.encoders import fast
from siamdiff_min.encoders.fast import Gather, ScalarLayers, pair_linear
from siamdiff_min.encoders.ops import Links


def random_gather(rows: int, sums: int, terms: int) -> tuple[Gather, torch.Tensor, torch.Tensor]:
    source = torch.randint(0, rows, (terms,), generator=generator(2))
    target = torch.randint(0, sums, (terms,), generator=generator(3))
    return Gather.build(source, target, rows, sums), source, target


def test_gather_equals_index_add():
    gather, source, target = random_gather(30, 50, 200)
    x = torch.randn(30, 4, dtype=torch.float64, generator=generator())
    expected = torch.zeros(50, 4, dtype=torch.float64).index_add_(0, target, x[source])
    assert torch.allclose(gather(x), expected, atol=1e-13)


def test_gather_gradient():
    gather, _, _ = random_gather(7, 9, 25)
    x = torch.randn(7, 3, dtype=torch.float64, generator=generator(), requires_grad=True)
    assert torch.autograd.gradcheck(gather, x)


def test_gather_without_terms():
    gather, _, _ = random_gather(5, 4, 0)
    x = torch.ones(5, 2, requires_grad=True)
    gather(x).sum().backward()
    assert gather(x).tolist() == [[0.0, 0.0]] * 4 and x.grad.abs().sum() == 0


def test_gather_adds_rows_of_bfloat16_in_float32():
    """Only the result is rounded; a sum that is kept in bfloat16 ends at 256 times its rows."""
    gather, source, target = random_gather(30, 5, 4000)
    x = torch.rand(30, 4, generator=generator()).bfloat16()
    expected = torch.zeros(5, 4).index_add_(0, target, x.float()[source])
    assert gather(x).dtype == torch.bfloat16 and expected.min() > 256
    assert torch.allclose(gather(x).float(), expected, rtol=2**-8)


def test_pair_linear_equals_products_of_rows():
    x, weight = (torch.randn(k, 3, dtype=torch.float64, generator=generator(k), requires_grad=True) for k in (6, 4))
    i, j = torch.randint(0, 6, (2, 15), generator=generator(1))
    assert torch.allclose(pair_linear(x, i, j, weight), (x[i] * x[j]) @ weight.T, atol=1e-14)
    assert torch.autograd.gradcheck(pair_linear, (x, i, j, weight))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_scalar_layers_equal_the_layers(dtype, tolerance):
    """Also for numbers beyond all knots and on a knot, and for units that never change."""
    torch.manual_seed(0)
    first, second, third = (torch.nn.Linear(a, b).to(dtype) for a, b in ((1, 300), (300, 40), (40, 7)))
    with torch.no_grad():
        first.weight[:3] = torch.tensor([[0.0], [0.0], [-0.0]], dtype=dtype)
        first.bias[:3] = torch.tensor([1.0, -1.0, 0.0], dtype=dtype)
        first.weight[3], first.bias[3] = 0.5, -2.0  # a knot at exactly 4
    x = torch.cat([torch.rand(500, generator=generator()) * 20, torch.tensor([0.0, 4.0, -1e4, 1e4])]).to(dtype)
    plain = second(first(x[:, None]).relu()).relu() @ third.weight.T
    fast = ScalarLayers.build(first, second).relu_linear(x, third.weight)
    assert relative_error(fast.detach(), plain.detach()) < tolerance
    target = torch.randn(plain.shape, generator=generator(1)).to(dtype)
    weights = [*first.parameters(), *second.parameters(), third.weight]
    for a, b in zip(*(torch.autograd.grad((y * target).sum(), weights) for y in (fast, plain))):
        assert relative_error(a, b) < tolerance


def test_heads_add_up_in_float32_under_bf16():
    """Many pairs share one row: its gradient is a sum of 4,000 numbers, which bfloat16 cannot count."""
    x = torch.ones(2, 3, requires_grad=True)
    i, j = torch.zeros(4000, dtype=torch.long), torch.ones(4000, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        y = pair_linear(x, i, j, torch.eye(3))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and torch.allclose(x.grad, torch.full((2, 3), 4000.0), rtol=5e-3)


@pytest.mark.parametrize("num_targets", [40, 20], ids=["maps first", "sums first"])
def test_relational_sum_keeps_its_inputs_alone(num_targets):
    """Neither sums nor copies of the maps wait for the backward pass, and the gradients are right."""
    source, relation = torch.randint(0, 30, (300,), generator=generator(1)), torch.arange(300) % 4
    links = Links(source, torch.randint(0, num_targets, (300,), generator=generator(2)), relation, 30, num_targets, 4)
    linear = torch.nn.Linear(4 * 6, 5).double()
    x = torch.randn(30, 6, dtype=torch.float64, generator=generator(), requires_grad=True)
    known, kept = {t.untyped_storage().data_ptr() for t in (x, *linear.parameters())}, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        fast.relational_sum(x, links, linear)
    assert kept and {t.untyped_storage().data_ptr() for t in kept} == known - {linear.bias.data_ptr()}

    def of_weight(x, weight):
        return fast.relational_sum(x, links, SimpleNamespace(weight=weight, bias=linear.bias))

    assert torch.autograd.gradcheck(of_weight, (x, linear.weight))
