"""Structures compressed by Foldcomp: a `.fcz` file, or a database of many with a table of names beside it."""

from ...files import MachineError, read_rows, structure_errors
from ...reading.endings import FOLDCOMP, LOOKUP, without_ending


def foldcomp_text(path: str, data: bytes) -> bytes:
    """PDB text from the bytes of a `.fcz` file. Raises MachineError without the package for it."""
    try:
        import foldcomp
    except ImportError as error:
        raise MachineError(f"{path} needs the package foldcomp: pip install foldcomp") from error
    with structure_errors(path, "damaged Foldcomp data"):
        if not data.startswith(b"FCMP"):  # the package would end this process
            raise ValueError(f"it begins with {data[:4]!r}, not with b'FCMP'")
        return foldcomp.decompress(data)[1].encode()


def foldcomp_members(path: str) -> list[tuple[str, int, int]]:
    """The files in a database, each as (name, offset of its first byte, size)."""
    place_of = {}
    for key, offset, size in read_rows(f"{path}.index").values():
        place_of[key] = int(offset), int(size)
    members = []
    for key, name, *_ in read_rows(f"{path}{LOOKUP}").values():
        members.append((without_ending(name) + FOLDCOMP, *place_of[key]))
    return members
