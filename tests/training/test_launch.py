"""What `launch` asks of a GPU (a stand-in) and of the other processes."""

import socket

import pytest
import torch

from siamdiff_min.files import ConfigError, SiamDiffError
from siamdiff_min.training import ranks


@pytest.fixture
def card(monkeypatch):
    """A machine that seems to have one GPU."""
    for name, value in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.use_deterministic_algorithms(before[1])


def test_products_in_float32_are_tf32_on_a_gpu_unless_deterministic(card):
    with ranks.launch("cuda") as ours:
        assert ours.device == torch.device("cuda", 0) and torch.get_float32_matmul_precision() == "high"
    with ranks.launch("cuda", deterministic=True):
        assert torch.get_float32_matmul_precision() == "highest"
    with ranks.launch("cpu"):
        assert torch.get_float32_matmul_precision() == "highest"


def test_more_processes_than_gpus_are_refused_in_a_sentence(card, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="more processes than there are GPUs here \\(1\\)"), ranks.launch("cuda"):
        pass


def test_an_address_that_is_in_use_is_no_hang(monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        place = {"WORLD_SIZE": 2, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": other.getsockname()[1]}
        for name, value in place.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(SiamDiffError, match=r"cannot meet: .*EADDRINUSE"), ranks.launch("cpu"):
            pass
