"""One row for an atom of a file. Every format becomes such rows; `policy.py` makes a protein of them."""

import io
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

NO_NUMBER, OTHER_MODELS = "atoms without a residue number", "other models"  # reasons to leave atoms out


class AtomRow(NamedTuple):
    """One atom of a file, as it stands there."""

    chain: str
    number: int
    code: str
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str
    b_factor: str | float | None = None  # or the pLDDT that an mmCIF file has for the residue
    hetero: bool = False  # of a HETATM record
    marks: tuple = ()  # tell molecules of one chain id apart: segment, number of TER before; or the label column
    lost_code: bool = False  # the code is not in the file: `repair`


# Its rows, counts of what is left out, and whether the file calls itself a prediction: None if it does not say.
Model = tuple[list[AtomRow], Counter, bool | None]


def text_lines(content: bytes) -> Iterable[str]:
    """Lines with any line end. One character per byte, because the columns of a PDB file are bytes."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="latin-1")
