"""The options of train.py and finetune.py, and the paper's presets: Tables 5 and 6, and the numbers of epochs.

`PRETRAIN` and `FINETUNE` describe every option; the parser and its `--help` are made from them. An option that is not
given is None. It is filled in from the file of weights that the run starts from, then from the presets. The filled-in
options say what a run did: --dry-run prints them, and every checkpoint keeps them.
"""

import importlib
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..conventions import CONVENTIONS
from ..downstream.tasks import KINDS, TASKS
from ..encoders import ENCODERS, ONE_LEVEL, weights
from ..files import ConfigError, Parser
from ..pretraining import ABLATIONS, OBJECTIVES, STAGED

# ---- presets ---------------------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    """One method at one level in Table 5."""

    max_length: int | None  # residues kept of each protein, None: all
    batch_size: int  # per process; the paper used four
    lr: float


class TaskSettings(NamedTuple):
    """One task at one level in Table 6, and its number of epochs (Sec. 5.1)."""

    batch_size: int  # per process
    processes: int  # the paper's
    epochs: int


TABLE_5 = {  # method -> level -> settings; the optimizer is Adam throughout
    "residue-type": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "distance": {"residue": Settings(100, 128, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "angle": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "dihedral": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "multiview": {"residue": Settings(None, 96, 1e-3), "atom": Settings(None, 64, 1e-3)},
    "score-matching": {"residue": Settings(200, 12, 1e-4), "atom": Settings(200, 12, 1e-4)},
    "residue-type+distance": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},  # App. F: as above
    "residue-type+angle": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "residue-type+dihedral": {"residue": Settings(100, 96, 1e-3), "atom": Settings(100, 64, 1e-3)},
    "torsional": {"atom": Settings(100, 64, 1e-4)},  # App. G: as DiffPreT
    "diffpret": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},
    "siamdiff": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 32, 1e-4)},
}
TABLE_6 = {  # task -> level -> settings; Adam with lr 1e-4 throughout
    "ec": {"residue": TaskSettings(2, 4, 50)},
    "pip": {"atom": TaskSettings(8, 1, 10)},
    "msp": {"residue": TaskSettings(1, 4, 50), "atom": TaskSettings(8, 1, 50)},
    "res": {"atom": TaskSettings(64, 4, 10)},
    "psr": {"residue": TaskSettings(8, 4, 50), "atom": TaskSettings(8, 1, 50)},
    "table": {"residue": TaskSettings(8, 1, 50), "atom": TaskSettings(8, 1, 50)},  # ours, as PSR
}
EPOCHS = {"paper": [25, 25], "official": [25, 50]}  # of stages 1 and 2 (differences.md, row 2); without stages 50
OFFICIAL_EPOCHS = {"res": {"epochs": [5]}}  # as the released code (differences.md, row 22)
MAX_RESIDUES = {("msp", "atom"): 400}  # nearest to the mutation
SMALLER = {  # size, level -> what changes, for laptops: many small steps. "tiny" ends within 5 minutes on 2 cores
    ("tiny", "atom"): {"batch_size": 2, "epochs": [5, 6], "lr": 2e-3},
    ("tiny", "residue"): {"batch_size": 4, "epochs": [12, 12], "lr": 2e-3},
    ("small", "atom"): {"batch_size": 4, "epochs": [25, 25], "lr": 1e-3},
    ("small", "residue"): {"batch_size": 8, "epochs": [25, 25], "lr": 1e-3},
    ("tiny", "atom", "multiview"): {"batch_size": 8, "epochs": [6, 6]},  # it needs others to contrast with
    ("tiny", "residue", "multiview"): {"batch_size": 8, "epochs": [20, 20]},
}
SMALL_TASK = {"lr": 1e-3, "epochs": [8], "batch_size": 8}  # for the small sizes; the paper's batch where smaller
SIZES = ("paper", "small", "tiny")

# ---- options ---------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """One option: what argparse is told, and which runs it concerns."""

    about: dict  # arguments of argparse
    only: tuple[str, ...]  # the methods or tasks that have it; none: all
    free: bool  # may change when a run is resumed: it does not alter the course, or the checksum of the data decides


def option(help: str, default=None, only: tuple[str, ...] = (), free: bool = False, **about) -> Option:
    """An option; without a default it is None, which stands for a file's value, a preset's, or nothing."""
    help = help if default is None else f"{help} (default: {default})"
    help = f"{', '.join(only)}: {help}" if only else help
    return Option({"help": help.replace("%", "%%"), "default": default, **about}, only, free)


def number(kind: type, test: Callable, words: str) -> Callable:
    """A converter from text to a number that must pass the test; argparse names the option of a wrong value."""

    def convert(text: str):
        if not test(value := kind(text)):
            raise ArgumentTypeError(f"must be {words}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse shows it
    return convert


COUNT = number(int, lambda x: x >= 1, "at least 1")
FROM_ZERO = number(int, lambda x: x >= 0, "at least 0")
RATE = number(float, lambda x: x > 0, "above 0")
DECAY = number(float, lambda x: x >= 0, "at least 0")
SHARE = number(float, lambda x: 0 <= x < 1, "in [0, 1)")
SWITCH = {"action": "store_true"}  # an option without a value
free = partial(option, free=True)

RUN = {  # what both have in common
    "level": option(
        "level of detail (default: of --init-from, --encoder or --task, or atom)", choices=("atom", "residue")
    ),
    "preset": option("the paper, or the released code (default: of --init-from, or paper)", choices=CONVENTIONS),
    "encoder": option("encoder to train (default: of --init-from, or gearnet)", choices=ENCODERS),
    "size": option(
        "smaller ones are for laptops (default: of --init-from, or paper; tiny to fine-tune on a demo set)",
        choices=SIZES,
    ),
    "batch_size": option("samples per process and forward pass (default: preset)", type=COUNT),
    "global_batch_size": option("samples per step of the optimizer (default: processes x batch size)", type=COUNT),
    "lr": option("learning rate of Adam (default: preset)", type=RATE),
    "lr_decay": option("none (the paper) keeps --lr; cosine lowers it to 0", "none", choices=("none", "cosine")),
    "weight_decay": option("weight decay of Adam", 0.0, type=DECAY),
    "amp": option("autocast to bfloat16", "off", choices=("off", "bf16")),
    "init_from": option("start from siamdiff-atom, siamdiff-residue, an encoder.pt or a checkpoint"),
    "esm": free("esm-gearnet: weights of ESM-2, a file of fair-esm"),
    "freeze_esm": option("esm-gearnet: leave ESM-2 as it is; otherwise it learns at a tenth of --lr", **SWITCH),
    "out": free("folder of the run"),
    "resume": free("auto (newest whole checkpoint of --out, if any), never, or a checkpoint", "auto"),
    "max_steps": free("stop after so many steps in all", type=COUNT),
    "max_minutes": free("stop (each seed) after so many minutes, with a checkpoint and a validation", type=RATE),
    "save_every": free("steps between checkpoints; one is written after every epoch too", 1000, type=COUNT),
    "keep": free("checkpoints kept", 2, type=COUNT),
    "log_every": free("steps between lines of metrics.jsonl", 20, type=COUNT),
    "num_workers": free("loader processes per process (default: up to 4)", type=FROM_ZERO),
    "device": free("where to train", "auto", choices=("auto", "cpu", "cuda")),
    "threads": free("CPU threads per process (default: torch's choice)", type=COUNT),
    "deterministic": free("deterministic algorithms on the GPU too, slower", **SWITCH),
    "plugin": free("Python files that add a method, a task or an encoder", nargs="+"),
    "dry_run": free("print the resolved options and sizes, then exit", **SWITCH),
}
PRETRAIN = RUN | {
    "method": option("pre-training objective", "siamdiff", choices=OBJECTIVES),
    "ablation": option("leave out a part of the method (Sec. 5.3, App. G)", "none", choices=ABLATIONS, only=STAGED),
    "head_dim": option("width of the heads (default: the width of their input)", type=COUNT, only=STAGED),
    "data": free("folder, .tar, .zip or file of structures, or a store (default: the bundled demo set)"),
    "store": free("where to build the store of --data (default: beside it)"),
    "valid_fraction": option("share held out; the demo set has a split of its own", 0.05, type=SHARE),
    "max_length": option("residues kept of each protein (default: Table 5)", type=COUNT),
    "epochs": option(
        "epochs of each stage, large and small noise; 0 leaves it out (default: preset)", type=FROM_ZERO, nargs="+"
    ),
    "seed": option("seed of weights, crops, order and noise", 0, type=FROM_ZERO),
}
FINETUNE = RUN | {
    "task": option("downstream task (default: of --eval-only, or psr)", choices=TASKS),
    "data": free("folder of the ATOM3D or EC set, or structures (default: a demo set from the bundle)"),
    "max_residues": option("residues kept, the nearest (default: 400 at atom level)", type=COUNT, only=("msp",)),
    "cutoff": option(
        "the test split's largest identity to training, in %", 95, type=int, choices=(30, 40, 50, 70, 95), only=("ec",)
    ),
    "ids": option("text file with the ids to use", only=("ec",)),
    "labels": free("file of labels for the structures of --data", only=("table",)),
    "kind": option("kind of the labels (default: by their looks)", choices=KINDS, only=("table",)),
    "metric": option(
        "metric that decides which epoch is the best (default: by kind)",
        choices=tuple(dict.fromkeys(name for kind in KINDS.values() for name in kind.measures)),
        only=("table",),
    ),
    "seeds": free(
        "seeds of weights and order (default: 0); the results are mean and std over them", type=FROM_ZERO, nargs="+"
    ),
    "epochs": option("epochs (default: preset)", type=COUNT, nargs=1),
    "freeze": option("train the head only", **SWITCH),
    "save_predictions": free("no effect: OUT/seed-S/predictions.tsv is always written", **SWITCH),
    "eval_only": free("do not train: score this model (OUT/seed-S/best.pt)"),
    "predict": free("structures to apply the model to, written to OUT/predicted-NAME.tsv", only=("ec", "psr", "table")),
}
GROUPS = {  # of --help
    "what": "method task preset encoder level init_from ablation head_dim freeze esm freeze_esm kind metric "
    "eval_only predict save_predictions plugin",
    "data": "data store labels ids cutoff valid_fraction",
    "size": "size epochs batch_size global_batch_size max_length max_residues",
    "run": "lr lr_decay weight_decay seed seeds max_steps max_minutes dry_run",
    "checkpoints": "out resume save_every keep log_every",
    "machine": "device amp num_workers threads deterministic",
}
FREE = {name for name, option in (PRETRAIN | FINETUNE).items() if option.free}


def parse(argv: list[str] | None, options: Mapping[str, Option], description: str) -> Namespace:
    """Read a command line. The files of --plugin are imported first: they may add to what can be chosen.

    Raises ConfigError for a plugin that is not there, SystemExit for a wrong command line.
    """
    plugins = Parser(add_help=False)
    plugins.add_argument("--plugin", nargs="+", type=Path, default=[])
    for path in plugins.parse_known_args(argv)[0].plugin:
        if not path.is_file():
            raise ConfigError(f"--plugin {path}: no such file")
        sys.path.insert(0, str(path.parent))
        importlib.import_module(path.stem)
    parser = Parser(usage="%(prog)s [options]", description=description)
    groups = {title: names.split() for title, names in GROUPS.items()}
    groups["of a plugin"] = [name for name in options if not any(name in names for names in groups.values())]
    for title, names in groups.items():
        group = parser.add_argument_group(title)
        for name in filter(options.__contains__, names):
            group.add_argument(flag(name), **options[name].about)
    return parser.parse_args(argv)


def flag(name: str, *values) -> str:
    """An option as it is given on the command line."""
    return " ".join(["--" + name.replace("_", "-"), *map(shown, values)])


def shown(value) -> str:
    """A value as it is given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- what a run does -------------------------------------------------------------------------------------------------


def pretrain_options(argv: list[str] | None = None, description: str = "", world: int = 1) -> Namespace:
    """The options of train.py, all filled in, for `world` processes.

    Raises ConfigError if they contradict one another or the file of --init-from, SystemExit for a wrong command line.
    """
    config = parse(argv, PRETRAIN, description)
    source = weights.load_encoder_file(config.init_from) if config.init_from else {}
    config, row = settled(config, "method", source)
    at = config.size, config.level
    small = SMALLER.get(at, {}) | SMALLER.get((*at, config.method), {})
    stages = 2 if config.method in STAGED else 1
    usual = small.get("epochs", EPOCHS[config.preset] if stages == 2 else [50])
    epochs = config.epochs or (usual if stages == 2 else [sum(usual)])
    epochs = epochs * stages if len(epochs) == 1 else epochs  # one number counts for both
    if len(epochs) != stages or not sum(epochs):
        raise ConfigError(f"{flag('epochs', epochs)}: {config.method} has {stages} of them, and needs one above 0")
    config = filled(replace(config, epochs=epochs), small, row._asdict(), {"out": folder(config, config.method)})
    if config.method == "multiview" and config.batch_size == 1:
        raise ConfigError("multiview contrasts the proteins of a batch: --batch-size must be at least 2")
    return in_batches(config, world)


def finetune_options(argv: list[str] | None = None, description: str = "", world: int = 1) -> Namespace:
    """The options of finetune.py, all filled in, for `world` processes. Raises as `pretrain_options`."""
    config = parse(argv, FINETUNE, description)
    seeds, source = config.seeds or [0], {}
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds must be different, got {shown(seeds)}")
    if config.eval_only:
        source = weights.load(config.eval_only, weights.MODEL)
        with weights.malformed(config.eval_only):
            more = {"seeds": [int(source["seed"])], "options": {**source["options"]}, "labels": [*source["labels"]]}
            source = {**source, **more}
    elif config.init_from:
        source = weights.load_encoder_file(for_seed(config, seeds[0]).init_from)
    default = {"task": "psr", "size": "tiny" if config.data is None else "paper", "seeds": [0]}
    config, row = settled(config, "task", source, default)
    row, kept = row._asdict() | {"epochs": [row.epochs]}, {"max_residues": source.get("max_residues")}
    kept["kind"] = source.get("options", {}).get("kind")
    if config.preset == "official":
        row |= OFFICIAL_EPOCHS.get(config.task, {})
    if config.size != "paper":
        row |= SMALL_TASK | {"batch_size": min(row["batch_size"], SMALL_TASK["batch_size"])}
    default = {"lr": 1e-4, "max_residues": MAX_RESIDUES.get((config.task, config.level))}
    default["out"] = folder(config, config.task, "scratch")
    if config.eval_only:
        default["out"] = os.path.join(os.path.dirname(config.eval_only), "eval")
    return in_batches(filled(config, kept, row, default), world)


def for_seed(config: Namespace, seed: int) -> Namespace:
    """The options of the run of one seed, with a folder of its own and what --init-from names for this seed."""
    start = config.init_from and config.init_from.replace("{seed}", str(seed))
    return replace(config, seed=seed, out=os.path.join(config.out or "", f"seed-{seed}"), init_from=start)


def replace(config: Namespace, **changes) -> Namespace:
    """The same options with some changes."""
    return Namespace(**{**vars(config), **changes})


def filled(config: Namespace, *sources: Mapping) -> Namespace:
    """The same options; what is None is taken from the first of `sources` that has it."""
    known = {name: value for source in reversed(sources) for name, value in source.items() if value is not None}
    return replace(config, **{name: known.get(name) for name, value in vars(config).items() if value is None})


def settled(config: Namespace, kind: str, source: Mapping, default: Mapping = {}) -> tuple[Namespace, NamedTuple]:
    """The same with "method" or "task" (`kind`), encoder, level, size and preset; and their row of Table 5 or 6.

    `source` is what the file that the run starts from says of itself. Raises ConfigError if it contradicts the command
    line, for options of other methods or tasks, and without a row.
    """
    options, table = (PRETRAIN, TABLE_5) if kind == "method" else (FINETUNE, TABLE_6)
    known = {name: source[name] for name in ("task", "seeds", *weights.IDENTITY) if name in source}
    config = filled(config, known, default, {"encoder": "gearnet", "preset": "paper", "size": "paper"})
    chosen = getattr(config, kind)
    for name, option in options.items():
        if option.only and chosen not in option.only and getattr(config, name) != option.about["default"]:
            raise ConfigError(f"{flag(name)} is for {' and '.join(option.only)}, not for {chosen}")
    config = filled(config, {"level": ONE_LEVEL.get(config.encoder, "residue" if chosen == "ec" else "atom")})
    file = getattr(config, "eval_only", None) or config.init_from
    for name, value in known.items():
        if getattr(config, name) != value:
            given = flag(name, getattr(config, name))
            raise ConfigError(f"{given}, but {file} holds: {shown(value)}. Leave out {flag(name)}")
        if value not in options[name].about.get("choices", [value]):
            raise ConfigError(f"{flag(name, value)} of {file} is not known here. Does it come from a --plugin?")
    rows = table.get(chosen, TABLE_6["table"] if kind == "task" else {})  # a task of a plugin needs no row
    if config.level not in rows:
        levels = " and ".join(rows) or "no"
        raise ConfigError(f"{flag(kind, chosen)} exists at {levels} level, not at {config.level} level")
    return config, rows[config.level]


def in_batches(config: Namespace, world: int) -> Namespace:
    """The same with all batch sizes, for `world` processes. Raises ConfigError if they do not fit."""
    together = world * config.batch_size
    workers = min(4, max(1, (os.cpu_count() or 1) // world))
    config = filled(config, {"global_batch_size": together, "num_workers": workers})
    if config.global_batch_size % together:
        raise ConfigError(
            f"--global-batch-size {config.global_batch_size} is not a multiple of {world} processes x "
            f"--batch-size {config.batch_size} = {together}"
        )
    return config


def folder(config: Namespace, kind: str, start: str = "") -> str:
    """The folder of a run without --out: runs with other data or another start do not meet there."""
    data, encoder = Path(config.data or "/").resolve().name, "" if config.encoder == "gearnet" else config.encoder
    if config.init_from:
        start = "-".join(["from", *Path("/", config.init_from).with_suffix("").parts[1:][-2:]])
    return "runs/" + "-".join(filter(None, [kind, encoder, config.level, config.size, data, start]))


def printed(config: Namespace) -> str:
    """The options, a line each."""
    return "\n".join(f"{name:18}  {value}" for name, value in vars(config).items())


def check_resumable(config: Namespace, before: Mapping, path: Path) -> None:
    """Raise ConfigError that names the options in which a run differs from its checkpoint, which has `before`."""
    now = {name: value for name, value in vars(config).items() if name not in FREE and before.get(name) != value}
    if now:
        changed = "; ".join(f"{flag(name)} was {before.get(name)!r}, is {value!r}" for name, value in now.items())
        raise ConfigError(
            f"cannot resume {path} with other options: {changed}. Choose another --out, or start from "
            "its weights with --init-from"
        )
