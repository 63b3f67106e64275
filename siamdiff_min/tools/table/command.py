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
from pathlib import Path

import numpy as np
import torch

from ... import finetune, predict
from ...downstream.tasks import TASKS, Classes, Task
from ...encoders import weights
from ...files import checksum, first_three
from ...reading.sources import structure_files
from ...reading.store import finished_store
from ...sets.labelled_set import SPLITS, alpha_carbons_alone, remarks
from ...sets.samples import SAMPLES, Samples, Unlabelled
from ...sets.sets import SETS
from ...training import checkpoint, results, summary, tuning
from ...training.config import for_seed
from ...training.ranks import Ranks
from ..evidence import wording
from . import frozen
from .features import GivenFeatures
from .labelled import TableData
from .options import columns_of
from .results import columns_of_doubt, repeated_in_file, write_table_results
from .samples import TableSamples, UnlabelledResidues
from .table_set import table_set
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


def run_seeds(config: Namespace, data: TableData, datasets: dict[str, Samples], ranks: Ranks) -> int:
    """For every seed: fit a head, or minimise; then score on the test split. Apply the last seed's model."""
    tested = {}
    epochs = {}
    heads = {}  # of every seed its linear head, which is written with the verdict
    closed_form = data.options["linear"] and not config.eval_only
    for seed in config.seeds:
        of_seed = for_seed(config, seed)
        task = build_task(of_seed, data, datasets, ranks)
        best = config.eval_only or f"{of_seed.out}/best.pt"
        if closed_form:
            tested[seed] = frozen.fit_head(of_seed, task, datasets, data.classes, ranks)
            task.known["notes"] = data.notes
            heads[seed] = task
        else:
            stopped = 0 if config.eval_only else tuning.train(of_seed, task, datasets, data.classes, ranks)
            if stopped:
                return 128 + stopped
            model = tuning.load_best(task, best, data.notes)
            if datasets:
                found = results.predict(task, datasets["test"], of_seed, ranks)
                tested[seed] = frozen.joined([found], [datasets["test"]])
                epochs[str(seed)] = float(model["epochs"])
        if tested and ranks.rank == 0:
            path = Path(of_seed.out) / "predictions.tsv"
            results.write_predictions(path, tested[seed], data.classes, isinstance(task, Classes))

    # The results of all seeds; a linear head keeps the verdict. Then predictions for other structures.
    if tested and ranks.rank == 0:
        path = Path(config.out) / "results.json"
        made = finetune.made_with(config, ranks)
        content = write_table_results(path, config, task, tested, epochs, made)
        ranks.say(wording.summary(content, path))
        for seed, head in heads.items():
            kept = repeated_in_file(head, content, tested[seed])
            kept |= in_file(config, datasets)
            results.write_model(for_seed(config, seed), head, data.classes, 0.0, {}, **kept)
    ranks.all_gather([])  # the others wait for it
    for path in config.predict or ():
        apply(of_seed, path, task, data, ranks, Path(best))
    if config.features and config.predict is not None:
        apply_to_vectors(config, task, data, ranks, Path(best))
    if config.features:
        ranks.say(f"new vectors siamdiff finetune --eval-only {best} --features NEW.npz --predict")
    else:
        summary.say_what_follows(config, best, ranks)
    return 0


def in_file(config: Namespace, datasets: Mapping[str, Samples]) -> dict:
    """What the file of a linear head has beside that of the paper's tasks."""
    if not config.features:
        return {"folds": config.folds}
    names = {name for samples in frozen.learned_from(config, datasets) for name in samples.store.names}
    return {"folds": config.folds, "features": config.features, "learned_names": sorted(names)}


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
        data = labels_of_model(config, data, model)
    datasets = finetune.open_splits(config, data, needed, ranks)
    warnings = warnings_of(config, data, datasets, model)
    summary.say_of_data(config, data, datasets, warnings, ranks)
    return replace(data, options=options, notes=[*data.notes, *warnings]), datasets


def warnings_of(config: Namespace, data: TableData, datasets: Mapping[str, Samples], model: dict | None) -> list[str]:
    """What the user should know about the splits."""
    warnings = remarks(datasets, ("train", "valid") if config.freeze else ("train",))
    if config.freeze and not model:
        warnings += frozen.check_rows(config, data.options, datasets)
    if not config.folds:
        warnings += relatives_across(datasets)
    if config.level == "atom" and not config.features:
        carbons = [alpha_carbons_alone(x.store) for x in datasets.values()]
        warnings += sorted({*filter(None, carbons)})
    if model and model.get("folds"):
        warnings.append(f"{config.eval_only} was fitted to all structures of its table: score it on others")
    return warnings


def relatives_across(datasets: Mapping[str, Samples]) -> list[str]:
    """A warning if structures to test have relatives among those that are learned from."""
    learned = [datasets[split] for split in ("train", "valid") if split in datasets]
    if not learned:
        return []
    _, seen = frozen.groups_of_rows(learned)
    _, tested = frozen.groups_of_rows([datasets["test"]])
    known = np.isin(tested, seen)
    if not known.any():
        return []
    count = f"{known.sum()} of {len(known)} samples in test are of relatives"
    return [f"{count} of structures in train or valid: their scores say little of new families"]


def labels_of_model(config: Namespace, data: TableData, model: dict) -> TableData:
    """The data with the classes of a model, which may have more; the title of the values and their files may differ.

    Raises ConfigError if the model was trained on other labels.
    """
    theirs = model["options"]
    classes = tuple(model["labels"])
    free = ("column", "each_chain")
    same = all(theirs.get(name) == value for name, value in data.options.items() if name not in free)
    unknown = {*data.classes} - {*classes}
    own = data.classes if unknown or "properties" in theirs else classes
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
    if config.init_from:
        checkpoint.initialise(task, config.init_from, ranks.say, encoder_only=True)
    if config.freeze:
        encoder.requires_grad_(False)

    # With --folds all structures are in the test split.
    learned = "test" if config.folds else "train"
    if learned in datasets:
        targets = datasets[learned].targets()
        if not config.freeze and not config.eval_only:
            frozen.check_different(targets, data.options["kind"], data.options.get("properties", ()))
        task.fit(targets, config.size)
    task.known = tuning.known_of(task, datasets, learned)
    summary.say_of_task(config, task, config.features and f"none, vectors of {config.features}", ranks)
    return task.to(ranks.device)


def apply(config: Namespace, source: str, task: Task, data: TableData, ranks: Ranks, best: Path) -> Path:
    """Predict for all structures of a source, or each chain of them; returns the table."""
    in_store = finished_store(Path(source))  # which has its own entries
    origin = structure_files(source, each_chain=data.options.get("each_chain", False) and not in_store)
    residues = data.options.get("residues", False)
    unlabelled = predict.open_unlabelled(config, origin, ranks, UnlabelledResidues if residues else Unlabelled)
    predictions = results.predict(task, unlabelled, config, ranks)
    path = predict.predicted_file(config, source, unlabelled)
    if ranks.rank == 0:
        write_applied(path, task, data, predictions, best, ranks, predict.learned_names(best, unlabelled.store))
        if config.pdb and residues:
            from ..color import color_predictions  # loads scikit-learn, for a second

            ranks.say(f"coloured    {len(color_predictions(path, Path(source)))} files: {path.with_suffix('')}")
    return path


def apply_to_vectors(config: Namespace, task: Task, data: TableData, ranks: Ranks, best: Path) -> Path:
    """Predict for all vectors of --features; returns the table."""
    names = [*task.encoder.row_of]
    with torch.no_grad():
        output = task.head(task.encoder.of(names).to(ranks.device)).float()
        prediction = task.to_prediction(output).double().cpu().numpy()
    residues = data.options.get("residues", False)
    groups = [name.rsplit(":", 2)[0] if residues else "" for name in names]
    predictions = results.Predictions(names, groups, np.full(len(names), np.nan), prediction)
    path = Path(config.out).parent / f"predicted-{Path(config.features).stem}-{checksum(config.features)[:6]}.tsv"
    if ranks.rank == 0:
        known = weights.read_weights(best, weights.MODEL).get("learned_names", [])
        write_applied(path, task, data, predictions, best, ranks, {*known} & {*names, *groups})
    return path


def write_applied(
    path: Path, task: Task, data: TableData, predictions: results.Predictions, best: Path, ranks: Ranks, known: Set[str]
) -> None:
    """Write predictions of the model `best`. What its file has of its table is repeated: verdict and errors.

    Structures that it was fitted to are `known`.
    """
    model = weights.read_weights(best, weights.MODEL)
    within = model.get("within", [])
    doubt = model.get("verdict", "")
    more = columns_of_doubt(predictions, data.classes, within, doubt)
    more |= predict.columns_of_model(predictions, best, known)
    results.write_predictions(path, predictions, data.classes, isinstance(task, Classes), more)
    ranks.say(f"predicted   {len({*predictions.groups} - {''}) or len(predictions.names)} structures: {path}")
    predict.say_known(known, ranks)
    if np.isfinite(within).any():
        of = f", by the errors of {model['within_of']} families" if "within_of" in model else ""
        ranks.say(f"            low and high: 90 % of values of structures like those of the table lie between{of}")
    seldom = [name for name, reach in zip(data.classes, within) if not np.isfinite(reach)]
    if seldom:
        ranks.say(f"            without low and high, as too few were measured: {', '.join(seldom)}")
    if doubt:
        ranks.say(f"verdict     {doubt}: {model.get('advice', 'do not rely on these numbers')}")
