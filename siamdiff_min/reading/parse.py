"""Reading structures: files of PDB, mmCIF, BinaryCIF and Foldcomp, also gzip-compressed, and objects of Biopython.

Each becomes columns of atoms (`pdb.py`, `cif.py`, `bcif.py`). One function, `policy.assemble`, makes a protein of them,
so all files of one entry give the same `Protein`. Whatever the file holds, the outcome is a `Structure` or a
`StructureError`.
"""

import gzip
import re
import warnings
import zlib
from itertools import islice
from pathlib import Path

import numpy as np
from Bio.PDB.Entity import Entity

from ..files import StructureError, blame_machine, part, structure_errors
from .cif import is_mmcif, mmcif_models
from .columns import OTHER_MODELS, Model
from .pdb import pdb_models
from .policy import assemble
from .structure import Structure

_NO_BLOCK = re.compile(rb"(\s|#.*\n)*(loop_|_[a-z]\w*\.)", re.IGNORECASE)  # what a data block begins with


def read_structure(source, data: str | bytes | None = None, model: int = 0, chain=None) -> Structure:
    """Read a file of PDB, mmCIF, BinaryCIF or Foldcomp, also gzip-compressed. Its content tells which, not its ending.

    Args:
        source: a path, or a Structure, Model or Chain of Biopython.
        data: the text or bytes of the file, if they have been read; then `source` only names it in messages.
        model: counts from 0, in file order.
        chain: "A" or ["A", "B"] keeps these chains, in file order.

    Raises StructureError, whatever is wrong, a missing file too.
    """
    path = name_of(source)
    models = models_in(source, path, data, None if model < 0 else model + 1)  # later models are not looked at
    if models and not 0 <= model < len(models):
        raise StructureError(path, "no such model", f"{len(models)} models, asked for number {model}")
    atoms, dropped, predicted = models[model] if models else ((), {}, None)
    if not len(atoms) and not dropped.keys() - {OTHER_MODELS}:
        raise StructureError(path, "no atoms in it")
    return assemble(path, atoms, dropped, chain, predicted=predicted)


def models_in(source, path: str, data: str | bytes | None, most: int | None) -> list[Model]:
    """The first models of a source, or all. Raises StructureError."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), structure_errors(path, "unreadable"):
        warnings.simplefilter("ignore")
        if isinstance(source, Entity):
            return list(islice(part("biopython_models")(source), most))
        content = _content(path, data)
        read = mmcif_models if is_mmcif(content) else pdb_models
        if _NO_BLOCK.match(content):
            raise StructureError(path, "mmCIF without its data_ line", "add one, such as data_1abc, as the first line")
        if is_binary_cif(content):
            read = part("binary_cif_models")
        return list(islice(read(path, content), most))


def name_of(source) -> str:
    """How messages call a structure: by its path, or by Biopython's ids, as in 1abc_A."""
    if isinstance(source, Entity):
        return "_".join(str(part) for part in source.get_full_id() if not isinstance(part, int))
    return str(source)


def is_binary_cif(content: bytes) -> bool:
    """Whether it begins as BinaryCIF does, with some words of which one is in no other format."""
    return b"dataBlocks" in content[:200]


def _content(path: str, data: str | bytes | None) -> bytes:
    """The decompressed bytes, after a first look at them."""
    if isinstance(data, str):
        data = data.removeprefix("\ufeff").encode("latin-1", "replace")  # a byte for each character keeps the columns
    try:
        content = Path(path).read_bytes() if data is None else bytes(data)
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StructureError(path, "damaged or truncated gzip data", str(error)) from error
    except OSError as error:
        blame_machine(path, error)
        raise StructureError(path, "cannot be opened", error.strerror or str(error)) from error
    if is_binary_cif(content):
        return content
    if content.startswith(b"FCMP"):
        return part("foldcomp_text")(content)
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0")  # byte order mark; a last block that a tool filled
    if not content or content.isspace():
        raise StructureError(path, "empty")
    if content[:1000].lstrip().startswith(b"<"):
        raise StructureError(path, "an HTML or XML page, not a PDB or mmCIF file")
    if b"\0" in content:  # a tar, say: its header would hide the first line of a structure in it
        raise StructureError(path, "not a text file", "zero bytes in it, as in an archive")
    return content
