"""An encoder without training whose batch norms are measured."""

import pytest
import torch
from conftest import real_protein

import siamdiff_min
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError


@pytest.mark.repeats
@pytest.mark.parametrize("level", ["atom", "residue"])
def test_the_statistics_of_batch_norm_are_measured(level):
    """On another protein the input of every batch norm has about the mean and variance that it divides by."""
    encoder = siamdiff_min.random_encoder("gearnet", level, "tiny", seed=1, device="cpu")
    torch.manual_seed(1)
    built = ENCODERS["gearnet"](level, "tiny").eval()
    norms = [name for name, module in encoder.named_modules() if isinstance(module, torch.nn.BatchNorm1d)]
    protein = real_protein("1LCD_A", torch.float32)
    deviation = {}
    for net in (encoder, built):
        assert not net.training
        for name in norms:

            def look(norm, given, net=net, name=name):
                squares = (given[0] - norm.running_mean).square() / (norm.running_var + norm.eps)
                deviation[net, name] = squares.mean().item()

            net.get_submodule(name).register_forward_pre_hook(look)
        with torch.inference_mode():
            net(net.builder.select_nodes(protein))
    assert all(0.2 < deviation[encoder, name] < 5 for name in norms), deviation
    assert max(deviation[built, name] for name in norms) > 100
    for (name, ours), theirs in zip(encoder.named_parameters(), built.parameters(), strict=True):
        assert torch.equal(ours, theirs), name  # weights are those of the seed


def test_a_random_encoder_follows_from_its_seed_and_changes_no_generator(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, two, other = (
        siamdiff_min.random_encoder("gvp", "atom", "tiny", seed, device="cpu").state_dict() for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(x, two[name]) for name, x in one.items())
    assert any(not torch.equal(x, other[name]) for name, x in one.items())
    encoder = siamdiff_min.random_encoder("gearnet", "residue", "tiny", preset="official", device="cpu")
    encoder.save(tmp_path / "random.pt")
    loaded = siamdiff_min.load_encoder(tmp_path / "random.pt", "cpu")
    assert all(torch.equal(x, loaded.state_dict()[name]) for name, x in encoder.state_dict().items())
    assert loaded.identity == ("gearnet", "residue", "tiny", "official")
    with pytest.raises(ConfigError, match="there is no encoder 'gearNet'"):
        siamdiff_min.random_encoder("gearNet", "residue", device="cpu")
