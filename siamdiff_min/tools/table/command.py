"""`siamdiff finetune --task table`: learn a table of labels for structures of your own, score the model, apply it.

    siamdiff finetune --task table --labels labels.tsv --data FOLDER
    ... --freeze --folds 10 --init-from siamdiff-residue                   # for a hundred of them: in seconds
    siamdiff finetune --eval-only OUT/seed-0/best.pt --predict STRUCTURES  # apply it

With --freeze the head is linear, in closed form; without, the encoder learns as for the paper's tasks. The results say
whether the model is better than the baseline, and a linear head than length and composition.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from ... import finetune, predict
from ...downstream.tasks import TASKS, Task
from ...encoders import weights
from ...files import checksum, first_three
from ...reading.sources import structure_files
from ...reading.store import finished_store
from ...sets.labelled_set import SPLITS
from ...sets.samples import SAMPLES, Samples, Unlabelled
from ...sets.sets import SETS
from ...training import results, summary
from ...training.ranks import Ranks
from ..evidence import wording
from . import frozen
from .features import GivenFeatures
from .options import columns_of
from .results import TablePredictions, columns_of_doubt, repeated_in_file, write_table_results
from .samples import TableSamples, UnlabelledResidues
from .table_set import TableData, remarks, table_set
from .task import table_task


def data_of(config: Namespace, needed: Sequence[str]) -> TableData:
    """The structures of --data and their labels."""
    return table_set(config.labels, config.data, config.kind, needed, bool(config.folds), **columns_of(config))


# The task among the others, as the file of a --plugin adds its own.
TASKS["table"] = table_task
SETS["table"] = data_of
SAMPLES["table"] = TableSamples


def run(config: Namespace) -> int:
    """Do what `table_options` has read; returns the exit status, 128 + n after signal n."""
    return finetune.run(config, sys.modules[__name__])


def learn(
    config: Namespace, task: Task, data: TableData, datasets: dict[str, Samples], ranks: Ranks
) -> tuple[int, dict[str, float], TablePredictions | None]:
    """Fit a linear head, or minimise; then score. Returns what `finetune.learn` does."""
    if config.eval_only or not config.freeze:
        stopped, epochs, found = finetune.learn(config, task, data, datasets, ranks)
        return stopped, epochs, found and frozen.joined([found], [datasets["test"]])

    # The file of a linear head is written with the verdict.
    found = frozen.fit_head(config, task, datasets, data.classes, ranks)
    task.known |= {"notes": data.notes, "folds": config.folds}
    if config.features:
        learned = frozen.learned_from(config, datasets)
        task.known["learned_names"] = sorted({name for samples in learned for name in samples.store.names})
        task.known["features"] = config.features
    write_head = partial(results.write_model, config, task, data.classes, 0.0, {})
    return 0, {}, replace(found, write_head=write_head)


def write(path: Path, result: results.Result, task: Task, tested: Mapping[int, TablePredictions]) -> str:
    """Write results.json and draws.npz, and the files of linear heads; returns the first in words."""
    content = write_table_results(path, result, task, tested)
    for of_seed in tested.values():
        if of_seed.write_head:
            of_seed.write_head(**repeated_in_file(task, content, of_seed))
    return wording.summary(content, path)


def open_data(config: Namespace, ranks: Ranks) -> tuple[TableData, dict[str, Samples]]:
    """The data with the options of the task, and the samples of every split. Raises ConfigError if a model has others.

    A model that is only applied needs no samples. With --folds all of them are in the test split.
    """
    model = weights.read_weights(config.eval_only, weights.MODEL) if config.eval_only else None
    if model and config.predict is not None and not config.data:
        return TableData(classes=tuple(model["labels"]), options=model["options"]), {}
    needed = ("test",) if model or config.folds else tuple(SPLITS)
    data = SETS["table"](config, needed)
    options = {**data.options, "metric": config.metric, "linear": config.freeze}
    if model:
        options = model["options"]
        data = replace(labels_of_model(config, data, model), learned=model.get("learned"))
    datasets = finetune.open_splits(config, data, needed, ranks)
    warnings = warnings_of(config, data, datasets, model)
    summary.say_of_data(config, data, datasets, warnings, ranks)
    return replace(data, options=options, notes=[*data.notes, *warnings]), datasets


def warnings_of(config: Namespace, data: TableData, datasets: Mapping[str, Samples], model: dict | None) -> list[str]:
    """What the user should know about the splits."""
    warnings = remarks(datasets)
    if config.freeze and not model:
        warnings += frozen.check_rows(config, data.options, datasets)
    elif not model and datasets:
        frozen.check_different(datasets["train"].targets(), data.options)
    if not config.folds:
        warnings += relatives_across(datasets)
    if config.level == "atom" and not config.features:
        lacking = {x.store.lacking_backbone() for x in datasets.values()} - {""}
        warnings += [f"{sentence}, and this model reads all atoms" for sentence in lacking]
    if model and datasets:
        learned = {*model.get("learned", ())}
        known = [sequence in learned for sequence in datasets["test"].store.sequences]
        if any(known):
            count = f"{sum(known)} of {len(known)} structures in test"
            warnings.append(f"the model has learned from {count}: their scores say nothing of others")
        if "learned" not in model:
            warnings.append("a model of before 0.5 does not say what it has learned from: scores may be of that")
    return warnings


def relatives_across(datasets: Mapping[str, Samples]) -> list[str]:
    """A warning if structures to test have relatives among those that are learned from."""
    _, seen = frozen.groups_of_rows([datasets[split] for split in ("train", "valid") if split in datasets])
    _, tested = frozen.groups_of_rows([datasets[split] for split in ("test",) if split in datasets])
    known = np.isin(tested, seen)
    count = f"{known.sum()} of {len(known)} samples in test are of relatives"
    said = f"{count} of structures in train or valid: their scores say little of new families"
    return [said] if known.any() else []


def labels_of_model(config: Namespace, data: TableData, model: dict) -> TableData:
    """The data with the classes of a model, which may have more; files of chains, and the title of one column, differ.

    Raises ConfigError if the model was trained on other labels.
    """
    classes = tuple(model["labels"])
    theirs = {"properties": [], **model["options"]}
    same = all(theirs.get(name) == data.options[name] for name in ("kind", "residues", "properties"))
    own = data.classes if {*data.classes} - {*classes} else classes
    finetune.check_classes(config, own, classes, same)
    absent = sorted({*classes} - {*data.classes})
    if not absent:
        return replace(data, classes=classes)
    said = f"{len(absent)} of {len(classes)} classes of the model do not occur here: {first_three(absent)}"
    return replace(data, classes=classes, notes=[*data.notes, said])


def build_task(config: Namespace, data: TableData, datasets: dict[str, Samples], ranks: Ranks) -> Task:
    """Encoder and head: from scratch, with the encoder of --init-from, or a head of vectors of the user's own."""
    torch.manual_seed(config.seed)
    if config.features:
        there = {name for samples in datasets.values() for name in samples.store.names}
        encoder = GivenFeatures(config.features, data.options["residues"], there)
    else:
        encoder = weights.new_encoder(config, ranks.say)
    task = TASKS["table"](encoder, len(data.classes) or None, **data.options)
    if config.features:
        task.represent = encoder.represent
    learned = "test" if config.folds else "train"  # with --folds all structures are in the test split
    vectors = config.features and f"none, vectors of {config.features}"
    return finetune.prepared(config, task, datasets, learned, vectors, ranks)


def apply(config: Namespace, task: Task, data: TableData, ranks: Ranks, best: str) -> None:
    """Predict for all structures of --predict, or all vectors of --features, by the model `best`."""
    if not config.features:
        for source in config.predict or ():
            apply_to_structures(config, source, task, data, ranks, best)
        return
    if config.predict is not None:
        apply_to_vectors(config, task, data, ranks, best)
    ranks.say(f"new vectors siamdiff finetune --eval-only {best} --features NEW.npz --predict")


def apply_to_structures(config: Namespace, source: str, task: Task, data: TableData, ranks: Ranks, best: str) -> None:
    """Predict for all structures of a source, each chain of them, or all their residues."""
    kind = UnlabelledResidues if data.options["residues"] else Unlabelled
    each_chain = data.options.get("each_chain", False) and not finished_store(Path(source))  # which has its own entries
    unlabelled = predict.open_unlabelled(config, structure_files(source, each_chain), ranks, kind)
    predictions = results.predict(task, unlabelled, config, ranks)
    path = predict.predicted_file(config, source, unlabelled)
    write_applied(path, predictions, task, data, best, predict.learned_names(best, unlabelled.store), ranks)


def apply_to_vectors(config: Namespace, task: Task, data: TableData, ranks: Ranks, best: str) -> None:
    """Predict for all vectors of --features."""
    names = [*task.encoder.row_of]
    with torch.no_grad():
        output = task.head(task.encoder.of(names).to(ranks.device)).float()
        prediction = task.to_prediction(output).double().cpu().numpy()
    groups = [""] * len(names)
    if data.options["residues"]:
        groups = [name.rsplit(":", 2)[0] for name in names]
    predictions = results.Predictions(names, groups, np.full(len(names), np.nan), prediction)
    file = f"predicted-{Path(config.features).stem}-{checksum(config.features)[:6]}.tsv"
    path = Path(config.out).parent / file
    known = {*weights.read_weights(best, weights.MODEL).get("learned_names", [])}
    known &= {*names, *groups}
    write_applied(path, predictions, task, data, best, known, ranks)


def write_applied(
    path: Path, predictions: results.Predictions, task: Task, data: TableData, best: str, known: Set[str], ranks: Ranks
) -> None:
    """Write predictions of the model `best`, see `predict.write`, with the verdict and the errors of its table."""
    model = weights.read_weights(best, weights.MODEL)
    reach = model.get("within", [])
    doubt = model.get("verdict", "")
    more = columns_of_doubt(predictions, data.classes, reach, doubt)
    predict.write(path, predictions, task, data, best, known, ranks, more)
    if np.isfinite(reach).any():
        of = f", by the errors of {model['within_of']} families" if "within_of" in model else ""  # since 0.5
        ranks.say(f"            low and high: 90 % of values of structures like those of the table lie between{of}")
    seldom = [name for name, of_output in zip(data.classes, reach) if not np.isfinite(of_output)]
    if seldom:
        ranks.say(f"            without low and high, as too few were measured: {', '.join(seldom)}")
    if doubt:
        ranks.say(f"verdict     {doubt}: {model['advice']}")
