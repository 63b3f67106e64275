"""A tiny objective and dataset for the tests of the engine, and what is compared of two runs.

The objective has what makes the real ones hard to resume: noise from the generator, dropout from the global one,
(optionally) batch norm, a parameter that an ablation leaves without a gradient, and a stage.
"""

import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset

from siamdiff_min.encoders import ATOM_GRAPH
from siamdiff_min.files import StoreError
from siamdiff_min.protein.protein import Protein
from siamdiff_min.statistics import Mean
from siamdiff_min.training import engine, evaluation
from siamdiff_min.training.config import pretrain_options
from siamdiff_min.training.ranks import Ranks, launch, world_size


class Encoder(nn.Module):
    builder = ATOM_GRAPH

    def __init__(self, norm: bool, dropout: float):
        super().__init__()
        self.linear = nn.Linear(3, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def lr_factors(self):
        return {}

    def forward(self, x):
        return self.dropout(F.relu(self.norm(self.linear(x))))


class Objective(nn.Module):
    def __init__(self, norm: bool = True, dropout: float = 0.1, ablation: str = "none", poison: float = 1e6):
        super().__init__()
        self.encoder, self.ablation, self.poison = Encoder(norm, dropout), ablation, poison
        self.structure, self.sequence = nn.Linear(16, 3), nn.Linear(16, 20)
        self.set_stage(1)

    def set_stage(self, stage):
        self.scale = {1: 1.0, 2: 0.1}[stage]

    def forward(self, protein, generator):
        noise = torch.randn(protein.pos.shape, generator=generator, device=protein.pos.device)
        h = self.encoder(protein.pos + self.scale * noise)
        error = (self.structure(h) - noise).square().mean(-1)
        loss, logs = error.mean(), {"structure_loss": Mean.of(error)}
        loss = loss * torch.where(protein.pos.abs().max() > self.poison, torch.nan, 1.0)
        if self.ablation != "no-sequence":
            cross = F.cross_entropy(self.sequence(h), protein.residue_type)
            loss = loss + cross
            logs["sequence_loss"] = Mean.of(cross)
        return loss, logs


class Idle(Objective):
    """It has a layer that the loss does not see."""

    def __init__(self):
        super().__init__()
        self.encoder.idle = nn.Linear(3, 3)


class Dataset(torch.utils.data.Dataset):
    """One residue, one atom per protein; a pure function of (epoch, index). Protein `bad` is far away.

    LOADER=HOW:INDEX in the environment: the process that loads this protein `raises`, is `killed` or `hangs`.
    """

    def __init__(self, num: int, bad: int | None = None, checksum: str = "0123456789abcdef"):
        self.num, self.bad, self.checksum = num, bad, checksum

    def __getitem__(self, key):
        epoch, index = key
        how, _, which = os.environ.get("LOADER", "").partition(":")
        if how and int(which) == index and torch.utils.data.get_worker_info():
            if how == "raises":
                raise StoreError("the store was replaced while it was in use")
            os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        g = torch.Generator().manual_seed(1000 * epoch + index)
        zero = torch.zeros(1, dtype=torch.long)
        pos = torch.randn(1, 3, generator=g) * (1e7 if index == self.bad else 1)
        types = torch.randint(20, (1,), generator=g)
        protein = Protein(pos, zero, zero, zero, types, zero.bool(), zero, zero, zero, zero, zero)
        return protein, f"protein-{index}"

    @staticmethod
    def collate(items):
        return Protein.pack([p for p, _ in items]), [name for _, name in items]


TIMING = {"seconds", "cpu_seconds", "proteins_per_second", "samples_per_second", "peak_memory_mb"}


def configure(out, *argv, world: int = 1):
    """Options for the stand-in: 40 proteins, batches of 4, 2 + 2 epochs; later options win."""
    fixed = f"--out {out} --epochs 2 --batch-size 4 --lr 0.01 --num-workers 0 --log-every 3 --device cpu".split()
    return pretrain_options([*fixed, *map(str, argv)], world=world)


def train(config, objective=None, num=40, bad=None, ranks=None, num_valid=6, **about):
    torch.manual_seed(config.seed)
    objective = objective or Objective(ablation=config.ablation)
    data, indices = Dataset(num + num_valid, bad, **about), list(range(num + num_valid))
    ranks = ranks or Ranks(torch.device("cpu"))

    def validate(epochs):
        return evaluation.evaluate(objective, Subset(data, indices[num:]), config, ranks)

    run = engine.Run(config, objective, Subset(data, indices[:num]), ranks)
    engine.begin(run)
    return objective, engine.train(run, validate)


def main(*argv, num: int = 40, num_valid: int = 6, build=lambda: None) -> int:
    """One process of a run, `OUT [options]`; OUT/weights-RANK.pt are its last weights."""
    config = configure(*argv, world=world_size())
    with launch("cpu") as ranks:
        objective, stopped = train(config, build(), num=num, num_valid=num_valid, ranks=ranks)
        if not stopped:
            torch.save(objective.state_dict(), Path(config.out) / f"weights-{ranks.rank}.pt")
    return 128 + stopped if stopped else 0


def lines(out: Path) -> list[dict]:
    """metrics.jsonl without what the clock says."""
    written = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMING} for line in written]


def assert_equal_weights(a, b) -> None:
    a, b = (x if isinstance(x, dict) else x.state_dict() for x in (a, b))
    assert a.keys() == b.keys()
    assert [k for k in a if not torch.equal(a[k], b[k])] == []
