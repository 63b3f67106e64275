"""What many tests are given: arrays of the official implementation, real structures, rigid motions, a small EC set."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # several threads in each of several processes would wait for one another
    os.environ["OMP_NUM_THREADS"] = "1"  # read by numpy, scipy and torch as they load, and by processes of tests

from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

import siamdiff_min.tools.table.command  # noqa: F401  # the task `table`
from benchmarks.pdb import write_pdb
from siamdiff_min.encoders import formulas
from siamdiff_min.encoders.graph import Graph
from siamdiff_min.protein.conformer import chi_atoms
from siamdiff_min.protein.constants import ATOM_ELEMENT, ATOM_INDEX
from siamdiff_min.protein.geometry import dihedral
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.tools.evidence import bootstrap

GOLDEN = Path(__file__).parent / "golden" / "golden.npz"
ENZYMES = ("1.1.1.-", "2.7.11.1", "3.4.21.5")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a parametrised test that is marked `repeats`, the default run keeps the first case; the others are `full`.

    Of one that is marked `covers` it keeps each case with a value that none before it had, so every value of every
    parameter is met once. The default run has the fast form of the formulas, `full` the plain one: tests of scores,
    sums and steps compare the two in every run. A case whose fast form is `full` has a plain one that is `soak`.
    """
    seen = set()  # tests, and (test, parameter, value)
    for item in items:
        test = item.path, item.originalname
        if getattr(item, "callspec", None) and item.callspec.params.get("kernel_form") == "plain":
            item.add_marker(pytest.mark.soak if item.get_closest_marker("full") else pytest.mark.full)
        elif item.get_closest_marker("repeats") and not item.get_closest_marker("soak"):
            if test in seen:
                item.add_marker(pytest.mark.full)
            seen.add(test)
        elif item.get_closest_marker("covers"):
            values = {(test, name, repr(value)) for name, value in item.callspec.params.items()}
            if values <= seen:
                item.add_marker(pytest.mark.full)
            seen |= values


class Golden(dict):
    """Arrays of one fixture as tensors, strings as numpy arrays; golden/README.md says what each holds."""

    def protein(self, prefix: str = "in_") -> Protein:
        """The fixture's packed proteins. `residue_index` is the row, which is how the official code counts."""
        # Waters and selenium are in one raw fixture; their names are outside the vocabulary, any stand-in will do.
        names = torch.tensor([ATOM_INDEX.get(name, ATOM_INDEX["OXT"]) for name in self[f"{prefix}atom_name_str"]])
        types = self[f"{prefix}residue_type"]
        sizes = self.get(f"{prefix}num_residues", torch.tensor([len(types)]))
        return Protein(
            pos=self[f"{prefix}node_position"],
            element=torch.tensor(ATOM_ELEMENT)[names],
            atom_name=names,
            atom_residue=self[f"{prefix}atom2residue"],
            residue_type=types,
            masked=torch.zeros_like(types, dtype=torch.bool),
            residue_number=self[f"{prefix}residue_number"],
            insertion_code=torch.full_like(types, ord(" ")),
            residue_index=torch.cat([torch.arange(n) for n in sizes.tolist()]),
            chain=self[f"{prefix}chain_id"],
            residue_protein=torch.arange(len(sizes)).repeat_interleave(sizes),
            num_proteins=len(sizes),
        )

    def state(self, prefix: str = "sd/") -> dict[str, torch.Tensor]:
        """The weights stored under `prefix`."""
        return {k[len(prefix) :]: v for k, v in self.items() if k.startswith(prefix)}


def load_golden(name: str) -> Golden:
    """The arrays `NAME/...` of the golden file."""
    prefix = f"{name}/"
    with np.load(GOLDEN, allow_pickle=False) as arrays:
        found = {key.removeprefix(prefix): arrays[key] for key in arrays.files if key.startswith(prefix)}
    assert found, name
    return Golden((k, torch.from_numpy(a) if a.dtype.kind in "fiub" else a) for k, a in found.items())


def golden_order(golden: Golden) -> torch.Tensor:
    """The fixture's edges (E,) as a `Graph` sorts them: by (dst, relation, src)."""
    src, dst, relation = golden["in_edge_list"].long().unbind(1)
    return ((dst * int(golden["num_relation"]) + relation) * len(golden["in_node_feature"]) + src).argsort()


def golden_graph(golden: Golden, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Protein, Graph]:
    """The fixture's nodes and edges as they were given to the official network, the edges sorted."""
    order = golden_order(golden)
    x = golden["in_node_feature"].to(dtype)
    edges = golden["in_edge_list"].long()[order]
    pos = golden["in_node_position"].to(dtype)
    counts = golden["in_num_nodes"]
    graph_of = torch.arange(len(counts)).repeat_interleave(counts)
    none = torch.zeros(len(x), dtype=torch.long)
    own = torch.arange(len(x))
    protein = Protein(pos, none, none, own, none, none.bool(), none, none, own, none, graph_of, int(graph_of[-1]) + 1)
    feature = golden["in_edge_feature"][order, :-1].to(dtype) if "in_edge_feature" in golden else None
    graph = Graph(edges[:, 0], edges[:, 1], edges[:, 2], feature, x, int(golden["num_relation"]))
    moved = {name: x.to(device) for name, x in vars(graph).items() if isinstance(x, torch.Tensor)}
    return protein.to(device), replace(graph, **moved)


def real_protein(name: str = "1LCD_A", dtype: torch.dtype = torch.float64) -> Protein:
    """A real structure in double precision: 1LCD_A (51 residues, one chain), 2BEG (130, five chains) or 2XHE."""
    protein = _real_protein(name)
    return replace(protein, pos=protein.pos.to(dtype, copy=True))


@cache
def _real_protein(name: str) -> Protein:
    return load_golden(f"graph_atom_{name}").protein()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request) -> str:
    """Every device there is. Numbers of the official code hold on a GPU to 5e-5, in float32 without TF32."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return request.param


def deviation(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Deviation of every entry (entries,), relative to the largest magnitude of `expected`."""
    actual = actual.detach().to(expected.device)
    return ((actual - expected) / expected.abs().max().clamp(min=1e-30)).flatten()


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest deviation relative to the largest magnitude of `expected`."""
    return float(deviation(actual, expected).abs().max())


def chi_angles(protein: Protein) -> tuple[torch.Tensor, torch.Tensor]:
    """Side-chain torsions chi 1..4 (R, 4) in radian, 0 where undefined, and `defined` (R, 4)."""
    index, defined = chi_atoms(protein)
    a, b, c, d = protein.pos[index.clamp(min=0)].unbind(2)
    return dihedral(a, b, c, d).masked_fill(~defined, 0.0), defined


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rigid_motion(seed: int, distance: float = 1000.0) -> tuple[torch.Tensor, torch.Tensor]:
    """A random proper rotation (3, 3) and a translation (3,) of the given length in angstrom, float64."""
    g = generator(seed)
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=g))
    q = q * torch.sign(torch.diagonal(r))
    shift = torch.randn(3, dtype=torch.float64, generator=g)
    return q * torch.sign(torch.linalg.det(q)), shift / shift.norm() * distance


def move(protein: Protein, seed: int) -> Protein:
    """The protein after a random rigid motion, 1000 angstrom away."""
    rotation, shift = rigid_motion(seed)
    return replace(protein, pos=protein.pos @ rotation.T + shift)


@pytest.fixture(params=formulas.FORMS)
def kernel_form(request):
    """The costly formulas as published, then fast: a test that uses this runs in both forms."""
    with patch.object(formulas, "form", request.param):
        yield request.param


@pytest.fixture
def few_draws(monkeypatch):
    """Intervals from 60 draws in place of 1,000, for tests that do not look at their ends."""
    monkeypatch.setattr(bootstrap, "MOST_DRAWS", 60)


@pytest.fixture(scope="session")
def enzymes(tmp_path_factory) -> Path:
    """The layout of EC with 8, 3 and 5 of the smallest bundled chains, label by name."""
    root = tmp_path_factory.mktemp("ec")
    sources = sorted(find_structures(bundle_path()).sources, key=lambda s: s.size)[:16]
    lines = ["### EC-numbers", "\t".join(ENZYMES), "### PDB-chain\tEC-numbers"]
    for i, source in enumerate(sources):
        folder = root / ("train" if i < 8 else "valid" if i < 11 else "test")
        folder.mkdir(exist_ok=True)
        write_pdb(folder / f"{i + 1000}-A.pdb", source.read().protein)
        lines.append(f"{i + 1000}-A\t{ENZYMES[i % 3]}")
    (root / "nrPDB-EC_annot.tsv").write_text("\n".join(lines) + "\n")
    rows = ["PDB-chain,<30%,<40%,<50%,<70%,<95%", *(f"{i + 1000}-A,0,0,{i % 2},1,1" for i in range(11, 16))]
    (root / "nrPDB-EC_test.csv").write_text("\n".join(rows) + "\n")
    return root
