"""Apply a fine-tuned model to structures without labels: `siamdiff finetune --predict`."""

from argparse import Namespace
from pathlib import Path

from .downstream.tasks import Classes, Task
from .machine import identity
from .reading.sources import Origin, structure_files
from .reading.store import open_store
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
        more = {"model": [name_of_model(best)] * len(predictions.names)}
        results.write_predictions(path, predictions, data.classes or task.names, isinstance(task, Classes), more)
    ranks.say(f"predicted   {len(unlabelled)} structures: {path}")
    return path


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


def name_of_model(best: Path) -> str:
    """The file of a model, its checksum, and the version of the package that wrote it."""
    name, digest, version = identity(str(best), best)
    return f"{name} {digest[:12]} {version}"
