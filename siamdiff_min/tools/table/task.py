"""The task of a table: a kind of labels, of structures or of their residues."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from ...downstream import metrics
from ...downstream.metrics import metric
from ...downstream.sample import Sample
from ...downstream.tasks import KINDS, Classes, Task
from ...encoders.ops import MLP
from ...files import ConfigError


def table_task(
    encoder: nn.Module,
    num_outputs: int | None = None,
    kind: str = "regression",
    residues: bool = False,
    metric: str | None = None,
    linear: bool = False,
    column: str = "",
) -> Task:
    """Values of the user's own (docs/extending.md), of structures or of their `residues`.

    `metric` decides which epoch is the best, by default the first of the kind. A `linear` head is one layer. `column`
    is the title of the values, for a report. Raises ConfigError for a metric of another kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"labels of the kind {kind!r:.50} are not known here. Do they come from a --plugin?")
    build = KINDS[kind]
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
    task.options = {"kind": kind, "residues": residues, "metric": decides, "linear": linear, "column": column}
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


class TableClasses(Classes):
    """One of several classes. Of two, the rarer in training is "yes" for AUROC and AUPRC."""

    measures = ("accuracy", "balanced_accuracy")

    def __init__(self, encoder: nn.Module, num_outputs: int | None = None):
        super().__init__(encoder, num_outputs)
        if num_outputs == 2:
            self.measures = ("auroc", "auprc", *self.measures)

    def metrics(self, prediction: np.ndarray, target: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
        found = {
            "accuracy": metrics.accuracy(prediction, target),
            "balanced_accuracy": balanced_accuracy(prediction, target),
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
