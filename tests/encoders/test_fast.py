"""The parts of the fast forms against plain sums and layers, their gradients against finite differences."""

from dataclasses import replace

import pytest
import torch
from conftest import generator

from siamdiff_min.encoders import fast
from siamdiff_min.encoders.fast import pair_linear
from siamdiff_min.encoders.ops import Links
from siamdiff_min.encoders.piecewise import Piecewise, scalar_layers
from siamdiff_min.encoders.rowsum import RowSum


def random_row_sum(rows: int, sums: int, terms: int, **more) -> tuple[RowSum, torch.Tensor, torch.Tensor]:
    source = torch.randint(0, rows, (terms,), generator=generator(2))
    target = torch.randint(0, sums, (terms,), generator=generator(3)).sort()[0]
    return RowSum(source.int(), target.int(), rows, sums, **more), source, target


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


def test_links_in_no_order_are_refused():
    links = random_links(40)
    with pytest.raises(ValueError, match="links come sorted by target"):
        fast.aggregate(torch.zeros(30, 6), replace(links, target=links.target.flip(0)), torch.nn.Linear(24, 5))


@pytest.mark.parametrize("num_targets, relations", [(40, 4), (20, 4), (40, 1), (0, 4)])
@pytest.mark.parametrize("one_hots", [False, True])
def test_sums_without_gradients(num_targets, relations, one_hots, monkeypatch):
    """They come in blocks, the last of which is smaller, of links in any order within a target, as between edges.

    One-hots between edges are looked up.
    """
    monkeypatch.setattr(fast, "TARGETS", 7)
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
