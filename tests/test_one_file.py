"""`examples/one_file.py` against the package: two programs that share no line give the same numbers."""

import ast
import gzip
import importlib.util
import io
import re
import tarfile
from pathlib import Path

import pytest
import simulated
import torch
from Bio.PDB import MMCIFIO, PDBParser
from conftest import generator, real_protein, relative_error
from processes import ROOT, TWO_RANKS, cold, run
from torch import nn

import siamdiff_min
from benchmarks.pdb import write_pdb
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.protein.constants import ATOM_NAMES, RESIDUES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_path

FILE = ROOT / "examples" / "one_file.py"
SPEC = importlib.util.spec_from_file_location("one_file", FILE)
one_file = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(one_file)

LEVELS, METHODS = ["atom", "residue"], ["siamdiff", "diffpret"]
BUILDERS = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}


def ours(protein: Protein):
    """A protein of the package as one of the file."""
    names = torch.tensor([one_file.ATOMS.index(name) for name in ATOM_NAMES])[protein.atom_name]
    place = protein.residue_index + one_file.FAR * protein.chain
    rows = protein.atom_residue, protein.residue_type, place, protein.residue_protein
    return one_file.Protein(protein.pos, names, *rows)


def batch(dtype: torch.dtype = torch.float64) -> Protein:
    """Two pieces: 8 residues of one chain, and 8 on both sides of a chain's end."""
    return Protein.pack([real_protein("1LCD_A", dtype).crop(5, 8), real_protein("2BEG", dtype).crop(22, 8)])


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
def files(tmp_path_factory) -> list[Path]:
    """Three small structures of the bundle with nothing to decide, one of them also as mmCIF, and five chains."""
    folder, undecided = tmp_path_factory.mktemp("files"), {"hydrogens", "waters"}
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.size)
        contents = [(folder / member.name, archive.extractfile(member).read()) for member in members[:20]]
    clean = [(path, x) for path, x in contents if siamdiff_min.read_structure(path, x).dropped.keys() <= undecided]
    for path, content in clean[:3]:
        path.write_bytes(content)
    writer = MMCIFIO()
    writer.set_structure(PDBParser(QUIET=True).get_structure("", io.StringIO(gzip.decompress(content).decode())))
    writer.save(str(folder / "same.cif"))
    write_pdb(folder / "chains.pdb", real_protein("2BEG", torch.float32))
    return sorted(folder.iterdir())


def assert_same(found, expected) -> None:
    for name, value in vars(expected).items():
        assert torch.equal(getattr(found, name), value), name


def test_a_file_is_read_as_the_package_reads_it(files):
    assert list(RESIDUES) == one_file.RESIDUES and len(files) == 5
    for path in files:
        assert_same(one_file.read_structure(path), ours(siamdiff_min.read_structure(path).protein))


def both(method: str, level: str, stage: int) -> tuple:
    """The objective of the package and that of the file, both with the weights that seed 0 gives, in double."""
    torch.manual_seed(0)
    theirs = OBJECTIVES[method](ENCODERS["gearnet"](level, "tiny"), level).double()
    theirs.set_stage(stage)  # after `double`, so that the schedule is rounded once
    torch.manual_seed(0)
    found = one_file.SiamDiff(method, level, "tiny").double()
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


@pytest.mark.covers
@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("method", METHODS)
def test_loss_and_gradients_are_those_of_the_package(method, level, stage):
    """Of a draw that leaves some type visible: `self_loop` of the first layer has no gradient else."""
    theirs, found = both(method, level, stage)
    found.load_state_dict({renamed(name): value for name, value in theirs.state_dict().items()})
    expected, logs = theirs(batch(), generator(2))
    loss, *parts = found(ours(batch()), generator(2))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    sums = [logs[name].sums.tolist() for name in ("structure_loss", "sequence_loss")]
    assert [part.item() for part in parts] == pytest.approx([total / count for total, count in sums], rel=1e-5)
    expected.backward()
    loss.backward()
    expected, actual = gradients(theirs), gradients(found)
    assert expected.keys() == actual.keys()
    assert all(relative_error(actual[layer], gradient) < 1e-10 for layer, gradient in expected.items())


@pytest.mark.skipif(not simulated.POSSIBLE, reason="this torch has no backend for devices written in Python")
@pytest.mark.repeats
@pytest.mark.parametrize("level", ["residue", "atom"])
def test_a_step_stays_on_the_gpu(level):
    objective, p = one_file.SiamDiff("siamdiff", level, "tiny"), ours(batch(torch.float32))
    with simulated.Simulation() as device:  # it raises an error if a call mixes devices
        simulated.to_simulation(objective).train()
        p = one_file.Protein(*(x.to(simulated.DEVICE) for x in vars(p).values()))
        loss, *_ = objective(p, simulated.Generator().manual_seed(0))
        loss.backward()
        assert all(parameter.grad.device == simulated.DEVICE for parameter in objective.parameters())
    assert device.on_cpu.keys() <= {"lift_fresh", "detach"} and not device.float64  # constants


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    """A folder of eight pieces of 12 residues."""
    folder, whole = tmp_path_factory.mktemp("pieces"), real_protein("2BEG", torch.float32)
    for i in range(8):
        write_pdb(folder / f"{i}.pdb", whole.crop(15 * i, 12))
    return folder


@pytest.mark.repeats
@pytest.mark.parametrize(("level", "launched"), [("residue", False), ("atom", True)])
def test_two_processes_write_an_encoder_that_the_package_reads(level, launched, pieces, tmp_path):
    options = f"--level {level} --size tiny --batch-size 2 --epochs 1 --data {pieces} --out {tmp_path}".split()
    if launched:
        cold("examples/one_file.py", *options, launcher=TWO_RANKS)
    else:  # as torchrun starts them
        run("one_file", *options, world=2)
    theirs = siamdiff_min.load_encoder(tmp_path / "encoder.pt", "cpu")
    found = one_file.GearNetEdge(level, "tiny").eval()
    found.load_state_dict(theirs.state_dict())
    protein = BUILDERS[level].select_nodes(batch(torch.float32))
    with torch.no_grad():
        encoding = theirs(protein)
        a, h = found(ours(protein), one_file.build_graph(ours(protein), level))
    assert relative_error(a, encoding.node) < 1e-5
    assert relative_error(h, encoding.residue) < 1e-5
