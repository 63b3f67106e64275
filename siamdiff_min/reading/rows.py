"""Atoms given one by one, as in the data frames of ATOM3D and in Biopython's objects, to columns."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .columns import Atoms, Column


class AtomRow(NamedTuple):
    """One atom."""

    chain: str
    number: int
    code: str  # insertion code; a blank, or empty, without one
    residue: str
    atom: str
    altloc: str
    occupancy: float
    xyz: tuple
    element: str
    b_factor: float | None = None
    hetero: bool = False  # of a HETATM record
    segment: str | None = None


def columns_of(rows: Sequence[AtomRow]) -> Atoms:
    """The rows as columns."""
    column = AtomRow(*(list(zip(*rows)) or [()] * len(AtomRow._fields)))
    segments = (Column.of(column.segment),) if None not in column.segment else ()
    return Atoms(
        chain=Column.of(column.chain),
        number=np.array(column.number, np.int64),
        code=Column.of([code or " " for code in column.code]),
        residue=Column.of(column.residue),
        atom=Column.of(column.atom),
        altloc=Column.of(column.altloc),
        occupancy=np.array(column.occupancy, float),
        xyz=np.array(column.xyz, float),
        element=Column.of(column.element),
        hetero=np.array(column.hetero, bool),
        b_factor=Column.of(column.b_factor),
        place=np.arange(len(rows)),
        marks=segments,
    )
