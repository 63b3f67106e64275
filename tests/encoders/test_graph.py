"""Graphs: the official code's edges and features, brute force, and the two presets' conventions."""

from dataclasses import replace

import pytest
import torch
from conftest import generator, golden_graph, golden_order, load_golden, move, real_protein

from siamdiff_min.conventions import OFFICIAL, PAPER
from siamdiff_min.encoders.graph import ATOM_GRAPH, RESIDUE_GRAPH, Graph, GraphBuilder, edge_lengths, line_graph
from siamdiff_min.files import ConfigError
from siamdiff_min.protein.geometry import angle
from siamdiff_min.protein.protein import Protein

FILES = ["1A8O_raw", "2BEG", "2XHE", "1LCD_A", "batch3"]
BUILDERS = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}


def view(golden, level: str) -> Protein:
    """The nodes the official code kept; waters have no CA and leave the residue level."""
    protein = golden.protein()
    if level == "residue":
        protein = protein.select_atoms(protein.atom_name == 1)
    if "node2input" in golden and level == "atom":
        chosen = torch.zeros(protein.num_atoms, dtype=torch.bool).index_fill(0, golden["node2input"], True)
        protein = protein.select_atoms(chosen)
    kept = torch.zeros(protein.num_residues, dtype=torch.bool).index_fill(0, protein.atom_residue, True)
    if "residue2input" in golden:
        kept &= torch.zeros_like(kept).index_fill(0, golden["residue2input"], True)
    return protein.select_residues(kept)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("level", ["atom", "residue"])
def test_golden_edges_and_features(level, name):
    golden = load_golden(f"graph_{level}_{name}")
    protein = view(golden, level)
    graph = replace(BUILDERS[level], conventions=OFFICIAL)(protein)
    expected = golden["out_edge_list"]
    order = ((expected[:, 1] * 7 + expected[:, 2]) * protein.num_atoms + expected[:, 0]).argsort()
    assert graph.num_relations == golden["out_num_relation"]
    assert torch.equal(torch.stack([graph.src, graph.dst, graph.relation], dim=1), expected[order])
    feature = torch.cat([graph.edge_feature, edge_lengths(graph, protein.pos)[:, None]], dim=1)
    assert torch.equal(feature[:, :-1], golden["out_edge_feature"][order][:, :-1])
    assert (feature - golden["out_edge_feature"][order]).abs().max() < 1e-5  # angstrom
    if name in ("1LCD_A", "2BEG") and level == "residue":  # no unknown residues
        assert torch.equal(graph.node_feature, golden["out_node_feature"].float())


def test_presets_agree_on_one_unbroken_chain():
    protein = real_protein("1LCD_A")
    for builder in BUILDERS.values():
        ours, official = (replace(builder, conventions=c)(builder.select_nodes(protein)) for c in (PAPER, OFFICIAL))
        assert torch.equal(ours.src, official.src) and torch.equal(ours.edge_feature, official.edge_feature)


def test_chains_that_are_numbered_alike_are_far_from_each_other():
    """Readers count `residue_index` from 0 in every chain: equal places in two chains must not look like neighbours.

    All pairs of other chains that are near are joined, in the last distance class (differences.md, row 16).
    """
    protein = real_protein("2BEG")
    size = torch.unique_consecutive(protein.chain, return_counts=True)[1]
    protein = replace(protein, residue_index=torch.cat([torch.arange(n) for n in size.tolist()]))
    for builder in BUILDERS.values():
        view = builder.select_nodes(protein)
        graph = builder(view)
        i, j = view.atom_residue[graph.src], view.atom_residue[graph.dst]
        across = view.chain[i] != view.chain[j]
        alike = across & ((view.residue_index[i] - view.residue_index[j]).abs() < 5)
        assert alike.any()  # kept, though the filter on |i - j| drops such pairs within a chain
        assert (graph.edge_feature[across, -1] == 1).all() and (graph.relation[across] >= builder.num_offsets).all()
    near = (view.pos[:, None] - view.pos).norm(dim=-1) < 10  # of the residue level
    assert ((graph.relation == 5) & across).sum() == (near & (view.chain[:, None] != view.chain)).sum()
    # a chain of one residue between two others: the offsets of rows and of places are both 1
    short = protein.alpha_carbons().crop(0, 3)
    short = replace(short, chain=torch.tensor([0, 1, 2]), residue_index=torch.tensor([0, 1, 2]))
    graph = RESIDUE_GRAPH(short)
    assert (graph.src == graph.dst)[graph.relation < 5].all()


def test_gaps_of_a_selection_are_not_bridged():
    protein = real_protein("1LCD_A").alpha_carbons()
    keep = torch.ones(51, dtype=torch.bool)
    keep[20:23] = False  # residue 19 and 23 become neighbours in the rows
    graph = RESIDUE_GRAPH(protein.select_residues(keep))
    near = graph.relation < 5
    offset = torch.arange(51)[keep][graph.dst] - torch.arange(51)[keep][graph.src]
    assert torch.equal(graph.relation[near] - 2, offset[near])
    keep[20:23] = True
    keep[21] = False  # offset 2 survives one missing residue
    graph = RESIDUE_GRAPH(protein.select_residues(keep))
    assert ((graph.src == 20) & (graph.dst == 21) & (graph.relation == 4)).any()


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_the_numbers_of_the_authors_mean_nothing(level):
    """Distance along the chain counts residues of the file: numbers may start anywhere, jump, and fall."""
    protein = BUILDERS[level].select_nodes(real_protein("2BEG"))
    number = torch.randperm(protein.num_residues, generator=generator()) * 7 - 300
    graph, same = (BUILDERS[level](p) for p in (protein, replace(protein, residue_number=number)))
    assert all(torch.equal(getattr(graph, x), getattr(same, x)) for x in ("src", "dst", "relation", "edge_feature"))


def test_a_graph_of_one_kind_of_edges_alone():
    protein = RESIDUE_GRAPH.select_nodes(real_protein())
    nearest = GraphBuilder(radius=0, num_neighbors=7, with_elements=False)
    graph = nearest(protein)
    distance = torch.cdist(protein.pos, protein.pos).fill_diagonal_(torch.inf)
    near = distance <= distance.topk(7, largest=False).values[:, -1:]
    assert torch.equal(torch.stack([graph.dst, graph.src], dim=1), near.nonzero())
    assert nearest.num_relations == graph.num_relations == 1 and graph.edge_feature.shape[1] == nearest.edge_dim - 1
    chain = replace(RESIDUE_GRAPH, radius=0, num_neighbors=0)
    graph = chain(protein)
    assert chain.num_relations == 5 and graph.relation.unique().tolist() == [0, 1, 2, 3, 4]
    assert ((graph.src - graph.dst).abs() <= 2).all()


def test_edges_along_the_chain_are_of_the_residue_level():
    with pytest.raises(ConfigError, match="max_offset is for the residue level: its edges join residues, not atoms"):
        replace(ATOM_GRAPH, max_offset=2)


def test_max_neighbors_keeps_the_nearest():
    protein = real_protein("1LCD_A")
    capped = replace(ATOM_GRAPH, radius=8.0, conventions=replace(PAPER, max_neighbors=5))(protein)
    full = replace(ATOM_GRAPH, radius=8.0)(protein)
    length = edge_lengths(full, protein.pos)
    for node in range(0, protein.num_atoms, 20):
        nearest = length[full.dst == node].sort().values[:5]
        assert torch.equal(edge_lengths(capped, protein.pos)[capped.dst == node].sort().values, nearest)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_line_graph_equals_double_loop(level):
    builder = BUILDERS[level]
    protein = builder.select_nodes(real_protein("1LCD_A").crop(0, 12))
    graph = builder(protein)
    edge_in, edge_out, angle_bin = line_graph(graph, protein.pos, 8)
    found = dict(zip(zip(edge_in.tolist(), edge_out.tolist()), angle_bin.tolist()))
    assert len(found) == len(edge_in)
    src, dst = graph.src.tolist(), graph.dst.tolist()
    expected = {(a, b) for a in range(len(src)) for b in range(len(src)) if dst[a] == src[b]}
    assert set(found) == expected
    for a, b in list(expected)[:500]:
        theta = angle(protein.pos[src[a]], protein.pos[dst[a]], protein.pos[dst[b]])
        assert found[a, b] == min(int(theta / torch.pi * 8), 7)
        if src[a] == dst[b]:
            assert found[a, b] == 0  # the way back


def test_golden_line_graph():
    golden = load_golden("gearnet_res_6x32")
    protein, graph = golden_graph(golden)
    edge_in, edge_out, angle_bin = line_graph(graph, protein.pos, 8)
    order = golden_order(golden)  # its edges have other numbers
    found = torch.stack([order[edge_in], order[edge_out], angle_bin], dim=1)
    expected = golden["line_edge_list"].long()
    key = [(x[:, 0] * graph.num_edges + x[:, 1]) * 8 + x[:, 2] for x in (found, expected)]
    assert torch.equal(key[0].sort().values, key[1].sort().values)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_types_that_are_not_shown(level):
    """At atom level no atom shows a type, and edges still do; at residue level all do (differences.md, row 10)."""
    protein = BUILDERS[level].select_nodes(real_protein("1LCD_A"))
    protein = replace(protein, masked=torch.arange(51) % 3 == 0)
    shown, hidden = (BUILDERS[level](protein, show_types) for show_types in (True, False))
    types = slice(18 * (level == "atom"), None)
    assert shown.node_feature[:, types].any() and hidden.node_feature[:, types].any() == (level == "residue")
    expected = shown.node_feature.clone()
    expected[:, types] *= level == "residue"
    assert torch.equal(hidden.node_feature, expected) and torch.equal(hidden.edge_feature, shown.edge_feature)


def test_a_graph_whose_edges_are_not_sorted_is_refused():
    """Searches and sums rely on the order: wrong angles and messages, and no other sign of it."""
    graph = RESIDUE_GRAPH(real_protein("1LCD_A").alpha_carbons())
    fields = graph.src, graph.dst, graph.relation, graph.edge_feature

    def hand_made(order: torch.Tensor) -> Graph:
        return Graph(*(x[order] for x in fields), graph.node_feature, graph.num_relations)

    rows = torch.arange(graph.num_edges)
    assert hand_made(rows).num_edges == graph.num_edges and hand_made(rows[:0]).num_edges == 0
    same_dst, same_relation = graph.dst.diff() == 0, graph.relation.diff() == 0
    for differs in (~same_dst, same_dst & ~same_relation, same_dst & same_relation):  # in dst, in relation, in src
        row, order = int(differs.nonzero()[0]), rows.clone()
        order[row], order[row + 1] = row + 1, row
        with pytest.raises(ValueError, match=r"must be sorted by \(dst, relation, src\)"):
            hand_made(order)


def assembly(seed: int) -> Protein:
    """Four copies of a chain about an axis, turned at random, with coordinates of three decimals as in a file."""
    chain = real_protein("1LCD_A").crop(0, 24)
    turned = move(chain, seed).pos
    first = (turned - turned.mean(0) + 12).mul(1000).round() / 1000
    quarter = torch.tensor([[0, -1, 0], [1, 0, 0], [0, 0, 1]]).double()
    copies = []
    for k in range(4):
        pos = first @ torch.linalg.matrix_power(quarter, k).T
        copies.append(replace(chain, pos=pos.float(), chain=torch.full_like(chain.chain, k)))
    together = Protein.pack(copies)
    return replace(together, residue_protein=torch.zeros_like(together.chain), num_proteins=1)


def lattice(spacing: float, size: int = 4) -> Protein:
    """CA atoms on a grid: nearly all distances occur more than once."""
    return Protein.from_ca(spacing * torch.cartesian_prod(*[torch.arange(size)] * 3).float(), "A" * size**3)


@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("most", [None, 5])
def test_ties_do_not_depend_on_the_batch(level, most):
    """Points equally far from another: a protein has the same edges alone, beside others, and in any place."""
    conventions = replace(PAPER, max_neighbors=most)
    proteins = [assembly(seed) for seed in range(3)] + [
        lattice(3.8),
        lattice(3.75, 3),
        real_protein("2BEG", torch.float32),
    ]
    builder = replace(BUILDERS[level], num_neighbors=10, conventions=conventions)
    views = [builder.select_nodes(protein) for protein in proteins]
    alone = [builder(view) for view in views]
    for order in (range(len(views)), [3, 5, 0, 4, 2, 1]):
        graph = builder(Protein.pack([views[i] for i in order]))
        first = 0
        for i in order:
            own = (graph.dst >= first) & (graph.dst < first + views[i].num_atoms)
            for name in ("src", "dst"):
                assert torch.equal(getattr(graph, name)[own] - first, getattr(alone[i], name))
            assert torch.equal(graph.relation[own], alone[i].relation)
            first += views[i].num_atoms
