"""The noise of validation: what two methods have in common is the same for both."""

import pytest
import torch
from conftest import generator, real_protein
from standin import configure
from torch.utils.data import Subset

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import OBJECTIVES, SCHEDULES
from siamdiff_min.pretraining.held_out import HeldOutNoise, stream
from siamdiff_min.protein.geometry import normal_like
from siamdiff_min.reading.crops import Crops
from siamdiff_min.training import evaluation
from siamdiff_min.training.ranks import Ranks


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
    one, two = (drawn(method, level, HeldOutNoise("cpu", "1abc", 1, 4)) for method in ("diffpret", "siamdiff"))
    assert torch.equal(one["t"], two["t"]) and torch.equal(one["chosen"], two["chosen"])
    assert torch.equal(one["noisy"][0], two["noisy"][0])
    assert not torch.equal(two["noisy"][0], two["noisy"][1])  # the second view has noise of its own
    again = drawn("siamdiff", level, HeldOutNoise("cpu", "1abc", 1, 4))
    assert all(torch.equal(a, b) for a, b in zip(two["views"] + two["noisy"], again["views"] + again["noisy"]))
    for other in (HeldOutNoise("cpu", "1abd", 1, 4), HeldOutNoise("cpu", "1abc", 2, 4)):
        changed = drawn("siamdiff", level, other)
        assert not torch.equal(two["noisy"][0], changed["noisy"][0])


def test_in_training_everything_comes_from_one_generator():
    g = generator()
    assert stream(g, "t") is stream(g, "mask") is g


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


def test_streams_do_not_depend_on_the_order_in_which_they_are_asked_for():
    one, two = HeldOutNoise("cpu", "a"), HeldOutNoise("cpu", "a")
    x = normal_like(torch.zeros(3), stream(one, "noise"))
    stream(two, "mask"), torch.rand(2, generator=two), two.shares(1)
    assert torch.equal(normal_like(torch.zeros(3), stream(two, "noise")), x)


class Three(Crops):
    """Three proteins, two of which have one name."""

    def __init__(self):
        self.checksum = ""

    def __getitem__(self, key):
        first = 10 * key[1]
        return real_protein(dtype=torch.float32).crop(first, 20), "ab"[key[1] % 2]


@pytest.mark.repeats
@pytest.mark.parametrize("room", [1 << 21, 1 << 30, 0])
@pytest.mark.parametrize("level", ["atom", "residue"])
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
