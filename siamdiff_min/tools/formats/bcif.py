"""BinaryCIF files to columns of atoms: msgpack, and the seven encodings of the specification.

Sehnal et al. (2020), PLoS Computational Biology 16:e1008247; https://github.com/molstar/BinaryCIF. What a column means
stands in `reading/cif.py`. Biopython's decoder is not used: it cannot read IntervalQuantization (see findings/) nor
Delta right above ByteArray, and may end the process on a damaged file.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ...reading.cif import SITE, Values, models_of, rows_of_atoms
from ...reading.columns import Model

_TABLES = (SITE, "_ma_qa_metric.", "_ma_qa_metric_local.", "_exptl.", "_software.")  # the last four tell pLDDT
_TYPES = {1: "<i1", 2: "<i2", 3: "<i4", 4: "<u1", 5: "<u2", 6: "<u4", 32: "<f4", 33: "<f8"}


def binary_cif_models(path: str, content: bytes) -> Iterator[Model]:
    """One model of a BinaryCIF file after the other, as `mmcif_models`."""
    import msgpack

    found = []
    for block in msgpack.unpackb(content)["dataBlocks"]:
        tables = {}
        for category in block["categories"]:
            table = f"{category['name'].lower()}."
            if table in _TABLES:
                for column in category["columns"]:
                    if column["name"] != "id":  # nobody asks for it, and all texts are different
                        tables[table + column["name"].lower()] = _values(column)
        if rows_of_atoms(path, tables):
            found.append(tables)
    return models_of(path, found)


def _values(column: dict) -> Values:
    """A column of a file, as mmCIF writes it."""
    data, encodings = column["data"]["data"], column["data"]["encoding"]
    first = encodings[0]
    if first["kind"] == "StringArray":
        index = _decoded(data, first["dataEncoding"])  # -1 is no text
        borders = _decoded(first["offsets"], first["offsetEncoding"]).tolist()
        different = [first["stringData"][begin:end] for begin, end in pairwise(borders)]
    else:
        numbers, index = np.unique(_decoded(data, encodings), return_inverse=True)
        different = [*map(str, numbers.tolist())]
    if mask := column.get("mask"):
        hidden = _decoded(mask["data"], mask["encoding"]).astype(np.int64)
        index = np.where(hidden > 0, len(different) - 1 + hidden, index)
    return Values.of([*different, ".", "?"]).take(index)


def _decoded(values, encodings: list[dict]) -> np.ndarray:
    """The numbers of a column from its bytes. The last of its encodings was applied last."""
    for encoding in reversed(encodings):
        values = _UNDO[encoding["kind"]](values, encoding)
    return values


def _summed(values: np.ndarray) -> np.ndarray:
    """Packed numbers: one that does not fit in one or two bytes is written as a sum: limits, and what is left."""
    limits = np.iinfo(values.dtype)
    goes_on = (values == limits.max) | (values == (limits.min or limits.max))
    first = np.flatnonzero(np.append(True, ~goes_on)[:-1])
    return np.add.reduceat(values.astype(np.int64), first)


def _repeated(values: np.ndarray, size: int) -> np.ndarray:
    """Pairs of a value and how often it is there."""
    if values[1::2].sum() != size:  # it may not fit in memory
        raise ValueError(f"not {size} values in a column")
    return np.repeat(values[::2], values[1::2])


_UNDO = {
    "ByteArray": lambda values, of: np.frombuffer(values, _TYPES[of["type"]]),
    "FixedPoint": lambda values, of: values / float(of["factor"]),
    "IntervalQuantization": lambda values, of: of["min"] + values * (of["max"] - of["min"]) / (of["numSteps"] - 1),
    "RunLength": lambda values, of: _repeated(values, of["srcSize"]),
    "Delta": lambda values, of: values.cumsum(dtype=np.int64) + of["origin"],
    "IntegerPacking": lambda values, of: _summed(values),
}
