"""DiffPreT and SiamDiff: the official code's numbers under `--preset official`, and what the objective promises."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from conftest import Golden, generator, load_golden, move, real_protein, relative_error, rigid_motion

from siamdiff_min.conventions import OFFICIAL
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH, GearNet, formulas
from siamdiff_min.pretraining import ABLATIONS, OBJECTIVES, SCHEDULES, SiamDiff, diffusion, siamdiff
from siamdiff_min.protein.conformer import new_clashes, rotate_side_chains
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import STAGED
from siamdiff_min.training.ranks import Ranks, means

LEVELS = ["atom", "residue"]
VARIANTS = {  # fixture -> (two views?, ablation)
    "siamdiff_s1": (True, "none"),
    "diffpret_s1": (False, "none"),
    "siamdiff_seqonly": (True, "no-structure"),
    "siamdiff_structonly": (True, "no-sequence"),
}


def official(level: str, variant: str, inputs: Golden, device: str = "cpu") -> tuple[SiamDiff, Protein]:
    """The task of the fixture with its weights, and its input."""
    siamese, ablation = VARIANTS[variant]
    graph, width, readout = {
        "atom": (ATOM_GRAPH, 24, "mean"),
        "residue": (RESIDUE_GRAPH, 32, "sum"),
    }[level]
    builder = replace(graph, conventions=OFFICIAL)
    net = GearNet(builder, [width] * 6, 8, readout)
    protein = inputs.protein("graph1_").to(device)
    second = builder.select_nodes(replace(protein, pos=inputs["graph2_node_position"].to(device)))
    stages = {k: s.ablated(**ABLATIONS[ablation]) for k, s in SCHEDULES["official"].items()}
    objective = SiamDiff(net, (lambda *_: (second, {})) if siamese else None, stages, OFFICIAL)
    weights = {k.replace("model.", "encoder.", 1): v for k, v in inputs.state().items() if k != "alphas"}
    objective.load_state_dict(weights, strict=True)
    return objective.to(device), protein


@pytest.fixture
def replay(monkeypatch):
    """Let the recorded draws of a fixture come out of torch's random functions, in order."""

    def start(golden: Golden, device: str = "cpu") -> None:
        names = sorted((k for k in golden if k.startswith("draw")), key=lambda k: int(k[4 : k.index("_")]))
        draws = iter([golden[name].to(device) for name in names])
        # The official levels count from 0, t counts from 1.
        monkeypatch.setattr(torch, "randint", lambda low, *_, **__: next(draws) + low)
        monkeypatch.setattr(torch, "rand", lambda *_, **__: next(draws))
        monkeypatch.setattr(torch, "randn", lambda *_, **__: next(draws))

    return start


@pytest.mark.usefixtures("kernel_form")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("level", LEVELS)
def test_golden_loss_gradients_and_adam_step(level, variant, replay, device):
    """A ReLU whose input is zero to rounding passes its gradient or not: that moves gradients by up to 1e-3.

    In double precision both forms of the formulas have the same gradients (`test_a_step_equals_...`).
    """
    golden = load_golden(f"siamdiff_{level}_{variant}")
    objective, protein = official(level, variant, load_golden(f"siamdiff_{level}_siamdiff_s1"), device)
    tolerance = {"cpu": 1e-6, "cuda": 5e-5}[device]
    replay(golden, device)
    loss, logs = objective(protein, generator())
    loss.backward()
    assert loss.item() == pytest.approx(golden["out32/loss"].item(), rel=tolerance)
    for name, rows in golden.state("out32/grad/").items():
        gradient = objective.get_parameter(name.replace("model.", "encoder.", 1)).grad
        assert relative_error(gradient[::16], rows) < 2e-3, name

    found = means([logs], Ranks(torch.device(device)))
    named = {name.replace("_", " denoising "): value for name, value in found.items() if "_constant" not in name}
    expected = {name: value.item() for name, value in golden.state("out32/metric/").items() if name != "loss"}
    assert named == pytest.approx(expected, rel=10 * tolerance)

    torch.optim.Adam(objective.parameters(), lr=1e-4).step()
    replay(golden, device)
    after, _ = objective(protein, generator())
    assert after.item() == pytest.approx(golden["out32/loss_after_adam_step"].item(), rel=10 * tolerance)


@pytest.mark.parametrize("level", LEVELS)
def test_both_forms_round_alike_at_stage_2_of_the_released_code(level):
    """Levels have 1 - alpha_bar = 1e-4 there, of which float32 knows three digits."""
    objective, protein = official(level, "siamdiff_s1", load_golden(f"siamdiff_{level}_siamdiff_s1"))
    objective.set_stage(2)
    losses = []
    for form in formulas.FORMS:
        with patch.object(formulas, "form", form):
            losses.append(objective(protein, generator(1))[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


@pytest.mark.full
def test_released_task_checkpoints_fit():
    for level, short in (("atom", "atom"), ("residue", "res")):
        golden = load_golden(f"ckpt_keys_task_{short}")
        objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"](level), level)
        shapes = {k.replace("encoder.", "model.", 1): str(tuple(v.shape)) for k, v in objective.state_dict().items()}
        released = {str(k): str(s) for k, s in zip(golden["sd_keys"], golden["sd_shapes"]) if k != "alphas"}
        assert shapes == released


def tiny(method: str, level: str, preset: str = "paper", ablation: str = "none", **heads) -> SiamDiff:
    torch.manual_seed(0)
    return OBJECTIVES[method](ENCODERS["gearnet"](level, "tiny", preset), level, preset, ablation, **heads).double()


def batch() -> Protein:
    """A chain of 24 residues, and parts of two chains."""
    return Protein.pack([real_protein("1LCD_A").crop(5, 24), real_protein("2BEG").crop(16, 20)])


@pytest.mark.covers
@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize(
    "level, preset", [("residue", "paper"), pytest.param("atom", "official", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("method", STAGED)
def test_every_variant_trains(level, method, preset, ablation):
    if ablation == "no-clash-check" and (level, method) != ("atom", "siamdiff"):
        with pytest.raises(ValueError, match="no-clash-check is for siamdiff at atom level"):
            tiny(method, level, preset, ablation)
        return
    objective = tiny(method, level, preset, ablation)
    for stage in (1, 2):
        objective.set_stage(stage)
        loss, logs = objective(batch(), generator())
        loss.backward()
        assert loss.isfinite()
        assert ("sequence_loss" in logs) == (ablation != "no-sequence")
        assert ("structure_loss" in logs) == (ablation != "no-structure")
        assert all(log.sums.isfinite().all() and log.sums.sum() > 0 for log in logs.values())
        parts = means([logs], Ranks(torch.device("cpu")))
        schedule = objective.schedule
        total = schedule.weight_structure * parts.get("structure_loss", 0)
        assert loss.item() == pytest.approx(total + schedule.weight_sequence * parts.get("sequence_loss", 0))
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.grad is not None)


@pytest.mark.parametrize("method", ["siamdiff", pytest.param("diffpret", marks=pytest.mark.full)])
@pytest.mark.parametrize("level", LEVELS)
def test_heads_of_another_width_are_the_published_formula_too(level, method):
    objective = tiny(method, level, head_dim=24)
    widths = {name: [x.out_features for x in mlp.layers] for name, mlp in objective.named_children() if "mlp" in name}
    assert widths == {
        "dist_mlp": [24, 24, objective.encoder.out_dim],
        "struct_mlp": [24, 24, 1],
        "seq_mlp": [24, 24, 20],
    }
    loss, _ = objective(batch(), generator())
    with patch.object(formulas, "form", "plain"):
        expected, _ = objective(batch(), generator())
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_an_objective_says_which_heads_are_kept():
    """The sequence head, unless nothing trains it; no head of another objective."""
    kept = {
        ablation: tiny("diffpret", "residue", ablation=ablation).kept_heads()
        for ablation in ABLATIONS
        if "clash" not in ablation
    }
    assert kept.pop("no-sequence") == {} and all(list(heads) == ["seq_mlp"] for heads in kept.values())
    objective = tiny("siamdiff", "residue")
    assert objective.kept_heads()["seq_mlp"] is objective.seq_mlp
    others = [name for name in OBJECTIVES if name not in STAGED and name != "torsional"]
    assert len(others) == 9 and not any(OBJECTIVES[name](objective.encoder, "residue").kept_heads() for name in others)


def test_no_clash_check_keeps_every_side_chain_that_was_drawn():
    logs, conformers = [], []
    for ablation in ("none", "no-clash-check"):
        objective = tiny("siamdiff", "atom", ablation=ablation)
        logs.append(objective(batch(), generator())[1])
        conformers.append(objective.draw_conformer(batch(), generator())[0])
    assert set(logs[0]) - set(logs[1]) == {"clash_rate_drawn", "clash_rate", "native_side_chains"}
    checked, unchecked = conformers
    assert not new_clashes(batch(), checked.pos).any() and new_clashes(batch(), unchecked.pos).any()
    drawn = objective.draw_conformer.draw(batch(), 0.1 * torch.pi, generator())
    assert torch.equal(unchecked.pos, rotate_side_chains(batch(), drawn).pos)


@pytest.mark.covers
@pytest.mark.parametrize("method", STAGED)
@pytest.mark.parametrize("level", LEVELS)
def test_loss_is_invariant_and_predicted_noise_equivariant(level, method, monkeypatch):
    """The protein moved 1000 angstrom away and turned, its vector noise turned along."""
    objective, here, there = tiny(method, level).eval(), batch(), move(batch(), 7)
    rotation, _ = rigid_motion(7)
    randn, vectors = torch.randn, []

    def record(*args):
        vectors.append(diffusion.edges_to_vectors(*args))
        return vectors[-1]

    monkeypatch.setattr(siamdiff, "edges_to_vectors", record)
    loss, _ = objective(here, generator(3))
    expected = [v.detach() @ rotation.T for v in vectors]
    vectors.clear()

    def turned(*shape, **kwargs):
        noise = randn(*shape, **kwargs)
        return noise @ rotation.T if noise.shape[-1] == 3 else noise

    monkeypatch.setattr(torch, "randn", turned)
    moved_loss, _ = objective(there, generator(3))
    assert moved_loss.item() == pytest.approx(loss.item(), rel=1e-9)
    assert len(vectors) == len(expected) > 0
    assert all(relative_error(v, e) < 1e-9 for v, e in zip(vectors, expected))


@pytest.mark.parametrize("method, partner", [("siamdiff", [1, 0]), ("diffpret", [0])])
def test_each_view_is_denoised_from_the_other(method, partner, monkeypatch):
    """The scores of view k are made of the representations of view `partner[k]`."""
    objective = tiny(method, "residue").eval()
    encoded, used = [], []
    objective.encoder.register_forward_hook(lambda _, __, out: encoded.append(out))
    edge_scores = formulas.fast.edge_scores

    def watched(noisy, crossed, *heads):
        used.extend(crossed)
        return edge_scores(noisy, crossed, *heads)

    monkeypatch.setattr(formulas.fast, "edge_scores", watched)
    objective(batch(), generator())
    assert len(encoded) == len(partner) and all(x is encoded[k] for x, k in zip(used, partner, strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_views_share_mask_and_noise_level(level):
    objective = tiny("siamdiff", level)
    views = []
    objective.encoder.register_forward_pre_hook(lambda _, args: views.append(args[0]))
    objective(batch(), generator())
    first, second = views
    assert torch.equal(first.masked, second.masked) and first.masked.any()
    assert torch.equal(first.atom_name, second.atom_name)
    assert not torch.equal(first.pos, second.pos)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_equals_the_formulas_as_published(level):
    """Loss and all gradients of both forms."""
    losses, grads = [], []
    for form in formulas.FORMS:
        objective = tiny("siamdiff", level)
        with patch.object(formulas, "form", form):
            loss, _ = objective(batch(), generator())
            loss.backward()
        losses.append(loss.item())
        grads.append({name: p.grad for name, p in objective.named_parameters()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    scale = max(float(g.abs().max()) for g in grads[0].values())
    for name, expected in grads[0].items():
        assert (grads[1][name] - expected).abs().max() < 1e-10 * scale, name


@pytest.mark.parametrize("method", STAGED)
@pytest.mark.parametrize("t", [9, 30])
def test_a_reverse_step_with_the_true_scores_goes_back_to_the_structure(method, t, monkeypatch):
    """The estimate of R^0 (Eq. 4), by eps_theta times the noise of step t; a is of the other view."""
    objective = tiny(method, "atom").eval()
    encoded, noisy, asked = [], [], []
    objective.encoder.register_forward_hook(lambda _, args, out: encoded.append((args[0], out)))
    add_noise = objective.add_noise
    objective.add_noise = lambda *args: noisy.append(add_noise(*args)) or noisy[-1]
    monkeypatch.setattr(formulas, "edge_scores", lambda *args: asked.extend(zip(*args[:2])) or [noisy[0].edge_target])
    clean, pos, estimate = objective.denoise(batch(), t, generator())
    ((view, encoding),), ((seen, used),) = encoded, asked
    assert used is encoding
    assert view is noisy[-1].protein
    assert len(noisy) == (2 if method == "siamdiff" else 1)
    assert seen is noisy[0]
    assert pos is seen.protein.pos
    assert torch.equal(clean, batch().pos)
    found, wanted = estimate - pos, clean - pos
    assert (found * wanted).sum() > 0.7 * found.norm() * wanted.norm()  # the cosine
    abar = objective.schedule.alpha_bar[t - 1]
    step = diffusion.edges_to_vectors(seen.edge_target, pos, seen.graph.src, seen.graph.dst)
    assert torch.allclose(found, ((1 - abar) / abar).sqrt() * step, atol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_denoising_changes_nothing_in_the_encoder(training):
    """Also amid a training, whose batch norm would else learn from what is only looked at."""
    objective = tiny("siamdiff", "residue").train(training)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    assert any(name.endswith("running_mean") for name in before)
    _, _, estimate = objective.denoise(batch(), 50, generator())
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert torch.equal(estimate, objective.denoise(batch(), 50, generator())[2])


@pytest.mark.parametrize("method", [name for name in OBJECTIVES if not name.endswith(("+distance", "+angle"))])
def test_nothing_is_drawn_without_a_generator(monkeypatch, method):
    for name in ("rand", "randn", "randint", "randperm"):
        draw = getattr(torch, name)

        def guarded(*args, draw=draw, **kwargs):
            assert kwargs.get("generator") is not None, "drawn without a generator"
            return draw(*args, **kwargs)

        monkeypatch.setattr(torch, name, guarded)
    for level, preset in (("atom", "paper"), ("atom" if method == "torsional" else "residue", "official")):
        objective = OBJECTIVES[method](ENCODERS["gearnet"](level, "tiny", preset), level, preset).double()
        objective(batch(), generator())


def test_bf16_stays_close():
    objective = tiny("siamdiff", "atom").float().train()  # in evaluation nothing normalises what an untrained net makes
    protein = replace(batch(), pos=batch().pos.float())
    exact = objective(protein, generator())[0].item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = objective(protein, generator())
    loss.backward()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact, rel=0.005)
    assert all(p.grad.isfinite().all() for p in objective.parameters() if p.grad is not None)
