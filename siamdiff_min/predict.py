"""Apply a fine-tuned model to structures without labels: `siamdiff finetune --predict`."""

from argparse import Namespace
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from . import __version__
from .downstream.tasks import Classes, Task
from .encoders import weights
from .files import checksum, first_three
from .reading.sources import Origin, structure_files
from .reading.store import ProteinStore, finished_store, open_store
from .sets.labelled_set import LabelledData
from .sets.samples import Samples, Unlabelled
from .training import results
from .training.ranks import Ranks


def apply(config: Namespace, source: str, task: Task, data: LabelledData, ranks: Ranks, best: str) -> None:
    """Write predictions of the model `best` for all structures of a source."""
    unlabelled = open_unlabelled(config, structure_files(source), ranks)
    predictions = results.predict(task, unlabelled, config, ranks)
    known = learned_names(best, unlabelled.store)
    write(predicted_file(config, source, unlabelled), predictions, task, data, best, known, ranks)


def learned_names(best: str, store: ProteinStore) -> set[str]:
    """The structures of a store whose sequence a model has learned from."""
    learned = {*weights.read_weights(best, weights.MODEL).get("learned", ())}
    return {name for name, sequence in zip(store.names, store.sequences) if sequence in learned}


def write(
    path: Path,
    predictions: results.Predictions,
    task: Task,
    data: LabelledData,
    best: str,
    known: Set[str],
    ranks: Ranks,
    more: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write a table of predictions with `more` columns, which names the model: its file, its checksum, our version.

    A column says of which structures, `known`, it has seen the labels.
    """
    if ranks.rank != 0:
        return
    names = predictions.names
    columns = {**(more or {}), "model": [f"{best} {checksum(best)[:12]} {__version__}"] * len(names)}
    if known:
        owners = [group or name for name, group in zip(names, predictions.groups)]
        columns["learned"] = ["yes" if owner in known else "no" for owner in owners]
    results.write_predictions(path, predictions, data.classes or task.names, isinstance(task, Classes), columns)
    ranks.say(f"predicted   {len({*predictions.groups} - {''}) or len(names)} structures: {path}")
    if known:
        of = first_three(sorted(known))
        ranks.say(f"warning     the model has learned from {len(known)} of them ({of}): it was fitted to their values")


def open_unlabelled(config: Namespace, origin: Origin, ranks: Ranks, kind: type[Unlabelled] = Unlabelled) -> Unlabelled:
    """The structures of a source, converted by the first process to a store in --store, else in the cache."""
    home = None if finished_store(origin.path) else config.store
    store = ranks.build_in_turn(lambda: open_store(origin, home, config.num_workers or 1, beside=False))
    if config.level == "atom" and (lacking := store.lacking_backbone()):
        ranks.say(f"warning     {lacking}, and this model reads all atoms")
    return kind(store)


def predicted_file(config: Namespace, source: str, samples: Samples) -> Path:
    """The table of predictions for a source. Others get another table."""
    name = Path(source).resolve().name.split(".")[0]
    return Path(config.out).parent / f"predicted-{name}-{samples.store.checksum[:6]}.tsv"
