"""Files of weights: checkpoints to resume from, `encoder.pt`, fine-tuned models (`best.pt`), and released ones.

All are what `torch.save` writes: a dict of tensors, strings, numbers, lists and dicts, read with `weights_only=True`.
Its `format` says what it is. Released files hold the tensors alone.
"""

import contextlib
import io
import itertools
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from ..encoders import ATOM_GRAPH, ENCODERS, GEARNET_DIMS, RANDOM_ESM, RESIDUE_GRAPH
from ..encoders.weights import load_weights, read_weights
from ..files import CheckpointError, ConfigError, SiamDiffError, printable, write_file
from ..pretraining import OBJECTIVES, STAGED

CHECKPOINT, ENCODER, MODEL = "siamdiff_min checkpoint 2", "siamdiff_min encoder 1", "siamdiff_min model 1"
KINDS = {CHECKPOINT: "a checkpoint to resume from", ENCODER: "an encoder", MODEL: "a fine-tuned model"}
IDENTITY = ("encoder", "level", "size", "preset")  # what is needed to build an encoder again
NAME = re.compile(r"checkpoint-[0-9]{9}\.pt")  # no other file of a folder is ever removed
LAST_STEP, MOST = 10**9 - 1, 10**5  # what such a name holds; options in a file
WEIGHTS = {CHECKPOINT: "objective", ENCODER: "state", MODEL: "state"}  # format -> key of its weights

# ---- checkpoints -----------------------------------------------------------------------------------------------------


def save(folder: Path, step: int, state: dict, keep: int = 2) -> Path:
    """Write the checkpoint of `step`, then remove all but the `keep` newest ones.

    Later checkpoints are removed too. They are damaged, or the run was resumed from before them.
    """
    path = folder / f"checkpoint-{step:09d}.pt"
    write(path, CHECKPOINT, state)
    kept = [old for old in checkpoints(folder) if old.name <= path.name][:keep]
    for old in set(checkpoints(folder)) - set(kept):
        try:
            old.unlink(missing_ok=True)
        except OSError as error:  # no reason to end a run
            print(f"could not remove {old}: {error.strerror or error}")
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if NAME.fullmatch(path.name)), reverse=True)


def latest(folder: Path, report: Callable[[str], None] = print) -> tuple[Path, dict] | None:
    """The newest checkpoint that is whole, and its content; damaged ones are reported and passed over.

    Raises CheckpointError if checkpoints exist and none is whole: starting anew silently would hide a loss.
    """
    found = checkpoints(folder)
    for path in found:
        try:
            return path, load(path)
        except CheckpointError as error:
            report(f"skipped: {error}")
    if found:
        raise CheckpointError(f"none of the {len(found)} checkpoints in {folder} is whole; remove them to start anew")
    return None


# ---- all files of weights --------------------------------------------------------------------------------------------


def write(path: Path, kind: str, content: dict) -> None:
    """Write a file of weights; whatever happens, `path` is the old file or the complete new one.

    Raises WriteError, and SiamDiffError if the weights are not finite: no command would load them.
    """
    state = {name: tensor.cpu() for name, tensor in content.get(WEIGHTS[kind], {}).items()}
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise SiamDiffError(f"{path} is not written, since the weights are no longer finite ({name}). Lower --lr")
    buffer = io.BytesIO()
    torch.save({"format": kind, **content, WEIGHTS[kind]: state}, buffer)
    write_file(path, buffer.getvalue())


def read(path: str | Path) -> tuple[str, dict]:
    """The kind of a file (one of KINDS) and its content, tensors on the CPU; released weights are made an encoder.

    `path` may be the name of an encoder of the package. Raises CheckpointError if it is damaged or something else.
    """
    content = read_weights(path)
    content = content if isinstance(content, dict) else {}
    kind = content.get("format")
    if isinstance(kind, str) and kind in KINDS:
        state, about = content.get(WEIGHTS[kind]), content.get("config") if kind == CHECKPOINT else content
        named = isinstance(about, dict) and all(isinstance(about.get(x, ""), str) for x in ("task", *IDENTITY))
        if not (named and _tensors_by_name(state)):
            raise CheckpointError(f"{path} is damaged, or of another version: no weights or no options in it")
        if not _plain({name: value for name, value in about.items() if not _tensors_by_name(value)}):
            raise CheckpointError(f"{path} is damaged: its options are no plain numbers, words and lists of them")
        step = content.get("step", 0)
        if not isinstance(step, int) or not 0 <= step <= LAST_STEP:
            raise CheckpointError(f"{path} is damaged: its step is not a number from 0 to {LAST_STEP}")
        if any(".scalar_norm.running_mean" in name for name in state):
            raise CheckpointError(f"{path} holds the GVP of version 0.2, which is gone: --encoder gvp is the paper's")
        return kind, content
    if content and _tensors_by_name(content):
        return ENCODER, _released(content, path)
    raise CheckpointError(f"{path} is neither an encoder file nor a checkpoint nor a dict of tensors")


def _tensors_by_name(state) -> bool:
    return isinstance(state, dict) and all(isinstance(k, str) and isinstance(x, Tensor) for k, x in state.items())


def _plain(options: dict) -> bool:
    """Whether these are numbers, words and None, in lists and dicts: not nested deep, and no more than MOST in all."""
    values = [options]
    for _ in range(5):
        inside = [x for x in values if isinstance(x, (dict, list, tuple))]
        single = (x for x in values if not isinstance(x, (dict, list, tuple, str, float, type(None))))
        if len(values) > MOST or not all(isinstance(x, int) and abs(x) < 2**63 for x in single):
            return False
        each = (x.values() if isinstance(x, dict) else x for x in inside)
        values = list(itertools.islice(itertools.chain.from_iterable(each), MOST + 1))
    return not values


def load(path: str | Path, kind: str = CHECKPOINT) -> dict:
    """Read a file that has to be of this kind, tensors on the CPU. Raises CheckpointError."""
    found, content = read(path)
    if found != kind:
        raise CheckpointError(f"{path} is {KINDS[found]}, not {KINDS[kind]}")
    return content


@contextlib.contextmanager
def malformed(path: str | Path) -> Iterator[None]:
    """Turn into a CheckpointError what goes wrong inside with the content of a file that is whole, but forged."""
    try:
        yield
    except SiamDiffError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise CheckpointError(f"{path} is damaged, or of another version ({reason})") from error


def load_encoder_file(path: str | Path) -> dict:
    """The encoder of any file of weights: IDENTITY and `state`. Raises CheckpointError."""
    return _encoder_of(*read(path))


def _encoder_of(kind: str, content: dict) -> dict:
    if kind == ENCODER:
        return content
    about, state = content["config"] if kind == CHECKPOINT else content, content[WEIGHTS[kind]]
    state = {k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")}
    return {**{name: about[name] for name in IDENTITY if name in about}, "state": state}


def save_encoder_file(path: Path, encoder: nn.Module, name: str, level: str, size: str, preset: str, **about) -> None:
    """Write `encoder.pt`, which `ENCODERS[name](level, size, preset)` builds again; `about` are plain values, and
    `seq_mlp` the weights of the sequence head (Eq. 7), which tell log p(mutant) - log p(wild)."""
    identity = dict(zip(IDENTITY, (name, level, size, preset)))
    write(path, ENCODER, {**identity, **about, "state": encoder.state_dict()})


def _released(state: dict[str, Tensor], path: str | Path) -> dict:
    """The encoder in the weights of torchdrug's GearNet, alone or inside a task (`model.`), wrapped or not by
    DistributedDataParallel (`module.`) and torch.compile (`_orig_mod.`).

    Level and size are told from the shapes, never from the name of the file: the released links are swapped.
    """
    state = {re.sub(r"^((module|_orig_mod)\.)+", "", name): tensor for name, tensor in state.items()}
    inside = {name.removeprefix("model."): t for name, t in state.items() if name.startswith("model.")}
    heads = sorted({name.split(".")[0] for name in state if not name.startswith("model.")}) if inside else []
    state = inside or state
    shapes = [t.shape for name, t in state.items() if re.fullmatch(r"layers\.\d+\.self_loop\.weight", name)]
    if not shapes or any(len(shape) != 2 for shape in shapes):
        found = ", ".join(list(state)[:3])
        raise CheckpointError(f"{path} holds no GearNet: no layers.0.self_loop.weight, but {found}, ...")
    inputs, found = {"atom": ATOM_GRAPH.node_dim, "residue": RESIDUE_GRAPH.node_dim}, [shape[0] for shape in shapes]
    for level, size in itertools.product(inputs, GEARNET_DIMS):
        if shapes[0][1] == inputs[level] and found == GEARNET_DIMS[size][level]:
            return dict(zip(IDENTITY, ("gearnet", level, size, "official"))) | {"state": state, "not_loaded": heads}
    raise CheckpointError(
        f"{path} holds a GearNet with input {shapes[0][1]} and widths {found}; "
        f"known are input {inputs} and widths {GEARNET_DIMS}"
    )


# ---- encoders and objectives -----------------------------------------------------------------------------------------


def new_encoder(config: Namespace, report: Callable[[str], None] = print) -> nn.Module:
    """The encoder that the options ask for, with initial weights, except for those of ESM-2 in --esm.

    Raises ConfigError if there is no such encoder at this level, or the options are for another one.
    """
    encoder = ENCODERS[config.encoder](config.level, config.size, config.preset)
    if encoder.has_esm:
        if config.esm or not config.init_from:
            report(encoder.esm.load(config.esm) if config.esm else f"note        {RANDOM_ESM}: --esm")
        if config.freeze_esm:
            encoder.esm.requires_grad_(False)
    elif config.esm or config.freeze_esm:
        raise ConfigError(f"--esm and --freeze-esm are for esm-gearnet, not for {config.encoder}")
    return encoder


def load_encoder(path: str | Path) -> nn.Module:
    """The encoder of any file of weights, in evaluation mode. Raises CheckpointError."""
    content = load_encoder_file(path)
    with malformed(path):
        name, *identity = (content[name] for name in IDENTITY)
        if name not in ENCODERS:
            raise CheckpointError(f"{path} holds the encoder {name!r:.50}, which is not known here")
        encoder = ENCODERS[name](*identity)
    load_weights(encoder, content["state"], str(path))
    return encoder.eval()


def new_objective(encoder: nn.Module, config: Namespace) -> nn.Module:
    """The objective that the options ask for, with initial weights."""
    more = {name: getattr(config, name) for name in ("ablation", "head_dim") if config.method in STAGED}
    return OBJECTIVES[config.method](encoder, config.level, config.preset, **more)


def initialise(module: nn.Module, path: str | Path, report: Callable = print, encoder_only: bool = False) -> None:
    """Start from the weights in `path`: all of a checkpoint; of another file, or with `encoder_only`, the encoder's.

    Every tensor of the file must find its place; what was loaded and what keeps its initial values is reported.
    """
    kind, content = read(path)
    whole = kind == CHECKPOINT and not encoder_only
    state = content["objective"] if whole else _encoder_of(kind, content)["state"]
    load_weights(module if whole else module.encoder, state, str(path))
    if content.get("not_loaded"):
        with malformed(path):
            report(f"in that file, not loaded: {printable(', '.join(content['not_loaded'])):.1000}")
    loaded = [name if whole else f"encoder.{name}" for name in state]
    kept = [name for name in module.state_dict() if name not in set(loaded)]
    report(f"loaded from {path}: {_groups(loaded)}")
    report(f"not in that file, initial values kept: {_groups(kept) if kept else 'nothing'}")


def _groups(names: list[str]) -> str:
    """Names of tensors counted by the module they belong to: 'encoder.layers (36 tensors), ...'."""
    count = Counter(re.match(r"(encoder\.)?[^.]*", name)[0] for name in names)
    return ", ".join(f"{group} ({n} tensor{'s' * (n > 1)})" for group, n in count.items())
