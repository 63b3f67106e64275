"""`examples/one_file.py` against the package: two programs that share no line give the same numbers."""

import ast
import importlib.util
import re
import tarfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from conftest import deviation, generator, real_protein, relative_error
from processes import ROOT, TWO_RANKS, cold
from torch import nn

import siamdiff_min
from siamdiff_min.data.sources import bundle_path
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH
from siamdiff_min.encoders.graph import line_graph
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.conformer import TorsionalConformer
from siamdiff_min.protein.constants import ATOM_NAMES, RESIDUES
from siamdiff_min.protein.protein import Protein

FILE = ROOT / "examples" / "one_file.py"
SPEC = importlib.util.spec_from_file_location("one_file", FILE)
one_file = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(one_file)

LEVELS, METHODS = ["atom", "residue"], ["siamdiff", "diffpret"]
BUILDERS = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def ours(protein: Protein):
    """A protein of the package as one of the file."""
    names = torch.tensor([one_file.ATOMS.index(name) for name in ATOM_NAMES])[protein.atom_name]
    place = protein.residue_index + one_file.FAR * protein.chain
    rows = protein.atom_residue, protein.residue_type, place, protein.residue_protein
    return one_file.Protein(protein.pos, names, *rows)


def batch(dtype: torch.dtype = torch.float64) -> Protein:
    """Two pieces: 8 residues of one chain, and 8 on both sides of a chain's end."""
    return Protein.pack([real_protein("1LCD_A", dtype).crop(5, 8), real_protein("2BEG", dtype).crop(22, 8)])


def edges(graph, *columns) -> Counter:
    """How often each row (source, destination, relation, ...) occurs."""
    return Counter(map(tuple, torch.stack([graph.src, graph.dst, graph.relation, *columns], dim=1).tolist()))


def test_the_file_is_short_and_stands_alone():
    text = FILE.read_text()
    assert len(text.splitlines()) <= 450
    assert text.count("add_argument(") <= 8
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            libraries = {name.split(".")[0] for name in names}
            standard = {"argparse", "dataclasses", "gzip", "itertools", "os", "pathlib"}
            assert libraries <= {"torch", "numpy", "Bio", "tqdm"} | standard


@pytest.fixture(scope="module")
def structures(tmp_path_factory) -> Path:
    """Eight small structures of the bundle that have nothing to decide: no altlocs, no modified residues."""
    folder = tmp_path_factory.mktemp("structures")
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.size):
            data = archive.extractfile(member).read()
            if not siamdiff_min.read_structure(member.name, data).dropped:
                (folder / member.name).write_bytes(data)
            if len(list(folder.iterdir())) == 8:
                return folder


def test_a_file_is_read_as_the_package_reads_it(structures):
    for path in structures.iterdir():
        expected, found = ours(siamdiff_min.read_structure(path).protein), one_file.read_structure(path)
        for name, value in vars(expected).items():
            assert torch.equal(getattr(found, name), value), f"{path.name}: {name}"
    assert one_file.RESIDUES == list(RESIDUES)


def test_crops_and_batches_are_those_of_the_package(structures):
    theirs = [siamdiff_min.read_structure(path).protein for path in sorted(structures.iterdir())[:3]]
    expected = ours(Protein.pack([protein.crop(start, 10) for start, protein in enumerate(theirs)]))
    found = one_file.pack([one_file.crop(ours(protein), start, 10) for start, protein in enumerate(theirs)])
    for name, value in vars(expected).items():
        assert torch.equal(getattr(found, name), value), name


def test_side_chains_turn_and_clash_as_in_the_package():
    whole = Protein.pack([real_protein("2BEG"), real_protein("1LCD_A")])
    present = torch.ones(whole.num_atoms, dtype=torch.bool)
    present[torch.arange(7, whole.num_atoms, 23)] = whole.atom_name[7::23] < 4  # some side chains are incomplete
    protein = whole.select_atoms(present)
    expected, logs = TorsionalConformer()(protein, generator(3))
    found = one_file.second_conformer(ours(protein), "atom", generator(3))
    assert logs["clash_rate_drawn"].sums[0] > 2  # some are drawn again
    assert relative_error(found.pos, expected.pos) < 1e-13
    assert ((found.pos - protein.pos).abs() > 0.1).sum() > 100


@pytest.mark.parametrize("level", LEVELS)
def test_the_graph_is_the_same(level):
    protein = BUILDERS[level].select_nodes(batch())
    expected, found = BUILDERS[level](protein), one_file.build_graph(ours(protein), level)
    assert edges(found) == edges(expected)
    assert edges(found, *found.edge_feature.T) == edges(expected, *expected.edge_feature.T)
    assert torch.equal(found.node_feature, expected.node_feature)

    def angles(graph, edge_in, edge_out, angle):
        ends = torch.stack([graph.src[edge_in], graph.relation[edge_in], graph.dst[edge_in]])
        further = torch.stack([graph.dst[edge_out], graph.relation[edge_out], angle])
        return Counter(map(tuple, torch.cat([ends, further]).T.tolist()))

    moved = protein.pos + torch.randn(protein.pos.shape, generator=generator(), dtype=torch.float64)
    assert angles(found, *one_file.line_graph(found, moved)) == angles(expected, *line_graph(expected, moved, 8))


def both(method: str, level: str, dtype: torch.dtype, stage: int) -> tuple:
    """The objective of the package and that of the file, both with the weights that seed 0 gives."""
    torch.manual_seed(0)
    theirs = OBJECTIVES[method](ENCODERS["gearnet"](level, "tiny"), level).to(dtype)
    theirs.set_stage(stage)  # after `to`, so that the schedule is rounded once
    torch.manual_seed(0)
    found = one_file.SiamDiff(method, level, "tiny").to(dtype)
    found.stage = one_file.STAGES[stage - 1]
    return theirs, found


def renamed(name: str) -> str:
    """The name in the file of a parameter of the package: in its heads a ReLU counts as a layer."""
    return re.sub(r"_mlp\.layers\.(\d)", lambda match: f"_mlp.{2 * int(match[1])}", name)


def gradients(objective: nn.Module) -> dict[str, torch.Tensor]:
    """Weight and bias of each layer together: a bias in front of batch norm has no gradient but rounding."""
    layers: dict[str, list[torch.Tensor]] = {}
    for name, parameter in objective.named_parameters():
        layers.setdefault(renamed(name).rpartition(".")[0], []).append(parameter.grad.flatten())
    return {name: torch.cat(parts) for name, parts in layers.items()}


def clear_draw(objective: nn.Module, protein) -> int:
    """The first seed that leaves some type visible, and every angle 2e-6 away from the next bin: in float32 no rounding
    goes that far."""
    seen = {}

    def atan2(y, x):
        bins = seen["atan2"](y, x).double() / torch.pi * 8
        inner = bins[(bins > 0.5) & (bins < 7.5)]  # the ends, 0 and pi, are in one bin whatever the rounding
        seen["margin"] = min(seen["margin"], (inner - inner.round()).abs().min().item())
        return seen["atan2"](y, x)

    def random_mask(*args):
        seen["masked"] = seen["random_mask"](*args)
        return seen["masked"]

    for seed in range(100):
        seen |= {"atan2": torch.atan2, "random_mask": one_file.random_mask, "margin": 1.0}
        with patch.object(torch, "atan2", atan2), patch.object(one_file, "random_mask", random_mask), torch.no_grad():
            objective(protein, generator(seed))
        if seen["margin"] > 8 / torch.pi * 2e-6 and len(seen["masked"]) < len(protein.residue_type):
            return seed
    raise AssertionError("no such seed")


CASES = [  # by default every method and level, in the noise of stage 1
    pytest.param(method, level, dtype, stage, marks=[pytest.mark.full] if stage == 2 else [])
    for stage in (1, 2)
    for dtype in (torch.float64, torch.float32)
    for level in LEVELS
    for method in METHODS
]


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize(("method", "level", "dtype", "stage"), CASES)
def test_loss_and_gradients_are_those_of_the_package(method, level, dtype, stage, near_zero_relus):
    theirs, found = both(method, level, dtype, stage)
    weights = {renamed(name): value for name, value in theirs.state_dict().items()}
    found.load_state_dict(weights)
    protein = batch(dtype)
    seed = clear_draw(found, ours(protein))
    results = {}

    def error() -> torch.Tensor:
        """Deviations of all gradients."""
        for name, objective, given in (("theirs", theirs, protein), ("found", found, ours(protein))):
            objective.zero_grad()
            results[name] = objective(given, generator(seed))
            results[name][0].backward()
        expected, actual = gradients(theirs), gradients(found)
        assert expected.keys() == actual.keys()
        return torch.cat([deviation(actual[layer], gradient) for layer, gradient in expected.items()])

    assert (near_zero_relus(error) if dtype == torch.float32 else error().abs().max()) < TOLERANCE[dtype]
    (expected, logs), (loss, parts) = results["theirs"], results["found"]
    assert loss.item() == pytest.approx(expected.item(), rel=TOLERANCE[dtype])
    for name, value in parts.items():
        total, count = logs[f"{name}_loss"].sums.tolist()
        assert value == pytest.approx(total / count, rel=1e-6)


def test_weights_are_drawn_as_in_the_package():
    for theirs, found in (both("siamdiff", level, torch.float32, 1) for level in LEVELS):
        drawn = {renamed(name): value for name, value in theirs.state_dict().items()}
        assert all(torch.equal(value, drawn[name]) for name, value in found.state_dict().items())
