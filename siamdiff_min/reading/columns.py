"""The atoms of a file by columns. Every format becomes such a table; `policy.py` makes a protein of it.

A column of texts has few different ones: they are kept once, and each row has the number of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

# Reasons to leave atoms out.
NO_NUMBER = "atoms without a residue number"
OTHER_MODELS = "other models"
BLANK = {".": " ", "?": " "}  # how mmCIF writes that there is no value
WIDEST = 32  # bytes of a text that goes through numpy


class Column(NamedTuple):
    """A column of N texts."""

    values: list[str]  # the different ones
    index: np.ndarray  # type: ignore[assignment]  # (N,) which of them a row has; a tuple has an `index` too

    @staticmethod
    def of(texts: Sequence, index: np.ndarray | None = None) -> Column:
        """From the text of every row; or from some texts, and `index` (N,) that says which of them a row has."""
        place: dict = {}
        number = np.array([place.setdefault(text, len(place)) for text in texts], np.int64)
        return Column(list(place), number if index is None else number[index])

    @staticmethod
    def constant(text: str, size: int) -> Column:
        """The same text in every row."""
        return Column([text], np.zeros(size, np.int64))

    @staticmethod
    def of_letters(letters: np.ndarray) -> Column:
        """From bytes (N, width), which are padded with blanks or zeros."""
        size, width = letters.shape
        padded = np.zeros((size, 8 if width <= 8 else WIDEST), np.uint8)
        padded[:, :width] = letters
        as_number_or_text = "u8" if width <= 8 else f"S{WIDEST}"
        keys = padded.view(as_number_or_text).ravel()
        is_new = np.ones(size, bool)  # many rows repeat the text of the row before
        is_new[1:] = keys[1:] != keys[:-1]
        different, index = keys[:1], np.zeros(size, np.int64)
        if is_new[1:].any():
            different, of_run = np.unique(keys[is_new], return_inverse=True)
            index = of_run[is_new.cumsum() - 1]
        texts = different.view(f"S{padded.shape[1]}").tolist()
        return Column([text.decode("latin-1") for text in texts], index)

    def take(self, rows: np.ndarray) -> Column:
        """Some rows."""
        return Column(self.values, self.index[rows])

    def used(self) -> list[int]:
        """The numbers of the texts that some row has."""
        return np.flatnonzero(np.bincount(self.index)).tolist()

    def numbers(self, kind=float) -> np.ndarray:
        """The text of every row as a number. Raises ValueError of the first text that is none."""
        used = self.used()
        numbers = np.zeros(len(self.values), np.int64 if kind is int else float)
        numbers[used] = [kind(self.values[i]) for i in used]
        return numbers[self.index]

    def map(self, function) -> Column:
        """The column after `function` of every text."""
        return Column.of([function(text) for text in self.values], self.index)

    def where(self, test) -> np.ndarray:
        """(N,) whether the text of a row passes `test`."""
        return np.array([bool(test(text)) for text in self.values], bool)[self.index]

    def texts(self, rows=slice(None)) -> list[str]:
        """The text of each of some rows."""
        return [self.values[i] for i in self.index[rows].tolist()]

    def or_else(self, absent: np.ndarray, other: Column) -> Column:
        """The column, with the texts of another one where `absent` (N,) is True."""
        index = np.where(absent, other.index + len(self.values), self.index)
        return Column.of([*self.values, *other.values], index)


@dataclass(frozen=True)
class Atoms:
    """The atoms of one model as they stand in the file, by columns of N rows."""

    chain: Column
    number: np.ndarray  # of the residue
    code: Column  # insertion code, a blank without one
    residue: Column
    atom: Column
    altloc: Column
    occupancy: np.ndarray
    xyz: np.ndarray  # (N, 3) angstrom
    element: Column
    hetero: np.ndarray  # of a HETATM record
    b_factor: Column  # or the pLDDT that an mmCIF file has for the residue
    place: np.ndarray  # where it stands, from 0 on: the line of a PDB file, the row of an mmCIF table
    # Tell molecules of one chain id apart: the segment and the number of TER before, or the label column.
    marks: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.number)

    def take(self, rows: np.ndarray) -> Atoms:
        """Some rows: a mask, or their numbers in the order that is wanted."""
        taken = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if isinstance(column, Column):
                taken[field.name] = column.take(rows)
            elif isinstance(column, np.ndarray):
                taken[field.name] = column[rows]
        return replace(self, **taken, marks=tuple(mark.take(rows) for mark in self.marks))


# Its atoms, counts of what is left out, and whether the file calls itself a prediction: None if it does not say.
Model = tuple[Atoms, Counter, bool | None]


def one_key(*columns: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 on, one for every row (N,): rows that are equal in all columns have the same one."""
    order = np.lexsort(columns[::-1])
    key = np.zeros(len(order), np.int64)
    key[order] = groups_of(changes(*(column[order] for column in columns)), len(order))
    return key


def changes(*columns: np.ndarray) -> np.ndarray:
    """The rows that differ from the row before in one of the columns; row 0 is the first of them."""
    differs = np.zeros(len(columns[0]), bool)
    differs[:1] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def groups_of(start: np.ndarray, size: int) -> np.ndarray:
    """For each of `size` rows, the number of the group that it is in, from the first row of every group."""
    return np.repeat(np.arange(len(start)), np.diff(start, append=size))


def pieces(buffer: np.ndarray, start: np.ndarray, width: int) -> np.ndarray:
    """The bytes (N, width) of a buffer from some places on."""
    if not width:
        return np.zeros((len(start), 0), np.uint8)
    every = np.ndarray((len(buffer) - width + 1,), f"S{width}", buffer, strides=(1,))
    return every[start].view(np.uint8).reshape(-1, width)


_DIGIT = np.zeros(256, np.uint8)  # what a letter counts
_DIGIT[ord("0") : ord("9") + 1] = range(10)
_RANK = np.full(256, 9, np.uint8)  # blanks, then a minus, then digits
_RANK[[0, ord(" ")]], _RANK[ord("-")] = 0, 1
_RANK[ord("0") : ord("9") + 1] = 2


def whole_numbers(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bytes (width, ...), the last one a digit: the number without its sign, its sign, and what can be read.

    Blanks, a minus, digits, in this order; without digits 0. A row for every letter: numpy takes many numbers at once.
    """
    rank = _RANK[letters]
    minus = (rank == 1).sum(0)
    sound = (rank[:-1] <= rank[1:]).all(0) & (rank[-1] < 9) & (minus < 2)
    size = np.zeros(letters.shape[1:])
    for digits in _DIGIT[letters]:
        size = size * 10 + digits
    return size, np.where(minus > 0, -1.0, 1.0), sound


def decimals(letters: np.ndarray, places: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that end with a point and `places` digits: numbers, to Python's last bit, and which can be read."""
    point = len(letters) - places - 1
    before, sign, sound = whole_numbers(letters[:point])
    digits = letters[point + 1 :]
    sound &= (letters[point] == ord(".")) & (_RANK[digits] == 2).all(0)
    if places == 0 and point > 0:  # at least one digit
        sound &= _RANK[letters[point - 1]] == 2
    size = before
    for digit in _DIGIT[digits]:
        size = size * 10 + digit
    return sign * (size / 10.0**places), sound
