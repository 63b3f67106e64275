"""The checkpoints of a run, and the weights that it starts from. `encoders/weights.py` reads and writes the files."""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from ..encoders.weights import CHECKPOINT, encoder_of, load_weights, read_weights, write_weights
from ..files import CheckpointError, ConfigError, printable
from ..pretraining import OBJECTIVES
from ..pretraining.objective import Objective
from .config import FINETUNE, PRETRAIN, fitting, flag, replace, settled

NAME = re.compile(r"checkpoint-[0-9]{9}\.pt")  # no other file of a folder is ever removed


def save(folder: Path, step: int, state: dict, keep: int = 2) -> Path:
    """Write the checkpoint of `step`. Remove later ones, from which nothing goes on, and all but `keep` others."""
    path, before = folder / f"checkpoint-{step:09d}.pt", checkpoints(folder)
    kept = [path, *(old for old in before if old.name < path.name)][:keep]
    write_weights(path, CHECKPOINT, state)
    for old in set(before) - set(kept):
        with suppress(OSError):  # no reason to end a run
            old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name)), reverse=True)


def latest(folder: Path, say: Callable[[str], None] = print) -> tuple[Path, dict] | None:
    """The newest whole checkpoint; `say` is told of damaged ones. CheckpointError if there are only such."""
    paths = checkpoints(folder)
    for path in paths:
        try:
            return path, read_weights(path, CHECKPOINT)
        except CheckpointError as error:
            say(f"skipped: {error}")
    if paths:
        raise CheckpointError(f"none of the {len(paths)} checkpoints in {folder} is whole; remove them to start anew")
    return None


def check_resumable(config: Namespace, before: Mapping, path: Path, world: int = 1, compared: bool = False) -> None:
    """Raise ConfigError, and name the options, if some differ from those of the checkpoint at `path` (`before`).

    An option that it does not know counts as its default. A global batch may be cut into other parts, for `world`
    processes, unless the proteins of a part are `compared` with each other.
    """
    # What the checkpoint does not know, it would have had by default.
    subject, options = ("task", FINETUNE) if "task" in config else ("method", PRETRAIN)
    unknown = {name: options[name].arguments["default"] for name in options if name not in before}
    before = {**vars(settled(replace(config, **unknown), subject, {}, 1)), **before}

    # What differs and may not.
    now = {}
    for name, value in vars(config).items():
        free = name in options and options[name].free
        if not free and before.get(name) != value:
            now[name] = value
    if not compared and "global_batch_size" not in now:
        now.pop("batch_size", None)
    *stage_1, last = before["epochs"]
    if config.epochs[:-1] == stage_1 and config.epochs[-1] > last and config.lr_decay == "none":
        now.pop("epochs")  # the run goes on from its end
    if not now:
        return

    # How to go on all the same.
    changed = "; ".join(f"{flag(name)} was {before.get(name)!r}, is {value!r}" for name, value in now.items())
    help = f"Choose another --out, or start from its weights with --init-from {path}"
    if "global_batch_size" in now:
        together = before["global_batch_size"]
        size = before["batch_size"]
        fits = size if compared else fitting(together, world, size) or size
        line = f"{flag('global_batch_size', together)} {flag('batch_size', fits)}"
        help += f". With {line} it goes on, in as many processes as divide {together // fits}"
    raise ConfigError(f"cannot resume {path} with other options: {changed}. {help}")


def new_objective(encoder: nn.Module, config: Namespace) -> nn.Module:
    """The objective that the options ask for, with initial weights. Options of its method are arguments of `build`."""
    build = OBJECTIVES[config.method]
    own = {}
    for name, option in PRETRAIN.items():
        if config.method in option.only and getattr(config, name) != option.arguments["default"]:
            own[name] = getattr(config, name)
    return build(encoder, config.level, config.preset, **own)


def initialise(module: nn.Module, path: str | Path, say: Callable = print, encoder_only: bool = False) -> None:
    """Start from the weights in `path`: from all of a checkpoint, else (or with `encoder_only`) from the encoder's.

    Every tensor of these must fit one of the module. The heads in an encoder.pt are taken too, but not with
    `encoder_only`, if the objective keeps such heads (`kept_heads`) and the shapes are the same. `say` is told which
    tensors were loaded, and which keep their initial values.
    """
    content = read_weights(path)
    whole = content["format"] == CHECKPOINT and not encoder_only
    if whole:
        state = content["objective"]
        load_weights(module, state, str(path))
        loaded = [*state]
    else:
        state = encoder_of(content)["state"]
        load_weights(module.encoder, state, str(path))
        loaded = [f"encoder.{name}" for name in state]
    if content.get("not_loaded"):
        say(f"in that file, not loaded: {printable(', '.join(content['not_loaded'])):.1000}")

    # The heads of an encoder.pt that the objective keeps too.
    kept = kept_heads(module)
    for head, state in ({} if whole or encoder_only else heads_in(content)).items():
        if head not in kept:
            say(f"in that file, not loaded: {head}")
        elif shapes(state) != shapes(kept[head].state_dict()):
            say(f"in that file, not loaded: {head}, of another shape (--head-dim)")
        else:
            load_weights(kept[head], state, str(path))
            loaded += [f"{head}.{name}" for name in state]

    initial = [name for name in module.state_dict() if name not in set(loaded)]
    say(f"loaded from {path}: {_groups(loaded)}")
    say(f"not in that file, to be learned: {_groups(initial) if initial else 'nothing'}")


def kept_heads(objective: nn.Module) -> dict[str, nn.Module]:
    """The heads that `encoder.pt` keeps; none of a plugin's module that does not say."""
    return objective.kept_heads() if isinstance(objective, Objective) else {}


def heads_in(content: dict) -> dict[str, dict[str, Tensor]]:
    """The weights of the heads that a file of an encoder has, by the names of the heads."""
    dicts = {name: value for name, value in content.items() if isinstance(value, dict) and name != "state"}
    return {name: value for name, value in dicts.items() if {*map(type, value.values())} == {Tensor}}


def shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    """The shape of every tensor."""
    return {name: x.shape for name, x in state.items()}


def _groups(names: list[str]) -> str:
    """The modules of these tensors, with the number of tensors in each: 'encoder.layers (36 tensors), ...'."""
    count = Counter(re.match(r"(encoder\.)?[^.]*", name)[0] for name in names)
    return ", ".join(f"{group} ({n} tensor{'s' * (n > 1)})" for group, n in count.items())
