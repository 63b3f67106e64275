"""Fine-tuning of one model: minimise, keep the best epoch, load it again."""

import hashlib
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from torch.optim.swa_utils import update_bn
from torch.utils.data import Subset

from ..downstream.tasks import Task
from ..encoders import weights
from . import engine, results
from .evaluation import evaluate
from .loader import epoch_batches, load_batches
from .presets import OFFICIAL_PLATEAU
from .ranks import Ranks


def train(config: Namespace, task: Task, datasets: Mapping, classes: tuple[str, ...], ranks: Ranks) -> int:
    """Minimise; OUT/best.pt is the epoch with the best validation metric. Returns the signal that ended it, or 0."""
    metric, mode = task.decides
    path = Path(config.out) / "best.pt"
    best = -np.inf

    def to_beat(epochs: float, values: dict[str, float]) -> float:
        """What the next epoch must beat. Not counted: a nan metric, or an epoch cut short by --max-steps."""
        value = values[metric] if mode == "max" else -values[metric]
        counts = epochs == int(epochs) and np.isfinite(value)
        return value if counts else -np.inf

    def validate(epochs: float) -> dict[str, float]:
        nonlocal best
        found = results.predict(task, datasets["valid"], config, ranks)
        values = {"samples": len(found.names), **task.metrics(found.prediction, found.target, found.groups)}
        if metric == "loss":
            values["loss"] = evaluate(task, whole(datasets["valid"]), config, ranks)["loss"]
        if to_beat(epochs, values) > best or best == -np.inf:
            best = to_beat(epochs, values)
            if ranks.rank == 0:
                results.write_model(config, task, classes, epochs, values)
        return values

    if config.freeze and not config.init_from:
        calibrate(config, task, datasets["train"], ranks)
    plateau = OFFICIAL_PLATEAU.get(config.task) if config.preset == "official" else task.decides
    bound_to = hashlib.sha256("\0".join([datasets["valid"].checksum, *classes]).encode()).hexdigest()
    run = engine.Run(config, task, whole(datasets["train"]), ranks, plateau, unit="samples", bound_to=bound_to)
    engine.begin(run)
    if run.step and path.exists():
        before = weights.read_weights(path, weights.MODEL)
        best = to_beat(before["epochs"], before["valid"])

    stopped = engine.train(run, validate)
    if not stopped and best == -np.inf:
        reason = f"{metric} could not be measured, or none was whole"
        ranks.say(f"warning     no epoch could be compared ({reason}): best.pt is the last one")
    return stopped


def whole(dataset) -> Subset:
    """All samples of a data set."""
    return Subset(dataset, range(len(dataset)))


def known_of(task: Task, datasets: Mapping, learned: str) -> dict:
    """What is known before anything is learned: the sizes of the splits, the baseline of the one to learn from."""
    sizes = {}
    for split, x in datasets.items():
        sizes[split] = {"samples": x.num_targets, "structures": len({*map(x.group, set(x.entry))})}
    if learned not in datasets:
        return {"splits": sizes}
    targets = datasets[learned].targets()
    learned_from = [datasets[split] for split in (learned, "valid") if split in datasets]
    seen = {sequence for samples in learned_from for sequence in samples.store.sequences}
    answer = task.baseline(targets) if len(targets) else None
    return {"splits": sizes, "answer": answer, "learned": sorted(seen)}


def load_best(task: Task, path: str, notes: Sequence[str]) -> dict:
    """Make the task the model of a file, with what the file says of the data; returns the content of the file."""
    model = weights.read_weights(path, weights.MODEL)
    weights.load_weights(task, model["state"], path)
    task.known = {
        "splits": {**model.get("splits", {}), **task.known["splits"]},
        "answer": task.known.get("answer") or model.get("answer"),
        "notes": notes,
    }
    return model


def calibrate(config: Namespace, task: Task, dataset, ranks: Ranks) -> None:
    """Measure batch norm over 100 batches, for a frozen encoder without training: else values grow by layers."""
    batches = epoch_batches(len(dataset), config.batch_size, config.seed, 0)[:100]
    keys = [[(0, int(i)) for i in batch] for batch in batches]
    with closing(load_batches(dataset, keys, config, ranks.device)) as loaded:
        proteins = (sample.protein.to(ranks.device) for sample, _ in loaded)
        update_bn(map(task.encoder.builder.select_nodes, proteins), task.encoder)
