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
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset

from .downstream.tasks import TASKS, Classes, Task
from .encoders import weights
from .files import ConfigError
from .machine import identity
from .reading.sources import structure_files
from .reading.store import finished_store, open_store
from .sets.labelled_set import SPLITS, LabelledData, alpha_carbons_alone, remarks
from .sets.samples import Samples, Unlabelled
from .sets.sets import SETS
from .tools.color import color_predictions
from .training import checkpoint, engine, frozen, results
from .training.config import FINETUNE, finetune_options, flag, for_seed, printed
from .training.evaluation import evaluate
from .training.presets import OFFICIAL_PLATEAU
from .training.ranks import Ranks, launch, world_size
from .training.run import provenance, started_from


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit status, 128 + n after signal n."""
    config = finetune_options(argv, __doc__.splitlines()[0], world_size())
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


def run_seeds(config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks) -> int:
    """For every seed: minimise, then score the best epoch on the test split. Apply the last seed's model."""
    tested = {}
    epochs = {}
    closed_form = data.options.get("linear") and not config.eval_only
    for seed in config.seeds:
        of_seed = for_seed(config, seed)
        task = build_task(of_seed, data, datasets, ranks)
        if closed_form:
            tested[seed] = frozen.fit_head(of_seed, task, datasets, data.classes, ranks)
        elif not config.eval_only:
            stopped = train(of_seed, task, datasets, data.classes, ranks)
            if stopped:
                return 128 + stopped

        # From here on the task is the model of the best epoch, with what its file says of the data.
        best = config.eval_only or f"{of_seed.out}/best.pt"
        model = weights.read_weights(best, weights.MODEL)
        weights.load_weights(task, model["state"], best)
        if not datasets:
            continue
        known = task.known
        task.known = {
            "splits": {**model.get("splits", {}), **known["splits"]},
            "answer": known.get("answer") or model.get("answer"),
            "notes": data.notes,
        }
        if not closed_form:
            epochs[str(seed)] = float(model["epochs"])
            found = results.predict(task, datasets["test"], of_seed, ranks)
            tested[seed] = frozen.joined([found], [datasets["test"]]) if task.options else found
        if ranks.rank == 0:
            path = Path(of_seed.out) / "predictions.tsv"
            results.write_predictions(path, tested[seed], data.classes or task.names, isinstance(task, Classes))

    # The results of all seeds; a model of a table keeps the verdict. Then predictions for other structures.
    if tested and ranks.rank == 0:
        path = Path(config.out) / "results.json"
        ranks.say(results.write_results(path, config, task, tested, epochs, made_with(config, ranks)))
        for seed in tested if closed_form else ():
            results.keep_verdict(Path(for_seed(config, seed).out) / "best.pt", task, path, tested[seed])
    ranks.all_gather([])  # the others wait for it
    new = [apply(of_seed, path, task, data, ranks, Path(best)) for path in config.predict or ()]
    folder = Path(config.out)
    before = {*folder.glob("report.html"), *folder.rglob("predicted-*.tsv")}
    older = sorted(str(path) for path in before.difference(new))
    if older and not config.eval_only:
        ranks.say(f"warning     older than this model, make them anew: {', '.join(older)}")
    if not new and config.task in FINETUNE["predict"].only and not config.features:
        plugin = f" {flag('plugin', config.plugin)}" if config.plugin else ""
        ranks.say(f"new files   siamdiff finetune --eval-only {best} --predict STRUCTURES{plugin}")
    return 0


def made_with(config: Namespace, ranks: Ranks) -> dict:
    """What the run was made with; of every seed the file it started from, if each has its own."""
    made = provenance(for_seed(config, config.seeds[0]), ranks)
    if "{seed}" in (config.init_from or ""):
        made["started_from"] = {str(seed): started_from(for_seed(config, seed)) for seed in config.seeds}
    return made


def apply(config: Namespace, source: str, task: Task, data: LabelledData, ranks: Ranks, best: Path) -> Path:
    """Predict for all structures of a source, or each chain of them; returns the table. Others get another table.

    The table names the file of the model, `best`, which may have a verdict and the errors of its table: they are
    repeated.
    """
    in_store = finished_store(Path(source))  # which has its own entries
    origin = structure_files(source, each_chain=data.options.get("each_chain", False) and not in_store)
    store = ranks.build_in_turn(lambda: open_store(origin, workers=config.num_workers or 1, beside=False))
    problem = alpha_carbons_alone(store) if config.level == "atom" else ""
    if problem:
        ranks.say(f"warning     {problem}")
    unlabelled = Unlabelled(store, residues=data.options.get("residues", False))
    predictions = results.predict(task, unlabelled, config, ranks)

    name = Path(source).resolve().name.split(".")[0]
    path = Path(config.out).parent / f"predicted-{name}-{store.checksum[:6]}.tsv"
    model = weights.read_weights(best, weights.MODEL)
    within = model.get("within", [])
    doubt = model.get("verdict", "")
    if ranks.rank == 0:
        columns = data.classes or task.names
        said = {"verdict": doubt} if doubt else {}
        name, digest, version = identity(str(best), best)
        said["model"] = f"{name} {digest[:12]} {version}"
        results.write_predictions(path, predictions, columns, isinstance(task, Classes), within, said)
    ranks.say(f"predicted   {len(unlabelled)} structures: {path}")
    if config.pdb and data.options.get("residues") and ranks.rank == 0:
        ranks.say(f"coloured    {len(color_predictions(path, Path(source)))} files: {path.with_suffix('')}")
    if within:
        ranks.say("            low and high: 90 % of values of structures like those of the table lie between them")
    if doubt:
        ranks.say(f"verdict     {doubt}: {model.get('advice', 'do not rely on these numbers')}")
    return path


def open_data(config: Namespace, ranks: Ranks, model: dict | None) -> tuple[LabelledData, dict[str, Samples]]:
    """The data with the options of the task, and the samples of every split. Raises ConfigError if a model has others.

    Every split is converted once to a memory-mapped store, by the first process. A dry run writes none; a model that is
    only applied needs none.
    """
    if model and config.predict and not config.data:
        return LabelledData(classes=classes_of(model), options=model["options"]), {}
    needed = ("test",) if model or config.folds else tuple(SPLITS)  # all that is scored is in the test split
    data = SETS[config.task](config, needed)
    options = {}
    if data.options:
        options = {**data.options, "metric": config.metric, "linear": config.freeze}
    if model:
        options = model["options"]
        check_labels(config, data, model)

    # From the stores of the splits to samples.
    workers = config.num_workers or 1

    def open_all() -> list:
        return [data.open(split, workers=workers, build=not config.dry_run) for split in needed]

    stores = ranks.build_in_turn(open_all)
    datasets = {}
    if None not in stores:
        for split, store in zip(needed, stores):
            cropped = split == "train" or config.task == "msp"  # other tasks see whole structures in evaluation
            datasets[split] = data.samples(store, data.classes, config.max_residues if cropped else None)

    # What the user should know about them.
    ranks.say(f"data        {config.data or 'demo set (made from the bundled structures; --data for your own)'}")
    ranks.say(f"labels      {data.about}")
    for note in data.notes:
        ranks.say(f"            {note}")
    samples = ", ".join(f"{split} {x.num_targets}" for split, x in datasets.items())
    ranks.say(f"samples     {samples or 'not converted to a store yet'}")
    warnings = remarks(datasets, ("train", "valid") if config.freeze and data.options else ("train",))
    if config.folds and datasets:
        size = len({*datasets["test"].store.sequences})
        warnings += frozen.small_folds(size, config.folds, data.options["kind"])
    if config.level == "atom" and data.options and not config.features:
        carbons = [alpha_carbons_alone(x.store) for x in datasets.values()]
        warnings += sorted({*filter(None, carbons)})
    if model and model.get("folds"):
        warnings.append(f"{config.eval_only} was fitted to all structures of its table: score it on others")
    for warning in warnings:
        ranks.say(f"warning     {warning}")
    return replace(data, options=options, notes=[*data.notes, *warnings]), datasets


def classes_of(model: dict) -> tuple[str, ...]:
    """The classes that a model file predicts; it calls them "labels"."""
    return tuple(model["labels"])


def check_labels(config: Namespace, data: LabelledData, model: dict) -> None:
    """Raise ConfigError if a model was trained on other labels. The title of the values and their files may differ."""
    theirs = model["options"]
    own = {name: value for name, value in data.options.items() if name not in ("column", "each_chain")}
    same_options = all(theirs.get(name) == value for name, value in own.items())
    if data.classes == classes_of(model) and same_options:
        return
    source = f"{config.labels or config.data or 'the demo'}"
    alone = sorted({*data.classes} ^ {*classes_of(model)})
    if alone:
        source += f"; of one alone: {', '.join(alone[:3])}"
    raise ConfigError(f"{config.eval_only} was trained on other labels than those of {source}")


def build_task(config: Namespace, data: LabelledData, datasets: dict[str, Samples], ranks: Ranks) -> Task:
    """Encoder and head: from scratch, or with the encoder of --init-from."""
    torch.manual_seed(config.seed)
    if config.features:
        encoder = frozen.GivenFeatures(config.features, data.options["residues"])
    else:
        encoder = weights.new_encoder(config, ranks.say)
    task = TASKS[config.task](encoder, len(data.classes) or None, **data.options)
    if config.features:
        task.represent = encoder.represent
    if config.init_from:
        checkpoint.initialise(task, config.init_from, ranks.say, encoder_only=True)
    if config.freeze:
        encoder.requires_grad_(False)

    # What the training split says before anything is learned; with --folds all structures are in the test split.
    sizes = {}
    for split, x in datasets.items():
        sizes[split] = {"samples": x.num_targets, "structures": len(set(x.entry))}
    task.known = {"splits": sizes}
    split = "test" if config.folds else "train"
    if split in datasets:
        targets = datasets[split].targets()
        if data.options and not config.freeze and not config.eval_only:
            frozen.check_different(task, targets)
        task.fit(targets, config.size)
        task.known["answer"] = task.baseline(targets) if len(targets) else None

    trained = sum(p.numel() for p in task.parameters() if p.requires_grad)
    training = "" if config.eval_only else f", {trained:,} parameters to train"
    level = "" if config.features else f", {config.level} level"
    ranks.say(f"task        {config.task}{level}, seed {config.seed}{training}")
    start = config.eval_only or config.init_from or "scratch"
    source = f"{config.encoder}, size {config.size}, from {start}"
    ranks.say(f"encoder     {f'none, vectors of {config.features}' if config.features else source}")
    return task.to(ranks.device)


def train(config: Namespace, task: Task, datasets: dict[str, Samples], classes: tuple[str, ...], ranks: Ranks) -> int:
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
        frozen.calibrate(config, task, datasets["train"], ranks)
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


def whole(dataset: Samples) -> Subset:
    """All samples of a data set."""
    return Subset(dataset, range(len(dataset)))
