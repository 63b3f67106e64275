"""The options of pre-training and fine-tuning: every field says what it is, and that is the `--help` too.

None means "from the preset": Tables 5 and 6 of the paper and the numbers of epochs are data here, `resolve` fills
them in. What a run did is its resolved config, which is printed and kept in every checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..conventions import CONVENTIONS
from ..data.conformers import CONFORMERS
from ..downstream.tasks import METRICS, TASKS
from ..encoders import ENCODERS, ONE_LEVEL
from ..files import ConfigError
from ..pretraining import ABLATIONS, OBJECTIVES


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
    "torsional": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},  # App. G: as DiffPreT
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
STAGED = ("diffpret", "siamdiff")  # trained in two stages (Sec. 3.4), the others in one
EPOCHS = {"paper": (25, 25), "official": (25, 50)}  # of stages 1 and 2 (differences.md, row 2); without stages 50
OFFICIAL_EPOCHS = {"res": 5}  # differences.md, row 22
MAX_RESIDUES = {("msp", "atom"): 400}  # nearest to the mutation
SMALLER = {  # size, level -> what changes, for laptops: many small steps. "tiny" ends within 5 minutes on 2 cores
    ("tiny", "atom"): {"batch_size": 2, "epochs": (5, 6), "lr": 2e-3},
    ("tiny", "residue"): {"batch_size": 4, "epochs": (12, 12), "lr": 2e-3},
    ("small", "atom"): {"batch_size": 4, "epochs": (25, 25), "lr": 1e-3},
    ("small", "residue"): {"batch_size": 8, "epochs": (25, 25), "lr": 1e-3},
    ("tiny", "atom", "multiview"): {"batch_size": 8, "epochs": (6, 6)},  # it needs others to contrast with
    ("tiny", "residue", "multiview"): {"batch_size": 8, "epochs": (20, 20)},
}
SMALL_TASK = {"lr": 1e-3, "epochs": 8, "batch_size": 8}  # for the small sizes; the paper's batch where smaller
SIZES = ("paper", "small", "tiny")
CUTOFFS = (30, 40, 50, 70, 95)  # sequence identities of the EC test splits, in %
PREDICTABLE = ("ec", "psr", "table")  # tasks that need a structure only
FROM_FILE = ("task", "seeds", "encoder", "level", "size", "preset")  # options that a file of weights may settle


def option(help: str, default=None, **more):
    """A field. `only`: the methods or tasks that have it; `least`: the smallest number, 1 for integers where nothing is
    said; `choices`; `free`: it does not alter the course of a run, and may change when it is resumed."""
    return field(default=default, metadata={"help": help, **more})


free = partial(option, free=True)


def stages(epochs) -> list[int]:
    """The stage of every epoch."""
    numbers = epochs if isinstance(epochs, list) else [epochs]
    return [stage for stage, number in enumerate(numbers, 1) for _ in range(number)]


def flag(name: str, *values) -> str:
    """An option as it is given on the command line."""
    return " ".join(["--" + name.replace("_", "-"), *map(shown, values)])


def shown(value) -> str:
    """A value as it is given on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class RunConfig:
    """What pre-training and fine-tuning have in common."""

    level: str | None = option(
        "what the nodes are (default: that of --init-from, the only one of --encoder or --task, or atom)",
        choices=("atom", "residue"),
    )
    preset: str | None = option(
        "follow the paper, or the released code (default: that of --init-from, or paper)", choices=CONVENTIONS
    )
    encoder: str | None = option("encoder to train (default: that of --init-from, or gearnet)", choices=ENCODERS)
    size: str | None = option(
        "the paper's encoder, or a smaller one for laptops (default: that of --init-from, or paper; tiny to fine-tune "
        "on a demo set)",
        choices=SIZES,
    )
    batch_size: int | None = option("samples per process and forward pass (default: preset)")
    global_batch_size: int | None = option("samples per step of the optimizer (default: processes x batch size)")
    batch_nodes: int | None = option("atoms or residues computed at once; larger batches are cut, gradients added up")
    lr: float | None = option("learning rate of Adam (default: preset)")
    lr_decay: str = option("none (the paper) keeps --lr; cosine lowers it to 0", "none", choices=("none", "cosine"))
    weight_decay: float = option("weight decay of Adam", 0.0, least=0)
    amp: str = option("autocast to bfloat16", "off", choices=("off", "bf16"))
    init_from: str | None = option("start from siamdiff-atom, siamdiff-residue, an encoder.pt or a checkpoint")
    esm: str | None = free("esm-gearnet: weights of ESM-2, a file of fair-esm")
    freeze_esm: bool = option("esm-gearnet: leave ESM-2 as it is; otherwise it learns at a tenth of --lr", False)

    out: str | None = free("folder of the run")
    resume: str = free("auto (newest whole checkpoint of --out, if any), never, or a checkpoint", "auto")
    max_steps: int | None = free("end after that many steps in all")
    save_every: int = free("steps between checkpoints; one is written after every epoch too", 1000)
    keep: int = free("checkpoints kept", 2)
    log_every: int = free("steps between lines of metrics.jsonl", 20)
    num_workers: int | None = free("loader processes per process (default: up to 4)", least=0)
    device: str = free("where to train", "auto", choices=("auto", "cpu", "cuda"))
    threads: int | None = free("CPU threads per process (default: torch's choice)")
    deterministic: bool = free("deterministic algorithms on the GPU too, slower", False)
    plugin: tuple[str, ...] = free("files or modules that add a method, a task or an encoder", ())
    dry_run: bool = free("print the resolved options and sizes, then exit", False)

    def __post_init__(self):
        for f in fields(self):
            value, least = getattr(self, f.name), f.metadata.get("least", 1 if f.type.startswith("int") else None)
            if None not in (value, least) and not value >= least:
                raise ConfigError(f"{flag(f.name)} must be at least {least}, got {value}")
            choices = f.metadata.get("choices", (value,))
            if value is not None and value not in choices:
                known = ", ".join(map(str, choices))
                raise ConfigError(f"{flag(f.name, value)} is none of {known}. Does it come from a --plugin?")
        if self.lr is not None and not self.lr > 0:
            raise ConfigError(f"--lr must be above 0, got {self.lr}")

    def _filled(self, *sources: Mapping):
        """The same options; what is None is taken from the first of `sources` that has it."""
        known = {name: value for source in reversed(sources) for name, value in source.items() if value is not None}
        empty = [f.name for f in fields(self) if getattr(self, f.name) is None]
        return replace(self, **{name: known[name] for name in empty if name in known})

    def _started(self, source: Mapping, file: str | None, kind: str, table: Mapping, **defaults) -> tuple:
        """The same options, and the row of `table` for this method or task (`kind`). What is None is taken from
        `source`, which is what `file` says of itself, or from `defaults`.

        Raises ConfigError if the file holds something else, for options of other methods or tasks, and without a row.
        """
        known = {name: source[name] for name in FROM_FILE if name in source}
        config = self._filled(known, defaults, {"encoder": "gearnet", "preset": "paper", "size": "paper"})
        chosen = getattr(config, kind)
        for f in fields(self):
            only = f.metadata.get("only", (chosen,))
            if chosen not in only and getattr(self, f.name) != f.default:
                raise ConfigError(f"{flag(f.name)} is for {' and '.join(only)}, not for {chosen}")
        config = config._filled({"level": ONE_LEVEL.get(config.encoder, "residue" if chosen == "ec" else "atom")})
        for name, value in known.items():
            if getattr(config, name) != value:
                raise ConfigError(f"{flag(name, getattr(config, name))}, but {file} holds: {shown(value)}")
        rows = table.get(chosen, {})
        if config.level not in rows:
            levels = " and ".join(rows) or "no"
            raise ConfigError(f"{flag(kind, chosen)} exists at {levels} level, not at {config.level} level")
        return config, rows[config.level]

    def _batched(self, world_size: int):
        """The same with all batch sizes, for `world_size` processes. Raises ConfigError where they do not fit."""
        together = world_size * self.batch_size
        workers = min(4, max(1, (os.cpu_count() or 1) // world_size))
        config = self._filled({"global_batch_size": together, "num_workers": workers})
        if config.global_batch_size % together:
            raise ConfigError(
                f"--global-batch-size {config.global_batch_size} is not a multiple of {world_size} processes x "
                f"--batch-size {self.batch_size} = {together}"
            )
        return config

    def folder(self, kind: str, start: str = "") -> str:
        """Where a run goes without --out: runs with other data or another start do not meet there."""
        data, encoder = Path(self.data or "/").resolve().name, "" if self.encoder == "gearnet" else self.encoder
        if self.init_from:
            start = "-".join(["from", *Path("/", self.init_from).with_suffix("").parts[1:][-2:]])
        return "runs/" + "-".join(filter(None, [kind, encoder, self.level, self.size, data, start]))

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
            if not f.metadata.get("free") or (f.name == "epochs" and self.lr_decay != "none")
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

    method: str = option("what is minimised", "siamdiff", choices=OBJECTIVES)
    ablation: str = option("what is left out (Sec. 5.3, App. G)", "none", choices=ABLATIONS, only=STAGED)
    head_dim: int | None = option("width of the heads (default: that of what they read)", only=STAGED)

    conformers: str = option(
        "second views: simulated as in the paper, other models of the protein where it has them, or either at random",
        "simulated",
        choices=CONFORMERS,
        only=("siamdiff",),
    )
    pairs: str | None = free("table of structures of --data that are conformers of one protein, for --conformers")

    data: str | None = option("folder, .tar, .zip or file of structures, or a store (default: the bundled demo set)")
    store: str | None = free("where the store that is built from --data goes (default: beside it)")
    valid_fraction: float = option("share held out for validation; the demo set has a split of its own", 0.05)
    max_length: int | None = option("residues kept of each protein (default: Table 5)")
    stages: str = option("noise levels to train on, large (1) before small (2)", "both", choices=("both", "1", "2"))
    epochs: tuple[int, ...] | None = free("of each stage, one number or two (default: preset); may grow on resuming")
    seed: int = option("seed of weights, crops, order and noise", 0, least=0)

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.valid_fraction < 1:
            raise ConfigError(f"--valid-fraction must be in [0, 1), got {self.valid_fraction}")
        if self.pairs is not None and self.conformers == "simulated":
            raise ConfigError("--pairs is for --conformers models and both")

    def resolve(self, world_size: int = 1, source: Mapping | None = None) -> PretrainConfig:
        """The same options with every None that has a preset filled in, for `world_size` processes.

        `source` is what the file of --init-from says of itself. Raises ConfigError if the options contradict it or one
        another.
        """
        config, row = self._started(source or {}, self.init_from, "method", TABLE_5)
        at = config.size, config.level
        small = SMALLER.get(at, {}) | SMALLER.get((*at, self.method), {})
        epochs = self.epochs or small.get("epochs", EPOCHS[config.preset])
        if len(epochs) > 2 or min(epochs) < 0:
            raise ConfigError(f"--epochs takes one number or two (stage 1, stage 2), got {list(epochs)}")
        if self.method in STAGED:  # one number counts for both
            epochs = (epochs[0] if self.stages != "2" else 0, epochs[-1] if self.stages != "1" else 0)
        elif self.stages != "both" or (self.epochs and len(epochs) > 1):
            raise ConfigError(f"{self.method} is not trained in stages: --epochs takes one number, --stages is none")
        elif not self.epochs:
            epochs = (sum(epochs) if small else 50,)
        if not sum(epochs):
            raise ConfigError("no epochs: --epochs and --stages leave nothing to train")
        out = {"out": config.folder(self.method)}
        config = replace(config, epochs=epochs)._filled(small, row._asdict(), out)._batched(world_size)
        if self.method == "multiview" and config.batch_size == 1:
            raise ConfigError("multiview contrasts the proteins of a batch: --batch-size must be at least 2")
        return config


@dataclass(frozen=True)
class FinetuneConfig(RunConfig):
    """Options of `finetune.py`."""

    task: str | None = option("what is predicted (default: that of --eval-only, or psr)", choices=TASKS)
    data: str | None = option("folder of the ATOM3D or EC set, or structures (default: a demo set from the bundle)")
    max_residues: int | None = option("residues kept, the nearest (default: 400 at atom level)", only=("msp",))
    cutoff: int = option("the test split's largest identity to training, in %", 95, choices=CUTOFFS, only=("ec",))
    ids: str | None = option("text file with the ids to use", only=("ec",))
    labels: str | None = option("file of labels for the structures of --data", only=("table",))
    kind: str | None = option("what the labels are (default: what they look like)", choices=METRICS, only=("table",))
    metric: str | None = option(
        "decides which epoch is the best (default: by kind)", choices=sum(METRICS.values(), ()), only=("table",)
    )

    seeds: tuple[int, ...] | None = free("of weights and order (default: 0); results are mean and std over them")
    seed: int = option("the one of a single run", 0, hidden=True, least=0)
    epochs: int | None = free("epochs (default: preset); may grow when a run is resumed")
    freeze: bool = option("train the head only", False)
    save_predictions: bool = free("write OUT/seed-S/predictions.tsv for the test split", False)
    eval_only: str | None = free("do not train: score this model (OUT/seed-S/best.pt)")
    predict: str | None = free("structures to apply the model to, written to OUT/predicted.tsv", only=PREDICTABLE)

    def __post_init__(self):
        super().__post_init__()
        seeds = (0,) if self.seeds is None else self.seeds
        if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
            raise ConfigError(f"--seeds must be different and not negative, got {list(self.seeds)}")

    def resolve(self, world_size: int = 1, source: Mapping | None = None) -> FinetuneConfig:
        """The same options with every None that has a preset filled in, for `world_size` processes.

        `source` is what the file of --init-from or --eval-only says of itself. Raises ConfigError if the options
        contradict it or one another.
        """
        source, file = source or {}, self.eval_only or self.init_from
        defaults = {"task": "psr", "size": "tiny" if self.data is None else "paper", "seeds": (0,)}
        config, row = self._started(source, file, "task", TABLE_6, **defaults)
        task, level, size = config.task, config.level, config.size
        small = {} if size == "paper" else SMALL_TASK | {"batch_size": min(row.batch_size, SMALL_TASK["batch_size"])}
        official = {"epochs": OFFICIAL_EPOCHS.get(task)} if config.preset == "official" else {}
        out = config.folder(task, "" if self.init_from else "scratch")
        if self.eval_only:
            out = os.path.join(os.path.dirname(self.eval_only), "eval")
        kept = {"max_residues": source.get("max_residues")}
        default = {"max_residues": MAX_RESIDUES.get((task, level)), "lr": 1e-4, "out": out}
        return config._filled(kept, small, official, row._asdict(), default)._batched(world_size)

    def for_seed(self, seed: int) -> FinetuneConfig:
        """The options of the run of one seed, with a folder of its own and what --init-from names for this seed."""
        return replace(self, seed=seed, out=os.path.join(self.out, f"seed-{seed}"), init_from=self.start(seed))

    def start(self, seed: int) -> str | None:
        """The file of --init-from for this seed, which stands in its name as {seed}."""
        return self.init_from and self.init_from.replace("{seed}", str(seed))


def load_plugins(argv: list[str] | None) -> None:
    """Import the files and modules of --plugin, before the options are read: they may add to what can be chosen.

    Raises ConfigError if one cannot be found; what goes wrong inside is the plugin's own error.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--plugin", nargs="+", default=[])
    for path in map(Path, first.parse_known_args(argv)[0].plugin):
        if path.suffix != ".py" and importlib.util.find_spec(str(path).partition(".")[0]):
            importlib.import_module(str(path))
        elif path.suffix == ".py" and path.is_file():
            spec = importlib.util.spec_from_file_location(path.stem, path)
            sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            raise ConfigError(f"--plugin {path}: no such file or module")


def parse(argv: list[str] | None, kind: type[RunConfig] = PretrainConfig, description: str = "") -> RunConfig:
    """Read a command line."""
    load_plugins(argv)
    parser = argparse.ArgumentParser(description=description)
    for f in fields(kind):
        about, of = f.metadata, re.sub(r"tuple\[|, \.\.\.]| \| None", "", f.type)
        if of == "bool":
            argument = {"action": "store_true"}
        else:
            argument = {"type": {"int": int, "float": float, "str": str}[of], "default": f.default}
            argument["nargs"] = "+" if f.type.startswith("tuple") else None
            argument["choices"] = tuple(dict.fromkeys(about.get("choices", ()))) or None
        text = about["help"] + ("" if f.default in (None, False, ()) else f" (default: {f.default})")
        text = f"{', '.join(about['only'])}: {text}" if "only" in about else text
        if "hidden" not in about:
            parser.add_argument(flag(f.name), help=text.replace("%", "%%"), **argument)  # argparse formats the help
    values = vars(parser.parse_args(argv))
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except ConfigError as error:
        parser.error(str(error))
