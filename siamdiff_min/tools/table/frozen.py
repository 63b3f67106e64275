"""A frozen encoder: its output as features, and a linear head in closed form."""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ...downstream.sample import Sample
from ...downstream.tasks import Task
from ...files import ConfigError
from ...training import checkpoint, results
from ...training.batch_norm import calibrate
from ...training.ranks import Ranks
from ..evidence import permutation
from . import composition, linear
from .folds import baseline_of_folds, permuted_folds, predictions_of
from .results import TablePredictions
from .task import properties_of


class Embedded(Dataset):
    """Samples whose `protein` is the input of the head (structures * B, d). The processes that load them make it."""

    def __init__(self, samples: Dataset, task: Task, amp: str):
        self.samples = samples
        self.task = task
        self.amp = amp

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        return self.samples[key]

    def collate(self, items: list[Sample]) -> tuple[Sample, list[str]]:
        sample, names = self.samples.collate(items)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.amp == "bf16"):
            return replace(sample, protein=self.task.represent(sample)), names


def embed(config: Namespace, task: Task, dataset: Dataset, ranks: Ranks) -> results.Predictions:
    """The input of the head for each sample, as its prediction. On a CPU samples go alone, as in `siamdiff embed`."""
    if ranks.device.type != "cpu":
        return results.predict(task, dataset, config, ranks, task.represent)
    alone = Namespace(**{**vars(config), "batch_size": 1})
    return results.predict(task, Embedded(dataset, task, config.amp), alone, ranks, attrgetter("protein"))


def fit_head(
    config: Namespace, task: Task, datasets: Mapping, classes: Sequence[str], ranks: Ranks
) -> TablePredictions:
    """Embed the structures with the frozen encoder, then fit the linear head in closed form; write OUT/best.pt.

    Returns predictions for the test split, with those of the same head of length and composition. Without --folds the
    head is that of the two other splits. With --folds it is that of all structures, but each structure is predicted by
    a head of those in other folds, never by one that has seen its sequence. Raises ConfigError if there are too few
    structures, or nothing to tell apart.
    """
    if checkpoint.checkpoints(Path(config.out)):
        raise ConfigError(f"{config.out} holds checkpoints of another run: choose another --out")
    learned = [datasets["test"]] if config.folds else [datasets["train"], datasets["valid"]]
    if not config.init_from and not config.features:
        calibrate(config, task, learned[0], ranks)

    # Features, targets in the units of the head, and the sequence of every row.
    rows = joined([embed(config, task, dataset, ranks) for dataset in learned], learned)
    floor_rows = joined([of_floor(config, task, dataset, ranks) for dataset in learned], learned)
    groups = np.array(rows.units)
    y = task.standardise(torch.from_numpy(rows.target).to(ranks.device)).cpu().numpy()
    check_different(task, rows.target)

    # The head of all rows, for later.
    fit = partial(linear.fit, kind=task.options["kind"], num_classes=len(classes))
    try:
        head = fit(rows.prediction, y, groups)
        floor = fit(floor_rows.prediction, y, groups)
        if config.folds:
            fold = linear.folds_of(y, groups, config.folds)
    except ValueError as error:
        raise ConfigError(f"--freeze: {error}") from error
    layer = task.head.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
    penalties = ", ".join(f"{penalty:g}" for penalty in sorted({*head.penalty}))
    ranks.say(f"head        linear, of {len(y)} samples, penalty {penalties}")
    if ranks.rank == 0:
        results.write_model(config, task, classes, 0.0, {}, **kept(config))
    ranks.all_gather([])  # the others wait until it is there

    # One split: the heads are applied to others.
    if not config.folds:
        test = datasets["test"]
        found = joined([results.predict(task, test, config, ranks)], [test])
        features = of_floor(config, task, test, ranks).prediction
        return replace(found, floor=replace(found, prediction=predictions_of(task, floor(features))))

    # Folds: outputs for all rows by heads of other folds; and the same for labels that mean nothing.
    found = []
    for features in (rows.prediction, floor_rows.prediction):
        outputs = linear.out_of_fold(fit, features, y, groups, config.folds)
        found.append(
            replace(
                rows,
                prediction=predictions_of(task, outputs),
                fold=fold,
                own_baseline=baseline_of_folds(task, rows.target, fold),
                permuted=permuted_folds(task, features, y, groups, config.folds, len(classes)),
            )
        )
    of_encoder, of_length = found
    return replace(of_encoder, floor=of_length)


def kept(config: Namespace) -> dict:
    """What the file of a model of a table has beside that of the paper's tasks."""
    content = {"folds": config.folds}
    if config.features:
        content["features"] = config.features
    return content


def joined(parts: Sequence[results.Predictions], datasets: Sequence[Dataset]) -> TablePredictions:
    """The rows of some splits together; rows of one sequence are a unit."""
    sequence = {}
    for dataset in datasets:
        sequence |= zip(dataset.store.names, dataset.store.sequences)
    groups = [name for part in parts for name in part.groups]
    return TablePredictions(
        names=[name for part in parts for name in part.names],
        groups=groups,
        target=np.concatenate([part.target for part in parts]),
        prediction=np.concatenate([part.prediction for part in parts]),
        units=[sequence[name] for name in groups],
    )


def of_floor(config: Namespace, task: Task, dataset: Dataset, ranks: Ranks) -> results.Predictions:
    """Length and composition of every sample, as its prediction."""
    features = partial(composition.of_sample, residues=task.sees == "residues")
    return results.predict(task, dataset, config, ranks, features)


def small_folds(size: int, folds: int, kind: str) -> list[str]:
    """A warning if some of the folds of `size` different structures hold fewer than 4; else nothing."""
    if not 0 < size < 4 * folds:
        return []

    # A head that says little but its mean says less for a fold of high values. Of 20 random values rho is -.55 with 20
    # folds, -.2 with 10, -.07 with 5.
    low = {"regression": "Spearman's rho and Pearson's r", "binary": "values of AUROC"}.get(kind, "scores")

    # For a verdict labels are dealt out within folds: too few ways to do so, and none is rare.
    ways = math.prod(math.factorial((size + k) // folds) for k in range(folds))
    unsaid = ", and nothing can be called better than the baseline" if ways < 1 / permutation.LEVEL else ""
    return [
        f"{folds} folds of {size} different structures: with fewer than 4 in a fold {low} come out too low{unsaid}. "
        f"Take --folds {max(2, size // 4)}. Copies and families count once"
    ]


def check_different(task: Task, target: np.ndarray) -> None:
    """Raise ConfigError if all values are the same, of several properties those of one."""
    columns = target.reshape(len(target), -1).T
    for name, values in zip(properties_of(task) or [""] * len(columns), columns):
        known = np.unique(values[~np.isnan(values)])
        if len(known) == 1 and task.options["kind"] != "labels":
            what = f"all values of {name}" if name else "all values"
            help = ". Label the others 0, for instance the residues that do not bind" if known[0] == 1 else ""
            raise ConfigError(f"{what} are {known[0]:g}: there is nothing to tell apart{help}")
