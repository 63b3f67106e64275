"""The options of pre-training: every field says what it is, and that is the `--help` too.

None means "from the preset": Table 5 of the paper and the number of epochs of METHOD 2 are data here, `resolve` fills
them in. What a run did is its resolved config, which is printed and kept in every checkpoint.
"""

from __future__ import annotations

import argparse
import os
import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import NamedTuple, get_args, get_type_hints


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
    "diffpret": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 64, 1e-4)},
    "siamdiff": {"residue": Settings(150, 16, 1e-4), "atom": Settings(100, 32, 1e-4)},
}
EPOCHS = {"paper": (25, 25), "official": (25, 50)}  # of stages 1 and 2 (METHOD 2)
TINY = {  # what `--size tiny` changes, for laptops: many small steps, chosen to end within 5 minutes on 2 cores
    "atom": {"batch_size": 2, "epochs": (5, 6), "lr": 2e-3},
    "residue": {"batch_size": 4, "epochs": (12, 12), "lr": 2e-3},
}


def option(default, help: str, free: bool = False, **more):
    """A field; `free` ones do not alter the course of a run and may change when it is resumed."""
    return field(default=default, metadata={"help": help, "free": free, **more})


@dataclass(frozen=True)
class PretrainConfig:
    """Options of `train.py`."""

    method: str = option("siamdiff", "what is minimised")
    level: str = option("atom", "what the nodes of the graph are", choices=("atom", "residue"))
    preset: str = option("paper", "what the paper says, or what the released code does", choices=tuple(EPOCHS))
    size: str = option("paper", "the paper's encoder, or one for laptops", choices=("paper", "tiny"))
    encoder: str = option("gearnet", "which encoder is trained")
    ablation: str = option("none", "what is left out (Sec. 5.3, App. G)")

    data: str | None = option(
        None, "folder, tar or file of structures, or a built store (default: the bundled demo set)"
    )
    store: str | None = option(None, "where the store that is built from --data goes (default: beside it)", free=True)
    valid_fraction: float = option(0.05, "share of the proteins held out for validation")
    max_length: int | None = option(None, "residues kept of each protein (default: Table 5)")

    stages: str = option("both", "noise levels to train on, large (1) before small (2)", choices=("both", "1", "2"))
    epochs: tuple[int, ...] | None = option(None, "epochs of each stage, one number or two (default: preset)")
    batch_size: int | None = option(None, "proteins per process and forward pass (default: Table 5)")
    global_batch_size: int | None = option(None, "proteins per step of the optimizer (default: processes x batch size)")
    lr: float | None = option(None, "learning rate of Adam (default: Table 5)")
    weight_decay: float = option(0.0, "weight decay of Adam")
    amp: str = option("off", "autocast to bfloat16", choices=("off", "bf16"))
    seed: int = option(0, "seed of weights, crops, order and noise")
    init_from: str | None = option(None, "start from the weights of an encoder.pt or of a checkpoint")

    out: str | None = option(None, "folder of the run (default: runs/METHOD-LEVEL-SIZE)", free=True)
    resume: str = option("auto", "auto (newest whole checkpoint of --out, if any), never, or a checkpoint", free=True)
    max_steps: int | None = option(None, "end after that many steps in all", free=True)
    save_every: int = option(1000, "steps between checkpoints; one is written after every epoch too", free=True)
    keep: int = option(2, "checkpoints kept", free=True)
    log_every: int = option(20, "steps between lines of metrics.jsonl", free=True)
    num_workers: int | None = option(None, "processes that load data, per process (default: up to 4)", free=True)
    device: str = option("auto", "where to train", free=True, choices=("auto", "cpu", "cuda"))
    threads: int | None = option(None, "CPU threads per process (default: torch's choice)", free=True)
    deterministic: bool = option(False, "deterministic algorithms on the GPU too, slower", free=True)
    dry_run: bool = option(False, "print the resolved options and sizes, then exit", free=True)

    def __post_init__(self):
        for name in ("batch_size", "global_batch_size", "max_length", "max_steps", "save_every", "keep", "log_every"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise ValueError(f"--seed must not be negative, got {self.seed}")
        if not 0 <= self.valid_fraction < 1:
            raise ValueError(f"--valid-fraction must be in [0, 1), got {self.valid_fraction}")

    def resolve(self, world_size: int = 1) -> PretrainConfig:
        """The same options with every None that has a preset filled in, for `world_size` processes.

        Raises ValueError where the global batch is not a multiple of what the processes take at once.
        """
        table = TABLE_5[self.method][self.level]
        tiny = TINY[self.level] if self.size == "tiny" else {}

        def pick(given, preset):
            return preset if given is None else given

        batch_size = pick(self.batch_size, tiny.get("batch_size", table.batch_size))
        global_batch_size = pick(self.global_batch_size, world_size * batch_size)
        if global_batch_size % (world_size * batch_size):
            raise ValueError(
                f"--global-batch-size {global_batch_size} is not a multiple of {world_size} processes x --batch-size "
                f"{batch_size} = {world_size * batch_size}"
            )
        epochs = pick(self.epochs, tiny.get("epochs", EPOCHS[self.preset]))
        if len(epochs) > 2 or min(epochs) < 0:
            raise ValueError(f"--epochs takes one number or two (stage 1, stage 2), got {list(epochs)}")
        first, last = epochs[0], epochs[-1]  # one number counts for both
        return replace(
            self,
            max_length=pick(self.max_length, table.max_length),
            batch_size=batch_size,
            global_batch_size=global_batch_size,
            epochs=(first if self.stages != "2" else 0, last if self.stages != "1" else 0),
            lr=pick(self.lr, tiny.get("lr", table.lr)),
            out=pick(self.out, f"runs/{self.method}-{self.level}-{self.size}"),
            num_workers=pick(self.num_workers, min(4, max(1, (os.cpu_count() or 1) // world_size))),
        )

    def plain(self) -> dict:
        """The options as strings, numbers and lists, to be kept in a checkpoint."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    def check_resumable(self, before: dict, path) -> None:
        """Raise ValueError that names the options in which this run differs from the one that wrote `before`."""
        now = self.plain()
        changed = [
            f"--{f.name.replace('_', '-')} was {before.get(f.name)!r}, is {now[f.name]!r}"
            for f in fields(self)
            if not f.metadata["free"] and before.get(f.name) != now[f.name]
        ]
        if changed:
            raise ValueError(
                f"cannot resume {path} with other options: {'; '.join(changed)}. Choose another --out, or start from "
                "its weights with --init-from"
            )


def parse(argv: list[str] | None, choices: Mapping[str, Collection[str]], description: str = "") -> PretrainConfig:
    """Read a command line; `choices` says what may follow --method and the like (the keys of the dispatch dicts)."""
    parser = argparse.ArgumentParser(description=description)
    hints = get_type_hints(PretrainConfig)
    for f in fields(PretrainConfig):
        flags = [f"--{f.name.replace('_', '-')}"] + ["--stage"] * (f.name == "stages")
        kind = next(t for t in (get_args(hints[f.name]) or (hints[f.name],)) if t is not types.NoneType)
        text = f.metadata["help"] + ("" if f.default in (None, False, MISSING) else f" (default: {f.default})")
        if kind is bool:
            parser.add_argument(*flags, dest=f.name, action="store_true", help=text)
        elif f.name == "epochs":
            parser.add_argument(*flags, dest=f.name, type=int, nargs="+", help=text)
        else:
            allowed = tuple(choices.get(f.name, f.metadata.get("choices", ()))) or None
            parser.add_argument(*flags, dest=f.name, type=kind, default=f.default, choices=allowed, help=text)
    values = vars(parser.parse_args(argv))
    try:
        return PretrainConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except ValueError as error:
        parser.error(str(error))
