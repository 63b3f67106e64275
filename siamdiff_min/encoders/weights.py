"""Files of weights: `encoder.pt`, checkpoints, fine-tuned models (`best.pt`), and released ones; and their encoders.

`torch.save` writes all of them: a dict of tensors, strings, numbers, lists and dicts, read with `weights_only=True`.
The dict's `format` tells which of these a file is; released files hold tensors alone. No code in a file is run. A
flipped byte does not become another weight: files of torch (since 1.6) are zips with a checksum for each tensor. torch
writes these checksums, but does not compare them.
"""

import contextlib
import io
import itertools
import os
import re
import warnings
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

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
MAX_STEP, MAX_OPTIONS = 10**9 - 1, 10**5  # the name of a checkpoint has nine digits; the most options in a file
_FOLDER = 16  # among the attributes of a member


def find_weights(name: str | Path) -> Path:
    """The file at a path; without one, the encoder of that name in the package. Raises CheckpointError."""
    bundled = {path.stem: path for path in BUNDLED.glob("*.pt")}
    if os.path.exists(name) and not (str(name) in bundled and os.path.isdir(name)):
        return Path(name)
    if str(name) not in bundled:
        names = ", ".join(sorted(bundled)) or "none"
        raise CheckpointError(f"could not read {name}: No such file; encoders of the package are {names}")
    return bundled[str(name)]


def read_torch_file(path: str | Path, allow: tuple = ()):
    """The content of a file of `torch.save`, tensors on the CPU; `path` may be the name of an encoder of the package.

    `allow` are the types it may hold besides tensors, strings, numbers, lists and dicts. Raises CheckpointError.
    """
    file_path = find_weights(path)
    if not file_path.is_file():  # opening a FIFO would wait for ever
        raise CheckpointError(f"could not read {path}: not a regular file")
    try:
        with open(file_path, "rb") as file:
            _compare_checksums(file)
            file.seek(0)
            with torch.serialization.safe_globals(list(allow)), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Validating sparse tensor")  # `check_weights` refuses them by name
                return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types on damaged input, some without a message
        if isinstance(error, OSError) and error.errno:
            raise CheckpointError(f"could not read {path}: {error.strerror}") from error
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]  # then, advice to allow pickles
        raise CheckpointError(f"{path} cannot be read as a torch file, or is damaged: {reason}") from error


def _compare_checksums(file) -> None:
    """Raise ValueError if a member of the zip differs from its checksum, or is not stored as torch stores it.

    So all members together are no larger than the file, and a small file cannot take much time or memory.
    """
    with zipfile.ZipFile(file) as archive:
        names, end = set(), 0
        for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
            wrong = {
                "compressed": member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size,
                "marked as a folder": member.external_attr & _FOLDER,  # torch would give what happens to be in memory
                "there twice": member.filename in names,
                "within another member": member.header_offset < end,
            }
            for reason, applies in wrong.items():
                if applies:
                    raise ValueError(f"{member.filename} is {reason}")
            names.add(member.filename)
            end = member.header_offset + member.file_size
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} differs")


def load_weights(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load all of `state` into all of `module`. Raises CheckpointError as `check_weights`; nothing is loaded then."""
    check_weights(module.state_dict(), state, source)
    module.load_state_dict(state)


def check_weights(expected: dict[str, Tensor], state: dict[str, Tensor], source: str) -> None:
    """Raise CheckpointError unless `state` has finite tensors of the same names, shapes and kinds as `expected`.

    The message names those that are missing or unexpected, and what is wrong with the others.
    """
    mismatches = [f"missing: {name} {tuple(x.shape)}" for name, x in expected.items() if name not in state]
    mismatches += [f"unexpected: {name!s:.100} {_shape(x)}" for name, x in state.items() if name not in expected]
    for name in filter(state.__contains__, expected):
        own, x = expected[name], state[name]
        if _shape(x) != tuple(own.shape):
            mismatches.append(f"shape of {name}: expected {tuple(own.shape)}, found {_shape(x)}")
        elif _kind(x) != _kind(own):
            mismatches.append(f"kind of {name}: expected {_kind(own)}, found {_kind(x)}")
        elif not x.isfinite().all():
            mismatches.append(f"not finite: {name}")
    if mismatches:
        mismatches[20:] = [f"and {len(mismatches) - 20} more"] if len(mismatches) > 20 else []
        raise CheckpointError(f"the weights of {source} do not fit:\n  " + "\n  ".join(mismatches))


def _shape(x) -> tuple | str:
    """The shape of a tensor with all its numbers in memory; a word for anything else (sparse, quantized, no data)."""
    plain = isinstance(x, Tensor) and x.layout is torch.strided and not (x.is_meta or x.is_quantized or x.is_nested)
    return tuple(x.shape) if plain else f"no plain tensor ({type(x).__name__})"


def _kind(x: Tensor) -> str:
    """Numbers of any precision can be converted to one another, but no bool or int to a float."""
    return "float" if x.is_floating_point() else str(x.dtype)


# ---- all files of weights --------------------------------------------------------------------------------------------


def write_weights(path: Path, file_format: str, content: dict) -> None:
    """Write a file of weights; whatever happens, `path` is the old file or the complete new one.

    Raises WriteError, and SiamDiffError if the weights are not finite: no command would load them.
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
    content = content if isinstance(content, dict) else {}
    if isinstance(content.get("format"), str) and content["format"] in FORMATS:
        _check_content(content, path)
    else:
        # torchdrug's engine saves its optimizer beside the weights.
        state = content["model"] if isinstance(content.get("model"), dict) else content
        if not (state and _tensors_by_name(state)):
            raise CheckpointError(f"{path} is neither an encoder file nor a checkpoint nor a dict of tensors")
        with malformed(path):
            content = {"format": ENCODER, **_released(state, path)}
    if file_format not in (None, content["format"]):
        raise CheckpointError(f"{path} is {FORMATS[content['format']]}, not {FORMATS[file_format]}")
    return content


def _check_content(content: dict, path: str | Path) -> None:
    """Raise CheckpointError for a file of ours that is forged, or whose encoder no longer exists."""
    state = content.get(WEIGHTS[content["format"]])
    options = content.get("config") if content["format"] == CHECKPOINT else content
    identified = isinstance(options, dict) and all(isinstance(options.get(x, ""), str) for x in ("task", *IDENTITY))
    if not (identified and _tensors_by_name(state)):
        raise CheckpointError(f"{path} is damaged, or of another version: no weights or no options in it")
    if not is_plain({name: value for name, value in options.items() if not _tensors_by_name(value)}):
        raise CheckpointError(f"{path} is damaged: its options are no plain numbers, words and lists of them")
    step = content.get("step", 0)
    if not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise CheckpointError(f"{path} is damaged: its step is not a number from 0 to {MAX_STEP}")
    if any(".scalar_norm.running_mean" in name for name in state):
        raise CheckpointError(
            f"{path} holds the GVP of an earlier version, which is gone: --encoder gvp is the paper's"
        )
    edges = any("gearnet.edge_layers." in name for name in state)
    if edges and re.match("esm-gearnet(?!-edge)", options.get("encoder", "")):
        reason = "it had messages between edges, and its output was in another order. Train it again"
        raise CheckpointError(f"{path} holds the ESM-GearNet of an earlier version: {reason}")


def _tensors_by_name(state) -> bool:
    return isinstance(state, dict) and all(isinstance(k, str) and isinstance(x, Tensor) for k, x in state.items())


def is_plain(options: dict) -> bool:
    """Whether these are numbers, words and None, in lists and dicts, not nested deep, MAX_OPTIONS at most.

    Of exactly these types: instances of their subclasses are not read again.
    """
    values = [options]
    for _ in range(5):
        inside = [x for x in values if type(x) in (dict, OrderedDict, list, tuple)]
        single = [x for x in values if type(x) not in (dict, OrderedDict, list, tuple)]
        single += [key for x in inside if isinstance(x, dict) for key in x]
        if len(values) > MAX_OPTIONS or not all(map(_is_single, single)):
            return False
        each = (x.values() if isinstance(x, dict) else x for x in inside)
        values = list(itertools.islice(itertools.chain.from_iterable(each), MAX_OPTIONS + 1))
    return not values


def _is_single(x) -> bool:
    return abs(x) < 2**63 if type(x) is int else type(x) in (str, float, bool, type(None))


@contextlib.contextmanager
def malformed(path: str | Path) -> Iterator[None]:
    """Turn errors inside into a CheckpointError: the file is whole, but its content is not what we wrote."""
    try:
        yield
    except SiamDiffError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise CheckpointError(f"{path} is damaged, or of another version ({reason})") from error


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

    Raises ConfigError for values that `read_weights` would refuse.
    """
    if taken := values.keys() & {*IDENTITY, "format", "state"}:
        raise ConfigError(f"{file} is not written: {', '.join(sorted(taken))} is a name of its own")
    values = {own: _as_plain(value) for own, value in values.items()}
    for own, value in values.items():
        if not (_tensors_by_name(value) or is_plain({own: value})):
            raise ConfigError(f"{file} is not written: {own} is not made of numbers and words, {MAX_OPTIONS:,} at most")
    identity = dict(zip(IDENTITY, (name, level, size, preset)))
    content = {"format": ENCODER, **identity, **values, "state": encoder.state_dict()}
    try:
        _check_content(content, file)
    except CheckpointError as error:
        raise ConfigError(f"{file} is not written: as a file, {error}") from error
    write_weights(file, ENCODER, content)


def _as_plain(value):
    """Numbers, words and arrays of numpy, and tensors, as Python's; dicts of tensors on the CPU."""
    if _tensors_by_name(value):
        return {name: tensor.cpu() for name, tensor in value.items()}
    if isinstance(value, dict):
        return {key.tolist() if hasattr(key, "tolist") else key: _as_plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value


# A task (`model.`), a task in a task, DistributedDataParallel (`module.`) and torch.compile (`_orig_mod.`).
_AROUND = r"(?:(?:model|module|_orig_mod)\.)*"
_FIRST = re.compile(rf"({_AROUND})((?:structure_model\.)?)layers\.0\.self_loop\.weight")
_NOT_IN_ESM = r".*rot_emb\.inv_freq|contact_head\..*|lm_head\..*"  # of fair-esm: constants, and heads


def _released(state: dict[str, Tensor], path: str | Path) -> dict:
    """The encoder in the weights of torchdrug's GearNet or of ESM-GearNet, alone or inside something.

    Encoder, level and size are told from the shapes, never from the name of the file: two released links are swapped.
    """
    match = next(filter(None, map(_FIRST.fullmatch, state)), None)
    if not match:
        names = ", ".join(list(state)[:3])
        raise CheckpointError(f"{path} holds no GearNet: no layers.0.self_loop.weight, but {names}, ...")
    prefix, gearnet = match.groups()
    heads = {re.sub(_AROUND, "", name, count=1).split(".")[0] for name in state if not name.startswith(prefix)}
    state = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    shapes = [x.shape for name, x in state.items() if re.fullmatch(rf"{gearnet}layers\.\d+\.self_loop\.weight", name)]
    dims = [shapes[0][1], *(shape[0] for shape in shapes)]  # of the input, then of the layers
    if gearnet:
        esm = {f"esm-gearnet-{size}".removesuffix("-650M"): width for size, (_, width, _) in ESM_SIZES.items()}
        known = [(width, name, "residue", "paper") for name, width in esm.items()]
        state = _esm_gearnet(state, path)
    else:
        nodes = {"atom": ATOM_GRAPH.node_dim, "residue": RESIDUE_GRAPH.node_dim}
        known = [(nodes[level], "gearnet", level, size) for level, size in itertools.product(nodes, GEARNET_DIMS)]
    for width, name, level, size in known:
        if dims == [width, *GEARNET_DIMS[size][level]]:
            identity = dict(zip(IDENTITY, (name, level, size, "official")))
            return {**identity, "state": state, "not_loaded": sorted(heads)}
    listed = "; ".join(f"{width} and {GEARNET_DIMS[size][level]}" for width, _, level, size in known)
    shape = f"input {dims[0]} and widths {dims[1:]}"
    raise CheckpointError(f"{path} holds a GearNet with {shape}; known are input and widths {listed}")


def _esm_gearnet(state: dict[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """torchdrug's weights by the names of `ESMGearNet`. Raises CheckpointError for another order of types."""
    tokens = state.pop("sequence_model.mapping").tolist()[: len(RESIDUE_TOKEN)]  # of the residue types
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
    with malformed(name), torch.device("cpu"), torch.random.fork_rng(devices=[]):
        architecture, *identity = (content[key] for key in IDENTITY)
        if architecture not in ENCODERS:
            raise CheckpointError(f"{name} holds the encoder {architecture!r:.50}, which is not known here")
        encoder = named(architecture, ENCODERS[architecture])(*identity)
    load_weights(encoder, content["state"], str(name))
    return encoder.to(device).eval()


def load_esm(esm: ESM2, path: str) -> str:
    """Read a weight file of fair-esm (`esm2_t33_650M_UR50D.pt` and the like); returns what was read, in words.

    Raises CheckpointError if the file is damaged, no ESM-2, or of another size; the module is then unchanged.
    """
    size = f"ESM-2 with {len(esm.layers)} layers of {esm.width}"
    content = read_torch_file(path, allow=(Namespace,))  # beside the model the options of its training
    try:
        state = {re.sub(r"^encoder\.(sentence_encoder\.)?", "", name): x for name, x in content["model"].items()}
        state = {name: x for name, x in state.items() if not re.fullmatch(_NOT_IN_ESM, name)}
        load_weights(esm, state, f"{path}, as {size},")
    except (LookupError, TypeError, AttributeError) as error:  # no dict of tensors
        raise CheckpointError(f"{path} is not a weight file of fair-esm: {error}") from error
    return f"{size} from {path} ({len(state)} tensors)"
