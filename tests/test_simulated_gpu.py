"""Every method and every task on a simulated GPU: what would fail there, and how often the host waits for it."""

import pytest
import simulated
import torch
from conftest import real_protein
from helpers import dataset

from siamdiff_min.downstream.sample import pack_samples
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import save_encoder_file
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.protein import Protein

if not simulated.POSSIBLE:
    pytest.skip("this torch has no backend for devices written in Python", allow_module_level=True)

ENCODED = [("atom", "gearnet"), ("atom", "gvp"), ("residue", "gearnet"), ("residue", "esm-gearnet")]
MOST = {  # waits of the host in one step, at most, in this order
    "diffpret": (9, 8, 14, 19),
    "siamdiff": (21, 19, 23, 33),
    "residue-type": (6, 5, 11, 16),
    "distance": (9, 8, 14, 19),
    "angle": (9, 8, 14, 19),
    "dihedral": (9, 8, 14, 19),
    "residue-type+distance": (11, 10, 16, 21),
    "residue-type+angle": (11, 10, 16, 21),
    "residue-type+dihedral": (11, 10, 16, 21),
    "multiview": (16, 14, 24, 34),
    "score-matching": (8, 7, 13, 18),
    "torsional": (7, 6),
    "ec": (4, 3, 11, 16),
    "pip": (4, 3),
    "msp": (4, 3, 11, 16),
    "res": (4, 3),
    "psr": (4, 3, 11, 16),
    "table": (4, 3, 11, 16),
}
SHOWN = "angle", "multiview", "psr"
SOME = (
    "siamdiff",
    "diffpret",
    "angle",
    "multiview",
    "score-matching",
    "torsional",
    "ec",
    "msp",
    "psr",
)  # with every encoder in full


def marks(name: str, encoder: tuple[str, str]) -> list:
    shown = encoder[1] == "gearnet" if name == "siamdiff" else encoder == ENCODED[0] and name in SHOWN
    if shown:
        return []
    return [pytest.mark.full if name in SOME or encoder == ENCODED[0] else pytest.mark.soak]


CASES = [
    pytest.param(name, *of, most, marks=marks(name, of))
    for name, numbers in MOST.items()
    for of, most in zip(ENCODED, numbers)
]
CELLS = {"_to_copy", "div", "floor"}  # of the search of neighbours, where float32 is not exact
WALKS = {name for name in OBJECTIVES if name.endswith(("distance", "angle", "dihedral"))}  # counted in float64


def batch() -> Protein:
    """Two proteins, of 20 and 30 residues."""
    return Protein.pack([real_protein("1LCD_A").crop(0, 20), real_protein("2BEG").crop(20, 30)]).map(single)


def single(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.is_floating_point() else x


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A batch of two samples of every task."""
    folder = tmp_path_factory.mktemp("samples")
    sets = {task: dataset(task, folder) for task in TASKS}
    return {task: pack_samples([given[0, 0], given[0, 1]])[0] for task, given in sets.items()}


def test_every_method_and_task_is_here():
    assert MOST.keys() == OBJECTIVES.keys() | TASKS.keys()


@pytest.mark.parametrize("name, level, encoder, most", CASES)
def test_a_step_stays_on_the_device(name, level, encoder, most, samples):
    torch.manual_seed(0)
    encoder = ENCODERS[encoder](level, "tiny")
    if name in OBJECTIVES:
        found = simulated.simulate(OBJECTIVES[name](encoder, level), batch())
    else:
        task = TASKS[name](encoder, 3) if name == "ec" else TASKS[name](encoder)
        found = simulated.simulate(task, samples[name])
    assert 0 < found.waits.total() <= most, dict(found.waits)
    assert not found.on_cpu
    assert name in WALKS or found.float64.keys() <= CELLS


@pytest.mark.parametrize("method", ["siamdiff", "angle"])
def test_deterministic_algorithms_need_no_quadratic_memory(method):
    objective = OBJECTIVES[method](ENCODERS["gearnet"]("atom", "tiny"), "atom")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(AssertionError, match="quadratic memory"), simulated.Simulation():
            simulated.Far(torch.ones(3)).cumsum(0)
        found = simulated.simulate(objective, batch())
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.waits.total() > 0  # it went through, and the sum above did not


def test_a_file_of_an_encoder_opens_without_a_gpu(tmp_path):
    encoder = ENCODERS["gearnet"]("atom", "tiny")
    head = {name: simulated.Far(tensor) for name, tensor in torch.nn.Linear(2, 3).state_dict().items()}
    with simulated.Simulation():
        save_encoder_file(tmp_path / "encoder.pt", encoder, "gearnet", "atom", "tiny", "paper", seq_mlp=head)
    saved = torch.load(tmp_path / "encoder.pt", weights_only=True)  # nobody maps its tensors to another device
    assert {name: tensor.tolist() for name, tensor in saved["seq_mlp"].items()} == {
        name: tensor.near.tolist() for name, tensor in head.items()
    }
