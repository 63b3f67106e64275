"""Structures compressed by Foldcomp: a `.fcz` file, or a database of many with a table of names beside it."""

from ...files import read_rows
from ...reading.endings import FOLDCOMP, LOOKUP, without_ending


def foldcomp_text(data: bytes) -> bytes:
    """PDB text from the bytes of a `.fcz` file."""
    import foldcomp

    return foldcomp.decompress(data)[1].encode()


def foldcomp_members(table: str) -> list[tuple[str, int, int]]:
    """The files in a database by its table of names, each as (name, offset of its first byte, size)."""
    index = read_rows(f"{table.removesuffix(LOOKUP)}.index").values()
    place_of = {key: (int(offset), int(size)) for key, offset, size in index}
    return [(without_ending(name) + FOLDCOMP, *place_of[key]) for key, name, *_ in read_rows(table).values()]
