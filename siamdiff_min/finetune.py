"""Fine-tune a protein structure encoder on a downstream task, or apply a model that was.

    siamdiff finetune --task psr                                           # a laptop, a demo set
    siamdiff finetune --task psr --data FOLDER --init-from ENCODER.pt --seeds 0 1 2
    siamdiff finetune --task table --labels labels.tsv --data FOLDER       # labels of your own
    ... --freeze --folds 10 --init-from siamdiff-residue                   # for a hundred of them: in seconds
    siamdiff finetune --eval-only OUT/seed-0/best.pt --data FOLDER         # score a model
    siamdiff finetune --eval-only OUT/seed-0/best.pt --predict STRUCTURES  # apply it

Without --init-from the encoder starts from scratch. The results are OUT/results.json, and OUT/seed-S with the model
best.pt and predictions.tsv; siamdiff report OUT draws them.
"""

import hashlib
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch.optim.swa_utils import update_bn
from torch.utils.data import Dataset, Subset

from .downstream import linear
from .downstream.sample import Sample
from .downstream.tasks import TASKS, Classes, Task
from .encoders import weights
from .files import ConfigError
from .reading.sources import structure_files
from .reading.store import finished_store, open_store
from .sets.labelled_set import SPLITS, LabelledData, remarks
from .sets.samples import Samples, Unlabelled
from .sets.sets import SETS
from .tools.color import color_predictions
from .training import checkpoint, engine, results
from .training.batches import epoch_batches
from .training.config import FINETUNE, finetune_options, flag, for_seed, printed
from .training.evaluation import evaluate
from .training.loader import load_batches
from .training.ranks import Ranks, launch, world_size

OFFICIAL_PLATEAU = {"ec": ("fmax", "min"), "psr": ("loss", "max")}  # the wrong way round (differences.md, row 21)


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status, 128 + n after signal n."""
    config = finetune_options(argv, __doc__.splitlines()[0], world_size())
    model = weights.read_weights(config.eval_only, weights.MODEL) if config.eval_only else None
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


def run_seeds(config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks) -> int:
    """For every seed: minimise, then score the best epoch on the test split. Apply the last seed's model."""
    tested, epochs = {}, {}
    for seed in config.seeds:
        of_seed = for_seed(config, seed)
        task = build_task(of_seed, data, datasets, ranks)
        if data.options.get("linear") and not config.eval_only:
            tested[seed] = fit_head(of_seed, task, datasets, data.classes, ranks)
        elif not config.eval_only and (stopped := train(of_seed, task, datasets, data.classes, ranks)):
            return 128 + stopped
        best = config.eval_only or f"{of_seed.out}/best.pt"
        model = weights.read_weights(best, weights.MODEL)
        weights.load_weights(task, model["state"], best)
        if datasets:
            splits, answer = {**model.get("splits", {}), **task.known["splits"]}, task.known.get("answer")
            task.known = {"splits": splits, "answer": answer or model.get("answer"), "notes": data.notes}
            if seed not in tested:
                epochs[str(seed)] = float(model["epochs"])
                tested[seed] = results.predict(task, datasets["test"], of_seed, ranks)
            if ranks.rank == 0:
                path = Path(of_seed.out) / "predictions.tsv"
                results.write_predictions(path, tested[seed], data.classes or task.names, isinstance(task, Classes))
    if tested and ranks.rank == 0:
        ranks.say(results.write_results(Path(config.out) / "results.json", config, task, tested, epochs))
    new = [apply(of_seed, path, task, data, ranks) for path in config.predict or ()]
    older = {*Path(config.out).glob("report.html"), *Path(config.out).rglob("predicted-*.tsv")}.difference(new)
    if older and not config.eval_only:
        ranks.say(f"warning     older than this model, make them anew: {', '.join(sorted(map(str, older)))}")
    if not new and config.task in FINETUNE["predict"].only:
        plugin = f" {flag('plugin', config.plugin)}" if config.plugin else ""
        ranks.say(f"new files   siamdiff finetune --eval-only {best} --predict STRUCTURES{plugin}")
    return 0


def apply(config: Namespace, source: str, task: Task, data: LabelledData, ranks: Ranks) -> Path:
    """Predict for all structures of a source, or every chain of them; returns the table. Others get another table."""
    alone = data.options.get("each_chain", False) and not finished_store(Path(source))  # a store has its own entries
    origin = structure_files(source, each_chain=alone)
    store = ranks.build_in_turn(lambda: open_store(origin, workers=config.num_workers or 1, beside=False))
    unlabelled = Unlabelled(store, residues=data.options.get("residues", False))
    predictions = results.predict(task, unlabelled, config, ranks)
    name = Path(source).resolve().name.split(".")[0]
    path = Path(config.out).parent / f"predicted-{name}-{store.checksum[:6]}.tsv"
    if ranks.rank == 0:
        results.write_predictions(path, predictions, data.classes or task.names, isinstance(task, Classes))
    ranks.say(f"predicted   {len(unlabelled)} structures: {path}")
    if config.pdb and data.options.get("residues") and ranks.rank == 0:
        ranks.say(f"coloured    {len(color_predictions(path, Path(source)))} files: {path.with_suffix('')}")
    return path


def open_data(config: Namespace, ranks: Ranks, model: dict | None) -> tuple[LabelledData, dict[str, Samples]]:
    """The data with the options of the task, and the samples of every split. Raises ConfigError if a model has others.

    Every split is converted once to a memory-mapped store, by the first process. A dry run writes none; a model that is
    only applied needs none.
    """
    if model and config.predict and not config.data:
        return LabelledData(classes=tuple(model["labels"]), options=model["options"]), {}  # classes are "labels" there
    needed = ("test",) if model or config.folds else tuple(SPLITS)  # all that is scored is in the test split
    data = SETS[config.task](config, needed)
    options = {**data.options, "metric": config.metric, "linear": config.freeze} if data.options else {}
    if model:
        options = model["options"]
        own = data.options.keys() - {"column", "each_chain"}  # title and files may differ
        if data.classes != tuple(model["labels"]) or any(options.get(name) != data.options[name] for name in own):
            other = ", ".join(sorted({*data.classes} ^ {*model["labels"]})[:3])
            source = f"{config.labels or config.data or 'the demo'}{other and f'; of one alone: {other}'}"
            raise ConfigError(f"{config.eval_only} was trained on other labels than those of {source}")
    how = {"workers": config.num_workers or 1, "build": not config.dry_run}
    stores = ranks.build_in_turn(lambda: [data.open(split, **how) for split in needed])
    datasets = {}
    if None not in stores:
        for split, store in zip(needed, stores):
            cropped = split == "train" or config.task == "msp"  # other tasks see whole structures in evaluation
            datasets[split] = data.samples(store, data.classes, config.max_residues if cropped else None)
    ranks.say(f"data        {config.data or 'demo set (made from the bundled structures; --data for your own)'}")
    ranks.say("\n".join([f"labels      {data.about}", *(f"            {note}" for note in data.notes)]))
    samples = ", ".join(f"{split} {x.num_targets}" for split, x in datasets.items()) or "not converted to a store yet"
    ranks.say(f"samples     {samples}")
    warnings = remarks(datasets)
    if config.folds and "test" in datasets and (size := len(datasets["test"].store)) < 4 * config.folds:
        # A head that says little but its mean says less for a fold of high values. Of 20 random values rho is -.55 with
        # 20 folds, -.2 with 10, -.07 with 5.
        warnings.append(f"{config.folds} folds of {size} structures: below 4 in one, rho, r and AUROC come out too low")
    if model and model.get("folds"):
        warnings.append(f"{config.eval_only} was fitted to all structures of its table: score it on others")
    for warning in warnings:
        ranks.say(f"warning     {warning}")
    return replace(data, options=options, notes=[*data.notes, *warnings]), datasets


def build_task(config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks) -> Task:
    """Encoder and head: from scratch, or with the encoder of --init-from."""
    torch.manual_seed(config.seed)
    encoder = weights.new_encoder(config, ranks.say)
    task = TASKS[config.task](encoder, len(data.classes) or None, **data.options)
    if config.init_from:
        checkpoint.initialise(task, config.init_from, ranks.say, encoder_only=True)
    if config.freeze:
        encoder.requires_grad_(False)
    sizes = {split: {"samples": x.num_targets, "structures": len(set(x.entry))} for split, x in datasets.items()}
    task.known = {"splits": sizes}
    if (split := "test" if config.folds else "train") in datasets:
        targets = datasets[split].targets()
        task.fit(targets, config.size)
        task.known["answer"] = task.answer(targets) if len(targets) else None
    trained = sum(p.numel() for p in task.parameters() if p.requires_grad)
    training = "" if config.eval_only else f", {trained:,} parameters to train"
    ranks.say(f"task        {config.task}, {config.level} level, seed {config.seed}{training}")
    start = config.eval_only or config.init_from or "scratch"
    ranks.say(f"encoder     {config.encoder}, size {config.size}, from {start}")
    return task.to(ranks.device)


def calibrate(config: Namespace, task: Task, dataset: Samples, ranks: Ranks) -> None:
    """Measure the means and variances of batch norm over 100 training batches, for a frozen encoder without training.

    With mean 0 and variance 1 instead, values would grow from layer to layer. All processes see the same batches.
    """
    batches = epoch_batches(len(dataset), config.batch_size, config.seed, 0)[:100]
    keys = [[(0, int(i)) for i in batch] for batch in batches]
    with closing(load_batches(dataset, keys, config, ranks.device)) as loaded:
        proteins = (sample.protein.to(ranks.device) for sample, _ in loaded)
        update_bn(map(task.encoder.builder.select_nodes, proteins), task.encoder)


class Embedded(Dataset):
    """Samples whose `protein` is the input of the head (structures * B, d). The processes that load them make it."""

    def __init__(self, samples: Samples, task: Task, amp: str):
        self.samples, self.task, self.amp = samples, task, amp

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        return self.samples[key]

    def collate(self, items: list[Sample]) -> tuple[Sample, list[str]]:
        sample, names = self.samples.collate(items)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.amp == "bf16"):
            return replace(sample, protein=self.task.represent(sample)), names


def embed(config: Namespace, task: Task, dataset: Samples, ranks: Ranks) -> results.Predictions:
    """The input of the head for every sample, as its score. On a CPU each sample goes alone, as in `siamdiff embed`."""
    if ranks.device.type != "cpu":
        return results.predict(task, dataset, config, ranks, task.represent)
    alone = Namespace(**{**vars(config), "batch_size": 1})
    return results.predict(task, Embedded(dataset, task, config.amp), alone, ranks, attrgetter("protein"))


def fit_head(config: Namespace, task: Task, datasets: dict, classes: tuple, ranks: Ranks) -> results.Predictions:
    """Embed the structures with the frozen encoder, then fit the linear head in closed form; write OUT/best.pt.

    Returns predictions for the test split. Without --folds the head is that of the two other splits. With --folds it is
    that of all structures, but each structure is predicted by a head of those in other folds, never by one that has
    seen its sequence. Raises ConfigError if there are too few structures.
    """
    if checkpoint.checkpoints(Path(config.out)):
        raise ConfigError(f"{config.out} holds checkpoints of another run: choose another --out")
    learnt = [datasets["test"]] if config.folds else [datasets["train"], datasets["valid"]]
    if not config.init_from:
        calibrate(config, task, learnt[0], ranks)
    parts = [embed(config, task, dataset, ranks) for dataset in learnt]
    sequence = {name: key for x in learnt for name, key in zip(x.store.names, x.store.sequences, strict=True)}
    groups = np.array([sequence[name] for part in parts for name in part.groups])
    x, y = (np.concatenate([getattr(part, field) for part in parts]) for field in ("score", "target"))
    fit = partial(linear.fit, kind=task.options["kind"], num_classes=len(classes))
    y = task.standardise(torch.from_numpy(y).to(ranks.device)).cpu().numpy()
    try:
        head = fit(x, y, groups)
        outputs = config.folds and linear.out_of_fold(fit, x, y, groups, config.folds)
    except ValueError as error:
        raise ConfigError(f"--freeze: {error}") from error
    layer = task.head.layers[-1]
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
    penalties = ", ".join(f"{penalty:g}" for penalty in sorted({*head.penalty}))
    ranks.say(f"head        linear, of {len(y)} samples, penalty {penalties}")
    if ranks.rank == 0:
        write_model(config, task, classes, 0.0, {})
    ranks.all_gather([])  # the others wait until it is there
    if not config.folds:
        return results.predict(task, datasets["test"], config, ranks)
    score = task.score(torch.from_numpy(outputs).to(ranks.device)).double().cpu().numpy()
    return replace(parts[0], score=score)


def write_model(config: Namespace, task: Task, classes: tuple, epochs: float, valid: dict) -> None:
    """Write OUT/best.pt: the model after so many epochs, with its metrics on the validation split."""
    content = {name: getattr(config, name) for name in ("task", *weights.IDENTITY, "seed", "max_residues", "folds")}
    content |= {
        "conventions": asdict(task.encoder.builder.conventions),
        "epochs": epochs,
        "valid": valid,
        "labels": list(classes),
        "options": task.options,
        **task.known,
    }
    weights.write_weights(f"{config.out}/best.pt", weights.MODEL, {**content, "state": task.state_dict()})


def train(config: Namespace, task: Task, datasets: dict[str, Samples], classes: tuple[str, ...], ranks: Ranks) -> int:
    """Minimise; OUT/best.pt is the epoch with the best validation metric. Returns the signal that ended it, or 0."""
    metric, mode = task.decides

    def score(epochs: float, values: dict[str, float]) -> float:
        """The score the next epoch must beat. Not counted: a nan metric, or an epoch cut short by --max-steps."""
        value = values[metric] if mode == "max" else -values[metric]
        return value if epochs == int(epochs) and np.isfinite(value) else -np.inf

    path = Path(config.out) / "best.pt"
    best = -np.inf

    def validate(epochs: float) -> dict[str, float]:
        nonlocal best
        predictions = results.predict(task, datasets["valid"], config, ranks)
        values = task.metrics(predictions.score, predictions.target, predictions.groups)
        values = {"samples": len(predictions.names), **values}
        if metric == "loss":
            values["loss"] = evaluate(task, every(datasets["valid"]), config, ranks)["loss"]
        if score(epochs, values) > best or best == -np.inf:
            best = score(epochs, values)
            if ranks.rank == 0:
                write_model(config, task, classes, epochs, values)
        return values

    if config.freeze and not config.init_from:
        calibrate(config, task, datasets["train"], ranks)
    plateau = OFFICIAL_PLATEAU.get(config.task) if config.preset == "official" else task.decides
    bound_to = hashlib.sha256("\0".join([datasets["valid"].checksum, *classes]).encode()).hexdigest()
    run = engine.Run(config, task, every(datasets["train"]), ranks, plateau, unit="samples", bound_to=bound_to)
    engine.begin(run)
    if run.step and path.exists():
        before = weights.read_weights(path, weights.MODEL)
        best = score(before["epochs"], before["valid"])
    stopped = engine.train(run, validate)
    if not stopped and best == -np.inf:
        reason = f"{metric} could not be measured, or none was whole"
        ranks.say(f"warning     no epoch could be compared ({reason}): best.pt is the last one")
    return stopped


def every(dataset: Samples) -> Subset:
    """All samples of a data set."""
    return Subset(dataset, range(len(dataset)))
