"""The names that the package hands out, and that importing it is enough to use them."""

import copy
import enum
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import siamdiff_min
from benchmarks import bundle_encoder
from benchmarks.pdb import write_pdb
from siamdiff_min import files, machine
from siamdiff_min.encoders.graph import RESIDUE_GRAPH
from siamdiff_min.encoders.weights import load_encoder_file, read_weights
from siamdiff_min.files import ConfigError


def test_what_a_user_calls_is_there():
    called = {"load_encoder", "read_structure", "Protein", "SiamDiff", "ENCODERS", "OBJECTIVES", "TASKS", "SCHEDULES"}
    assert called <= set(siamdiff_min.__all__)
    assert all(hasattr(siamdiff_min, name) for name in siamdiff_min.__all__)
    assert set(siamdiff_min.__all__) <= set(dir(siamdiff_min))
    assert set(siamdiff_min.ON_DEMAND) == {name for name in siamdiff_min.__all__ if not name.endswith("Error")}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        siamdiff_min.nothing  # noqa: B018


def test_errors_are_at_the_top():
    names = {name for name in dir(files) if isinstance(getattr(files, name), type) and name.endswith("Error")}
    assert "StructureError" in names and names <= set(siamdiff_min.__all__)
    assert all(getattr(siamdiff_min, name) is getattr(files, name) for name in names)


@pytest.mark.full
def test_the_package_loads_without_what_only_some_need():
    script = "import sys, siamdiff_min; print(*{'sklearn', 'siamdiff_min.tools.embed.command'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "\n"


UNCHANGED = """
import hashlib, os, random, signal, sys, threading, warnings
import numpy, torch

def state():
    generators = torch.get_rng_state().numpy().tobytes(), str(numpy.random.get_state()), random.getstate()
    settings = torch.get_num_threads(), torch.get_default_dtype(), torch.get_float32_matmul_precision()
    settings += torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), torch.get_default_device()
    signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
    threads = threading.active_count(), len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else 0
    return {"environment": dict(os.environ), "generators": generators, "settings": settings, "signals": signals,
            "threads": threads, "filters": list(warnings.filters), "path": list(sys.path)}

def compare(what):
    print(what, *(name for name, value in state().items() if value != before[name]))

before = state()
import siamdiff_min
compare("import:")
"""
LOADED = """
encoder = siamdiff_min.load_encoder(sys.argv[1], "cpu")
compare("load:")
encoder.embed(sys.argv[2])
siamdiff_min.list_encoders()
compare("embed:")
"""


def test_importing_and_loading_change_nothing(tmp_path):
    """No variable of the environment, generator, thread, setting, handler or filter; and no warning."""
    file = tmp_path / "x.pdb"
    write_pdb(file, bundle_encoder.smallest().read().protein)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("GOMP_SPINCOUNT", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        environment.pop(name, None)
    run = [sys.executable, "-W", "error", "-c", UNCHANGED + LOADED, "siamdiff-residue", str(file)]
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("import:\nload:\nembed:\n", "")


@pytest.mark.parametrize("name", ["gearnet", "gvp", "esm-gearnet"])
def test_an_encoder_is_a_module_that_saves_and_loads_itself(name, tmp_path):
    """Bit for bit, in evaluation mode, without a draw from the global generator."""
    level = "atom" if name == "gvp" else "residue"
    encoder = siamdiff_min.ENCODERS[name](level, "tiny", "official")
    encoder.save(tmp_path / "mine.pt", note="of my own")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    loaded = siamdiff_min.load_encoder(tmp_path / "mine.pt", "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(loaded, torch.nn.Module) and type(loaded) is type(encoder) and not loaded.training
    assert loaded.identity == (name, level, "tiny", "official") and loaded.device.type == "cpu"
    assert all(torch.equal(x, loaded.state_dict()[key]) for key, x in encoder.state_dict().items())
    assert load_encoder_file(tmp_path / "mine.pt")["note"] == "of my own"
    loaded.train()
    embedding = loaded.embed(bundle_encoder.smallest().read())
    assert loaded.training and loaded.layer_dims and len(embedding.mean) == loaded.out_dim  # as it was
    loaded.save(tmp_path / "again.pt")
    again = siamdiff_min.load_encoder(tmp_path / "again.pt", "cpu")
    assert all(torch.equal(x, again.state_dict()[key]) for key, x in encoder.state_dict().items())


def test_an_encoder_that_was_changed_says_when_it_is_saved_that_it_loads_as_it_was(tmp_path):
    for change in ("graph", "layers"):
        encoder = copy.deepcopy(siamdiff_min.ENCODERS["gearnet"]("residue", "tiny"))
        encoder.save(tmp_path / "mine.pt")
        if change == "graph":
            encoder.builder = replace(encoder.builder, radius=6.0)
        else:
            encoder.layers[0].linear = torch.nn.Sequential(encoder.layers[0].linear)
        with pytest.warns(UserWarning, match=r"mine.pt: graphs or layers were changed since ENCODERS\['gearnet'\]"):
            encoder.save(tmp_path / "mine.pt")


class Kind(str, enum.Enum):
    """A word to Python, and nothing to `torch.load`."""

    A = "a"


def test_values_beside_an_encoder_are_read_again_or_refused(tmp_path):
    """Numbers as metrics come, and what `load_encoder` would call damaged."""
    encoder, file = siamdiff_min.ENCODERS["gearnet"]("residue", "tiny"), tmp_path / "mine.pt"
    values = {"auroc": np.float64(0.5), "epochs": np.int64(3), "ids": np.arange(3), "loss": torch.tensor(0.25)}
    encoder.save(
        path=file,
        **values,
        nested={"a": [np.float32(0.5)], "b": None},
        head={"w": torch.ones(2)},
        empty=defaultdict(list),
    )
    content = read_weights(file)
    assert [content[name] for name in values] == [0.5, 3, [0, 1, 2], 0.25]
    assert [type(content[name]) for name in values] == [float, int, list, float]
    assert content["nested"] == {"a": [0.5], "b": None} and content["head"]["w"].equal(torch.ones(2))
    siamdiff_min.load_encoder(file, "cpu")
    before = file.read_bytes()
    for name, value in {
        "where": Path("x"), "nested": {"head": torch.nn.Linear(1, 1)}, "size": "paper",
        "format": "v1", "kind": Kind.A, "of": {Kind.A: 1},
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=f"mine.pt is not written: .*{name}"):
            encoder.save(file, **{name: value})
    assert file.read_bytes() == before


def test_an_encoder_without_a_name_is_not_saved(tmp_path):
    encoder = siamdiff_min.GearNet(RESIDUE_GRAPH, [8, 8])
    with pytest.raises(ConfigError, match=r"x.pt is not written: build this GearNet by its name in ENCODERS"):
        encoder.save(tmp_path / "x.pt")
    assert not (tmp_path / "x.pt").exists()


def test_the_encoders_of_the_package_are_listed():
    listed = siamdiff_min.list_encoders()
    assert list(listed) == ["siamdiff-atom", "siamdiff-residue"]
    for name, sentence in listed.items():
        about = siamdiff_min.encoders.weights.load_encoder_file(name)
        steps = f"after {about['steps']} steps of {about['method']}: {about['data']}"
        assert sentence == f"gearnet of size {about['size']} at {name.partition('-')[2]} level, {steps}"
        assert about["steps"] > 1000 and "chains" in about["data"]


# ---- what a machine gives: the cores of a container ------------------------------------------------------------------


@pytest.mark.parametrize(
    "files, cores",
    [
        ({}, 8),  # no container
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),  # half a core
        ({"cpu.max": "6400000 100000"}, 8),  # more than there are
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),  # unreadable
    ],
)
def test_the_quota_of_a_container_counts_in_both_versions_of_cgroup(files, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cores() == cores
