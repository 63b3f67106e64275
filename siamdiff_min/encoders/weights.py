"""Finding files of weights, and reading what `torch.save` wrote: no code in the file is run, and a flipped byte does
not become another weight.

Files of torch are zips with a checksum for each tensor, which torch writes but does not compare. Before torch 1.6 they
were something else, without checksums.
"""

import os
import zipfile
from pathlib import Path
from typing import IO

import torch

from ..files import CheckpointError

BOX = Path(__file__).parents[1] / "weights"  # the encoders that come with the package, NAME.pt
_ZIP = b"PK\3\4"
_BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_FOLDER = 16  # among the attributes of a member


def find_weights(given: str | Path) -> Path:
    """The file at a path or, if there is nothing, the encoder of that name in the package. Raises CheckpointError."""
    if os.path.exists(given):
        return Path(given)
    boxed = {path.stem: path for path in BOX.glob("*.pt")}
    if str(given) not in boxed:
        names = ", ".join(sorted(boxed)) or "none"
        raise CheckpointError(f"could not read {given}: No such file; encoders of the package are {names}")
    return boxed[str(given)]


def read_weights(file: IO[bytes], allow: tuple = ()):
    """The content of a file of `torch.save`, tensors on the CPU.

    `allow` are the types it may hold besides tensors, strings, numbers, lists and dicts. Raises CheckpointError.
    """
    try:
        begin = file.read(len(_BEFORE_1_6))
        if begin.startswith(_ZIP):
            _compare_checksums(file)
        elif begin != _BEFORE_1_6:
            raise ValueError("its first bytes are not those of a file of torch" if begin else "it is empty")
        file.seek(0)
        with torch.serialization.safe_globals(list(allow)):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises half a dozen types on damaged input, some without a message
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]  # then, advice to allow pickles
        raise CheckpointError(reason) from error


def _compare_checksums(file: IO[bytes]) -> None:
    with zipfile.ZipFile(file) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} differs")
        for member in archive.infolist():
            if member.external_attr & _FOLDER:  # torch would not read it, and give what happens to be in memory
                raise ValueError(f"{member.filename} is marked as a folder")
