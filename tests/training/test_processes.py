"""Real processes: killed at any moment and resumed, several ranks in step, one of them dying.

Children come from a fork server that has imported torch already, so a restart costs a tenth of a second.
"""

import multiprocessing
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import standin
import torch
from test_engine import assert_equal_weights, lines

from siamdiff_min.training import checkpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["standin", "torch._dynamo"])
    return context


def start(context, world, *argv, **environment):
    """The processes of one run, as torchrun would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment |= {k: str(v) for k, v in place.items()}
        child = context.Process(target=run, args=argv, kwargs=dict(environment), daemon=True)
        child.start()
        children.append(child)
    return children


def run(*argv, **environment):
    with open(os.devnull, "w") as nothing:  # the tests read files, not the console
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    sys.exit(standin.main(*argv, **environment))


def finish(children, timeout=60) -> list[int]:
    for child in children:
        child.join(timeout)
    return [child.exitcode for child in children]


@pytest.mark.parametrize("world, kills", [(1, 16), (2, 6)])
def test_killed_anywhere_resumed_bit_identical(tmp_path, server, world, kills):
    options = ["--save-every", "1"]
    reference, out, monitor = tmp_path / "reference", tmp_path / "killed", tmp_path / "saving"
    assert finish(start(server, world, str(reference), *options)) == [0] * world

    random.seed(world)
    inside = 0
    for kill in range(kills):
        children = start(server, world, str(out), *options, SLOW_SAVES=str(monitor))
        patience = time.monotonic() + 20
        newest = checkpoint.checkpoints(out)[:1]
        if kill % 2:  # half of them inside a save, at a random point of it
            while not monitor.exists() and time.monotonic() < patience and all(c.is_alive() for c in children):
                time.sleep(0.002)
            time.sleep(random.uniform(0, 0.05))
        else:  # the others at any time, from the start on
            time.sleep(random.uniform(0, 0.6 * world))
        inside += monitor.exists()
        for child in children:
            child.kill()
        finish(children)
        monitor.unlink(missing_ok=True)
        assert checkpoint.checkpoints(out)[:1] >= newest
    assert finish(start(server, world, str(out), *options)) == [0] * world

    assert inside >= kills // 4
    for rank in range(world):
        name = f"weights-{rank}.pt"
        assert_equal_weights(torch.load(out / name), torch.load(reference / name))
    assert_equal_weights(torch.load(out / "weights-0.pt"), torch.load(out / f"weights-{world - 1}.pt"))
    assert lines(out) == lines(reference)


def test_ranks_share_the_work_of_one(tmp_path, server):
    """Parts of the global batch have their own seeds: two ranks do what one does by accumulation, batch norm included.

    Only the running statistics of batch norm are those of the parts that rank 0 has seen.
    """
    options = ["--global-batch-size", "8", "--epochs", "1"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert finish([*start(server, 1, str(one), *options), *start(server, 2, str(two), *options)]) == [0, 0, 0]
    a, b = torch.load(one / "weights-0.pt"), torch.load(two / "weights-1.pt")
    for name in a:
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5, msg=name)
    for x, y in zip(lines(one), lines(two)):
        assert x["step"] == y["step"]
        if x["split"] == "train" or x["step"] == 0:
            assert x["loss"] == pytest.approx(y["loss"], rel=1e-5)
    assert lines(one)[0] == lines(two)[0]  # the first evaluation: identical


def test_a_loss_left_out_does_not_stop_two_ranks(tmp_path, server):
    options = ["--ablation", "no-sequence", "--max-steps", "3", "--batch-size", "2", "--global-batch-size", "8"]
    assert finish(start(server, 2, str(tmp_path), *options)) == [0, 0]
    assert_equal_weights(torch.load(tmp_path / "weights-0.pt"), torch.load(tmp_path / "weights-1.pt"))


def torchrun(*argv, **environment):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *argv]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_dying_rank_ends_the_others_and_torchrun_restarts_them(tmp_path, server):
    reference, out = tmp_path / "reference", tmp_path / "out"
    assert finish(start(server, 2, str(reference))) == [0, 0]
    begin = time.monotonic()
    process = torchrun("--max-restarts", "1", standin.__file__, str(out), "--save-every", "2", DIE_AT="7")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "RuntimeError: dies on purpose" in said and "at step 6" in said and time.monotonic() - begin < 50
    for rank in (0, 1):
        name = f"weights-{rank}.pt"
        assert_equal_weights(torch.load(out / name), torch.load(reference / name))


def test_a_dying_rank_without_restart(tmp_path):
    begin = time.monotonic()
    process = torchrun(standin.__file__, str(tmp_path), DIE_AT="3")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "RuntimeError: dies on purpose" in said and time.monotonic() - begin < 40


def test_sigterm_to_one_rank_ends_both_after_a_checkpoint(tmp_path, server):
    children = start(server, 2, str(tmp_path), "--save-every", "1", SLOW_SAVES=str(tmp_path / "saving"))
    while not checkpoint.checkpoints(tmp_path):
        assert all(child.is_alive() for child in children)
        time.sleep(0.01)
    children[1].terminate()
    assert finish(children) == [128 + 15] * 2
    step = checkpoint.latest(tmp_path)[1]["step"]
    assert 1 <= step < 20 and lines(tmp_path)[-1]["step"] == step
