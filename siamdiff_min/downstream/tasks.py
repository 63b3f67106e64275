"""Downstream tasks (Sec. 5.1, App. D): a head on an encoder, and its loss.

A task is an objective on labelled samples, `(Sample, generator) -> (loss, logs)`, so the loop that pre-trains also
fine-tunes. There are four kinds of targets (`KINDS`), each with its loss; a task says what the head sees, and what is
measured. `TASKS` is the choice of `--task`. Labels of a user's own are tools/table/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoders.encoder import Encoder
from ..encoders.ops import MLP, segment_sum
from ..files import ConfigError
from ..protein.constants import CA, NUM_RESIDUE_TYPES, RESIDUES
from ..statistics import Entropy, Statistic, Variance
from . import metrics
from .sample import Sample


class Task(nn.Module):
    """The base of all tasks: a head of three layers, as wide as the output of the encoder."""

    predicts = ""  # in words, for the title of a report
    num_outputs = 1  # of the paper's task
    names: Sequence[str] = ()  # of the outputs, if the data set does not have them
    structures = 1  # per sample; the representations of two are concatenated
    # What the head reads: the whole "structure"; or the mean over the "CA" or "atoms" of the residues in focus.
    sees = "structure"
    measures: Sequence[str]  # functions of `downstream.metrics`; the first decides which epoch is the best
    best: str | None = None  # "max" or "min", if the first measure is your own; without it the loss decides
    loss: Callable[[Tensor, Tensor], Tensor]  # (output of the head, target) -> loss of every sample (B,)
    baseline_loss: Callable[[Tensor], Statistic]  # (target) -> the loss of the best constant prediction
    to_prediction: Callable[[Tensor], Tensor]  # (output) -> probabilities, or values in the units of the target
    options: Mapping = {}  # what a model file keeps beside the classes, to build the task again
    known: Mapping = {}  # about the data: the baseline ("answer"); samples and structures of all "splits"; "notes"

    def __init__(self, encoder: Encoder, num_outputs: int | None = None):
        super().__init__()
        self.encoder = encoder
        width = encoder.out_dim
        self.num_outputs = num_outputs or self.num_outputs
        self.head = MLP(self.structures * width, width, width, self.num_outputs)

    def forward(self, sample: Sample, generator: torch.Generator | None = None) -> tuple[Tensor, dict[str, Statistic]]:
        """Mean loss of a batch, and what to log. Nothing is drawn: only objectives of pre-training need a generator."""
        loss = self.loss(self.predict(sample), sample.target).mean()
        return loss, {"loss_constant": self.baseline_loss(sample.target)}

    def predict(self, sample: Sample) -> Tensor:
        """Output of the head (B, num_outputs) in float32: logits, or standardised values."""
        seen = self.represent(sample)  # (structures * B, d)
        return self.head(seen.view(len(sample.names), -1)).float()

    def represent(self, sample: Sample) -> Tensor:
        """The input of the head for every structure: (structures * B, d)."""
        protein = self.encoder.builder.select_nodes(sample.protein)
        encoding = self.encoder(protein)
        if self.sees == "structure":
            return encoding.protein
        chosen = sample.focus[protein.atom_residue]  # (N,)
        if self.sees == "CA":
            chosen = chosen & (protein.atom_name == CA)
        weight = chosen.to(encoding.node.dtype)
        count = segment_sum(weight, protein.atom_protein, protein.num_proteins)
        total = segment_sum(encoding.node * weight[:, None], protein.atom_protein, protein.num_proteins)
        return total / count[:, None]

    def fit(self, targets: np.ndarray, size: str) -> None:
        """Prepare for the targets of the training split; `size` is the size of the encoder. By default nothing."""

    def standardise(self, target: Tensor) -> Tensor:
        """The target in the units of the outputs."""
        return target

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        """The metrics over a whole split."""
        for name in self.measures:
            if name not in metrics.BEST:
                raise ConfigError(f"nobody says which values of {name} are better: it takes @metric('max') or ('min')")
        return {name: getattr(metrics, name)(prediction, target) for name in self.measures}

    def baseline(self, targets: np.ndarray) -> dict:
        """The best prediction that looks at nothing, from the targets of the training split (K, ...): their mean."""
        return {"mean": np.nanmean(targets, 0).tolist()}

    def baseline_metrics(self, baseline: Mapping, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        """The metrics of this baseline: absolute errors of its median, all others of its mean."""
        found = {}
        for which in ("mean", "median"):
            if which not in baseline:
                continue
            values = np.array(baseline[which])
            prediction = np.broadcast_to(values, (len(target), *values.shape))
            for name, value in self.metrics(prediction, target, groups).items():
                if which == "mean" or name.startswith("mae"):
                    found[name] = value
        return found

    @property
    def decides(self) -> tuple[str, str]:
        """The measure that decides which epoch is the best, and "max" or "min"."""
        best = self.direction(self.measures[0])
        return (self.measures[0], best) if best else ("loss", "min")

    def direction(self, measure: str) -> str | None:
        """ "max" or "min", which values of a measure are better; None if nobody says."""
        if self.best and measure == self.measures[0]:
            return self.best
        return metrics.BEST.get(measure)

    def train(self, mode: bool = True) -> Task:
        """Training mode. A frozen encoder stays in evaluation mode, and so does its batch norm."""
        super().train(mode)
        self.encoder.train(mode and any(p.requires_grad for p in self.encoder.parameters()))
        return self


class Binary(Task):
    """Yes or no: target (B,) of 0 and 1."""

    measures: Sequence[str] = ("auroc", "auprc", "accuracy")

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(output, target.view(output.shape), reduction="none").mean(-1)

    def baseline_loss(self, target: Tensor) -> Entropy:
        target = target.view(len(target), -1)
        counts = torch.stack([(target == 0).sum(0), (target == 1).sum(0)], dim=-1)
        return Entropy(counts.to(target.dtype))

    def to_prediction(self, output: Tensor) -> Tensor:
        return output.double().sigmoid().squeeze(-1)


class MultiLabel(Binary):
    """Several classes at once, each a binary problem: target (B, C) of 0 and 1."""

    measures = ("fmax", "auprc")

    def fit(self, targets: np.ndarray, size: str) -> None:
        """Short runs (the small sizes) begin at the frequencies of the classes (C,), not at one half for each."""
        if size != "paper":
            frequency = torch.from_numpy((targets.sum(0) + 0.5) / (len(targets) + 1))
            with torch.no_grad():
                self.head.layers[-1].bias.copy_(frequency.logit())

    def to_prediction(self, output: Tensor) -> Tensor:
        return output.double().sigmoid()


class Classes(Task):
    """One of several classes: target (B,) long."""

    measures = ("accuracy",)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none")

    def baseline_loss(self, target: Tensor) -> Entropy:
        return Entropy.of(target, self.num_outputs)

    def to_prediction(self, output: Tensor) -> Tensor:
        return output.double().softmax(-1)

    def baseline(self, targets: np.ndarray) -> dict:
        """The shares of the classes; the commonest is chosen."""
        count = np.bincount(targets, minlength=self.num_outputs)
        return {"mean": (count / len(targets)).tolist()}


class Regression(Task):
    """A number: target (B,), standardised by the mean and std of the training split."""

    measures: Sequence[str] = ("rmse", "mae", "spearman", "pearson")
    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, num_outputs: int | None = None):
        super().__init__(encoder, num_outputs)
        self.register_buffer("mean", torch.zeros(num_outputs or ()))
        self.register_buffer("std", torch.ones(num_outputs or ()))

    def fit(self, targets: np.ndarray, size: str) -> None:
        mean = np.nanmean(targets, 0)
        std = np.nanstd(targets, 0)
        self.mean.copy_(torch.as_tensor(mean))
        self.std.copy_(torch.as_tensor(np.where(std > 1e-6 * np.abs(mean), std, 1.0)))  # 1.0: all values are the same

    def standardise(self, target: Tensor) -> Tensor:
        return (target - self.mean) / self.std

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.view(target.shape) - self.standardise(target)).square()

    def baseline_loss(self, target: Tensor) -> Variance:
        return Variance.of(self.standardise(target))

    def to_prediction(self, output: Tensor) -> Tensor:
        return output.squeeze(-1) * self.std + self.mean

    def baseline(self, targets: np.ndarray) -> dict:
        """The mean; the mean absolute error of the median is smaller."""
        return {**super().baseline(targets), "median": np.nanmedian(targets, 0).tolist()}


KINDS = {"regression": Regression, "binary": Binary, "classes": Classes, "labels": MultiLabel}


class EnzymeCommission(MultiLabel):
    """EC: the enzyme numbers of a protein. Fmax and micro AUPR."""

    predicts = "enzyme numbers (EC) of a protein"


class InterfacePrediction(Binary):
    """PIP: do two residues touch? From the CA of both, each encoded in its own surroundings. AUROC."""

    predicts = "contact of two residues (PIP)"
    structures = 2
    sees = "CA"
    measures = ("auroc",)


class MutationStability(Binary):
    """MSP: does a mutation stabilise a complex? From all atoms mutated, before and after. AUROC and AUPRC."""

    predicts = "stabilising mutations (MSP)"
    structures = 2
    sees = "atoms"
    measures = ("auroc", "auprc")


class ResidueIdentity(Classes):
    """RES: which amino acid fits into these surroundings? From the CA of the residue that is hidden. Accuracy."""

    predicts = "residue type from its surroundings (RES)"
    measures = ("accuracy",)
    num_outputs = NUM_RESIDUE_TYPES
    names = RESIDUES
    sees = "CA"


class StructureRanking(Regression):
    """PSR: the GDT_TS of a model. Global Spearman's rho, and its mean over the proteins that the models are of."""

    predicts = "GDT_TS of a model (PSR)"
    measures = ("global_spearman", "mean_spearman")

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        mean = metrics.mean_spearman(prediction, target, groups)
        return {"global_spearman": metrics.spearman(prediction, target), "mean_spearman": mean}


TASKS: dict[str, Callable[..., Task]] = {
    "ec": EnzymeCommission,
    "pip": InterfacePrediction,
    "msp": MutationStability,
    "res": ResidueIdentity,
    "psr": StructureRanking,
}
