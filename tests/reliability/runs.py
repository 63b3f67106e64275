"""The things that are killed, interrupted and starved of disk space, and what is compared of their results."""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from processes import finish, start
from standin import lines

from siamdiff_min.data import ec
from siamdiff_min.data.store import open_store
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import MODEL, load_encoder_file, read_weights, save_encoder_file
from siamdiff_min.training import checkpoint

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
    """The newest checkpoint (but for `config`, which names the folder) and the metrics of a folder of a run."""
    state = checkpoint.latest(place)[1]
    del state["config"]
    return {"metrics": lines(place)} | {name: digest(value) for name, value in state.items()}


class Training(Run):
    """The stand-in for an objective: 20 steps, two stages, every step saved."""

    operations = 170

    def command(self, place):
        return "stand-in", place, "--epochs", "1", "--save-every", "1", "--log-every", "1"

    def result(self, place):
        weights = {file.name: digest(torch.load(file)) for file in sorted(place.glob("weights-*.pt"))}
        return files(place), trained(place), weights


class Pretraining(Run):
    """train.py on eight small proteins, two steps."""

    def command(self, place):
        options = "--size tiny --level residue --batch-size 2 --max-length 20 --valid-fraction 0.2 --num-workers 0"
        where = "--store", self.folder / "pretraining.store", "--out", place
        more = ["--device", "cpu", "--threads", "1", "--max-steps", "2", "--save-every", "1", "--log-every", "1"]
        return "train", "--data", self.data / "train", *where, *options.split(), *more

    def result(self, place):
        return files(place), trained(place), digest(load_encoder_file(place / "encoder.pt")["state"])


class Finetuning(Run):
    """finetune.py on EC, two seeds, two epochs of two steps, every step saved."""

    seconds, operations = 2.5, 90

    def command(self, place):
        options = "--size tiny --batch-size 2 --global-batch-size 4 --epochs 2 --lr 0.003 --num-workers 0 --device cpu"
        more = ["--threads", "1", "--save-every", "1", "--log-every", "1", "--seeds", "3", "4"]
        return "finetune", "--task", "ec", "--data", self.data, "--out", place, *options.split(), *more

    def result(self, place):
        seeds = {seed: trained(place / f"seed-{seed}") for seed in (3, 4)}
        best = [digest(read_weights(place / f"seed-{seed}" / "best.pt", MODEL)) for seed in (3, 4)]
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


class LabelledConversion(Conversion):
    """The training split of EC to a store."""

    def command(self, place):
        return "convert", self.data, f"{place}.store"


class Reconversion(Conversion):
    """There is a store of other data already."""

    def command(self, place):
        store = Path(f"{place}.store")
        if not store.exists():
            shutil.copytree(open_store(ec.ec_set(self.data).valid).path.parent, store)
        return super().command(place)


class Embedding(Run):
    """`python -m siamdiff_min.embed` on three chains."""

    operations = 3

    def command(self, place):
        weights = self.folder / "encoder.pt"
        if not weights.exists():
            torch.manual_seed(0)
            encoder = ENCODERS["gearnet"]("residue", "tiny", "paper")
            save_encoder_file(weights, encoder, "gearnet", "residue", "tiny", "paper")
        options = "--checkpoint", weights, "--out", f"{place}.npz", "--device", "cpu", "--num-workers", "0"
        return "embed", self.data / "valid", *options

    def result(self, place):
        with np.load(f"{place}.npz") as arrays:
            return files(place), {name: arrays[name].tolist() for name in arrays}


RUNS = {
    "training": Training,
    "pre-training": Pretraining,
    "fine-tuning": Finetuning,
    "conversion": Conversion,
    "conversion with labels": LabelledConversion,
    "conversion anew": Reconversion,
    "embedding": Embedding,
}
