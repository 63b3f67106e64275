"""Sums against double loops."""

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


def test_mlp_has_no_activation_at_the_end():
    torch.manual_seed(0)
    mlp = MLP(3, 5, 2)
    assert [tuple(layer.weight.shape) for layer in mlp.layers] == [(5, 3), (2, 5)]
    x = torch.randn(40, 3, generator=generator())
    expected = mlp.layers[1](mlp.layers[0](x).relu())
    assert torch.equal(mlp(x), expected) and (expected < 0).any()
