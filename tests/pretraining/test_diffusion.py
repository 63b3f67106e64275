"""Schedules, masks and the forward process against closed forms; the chain rule against autograd."""

import math

import numpy as np
import pytest
import torch
from conftest import generator, load_golden, real_protein, relative_error
from standin import configure
from torch.utils.data import Subset

from siamdiff_min.conventions import CONVENTIONS, PAPER
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import ABLATIONS, OBJECTIVES, SCHEDULES
from siamdiff_min.pretraining.diffusion import (
    Schedule,
    add_gaussian_noise,
    edges_to_vectors,
    hide_residues,
    random_mask,
    sigmoid_betas,
)
from siamdiff_min.pretraining.held_out import HeldOutNoise
from siamdiff_min.protein.geometry import length
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.crops import Crops
from siamdiff_min.training import evaluation
from siamdiff_min.training.ranks import Ranks


def test_sigmoid_betas_closed_form():
    betas = sigmoid_betas(100, 1e-4, 0.1)
    for k in range(100):
        x = -6 + 12 * k / 99
        assert betas[k] == pytest.approx(1e-4 + (0.1 - 1e-4) / (1 + math.exp(-x)), rel=1e-12)
    assert betas[0] == pytest.approx(3.47e-4, rel=1e-3)  # differences.md, row 1


def test_alpha_bar_is_the_running_product():
    for schedule in SCHEDULES["paper"].values():
        product = 1.0
        assert schedule.steps == 100 and schedule.betas.dtype == torch.float64
        for beta, alpha_bar in zip(schedule.betas, schedule.alpha_bar, strict=True):
            product *= 1 - beta.item()
            assert alpha_bar == pytest.approx(product, rel=1e-12)


def test_alpha_bar_of_the_official_code():
    """All levels of both stages: variances in float32, so that 1 - alpha_bar = 1e-4 of stage 2 is off by 2e-4 too.

    To the last bit with the torch that made the fixture (2.13); `cumprod` of 2.6 rounds otherwise.
    """
    ours, official = SCHEDULES["official"][1].alpha_bar, load_golden("siamdiff_atom_siamdiff_s1")["alphas"]
    assert relative_error(ours, official) < 2e-7
    kept = 1 - np.float32(1e-4)  # of which the products are rounded, not their factors
    expected = torch.tensor([np.float32(float(kept) ** t) for t in range(1, 6)], dtype=torch.float64)
    assert relative_error(SCHEDULES["official"][2].alpha_bar, expected) < 2e-7


@pytest.mark.parametrize("preset, stage, first, last", [
    ("paper", 1, 10, 100), ("paper", 2, 1, 9), ("official", 1, 1, 100), ("official", 2, 1, 5),
])  # fmt: skip
def test_levels_of_the_stages(preset, stage, first, last):
    t = SCHEDULES[preset][stage].draw_t(20_000, generator())
    count = torch.bincount(t, minlength=last + 1)[first:]
    assert t.min() == first and t.max() == last
    expected = 20_000 / (last - first + 1)
    assert (count - expected).abs().max() < 6 * math.sqrt(expected)


def test_a_schedule_that_leaves_nothing_of_a_structure_says_so(capsys):
    """As a cosine one at its last step: the loss would be thousands, then infinite."""
    t = torch.arange(101, dtype=torch.float64) / 100
    share = torch.cos((t + 0.008) / 1.008 * torch.pi / 2).square()
    betas = 1 - share[1:] / share[:-1]
    with pytest.raises(ConfigError, match=r"at t = 100: no structure is left\. Let t_range end before"):
        Schedule(betas.round(decimals=12), t_range=(1, 100))
    assert not capsys.readouterr().err
    Schedule(betas.clamp(max=0.999), t_range=(1, 100))
    assert "at t = 100: noise of 2,029 angstrom" in capsys.readouterr().err
    Schedule(betas, t_range=(1, 95))
    assert not capsys.readouterr().err


def test_a_schedule_of_other_variances():
    schedule = Schedule(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64), t_range=(2, 3))
    assert schedule.steps == 4 and schedule.draw_t(40, generator()).unique().tolist() == [2, 3]
    assert torch.allclose(schedule.alpha_bar, torch.tensor([0.9, 0.72, 0.504, 0.3024], dtype=torch.float64))
    assert schedule.mask_rate(torch.tensor([4])).item() == pytest.approx(1.0)
    for wrong in ((0, 3), (2, 5), (3, 2)):
        with pytest.raises(ConfigError, match=r"t_range is .*, but t counts from 1 to 4, the number of betas"):
            Schedule(schedule.betas, t_range=wrong)


def test_mask_rate_is_linear():
    paper, official = SCHEDULES["paper"][2], SCHEDULES["official"][2]
    t = torch.tensor([1, 50, 100])
    assert torch.allclose(paper.mask_rate(t), torch.tensor([0.1585, 0.575, 1.0]))
    level = torch.arange(5)  # the official code counts from 0
    assert torch.allclose(official.mask_rate(level + 1), 0.85 * (level + 1) / 5 + 0.15)


def test_ablations_are_values():
    schedule = SCHEDULES["official"][2]
    assert vars(schedule.ablated(**ABLATIONS["none"])) == vars(schedule)
    sequence, structure = schedule.ablated(**ABLATIONS["no-structure"]), schedule.ablated(**ABLATIONS["no-sequence"])
    assert (sequence.weight_structure, sequence.weight_sequence) == (0.0, 1.0)
    assert (structure.weight_structure, structure.weight_sequence) == (1.0, 0.0)
    paper = SCHEDULES["paper"][1]
    assert paper.ablated(**ABLATIONS["small-noise"]).t_range == (1, 1)
    assert paper.ablated(**ABLATIONS["large-noise"]).t_range == (100, 100)


@pytest.mark.parametrize("ablation, t, rate", [("small-noise", 1, 0.15 + 0.85 / 500), ("large-noise", 500, 1.0)])
def test_the_smallest_and_the_largest_noise_are_those_of_the_schedule(ablation, t, rate, monkeypatch):
    """Of a plugin's with T = 500, in both stages."""
    betas = sigmoid_betas(500, 1e-4, 0.02)
    monkeypatch.setitem(SCHEDULES, "paper", {1: Schedule(betas, (50, 500)), 2: Schedule(betas, (1, 49))})
    objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"]("atom", "tiny"), "atom", ablation=ablation)
    for stage in (1, 2):
        objective.set_stage(stage)
        drawn = objective.schedule.draw_t(9, generator())
        assert (drawn == t).all()
        assert torch.allclose(objective.schedule.mask_rate(drawn), torch.full((9,), rate))
        assert objective.alpha_bar[t - 1].item() == pytest.approx((1 - betas[:t]).prod().item(), rel=1e-6)


def test_every_schedule_is_of_a_preset():
    """`--preset` chooses from CONVENTIONS: a new row of SCHEDULES has one there too."""
    assert SCHEDULES.keys() == CONVENTIONS.keys()


def test_a_preset_without_noise_is_a_sentence():
    encoder = ENCODERS["gearnet"]("atom", "tiny")
    with pytest.MonkeyPatch.context() as plugin:
        plugin.setitem(CONVENTIONS, "mine", PAPER)
        for method in ("siamdiff", "diffpret", "torsional"):
            with pytest.raises(ConfigError, match=r"preset mine has no noise: SCHEDULES\['mine'\] = "):
                OBJECTIVES[method](encoder, "atom", "mine")


def test_at_the_largest_noise_both_views_are_one_backbone():
    """No residue has a type or a side chain left, so at atom level the conformers differ in nothing."""
    objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"]("atom", "tiny"), "atom")
    native, conformer = objective.views(real_protein("1LCD_A", torch.float32), generator())[0]
    share = []
    for t in (1, 50, 100):
        chosen = objective.draw_mask(native, torch.tensor([t]), generator())
        one, two = (hide_residues(view, chosen, 4) for view in (native, conformer))
        share.append((one.pos != two.pos).any(1).float().mean().item())
    assert 0.2 < share[0] < 0.5 and 0 < share[1] < share[0] and share[2] == 0


@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("ablation, level", [("small-noise", 1), ("large-noise", 100)])
def test_a_fixed_noise_level_is_the_same_in_both_stages(preset, ablation, level):
    objective = OBJECTIVES["diffpret"](ENCODERS["gearnet"]("residue", "tiny"), "residue", preset, ablation)
    expected = SCHEDULES[preset][1].alpha_bar[level - 1]
    for stage in (1, 2):
        objective.set_stage(stage)
        t = objective.schedule.draw_t(3, generator())
        assert (objective.schedule.alpha_bar[t - 1] == expected).all()
        objective.eval()
        assert objective.schedule is SCHEDULES[preset][stage]  # a held-out protein meets the noise of the whole method
        assert torch.equal(objective.alpha_bar, objective.schedule.alpha_bar.float())
        objective.train()


def test_mask_is_independent_with_the_given_rate_and_never_empty():
    protein = real_protein().pack([real_protein("2BEG"), real_protein("1LCD_A")])
    rate = torch.tensor([0.3, 0.0])
    masks = [random_mask(protein, rate, generator(k)) for k in range(400)]
    assert all((m.diff() > 0).all() for m in masks)
    first = torch.tensor([(m < 130).sum() for m in masks]).double()
    assert first.mean() == pytest.approx(0.3 * 130, rel=0.02)
    assert first.var() == pytest.approx(130 * 0.3 * 0.7, rel=0.25)  # binomial: independent draws
    second = torch.tensor([(m >= 130).sum() for m in masks])
    assert (second == 1).all()  # rate 0 still masks one residue
    hits = torch.bincount(torch.cat(masks), minlength=181)
    assert hits[130:].count_nonzero() > 40  # and any of them
    assert len(random_mask(protein, torch.ones(2), generator())) == 181


def test_official_mask_draws_with_replacement():
    protein = real_protein("2BEG")
    mask = random_mask(protein, torch.tensor([1.0]), generator(), with_replacement=True)
    assert len(mask) == 130
    masks = [random_mask(protein, torch.tensor([1.0]), generator(k), with_replacement=True) for k in range(50)]
    share = sum(mask.unique().numel() for mask in masks) / (130 * 50)
    assert share == pytest.approx(1 - math.exp(-1), abs=0.02)  # 63 % (differences.md, row 3)


def test_official_mask_hides_at_least_one_residue_of_each_protein():
    """floor(3 x 0.2) is 0 (differences.md, row 3)."""
    protein = Protein.pack([real_protein("1LCD_A").crop(k, 3) for k in range(4)])
    mask = random_mask(protein, torch.full((4,), 0.2), generator(), with_replacement=True)
    assert protein.residue_protein[mask].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("with_replacement", [False, True])
def test_copies_of_a_protein_get_random_numbers_of_their_own(with_replacement):
    """Masks, t and noise of a batch that holds one protein twice."""
    protein = real_protein("1LCD_A")
    both = Protein.pack([protein, protein])
    mask = random_mask(both, torch.tensor([0.5, 0.5]), generator(), with_replacement)
    assert set(mask[mask < 51].tolist()) != set((mask[mask >= 51] - 51).tolist())
    t = SCHEDULES["paper"][1].draw_t(50, generator())
    assert len(t.unique()) > 20
    noised = add_gaussian_noise(both.pos, torch.full((both.num_atoms,), 0.5), generator())
    one, other = noised.split(protein.num_atoms)
    assert (one != other).all()


@pytest.mark.parametrize("t", [1, 9, 10, 50, 100])
def test_forward_noise_has_the_variance_of_eq_3(t):
    alpha_bar = SCHEDULES["paper"][1].alpha_bar[t - 1]
    pos = real_protein("2BEG").pos
    noise = torch.cat([add_gaussian_noise(pos, alpha_bar.expand(len(pos)), generator(k)) - pos for k in range(20)])
    # sqrt(abar) R^t = sqrt(abar) R + sqrt(1 - abar) eps
    assert (noise * alpha_bar.sqrt()).std() == pytest.approx(math.sqrt(1 - alpha_bar), rel=0.01)


@pytest.mark.parametrize("backbone, kept", [(4, {0, 1, 2, 3}), (3, {0, 1, 2})])
def test_masked_residues_keep_their_backbone(backbone, kept):
    protein = real_protein("1LCD_A")
    chosen = torch.tensor([3, 8, 20])
    hidden = hide_residues(protein, chosen, backbone)
    assert hidden.masked.nonzero().flatten().tolist() == chosen.tolist()
    for r in range(51):
        names = hidden.atom_name[hidden.atom_residue == r]
        before = protein.atom_name[protein.atom_residue == r]
        assert set(names.tolist()) == (kept if r in chosen else set(before.tolist()))


def test_chain_rule_equals_autograd_of_the_distances():
    """edges_to_vectors is the gradient of sum_e m_e d_e, averaged over the edges at either end of an atom."""
    pos = torch.randn(12, 3, dtype=torch.float64, generator=generator(), requires_grad=True)
    adjacent = torch.rand(12, 12, generator=generator(1)) < 0.4
    src, dst = adjacent.fill_diagonal_(False).nonzero().unbind(1)
    m = torch.randn(len(src), dtype=torch.float64, generator=generator(2))
    expected = torch.zeros(12, 3, dtype=torch.float64)
    for end, other in ((src, dst), (dst, src)):
        distance = length(pos[end] - pos[other].detach())  # only the atoms at this end move
        (gradient,) = torch.autograd.grad((m * distance).sum(), pos)
        expected += gradient / torch.bincount(end, minlength=12).clamp(min=1)[:, None]
    assert torch.allclose(edges_to_vectors(m, pos.detach(), src, dst), expected, atol=1e-12)


# ---- the noise of validation -----------------------------------------------------------------------------------------


def drawn(method: str, level: str, noise: torch.Generator) -> dict[str, torch.Tensor]:
    """What a method draws: t, the residues to mask, the views, and the coordinates of each after noise."""
    torch.manual_seed(0)
    objective = OBJECTIVES[method](ENCODERS["gearnet"](level, "tiny"), level)
    views, _ = objective.views(real_protein(dtype=torch.float32), noise)
    t = objective.schedule.draw_t(1, noise)
    chosen = objective.draw_mask(views[0], t, noise)
    noisy = [objective.add_noise(view, t, chosen, noise).protein.pos for view in views]
    return {"t": t, "chosen": chosen, "views": [view.pos for view in views], "noisy": noisy}


@pytest.mark.parametrize("level", ["atom", "residue"])
def test_methods_share_what_they_have_in_common(level):
    """SiamDiff draws a second view first; t, mask and the first view's noise are DiffPreT's all the same."""
    one = drawn("diffpret", level, HeldOutNoise("cpu", "1abc", 1, 4))
    two = drawn("siamdiff", level, HeldOutNoise("cpu", "1abc", 1, 4))
    assert torch.equal(one["t"], two["t"])
    assert torch.equal(one["chosen"], two["chosen"])
    first, second = two["noisy"]
    assert torch.equal(one["noisy"][0], first)
    assert not torch.equal(first, second)  # the second view has noise of its own
    again = drawn("siamdiff", level, HeldOutNoise("cpu", "1abc", 1, 4))
    for what in ("views", "noisy"):
        assert all(map(torch.equal, two[what], again[what]))
    for other in (HeldOutNoise("cpu", "1abd", 1, 4), HeldOutNoise("cpu", "1abc", 2, 4)):
        changed = drawn("siamdiff", level, other)
        assert not torch.equal(first, changed["noisy"][0])


@pytest.mark.repeats
@pytest.mark.parametrize("stage", [1, 2])
def test_every_protein_sees_small_and_large_noise(stage):
    """Draw k of n has its t in the k-th of n parts, and over many proteins every t is as likely as any other."""
    schedule = SCHEDULES["paper"][stage]
    first, last = schedule.t_range
    number = last - first + 1
    counts = torch.zeros(number)
    proteins = 3000
    for protein in range(proteins):
        for draw in range(4):
            t = schedule.draw_t(1, HeldOutNoise("cpu", f"p{protein}", draw, 4)).item()
            share = (t - first) / number
            assert draw / 4 - 1 / number < share < (draw + 1) / 4
            counts[t - first] += 1
    expected = 4 * proteins / number
    assert (counts - expected).abs().max() < 5 * expected**0.5


class Three(Crops):
    """Three proteins, two of which have one name."""

    def __init__(self):
        self.checksum = ""

    def __getitem__(self, key):
        first = 10 * key[1]
        return real_protein(dtype=torch.float32).crop(first, 20), "ab"[key[1] % 2]


@pytest.mark.repeats
@pytest.mark.parametrize("level, room", [("residue", 1 << 30), ("residue", 1 << 21), ("atom", 1 << 30)])
def test_what_a_validation_keeps_changes_no_number(level, room, tmp_path, monkeypatch):
    """Nor does it if only a part of it has room, with other weights, or in another stage."""
    monkeypatch.setattr(evaluation, "MOST_KEPT", room)
    torch.manual_seed(0)
    objective = OBJECTIVES["siamdiff"](ENCODERS["gearnet"](level, "tiny"), level)
    kept = evaluation.Kept()
    config = configure(tmp_path)
    for stage in (1, 1, 2):
        objective.set_stage(stage)
        found = []
        for each in (kept, None):
            file = tmp_path / "valid.tsv"
            evaluation.evaluate(objective, Subset(Three(), range(3)), config, Ranks(torch.device("cpu")), file, each)
            found.append(file.read_text())
        assert found[0] == found[1]
        assert sum(map(evaluation.bytes_of, kept.made.values())) == evaluation.MOST_KEPT - kept.room <= room
        assert len(kept.made) == 12 or room < 1 << 30
        with torch.no_grad():
            for parameter in objective.parameters():
                parameter.mul_(1.1)
