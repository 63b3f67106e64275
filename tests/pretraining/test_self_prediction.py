"""The other objectives: what is hidden is gone, targets by other means, double loops, poses, golden losses."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from Bio.PDB.vectors import Vector, calc_angle, calc_dihedral
from conftest import chi_angles, generator, load_golden, move, real_protein, relative_error
from torch import nn

from siamdiff_min.conventions import OFFICIAL, PAPER
from siamdiff_min.encoders import ENCODERS, Encoding
from siamdiff_min.encoders.gearnet import GearNet
from siamdiff_min.encoders.graph import ATOM_GRAPH, RESIDUE_GRAPH, edge_lengths
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES, SCHEDULES, Schedule
from siamdiff_min.pretraining import self_prediction as baselines
from siamdiff_min.pretraining.contrast import MultiviewContrast, ball, info_nce, subsequence
from siamdiff_min.pretraining.hide import remove_edges
from siamdiff_min.pretraining.other_diffusion import sigmas
from siamdiff_min.pretraining.self_prediction import GEOMETRY, Geometry, ResidueTypes, SelfPrediction
from siamdiff_min.pretraining.walks import sample_walks, walk_nodes
from siamdiff_min.protein.conformer import chi_atoms
from siamdiff_min.protein.constants import RESIDUE_INDEX
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.ranks import Ranks, means

BASELINES = [name for name in OBJECTIVES if name not in ("diffpret", "siamdiff")]
SINGLE = [name for name in BASELINES if name not in ("residue-type+distance", "residue-type+angle")]
CASES = [(name, level) for name in SINGLE for level in ("atom", "residue") if (name, level) != ("torsional", "residue")]


def chains() -> Protein:
    """Two proteins in double precision: 51 residues, and five chains of 26."""
    one, two = real_protein(), real_protein("2BEG")
    return Protein.pack([replace(p, chain=p.chain.unique(return_inverse=True)[1]) for p in (one, two)])


def pieces() -> Protein:
    """A chain of 25 residues, and parts of two chains."""
    one, two = chains().unpack()
    return Protein.pack([one.crop(0, 25), two.crop(16, 30)])


def build(name: str, level: str, encoder: str = "gearnet", preset: str = "paper"):
    torch.manual_seed(0)
    return OBJECTIVES[name](ENCODERS[encoder](level, "tiny", preset), level, preset).double()


@pytest.mark.covers
@pytest.mark.parametrize(
    "name, level", [pytest.param(*case, marks=[pytest.mark.full] * (case[1] == "atom")) for case in CASES]
)
def test_losses_do_not_depend_on_the_pose(name, level):
    objective, protein = build(name, level).eval(), pieces()
    loss, logs = objective(protein, generator(1))
    moved, _ = objective(move(protein, 2), generator(1))
    assert abs(loss - moved) <= 1e-9 * abs(loss) and logs
    again, _ = objective(protein, generator(1))
    other, _ = objective(protein, generator(2))
    assert again == loss and other != loss
    assert all(log.sums.sum() > 0 and torch.isfinite(log.sums).all() for log in logs.values())


# ---- residue types ---------------------------------------------------------------------------------------------------


def official_encoder() -> GearNet:
    return GearNet(replace(RESIDUE_GRAPH, conventions=OFFICIAL), [16] * 3, readout="sum")


def official_state(golden, names: dict[str, str]) -> dict[str, torch.Tensor]:
    """The fixture's weights, with the names that begin with a key of `names` beginning with its value."""
    renamed = {}
    for name, value in golden.state().items():
        for theirs, ours in names.items():
            if name.startswith(theirs):
                renamed[name.replace(theirs, ours, 1)] = value
    return renamed


@pytest.mark.usefixtures("kernel_form")
def test_golden_residue_types(monkeypatch):
    golden = load_golden("baseline_AttributeMasking")
    objective = SelfPrediction(official_encoder(), ResidueTypes(48, OFFICIAL), None)
    objective.load_state_dict(official_state(golden, {"model.": "encoder.", "mlp.": "types.mlp."}))
    monkeypatch.setattr(torch, "rand", lambda *size, **options: golden["draw0_rand"])
    loss, logs = objective(golden.protein(), generator())
    assert abs(loss - golden["loss"]) <= 1e-5 * golden["loss"]
    assert logs["residue_type_accuracy"].sums.tolist() == [1.0, 18.0]  # 0.0556


# ---- walks and geometry ----------------------------------------------------------------------------------------------


def all_walks(graph, nodes, edges: int) -> set[tuple[int, ...]]:
    """Every walk of that many edges that visits no node twice, as nodes, by following every edge."""
    out: dict[int, set[int]] = {}
    for i, j in zip(graph.src.tolist(), graph.dst.tolist()):
        out.setdefault(i, set()).add(j)
    walks = {(i,) for i in nodes}
    for _ in range(edges):
        walks = {(*w, j) for w in walks for j in out.get(w[-1], ()) if j not in w}
    return walks


@pytest.mark.parametrize("edges", [1, 2, 3])
def test_walks_are_drawn_evenly_from_all_there_are(edges):
    """12 and 9 atoms: every walk of a small graph is found about equally often, counted per protein."""
    protein = Protein.pack([real_protein().crop(3, 2), real_protein().crop(20, 1)])
    graph = replace(ATOM_GRAPH, radius=2.0)(protein)
    draws = 40_000
    walk = sample_walks(graph, protein.atom_protein, draws, edges, generator(5))
    assert walk.shape[1] == edges
    if edges > 1:
        assert torch.equal(graph.dst[walk[:, :-1]], graph.src[walk[:, 1:]])
    nodes = walk_nodes(graph, walk)
    for b in range(2):
        own = (protein.atom_protein == b).nonzero().flatten().tolist()
        expected = all_walks(graph, own, edges)
        found, counts = nodes[protein.atom_protein[nodes[:, 0]] == b].unique(dim=0, return_counts=True)
        assert {tuple(w) for w in found.tolist()} == expected
        mean = counts.sum() / len(expected)
        assert (counts - mean).abs().max() < 6 * mean.sqrt()


@pytest.mark.parametrize("place", [0, 1])
def test_a_protein_without_edges_is_no_obstacle(place):
    """Nor does another one get its share of the walks."""
    proteins = [real_protein().alpha_carbons()]
    proteins.insert(place, real_protein().alpha_carbons().crop(5, 1))
    protein = Protein.pack(proteins)
    graph = RESIDUE_GRAPH(protein)
    for edges in (1, 2, 3):
        nodes = walk_nodes(graph, sample_walks(graph, protein.atom_protein, 50, edges, generator(1)))
        assert 0 < len(nodes) <= 50 and (protein.atom_protein[nodes] != place).all()
        bare = remove_edges(graph, torch.arange(graph.num_edges))
        assert sample_walks(bare, protein.atom_protein, 50, edges, generator(1)).shape == (0, edges)


@pytest.mark.parametrize("name", [name for name in BASELINES if not name.startswith(("residue-type", "multiview"))])
def test_nothing_to_predict_costs_nothing(name):
    """A single residue has no walk from one CA to another; glycine and alanine have no torsion."""
    protein = real_protein().select_residues(real_protein().residue_type <= RESIDUE_INDEX["ALA"])
    if name != "torsional":
        protein = protein.crop(0, 1)
    loss, logs = build(name, "atom" if name == "torsional" else "residue").eval()(protein, generator())
    loss.backward()
    assert loss == 0 and not any(log.sums.any() for log in logs.values())
    assert means([logs], Ranks(torch.device("cpu"))) == {}


@pytest.mark.covers
@pytest.mark.parametrize("official", [False, True])
@pytest.mark.parametrize("kind", GEOMETRY)
@pytest.mark.parametrize("level", ["atom", "residue"])
def test_sampled_edges_are_gone(level, kind, official):
    builder = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
    protein = builder.select_nodes(pieces())
    graph, geometry = builder(protein), Geometry(8, kind, OFFICIAL if official else PAPER)
    geometry.num = 20
    left, nodes = geometry.hide(protein, graph, generator(7))
    assert (
        nodes.shape[1] == geometry.edges + 1
        and (protein.atom_protein[nodes] == protein.atom_protein[nodes[:, :1]]).all()
    )
    hidden = {frozenset(pair) for w in nodes.tolist() for pair in pairwise(w)}
    before = list(zip(graph.src.tolist(), graph.dst.tolist(), graph.relation.tolist()))
    after = list(zip(left.src.tolist(), left.dst.tolist(), left.relation.tolist()))
    if official:
        assert len(before) - len(after) <= len(nodes) * geometry.edges
        assert {frozenset(e[:2]) for e in set(before) - set(after)} == hidden
    else:
        assert after == [e for e in before if frozenset(e[:2]) not in hidden]
        kept = torch.tensor([frozenset(e[:2]) not in hidden for e in before])
        assert torch.equal(left.edge_feature, graph.edge_feature[kept])


def test_targets_by_biopython():
    points = 5 * torch.randn(60, 4, 3, dtype=torch.float64, generator=generator(1))
    vectors = [[Vector(*xyz) for xyz in p] for p in points.tolist()]
    distance = Geometry(8, "distance").target(points[:, :2])
    assert np.allclose(distance, [(v[0] - v[1]).norm() for v in vectors])
    angles = Geometry(8, "angle").target(points[:, :3])
    expected = [calc_angle(*v[:3]) for v in vectors]
    assert angles.tolist() == [int(x / np.pi * 8) for x in expected]
    dihedrals = Geometry(8, "dihedral").target(points)
    expected = [abs(calc_dihedral(*v)) for v in vectors]
    assert dihedrals.tolist() == [int(x / np.pi * 8) for x in expected]
    assert {*angles.tolist()} >= {*range(7)}
    assert {*dihedrals.tolist()} == {*range(8)}


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("kind", GEOMETRY)
def test_golden_geometry(kind, monkeypatch):
    """From the edges that were drawn to targets, predictions and loss."""
    golden, drawn = load_golden(f"baseline_{kind.title()}Prediction"), load_golden("baseline_drawn")
    objective = SelfPrediction(official_encoder(), None, Geometry(48, kind, OFFICIAL))
    state = official_state(golden, {"model.": "encoder.", "mlp.": "geometry.mlp."})
    # The official heads take the atoms of a walk k -> j -> i as i, j, k, and of k -> t -> j -> i as i, j, k, t.
    order = {"distance": [0, 1], "angle": [2, 1, 0], "dihedral": [2, 3, 1, 0]}[kind]
    weight = state["geometry.mlp.layers.0.weight"]
    state["geometry.mlp.layers.0.weight"] = weight.unflatten(1, (-1, 48))[:, order].flatten(1)
    objective.load_state_dict(state)
    monkeypatch.setattr(baselines, "sample_walks", lambda *_: drawn[f"{kind}/walk"].long())
    seen, loss = [], objective.geometry.loss
    objective.geometry.loss = lambda target, a: seen.append((target, a)) or loss(target, a)
    value, logs = objective(load_golden("baseline_AttributeMasking").protein(), generator())
    ((target, a),) = seen
    assert torch.equal(target, golden["target"])
    assert relative_error(objective.geometry.mlp(a.flatten(1)).squeeze(-1), golden["pred"]) < 1e-5
    assert abs(value - golden["loss"]) <= 1e-5 * golden["loss"]
    if kind != "distance":
        correct, count = logs[f"{kind}_accuracy"].sums
        assert torch.isclose(correct / count, golden["metric/accuracy"])


@pytest.mark.covers
@pytest.mark.parametrize("level", ["atom", "residue"])
@pytest.mark.parametrize("kind", GEOMETRY)
def test_combinations_measure_the_atoms_that_are_left(level, kind):
    """Side chains of masked residues are gone at atom level, so the rows of all atoms behind them move up.

    Both losses come of one pass.
    """
    objective = build(f"residue-type+{kind}", level)
    left, hidden, measured, calls = [], [], [], []
    hide, target = objective.geometry.hide, objective.geometry.target
    objective.encoder.register_forward_pre_hook(lambda *_: calls.append(1))
    objective.geometry.hide = lambda *args: left.append(args[0]) or hidden.append(hide(*args)) or hidden[0]
    objective.geometry.target = lambda points: measured.append(points) or target(points)
    loss, logs = objective(chains(), generator(1))
    values = means([logs], Ranks(torch.device("cpu")))
    assert len(calls) == 1
    parts = [value for name, value in values.items() if name.endswith(("_loss", "_error"))]
    assert loss.item() == pytest.approx(sum(parts), rel=1e-6)
    ((_, nodes),), (points,) = hidden, measured
    assert left[0].masked.any()
    assert torch.equal(points, left[0].pos[nodes])
    assert len(nodes) > 100


# ---- multiview contrast ----------------------------------------------------------------------------------------------


def test_info_nce_by_double_loop():
    z, other = (torch.randn(5, 7, dtype=torch.float64, generator=generator(k)) for k in (0, 1))
    views = [v / v.norm() for v in [*z, *other]]
    expected, top = [], []
    for i, view in enumerate(views):
        similarity = {j: float(view @ views[j]) / 0.07 for j in range(10) if j != i}
        right = (i + 5) % 10
        expected.append(np.log(sum(np.exp(s) for s in similarity.values())) - similarity[right])
        top.append(max(similarity, key=similarity.get) == right)
    loss, correct = info_nce(z, other)
    assert np.allclose(loss, expected, rtol=1e-5) and correct.tolist() == top
    same, all_right = info_nce(z, z)
    assert all_right.all() and same.mean() < loss.mean()
    with torch.autocast("cpu", torch.bfloat16):  # whose steps are 1/16 where the cosine over the temperature is 14
        assert torch.equal(info_nce(z, other)[0], loss)


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("trial", range(3))
def test_golden_multiview(trial):
    """From the residues and edges that were drawn to the loss. The official views keep edges of the whole protein."""
    golden, drawn = load_golden("baseline_MultiviewContrast"), load_golden("baseline_drawn")
    objective = MultiviewContrast(official_encoder(), OFFICIAL)
    objective.load_state_dict(official_state(golden, {"model.model.": "encoder.", "model.mlp.": "mlp."}))
    numbers = iter((1, 2))

    def draw(protein, ca, generator):
        k = next(numbers)
        residues, edges = (drawn[f"multiview/trial{trial}/{name}{k}"] for name in ("residues", "edges"))
        whole, place = objective.encoder.builder(protein), residues.cumsum(0) - 1
        graph = replace(
            whole,
            src=place[whole.src[edges]],
            dst=place[whole.dst[edges]],
            relation=whole.relation[edges],
            edge_feature=whole.edge_feature[edges],
            node_feature=whole.node_feature[residues],
        )
        return protein.select_residues(residues), graph

    objective.draw = draw
    loss, _ = objective(load_golden("baseline_AttributeMasking").protein(), generator())
    assert abs(loss - golden[f"trial{trial}/loss"]) <= 1e-5 * golden[f"trial{trial}/loss"]


def test_crops():
    protein, starts, sizes = chains(), set(), set()
    ca = protein.alpha_carbons().pos
    chains_ca = [ca[protein.residue_protein == b] for b in range(2)]
    balls = [{tuple(row) for row in (torch.cdist(own, own) <= 15).tolist()} for own in chains_ca]  # angstrom (App. D)
    for seed in range(300):
        window = subsequence(protein, generator(seed))
        for b, size in ((0, 51), (1, 130)):
            rows = window[protein.residue_protein == b].nonzero().flatten().tolist()
            assert rows == list(range(rows[0], rows[0] + 50)) and rows[-1] < size  # residues (App. D)
            starts.add((b, rows[0]))
        near = ball(protein, ca, generator(seed))
        for b in range(2):
            inside = near[protein.residue_protein == b]
            assert tuple(inside.tolist()) in balls[b]
            sizes.add(int(inside.sum()))
    assert {s for b, s in starts if b == 0} == {0, 1} and len({s for b, s in starts if b == 1}) > 70
    assert len(sizes) > 20
    short = real_protein().crop(0, 30)
    assert subsequence(short, generator()).all()


def test_the_largest_random_number_takes_the_last_window_and_the_last_centre(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.full(size, 1 - 2**-24))
    protein = chains()
    ca = protein.alpha_carbons().pos
    window = subsequence(protein, generator())
    near = ball(protein, ca, generator())
    for b in range(2):
        own = protein.residue_protein == b
        last = int(own.sum()) - 1
        assert window[own].nonzero().flatten().tolist() == list(range(last - 49, last + 1))
        assert torch.equal(near[own], (ca[own] - ca[own][last]).norm(dim=-1) <= 15)


def test_a_protein_alone_counts_as_no_answer():
    """As the last of the held-out ones may be: it would be right without looking."""
    objective = build("multiview", "residue")
    loss, logs = objective(real_protein(), generator())
    assert loss == 0 and len(logs) == 3 and not any(log.sums.any() for log in logs.values())
    _, logs = objective(Protein.pack([real_protein(), real_protein()]), generator())
    assert {log.sums[1].item() for log in logs.values()} == {4}


def test_both_views_are_trained():
    objective, views = build("multiview", "residue"), []
    objective.encoder.register_forward_hook(lambda _, __, out: out.protein.retain_grad() or views.append(out.protein))
    objective(chains(), generator())[0].backward()
    assert len(views) == 2 and all(view.grad.any(1).all() for view in views)


# ---- score matching and torsions -------------------------------------------------------------------------------------


def test_sigmas_are_log_linear():
    sigma = sigmas()
    assert len(sigma) == 50
    assert torch.allclose(sigma, torch.tensor([0.01 * 1000 ** (k / 49) for k in range(50)]), rtol=1e-5)


def noise_on(graph, clean: Protein) -> torch.Tensor:
    """What score matching has added to the lengths (E,), angstrom."""
    return graph.shown_length - edge_lengths(replace(graph, shown_length=None, shown_vector=None), clean.pos)


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_score_matching_sees_noised_lengths_and_learns_the_noise(level):
    """The encoder and the head see the noised ones, d + sigma eps."""
    objective, protein = build("score-matching", level), pieces()
    shown, given = [], []
    objective.encoder.register_forward_pre_hook(lambda _, args: shown.append(args))
    objective.dist_mlp.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    nn.init.zeros_(objective.mlp.layers[-1].weight)
    nn.init.zeros_(objective.mlp.layers[-1].bias)
    loss, _ = objective(protein, generator(4))
    ((view, graph),), (lengths,) = shown, given
    pair, of_edge = torch.unique(graph.pair, return_inverse=True)
    assert torch.equal(lengths[of_edge, 0], graph.shown_length)
    assert len(lengths) == len(pair)
    difference = noise_on(graph, objective.encoder.builder.select_nodes(protein))
    assert (difference[graph.src == graph.dst] == 0).all()
    of_pair: dict = {}
    for i, j, d in zip(graph.src.tolist(), graph.dst.tolist(), difference.tolist()):
        of_pair.setdefault((min(i, j), max(i, j)), set()).add(round(d, 9))
    assert all(len(values) == 1 for values in of_pair.values())  # both directions and all relations alike
    sigma = sigmas()[torch.randint(50, (2,), generator=generator(4))]
    eps = np.array([d.pop() / sigma[view.atom_protein[i]].item() for (i, j), d in of_pair.items() if i != j])
    assert np.isclose(loss.item(), np.mean(eps**2), rtol=1e-4)  # a score of zero costs the noise itself,
    assert abs(np.mean(eps**2) - 1) < 0.1  # which is 1
    nn.init.constant_(objective.mlp.layers[-1].bias, 1.0)
    loss, _ = objective(protein, generator(4))
    assert np.isclose(loss.item(), np.mean((1 + eps) ** 2), rtol=1e-4)  # what is learned is minus the noise


def test_torsional_diffusion_draws_every_t(monkeypatch):
    """Stage 1 of DiffPreT leaves out t = 1 .. 9; torsional diffusion has one stage."""
    for preset in ("paper", "official"):
        with pytest.raises(ConfigError, match="atom level only"):
            build("torsional", "residue", preset=preset)
        schedule = build("torsional", "atom", preset=preset).schedule
        assert schedule.t_range == (1, 100) and set(schedule.draw_t(3000, generator()).tolist()) == set(range(1, 101))
    monkeypatch.setitem(SCHEDULES["paper"], 1, Schedule(schedule.betas.repeat(5), t_range=(50, 500)))  # of a plugin
    assert build("torsional", "atom").schedule.t_range == (1, 500)


class AtomNumbers(nn.Module):
    """An encoder whose representation of an atom is its number; it keeps what it was shown, and what graphs are of."""

    out_dim = 2

    def builder(self, protein):
        self.joined = protein

    def forward(self, protein, graph):
        self.shown = protein
        node = torch.arange(protein.num_atoms, dtype=torch.float64)[:, None].expand(-1, self.out_dim)
        return Encoding(node, node, node)


def test_torsions_turn_one_chi_of_every_residue_and_are_read_from_its_atoms():
    """Edges are those of the clean structure. The constant of the loss is that of a prediction of 0."""
    protein, encoder, seen = chains(), AtomNumbers(), []
    objective = OBJECTIVES["torsional"](encoder, "atom").double()
    objective.mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    nn.init.zeros_(objective.mlp.layers[-1].weight)
    nn.init.zeros_(objective.mlp.layers[-1].bias)
    index, defined = chi_atoms(protein)
    turns = defined & (protein.residue_type != RESIDUE_INDEX["PRO"])[:, None]
    before, hits = chi_angles(protein)[0], torch.zeros(defined.shape)
    for seed in range(60):
        loss, logs = objective(protein, generator(seed))
        assert torch.equal(encoder.joined.pos, protein.pos)
        change = torch.remainder(chi_angles(encoder.shown)[0] - before + torch.pi, 2 * torch.pi) - torch.pi
        turned = change.abs() > 1e-9
        assert torch.equal(turned.sum(1), turns.any(1).long())
        assert torch.equal(seen.pop().unflatten(1, (4, 2))[..., 0].long(), index[turned])
        hits += turned

        # The noise has the standard deviation of the protein's t.
        abar = objective.alpha_bar[objective.schedule.draw_t(2, generator(seed)) - 1][protein.residue_protein]
        noise = (change.sum(1) / ((1 - abar) / abar).sqrt())[turns.any(1)]
        constant = logs["torsion_loss_constant"].sums[0] / len(noise)
        assert torch.isclose(loss, noise.square().mean()) and torch.isclose(loss, constant)

    for number in (2, 3, 4):  # residues with several chi turn each of them about equally often
        rows = turns.sum(1) == number
        share = hits[rows, :number].sum(0) / hits[rows].sum()
        assert (share - 1 / number).abs().max() < 0.06, share


@pytest.mark.parametrize("name", SINGLE)
def test_copies_of_a_protein_get_draws_of_their_own(name):
    """The encoder is shown other atoms, hidden types, edges, or lengths of the one than of the other."""
    objective, shown = build(name, "atom" if name == "torsional" else "residue"), []
    objective.encoder.register_forward_pre_hook(lambda _, args: shown.append(args))
    objective(Protein.pack([real_protein(), real_protein()]), generator())
    for view, graph in shown:
        of_copies = []
        for k, copy in enumerate(view.unpack()):
            own = view.atom_protein[graph.src] == k
            first = int((view.atom_protein == k).nonzero()[0])
            edges = torch.stack([graph.src - first, graph.dst - first, graph.relation])[:, own]
            lengths = edges if graph.shown_length is None else graph.shown_length[own]
            of_copies.append((copy.pos.nan_to_num(), copy.masked, edges, lengths))
        assert not all(map(torch.equal, *of_copies))


def test_the_rates_and_numbers_of_app_d():
    """15 % of the residues and of the edges are hidden; 256 distances, 512 angles and dihedrals of every protein."""
    protein = chains().alpha_carbons()
    hidden = [len(ResidueTypes(8).hide(protein, generator(k))[1]) for k in range(100)]
    assert np.mean(hidden) / protein.num_residues == pytest.approx(0.15, abs=0.01)
    objective, graph = build("multiview", "residue"), RESIDUE_GRAPH(protein)
    protein_of = protein.atom_protein[graph.dst]
    shares = []
    for k in range(40):
        left = protein.atom_protein[objective.hide_edges(protein, graph, generator(k)).dst]
        shares += (1 - left.bincount() / protein_of.bincount()).tolist()
    assert np.mean([share for share in shares if share]) == pytest.approx(0.15, abs=0.01)
    counts = {kind: len(Geometry(8, kind).hide(protein, graph, generator())[1]) for kind in GEOMETRY}
    assert counts["distance"] == 2 * 256
    assert 0.8 * 2 * 512 < counts["angle"] < 2 * 512 and 0.6 * 2 * 512 < counts["dihedral"] < 2 * 512  # none comes back


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize("name", ["siamdiff", "diffpret", *SINGLE])
def test_training_lowers_every_loss_on_one_batch(name):
    level = "atom" if name == "torsional" else "residue"
    objective, protein = build(name, level).float(), pieces()
    protein = replace(protein, pos=protein.pos.float())
    adam, history = torch.optim.Adam(objective.parameters(), lr=4e-3), []
    for step in range(32):
        loss, logs = objective(protein, generator(step % 8))
        adam.zero_grad()
        loss.backward()
        adam.step()
        history.append([logs[k].value(logs[k].sums.tolist()) for k in logs if k.endswith(("loss", "error"))])
    start, end = (np.mean(part, axis=0) for part in (history[:8], history[-8:]))
    assert (end < 0.99 * start).all(), (start, end)


@pytest.mark.parametrize("name", SINGLE)
def test_all_that_a_step_depends_on_is_in_a_checkpoint(name):
    """The weights and the generator: another objective that takes them over makes the same step, bit for bit."""
    level = "atom" if name == "torsional" else "residue"
    one, protein, found = build(name, level), pieces(), []
    one(protein, generator(1))[0].backward()  # batch norm has learned
    torch.manual_seed(5)
    other = OBJECTIVES[name](ENCODERS["gearnet"](level, "tiny"), level).double()
    other.load_state_dict(one.state_dict())
    for objective in (one, other):
        objective.zero_grad()
        loss, _ = objective(protein, generator(2))
        loss.backward()
        found.append([loss, *(p.grad for p in objective.parameters())])
    assert all(map(torch.equal, *found))
