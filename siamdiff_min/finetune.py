"""Fine-tune a protein structure encoder on a downstream task, or apply a model that was.

    siamdiff finetune --task psr                                           # a laptop, a demo set
    siamdiff finetune --task psr --data FOLDER --init-from ENCODER.pt --seeds 0 1 2
    siamdiff finetune --eval-only OUT/seed-0/best.pt --data FOLDER         # score a model
    siamdiff finetune --eval-only OUT/seed-0/best.pt --predict STRUCTURES  # apply it
    siamdiff finetune --task table --help                                  # labels of your own: tools/table/

Without --init-from the encoder starts from scratch. The results are OUT/results.json, and OUT/seed-S with the model
best.pt and predictions.tsv; siamdiff report OUT draws them.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from . import predict
from .downstream.tasks import TASKS, Classes, Task
from .encoders import weights
from .files import ConfigError, load_module, part_or_none
from .reading.store import open_store
from .sets.labelled_set import SPLITS, LabelledData
from .sets.samples import Samples
from .sets.sets import SETS
from .training import checkpoint, results, summary, tuning
from .training.config import for_seed, printed
from .training.ranks import Ranks, launch
from .training.run import provenance, started_from


def run(config: Namespace, way: ModuleType | None = None) -> int:
    """Do what `finetune_options` has read; returns the exit status, 128 + n after signal n.

    `way` has other functions `open_data`, `build_task`, `learn`, `write` and `apply` than this module.
    """
    way = way or sys.modules[__name__]
    with launch(config.device, config.threads, config.deterministic, config.amp) as ranks:
        for path in config.predict or ():
            open_store(path, build=False, beside=False)  # nothing there is an error now, not after training
        data, datasets = way.open_data(config, ranks)
        if config.dry_run:
            way.build_task(for_seed(config, config.seeds[0]), data, datasets, ranks)
            ranks.say(printed(config))
            return 0
        with ranks.alone_in(config.out):
            return run_seeds(config, data, datasets, ranks, way)


def run_seeds(
    config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks, way: ModuleType
) -> int:
    """For every seed: minimise, then score the best epoch on the test split. Apply the last seed's model."""
    tested = {}
    epochs = {}
    for seed in config.seeds:
        of_seed = for_seed(config, seed)
        task = way.build_task(of_seed, data, datasets, ranks)
        stopped, best_epoch, predictions = way.learn(of_seed, task, data, datasets, ranks)
        if stopped:
            return 128 + stopped
        if predictions:
            tested[seed] = predictions
            epochs |= best_epoch
        if predictions and ranks.rank == 0:
            path = Path(of_seed.out) / "predictions.tsv"
            results.write_predictions(path, predictions, data.classes or task.names, isinstance(task, Classes))

    # The results of all seeds. Then predictions for other structures.
    if tested and ranks.rank == 0:
        path = Path(config.out) / "results.json"
        result = results.result_of(config, task, tested, epochs, made_with(config, ranks))
        ranks.say(way.write(path, result, task, tested))
    ranks.all_gather([])  # the others wait for it
    way.apply(of_seed, task, data, ranks, config.eval_only or f"{of_seed.out}/best.pt")
    return 0


def learn(
    config: Namespace, task: Task, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks
) -> tuple[int, dict[str, float], results.Predictions | None]:
    """Minimise, then score; from there on the task is the model of the best epoch.

    Returns the signal that ended it, or 0; the best epoch of this seed; predictions for the test split, if it is there.
    """
    stopped = 0 if config.eval_only else tuning.train(config, task, datasets, data.classes, ranks)
    if stopped:
        return stopped, {}, None
    model = tuning.load_best(task, config.eval_only or f"{config.out}/best.pt", data.notes)
    predictions = results.predict(task, datasets["test"], config, ranks) if datasets else None
    return 0, {str(config.seed): float(model["epochs"])}, predictions


def write(path: Path, result: results.Result, task: Task, tested: dict) -> str:
    """Write results.json, with intervals if tools/ is there; returns it in words."""
    try:
        finish = load_module(".tools.evidence.wording").finish
    except ConfigError:
        results.write_results(path, result)
        return summary.summary(vars(result), path)
    return finish(path, result, task, tested)


def apply(config: Namespace, task: Task, data: LabelledData, ranks: Ranks, best: str) -> None:
    """Predict for all structures of --predict, by the model `best`."""
    for path in config.predict or ():
        predict.apply(config, path, task, data, ranks, best)


def open_data(config: Namespace, ranks: Ranks) -> tuple[LabelledData, dict[str, Samples]]:
    """The data, and the samples of every split. Raises ConfigError if a model was trained on other classes.

    A model that is only applied needs no samples, and one that is scored those of the test split.
    """
    model = weights.read_weights(config.eval_only, weights.MODEL) if config.eval_only else None
    if model and config.predict and not config.data:
        return LabelledData(classes=tuple(model["labels"])), {}
    needed = ("test",) if model else tuple(SPLITS)
    data = SETS[config.task](config, needed)
    if model:
        check_classes(config, data.classes, tuple(model["labels"]))
    datasets = open_splits(config, data, needed, ranks)
    remarks = part_or_none("remarks")
    warnings = remarks(datasets) if remarks else []
    summary.say_of_data(config, data, datasets, warnings, ranks)
    return replace(data, notes=[*data.notes, *warnings]), datasets


def open_splits(config: Namespace, data: LabelledData, needed: Sequence[str], ranks: Ranks) -> dict[str, Samples]:
    """The samples of every split that is needed; none if it is not converted yet and this is a dry run.

    Every split is converted once to a memory-mapped store, by the first process.
    """
    workers = config.num_workers or 1

    def open_all() -> list:
        options = {"store": config.store, "workers": workers, "build": not config.dry_run}
        return [data.open(split, **options) for split in needed]

    stores = ranks.build_in_turn(open_all)
    if None in stores:
        return {}
    datasets = {}
    for split, store in zip(needed, stores):
        cropped = split == "train" or config.task == "msp"  # other tasks see whole structures in evaluation
        datasets[split] = data.samples(store, data.classes, config.max_residues if cropped else None)
    return datasets


def check_classes(config: Namespace, own: Sequence[str], of_model: Sequence[str], same: bool = True) -> None:
    """Raise ConfigError if a model was trained on other labels than those of this run."""
    if own == of_model and same:
        return
    source = f"{getattr(config, 'labels', None) or config.data or 'the demo'}"
    unknown, absent = sorted({*own} - {*of_model}), sorted({*of_model} - {*own})
    if unknown or absent:
        source += f"; {'unknown to it' if unknown else 'known to it alone'}: {', '.join((unknown or absent)[:3])}"
    raise ConfigError(f"{config.eval_only} was trained on other labels than those of {source}")


def build_task(config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks) -> Task:
    """Encoder and head: from scratch, or with the encoder of --init-from."""
    torch.manual_seed(config.seed)
    encoder = weights.new_encoder(config, ranks.say)
    task = TASKS[config.task](encoder, len(data.classes) or None)
    return prepared(config, task, datasets, "train", "", ranks)


def prepared(
    config: Namespace, task: Task, datasets: dict[str, Samples], learned: str, vectors: str, ranks: Ranks
) -> Task:
    """The task with what it starts from, made ready for the split that is `learned`; `vectors` see `say_of_task`."""
    if config.init_from:
        checkpoint.initialise(task, config.init_from, ranks.say, encoder_only=True)
    if config.freeze:
        task.encoder.requires_grad_(False)
    if learned in datasets:
        task.fit(datasets[learned].targets(), config.size)
    task.known = tuning.known_of(task, datasets, learned)
    summary.say_of_task(config, task, vectors, ranks)
    return task.to(ranks.device)


def made_with(config: Namespace, ranks: Ranks) -> dict:
    """What the run was made with; of every seed the file it started from, if each has its own."""
    made = provenance(for_seed(config, config.seeds[0]), ranks)
    if "{seed}" in (config.init_from or ""):
        made["started_from"] = {str(seed): started_from(for_seed(config, seed)) for seed in config.seeds}
    return made
