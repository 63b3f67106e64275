"""A frozen encoder: its output as features, and a linear head in closed form."""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from ...downstream.sample import Sample, pack_samples
from ...downstream.tasks import Task
from ...files import ConfigError
from ...sets.samples import Samples
from ...training import checkpoint, results
from ...training.ranks import Ranks
from ...training.tuning import calibrate
from . import composition, linear
from .folds import baseline_of_folds, folds_of_families, left_by_folds, permuted_folds, predictions_of
from .results import TablePredictions


def embed(config: Namespace, task: Task, dataset: Samples, ranks: Ranks) -> results.Predictions:
    """The input of the head for each sample, as its prediction.

    On a CPU the processes that load samples embed them, each sample alone, as in `siamdiff embed`.
    """
    if ranks.device.type != "cpu":
        return results.predict(task, dataset, config, ranks, task.represent)
    embedding = copy(dataset)
    embedding.collate = partial(embedded, task, config.amp)
    alone = Namespace(**{**vars(config), "batch_size": 1})
    return results.predict(task, embedding, alone, ranks, attrgetter("protein"))


def embedded(task: Task, amp: str, items: list[Sample]) -> tuple[Sample, list[str]]:
    """A batch of samples whose `protein` is the input of the head (structures * B, d), and their names."""
    sample, names = pack_samples(items)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp == "bf16"):
        return replace(sample, protein=task.represent(sample)), names


def fit_head(
    config: Namespace, task: Task, datasets: Mapping, classes: Sequence[str], ranks: Ranks
) -> TablePredictions:
    """Embed the structures with the frozen encoder, then fit the linear head of `task` in closed form.

    Returns predictions for the test split, with those of the same head of length and composition. Without --folds the
    head is that of the two other splits. With --folds it is that of all structures, but each structure is predicted by
    a head of those in other folds, never by one that has seen it or a relative. Raises ConfigError if there are too few
    structures, or nothing to tell apart.
    """
    if checkpoint.checkpoints(Path(config.out)):
        raise ConfigError(f"{config.out} holds checkpoints of another run: choose another --out")
    learned = learned_from(config, datasets)
    if not config.init_from and not config.features:
        calibrate(config, task, learned[0], ranks)

    # Features, and targets in the units of the head.
    rows = joined([embed(config, task, dataset, ranks) for dataset in learned], learned)
    lengths = np.concatenate([of_composition(config, task, dataset, ranks) for dataset in learned])
    y = task.standardise(torch.from_numpy(rows.target).to(ranks.device)).cpu().numpy()
    folds = folds_of_families(rows.target, rows.units, config.folds or 0)

    # The head of all rows. Relatives choose alpha together, as far as there are two families.
    fit = partial(linear.fit, kind=task.options["kind"], num_classes=len(classes))
    groups = rows.copies if folds is None else rows.units
    head = fit(rows.prediction, y, groups)
    layer = task.head.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
    alphas = ", ".join(f"{alpha:g}" for alpha in sorted({*head.alpha}))
    ranks.say(f"head        linear, of {len(y)} samples, alpha {alphas}")

    # One split: the heads are applied to others.
    if not config.folds:
        test = datasets["test"]
        found = joined([results.predict(task, test, config, ranks)], [test])
        outputs = fit(lengths, y, groups)(of_composition(config, task, test, ranks))
        return replace(found, composition=replace(found, prediction=predictions_of(task, outputs)))

    # Folds: outputs for all rows by heads of other folds. Relatives stay together, and beside that only near copies.
    scored = partial(in_folds, task, fit, y)
    number = folds or config.folds
    found = scored(rows, groups, number, folds is not None)
    composition = scored(replace(rows, prediction=lengths), groups, number, folds is not None)
    apart = None
    if len(np.unique(rows.units)) < len(np.unique(rows.copies)):
        apart = scored(replace(rows, units=rows.copies), rows.copies, config.folds, False)
    return replace(found, composition=composition, with_relatives=apart)


def in_folds(
    task: Task, fit: Callable, y: np.ndarray, rows: TablePredictions, groups: np.ndarray, folds: int, tested: bool
) -> TablePredictions:
    """Features as predictions, each by the head of other folds; if it is `tested` also for permuted labels."""
    fold = linear.folds_of(y, groups, folds)
    outputs = linear.out_of_fold(fit, rows.prediction, y, groups, fold)
    return replace(
        rows,
        prediction=predictions_of(task, outputs),
        fold=fold,
        own_baseline=baseline_of_folds(task, rows.target, fold),
        permuted=permuted_folds(task, rows.prediction, y, groups, fold) if tested else None,
    )


def learned_from(config: Namespace, datasets: Mapping) -> list[Samples]:
    """What a linear head is fitted to: with --folds all samples, which are in the test split."""
    return [datasets[split] for split in (("test",) if config.folds else ("train", "valid")) if split in datasets]


def joined(parts: Sequence[results.Predictions], datasets: Sequence[Samples]) -> TablePredictions:
    """The rows of some splits together, with the near copies and the relatives of each."""
    copies, families = groups_of_rows(datasets)
    return TablePredictions(
        names=[name for part in parts for name in part.names],
        groups=[name for part in parts for name in part.groups],
        target=np.concatenate([part.target for part in parts]),
        prediction=np.concatenate([part.prediction for part in parts]),
        units=families,
        copies=copies,
    )


def groups_of_rows(datasets: Sequence[Samples]) -> tuple[np.ndarray, np.ndarray]:
    """Of every row (K,) of some splits what its near copies are called, and what its relatives are."""
    labels = [dataset.labels(i) for dataset in datasets for i in range(len(dataset))]
    rows = [len(of_structure["values"]) for of_structure in labels]
    copies = np.repeat([of_structure["copies"] for of_structure in labels], rows)
    return copies, np.repeat([of_structure["family"] for of_structure in labels], rows)


def of_composition(config: Namespace, task: Task, dataset: Samples, ranks: Ranks) -> np.ndarray:
    """Length and composition of every sample, or the surroundings of every residue: (K, d)."""
    features = partial(composition.of_sample, residues=task.sees == "residues")
    return results.predict(task, dataset, config, ranks, features).prediction


# ---- before anything is embedded -------------------------------------------------------------------------------------


def check_rows(config: Namespace, options: Mapping, datasets: Mapping) -> list[str]:
    """What to know of the structures that a linear head is fitted to. Raises ConfigError if they are too few."""
    learned = learned_from(config, datasets)
    if not learned:
        return []
    target = np.concatenate([dataset.targets() for dataset in learned])
    copies, families = groups_of_rows(learned)
    check_different(target, options)
    folds = config.folds or 0
    counts = left_by_folds(target, copies, 0), left_by_folds(target, copies, folds)
    for name, count, left in zip(options["properties"] or [""], *counts):
        if left < 2:
            of = f"{name} was measured for" if name else "there are"
            found = f"{of} {count} different structures (copies and families count once)"
            beside = f"; one of {folds} folds leaves {left} of them to learn from" if folds else ""
            raise ConfigError(f"--freeze: {found}{beside}: it takes 2")

    # Do relatives stay together?
    count = len(np.unique(families))
    notes = []
    number = folds_of_families(target, families, folds)
    if folds and number != folds:
        how = f"{number} folds" if number else "relatives are in other folds, and nothing is said of new families"
        notes.append(f"{count} families are too few for {folds} folds that keep relatives together: {how}")

    # A head that says little but its mean says less for a fold of high values. Of 20 random values rho is -.55 with 20
    # folds, -.2 with 10, -.07 with 5. For a verdict labels are permuted within folds: too few ways, and none is rare.
    if number and count < 4 * number:
        problem = f"{number} folds of {count} different structures (copies and families count once)"
        notes.append(f"{problem}: with fewer than 4 in a fold scores come out too low, and may never be called better")
    return notes


def check_different(target: np.ndarray, options: Mapping) -> None:
    """Raise ConfigError if all values are the same, of several properties those of one."""
    if options["kind"] == "labels":
        return
    for name, values in zip(options["properties"] or [""], target.reshape(len(target), -1).T):
        if len(np.unique(values[~np.isnan(values)])) == 1:
            of = f"all values of {name}" if name else "all values"
            raise ConfigError(f"{of} are the same: there is nothing to tell apart. Give those without it 0")
