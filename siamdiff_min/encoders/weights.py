"""Files of weights: `encoder.pt`, checkpoints, fine-tuned models (`best.pt`), and released ones; and their encoders.

`torch.save` writes all of them: a dict of tensors, strings, numbers, lists and dicts, read with `weights_only=True`, so
no code in a file is run. The dict's `format` tells which of these a file is; released files hold tensors alone. Files
of torch are zips with a checksum for each tensor. torch writes these checksums, and `read_torch_file` compares them.
"""

import io
import itertools
import os
import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from ..files import CheckpointError, ConfigError, SiamDiffError, write_file
from ..machine import choose_device
from . import ATOM_GRAPH, ENCODERS, GEARNET_DIMS, RANDOM_ESM, RESIDUE_GRAPH, Encoder, named
from .esm import ESM2, ESM_SIZES, RESIDUE_TOKEN

BUNDLED = Path(__file__).parents[1] / "weights"  # the encoders that come with the package, NAME.pt
CHECKPOINT, ENCODER, MODEL = "siamdiff_min checkpoint 2", "siamdiff_min encoder 1", "siamdiff_min model 1"
FORMATS = {CHECKPOINT: "a checkpoint to resume from", ENCODER: "an encoder", MODEL: "a fine-tuned model"}
IDENTITY = ("encoder", "level", "size", "preset")  # an encoder is built again from these
WEIGHTS = {CHECKPOINT: "objective", ENCODER: "state", MODEL: "state"}  # file format -> key of its weights


def find_weights(name: str | Path) -> Path:
    """The file at a path; without one, the encoder of that name in the package. Raises CheckpointError."""
    bundled = {path.stem: path for path in BUNDLED.glob("*.pt")}
    if os.path.isfile(name) or (str(name) not in bundled and os.path.exists(name)):
        return Path(name)
    if str(name) not in bundled:
        raise CheckpointError(f"could not read {name}: No such file; encoders of the package are {', '.join(bundled)}")
    return bundled[str(name)]


def read_torch_file(path: str | Path, allow: tuple = ()):
    """The content of a file of `torch.save`, tensors on the CPU; `path` may be the name of an encoder of the package.

    `allow` are the types it may hold besides tensors, strings, numbers, lists and dicts. With the package safetensors
    also a file of that kind. Raises CheckpointError.
    """
    file = find_weights(path)
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        with zipfile.ZipFile(file) as archive, torch.serialization.safe_globals(list(allow)):
            if damaged := archive.testzip():
                raise ValueError(f"the checksum of {damaged} differs")
            return torch.load(file, map_location="cpu", weights_only=True)
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


# ---- all files of weights --------------------------------------------------------------------------------------------


def write_weights(path: Path, file_format: str, content: dict) -> None:
    """Write a file of weights; whatever happens, `path` is the old file or the complete new one.

    Raises WriteError, and SiamDiffError if the weights are not finite: nobody could use them.
    """
    state = {name: tensor.cpu() for name, tensor in content.get(WEIGHTS[file_format], {}).items()}
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise SiamDiffError(f"{path} is not written, since the weights are no longer finite ({name}). Lower --lr")
    buffer = io.BytesIO()
    torch.save({"format": file_format, **content, WEIGHTS[file_format]: state}, buffer)
    write_file(path, buffer.getvalue())


def read_weights(path: str | Path, file_format: str | None = None) -> dict:
    """The content of a file of weights, tensors on the CPU. Its `format` is one of FORMATS (released weights: ENCODER).

    `path` may be the name of an encoder of the package. Raises CheckpointError if the file is damaged or something
    else, or has another format than `file_format`.
    """
    content = read_torch_file(path)
    if not isinstance(content, dict) or content.get("format") not in FORMATS:
        if not (state := _state(content)):
            raise CheckpointError(f"{path} is neither an encoder file nor a checkpoint nor a dict of tensors")
        content = {"format": ENCODER, **_released(state, path)}
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
    state = content[WEIGHTS[content["format"]]].items()
    state = {name.removeprefix("encoder."): x for name, x in state if name.startswith("encoder.")}
    return {**{name: options[name] for name in IDENTITY if name in options}, "state": state}


def save_encoder_file(
    file: Path, encoder: nn.Module, name: str, level: str, size: str, preset: str, /, **values
) -> None:
    """Write `encoder.pt`, the weights of `ENCODERS[name](level, size, preset)`. `values` are plain, or `seq_mlp`:
    the weights of the sequence head (Eq. 7), which gives log p(mutant) - log p(wild).

    Raises ConfigError for values that no file can hold.
    """
    identity = dict(zip(IDENTITY, (name, level, size, preset)))
    if taken := values.keys() & {*IDENTITY, "format", "state"}:
        raise ConfigError(f"{file} is not written: {', '.join(sorted(taken))} is a name of its own")
    values = {own: _as_plain(value) for own, value in values.items()}
    if wrong := not_readable(values):
        raise ConfigError(f"{file} is not written: {', '.join(wrong)} is not made of numbers and words")
    write_weights(file, ENCODER, {**identity, **values, "state": encoder.state_dict()})


def not_readable(values: dict) -> list[str]:
    """The names of values that a file of weights cannot give back: it is read without running any code."""

    def readable(value) -> bool:
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except Exception:  # torch and pickle raise half a dozen types
            return False
        return True

    return [name for name, value in values.items() if not readable(value)]


def _as_plain(value):
    """Numbers, words and arrays of numpy, and tensors, as Python's; dicts of tensors on the CPU."""
    if isinstance(value, dict) and value and all(isinstance(x, Tensor) for x in value.values()):
        return {name: tensor.cpu() for name, tensor in value.items()}
    if isinstance(value, dict):
        return {_as_plain(key): _as_plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value


_FIRST = re.compile(r"((?:.+?\.)??)((?:structure_model\.)?)layers\.0\.self_loop\.weight")  # in whatever it is
_GEARNET = re.compile(r"((edge_)?layers|batch_norms)\.\d+\..*")
_ESM_GEARNET = re.compile(r"(sequence|structure)_model\..*")
_NOT_IN_ESM = r".*rot(ary)?_emb(eddings)?\.inv_freq|contact_head\..*|lm_head\..*"  # constants, and heads


def _state(content) -> dict[str, Tensor]:
    """The weights in a file of another program, beside which torchdrug, Lightning and others keep an optimizer."""
    for name in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    named = isinstance(content, dict) and all(isinstance(k, str) and isinstance(x, Tensor) for k, x in content.items())
    return content if named else {}


def _released(state: dict[str, Tensor], path: str | Path) -> dict:
    """The encoder in the weights of torchdrug's GearNet or of ESM-GearNet, alone or inside something.

    Encoder, level and size are told from the shapes, never from the name of the file: two released links are swapped.
    What is beside the encoder is not loaded, but named.
    """
    found = [match for match in map(_FIRST.fullmatch, state) if match]
    if len(found) != 1:
        names = ", ".join([match[0] for match in found] or list(state)[:3])
        problem = "several GearNets" if found else "no GearNet: no layers.0.self_loop.weight, but"
        raise CheckpointError(f"{path} holds {problem} {names}, ...")
    prefix, gearnet = found[0].groups()
    around = re.sub(r"[^.]+\.$", "", prefix)  # of the module that has the encoder in it
    names = {name: name.removeprefix(prefix if name.startswith(prefix) else around) for name in state}
    own = _ESM_GEARNET if gearnet else _GEARNET
    loaded = {short: state[name] for name, short in names.items() if name == prefix + short and own.fullmatch(short)}
    heads = {short.split(".")[0] for name, short in names.items() if short not in loaded}
    shapes = [x.shape for name, x in loaded.items() if re.fullmatch(rf"{gearnet}layers\.\d+\.self_loop\.weight", name)]
    dims = [shapes[0][1], *(shape[0] for shape in shapes)]  # of the input, then of the layers
    if gearnet:
        esm = {f"esm-gearnet-{size}".removesuffix("-650M"): width for size, (_, width, _) in ESM_SIZES.items()}
        known = [(width, name, "residue", "paper") for name, width in esm.items()]
        loaded = _esm_gearnet(loaded, path)
    else:
        nodes = {"atom": ATOM_GRAPH.node_dim, "residue": RESIDUE_GRAPH.node_dim}
        known = [(nodes[level], "gearnet", level, size) for level, size in itertools.product(nodes, GEARNET_DIMS)]
    for width, name, level, size in known:
        if dims == [width, *GEARNET_DIMS[size][level]]:
            identity = dict(zip(IDENTITY, (name, level, size, "official")))
            return {**identity, "state": loaded, "not_loaded": sorted(heads)}
    listed = "; ".join(f"{width} and {GEARNET_DIMS[size][level]}" for width, _, level, size in known)
    shape = f"input {dims[0]} and widths {dims[1:]}"
    raise CheckpointError(f"{path} holds a GearNet with {shape}; known are input and widths {listed}")


def _esm_gearnet(state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """torchdrug's weights by the names of `ESMGearNet`. Raises CheckpointError for another order of types."""
    tokens = state.pop("sequence_model.mapping", torch.zeros(0)).tolist()[: len(RESIDUE_TOKEN)]  # of the residue types
    if tokens != list(RESIDUE_TOKEN):
        raise CheckpointError(f"{path} has the residue types in another order, with ESM's tokens {tokens}")
    state = {re.sub(r"^sequence_model\.model\.", "esm.", name): x for name, x in state.items()}
    state = {re.sub(r"^structure_model\.", "gearnet.", name): x for name, x in state.items()}
    return {name: x for name, x in state.items() if not re.fullmatch(rf"esm\.({_NOT_IN_ESM})", name)}


# ---- encoders --------------------------------------------------------------------------------------------------------


def new_encoder(config: Namespace, say: Callable[[str], None] = print) -> nn.Module:
    """The encoder that the options ask for, with initial weights, except for those of ESM-2 in --esm.

    Raises ConfigError if there is no such encoder at this level, or the options are for another one.
    """
    encoder = named(config.encoder, ENCODERS[config.encoder])(config.level, config.size, config.preset)
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
    device, content = choose_device(device), load_encoder_file(name)
    # Initial weights are drawn, then replaced: the generators of the caller do not notice.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        architecture, *identity = (content[key] for key in IDENTITY)
        if architecture not in ENCODERS:
            advice = "import the file that adds it first, or give it as --plugin"
            raise CheckpointError(f"{name} holds the encoder {architecture!r:.50}, which is not known here: {advice}")
        encoder = named(architecture, ENCODERS[architecture])(*identity)
    load_weights(encoder, content["state"], str(name))
    if "not_loaded" in content:
        left = f"; not loaded: {', '.join(content['not_loaded'])}" if content["not_loaded"] else ""
        warnings.warn(
            f"{name} names no preset, so it is read as one of the released code (official){left}", stacklevel=2
        )
    return encoder.to(device).eval()


_HUGGING_FACE = {  # parts of the names of ESM-2 there -> those of fair-esm, in this order
    "embeddings.word_embeddings.": "embed_tokens.",
    "encoder.layer.": "layers.",
    "encoder.emb_layer_norm_after.": "emb_layer_norm_after.",
    **{f"attention.self.{name}.": f"self_attn.{name[0]}_proj." for name in ("query", "key", "value")},
    "attention.output.dense.": "self_attn.out_proj.",
    "attention.LayerNorm.": "self_attn_layer_norm.",
    "intermediate.dense.": "fc1.",
    "output.dense.": "fc2.",
    "LayerNorm.": "final_layer_norm.",
}


def load_esm(esm: ESM2, path: str) -> str:
    """Read ESM-2 from a file of fair-esm (`esm2_t33_650M_UR50D.pt` and the like) or of Hugging Face
    (`pytorch_model.bin`, `model.safetensors`); returns what was read, in words.

    Raises CheckpointError if the file is damaged, no ESM-2, or of another size.
    """
    state = _state(read_torch_file(path, allow=(Namespace,)))  # fair-esm keeps options of its training beside it
    if any(name.endswith("word_embeddings.weight") for name in state):
        if "rotary" in " ".join(state):  # then a table of positions is a relic; in ESM-1 it is used
            state = {name: x for name, x in state.items() if "embeddings.position_" not in name}
        for theirs, ours in _HUGGING_FACE.items():
            state = {name.replace(theirs, ours): x for name, x in state.items()}
    first = [name for name in state if name.endswith("embed_tokens.weight")]
    if len(first) != 1:
        raise CheckpointError(f"{path} is not a weight file of ESM-2")
    prefix = first[0].removesuffix("embed_tokens.weight")
    state = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    state = {name: x for name, x in state.items() if not re.fullmatch(_NOT_IN_ESM, name)}
    size = f"ESM-2 with {len(esm.layers)} layers of {esm.width}"
    load_weights(esm, state, f"{path}, as {size},")
    return f"{size} from {path} ({len(state)} tensors)"
