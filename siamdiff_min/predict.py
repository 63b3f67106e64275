"""Apply a fine-tuned model to structures without labels: `siamdiff finetune --predict`."""

from argparse import Namespace
from collections.abc import Set
from pathlib import Path

from . import __version__
from .downstream.tasks import Classes, Task
from .encoders import weights
from .files import checksum, first_three
from .reading.sources import Origin, structure_files
from .reading.store import ProteinStore, open_store
from .sets.labelled_set import LabelledData, alpha_carbons_alone
from .sets.samples import Samples, Unlabelled
from .training import results
from .training.ranks import Ranks


def apply(config: Namespace, source: str, task: Task, data: LabelledData, ranks: Ranks, best: Path) -> Path:
    """Predict for all structures of a source; returns the table, which names the file of the model, `best`."""
    unlabelled = open_unlabelled(config, structure_files(source), ranks)
    predictions = results.predict(task, unlabelled, config, ranks)
    path = predicted_file(config, source, unlabelled)
    if ranks.rank == 0:
        known = learned_names(best, unlabelled.store)
        more = columns_of_model(predictions, best, known)
        say_known(known, ranks)
        results.write_predictions(path, predictions, data.classes or task.names, isinstance(task, Classes), more)
    ranks.say(f"predicted   {len(unlabelled)} structures: {path}")
    return path


def learned_names(best: Path, store: ProteinStore) -> set[str]:
    """The structures of a store whose sequence a model has learned from."""
    learned = {*weights.read_weights(best, weights.MODEL).get("learned", ())}
    return {name for name, sequence in zip(store.names, store.sequences) if sequence in learned}


def columns_of_model(predictions: results.Predictions, best: Path, known: Set[str]) -> dict[str, list[str]]:
    """The columns that say which model predicted, and of which structures (`known`) it has seen the labels.

    A model is called by its file, the checksum of that, and our version.
    """
    model = f"{best} {checksum(best)[:12]} {__version__}"
    columns = {"model": [model] * len(predictions.names)}
    if known:
        owners = [group or name for name, group in zip(predictions.names, predictions.groups)]
        columns["learned"] = ["yes" if owner in known else "no" for owner in owners]
    return columns


def say_known(known: Set[str], ranks: Ranks) -> None:
    """Warn of structures that a model has learned from."""
    if known:
        of = first_three(sorted(known))
        ranks.say(f"warning     the model has learned from {len(known)} of them ({of}): it was fitted to their values")


def open_unlabelled(config: Namespace, origin: Origin, ranks: Ranks, kind: type[Unlabelled] = Unlabelled) -> Unlabelled:
    """The structures of a source, converted to a store by the first process."""
    store = ranks.build_in_turn(lambda: open_store(origin, workers=config.num_workers or 1, beside=False))
    problem = alpha_carbons_alone(store) if config.level == "atom" else ""
    if problem:
        ranks.say(f"warning     {problem}")
    return kind(store)


def predicted_file(config: Namespace, source: str, samples: Samples) -> Path:
    """The table of predictions for a source. Others get another table."""
    name = Path(source).resolve().name.split(".")[0]
    return Path(config.out).parent / f"predicted-{name}-{samples.store.checksum[:6]}.tsv"
