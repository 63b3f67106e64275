"""The options of train.py and finetune.py; `presets.py` has the paper's values of them.

`OPTIONS` describes every option once; the parser and its `--help` are made from it. An option that is not given is
None until `settled` fills it in. The filled-in options say what a run did: --dry-run prints them, and every checkpoint
keeps them. Nothing here loads torch, but for a file of weights or a plugin.
"""

import math
import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..conventions import CONVENTIONS
from ..files import ConfigError, Parser, import_plugins, load_module
from ..machine import cores, world_size
from ..names import ABLATIONS, IDENTITY, LEVELS, ONE_LEVEL, SIZES, STAGED, Choices, find_weights
from .presets import LR_DECAYS, TABLE_5, TABLE_6, USUAL, by_preset, differences, table_of

METHODS = Choices(list(TABLE_5), "pretraining", "OBJECTIVES")
TASKS = Choices(list(TABLE_6), "downstream.tasks", "TASKS")
ENCODERS = Choices(["gearnet", *ONE_LEVEL], "encoders", "ENCODERS")


class Option(NamedTuple):
    """One option: what argparse is told, and which runs it concerns."""

    arguments: dict  # of argparse's `add_argument`
    only: Sequence[str]  # the methods or tasks that have it; none: all
    free: bool  # may differ when a run is resumed: it changes no result, or the checksum of the data guards it


def option(help: str, default=None, only: Sequence[str] = (), free: bool = False, **arguments) -> Option:
    """An option. Without a default it is None, until a file or a preset fills it in, if any does."""
    help = help if default is None else f"{help} (default: {default})"
    help = f"{', '.join(only)}: {help}" if only else help
    return Option({"help": help.replace("%", "%%"), "default": default, **arguments}, only, free)


def row(commands: str, name: str, *description, **options) -> tuple[str, str, Option]:
    """A row of `OPTIONS`: the commands that have an option, its name, and what `option` is told."""
    return commands, name, option(*description, **options)


def at_least(low, convert: type = int, below: float = math.inf) -> Callable:
    """A converter from text to a number; argparse names the option of a wrong value."""

    def checked(text: str):
        if not low <= convert(text) < below:
            raise ArgumentTypeError(f"must be at least {low}{f' and below {below}' * (below < math.inf)}, got {text}")
        return convert(text)

    checked.__name__ = convert.__name__  # argparse shows it
    return checked


COUNT, FROM_ZERO, RATE = at_least(1), at_least(0), at_least(1e-12, float)
DECAY, SHARE = at_least(0, float), at_least(0, float, below=1)
SWITCH, SEVERAL = {"action": "store_true"}, {"type": FROM_ZERO, "nargs": "+"}  # no value; one number or more
FREE = {"free": True}
PREDICTED, CUTOFFS = ["ec", "psr"], (30, 40, 50, 70, 95)
TASK = "downstream task (default: of --eval-only, or psr); of labels of your own: --task table --help"
train, tune, both = (partial(row, commands) for commands in ("train", "finetune", "train finetune"))

OPTIONS = {  # group of --help -> its options, in order
    "what": [
        train("method", "pre-training objective", "siamdiff", choices=METHODS),
        tune("task", TASK, choices=TASKS),
        both("preset", "the paper, or the released code (default: of --init-from, or paper)", choices=CONVENTIONS),
        both("encoder", "encoder to train (default: of --init-from, or gearnet)", choices=ENCODERS),
        both("level", "level of detail (default: of --init-from, --encoder or --task, or atom)", choices=LEVELS),
        both("init_from", "start from siamdiff-atom, siamdiff-residue, an encoder.pt or a checkpoint"),
        train("ablation", "leave out a part of the method (Sec. 5.3, App. G)", "none", STAGED, choices=ABLATIONS),
        train("head_dim", "width of the heads (default: the width of their input)", only=STAGED, type=COUNT),
        tune("freeze", "train the head only", **SWITCH),
        both("esm", "esm-gearnet: weights of ESM-2, a file of fair-esm or of Hugging Face", **FREE),
        both("freeze_esm", "esm-gearnet: leave ESM-2 as it is; otherwise it learns at a tenth of --lr", **SWITCH),
        tune("eval_only", "do not train: score this model (OUT/seed-S/best.pt)", **FREE),
        tune("predict", "structures to predict (table too): predicted-NAME-*.tsv", only=PREDICTED, nargs="*", **FREE),
        both("plugin", "Python files that add a method, a task or an encoder", **FREE, nargs="+", action="extend"),
    ],
    "data": [
        train("data", "folder, .tar, .zip or file of structures, or a store (default: the bundled demo set)", **FREE),
        tune("data", "folder of the ATOM3D or EC set, or structures (default: a demo set from the bundle)", **FREE),
        both("store", "where to build stores (default: beside --data; of --predict in the cache)", **FREE),
        tune("cutoff", "the test split's largest identity to training, in %", 95, ("ec",), type=int, choices=CUTOFFS),
        train("valid_fraction", "share held out; the demo set has a split of its own", 0.05, type=SHARE),
    ],
    "size": [
        both("size", "smaller ones are for laptops (default: of --init-from, or paper; of a demo tiny)", choices=SIZES),
        train("epochs", "epochs of each stage, large and small noise; 0 leaves it out (default: preset)", **SEVERAL),
        tune("epochs", "epochs (default: preset)", type=COUNT, nargs=1),
        both("batch_size", "samples per process and forward pass (default: preset)", type=COUNT),
        both("global_batch_size", "samples per step of the optimizer (default: processes x batch size)", type=COUNT),
        train("valid_every", "epochs between validations (default: preset; 1 at paper size)", **FREE, type=COUNT),
        train("max_length", "residues kept of each protein (default: Table 5)", type=COUNT),
        tune("max_residues", "crop to train on, residues; msp: the nearest (default: 400 at atom level)", type=COUNT),
    ],
    "run": [
        train("lr", "learning rate of Adam (default: preset)", type=RATE),
        tune("lr", "learning rate of Adam at first; it falls as validation stalls (default: preset)", type=RATE),
        both("lr_decay", "none (the paper): see --lr; cosine lowers it to 0", "none", choices=LR_DECAYS),
        both("weight_decay", "weight decay of Adam", 0.0, type=DECAY),
        both("clip", "largest norm of the gradient; a longer one is shortened (default: no limit)", type=RATE),
        train("seed", "seed of weights, crops, order and noise", 0, type=FROM_ZERO),
        tune("seeds", "seeds of weights and order (default: 0); results are mean and std over them", **FREE, **SEVERAL),
        both("max_steps", "stop after so many steps in all", **FREE, type=COUNT),
        both("max_minutes", "stop (each seed) after so many minutes, saved and validated", **FREE, type=RATE),
        both("dry_run", "print the resolved options and sizes, then exit", **FREE, **SWITCH),
    ],
    "checkpoints": [
        both("out", "folder of the run", **FREE),
        both("resume", "auto or --out (its newest whole checkpoint, if any), never, or a checkpoint", "auto", **FREE),
        both("save_every", "steps between checkpoints; one is written after every epoch too", 1000, **FREE, type=COUNT),
        both("keep", "checkpoints kept", 2, **FREE, type=COUNT),
        both("log_every", "steps between lines of metrics.jsonl", 20, **FREE, type=COUNT),
    ],
    "machine": [
        both("device", "where to train", "auto", **FREE, choices=("auto", "cpu", "cuda")),
        both("amp", "autocast to bfloat16", "off", choices=("off", "bf16")),
        both("num_workers", "loader processes per process (default: up to 4)", **FREE, type=FROM_ZERO),
        both("threads", "CPU threads per process (default: torch's choice)", **FREE, type=COUNT),
        both("deterministic", "deterministic algorithms on the GPU too, slower", **FREE, **SWITCH),
    ],
}
PRETRAIN, FINETUNE = (  # name -> option; a plugin may add to them
    {name: option for rows in OPTIONS.values() for commands, name, option in rows if command in commands.split()}
    for command in ("train", "finetune")
)


def parse(argv: Sequence[str] | None, options: Mapping[str, Option], description: str) -> Namespace:
    """Read a command line, after importing its --plugin files. Raises ConfigError if one of these is not there."""
    plugins = Parser(add_help=False)
    plugins.add_argument("--plugin", nargs="+", default=[], action="extend")
    import_plugins(plugins.parse_known_args(argv)[0].plugin)
    parser = Parser(usage="%(prog)s [options]", description=description)
    groups = {title: [*dict.fromkeys(name for _, name, _ in rows)] for title, rows in OPTIONS.items()}
    groups["of a plugin"] = [name for name in options if not any(name in names for names in groups.values())]
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        for name in filter(options.__contains__, names):
            group.add_argument(flag(name), **options[name].arguments)
    return parser.parse_args(argv)


def flag(name: str, *values) -> str:
    """An option as it is given on the command line."""
    return " ".join(["--" + name.replace("_", "-"), *map(shown, values)])


def shown(value) -> str:
    """A value as it is given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def pretrain_options(argv: Sequence[str] | None = None, world: int | None = None) -> Namespace:
    """The options of train.py, all filled in, for `world` processes (default: those that torchrun has started).

    Raises ConfigError if they contradict one another or the file of --init-from, SystemExit for a wrong command line.
    """
    config = parse(argv, PRETRAIN, "Pre-train a protein structure encoder with DiffPreT or SiamDiff.")
    source = encoder_in(config.init_from) if config.init_from else {}
    config = settled(config, "method", {name: source[name] for name in IDENTITY if name in source}, world)
    stages = 2 if config.method in STAGED else 1
    epochs = config.epochs * stages if len(config.epochs) == 1 else config.epochs  # one number counts for both
    if len(epochs) != stages or not sum(epochs):
        raise ConfigError(f"{flag('epochs', epochs)}: {config.method} has {stages} of them, and needs one above 0")
    if config.method == "multiview" and config.batch_size == 1:
        raise ConfigError("multiview contrasts the proteins of a batch: --batch-size must be at least 2")
    return replace(config, epochs=epochs)


def finetune_options(argv: Sequence[str] | None = None, world: int | None = None) -> Namespace:
    """The options of finetune.py, all filled in, for `world` processes. Raises as `pretrain_options`."""
    return tuned(parse(argv, FINETUNE, "Fine-tune an encoder on a downstream task, or apply a model that was."), world)


def tuned(config: Namespace, world: int | None) -> Namespace:
    """These options of finetune.py, all filled in."""
    seeds = config.seeds or [0]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds must be different, got {shown(seeds)}")
    if config.predict == [] and not getattr(config, "features", None):
        raise ConfigError("--predict needs structures")

    # What the file that the run starts from says of itself.
    names = ["task", *IDENTITY]
    if config.eval_only:
        model = model_in(config.eval_only)
        source = model | {"seeds": [int(model["seed"])]}
        names += ["seeds", "max_residues"]
    elif config.init_from:
        source = encoder_in(for_seed(config, seeds[0]).init_from)
    else:
        source = {}
    return settled(config, "task", {name: source[name] for name in names if name in source}, world)


def encoder_in(path: str) -> dict:
    """The encoder of a file of weights: IDENTITY and `state`. Without a file there torch is not loaded."""
    find_weights(path)
    return load_module(".encoders.weights").load_encoder_file(path)


def model_in(path: str) -> dict:
    """The content of the file of a fine-tuned model."""
    find_weights(path)
    weights = load_module(".encoders.weights")
    return weights.read_weights(path, weights.MODEL)


def for_seed(config: Namespace, seed: int) -> Namespace:
    """The options of one seed: it has a folder of its own, and --init-from may name its number as `{seed}`."""
    start = config.init_from and config.init_from.replace("{seed}", str(seed))
    return replace(config, seed=seed, out=os.path.join(config.out or "", f"seed-{seed}"), init_from=start)


def settled(config: Namespace, subject: str, source: Mapping, world: int | None) -> Namespace:
    """Fill in the options that are None. The first of these that knows an option decides it:

    1. the command line, and the defaults that `OPTIONS` gives;
    2. the file that the run starts from: `source` is what it says of itself;
    3. the size, if it is a small one: `SMALLER`, `SMALL_TASK`;
    4. the preset: `EPOCHS` and `TABLE_5`, or `OFFICIAL_EPOCHS` and `TABLE_6`;
    5. what follows from the options above and from the `world` processes.

    The `subject` ("method" or "task"), encoder, level, size and preset come first, since the presets depend on them.
    Raises ConfigError for options that contradict the file, belong to other methods or tasks, or do not fit.
    """
    tuned = subject == "task"
    size = "tiny" if tuned and config.data is None else "paper"  # the demo sets are for laptops
    config = filled(config, source, {**USUAL, "size": size})
    level = "residue" if tuned and config.task == "ec" else "atom"
    config = filled(config, {"level": ONE_LEVEL.get(config.encoder, level)})
    check_choices(config, subject, source)
    config = filled(config, *by_preset(config, subject))
    world = world or world_size()
    together = world * config.batch_size
    workers = min(4, max(1, cores() // world))  # four keep up with a GPU (docs/performance.md)
    config = filled(config, {"out": folder(config), "global_batch_size": together, "num_workers": workers})
    if config.global_batch_size % together:
        problem = f"{flag('global_batch_size', config.global_batch_size)} is not a multiple of {world} processes x "
        size = fitting(config.global_batch_size, world, config.batch_size)
        help = f"Take {flag('batch_size', size)}" if size else "Take a multiple, or other processes"
        raise ConfigError(f"{problem}{flag('batch_size', config.batch_size)} = {together}. {help}")

    # Which checkpoint it goes on from.
    if os.path.realpath(config.resume) == os.path.realpath(config.out):  # with all its seeds
        return replace(config, resume="auto")
    if config.resume not in ("auto", "never"):
        find_weights(config.resume)
    return config


def fitting(together: int, world: int, most: int) -> int:
    """The largest batch size up to `most` of which `world` processes make a global batch of `together`; 0 without."""
    return max((size for size in range(1, most + 1) if together % (world * size) == 0), default=0)


def filled(config: Namespace, *sources: Mapping) -> Namespace:
    """The same options. A None takes the value of the first of `sources` that has one."""
    known = {name: value for source in reversed(sources) for name, value in source.items() if value is not None}
    return replace(config, **{name: known.get(name) for name, value in vars(config).items() if value is None})


def replace(config: Namespace, **changes) -> Namespace:
    """The same options with some changes."""
    return Namespace(**{**vars(config), **changes})


def check_choices(config: Namespace, subject: str, source: Mapping) -> None:
    """Raise ConfigError for options that contradict the file of the start, or that the method or task does not have."""
    options = FINETUNE if subject == "task" else PRETRAIN
    chosen = getattr(config, subject)

    # What the file of the start says of itself.
    file = getattr(config, "eval_only", None) or config.init_from
    for name in ("task", "seeds", *IDENTITY):
        if name not in source:
            continue
        value = getattr(config, name)
        held = source[name]
        if value != held:
            raise ConfigError(f"{flag(name, value)}, but {file} holds: {shown(held)}. Leave out {flag(name)}")
        if value not in options[name].arguments.get("choices", [value]):
            raise ConfigError(f"{flag(name, value)} of {file} is not known here. Does it come from a --plugin?")

    # Options that do not go together.
    if source and config.encoder.startswith("esm-gearnet") and getattr(config, "esm", None):
        raise ConfigError(f"{flag('esm')}: {file} has an ESM-2 of its own. Leave out {flag('esm')}")
    if chosen in ("pip", "res") and config.max_residues:
        raise ConfigError(f"{flag('max_residues')}: {chosen} sees no more than the surroundings of a residue")
    for name, option in options.items():
        foreign = option.only and chosen not in option.only
        if foreign and getattr(config, name) != option.arguments["default"]:
            raise ConfigError(f"{flag(name)} is for {' and '.join(option.only)}, not for {chosen}")


def folder(config: Namespace, labels: str = "") -> str:
    """The folder of a run without --out. It does not name the data of pre-training: they may have moved."""
    if getattr(config, "eval_only", None):
        return os.path.join(os.path.dirname(config.eval_only), "eval")
    tuned = "task" in config
    words = [config.task if tuned else config.method, labels]
    if config.encoder != "gearnet":
        words.append(config.encoder)
    words += [config.level, config.size]
    if tuned:
        words.append(Path(config.data or "/").resolve().name)
    if config.init_from:
        words += ["from", *Path("/", config.init_from).with_suffix("").parts[1:][-2:]]
    elif tuned:
        words.append("scratch")
    if getattr(config, "freeze", False):
        words.append("frozen")
    if getattr(config, "seed", 0):  # so that two seeds do not meet in one folder
        words.append(f"seed-{config.seed}")
    return "runs/" + "-".join(word for word in words if word)


def printed(config: Namespace) -> str:
    """The options, one per line, and what the preset decides of them."""
    options = "\n".join(f"{name:18}  {value}" for name, value in vars(config).items())
    return f"{options}\n\n{table_of(differences(config), config.preset)}"
