"""The task of a table: a kind of labels, of structures or residues; several columns of numbers at once.

Of several properties there is an output for each, and the target is nan where one was not measured.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from ...downstream import metrics
from ...downstream.metrics import metric
from ...downstream.sample import Sample
from ...downstream.tasks import KINDS, Binary, Classes, Regression, Task
from ...encoders.ops import MLP
from ...files import ConfigError
from ...statistics import Variance


def table_task(
    encoder: nn.Module,
    num_outputs: int | None = None,
    kind: str = "regression",
    residues: bool = False,
    each_chain: bool = False,
    metric: str | None = None,
    linear: bool = False,
    properties: Sequence[str] = (),
    column: str = "",
) -> Task:
    """Values of the user's own (docs/extending.md), of structures, of their residues, or of `each_chain` alone.

    `metric` decides which epoch is the best, by default the first of the kind. A `linear` head is one layer. With
    several `properties` there is an output for each. `column` is the title of the values, for a report. Raises
    ConfigError for a metric of another kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"labels of the kind {kind!r:.50} are not known here. Do they come from a --plugin?")
    build = of_properties(KINDS[kind]) if properties else KINDS[kind]
    if residues:
        build = type(build.__name__, (OfResidues, build), {})
    task = build(encoder, num_outputs)
    if metric and metric not in task.measures:
        raise ConfigError(f"--metric {metric} is not for {kind}, which has {', '.join(task.measures)}")
    decides = metric or task.measures[0]
    task.measures = sorted(task.measures, key=lambda name: name != decides)  # it comes first
    if linear:
        task.head = MLP(encoder.out_dim, task.num_outputs)

    # Enough to call this function again.
    task.options = {"kind": kind, "residues": residues, "each_chain": each_chain}
    task.options |= {"metric": decides, "linear": linear, "column": column}
    if properties:
        task.properties = tuple(properties)
        task.options["properties"] = list(properties)
    return task


class OfResidues(Task):
    """Before a kind of targets: each is of a residue in focus."""

    sees = "residues"

    def represent(self, sample: Sample) -> Tensor:
        protein = self.encoder.builder.select_nodes(sample.protein)
        return self.encoder(protein).residue[sample.focus]


# ---- classes ---------------------------------------------------------------------------------------------------------


@metric("max")
def balanced_accuracy(prediction: np.ndarray, target: np.ndarray) -> float:
    """Mean over the classes that occur of the share that is recognised. prediction (K, C), target (K,)."""
    right = prediction.argmax(1) == target
    return np.mean([right[target == label].mean() for label in np.unique(target)])


@metric("max")
def macro_f1(prediction: np.ndarray, target: np.ndarray) -> float:
    """Mean of F1 over the classes that occur or were chosen; 0 without a hit. prediction (K, C), target (K,)."""
    chosen = prediction.argmax(1)
    labels = np.union1d(chosen, target)[:, None]
    hits = ((chosen == labels) & (target == labels)).sum(1)
    both = (chosen == labels).sum(1) + (target == labels).sum(1)
    return np.mean(2 * hits / both)


OWN = {"balanced_accuracy": balanced_accuracy, "macro_f1": macro_f1}


class TableClasses(Classes):
    """One of several classes. Of two, the rarer in training is "yes" for AUROC and AUPRC."""

    measures = ("accuracy", "balanced_accuracy", "macro_f1")

    def __init__(self, encoder: nn.Module, num_outputs: int | None = None):
        super().__init__(encoder, num_outputs)
        if num_outputs == 2:
            self.measures = ("auroc", "auprc", *self.measures)

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        rarer = self.rarer(target)
        found = {}
        for name in self.measures:
            of_yes = name in ("auroc", "auprc")
            compute = OWN.get(name) or getattr(metrics, name)
            found[name] = compute(prediction[:, rarer], target == rarer) if of_yes else compute(prediction, target)
        return found

    def rarer(self, target: np.ndarray) -> int:
        """The rarest class in training, if that is known; else in this target."""
        baseline = self.known.get("answer") or {}
        shares = baseline.get("mean") or np.bincount(target.astype(int), minlength=self.num_outputs)
        return int(np.argmin(shares))


if KINDS["classes"] is Classes:  # a plugin may have its own
    KINDS["classes"] = TableClasses


# ---- several properties ----------------------------------------------------------------------------------------------


class Properties(Task):
    """Before a kind of targets: each output is a property of its own, and the target is nan if it was not measured."""

    properties: Sequence[str] = ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return over_measured(super().loss(output, target.nan_to_num(0.0)), target)

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        """The metrics of each property, and for every metric their mean: of errors in standard deviations."""
        values = {}
        there = ~np.isnan(target)
        for name in self.measures:
            compute = getattr(metrics, name)
            found = np.array([compute(prediction[rows, i], target[rows, i]) for i, rows in enumerate(there.T)])
            in_units = isinstance(self, Regression) and metrics.BEST[name] == "min"
            comparable = found / self.std.cpu().numpy() if in_units else found
            finite = comparable[np.isfinite(comparable)]
            values[name] = float(finite.mean()) if len(finite) else np.nan
            values |= {f"{name}:{of}": value for of, value in zip(self.properties, found.tolist())}
        return values

    def direction(self, measure: str) -> str | None:
        name, _, of = measure.partition(":")  # of a property it is NAME:PROPERTY
        if self.best and not of and name == self.measures[0]:
            return self.best
        return metrics.BEST.get(name)


class NumbersOfProperties(Properties):
    """Several numbers: target (B, C)."""

    def baseline_loss(self, target: Tensor) -> Variance:
        standardised = self.standardise(target)
        return Variance.of(standardised[~standardised.isnan()])


class AnswersOfProperties(Properties):
    """Several times yes or no: target (B, C) of 0 and 1."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(output, target.nan_to_num(0.0), reduction="none")
        return over_measured(losses, target)


def of_properties(kind: type[Task]) -> type[Task]:
    """This kind of targets, or a plugin's, for several properties. Raises ConfigError if it is one of classes."""
    for base, several in {Regression: NumbersOfProperties, Binary: AnswersOfProperties}.items():
        if issubclass(kind, base):
            return type(kind.__name__, (several, kind), {})
    raise ConfigError(f"several properties must be numbers, which {kind.__name__} are not")


def over_measured(losses: Tensor, target: Tensor) -> Tensor:
    """Losses (B,) of samples with several properties (B, C); their mean is that over all values that were measured."""
    there = ~target.isnan()
    return (losses * there).sum(-1) * (len(target) / there.sum())
