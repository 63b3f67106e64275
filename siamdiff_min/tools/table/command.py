"""`siamdiff finetune --task table`: learn a table of labels for structures of your own, score the model, apply it.

    siamdiff finetune --task table --labels labels.tsv --data FOLDER
    ... --freeze --folds 10 --init-from siamdiff-residue                   # for a hundred of them: in seconds
    siamdiff finetune --eval-only OUT/seed-0/best.pt --predict STRUCTURES  # apply it

With --freeze the head is linear, in closed form; without, the encoder learns as for the paper's tasks. The results say
whether the model is better than the baseline, and a linear head than length and composition.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ... import finetune, predict
from ...downstream.tasks import TASKS, Classes, Task
from ...encoders import weights
from ...files import ConfigError
from ...reading.sources import structure_files
from ...reading.store import finished_store, open_store
from ...sets.labelled_set import SPLITS, alpha_carbons_alone, remarks
from ...sets.samples import SAMPLES, Samples, Unlabelled
from ...sets.sets import SETS
from ...training import checkpoint, results, summary, tuning
from ...training.config import for_seed, printed
from ...training.ranks import Ranks, launch
from ..color import color_predictions
from ..evidence import wording
from . import frozen
from .features import GivenFeatures
from .labelled import TableData
from .options import columns_of
from .results import columns_of_doubt, keep_verdict, write_table_results
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
    model = weights.read_weights(config.eval_only, weights.MODEL) if config.eval_only else None
    if model and model.get("features"):
        raise ConfigError(
            f"{config.eval_only} was fitted to vectors of {model['features']}: it has no encoder to apply"
        )
    with launch(config.device, config.threads, config.deterministic, config.amp) as ranks:
        for path in config.predict or ():
            open_store(path, build=False, beside=False)  # nothing there is an error now, not after training
        data, datasets = open_data(config, ranks, model)
        if config.dry_run:
            build_task(for_seed(config, config.seeds[0]), data, datasets, ranks)
            ranks.say(printed(config))
            return 0
        with ranks.alone_in(config.out):
            return run_seeds(config, data, datasets, ranks)


def run_seeds(config: Namespace, data: TableData, datasets: dict[str, Samples], ranks: Ranks) -> int:
    """For every seed: fit a head, or minimise; then score on the test split. Apply the last seed's model."""
    tested = {}
    epochs = {}
    closed_form = data.options["linear"] and not config.eval_only
    for seed in config.seeds:
        of_seed = for_seed(config, seed)
        task = build_task(of_seed, data, datasets, ranks)
        if closed_form:
            tested[seed] = frozen.fit_head(of_seed, task, datasets, data.classes, ranks)
        elif not config.eval_only:
            stopped = tuning.train(of_seed, task, datasets, data.classes, ranks)
            if stopped:
                return 128 + stopped

        # From here on the task is the model of the best epoch.
        best = config.eval_only or f"{of_seed.out}/best.pt"
        model = tuning.load_best(task, best, data.notes)
        if datasets and not closed_form:
            found = results.predict(task, datasets["test"], of_seed, ranks)
            tested[seed] = frozen.joined([found], [datasets["test"]])
            epochs[str(seed)] = float(model["epochs"])
        if datasets and ranks.rank == 0:
            path = Path(of_seed.out) / "predictions.tsv"
            results.write_predictions(path, tested[seed], data.classes, isinstance(task, Classes))

    # The results of all seeds; a linear head keeps the verdict. Then predictions for other structures.
    if tested and ranks.rank == 0:
        path = Path(config.out) / "results.json"
        made = finetune.made_with(config, ranks)
        content = write_table_results(path, config, task, tested, epochs, made)
        ranks.say(wording.summary(content, path))
        for seed in tested if closed_form else ():
            keep_verdict(Path(for_seed(config, seed).out) / "best.pt", task, content, tested[seed])
    ranks.all_gather([])  # the others wait for it
    new = [apply(of_seed, path, task, data, ranks, Path(best)) for path in config.predict or ()]
    if not config.features:
        summary.say_what_follows(config, best, new, ranks)
    return 0


def open_data(config: Namespace, ranks: Ranks, model: dict | None) -> tuple[TableData, dict[str, Samples]]:
    """The data with the options of the task, and the samples of every split. Raises ConfigError if a model has others.

    A model that is only applied needs no samples. With --folds all of them are in the test split.
    """
    if model and config.predict and not config.data:
        return TableData(classes=tuple(model["labels"]), options=model["options"]), {}
    needed = ("test",) if model or config.folds else tuple(SPLITS)
    data = SETS["table"](config, needed)
    options = {**data.options, "metric": config.metric, "linear": config.freeze}
    if model:
        options = model["options"]
        check_labels(config, data, model)
    datasets = finetune.open_splits(config, data, needed, ranks)
    warnings = warnings_of(config, data, datasets, model)
    summary.say_of_data(config, data, datasets, warnings, ranks)
    return replace(data, options=options, notes=[*data.notes, *warnings]), datasets


def warnings_of(config: Namespace, data: TableData, datasets: Mapping[str, Samples], model: dict | None) -> list[str]:
    """What the user should know about the splits."""
    warnings = remarks(datasets, ("train", "valid") if config.freeze else ("train",))
    if config.folds and datasets:
        size = len({*datasets["test"].store.sequences})
        warnings += frozen.small_folds(size, config.folds, data.options["kind"])
    if config.level == "atom" and not config.features:
        carbons = [alpha_carbons_alone(x.store) for x in datasets.values()]
        warnings += sorted({*filter(None, carbons)})
    if model and model.get("folds"):
        warnings.append(f"{config.eval_only} was fitted to all structures of its table: score it on others")
    return warnings


def check_labels(config: Namespace, data: TableData, model: dict) -> None:
    """Raise ConfigError if a model was trained on other labels. The title of the values and their files may differ."""
    theirs = model["options"]
    own = {name: value for name, value in data.options.items() if name not in ("column", "each_chain")}
    same = all(theirs.get(name) == value for name, value in own.items())
    finetune.check_classes(config, data.classes, tuple(model["labels"]), same)


def build_task(config: Namespace, data: TableData, datasets: dict[str, Samples], ranks: Ranks) -> Task:
    """Encoder and head: from scratch, with the encoder of --init-from, or a head of vectors of the user's own."""
    torch.manual_seed(config.seed)
    if config.features:
        encoder = GivenFeatures(config.features, data.options["residues"])
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
            frozen.check_different(task, targets)
        task.fit(targets, config.size)
    task.known = tuning.known_of(task, datasets, learned)
    summary.say_of_task(config, task, config.features and f"none, vectors of {config.features}", ranks)
    return task.to(ranks.device)


def apply(config: Namespace, source: str, task: Task, data: TableData, ranks: Ranks, best: Path) -> Path:
    """Predict for all structures of a source, or each chain of them; returns the table.

    The file of the model, `best`, may have a verdict and the errors of its table: they are repeated.
    """
    in_store = finished_store(Path(source))  # which has its own entries
    origin = structure_files(source, each_chain=data.options.get("each_chain", False) and not in_store)
    residues = data.options.get("residues", False)
    unlabelled = predict.open_unlabelled(config, origin, ranks, UnlabelledResidues if residues else Unlabelled)
    predictions = results.predict(task, unlabelled, config, ranks)

    model = weights.read_weights(best, weights.MODEL)
    within = model.get("within", [])
    doubt = model.get("verdict", "")
    path = predict.predicted_file(config, source, unlabelled)
    if ranks.rank == 0:
        more = columns_of_doubt(predictions, data.classes, within, doubt)
        more["model"] = [predict.name_of_model(best)] * len(predictions.names)
        results.write_predictions(path, predictions, data.classes, isinstance(task, Classes), more)
    ranks.say(f"predicted   {len(unlabelled)} structures: {path}")
    if config.pdb and residues and ranks.rank == 0:
        ranks.say(f"coloured    {len(color_predictions(path, Path(source)))} files: {path.with_suffix('')}")
    if within:
        ranks.say("            low and high: 90 % of values of structures like those of the table lie between them")
    if doubt:
        ranks.say(f"verdict     {doubt}: {model.get('advice', 'do not rely on these numbers')}")
    return path
