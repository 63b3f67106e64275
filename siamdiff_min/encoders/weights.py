"""Finding files of weights, reading what `torch.save` wrote, and loading it strictly.

No code in a file is run, and a flipped byte does not become another weight: files of torch (since 1.6) are zips with a
checksum for each tensor, which torch writes but does not compare.
"""

import os
import warnings
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn

from ..files import CheckpointError

BUNDLED = Path(__file__).parents[1] / "weights"  # the encoders that come with the package, NAME.pt
_FOLDER = 16  # among the attributes of a member


def find_weights(given: str | Path) -> Path:
    """The file at a path or, if there is nothing, the encoder of that name in the package. Raises CheckpointError."""
    if os.path.exists(given):
        return Path(given)
    bundled = {path.stem: path for path in BUNDLED.glob("*.pt")}
    if str(given) not in bundled:
        names = ", ".join(sorted(bundled)) or "none"
        raise CheckpointError(f"could not read {given}: No such file; encoders of the package are {names}")
    return bundled[str(given)]


def read_weights(path: str | Path, allow: tuple = ()):
    """The content of a file of `torch.save`, tensors on the CPU; `path` may be the name of an encoder of the package.

    `allow` are the types it may hold besides tensors, strings, numbers, lists and dicts. Raises CheckpointError.
    """
    found = find_weights(path)
    if not found.is_file():  # opening a FIFO would wait for ever
        raise CheckpointError(f"could not read {path}: not a regular file")
    try:
        with open(found, "rb") as file:
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
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} differs")
        for member in archive.infolist():
            if member.external_attr & _FOLDER:  # torch would not read it, and give what happens to be in memory
                raise ValueError(f"{member.filename} is marked as a folder")


def load_weights(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load all of `state` into all of `module`. Raises CheckpointError as `check_weights`; nothing is loaded then."""
    check_weights(module.state_dict(), state, source)
    module.load_state_dict(state)


def check_weights(own: dict[str, Tensor], found: dict[str, Tensor], source: str) -> None:
    """Raise CheckpointError unless `found` has finite tensors of the same names, shapes and kinds as `own`.

    The message names those that are missing or unexpected, and what is wrong with the others.
    """
    problems = [f"missing: {name} {tuple(x.shape)}" for name, x in own.items() if name not in found]
    problems += [f"unexpected: {name!s:.100} {_shape(x)}" for name, x in found.items() if name not in own]
    for name in filter(found.__contains__, own):
        expected, x = own[name], found[name]
        if _shape(x) != tuple(expected.shape):
            problems.append(f"shape of {name}: expected {tuple(expected.shape)}, found {_shape(x)}")
        elif _kind(x) != _kind(expected):
            problems.append(f"kind of {name}: expected {_kind(expected)}, found {_kind(x)}")
        elif not x.isfinite().all():
            problems.append(f"not finite: {name}")
    if problems:
        problems[20:] = [f"and {len(problems) - 20} more"] if len(problems) > 20 else []
        raise CheckpointError(f"the weights of {source} do not fit:\n  " + "\n  ".join(problems))


def _shape(x) -> tuple | str:
    """The shape of a tensor with all its numbers in memory; a word for anything else (sparse, quantized, no data)."""
    plain = isinstance(x, Tensor) and x.layout is torch.strided and not (x.is_meta or x.is_quantized or x.is_nested)
    return tuple(x.shape) if plain else f"no plain tensor ({type(x).__name__})"


def _kind(x: Tensor) -> str:
    """Numbers of any precision can be converted to one another, but no bool or int to a float."""
    return "float" if x.is_floating_point() else str(x.dtype)
