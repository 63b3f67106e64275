"""Files of weights: `encoder.pt`, checkpoints, fine-tuned models (`best.pt`), and released ones; and their encoders.

`torch.save` writes all of them: a dict of tensors, strings, numbers, lists and dicts, read with `weights_only=True`, so
no code in a file is run. The dict's `format` tells which of these a file is; released files hold tensors alone. Files
of torch are zips with a checksum for each tensor. torch writes these checksums, and `read_torch_file` compares them.
"""

import io
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from ..conventions import CONVENTIONS
from ..files import CheckpointError, ConfigError, SiamDiffError, write_file
from ..machine import choose_device
from ..names import BUNDLED, IDENTITY, find_weights
from . import ENCODERS, RANDOM_ESM, Encoder
from .esm import ESM2
from .released import esm_weights, released_encoder, tensors_of

CHECKPOINT, ENCODER, MODEL = "siamdiff_min checkpoint 2", "siamdiff_min encoder 1", "siamdiff_min model 1"
FORMATS = {CHECKPOINT: "a checkpoint to resume from", ENCODER: "an encoder", MODEL: "a fine-tuned model"}
WEIGHTS = {CHECKPOINT: "objective", ENCODER: "state", MODEL: "state"}  # file format -> key of its weights


def read_torch_file(path: str | Path, allow: tuple = ()):
    """The content of a file of `torch.save`, tensors on the CPU; `path` may be the name of an encoder of the package.

    `allow` are the types it may hold besides tensors, strings, numbers, lists and dicts. With the package safetensors
    also a file of that kind. Raises CheckpointError.
    """
    # Read it: nothing in it is run, and a damaged part is named.
    file = find_weights(path)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        with zipfile.ZipFile(file) as archive, torch.serialization.safe_globals(list(allow)):
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} differs")
            return torch.load(file, map_location="cpu", weights_only=True)

    # Say what is wrong with it, and what helps.
    except ImportError as error:
        raise CheckpointError(f"{path} needs the package safetensors: pip install safetensors") from error
    except UnpicklingError as error:
        advice = "write encoder.save(PATH), or torch.save(module.state_dict(), PATH)"
        raise CheckpointError(
            f"{path} holds a pickled module or other Python objects, which are not read: {advice}"
        ) from error
    except Exception as error:  # torch raises half a dozen types on damaged input, some without a message
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]  # then, advice to allow pickles
        raise CheckpointError(f"{path} cannot be read as a torch file, or is damaged: {reason}") from error


def load_weights(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load all of `state` into all of `module`. Raises CheckpointError for what does not fit, or is not finite."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of {source} do not fit: {error!s:.2000}") from error
    if wrong := [name for name, x in state.items() if not x.isfinite().all()]:
        raise CheckpointError(f"the weights of {source} are not finite: {', '.join(wrong):.500}")


def write_weights(path: Path, file_format: str, content: dict) -> None:
    """Write a file of weights, wholly or not at all. WriteError; SiamDiffError if they are not finite."""
    state = {name: tensor.cpu() for name, tensor in content.get(WEIGHTS[file_format], {}).items()}
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise SiamDiffError(f"{path} is not written, since the weights are no longer finite ({name}). Lower --lr")
    buffer = io.BytesIO()
    torch.save({"format": file_format, **content, WEIGHTS[file_format]: state}, buffer)
    write_file(path, buffer.getvalue())


def read_weights(path: str | Path, file_format: str | None = None) -> dict:
    """The content of a file of weights, tensors on the CPU. Its `format` is one of FORMATS (released weights: ENCODER).

    `path` may name an encoder of the package. Raises CheckpointError if it is damaged, or of another `file_format`.
    """
    content = read_torch_file(path)
    if not isinstance(content, dict) or content.get("format") not in FORMATS:
        if not (state := tensors_of(content)):
            raise CheckpointError(f"{path} is neither an encoder file nor a checkpoint nor a dict of tensors")
        content = {"format": ENCODER, **released_encoder(state, path)}
    if file_format not in (None, content["format"]):
        raise CheckpointError(f"{path} is {FORMATS[content['format']]}, not {FORMATS[file_format]}")
    return content


def load_encoder_file(path: str | Path) -> dict:
    """The encoder of any file of weights: IDENTITY and `state`. Raises CheckpointError."""
    return encoder_of(read_weights(path))


def encoder_of(content: dict) -> dict:
    """The same, from the content of a file."""
    if content["format"] == ENCODER:
        return content
    options = content["config"] if content["format"] == CHECKPOINT else content
    tensors = content[WEIGHTS[content["format"]]].items()
    state = {name.removeprefix("encoder."): x for name, x in tensors if name.startswith("encoder.")}
    known = {name: options[name] for name in (*IDENTITY, "conventions") if name in options}
    return {**known, "state": state}


def save_encoder_file(
    file: Path, encoder: nn.Module, name: str, level: str, size: str, preset: str, /, **values
) -> None:
    """Write `encoder.pt`, the weights of `ENCODERS[name](level, size, preset)`, and the conventions of its graphs.

    `values` are plain, or `seq_mlp`: the weights of the sequence head (Eq. 7), which gives log p(mutant) - log p(wild).

    Raises ConfigError for values that no file can hold.
    """
    own = {"conventions": asdict(encoder.builder.conventions), **dict(zip(IDENTITY, (name, level, size, preset)))}
    taken = values.keys() & {*own, "format", "state"}
    if taken:
        raise ConfigError(f"{file} is not written: {', '.join(sorted(taken))} is a name of its own")
    values = {key: _as_plain(value) for key, value in values.items()}
    if wrong := not_readable(values):
        raise ConfigError(f"{file} is not written: {', '.join(wrong)} is not made of numbers and words")
    write_weights(file, ENCODER, {**own, **values, "state": encoder.state_dict()})


def not_readable(values: dict) -> list[str]:
    """The names of values that a file of weights cannot give back: it is read without running any code."""

    wrong = []
    for name, value in values.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except Exception:  # torch and pickle raise half a dozen types
            wrong.append(name)
    return wrong


def _as_plain(value):
    """Numbers, words and arrays of numpy, and tensors, as Python's; dicts of tensors on the CPU."""
    if isinstance(value, dict) and value and all(isinstance(x, Tensor) for x in value.values()):
        return {name: tensor.cpu() for name, tensor in value.items()}
    if isinstance(value, dict):
        return {_as_plain(key): _as_plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value


def new_encoder(config: Namespace, say: Callable[[str], None] = print) -> nn.Module:
    """The encoder of the options, with initial weights but for --esm. ConfigError if they are of another one."""
    encoder = ENCODERS[config.encoder](config.level, config.size, config.preset)
    source = config.init_from or getattr(config, "eval_only", None)
    if source and follow_file(encoder, load_encoder_file(source), source):
        say(f"note        graphs follow the conventions in {source}, not the preset {config.preset} as it is here")
    if encoder.has_esm:
        if config.esm or not (config.init_from or getattr(config, "eval_only", None)):
            say(load_esm(encoder.esm, config.esm) if config.esm else f"note        {RANDOM_ESM}: --esm")
        if config.freeze_esm:
            encoder.esm.requires_grad_(False)
    elif config.esm or config.freeze_esm:
        raise ConfigError(f"--esm and --freeze-esm are for esm-gearnet, not for {config.encoder}")
    return encoder


def list_encoders() -> dict[str, str]:
    """The encoders that come with the package: name -> what it is, in a sentence. `load_encoder(NAME)` loads one."""
    sentence = "{encoder} of size {size} at {level} level, after {steps} steps of {method}: {data}"
    return {path.stem: sentence.format(**load_encoder_file(path)) for path in sorted(BUNDLED.glob("*.pt"))}


def load_encoder(name: str | Path, device: str = "auto") -> Encoder:
    """The encoder of that name (`list_encoders`) or in a file of weights, in evaluation mode, on `device`.

    `encoder(protein)` and `encoder.embed(path)` give representations. "auto" is a GPU if there is any. No random number
    is drawn. Raises CheckpointError for another file, ConfigError for a GPU that is not there.
    """
    device = choose_device(device)
    content = load_encoder_file(name)

    # Initial weights are drawn, then replaced: the generators of the caller do not notice.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        architecture, level, size, preset = (content[key] for key in IDENTITY)
        advice = "import the file that adds it first, or give it as --plugin"
        if architecture not in ENCODERS:
            raise CheckpointError(f"{name} holds the encoder {architecture!r:.50}, which is not known here: {advice}")
        if preset not in CONVENTIONS and "conventions" not in content:
            raise CheckpointError(f"{name} is of the preset {preset!r:.50}, which is not known here: {advice}")
        encoder = ENCODERS[architecture](level, size, preset if preset in CONVENTIONS else "paper")
    encoder.identity = architecture, level, size, preset
    follow_file(encoder, content, str(name))
    load_weights(encoder, content["state"], str(name))

    # Released weights name neither a preset nor what lies beside them.
    if "not_loaded" in content:
        left = f"; not loaded: {', '.join(content['not_loaded'])}" if content["not_loaded"] else ""
        warnings.warn(
            f"{name} names no preset, so it is read as one of the released code (official){left}", stacklevel=2
        )
    return encoder.to(device).eval()


def follow_file(encoder: Encoder, content: dict, source: str) -> bool:
    """Build graphs as this file's encoder did: a plugin may have changed the preset. Whether they differ from it."""
    before = encoder.builder.conventions
    try:
        conventions = replace(before, **content.get("conventions", {}))
    except TypeError as error:
        raise CheckpointError(f"{source} has conventions that this version does not know: {error}") from error
    encoder.follow(conventions)
    return conventions != before


def load_esm(esm: ESM2, path: str) -> str:
    """Read ESM-2 from a file of fair-esm (`esm2_t33_650M_UR50D.pt` and the like) or of Hugging Face
    (`pytorch_model.bin`, `model.safetensors`); returns what was read, in words.

    Raises CheckpointError if the file is damaged, no ESM-2, or of another size.
    """
    content = read_torch_file(path, allow=(Namespace,))  # fair-esm keeps options of its training beside it
    state = esm_weights(content, path)
    size = f"ESM-2 with {len(esm.layers)} layers of {esm.width}"
    load_weights(esm, state, f"{path}, as {size},")
    return f"{size} from {path} ({len(state)} tensors)"
