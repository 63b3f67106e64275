"""Bit-identical with several threads: gradients of rows that are read more than once are added in a fixed order.

Torch adds the gradient of `x[index]` in no order if threads share the work; that of `index_select` and `gather` it
does. So the rule for every objective, encoder and head: no `x[index]` of what has a gradient.
"""

import hashlib

import pytest
import torch
from conftest import generator, real_protein
from helpers import CLASSES, dataset
from processes import run
from torch.utils._python_dispatch import TorchDispatchMode

from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.protein import Protein

ENCODED = [("gearnet", "atom"), ("gearnet", "residue"), ("gvp", "atom"), ("esm-gearnet", "residue")]
PRETRAINED = [
    (method, name, level)
    for name, level in ENCODED
    for method in OBJECTIVES
    if (method, level) != ("torsional", "residue")
]
FINE_TUNED = [
    (task, name, level) for name, level in ENCODED for task in TASKS if task not in ("pip", "res") or level == "atom"
]


class InOrder(TorchDispatchMode):
    """Refuses sums of floats that threads add up in no fixed order."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.__name__.startswith(("index_put", "_index_put_impl_")):
            accumulate = (kwargs or {}).get("accumulate") or any(args[3:4])
            assert not (accumulate and args[2].is_floating_point()), "the gradient of x[index]: take x.index_select"
        return func(*args, **(kwargs or {}))


def step(module: torch.nn.Module, batch) -> torch.Tensor:
    """All gradients of one step, as one vector."""
    torch.manual_seed(1)  # dropout
    loss, _ = module.train()(batch, generator(3))
    loss.backward()
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def objective(method: str, name: str, level: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return OBJECTIVES[method](ENCODERS[name](level, "tiny"), level)


def batch(size: int) -> Protein:
    proteins = [real_protein(name, torch.float32).crop(0, size) for name in ("1LCD_A", "2BEG")]
    return Protein.pack(proteins)


@pytest.mark.covers
@pytest.mark.parametrize("method, name, level", PRETRAINED)
def test_no_objective_adds_gradients_in_any_order(method, name, level, kernel_form):
    with InOrder():
        step(objective(method, name, level), batch(20))


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("samples")
    return {task: pack_samples([*map(dataset(task, folder).__getitem__, [(0, 0), (0, 1)])])[0] for task in TASKS}


@pytest.mark.full
@pytest.mark.parametrize("task, name, level", FINE_TUNED)
def test_no_task_adds_gradients_in_any_order(task, name, level, samples):
    encoder = ENCODERS[name](level, "tiny")
    head = TASKS[task](encoder, len(CLASSES)) if task == "ec" else TASKS[task](encoder)
    with InOrder():
        step(head, samples[task])


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.full
@pytest.mark.parametrize(
    "method, name, level", [row for row in PRETRAINED if row[1] == "gearnet" or row[0] in ("angle", "score-matching")]
)
def test_two_threads_repeat_every_bit(method, name, level, two_threads):
    """Three times the gradients of every objective at both levels, of some with the other encoders."""
    found = {step(objective(method, name, level), batch(50)).numpy().tobytes() for _ in range(3)}
    assert len(found) == 1


@pytest.mark.full
@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("method", ["angle", "score-matching"])
def test_a_resumed_run_with_two_threads_ends_with_the_same_bits(method, level, enzymes, tmp_path):
    def train(out: str, steps: int) -> str:
        options = ["--method", method, "--level", level, "--size", "tiny", "--threads", 2, "--max-steps", steps]
        data = ["--data", enzymes / "train", "--batch-size", 4, "--valid-fraction", 0]
        run("train", *options, *data, "--out", tmp_path / out)
        weights = torch.load(tmp_path / out / "encoder.pt", weights_only=True)["state"]
        return hashlib.sha256(b"".join(x.numpy().tobytes() for x in weights.values())).hexdigest()

    whole = train("whole", 6)
    train("stopped", 3)
    assert train("stopped", 6) == whole
