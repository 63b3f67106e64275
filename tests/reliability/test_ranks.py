"""Several processes: one dying at any place, more of them than there is work, held-out samples counted once.

Without torchrun the others notice by themselves, because their connections break; torchrun also ends those that wait
for the data, and starts all of them again.
"""

import itertools
import re
import shutil
import socket
import subprocess
import sys
from datetime import timedelta

import processes
import pytest
import torch
from processes import PATIENCE, ROOT, finish, start, torchrun
from standin import assert_equal_weights, lines

from siamdiff_min.files import ConfigError, SiamDiffError, console
from siamdiff_min.reading.store import ProteinStore
from siamdiff_min.tools.build import verify
from siamdiff_min.training import ranks

SOAK = pytest.mark.soak
PLACE = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
PLACES = ("step", "validation", "save", "data", "start")


@pytest.mark.full
@pytest.mark.parametrize("world, rounds", [(2, 0), pytest.param(2, 6, marks=SOAK), pytest.param(3, 1, marks=SOAK)])
@pytest.mark.parametrize("place", [PLACES[0], pytest.param(PLACES[1], marks=SOAK), PLACES[2]])
def test_a_dying_rank_ends_the_others(place, world, rounds, tmp_path):
    """They end by themselves, and in vain; the traceback is printed; what was saved is resumed, all bit-equal."""
    options = "--epochs", "1", "--save-every", "2", "--log-every", "1"  # means over more steps begin anew
    reference, log = tmp_path / "reference", tmp_path / "log"
    assert finish(start(log, world, "stand-in", reference, *options)) == [0] * world
    dying = ["0"] if place == "save" else ["0", "1"]  # the first one saves; a third one has nothing held out
    deaths_of = [*itertools.product(dying, ("killed", "raises"))]
    for number, (rank, how) in enumerate(deaths_of * rounds or [deaths_of[0], deaths_of[-1]]):
        out = tmp_path / f"{place}-{number}"
        log.write_text("")
        children = start(log, world, "stand-in", out, *options, DIE=f"{rank}:{place}:{how}")
        children[int(rank)].join(PATIENCE)
        codes = finish(children, 60)  # seconds
        assert codes == [-9 if how == "killed" and str(r) == rank else 1 for r in range(world)], log.read_text()
        assert how == "killed" or "RuntimeError: dies on purpose" in log.read_text()
        assert finish(start(log, world, "stand-in", out, *options)) == [0] * world
        assert lines(out) == lines(reference)
        for file in reference.glob("weights-*.pt"):
            assert_equal_weights(torch.load(out / file.name), torch.load(file))


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize(
    "place, how, rounds",
    [
        ("step", "raises", 1),
        *(pytest.param(place, how, 1, marks=SOAK) for place in PLACES for how in ("raises", "killed")),
    ],
)
def test_torchrun_starts_all_again_after_a_death(place, how, rounds, tmp_path):
    reference = tmp_path / "reference"
    assert finish(start(tmp_path / "log", 2, "stand-in", reference, "--epochs", "1")) == [0, 0]
    rank = 0 if place == "save" else 1
    for number in range(rounds):
        out = tmp_path / str(number)
        command = "--max-restarts", "1", processes.__file__, "stand-in", out, "--epochs", "1", "--save-every", "2"
        process = torchrun(2, *command, DIE=f"{rank}:{place}:{how}")
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert ("RuntimeError: dies on purpose" if how == "raises" else "exitcode: -9") in said, said
        assert place != "step" or "at step 4" in said, said
        for name in ("weights-0.pt", "weights-1.pt"):
            assert_equal_weights(torch.load(out / name), torch.load(reference / name))


@pytest.mark.repeats
@pytest.mark.parametrize("world", [2, 3])
def test_a_parameter_without_a_gradient_is_a_sentence_that_names_it(world, tmp_path):
    log = tmp_path / "log"
    codes = finish(start(log, world, "idle", tmp_path / "out", "--batch-size", "2", "--global-batch-size", "12"))
    said = log.read_text()
    assert "error: the loss gives no gradient to encoder.idle.weight, encoder.idle.bias; with several processes" in said
    assert codes == [1] * world and "Traceback" not in said, said


def test_ranks_share_the_work_of_one(tmp_path):
    """Parts of the global batch have their own seeds: two ranks do what one does by accumulation, batch norm included.

    Only the running statistics of batch norm are those of the parts that rank 0 has seen.
    """
    one, two, options = tmp_path / "one", tmp_path / "two", ("--global-batch-size", "8", "--epochs", "1")
    for world, out in ((1, one), (2, two)):
        assert finish(start(tmp_path / "log", world, "stand-in", out, *options)) == [0] * world
    a, b = torch.load(one / "weights-0.pt"), torch.load(two / "weights-1.pt")
    for name in a:
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5, msg=name)
    for x, y in zip(lines(one), lines(two)):
        assert x["step"] == y["step"]
        if x["split"] == "train" or x["step"] == 0:
            assert x["loss"] == pytest.approx(y["loss"], rel=1e-5)
    assert lines(one)[0] == lines(two)[0]  # the first evaluation: identical


def test_a_run_of_one_process_goes_on_with_two_as_its_error_says(tmp_path):
    """One GPU, later two: the same global batch in smaller parts, every step once."""
    begin = "--batch-size", "4", "--epochs", "1", "1"
    log = tmp_path / "log"
    assert finish(start(log, 1, "framed", tmp_path / "out", *begin, "--max-steps", "3")) == [0]
    assert finish(start(log, 2, "framed", tmp_path / "out", *begin)) == [1, 1]
    (advice,) = re.findall(r"With (.*) it goes on", log.read_text())
    assert finish(start(log, 2, "framed", tmp_path / "out", *begin, *advice.split())) == [0, 0]
    said = "2 processes with parts of 2, before 1 processes with parts of 4: batch norm, rounding, noise of other parts"
    assert said in log.read_text()
    steps = [line["step"] for line in lines(tmp_path / "out") if line["split"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == 20


@pytest.mark.full
def test_a_loss_left_out_does_not_stop_two_ranks(tmp_path):
    options = "--ablation", "no-sequence", "--max-steps", "3", "--batch-size", "2", "--global-batch-size", "8"
    assert finish(start(tmp_path / "log", 2, "stand-in", tmp_path, *options)) == [0, 0]
    assert_equal_weights(torch.load(tmp_path / "weights-0.pt"), torch.load(tmp_path / "weights-1.pt"))


@pytest.mark.repeats
@pytest.mark.parametrize("world", [3, 1, 2])
def test_uneven_and_empty_shards(world, tmp_path):
    """Five proteins, one held out: three processes have no held-out one, and go round the others to have a batch."""
    options = "--batch-size", "2", "--global-batch-size", "12", "--epochs", "1", "--max-steps", "2"
    log = tmp_path / "log"
    assert finish(start(log, world, "few", tmp_path / "out", *options)) == [0] * world, log.read_text()
    weights = [torch.load(file) for file in sorted((tmp_path / "out").glob("weights-*.pt"))]
    assert len(weights) == world
    for other in weights[1:]:  # the running statistics of batch norm are those of each rank
        for name in other:
            assert "norm.running" in name or torch.equal(other[name], weights[0][name]), name
    assert [line["step"] for line in lines(tmp_path / "out") if line["split"] == "valid"] == [1, 1, 2]  # two stages


def test_two_ranks_share_one_build(tmp_path, enzymes):
    """The first converts, the second waits and opens the same store."""
    log, data = tmp_path / "log", tmp_path / "data"
    shutil.copytree(enzymes / "train", data)
    options = "--size tiny --level residue --batch-size 2 --global-batch-size 4 --max-length 20 --max-steps 1"
    more = [*options.split(), "--valid-fraction", "0", "--num-workers", "0", "--device", "cpu", "--threads", "1"]
    command = "train", "--data", data, "--out", tmp_path / "run", *more
    assert finish(start(log, 2, *command)) == [0, 0], log.read_text()
    assert log.read_text().count(": seen ") == 1
    stores = sorted(x.name for x in tmp_path.iterdir() if "store" in x.name)
    (folder,) = (path for path in (tmp_path / "data.store").iterdir() if path.is_dir())
    assert stores == ["data.store"] and verify(ProteinStore(folder)) is None


@pytest.mark.full
@pytest.mark.parametrize("world, workers", [(1, 2), (2, 0), (3, 2)])
def test_what_a_validation_keeps_changes_no_number_with_ranks_and_workers(world, workers, tmp_path, enzymes):
    plugin = tmp_path / "keep_nothing.py"
    plugin.write_text("from siamdiff_min.training import evaluation\n\nevaluation.MOST_KEPT = 0\n")
    shutil.copytree(enzymes / "train", tmp_path / "data")
    options = (
        "--size tiny --level residue --epochs 2 1 --batch-size 1 --max-length 20 --valid-fraction .5 --valid-every 1"
    )
    options += f" --valid-every 1 --device cpu --threads 1 --num-workers {workers}"
    for out, more in (("kept", []), ("not kept", ["--plugin", plugin])):
        command = "train", "--data", tmp_path / "data", "--out", tmp_path / out, *options.split(), *more
        assert finish(start(log := tmp_path / f"{out}.log", world, *command)) == [0] * world, log.read_text()
    kept, made_anew = ((tmp_path / out / "valid.tsv").read_text() for out in ("kept", "not kept"))
    assert kept == made_anew and kept.count("\n") > 4


# ---- what `launch` asks of a GPU (a stand-in) and of the other processes ---------------------------------------------


def set_environment(monkeypatch, **variables) -> None:
    """These, and no others of those that tell a process its place."""
    for name in ("WORLD_SIZE", *PLACE, "LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def card(monkeypatch):
    """A machine that seems to have one GPU."""
    for name, value in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    before = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.use_deterministic_algorithms(before[1])


def test_products_in_float32_are_tf32_on_a_gpu_unless_deterministic(card):
    with ranks.launch("cuda") as ours:
        assert ours.device == torch.device("cuda", 0) and torch.get_float32_matmul_precision() == "high"
    with ranks.launch("cuda", deterministic=True):
        assert torch.get_float32_matmul_precision() == "highest"
    with ranks.launch("cpu"):
        assert torch.get_float32_matmul_precision() == "highest"


def test_more_processes_than_gpus_are_refused_in_a_sentence(card, monkeypatch):
    for rank in ("0", "1"):  # both see it, and the first one says it
        ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        set_environment(monkeypatch, **PLACE | ours)
        with pytest.raises(ConfigError, match="more processes than there are GPUs here \\(1\\)"), ranks.launch("cuda"):
            pass


@pytest.mark.parametrize(
    "variables, gpu",
    [
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),  # torchrun knows
        ({"SLURM_LOCALID": "1"}, 1),
        ({"SLURM_LOCALID": "3"}, 1),  # each process may see its own GPUs alone
        ({}, 0),  # the sixth of processes that follow each other
    ],
)
def test_a_process_without_torchrun_has_a_gpu_of_its_own(variables, gpu, card, monkeypatch):
    set_environment(monkeypatch, **variables)
    assert ranks.local_rank(6, 2) == gpu


def test_a_second_process_of_srun_is_told_of_torchrun(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    place = str(tmp_path / "lock")
    imports = "from pathlib import Path\nfrom siamdiff_min.files import lock\n"
    code = f"{imports}with lock(Path({place!r})): print('held', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    ours = ranks.Ranks(torch.device("cpu"))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as other:
        other.stdout.readline()
        with pytest.raises(SiamDiffError, match=r"is writing.* let them start torchrun"), ours.alone_in(str(tmp_path)):
            pass
        other.communicate(b"\n")


@pytest.mark.parametrize(
    "variables, said",
    [
        ({"WORLD_SIZE": 2}, "is 2 in the environment, RANK is missing, MASTER_PORT is missing, MASTER_ADDR is missing"),
        (PLACE | {"WORLD_SIZE": "two"}, "WORLD_SIZE is two in the environment, RANK is 0, MASTER_PORT is 1, "),
        (PLACE | {"WORLD_SIZE": 2, "RANK": "x"}, "WORLD_SIZE is 2 in the environment, RANK is x"),
        (PLACE | {"WORLD_SIZE": 2, "MASTER_PORT": "y"}, r"MASTER_PORT is y, MASTER_ADDR is \S+: start several"),
    ],
)
def test_half_of_what_torchrun_sets_is_a_sentence(variables, said, monkeypatch):
    """As a shell keeps it that once ran a part of a script."""
    set_environment(monkeypatch, **variables)
    with pytest.raises(SystemExit, match=said), console():
        ranks.world_size()
    for alone in ("", "1", " 1 "):
        monkeypatch.setenv("WORLD_SIZE", alone)
        assert ranks.world_size() == 1


@pytest.mark.parametrize("rank, lines_said", [(0, 1), pytest.param(1, 0, marks=pytest.mark.full)])
def test_who_waits_for_processes_that_do_not_come_says_so(rank, lines_said, monkeypatch, capsys):
    """One of two is never started. The other ends; if it is the one that all meet at, it says first how many came."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    set_environment(monkeypatch, **PLACE | {"WORLD_SIZE": 2, "MASTER_PORT": port, "RANK": rank})
    for name, seconds in (("MINUTE", 0.2), ("MEETING", 1)):
        monkeypatch.setattr(ranks, name, timedelta(seconds=seconds))
    with pytest.raises(SiamDiffError, match="the 2 processes of this run cannot meet"), ranks.launch("cpu"):
        pass
    line = "waiting     1 of 2 processes are here. For one process alone: unset WORLD_SIZE"
    assert capsys.readouterr().err.count(line) == lines_said


@pytest.mark.parametrize(
    "options, said, status",
    [
        (["--metod", "siamdiff"], "Did you mean --method?", 2),
        (["--head-dim", "8", "--method", "angle"], "error: --head-dim is for diffpret and siamdiff", 1),
        (["--init-from", "nowhere.pt"], "error: could not read nowhere.pt", 1),
        (["--data", "nowhere"], "error: nowhere", 1),
    ],
)
def test_what_all_processes_would_say_comes_once(options, said, status, tmp_path):
    """Wrong options, a file that is not there, data that cannot be converted."""
    log = tmp_path / "log"
    command = ["train", "--device", "cpu", "--num-workers", "0", "--out", tmp_path / "out", *options]
    assert finish(start(log, 2, *command)) == [status] * 2, log.read_text()
    assert log.read_text().count(said) == 1 and log.read_text().count("error: ") == 1, log.read_text()


def test_an_address_that_is_in_use_is_no_hang(monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        set_environment(monkeypatch, **PLACE | {"WORLD_SIZE": 2, "MASTER_PORT": other.getsockname()[1]})
        with pytest.raises(SiamDiffError, match=r"cannot meet: .*EADDRINUSE"), ranks.launch("cpu"):
            pass
