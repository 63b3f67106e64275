"""The five downstream tasks (Sec. 5.1, App. D): a head on an encoder, its loss, and what the paper's tables report.

A task is an objective on labelled samples, `(Sample, generator) -> (loss, logs)`, so the loop that pre-trains also
fine-tunes. The head is an MLP of three layers, as wide as the output of the encoder. `TASKS` is the choice of `--task`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.samples import Sample
from ..encoders.gearnet import Encoding
from ..encoders.ops import MLP, segment_sum
from ..files import ConfigError
from ..protein.constants import CA, NUM_RESIDUE_TYPES, RESIDUES
from ..protein.protein import Protein
from . import metrics


class Task(nn.Module):
    """What all tasks share. Every output is a binary problem, unless the task has another loss.

    `num_outputs` numbers are predicted for every sample; by default those of the paper's task.
    """

    num_outputs = 1
    structures = 1  # per sample; the representations of two are concatenated
    only_ca: bool | None = None  # the head sees CA of the residues in focus, all their atoms, or (None) the whole
    metric: str  # of `downstream.metrics`; it decides which epoch is the best
    also: Sequence[str] = ()  # metrics that are reported too
    best = "max"  # more of the metric is better, or less: "min"
    options: Mapping = {}  # what a model file keeps beside the labels, to build the task again

    def __init__(self, encoder: nn.Module, num_outputs: int | None = None):
        super().__init__()
        self.encoder, self.frozen = encoder, False
        d = encoder.out_dim
        self.head = MLP(self.structures * d, d, d, num_outputs or self.num_outputs)

    def forward(self, sample: Sample, generator: torch.Generator | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean loss of a batch, and what to log. Nothing is drawn: only objectives of pre-training need a generator."""
        loss = self.loss(self.predict(sample), sample.target).mean()
        return loss, {"loss_constant": self.constant(sample.target)}

    def predict(self, sample: Sample) -> Tensor:
        """Output of the head (B, num_outputs) in float32: logits, or standardised values."""
        protein = self.encoder.builder.view(sample.protein)
        seen = self.represent(sample, protein, self.encoder(protein))  # (structures * B, d)
        return self.head(seen.view(len(sample.names), -1)).float()

    def fit(self, targets: np.ndarray, size: str) -> None:
        """Prepare for the targets of the training split; `size` is that of the encoder. By default nothing."""

    def represent(self, sample: Sample, protein: Protein, encoding: Encoding) -> Tensor:
        """What the head sees of every structure (structures * B, d)."""
        return encoding.graph if self.only_ca is None else focused(sample, protein, encoding, self.only_ca)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss of every sample (B,)."""
        return F.binary_cross_entropy_with_logits(output, target.view(output.shape), reduction="none").mean(-1)

    def constant(self, target: Tensor) -> Tensor:
        """Sums over a batch that tell `means` the loss of the best constant prediction: counts of 0 and 1 (C, 2)."""
        ones = target.view(len(target), -1).sum(0)
        return torch.stack([len(target) - ones, ones], dim=-1)

    def score(self, output: Tensor) -> Tensor:
        """What users see of the output of the head: probabilities, or values in the units of the target."""
        return output.sigmoid().squeeze(-1)

    @classmethod
    def metrics(cls, score: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        """What the paper reports, over a whole split."""
        return {name: getattr(metrics, name)(score, target) for name in (cls.metric, *cls.also)}

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        """Names of the numbers that are predicted, where they are several; `labels` are those of the data set."""
        return labels

    def freeze(self) -> None:
        """Train the head only. The encoder stays in evaluation mode, its batch norm too."""
        self.frozen = True
        self.encoder.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Task:
        """Training mode, except for a frozen encoder."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self


def focused(sample: Sample, protein: Protein, encoding: Encoding, only_ca: bool) -> Tensor:
    """Mean representation of the atoms, or of the CA, of the residues in focus, for every structure: (graphs, d)."""
    chosen = sample.focus[protein.atom_residue]  # (N,)
    if only_ca:
        chosen = chosen & (protein.atom_name == CA)
    weight = chosen.to(encoding.node.dtype)
    count = segment_sum(weight, protein.atom_graph, protein.num_graphs)
    return segment_sum(encoding.node * weight[:, None], protein.atom_graph, protein.num_graphs) / count[:, None]


class EnzymeCommission(Task):
    """EC: every label is a binary problem on the representation of the protein. Fmax and micro AUPR."""

    metric = "fmax"

    def fit(self, targets: np.ndarray, size: str) -> None:
        """Short runs (the small sizes) begin at the frequencies of the labels (C,), not at one half for each."""
        if size != "paper":
            frequency = torch.from_numpy((targets.sum(0) + 0.5) / (len(targets) + 1))
            with torch.no_grad():
                self.head.layers[-1].bias.copy_(frequency.logit())

    def score(self, output: Tensor) -> Tensor:
        return output.sigmoid()

    @staticmethod
    def metrics(score: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        fmax, threshold = metrics.fmax(score, target)
        return {"fmax": fmax, "auprc": metrics.auprc(score, target), "threshold": threshold}


class InterfacePrediction(Task):
    """PIP: do two residues touch? From the CA of both, each encoded in its own surroundings. AUROC."""

    structures, only_ca, metric = 2, True, "auroc"


class MutationStability(InterfacePrediction):
    """MSP: does a mutation stabilise a complex? From all atoms mutated, before and after. AUROC and AUPRC."""

    only_ca, also = False, ("auprc",)


class ResidueIdentity(Task):
    """RES: which amino acid fits into these surroundings? From the CA of the residue that is hidden. Accuracy."""

    num_outputs, only_ca, metric = NUM_RESIDUE_TYPES, True, "accuracy"

    def columns(self, labels: Sequence[str]) -> Sequence[str]:
        return RESIDUES

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none")

    def constant(self, target: Tensor) -> Tensor:
        return F.one_hot(target, self.head.layers[-1].out_features).sum(0)[None]

    def score(self, output: Tensor) -> Tensor:
        return output.softmax(-1)


class StructureRanking(Task):
    """PSR: the GDT_TS of a model. Global Spearman's rho, and its mean over the proteins that the models are of."""

    metric = "global_spearman"

    def __init__(self, encoder: nn.Module, num_outputs: int | None = None):
        super().__init__(encoder, num_outputs)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def fit(self, targets: np.ndarray, size: str) -> None:
        """Standardise by these GDT_TS, those of the training split."""
        self.mean.fill_(float(targets.mean()))
        self.std.fill_(max(float(targets.std()), 1e-6))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.squeeze(-1) - (target - self.mean) / self.std).square()

    def constant(self, target: Tensor) -> Tensor:
        x = (target - self.mean) / self.std
        return torch.stack([x.sum(), torch.ones_like(x).sum(), x.square().sum()])

    def score(self, output: Tensor) -> Tensor:
        return output.squeeze(-1) * self.std + self.mean

    @staticmethod
    def metrics(score: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        mean = metrics.mean_spearman(score, target, groups)
        return {"global_spearman": metrics.spearman(score, target), "mean_spearman": mean}


LIKE = {  # kind of label -> the task of the paper with such a target
    "regression": StructureRanking,
    "binary": InterfacePrediction,
    "classes": ResidueIdentity,
    "labels": EnzymeCommission,
}
METRICS = {  # the first is the default
    "regression": ("spearman", "pearson", "rmse", "mae"),
    "binary": ("auroc", "auprc", "accuracy"),
    "classes": ("accuracy",),
    "labels": ("fmax", "auprc"),
}


class TableTask(StructureRanking):
    """Labels of the user's own (docs/extending.md): a number, 0 or 1, one name or several, as the task in `LIKE` has.

    `kind` is a key of `LIKE`. With `residues` the labels belong to residues, not to the whole structure. `metric` is
    the one that decides, by default the first of `METRICS`. Raises ConfigError if it is none of this kind of label.
    """

    def __init__(self, encoder, num_outputs=None, kind: str = "regression", residues: bool = False, metric=None):
        super().__init__(encoder, num_outputs)
        self.metric = metric or METRICS[kind][0]
        if self.metric not in METRICS[kind]:
            raise ConfigError(f"--metric {metric} is not for {kind}, which has {', '.join(METRICS[kind])}")
        self.kind, self.residues, self.best = kind, residues, "min" if metric in ("rmse", "mae") else "max"
        self.options = {"kind": kind, "residues": residues, "metric": self.metric}

    def fit(self, targets: np.ndarray, size: str) -> None:
        LIKE[self.kind].fit(self, targets, size)

    def represent(self, sample: Sample, protein: Protein, encoding: Encoding) -> Tensor:
        return encoding.residue[sample.focus] if self.residues else encoding.graph

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return LIKE[self.kind].loss(self, output, target)

    def constant(self, target: Tensor) -> Tensor:
        return LIKE[self.kind].constant(self, target)

    def score(self, output: Tensor) -> Tensor:
        return LIKE[self.kind].score(self, output)

    def metrics(self, score: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        if self.kind == "labels":
            return EnzymeCommission.metrics(score, target, groups)
        both = np.stack([1 - score, score], 1) if self.kind == "binary" else score
        scores = {name: both if name == "accuracy" else score for name in METRICS[self.kind]}
        return {name: getattr(metrics, name)(values, target) for name, values in scores.items()}


TASKS = {
    "ec": EnzymeCommission,
    "pip": InterfacePrediction,
    "msp": MutationStability,
    "res": ResidueIdentity,
    "psr": StructureRanking,
    "table": TableTask,
}
