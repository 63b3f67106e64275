"""Checkpoints survive what can happen to a file: flipped bytes, truncation, full disks, read-only folders.

Kills, and disks that fail under whole runs, are in tests/reliability/.
"""

import copy
import errno
import os
import zipfile
from pathlib import Path

import pytest
import standin
import torch

from siamdiff_min.encoders import weights
from siamdiff_min.files import CheckpointError, SiamDiffError, WriteError
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
        assert (objective.conformer is None) == (config.method == "diffpret")
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


def test_every_flipped_byte_and_truncation_is_detected(tmp_path):
    """Or without effect: bytes between the members of the zip."""
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


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_disk_full_leaves_the_previous_one(tmp_path, monkeypatch, failing):
    good = checkpoint.save(tmp_path, 1, STATE)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "write":

        class Full:
            def __init__(self, *args):
                self.descriptor = os.open(args[0], os.O_CREAT | os.O_WRONLY)

            def fileno(self):
                return self.descriptor

            def __enter__(self):
                return self

            def __exit__(self, *args):
                os.close(self.descriptor)

            write = full

        monkeypatch.setattr("builtins.open", Full)
    else:
        monkeypatch.setattr(os, failing, full)
    with pytest.raises(WriteError, match=r"could not write .*000000002.pt: No space left on device; earlier files"):
        checkpoint.save(tmp_path, 2, STATE)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == [good.name]
    assert_same(checkpoint.latest(tmp_path)[1], STATE)


def test_read_only_folder_is_named(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("builtins.open", refuse)  # not by chmod: the tests may run as root
    with pytest.raises(WriteError, match=r"could not write .*: Read-only file system"):
        checkpoint.save(tmp_path, 1, STATE)


def test_no_code_is_run_on_loading(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read as a torch file"):
        weights.read_weights(checkpoint.save(tmp_path, 1, {"evil": Path("/")}))


def test_encoder_file(tmp_path):
    objective = standin.Objective()
    path = tmp_path / "encoder.pt"
    weights.save_encoder_file(path, objective.encoder, "gearnet", "atom", "tiny", "paper", steps=3)
    content = torch.load(path, weights_only=True)
    assert {k: v for k, v in content.items() if k != "state"} == {
        "format": weights.ENCODER,
        "encoder": "gearnet",
        "level": "atom",
        "size": "tiny",
        "preset": "paper",
        "steps": 3,
    }
    fresh = standin.Encoder(True, 0.1)
    weights.load_weights(fresh, weights.load_encoder_file(path)["state"], str(path))
    assert all(torch.equal(a, b) for a, b in zip(fresh.state_dict().values(), objective.encoder.state_dict().values()))
    torch.save(objective.encoder.state_dict(), tmp_path / "plain.pt")
    with pytest.raises(CheckpointError, match=r"plain.pt holds no GearNet: .*but linear.weight, linear.bias"):
        weights.load_encoder_file(tmp_path / "plain.pt")
    path.write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match=r"encoder.pt cannot be read"):
        weights.load_encoder_file(path)
    with pytest.raises(CheckpointError, match=r"could not read .*: No such file"):
        weights.load_encoder_file(tmp_path / "absent.pt")


def test_the_gvp_of_version_0_2_is_refused_by_name(tmp_path):
    """It had batch norm in place of layer norm."""
    path = tmp_path / "encoder.pt"
    state = {"layers.0.norm.0.scalar_norm.running_mean": torch.zeros(3)}
    identity = dict(zip(weights.IDENTITY, ("gvp", "atom", "tiny", "paper")))
    weights.write_weights(path, weights.ENCODER, {**identity, "state": state})
    with pytest.raises(CheckpointError, match="holds the GVP of an earlier version"):
        weights.load_encoder(path)


def test_weights_that_do_not_fit_are_all_named():
    encoder = standin.Encoder(True, 0.1)
    before = {k: v.clone() for k, v in encoder.state_dict().items()}
    state = {k: v + 1 for k, v in before.items()}
    del state["norm.weight"]
    state["linear.weight"] = torch.zeros(16, 4)
    state["extra"] = torch.zeros(2)
    with pytest.raises(CheckpointError) as error:
        weights.load_weights(encoder, state, "file.pt")
    message = str(error.value)
    assert "file.pt" in message
    assert "missing: norm.weight (16,)" in message
    assert "unexpected: extra (2,)" in message
    assert "shape of linear.weight: expected (16, 3), found (16, 4)" in message
    assert all(torch.equal(v, before[k]) for k, v in encoder.state_dict().items())


def change(name: str, value):
    return lambda state: state | {name: value}


@pytest.mark.parametrize(
    "forge, said",
    [
        (lambda state: None, "no weights"),
        (change("linear.bias", None), "no weights"),
        (change("linear.bias", torch.zeros(16).to_sparse()), "found no plain tensor"),
        (change("linear.bias", torch.zeros(16, device="meta")), "found no plain tensor"),
        (change("linear.bias", torch.full((16,), torch.nan)), "not finite: linear.bias"),
        (change("linear.bias", torch.full((16,), torch.inf)), "not finite: linear.bias"),
        (
            change("linear.bias", torch.zeros(16, dtype=torch.long)),
            "kind of linear.bias: expected float, found torch.int64",
        ),
        (change("norm.num_batches_tracked", torch.tensor(True)), "num_batches_tracked: .* found torch.bool"),
    ],
)
def test_forged_weights_are_refused_by_name(forge, said, tmp_path):
    encoder = standin.Encoder(True, 0.1)
    content = {"format": weights.ENCODER, "encoder": "gearnet", "level": "atom", "size": "tiny", "preset": "paper"}
    torch.save({**content, "state": forge(encoder.state_dict())}, tmp_path / "e.pt")
    with pytest.raises(CheckpointError, match=said):
        weights.load_weights(encoder, weights.load_encoder_file(tmp_path / "e.pt")["state"], "e.pt")


def nested(depth: int, width: int = 1) -> list:
    """Lists in lists; two of a kind in each of 60 have 2^60 numbers, which nothing may walk through."""
    inner = [0]
    for _ in range(depth):
        inner = [inner] * width
    return inner


FORGED = {
    "deep": lambda: nested(300),
    "exponential": lambda: nested(60, 2),
    "many": lambda: nested(3, 200),
    "huge": lambda: 10**600,
    "tensor": lambda: torch.zeros(2),
    "set": lambda: {1},
}


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("kind", [weights.CHECKPOINT, weights.MODEL, weights.ENCODER])
def test_forged_options_are_refused_at_once(kind, forged, tmp_path):
    content = {"format": kind, "config": {"epochs": [1]}, "objective": {}, "state": {}}
    about = content["config"] if kind == weights.CHECKPOINT else content
    about["epochs"] = FORGED[forged]()
    torch.save(content, tmp_path / "e.pt")
    with pytest.raises(CheckpointError, match=r"e\.pt is damaged: its options are no plain numbers"):
        weights.read_weights(tmp_path / "e.pt", kind)
    about["epochs"] = [1, 2.5, "word", None, True, {"a": [3]}]
    torch.save(content, tmp_path / "e.pt")
    assert weights.read_weights(tmp_path / "e.pt", kind)


@pytest.mark.parametrize("step", [-1, 10**9, 10**600, 1.0, "1", None, [1], torch.tensor(1)], ids=lambda x: repr(x)[:12])
def test_a_forged_step_is_refused(step, tmp_path):
    """Another would name a file that no run finds again, or be counted to for years."""
    checkpoint.save(tmp_path, 1, STATE | {"step": step})
    with pytest.raises(CheckpointError, match=r"000001\.pt is damaged: its step is not a number from 0 to 999999999"):
        weights.read_weights(tmp_path / "checkpoint-000000001.pt")
    for step in (0, 10**9 - 1):
        assert weights.read_weights(checkpoint.save(tmp_path, 1, STATE | {"step": step}))["step"] == step


@pytest.mark.parametrize("forged", [5, [5], {"a": 1, 2: 3}, True])
def test_forged_names_of_what_is_not_loaded(forged, tmp_path):
    source, path = standin.Objective(), tmp_path / "encoder.pt"
    about = {"not_loaded": forged}
    weights.save_encoder_file(path, source.encoder, "gearnet", "atom", "tiny", "paper", **about)
    with pytest.raises(CheckpointError, match=r"encoder\.pt is damaged, or of another version"):
        checkpoint.initialise(standin.Objective(), path, print)
    weights.save_encoder_file(path, source.encoder, "gearnet", "atom", "tiny", "paper", not_loaded=["a\n\x1b", "b"])
    said = []
    checkpoint.initialise(standin.Objective(), path, said.append)
    assert said[0] == "in that file, not loaded: a\\n\\x1b, b"


def rewritten(path: Path, forge) -> None:
    """The members of a file of torch, written anew; `forge(archive)` adds to them before the directory is written."""
    with zipfile.ZipFile(path) as archive:
        members = [(member, archive.read(member)) for member in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members:
            archive.writestr(member.filename, content, forge if isinstance(forge, int) else None)
        if callable(forge):
            forge(archive)


def twin(name: str | None = None):
    """Adds members that take no room: the data of the last one again, 2,000 times."""

    def forge(archive: zipfile.ZipFile) -> None:
        for i in range(2000):
            archive.filelist.append(copy.copy(archive.filelist[-1]))
            archive.filelist[-1].filename = f"{name}{i}" if name else archive.filelist[-1].filename

    return forge


def as_folder(archive: zipfile.ZipFile) -> None:
    next(member for member in archive.filelist if "/data/" in member.filename).external_attr |= 16


@pytest.mark.parametrize(
    "forge, reason",
    [
        (zipfile.ZIP_DEFLATED, "is compressed"),
        (zipfile.ZIP_BZIP2, "is compressed"),
        (twin(), "is there twice"),
        (twin("more"), "is within another member"),
        (as_folder, "data/0 is marked as a folder"),
    ],
)
def test_members_are_stored_as_torch_does(forge, reason, tmp_path):
    """A small file of such members can hold terabytes; a folder would be what happens to be in memory."""
    path = checkpoint.save(tmp_path, 1, STATE)
    rewritten(path, None)
    assert_same(weights.read_weights(path), STATE)
    rewritten(path, forge)
    with pytest.raises(CheckpointError, match=rf"000001\.pt cannot be read as a torch file, or is damaged: .*{reason}"):
        weights.read_weights(path)


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    objective = standin.Objective()
    with torch.no_grad():
        objective.encoder.linear.bias[3] = torch.inf
    with pytest.raises(SiamDiffError, match=r"encoder.pt is not written, since .* no longer finite \(linear.bias\)"):
        weights.save_encoder_file(tmp_path / "encoder.pt", objective.encoder, "gearnet", "atom", "tiny", "paper")
    with pytest.raises(SiamDiffError, match="no longer finite"):
        checkpoint.save(tmp_path, 1, {"objective": objective.state_dict(), "config": {}})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["embed", "checkpoint"])
def test_a_fifo_does_not_hang(command, tmp_path):
    os.mkfifo(tmp_path / "e.pt")
    held = os.open(tmp_path / "e.pt", os.O_RDWR)  # if it were opened, that would fail, not wait
    os.write(held, b"x")
    with pytest.raises(CheckpointError, match=r"e\.pt: not a regular file"):
        weights.load_encoder(tmp_path / "e.pt") if command == "embed" else weights.read_weights(tmp_path / "e.pt")


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
