"""What `launch` asks of a GPU (a stand-in), of the environment, and of the other processes."""

import re
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


@pytest.fixture
def address(monkeypatch):
    """Where the processes of a run would meet: a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {
        "WORLD_SIZE": 4,
        "RANK": 0,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, str(value))
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("rank, missing", [(0, "3 of 4 processes"), (2, "process 0 of 4")])
def test_a_process_that_never_comes_is_said_and_given_up(rank, missing, address, monkeypatch, capfd):
    """After a minute and an hour; nothing was said, and the others waited for seven days."""
    assert (ranks.NOTICE, ranks.ABSENT) == (60, 3600)
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setattr(ranks, "NOTICE", 0.3)
    monkeypatch.setattr(ranks, "ABSENT", 1)
    with pytest.raises(SiamDiffError, match=f"waited for {missing} at {address}, in vain"), ranks.launch("cpu"):
        pass
    assert capfd.readouterr().err == f"waiting for {missing} at {address}\n"


def test_an_address_that_is_in_use_is_a_sentence(address):
    with socket.socket() as other:
        other.bind(("", int(address.rpartition(":")[2])))
        other.listen()
        with pytest.raises(ConfigError, match=f"cannot meet at {address}: address already in use"), ranks.launch("cpu"):
            pass


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE is 'two' in the environment, but must be 1 to"),
        ("WORLD_SIZE", "0", "WORLD_SIZE is '0'"),
        ("RANK", "x", "RANK is 'x' in the environment, but must be 0 to 3"),
        ("RANK", "4", "RANK is '4'"),
        ("RANK", "-1", "RANK is '-1'"),
        ("RANK", None, "RANK is not set in the environment, but must be 0 to 3: torchrun sets it"),
        ("LOCAL_RANK", "1.5", "LOCAL_RANK is '1.5'"),
        ("LOCAL_RANK", "9", "LOCAL_RANK is '9'"),
        ("MASTER_PORT", "none", "MASTER_PORT is 'none' in the environment, but must be 1 to 65535"),
        ("MASTER_PORT", None, "MASTER_PORT is not set"),
        ("MASTER_ADDR", None, "MASTER_ADDR is not set"),
    ],
)
def test_an_environment_that_is_not_torchruns_is_a_sentence(name, value, said, address, monkeypatch):
    monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=re.escape(said)), ranks.launch("cpu"):
        pass


def test_one_process_may_not_be_another(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="RANK is '1' in the environment, but must be 0"), ranks.launch("cpu"):
        pass
