"""What an encoder sees holds no answer, whatever field it looks at; and the smallest batches are trained on."""

from dataclasses import replace

import pytest
import torch
from conftest import generator, real_protein
from torch import Tensor

from siamdiff_min.encoders import ENCODERS, Encoding
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.encoders.graph import RESIDUE_GRAPH, Graph, edge_lengths
from siamdiff_min.encoders.ops import BatchNorm, segment_mean
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.pretraining.self_prediction import Geometry, SelfPrediction
from siamdiff_min.protein.conformer import GaussianConformer
from siamdiff_min.protein.constants import CA
from siamdiff_min.protein.protein import Protein

TYPES = ["diffpret", "siamdiff", "residue-type", "residue-type+dihedral"]
MEASURED = ["distance", "angle", "dihedral", "score-matching"]


def seen_by_an_encoder(objective, protein: Protein, seed: int = 1) -> list[tuple[Protein, Graph]]:
    """What the objective hands to its encoder in one step."""
    given = []
    handle = objective.encoder.register_forward_pre_hook(lambda _, args: given.append(args))
    objective(protein, generator(seed))
    handle.remove()
    return given


def same(a, b) -> bool:
    """Whether every field of two proteins or graphs has the same bits, nan being nan."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in vars(a)]
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) if isinstance(x, Tensor) else x == y for x, y in pairs)


def build(name: str, level: str, preset: str):
    torch.manual_seed(0)
    return OBJECTIVES[name](ENCODERS["gearnet"](level, "tiny", preset), level, preset).eval()


@pytest.mark.covers
@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("name", TYPES)
def test_hidden_types_change_no_bit_of_what_an_encoder_sees(name, level, preset):
    objective, protein = build(name, level, preset), real_protein("2BEG", torch.float32).crop(16, 50)
    if name == "siamdiff":
        objective.draw_conformer = GaussianConformer()  # turned side chains would tell types that are not hidden, too
    given = seen_by_an_encoder(objective, protein)
    hidden = given[0][0].masked[: protein.num_residues]
    assert hidden.any()
    other = torch.where(hidden, (protein.residue_type + 7) % 20, protein.residue_type)
    for (p, graph), (q, same_graph) in zip(given, seen_by_an_encoder(objective, replace(protein, residue_type=other))):
        assert same(p, q) and same(graph, same_graph)
        assert p.atom_name[p.masked[p.atom_residue]].max() < 4  # no side chain tells the type


@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("name", MEASURED)
def test_no_coordinates_beside_hidden_lengths_and_angles(name, level):
    protein = real_protein("2BEG", torch.float32).crop(16, 50)
    ((protein, graph),) = seen_by_an_encoder(build(name, level, "paper"), protein)
    assert protein.pos.isnan().all() and graph.num_edges > 50
    size = graph.shown_vector.norm(dim=-1)
    if name == "score-matching":  # the noised length, and a direction without a length
        assert torch.allclose(size[graph.src != graph.dst], torch.ones(()), atol=1e-5)
    else:
        assert graph.shown_length is None and torch.equal(edge_lengths(graph, protein.pos), size)


def test_a_hidden_distance_changes_no_bit_of_what_an_encoder_sees():
    """Two chains that one edge joins. Without that edge nothing tells how far apart they are."""
    chain = real_protein("1LCD_A", torch.float32).alpha_carbons().crop(0, 2)
    pos = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 8, 0], [4, 16, 0]])
    index = torch.arange(4)
    builder = replace(RESIDUE_GRAPH, num_neighbors=0, min_sequence_distance=0, radius=8.5)
    protein = Protein.pack([chain, chain])
    protein = replace(protein, pos=pos, residue_protein=index * 0, chain=index // 2, residue_index=index % 2)
    protein = replace(protein, num_proteins=1)
    objective = SelfPrediction(GearNet(builder, [8, 8]), None, Geometry(16, "distance")).eval()
    objective.geometry.num = 1
    targets = []
    target = objective.geometry.target
    objective.geometry.target = lambda points: targets.append(target(points).item()) or target(points)
    given = []
    for seed in range(100):  # until the edge between the chains is drawn
        targets.clear()
        given = [seen_by_an_encoder(objective, protein, seed)]
        if targets == [8.0]:
            break
    further = replace(protein, pos=pos + torch.tensor([0, 0.25, 0]) * (index // 2)[:, None])
    given.append(seen_by_an_encoder(objective, further, seed))
    ((p, graph),), ((q, same_graph),) = given
    assert targets == [8.0, 8.25] and same(p, q) and same(graph, same_graph)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_crops_to_contrast_hold_nothing_of_the_rest(level):
    objective, protein = build("multiview", level, "paper"), real_protein("2BEG", torch.float32)
    protein = Protein.pack([protein, protein])
    given = seen_by_an_encoder(objective, protein)
    inside = torch.zeros(protein.num_residues, dtype=torch.bool)
    place = torch.stack([protein.residue_protein, protein.chain, protein.residue_index])
    for crop, _ in given:
        own = torch.stack([crop.residue_protein, crop.chain, crop.residue_index])
        inside |= (place[:, :, None] == own[:, None]).all(0).any(1)
    assert 0 < inside.sum() < protein.num_residues
    other = torch.where(inside, protein.residue_type, (protein.residue_type + 7) % 20)
    elements = torch.where(inside[protein.atom_residue], protein.element, 9)
    changed = replace(protein, residue_type=other, element=elements, residue_number=protein.residue_number * inside)
    for pair, again in zip(given, seen_by_an_encoder(objective, changed)):
        assert all(map(same, pair, again))


class Absolute(torch.nn.Module):
    """An encoder that measures distances by itself."""

    out_dim, builder = 1, RESIDUE_GRAPH

    def forward(self, protein: Protein, graph: Graph) -> Encoding:
        near = (protein.pos[graph.src] - protein.pos[graph.dst]).norm(dim=-1)
        node = segment_mean(near, graph.dst, graph.num_nodes)[:, None]
        return Encoding(node, node, segment_mean(node, protein.atom_protein, protein.num_proteins))


@pytest.mark.parametrize("name", MEASURED)
def test_an_encoder_that_reads_hidden_coordinates_is_told_so(name):
    protein = real_protein("2BEG", torch.float32)
    with pytest.raises(ConfigError, match=r"hides the coordinates.*edge_vectors"):
        OBJECTIVES[name](Absolute(), "residue")(protein, generator())
    OBJECTIVES["residue-type"](Absolute(), "residue")(protein, generator())


# ---- the smallest batches: graphs without an edge, a single node -----------------------------------------------------


def lonely() -> Protein:
    """Four residues whose atoms are all further apart than any edge is long."""
    protein = real_protein("1LCD_A", torch.float32).crop(0, 4)
    return replace(protein, pos=protein.pos * 1000)


def dipeptides() -> Protein:
    """Two residues of two atoms each: their three edges may all be hidden."""
    protein = real_protein("1LCD_A", torch.float32).crop(5, 2)
    return protein.select_atoms((protein.atom_name == CA) | (protein.atom_name == CA + 1))


def one_node() -> Protein:
    protein = real_protein("1LCD_A", torch.float32).crop(0, 1)
    return protein.select_atoms(protein.atom_name == CA)


ALL = [name for name in OBJECTIVES if name not in ("residue-type+distance", "residue-type+angle")]
FEW = ["siamdiff", "residue-type+dihedral", "multiview", "score-matching"]
OF = {("atom", "gearnet"): ALL, ("residue", "gearnet"): ALL, ("atom", "gvp"): FEW, ("residue", "esm-gearnet"): FEW}
CASES = [
    pytest.param(method, *of, marks=() if of[1] == "gearnet" or method == "siamdiff" else pytest.mark.full)
    for of in OF
    for method in OF[of]
    if (method, of[0]) != ("torsional", "residue")
]


@pytest.mark.covers
@pytest.mark.parametrize("method, level, encoder", CASES)
def test_every_method_trains_on_it(method, level, encoder):
    torch.manual_seed(0)
    objective = OBJECTIVES[method](ENCODERS[encoder](level, "tiny"), level)
    adam = torch.optim.Adam(objective.parameters(), lr=1e-3)
    for step, batch in enumerate((lonely, one_node, dipeptides, lonely, one_node)):
        loss, _ = objective(batch(), generator(step))
        adam.zero_grad()
        loss.backward()
        adam.step()
        assert loss.isfinite(), batch
    assert all(x.isfinite().all() for x in objective.state_dict().values())


def test_a_batch_norm_of_one_row_uses_its_running_statistics_and_keeps_them():
    torch.manual_seed(0)
    norm, x = BatchNorm(5), torch.randn(9, 5)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    for rows in (0, 1):
        before = {k: v.clone() for k, v in norm.state_dict().items()}
        found = norm.train()(x[:rows])
        assert torch.equal(found, norm.eval()(x[:rows]))
        assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())
    plain = torch.nn.BatchNorm1d(5)
    plain.load_state_dict(norm.state_dict())
    assert torch.equal(norm.train()(x), plain(x)) and torch.equal(norm.running_mean, plain.running_mean)
