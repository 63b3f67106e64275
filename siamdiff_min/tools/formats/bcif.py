"""BinaryCIF files to columns of atoms: msgpack, and the seven encodings of the specification.

Sehnal et al. (2020), PLoS Computational Biology 16:e1008247; https://github.com/molstar/BinaryCIF. What a column means
stands in `reading/cif.py`. Biopython's decoder is not used: it has no right answer for IntervalQuantization, fails on
Delta right above ByteArray, and makes a Python object of every text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ...files import MachineError
from ...reading.cif import SITE, models_of, rows_of_atoms
from ...reading.columns import Column, Model
from .plddt import CONFIDENCE

_TYPES = {1: "<i1", 2: "<i2", 3: "<i4", 4: "<u1", 5: "<u2", 6: "<u4", 32: "<f4", 33: "<f8"}
_NO_VALUE = (".", "?")  # what mmCIF writes where the mask of a column is 1, and where it is 2


def binary_cif_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of a BinaryCIF file after the other. Chain ids and residue numbers are the author's."""
    try:
        import msgpack
    except ImportError as error:
        raise MachineError(f"{path} needs the package msgpack: pip install msgpack") from error
    found = []
    for block in msgpack.unpackb(content)["dataBlocks"]:
        tables = {}
        for category in block["categories"]:
            table = f"{category['name'].lower()}."
            if table in (SITE, *CONFIDENCE):
                for column in category["columns"]:
                    tables[table + column["name"].lower()] = _Decoded.of(column)
        if rows_of_atoms(path, tables):
            found.append(tables)
    yield from models_of(path, found)


@dataclass(frozen=True)
class _Decoded:
    """The values of a column, as `cif.models_of` asks for them: numbers, or places in a list of texts."""

    data: np.ndarray
    mask: np.ndarray | None  # 0 where there is a value
    strings: list[str] | None  # the different texts, if `data` has their places; -1 is the empty one

    @staticmethod
    def of(column: dict) -> _Decoded:
        """A column of a file."""
        of_mask, of_data = column.get("mask"), column["data"]
        mask = _decoded(of_mask["data"], of_mask["encoding"]) if of_mask else None
        first, *others = of_data["encoding"]
        if first["kind"] != "StringArray":
            return _Decoded(_decoded(of_data["data"], of_data["encoding"]), mask, None)
        if others:
            raise ValueError("a column of texts that is encoded twice")
        offsets = _decoded(first["offsets"], first["offsetEncoding"]).tolist()
        strings = [first["stringData"][begin:end] for begin, end in pairwise(offsets)]
        return _Decoded(_decoded(of_data["data"], first["dataEncoding"]), mask, strings)

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows) -> _Decoded:
        """Some rows: their numbers, a mask or a slice."""
        return _Decoded(self.data[rows], None if self.mask is None else self.mask[rows], self.strings)

    def column(self) -> Column:
        """The values as texts, as mmCIF writes them."""
        if self.strings is None:
            different, index = np.unique(self.data, return_inverse=True)
            texts = [str(value) for value in different]
        else:
            texts, index = [*self.strings, ""], self.data
            if len(index) and not -1 <= index.min() <= index.max() < len(self.strings):
                raise ValueError("a text that is not in the list of texts")
        index = index % len(texts)  # -1 is the last
        if self.mask is not None:
            index = np.where(self.mask == 0, index, len(texts) + self.mask.astype(np.int64) - 1)
        return Column.of([*texts, *_NO_VALUE], index)

    def texts(self) -> list[str]:
        return self.column().texts()

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """The values as numbers, and where there are any."""
        if self.strings is not None:
            return np.full(len(self), np.nan), np.zeros(len(self), bool)
        return self.data.astype(float), np.ones(len(self), bool) if self.mask is None else self.mask == 0


# ---- encodings -------------------------------------------------------------------------------------------------------


def _decoded(data: bytes, encodings: list[dict]) -> np.ndarray:
    """The numbers of a column. The last of its encodings was applied last."""
    values: Any = data
    for encoding in reversed(encodings):
        values = _DECODERS[encoding["kind"]](values, encoding)
    return values


def _byte_array(data: bytes, encoding: dict) -> np.ndarray:
    return np.frombuffer(data, _TYPES[encoding["type"]])


def _fixed_point(values: np.ndarray, encoding: dict) -> np.ndarray:
    return (values / float(encoding["factor"])).astype(_TYPES[encoding["srcType"]])


def _interval_quantization(values: np.ndarray, encoding: dict) -> np.ndarray:
    width = (encoding["max"] - encoding["min"]) / (encoding["numSteps"] - 1)
    return (encoding["min"] + values * width).astype(_TYPES[encoding["srcType"]])


def _run_length(values: np.ndarray, encoding: dict) -> np.ndarray:
    lengths = values[1::2].astype(np.int64)
    if lengths.sum() != encoding["srcSize"]:
        raise ValueError(f"{lengths.sum()} values in place of {encoding['srcSize']}")
    return np.repeat(values[::2], lengths)


def _delta(values: np.ndarray, encoding: dict) -> np.ndarray:
    return values.cumsum(dtype=np.int64) + encoding["origin"]


def _integer_packing(values: np.ndarray, encoding: dict) -> np.ndarray:
    """A number that does not fit in one or two bytes is written as a sum: limits, and what is left."""
    limits = np.iinfo(values.dtype)
    goes_on = values == limits.max
    if limits.min:
        goes_on |= values == limits.min
    last = np.flatnonzero(~goes_on)
    if len(last) != encoding["srcSize"]:
        raise ValueError(f"{len(last)} values in place of {encoding['srcSize']}")
    first = np.append(0, last[:-1] + 1)[: len(last)]
    return np.add.reduceat(values.astype(np.int64), first) if len(first) else np.zeros(0, np.int64)


_DECODERS = {
    "ByteArray": _byte_array,
    "FixedPoint": _fixed_point,
    "IntervalQuantization": _interval_quantization,
    "RunLength": _run_length,
    "Delta": _delta,
    "IntegerPacking": _integer_packing,
}
