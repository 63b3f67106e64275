"""Checkpoints survive what can happen to a file: flipped bytes, truncation. Kills and full disks: tests/reliability."""

import copy
import os

import pytest
import standin
import torch

from siamdiff_min.encoders import weights
from siamdiff_min.files import CheckpointError, SiamDiffError
from siamdiff_min.pretraining.objective import Objective
from siamdiff_min.training import checkpoint
from siamdiff_min.training.config import pretrain_options

STATE = {"config": {}, "step": 7, "name": "x", "list": [1, 2.5, None]}
STATE["objective"] = {"a": torch.arange(5.0), "b": torch.ones(2, 3)}


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() - {"format"} == b.keys() - {"format"}
    for name in ("step", "name", "list"):
        assert a[name] == b[name]
    for name in a["objective"]:
        assert torch.equal(a["objective"][name], b["objective"][name])


def test_round_trip_and_keep(tmp_path):
    for step in (1, 2, 10, 100):
        path = checkpoint.save(tmp_path, step, STATE, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-000000100.pt", "checkpoint-000000010.pt"]
    assert_same(weights.read_weights(path), STATE)
    found, state = checkpoint.latest(tmp_path)
    assert found == path
    assert_same(state, STATE)
    assert checkpoint.latest(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "more",
    ["--method diffpret --ablation no-structure --head-dim 8", "--method siamdiff --head-dim 12", "--method angle"],
)
def test_an_objective_is_built_from_the_options(more):
    config = pretrain_options(["--level", "residue", "--size", "tiny", "--preset", "official", *more.split()])
    objective = checkpoint.new_objective(weights.new_encoder(config), config)
    if config.head_dim:
        assert (objective.draw_conformer is None) == (config.method == "diffpret")
        assert bool(objective.schedule.weight_structure) == (config.ablation == "none")
        assert objective.seq_mlp.layers[0].out_features == config.head_dim


def test_saving_an_earlier_step_abandons_later_ones(tmp_path):
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, STATE, keep=5)
    checkpoint.save(tmp_path, 2, STATE, keep=5)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-000000002.pt", "checkpoint-000000001.pt"]


def test_files_of_the_user_stay(tmp_path):
    """Only names that a run writes itself are removed: `checkpoint-` and nine digits."""
    mine = ["checkpoint-notes.txt", "checkpoint-best.tar", "checkpoint-good.pt", "checkpoint-1.pt", "checkpoint-x"]
    mine += ["checkpoint-0000000001.pt", "checkpoint-000000001.pt.bak", "my-checkpoint-000000001.pt"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, STATE, keep=1)
    assert sorted(os.listdir(tmp_path)) == sorted([*mine, "checkpoint-000000003.pt"])
    assert {(tmp_path / name).read_text() for name in mine} == {"mine"}


def test_flipped_bytes_and_truncation_are_detected_or_without_effect(tmp_path):
    """There is none between the members of the zip."""
    path = checkpoint.save(tmp_path, 1, STATE)
    content, harmless = path.read_bytes(), 0
    for place in [*range(0, len(content), 97), len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert_same(weights.read_weights(path), STATE | {"format": checkpoint.CHECKPOINT})
            harmless += 1
        except CheckpointError as error:
            assert str(path) in str(error)
        path.write_bytes(content[:place])
        with pytest.raises(CheckpointError, match="damaged"):
            weights.read_weights(path)
    assert harmless < len(content) / 97 / 2


def test_latest_skips_damaged_ones_and_says_so(tmp_path):
    good = checkpoint.save(tmp_path, 1, STATE)
    bad = checkpoint.save(tmp_path, 2, STATE)
    bad.write_bytes(bad.read_bytes()[:-1])
    said = []
    assert checkpoint.latest(tmp_path, said.append)[0] == good
    assert len(said) == 1 and str(bad) in said[0] and "is damaged" in said[0]
    good.write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        checkpoint.latest(tmp_path, said.append)


def test_weights_that_are_not_finite_are_neither_loaded_nor_written(tmp_path):
    objective = standin.Objective()
    for value in (torch.nan, torch.inf):
        state = objective.encoder.state_dict() | {"linear.bias": torch.full((16,), value)}
        with pytest.raises(CheckpointError, match=r"not finite: linear\.bias"):
            weights.load_weights(objective.encoder, state, "e.pt")
    with torch.no_grad():
        objective.encoder.linear.bias[3] = torch.inf
    with pytest.raises(SiamDiffError, match=r"encoder.pt is not written, since .* no longer finite \(linear.bias\)"):
        weights.save_encoder_file(tmp_path / "encoder.pt", objective.encoder, "gearnet", "atom", "tiny", "paper")
    with pytest.raises(SiamDiffError, match="no longer finite"):
        checkpoint.save(tmp_path, 1, {"objective": objective.state_dict(), "config": {}})
    assert os.listdir(tmp_path) == []


def test_initialise_reports_every_tensor(tmp_path):
    said, source, path = [], standin.Objective(), tmp_path / "encoder.pt"
    weights.save_encoder_file(path, source.encoder, "gearnet", "atom", "tiny", "paper")
    objective = standin.Objective()
    checkpoint.initialise(objective, path, said.append)
    assert torch.equal(objective.encoder.linear.weight, source.encoder.linear.weight)
    assert not torch.equal(objective.structure.weight, source.structure.weight)
    assert "encoder.linear (2 tensors), encoder.norm (5 tensors)" in said[0]
    assert "structure (2 tensors), sequence (2 tensors)" in said[1]

    config = {"encoder": "gearnet", "level": "atom", "size": "tiny", "preset": "paper"}
    full = checkpoint.save(tmp_path, 1, {"objective": source.state_dict(), "config": config})
    checkpoint.initialise(objective, full, said.append)
    assert torch.equal(objective.structure.weight, source.structure.weight)
    assert "nothing" in said[3]
    assert weights.load_encoder_file(full)["state"].keys() == source.encoder.state_dict().keys()


@pytest.mark.parametrize("more, taken", [("", True), ("--head-dim 12", False)])
def test_initialise_takes_a_sequence_head_that_fits(more, taken, tmp_path):
    """Of an encoder.pt, in half precision too. Otherwise it says why not."""
    config = pretrain_options(["--method", "diffpret", "--level", "residue", "--size", "tiny", *more.split()])
    source, objective = (checkpoint.new_objective(weights.new_encoder(config), config) for _ in range(2))
    head = {name: x.half() for name, x in source.seq_mlp.state_dict().items()}
    head = head if taken else {name: x[:8] for name, x in head.items()}
    path, said, before = tmp_path / "encoder.pt", [], copy.deepcopy(objective.seq_mlp.state_dict())
    weights.save_encoder_file(path, source.encoder, "gearnet", "residue", "tiny", "paper", seq_mlp=head)
    checkpoint.initialise(objective, path, said.append)
    for name, x in objective.seq_mlp.state_dict().items():
        assert torch.equal(x, head[name].float() if taken else before[name]), name
    assert [("seq_mlp (6 tensors)" in line, "another shape (--head-dim)" in line) for line in said] == (
        [(True, False), (False, False)] if taken else [(False, True), (False, False), (True, False)]
    )


def test_initialise_takes_the_heads_that_an_objective_of_a_plugin_keeps(tmp_path):
    class Near(Objective):
        def __init__(self):
            super().__init__(standin.Objective().encoder)
            self.near = torch.nn.Linear(4, 1)

        def kept_heads(self):
            return {"near": self.near}

    source, objective, said, path = Near(), Near(), [], tmp_path / "encoder.pt"
    heads = {name: head.state_dict() for name, head in checkpoint.kept_heads(source).items()}
    weights.save_encoder_file(path, source.encoder, "gearnet", "atom", "tiny", "paper", **heads)
    checkpoint.initialise(objective, path, said.append)
    assert torch.equal(objective.near.weight, source.near.weight)
    assert said[0].endswith("near (2 tensors)") and said[1].endswith("nothing")
    checkpoint.initialise(standin.Objective(), path, said.append)
    assert said[2] == "in that file, not loaded: near"
