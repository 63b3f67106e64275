"""Processes that load data: whatever happens to them, the run ends with a sentence, and the others with it.

And the order of the data, which depends on (seed, epoch) alone.
"""

import copy
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace

import processes
import pytest
import standin
import torch
from processes import PATIENCE, descendants, finish, running, start, until
from standin import configure

from siamdiff_min import machine
from siamdiff_min.encoders import weights
from siamdiff_min.files import CheckpointError, SiamDiffError
from siamdiff_min.pretraining.objective import Objective
from siamdiff_min.reading.store import open_store
from siamdiff_min.training import checkpoint, loader
from siamdiff_min.training.config import pretrain_options
from siamdiff_min.training.loader import epoch_batches, train_keys, valid_keys

CPU = torch.device("cpu")
SOON = 60  # seconds from the sentence to the end
TRAINED, HELD_OUT = 7, 43  # proteins of the stand-in
SENTENCES = {
    "raises": "error: the store was replaced while it was in use\n",
    "killed": "error: DataLoader worker (pid",  # "is killed by signal", or if it is spawned "exited unexpectedly"
    "hangs": "error: DataLoader timed out after 3 seconds. Memory may have run out",
}


@pytest.mark.repeats
@pytest.mark.parametrize(
    "how, index, method, workers, world",
    [
        ("raises", TRAINED, "fork", 1, 2),
        ("killed", TRAINED, "fork", 1, 2),
        ("hangs", TRAINED, "fork", 1, 2),
        ("raises", HELD_OUT, "fork", 2, 1),
        ("killed", HELD_OUT, "spawn", 1, 2),
    ],
)
def test_a_process_that_loads_and_fails_is_killed_or_hangs_ends_the_run(how, index, method, workers, world, tmp_path):
    """With a sentence, on all ranks."""
    log, options = tmp_path / "log", ("--num-workers", workers)
    harm = {"LOADER": f"{how}:{index}", "START": method}
    children = start(log, world, "framed", tmp_path / "out", *options, **harm)
    until(lambda: SENTENCES[how] in (log.read_text() if log.exists() else ""), log)
    codes, said = finish(children, SOON), log.read_text()
    assert codes == [1] * world and "Traceback" not in said, said
    assert world == 1 or "error: lost another process of this run: its own message tells why" in said, said


def test_a_shard_that_was_damaged_ends_the_command(enzymes, tmp_path):
    store = open_store(enzymes / "train", tmp_path / "mine.store").path
    (shard,) = store.glob("0*.pt")
    shard.write_bytes(bytes(shard.stat().st_size))
    options = "--size tiny --level residue --batch-size 2 --max-length 20 --valid-fraction 0 --num-workers 1"
    more = [*options.split(), "--device", "cpu"]
    said = processes.run("train", "--data", store, "--out", tmp_path / "out", *more, status=1)
    assert f"error: {shard} is damaged" in said and "Traceback" not in said


@pytest.mark.full
def test_batches_need_no_room_in_shared_memory_and_few_files(tmp_path):
    """A container has 64 MB of /dev/shm; here it has 1 MB, if we may mount one."""
    small = "unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm && %s'"
    if subprocess.run(small % "true", shell=True, capture_output=True).returncode:
        small = "%s"
    command = f"{sys.executable} {processes.__file__} framed {tmp_path}/out --num-workers 2 --epochs 1"
    environment = os.environ | {"PYTHONPATH": f"{processes.ROOT}:{processes.ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    how = {"env": environment, "capture_output": True, "text": True, "timeout": PATIENCE, "shell": True}
    done = subprocess.run(small % f"ulimit -n 32; {command}", **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert standin.lines(tmp_path / "out")[-1]["step"] == 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's, of a loader half made
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # torch's, if this process may use one core
def test_processes_that_cannot_be_started_are_a_sentence(monkeypatch):
    """As in a container with a limit on processes; and the one that was started does not stay."""
    begin = multiprocessing.context.ForkProcess.start

    def refuse(self):
        if "-2" in self.name or multiprocessing.active_children():
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begin(self)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(loader, "cores", lambda: 2)
    loaded = loader.load_batches(Failing(), [[0], [1]], Namespace(num_workers=2), CPU)
    with pytest.raises(SiamDiffError, match="could not start 2 processes that load data: Resource temporarily unavail"):
        next(loaded)
    assert not multiprocessing.active_children()


def test_without_semaphores_the_process_that_trains_loads_the_data(monkeypatch, capsys):
    """As in a container without a /dev/shm that can be written; said once."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(multiprocessing.synchronize._multiprocessing, "SemLock", refuse)
    machine.warn_once.cache_clear()
    for _ in range(2):
        loaded = [*loader.load_batches(Failing(), [[0], [1, 2]], Namespace(num_workers=2), CPU)]
        assert [batch[:, 0].tolist() for batch in loaded] == [[0], [1, 2]]
    said = "warning: the process that trains loads the data too, no others can be started here (/dev/shm: Read-only"
    assert capsys.readouterr().err.count(said) == 1


class Failing:
    collate = staticmethod(torch.stack)

    def __getitem__(self, key):
        if key == 4:
            raise KeyError("a fault of ours")
        return torch.full((2,), float(key))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_and_errors_in_their_turn(workers, recwarn):
    """An error keeps its traceback; nothing is drawn from the global generator; no more processes than cores."""
    data, config = Failing(), Namespace(num_workers=workers)
    keys, state = [[i, i + 1] for i in (5, 0, 1, 7, 6, 8, 1, 0, 5, 7)], torch.get_rng_state()
    batches = list(loader.load_batches(data, keys, config, CPU))
    assert [batch.tolist() for batch in batches] == [[[i, i], [i + 1, i + 1]] for i, _ in keys]
    assert torch.equal(torch.get_rng_state(), state)
    loaded = loader.load_batches(data, [[0, 1], [4, 3]], config, CPU)
    next(loaded)
    with pytest.raises(KeyError, match=r"(?s)a fault of ours"):
        next(loaded)
    assert not multiprocessing.active_children()
    assert not [warning for warning in recwarn if "fork()" not in str(warning.message)]  # from Python 3.12 on


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_that_load_end_within_15_seconds_of_ours(number, tmp_path):
    log = tmp_path / "log"
    slow = {"SLOW_FORKS": 1} if number == signal.SIGKILL else {}  # they begin when ours is gone
    (child,) = start(log, 1, "stand-in", tmp_path / "out", "--num-workers", 2, "--epochs", 9999, **slow)
    until(lambda: len(descendants(child.pid)) > 1, log)  # one alone may be git, which tells the commit
    found = descendants(child.pid)
    os.kill(child.pid, number)
    begin = time.monotonic()
    until(lambda: not any(map(running, found)), log)
    assert time.monotonic() - begin < 15
    assert finish([child]) == [-9 if number == signal.SIGKILL else 128 + signal.SIGTERM]


# ---- the order of the data: a pure function of (seed, epoch), dealt evenly to processes ------------------------------


def test_an_epoch_takes_each_at_most_once():
    batches = epoch_batches(103, 10, seed=1, epoch=2)
    assert batches.shape == (10, 10) and len(set(batches.ravel())) == 100 and batches.max() < 103
    assert (batches == epoch_batches(103, 10, seed=1, epoch=2)).all()
    assert (batches != epoch_batches(103, 10, seed=1, epoch=3)).any()
    assert (batches != epoch_batches(103, 10, seed=2, epoch=2)).any()


def test_a_batch_larger_than_the_data_goes_round():
    batch = epoch_batches(3, 8, seed=0, epoch=0)
    assert batch.shape == (1, 8) and set(batch[0, :3]) == {0, 1, 2} and (batch[0, 3:6] == batch[0, :3]).all()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("num", [5, 30, 101])
def test_ranks_share_the_same_global_batches(num, world):
    config = configure("x", "--batch-size", 4, "--global-batch-size", 24, world=world)
    indices, steps = [7 * i for i in range(num)], range(0, 9)
    one = list(train_keys(config, indices, steps, 0, 1))
    ranks = [list(train_keys(config, indices, steps, rank, world)) for rank in range(world)]
    assert {len(r) for r in ranks} == {9 * 6 // world}
    assert [part for together in zip(*ranks) for part in together] == one  # dealt in turn
    assert list(train_keys(config, indices, range(5, 9), 0, 1)) == one[5 * 6 :]  # resumed


@pytest.mark.parametrize("num", [0, 1, 7, 8, 9, 101])
def test_held_out_proteins_come_once(num):
    """None is alone if there are others: `multiview` compares the proteins of a batch."""
    batches = valid_keys(range(num), 4)
    assert [key for batch in batches for key in batch] == [(0, i) for i in range(num)]
    assert all(len(batch) == 4 for batch in batches[:-1]) and all(2 <= len(batch) <= 5 or num == 1 for batch in batches)
    assert [len(batch) for batch in valid_keys(range(num), 1)] == [1] * num


# ---- checkpoints survive what can happen to a file -------------------------------------------------------------------


STATE = {"config": {}, "step": 7, "name": "x", "list": [1, 2.5, None]}
STATE["objective"] = {"a": torch.arange(5.0), "b": torch.ones(2, 3)}


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() - {"format"} == b.keys() - {"format"}
    for name in ("step", "name", "list"):
        assert a[name] == b[name]
    for name in a["objective"]:
        assert torch.equal(a["objective"][name], b["objective"][name])


def test_round_trip_and_keep(tmp_path):
    """The newest ones stay. An earlier step that is saved abandons the later ones."""
    for step in (1, 2, 10, 100):
        path = checkpoint.save(tmp_path, step, STATE, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-000000100.pt", "checkpoint-000000010.pt"]
    found, state = checkpoint.latest(tmp_path)
    assert found == path
    assert_same(state, STATE)
    assert checkpoint.latest(tmp_path / "nowhere") is None
    checkpoint.save(tmp_path, 50, STATE, keep=2)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-000000050.pt", "checkpoint-000000010.pt"]


def test_files_of_the_user_stay(tmp_path):
    """Only names that a run writes itself are removed: `checkpoint-` and nine digits."""
    mine = ["checkpoint-1.pt", "checkpoint-0000000001.pt", "checkpoint-000000001.pt.bak", "my-checkpoint-000000001.pt"]
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
    assert "seq_mlp (6 tensors)" in (said[0] if taken else said[2])
    assert taken or "another shape (--head-dim)" in said[0]


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
