"""Real processes, started in a tenth of a second, and harmed at a moment that a test chooses.

Children come from a fork server that has imported torch already. They run one of PROGRAMS, harmed as the environment
says (`harm`), so that `torchrun processes.py PROGRAM ...` does the same. RUNS are commands whose results are compared.
"""

import atexit
import ctypes
import errno
import hashlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import standin
import torch
from standin import lines

from siamdiff_min import cli
from siamdiff_min.encoders import weights
from siamdiff_min.files import console
from siamdiff_min.reading import store as shards
from siamdiff_min.reading.store import open_store
from siamdiff_min.training import checkpoint, loader

ROOT = Path(__file__).parents[1]
PATIENCE = 300  # seconds until what has not happened never will: busy machines are slow, collectives wait for 600
TWO_RANKS = "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"  # a launcher of `cold`
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = [
    *("siamdiff_min.pretrain", "siamdiff_min.finetune", "siamdiff_min.tools.embed.command"),
    *("torch._dynamo", "sklearn.metrics"),
]
CONTEXT.set_forkserver_preload(PRELOADED)


def script(name: str, *argv: str) -> None:
    """A script of the repository, as `python NAME ...` runs it."""
    sys.argv = [name, *argv]
    runpy.run_path(str(ROOT / name if (ROOT / name).exists() else name), run_name="__main__")


def script_in(folder: str, name: str, *argv: str) -> None:
    """A script where a user keeps it, with what it needs beside it."""
    os.chdir(folder)
    script(name, *argv)


def convert(data: str, store: str, workers: str = "1") -> None:
    """The store of a folder of structures."""
    shards.SHARD = 4
    with console():
        open_store(data, store, int(workers))


def framed(*argv, **about) -> int:
    """The stand-in in the frame of a command: an error is a sentence."""
    with console():
        return standin.main(*argv, **about)


PROGRAMS = {
    "stand-in": standin.main,
    "framed": framed,
    "few": partial(standin.main, num=5, num_valid=1),  # fewer than three processes need for a batch each
    "idle": lambda *argv: framed(*argv, build=standin.Idle),
    "train": partial(script, "train.py"),
    "finetune": partial(script, "finetune.py"),
    "one_file": partial(script, "examples/one_file.py"),
    "script in": script_in,
    "convert": convert,
    "embed": lambda *argv: cli.main(["embed", *argv]),
    "build": lambda *argv: cli.main(["build", *argv]),
}


# ---- inside the process ----------------------------------------------------------------------------------------------


def main(program: str, *argv: str):
    """Run a program, harmed as the environment says; what it returns or raises is what the process ends with."""
    if "TORCHELASTIC_RESTART_COUNT" not in os.environ or os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        harm(os.environ)
    return PROGRAMS[program](*argv)


def child(log: str, program: str, *argv: str, **environment: str) -> None:
    """What the fork server runs: a process with a group of its own, that writes to `log`."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells that start us in the background switch it off
    os.environ.update(environment)
    os.chdir(ROOT)
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # what a user's process has, for those that load data
    if "RANK" in os.environ and program == "stand-in":  # 1.3 s of CPU time, which other programs need not spend again
        end_as_an_interpreter()
    sys.exit(main(program, *argv))


def end_as_an_interpreter() -> None:
    """Forked processes leave without tidying up; ours take down modules and threads, as those of a user do."""
    atexit.register(weakref.finalize._exitfunc)  # a forked process has lost it; without, torch complains in Python 3.14
    leave, ours = os._exit, os.getpid()
    os._exit = lambda code: ctypes.pythonapi.Py_Exit(code) if os.getpid() == ours else leave(code)


def harm(wanted) -> None:
    """SLOW_SAVES, DISK and DIE: see below; LOADER: see `standin.Dataset`; START and SLOW_FORKS: of loader processes."""
    if "SLOW_SAVES" in wanted:
        slow_saves(Path(wanted["SLOW_SAVES"]))
    if "DISK" in wanted:
        action, number, below = wanted["DISK"].split(":", 2)
        at_disk_operation(action, int(number), below)
    if "START" in wanted:
        loader.START, loader.PATIENCE = wanted["START"], 300
    if "SLOW_FORKS" in wanted:
        os.register_at_fork(after_in_child=lambda: time.sleep(float(wanted["SLOW_FORKS"])))
    if wanted.get("LOADER", "").startswith("hangs"):
        loader.PATIENCE = 3
    if "DIE" in wanted:
        rank, place, how = wanted["DIE"].split(":")
        if os.environ.get("RANK", "0") == rank:
            die_in(place, how)


def slow_saves(monitor: Path, pause: float = 0.05) -> None:
    """Make every save last, and leave the file `monitor` while it does: a test can kill in the middle of one."""
    fsync = os.fsync

    def slow(descriptor):
        if ".json" in os.readlink(f"/proc/self/fd/{descriptor}"):  # of a line, or of what a run says at its start
            return fsync(descriptor)
        monitor.touch()
        time.sleep(pause)
        fsync(descriptor)
        monitor.unlink(missing_ok=True)

    os.fsync = slow


def at_disk_operation(action: str, number: int, below: str) -> None:
    """Let the `number`-th operation on what begins with `below` be the last one, or fail with all later ones.

    Operations: a file is opened for writing, flushed to the disk, renamed or removed, a folder is made or removed.
    Actions: `kill`, `terminate`; `full` (nothing new can be written), `read-only`.
    """
    signals = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM}
    count, writing = 0, os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def operation(name: str, path: str) -> None:
        nonlocal count
        if not path.startswith(below):
            return
        count += 1
        if action in signals and count == number:
            os.kill(os.getpid(), signals[action])
        needs_space = name in ("open", "fsync", "os.mkdir")
        if count >= number and (action == "read-only" or (action == "full" and needs_space)):
            code = errno.EROFS if action == "read-only" else errno.ENOSPC
            raise OSError(code, os.strerror(code), path)

    def audit(event: str, arguments: tuple) -> None:
        if event == "open" and not isinstance(arguments[0], int) and arguments[2] & writing:
            operation(event, os.fsdecode(arguments[0]))
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
            folder = arguments[-1]  # shutil.rmtree names files relative to an open folder
            at = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else ""
            operation(event, os.path.join(at, os.fsdecode(arguments[0])))

    fsync = os.fsync

    def synced(descriptor: int) -> None:
        operation("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    os.fsync = synced
    sys.addaudithook(audit)


def die_in(place: str, how: str) -> None:
    """Let this process fail at `start`, with the `data`, in a `step`, a `validation` or a `save`: by an exception, or
    (`how` is `killed`) as if the system had ended it for want of memory."""

    def dies(*args, **kwargs):
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("dies on purpose")

    if place == "start":
        dies()
    elif place == "data":
        standin.train = dies
    elif place == "save":
        weights.write_file = dies
    else:
        forward, calls = standin.Objective.forward, []

        def forward_or_die(self, *args):
            calls.append(self.training == (place == "step"))
            return dies() if sum(calls) > (4 if place == "step" else 1) else forward(self, *args)

        standin.Objective.forward = forward_or_die


# ---- from the outside ------------------------------------------------------------------------------------------------


def start(log: Path, world: int, *command, **environment) -> list:
    """The processes of one run: several as torchrun would start them, one as from a command line."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        settings = {k: str(v) for k, v in (environment | (place if world > 1 else {})).items()}
        process = CONTEXT.Process(target=child, args=(str(log), *map(str, command)), kwargs=settings)
        process.start()
        children.append(process)
    return children


def finish(children: list, timeout: float = PATIENCE) -> list[int | None]:
    """Wait for processes; their exit codes, None for those that had to be killed because they did not end."""
    end = time.monotonic() + timeout
    for process in children:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in children]
    kill(children)
    return codes


def run(program: str, *argv, world: int = 1, status: int = 0, **environment) -> str:
    """What a run of a program prints. It must end with `status`."""
    with tempfile.TemporaryDirectory() as folder:
        codes = finish(start(log := Path(folder) / "log", world, program, *argv, **environment))
        said = log.read_text()
    assert codes == [status] * world, said
    return said


def cold(script: str, *argv, launcher=(), status: int = 0) -> str:
    """What a script prints that a new interpreter runs, as a user's shell does. It must end with `status`."""
    command = [sys.executable, *launcher, script, *map(str, argv)]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == status, result.stdout
    return result.stdout


def kill(children: list) -> None:
    """SIGKILL, and wait until they are gone."""
    for process in children:
        process.kill()
    for process in children:
        process.join()


def until(happened, log: Path) -> None:
    """Wait until `happened()`."""
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, log.read_text() if log.exists() else "nothing was said"
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int | None = None) -> list[int]:
    """The children of a process (ours), and theirs."""
    place = f"/proc/{pid or os.getpid()}/task/{pid or os.getpid()}/children"
    children = [int(child) for child in Path(place).read_text().split()] if os.path.exists(place) else []
    return [*children, *(found for child in children for found in descendants(child))]


def torchrun(world: int, *command, **environment) -> subprocess.Popen:
    """The same under torchrun, with its restarts and signals."""
    launcher = [sys.executable, *TWO_RANKS[:-1], str(world)]
    settings = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"} | environment
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [*launcher, *map(str, command)]
    return subprocess.Popen(command, env=os.environ | settings, start_new_session=True, **output)


# ---- commands whose results are compared -----------------------------------------------------------------------------

UNDISTURBED: dict = {}


@dataclass
class Run:
    """A command and what it writes; `data` are the enzymes, `folder` is for whatever is needed once."""

    folder: Path
    data: Path
    seconds = 0.8  # that an undisturbed one takes to get to its middle, roughly
    operations = 20  # on the disk, roughly

    def undisturbed(self, world: int = 1):
        """The result of a run that nothing happens to; one for all tests."""
        if (type(self), world) not in UNDISTURBED:
            place, log = self.folder / "undisturbed", self.folder / "log"
            assert finish(start(log, world, *self.command(place))) == [0] * world, log.read_text()
            UNDISTURBED[type(self), world] = self.result(place)
        return UNDISTURBED[type(self), world]

    def command(self, place: Path) -> list:
        """What is run; everything it writes has a name that begins with `place`."""
        raise NotImplementedError

    def result(self, place: Path):
        """What two runs must have in common, to the bit; with the names of all files, so that nothing is left over."""
        raise NotImplementedError


def files(place: Path) -> list[str]:
    """All files whose path begins with `place`, named from there on; without checkpoints.

    A run that is killed between its last save and the removal of the oldest checkpoint leaves one more of these.
    """
    found = [path for path in place.parent.rglob("*") if str(path).startswith(str(place)) and path.is_file()]
    return sorted(str(path)[len(str(place)) :] for path in found if not path.match("checkpoint-*.pt"))


def digest(content) -> str:
    """SHA-256 of nested dicts, lists, tensors and plain values."""
    if isinstance(content, torch.Tensor):
        return hashlib.sha256(str(content.dtype).encode() + content.numpy().tobytes()).hexdigest()
    if isinstance(content, dict):
        content = {str(k): digest(v) for k, v in content.items()}
    elif isinstance(content, list | tuple):
        content = [digest(v) for v in content]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def trained(place: Path) -> dict:
    """The newest checkpoint (without the name of the folder and the time) and the metrics of a folder of a run."""
    state = checkpoint.latest(place)[1]
    del state["config"], state["seconds"]
    return {"metrics": lines(place)} | {name: digest(value) for name, value in state.items()}


class Training(Run):
    """The stand-in for an objective: 20 steps, two stages, every step saved."""

    operations = 170

    def command(self, place):
        return "stand-in", place, "--epochs", "1", "--save-every", "1", "--log-every", "1"

    def result(self, place):
        last = {file.name: digest(torch.load(file)) for file in sorted(place.glob("weights-*.pt"))}
        return files(place), trained(place), last


class Pretraining(Run):
    """train.py on eight small proteins, two steps."""

    def command(self, place):
        options = "--size tiny --level residue --batch-size 2 --max-length 20 --valid-fraction 0.2 --num-workers 0"
        where = "--store", self.folder / "pretraining.store", "--out", place
        more = ["--device", "cpu", "--threads", "1", "--max-steps", "2", "--save-every", "1", "--log-every", "1"]
        return "train", "--data", self.data / "train", *where, *options.split(), *more

    def result(self, place):
        return files(place), trained(place), digest(weights.load_encoder_file(place / "encoder.pt")["state"])


class Finetuning(Run):
    """finetune.py on EC, two seeds, two epochs of two steps, every step saved."""

    seconds, operations = 2.5, 90

    def command(self, place):
        options = "--size tiny --batch-size 2 --global-batch-size 4 --epochs 2 --lr 0.003 --num-workers 0 --device cpu"
        more = ["--threads", "1", "--save-every", "1", "--log-every", "1", "--seeds", "3", "4"]
        return "finetune", "--task", "ec", "--data", self.data, "--out", place, *options.split(), *more

    def result(self, place):
        seeds = {seed: trained(place / f"seed-{seed}") for seed in (3, 4)}
        best = [digest(weights.read_weights(place / f"seed-{seed}" / "best.pt", weights.MODEL)) for seed in (3, 4)]
        predicted = [(place / f"seed-{seed}" / "predictions.tsv").read_text() for seed in (3, 4)]
        return files(place), seeds, best, predicted, json.loads((place / "results.json").read_text())["test"]


class Conversion(Run):
    """A folder of structures to a store, four structures to a shard."""

    operations = 20

    def command(self, place):
        return "convert", self.data / "train", f"{place}.store"

    def result(self, place):
        store = Path(f"{place}.store")
        return files(place), {file.name: digest(list(file.read_bytes())) for file in store.glob("*/*")}


class Embedding(Run):
    """`siamdiff embed` on three chains."""

    operations = 3

    def command(self, place):
        where = "--checkpoint", "siamdiff-residue", "--out", f"{place}.npz"
        return "embed", self.data / "valid", *where, "--device", "cpu", "--num-workers", "0"

    def result(self, place):
        with np.load(f"{place}.npz") as arrays:
            return files(place), {name: arrays[name].tobytes() for name in arrays}


RUNS = {
    "training": Training,
    "pre-training": Pretraining,
    "fine-tuning": Finetuning,
    "conversion": Conversion,
    "embedding": Embedding,
}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
