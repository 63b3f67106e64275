"""The task of a table: a kind of labels, of structures or of their residues; several columns of numbers at once.

Of several properties there is an output for each, and the target is nan where one was not measured.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from ...downstream import metrics
from ...downstream.metrics import metric
from ...downstream.sample import Sample
from ...downstream.tasks import KINDS, Classes, Regression, Task
from ...encoders.ops import MLP
from ...files import ConfigError
from ...statistics import Statistic, Variance


def table_task(
    encoder: nn.Module,
    num_outputs: int | None = None,
    kind: str = "regression",
    residues: bool = False,
    each_chain: bool = False,
    metric: str | None = None,
    linear: bool = False,
    column: str = "",
    properties: Sequence[str] = (),
) -> Task:
    """Values of the user's own (docs/extending.md), of structures, of `each_chain` alone, or of `residues`.

    `metric` decides which epoch is the best, by default the first of the kind. A `linear` head is one layer. `column`
    is the title of the values, for a report. With several `properties`, of numbers, there is an output for each. Raises
    ConfigError for a metric of another kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"labels of the kind {kind!r:.50} are not known here. Do they come from a --plugin?")
    build = KINDS[kind]
    if properties:
        build = type(build.__name__, (Properties, build), {"properties": tuple(properties)})
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
    task.options = {"kind": kind, "residues": residues, "each_chain": each_chain, "properties": [*properties]}
    task.options |= {"metric": decides, "linear": linear, "column": column}
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


class TableClasses(Classes):
    """One of several classes. Of two, the rarer in training is "yes" for AUROC and AUPRC."""

    measures = ("accuracy", "balanced_accuracy", "macro_f1")

    def __init__(self, encoder: nn.Module, num_outputs: int | None = None):
        super().__init__(encoder, num_outputs)
        if num_outputs == 2:
            self.measures = ("auroc", "auprc", *self.measures)

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        found = {
            "accuracy": metrics.accuracy(prediction, target),
            "balanced_accuracy": balanced_accuracy(prediction, target),
            "macro_f1": macro_f1(prediction, target),
        }
        if self.num_outputs == 2:
            rarer = self.rarer(target)
            score, yes = prediction[:, rarer], target == rarer
            found |= {"auroc": metrics.auroc(score, yes), "auprc": metrics.auprc(score, yes)}
        return {name: found[name] for name in self.measures}

    def rarer(self, target: np.ndarray) -> int:
        """The rarest class in training, if that is known; else in this target."""
        baseline = self.known.get("answer") or {}
        shares = baseline.get("mean") or np.bincount(target.astype(int), minlength=self.num_outputs)
        return int(np.argmin(shares))


if KINDS["classes"] is Classes:  # a plugin may have its own
    KINDS["classes"] = TableClasses


class Properties(Task):
    """Before numbers, or yes and no: each output is a property of its own, nan in the target (B, C) a gap."""

    properties: Sequence[str] = ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Losses (B,) of samples; their mean is that over all values that were measured."""
        there = ~target.isnan()
        losses = super().loss(output[..., None], target.nan_to_num(0.0))  # (B, C), as one output is asked of each
        return (losses * there).sum(-1) * (len(target) / there.sum())

    def baseline_loss(self, target: Tensor) -> Statistic:
        if not isinstance(self, Regression):
            return super().baseline_loss(target)  # a gap is neither yes nor no
        standardised = self.standardise(target)
        return Variance.of(standardised[~standardised.isnan()])

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        """The metrics of each property, and for every metric their mean: of errors in standard deviations."""
        values = {}
        there = ~np.isnan(target)
        for name in self.measures:
            compute = getattr(metrics, name)
            found = np.array([compute(prediction[rows, i], target[rows, i]) for i, rows in enumerate(there.T)])
            comparable = found / self.std.cpu().numpy() if metrics.BEST[name] == "min" else found
            finite = comparable[np.isfinite(comparable)]
            values[name] = float(finite.mean()) if len(finite) else np.nan
            values |= {f"{name}:{of}": value for of, value in zip(self.properties, found.tolist())}
        return values

    def direction(self, measure: str) -> str | None:
        return super().direction(measure.partition(":")[0])  # of a property it is NAME:PROPERTY
