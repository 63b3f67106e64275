"""Sums against double loops."""

import pytest
import torch
from conftest import generator

from siamdiff_min.encoders.ops import MLP, segment_mean, segment_sum


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
