"""The options of pre-training and fine-tuning: every field says what it is, and that is the `--help` too.

None means "from the preset": Tables 5 and 6 of the paper and the numbers of epochs are data here, `resolve` fills
them in. What a run did is its resolved config, which is printed and kept in every checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from ..encoders import ONE_LEVEL
from ..files import ConfigError


class Settings(NamedTuple):
    """One method at one level in Table 5."""

    max_length: int | None  # residues kept of each protein, None: all
    batch_size: int  # per process; the paper used four
    lr: float


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
    "torsional": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},  # App. G: as DiffPreT
    "diffpret": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},
    "siamdiff": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 32, 1e-4)},
}
CUTOFFS = (30, 40, 50, 70, 95)  # sequence identities of the EC test splits, in %
STAGED = ("diffpret", "siamdiff")  # trained in two stages (Sec. 3.4), the others in one
SIZES = ("paper", "small", "tiny")
EPOCHS = {"paper": (25, 25), "official": (25, 50)}  # of stages 1 and 2 (differences.md, row 2); without stages 50
SMALLER = {  # size, level -> what changes, for laptops: many small steps. "tiny" ends within 5 minutes on 2 cores
    ("tiny", "atom"): {"batch_size": 2, "epochs": (5, 6), "lr": 2e-3},
    ("tiny", "residue"): {"batch_size": 4, "epochs": (12, 12), "lr": 2e-3},
    ("small", "atom"): {"batch_size": 4, "epochs": (25, 25), "lr": 1e-3},
    ("small", "residue"): {"batch_size": 8, "epochs": (25, 25), "lr": 1e-3},
}
TINY_CONTRAST = {"atom": {"batch_size": 8, "epochs": (6, 6)}, "residue": {"batch_size": 8, "epochs": (20, 20)}}


def option(default, help: str, free: bool = False, **more):
    """A field. `free`: it does not alter the course of a run and may change when it is resumed; `only`: of one task;
    `least`: the smallest number allowed, 1 for integers where nothing is said."""
    return field(default=default, metadata={"help": help, "free": free, **more})


def settings(table: Mapping, option: str, name: str, level: str) -> tuple:
    """The row of Table 5 or 6. Raises ConfigError if there is none at this level."""
    if level not in table.get(name, {}):
        levels = " and ".join(table.get(name, ())) or "no"
        raise ConfigError(f"--{option} {name} exists at {levels} level, not at {level} level")
    return table[name][level]


def stages(epochs) -> list[int]:
    """The stage of every epoch."""
    numbers = epochs if isinstance(epochs, list | tuple) else [epochs]
    return [stage for stage, number in enumerate(numbers, 1) for _ in range(number)]


def flag(name: str, *values) -> str:
    """An option as it is given on the command line."""
    return " ".join(["--" + name.replace("_", "-"), *map(shown, values)])


def shown(value) -> str:
    """A value as it is given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def pick(given, preset):
    """The first of the two that says something."""
    return preset if given is None else given


@dataclass(frozen=True)
class RunConfig:
    """What pre-training and fine-tuning have in common."""

    level: str | None = option(
        None,
        "what the nodes of the graph are (default: what --encoder, its file or --task leave, or atom)",
        choices=("atom", "residue"),
    )
    preset: str = option("paper", "what the paper says, or what the released code does", choices=tuple(EPOCHS))
    encoder: str | None = option(None, "which encoder is trained")
    batch_size: int | None = option(None, "samples per process and forward pass (default: preset)")
    global_batch_size: int | None = option(None, "samples per step of the optimizer (default: processes x batch size)")
    batch_nodes: int | None = option(
        None, "atoms (residue level: residues) computed at once; larger batches are cut and their gradients added up"
    )
    lr: float | None = option(None, "learning rate of Adam (default: preset)")
    lr_decay: str = option(
        "none", "none keeps --lr, as the paper; cosine lowers it to 0 over the epochs", choices=("none", "cosine")
    )
    weight_decay: float = option(0.0, "weight decay of Adam", least=0)
    amp: str = option("off", "autocast to bfloat16", choices=("off", "bf16"))
    init_from: str | None = option(None, "start from siamdiff-atom, siamdiff-residue, an encoder.pt or a checkpoint")
    esm: str | None = option(None, "esm-gearnet: weights of ESM-2, a file of fair-esm", free=True)
    freeze_esm: bool = option(False, "esm-gearnet: leave ESM-2 as it is; otherwise it learns at a tenth of --lr")

    out: str | None = option(None, "folder of the run", free=True)
    resume: str = option("auto", "auto (newest whole checkpoint of --out, if any), never, or a checkpoint", free=True)
    max_steps: int | None = option(None, "end after that many steps in all", free=True)
    save_every: int = option(1000, "steps between checkpoints; one is written after every epoch too", free=True)
    keep: int = option(2, "checkpoints kept", free=True)
    log_every: int = option(20, "steps between lines of metrics.jsonl", free=True)
    num_workers: int | None = option(None, "loader processes per process (default: up to 4)", free=True, least=0)
    device: str = option("auto", "where to train", free=True, choices=("auto", "cpu", "cuda"))
    threads: int | None = option(None, "CPU threads per process (default: torch's choice)", free=True)
    deterministic: bool = option(False, "deterministic algorithms on the GPU too, slower", free=True)
    plugin: tuple[str, ...] = option((), "files or modules that add a method, a task or an encoder", free=True)
    dry_run: bool = option(False, "print the resolved options and sizes, then exit", free=True)

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.metadata.get("least", 1 if f.type.startswith("int") else None)
            if None not in (value, least) and not value >= least:
                raise ConfigError(f"{flag(f.name)} must be at least {least}, got {value}")
        if self.lr is not None and not self.lr > 0:
            raise ConfigError(f"--lr must be above 0, got {self.lr}")

    def check_source(self, source: Mapping, file: str | None) -> None:
        """Raise ConfigError if the options ask for something else than `file` holds: `source` says its `encoder`,
        `level`, `size` and `preset`, and of a fine-tuned model its `task` and `seeds`, as far as known."""
        for name in ("task", "seeds", "encoder", "level", "size", "preset"):
            if name in source and getattr(self, name) != source[name]:
                raise ConfigError(f"{flag(name, getattr(self, name))}, but {file} holds: {shown(source[name])}")

    def _with_batches(self, world_size: int, batch_size: int) -> RunConfig:
        """The same with batch sizes, for `world_size` processes. Raises ConfigError where they do not fit."""
        batch_size = pick(self.batch_size, batch_size)
        global_batch_size = pick(self.global_batch_size, world_size * batch_size)
        if global_batch_size % (world_size * batch_size):
            raise ConfigError(
                f"--global-batch-size {global_batch_size} is not a multiple of {world_size} processes x --batch-size "
                f"{batch_size} = {world_size * batch_size}"
            )
        workers = pick(self.num_workers, min(4, max(1, (os.cpu_count() or 1) // world_size)))
        return replace(self, batch_size=batch_size, global_batch_size=global_batch_size, num_workers=workers)

    def __str__(self) -> str:
        return "\n".join(f"{name:18}  {value}" for name, value in self.plain().items())

    def plain(self) -> dict:
        """The options as strings, numbers and lists, to be kept in a checkpoint."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def check_resumable(self, before: dict, path, begun: int) -> None:
        """Raise ConfigError that names the options in which this run differs from the one that wrote `before`.

        The epochs may change in number if the `begun` ones keep their stage and the learning rate follows no schedule.
        """
        now = self.plain()
        was, will = (stages(options["epochs"]) for options in (before, now))
        if was[:begun] != will[:begun]:
            raise ConfigError(
                f"cannot resume {path} with {flag('epochs', now['epochs'])}: it is in epoch {begun} of "
                f"{flag('epochs', before['epochs'])}. More may follow, but stage 1 cannot grow once stage 2 has begun"
            )
        changed = [
            f"{flag(f.name)} was {before.get(f.name)!r}, is {now[f.name]!r}"
            for f in fields(self)
            if not f.metadata["free"] or (f.name == "epochs" and self.lr_decay != "none")
            if before.get(f.name, f.default) != now[f.name]  # older runs lack newer options
        ]
        if changed:
            raise ConfigError(
                f"cannot resume {path} with other options: {'; '.join(changed)}. Choose another --out, or start from "
                "its weights with --init-from"
            )


@dataclass(frozen=True)
class PretrainConfig(RunConfig):
    """Options of `train.py`."""

    method: str = option("siamdiff", "what is minimised")
    size: str = option("paper", "the paper's encoder, or a smaller one for laptops", choices=SIZES)
    encoder: str = option("gearnet", "which encoder is trained")
    ablation: str = option("none", "what is left out (Sec. 5.3, App. G)")
    head_dim: int | None = option(None, "diffpret, siamdiff: width of the heads (default: that of what they read)")

    data: str | None = option(None, "folder, tar or file of structures, or a store (default: the bundled demo set)")
    store: str | None = option(None, "where the store that is built from --data goes (default: beside it)", free=True)
    valid_fraction: float = option(0.05, "share held out for validation; the demo set has a split of its own")
    max_length: int | None = option(None, "residues kept of each protein (default: Table 5)")
    stages: str = option("both", "noise levels to train on, large (1) before small (2)", choices=("both", "1", "2"))
    epochs: tuple[int, ...] | None = option(
        None, "epochs of each stage, one number or two (default: preset); may grow when a run is resumed", free=True
    )
    seed: int = option(0, "seed of weights, crops, order and noise", least=0)

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.valid_fraction < 1:
            raise ConfigError(f"--valid-fraction must be in [0, 1), got {self.valid_fraction}")

    def resolve(self, world_size: int = 1, source: Mapping | None = None) -> PretrainConfig:
        """The same options with every None that has a preset filled in, for `world_size` processes.

        Raises ConfigError if the options contradict `source` (see `check_source`) or one another.
        """
        source = source or {}
        level = pick(self.level, source.get("level", ONE_LEVEL.get(self.encoder, "atom")))
        replace(self, level=level).check_source(source, self.init_from)
        table = settings(TABLE_5, "method", self.method, level)
        small = SMALLER.get((self.size, level), {})
        if (self.size, self.method) == ("tiny", "multiview"):  # it needs others to contrast with
            small = small | TINY_CONTRAST[level]
        if self.head_dim is not None and self.method not in STAGED:
            raise ConfigError(f"--head-dim is for {' and '.join(STAGED)}")
        epochs = pick(self.epochs, small.get("epochs", EPOCHS[self.preset]))
        if len(epochs) > 2 or min(epochs) < 0:
            raise ConfigError(f"--epochs takes one number or two (stage 1, stage 2), got {list(epochs)}")
        if self.method in STAGED:
            first, last = epochs[0], epochs[-1]  # one number counts for both
            epochs = (first if self.stages != "2" else 0, last if self.stages != "1" else 0)
        elif (len(epochs) > 1 and self.epochs is not None) or self.stages != "both":
            raise ConfigError(f"{self.method} is not trained in stages: --epochs takes one number, --stages is none")
        elif self.epochs is None:
            epochs = (sum(small["epochs"]) if small else 50,)
        if not sum(epochs):
            raise ConfigError("no epochs: --epochs and --stages leave nothing to train")
        config = self._with_batches(world_size, small.get("batch_size", table.batch_size))
        if self.method == "multiview" and config.batch_size == 1:
            raise ConfigError("multiview contrasts the proteins of a batch: --batch-size must be at least 2")
        return replace(
            config,
            level=level,
            max_length=pick(self.max_length, table.max_length),
            epochs=epochs,
            lr=pick(self.lr, small.get("lr", table.lr)),
            out=pick(self.out, f"runs/{self.method}-{level}-{self.size}"),
        )


class TaskSettings(NamedTuple):
    """One task at one level in Table 6, and its number of epochs (Sec. 5.1)."""

    batch_size: int  # per process
    processes: int  # the paper's
    epochs: int


TABLE_6 = {  # task -> level -> settings; Adam with lr 1e-4 throughout
    "ec": {"residue": TaskSettings(2, 4, 50)},
    "pip": {"atom": TaskSettings(8, 1, 10)},
    "msp": {"residue": TaskSettings(1, 4, 50), "atom": TaskSettings(8, 1, 50)},
    "res": {"atom": TaskSettings(64, 4, 10)},
    "psr": {"residue": TaskSettings(8, 4, 50), "atom": TaskSettings(8, 1, 50)},
    "table": {"residue": TaskSettings(8, 1, 50), "atom": TaskSettings(8, 1, 50)},  # ours, as PSR
}
OFFICIAL_EPOCHS = {"res": 5}  # differences.md, row 22
MAX_RESIDUES = {("msp", "atom"): 400}  # nearest to the mutation
SMALL_TASK = {"lr": 1e-3, "epochs": 8, "batch_size": 8}  # for the small sizes; the paper's batch where smaller


@dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """Options of `finetune.py`."""

    task: str | None = option(None, "what is predicted (default: that of --eval-only, or psr)")
    preset: str | None = option(
        None,
        "what the paper says, or what the released code does (default: that of --init-from, or paper)",
        choices=tuple(EPOCHS),
    )
    size: str | None = option(
        None,
        "the paper's encoder, or a smaller one for laptops (default: that of --init-from; tiny on demo data)",
        choices=SIZES,
    )
    data: str | None = option(None, "folder of the ATOM3D or EC set (default: a demo set from the bundled structures)")
    max_residues: int | None = option(None, "MSP: residues kept, the nearest (default: 400 at atom level)", only="msp")
    cutoff: int = option(95, "EC: the test split's largest identity to training, in %", choices=CUTOFFS, only="ec")
    ids: str | None = option(None, "EC: text file with the ids to use", only="ec")
    labels: str | None = option(None, "table: file of labels for the structures of --data", only="table")
    kind: str | None = option(None, "table: what the labels are (default: what they look like)", only="table")
    metric: str | None = option(None, "table: decides which epoch is the best (default: by kind)", only="table")

    seeds: tuple[int, ...] | None = option(
        None, "seeds of weights and order (default: 0); results are mean and std over them", free=True
    )
    seed: int = option(0, "the one of a single run", hidden=True, least=0)
    epochs: int | None = option(None, "epochs (default: preset); may grow when a run is resumed", free=True)
    freeze: bool = option(False, "train the head only")
    save_predictions: bool = option(False, "write OUT/seed-S/predictions.tsv for the test split", free=True)
    eval_only: str | None = option(None, "do not train: score this model (OUT/seed-S/best.pt)", free=True)
    predict: str | None = option(None, "structures to apply the model to, written to OUT/predicted.tsv", free=True)

    def __post_init__(self):
        super().__post_init__()
        seeds = pick(self.seeds, (0,))
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ConfigError(f"--seeds must be different and not negative, got {list(self.seeds)}")

    def resolve(self, world_size: int = 1, source: Mapping | None = None) -> FinetuneConfig:
        """The same options with every None that has a preset filled in, for `world_size` processes.

        `source` (see `check_source`) counts where the options say nothing. Raises ConfigError if they contradict it or
        one another.
        """
        source = source or {}
        task = pick(self.task, source.get("task", "psr"))
        for f in fields(self):
            if f.metadata.get("only", task) != task and getattr(self, f.name) != f.default:
                raise ConfigError(f"{flag(f.name)} is for {f.metadata['only']}, not for {task}")
        encoder = pick(self.encoder, source.get("encoder", "gearnet"))
        default = "residue" if task == "ec" else "atom"
        level = pick(self.level, source.get("level", ONE_LEVEL.get(encoder, default)))
        table = settings(TABLE_6, "task", task, level)
        size = pick(self.size, source.get("size", "tiny" if self.data is None else "paper"))
        preset = pick(self.preset, source.get("preset", "paper"))
        seeds = pick(self.seeds, source.get("seeds", (0,)))
        given = {"task": task, "level": level, "size": size, "encoder": encoder, "preset": preset, "seeds": seeds}
        replace(self, **given).check_source(source, self.eval_only or self.init_from)
        default = f"runs/{task}-{level}-{size}-{'pretrained' if self.init_from else 'scratch'}"
        small = SMALL_TASK if size != "paper" else {}
        official = OFFICIAL_EPOCHS if preset == "official" else {}
        return replace(
            self._with_batches(world_size, min(table.batch_size, small.get("batch_size", table.batch_size))),
            **given,
            max_residues=pick(self.max_residues, pick(source.get("max_residues"), MAX_RESIDUES.get((task, level)))),
            epochs=pick(self.epochs, small.get("epochs", official.get(task, table.epochs))),
            lr=pick(self.lr, small.get("lr", 1e-4)),
            out=pick(self.out, os.path.join(os.path.dirname(self.eval_only), "eval") if self.eval_only else default),
        )

    def for_seed(self, seed: int) -> FinetuneConfig:
        """The options of the run of one seed, with a folder of its own."""
        return replace(self, seed=seed, out=os.path.join(self.out, f"seed-{seed}"))


TYPES = {"int": int, "float": float, "str": str}


def load_plugins(argv: list[str] | None) -> None:
    """Import the files and modules of --plugin, before the options are read: they may add to what can be chosen.

    Raises ConfigError if one cannot be found; what goes wrong inside is the plugin's own error.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--plugin", nargs="+", default=[])
    for path in map(Path, first.parse_known_args(argv)[0].plugin):
        if path.suffix != ".py":
            importlib.import_module(str(path))
        elif path.is_file():
            spec = importlib.util.spec_from_file_location(path.stem, path)
            sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            raise ConfigError(f"--plugin {path}: no such file")


def parse(
    argv: list[str] | None,
    choices: Mapping[str, Collection[str]],
    description: str = "",
    kind: type[RunConfig] = PretrainConfig,
) -> RunConfig:
    """Read a command line; `choices` says what may follow --method and the like (the keys of the dispatch dicts)."""
    load_plugins(argv)
    parser = argparse.ArgumentParser(description=description)
    for f in fields(kind):
        if f.metadata.get("hidden"):
            continue
        text = f.metadata["help"] + ("" if f.default in (None, False, ()) else f" (default: {f.default})")
        argument = {"dest": f.name, "help": text.replace("%", "%%")}  # argparse formats it
        of = f.type.removesuffix(" | None")
        if of == "bool":
            argument["action"] = "store_true"
        else:
            argument["type"] = TYPES[of.removeprefix("tuple[").removesuffix(", ...]")]
            argument["nargs"] = "+" if of.startswith("tuple") else None
            argument["choices"] = tuple(choices.get(f.name, f.metadata.get("choices", ()))) or None
            argument["default"] = f.default
        parser.add_argument(flag(f.name), *["--stage"] * (f.name == "stages"), **argument)
    values = vars(parser.parse_args(argv))
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except ConfigError as error:
        parser.error(str(error))
