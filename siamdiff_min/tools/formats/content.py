"""Two files of one name, `p.pdb` and `p.cif`: does the second hold another structure?"""

import contextlib
import re
import zlib
from itertools import islice

from ...files import StructureError
from ...reading.sources import Source

_ATOM = re.compile(rb"^ATOM .*?(-?\d+\.\d+) *(-?\d+\.\d+) *(-?\d+\.\d+)", re.MULTILINE)  # PDB and mmCIF
HEAD = 4 << 20  # bytes that are looked at: the header of an mmCIF file is up to a megabyte
LOOKED_AT = 200  # atoms; the two files may begin with different chains or hydrogens


def is_different(source: Source, others: list[Source]) -> bool:
    """Whether a file holds another structure than some others of its name: no atom is at the same place.

    What cannot be read counts as the same.
    """
    places = _places(source)
    return bool(places) and all((there := _places(other)) and not places & there for other in others)


def _places(source: Source) -> set[tuple[int, ...]]:
    """Where the first atoms of a file are, in units of 0.01 angstrom; empty if it is no PDB or mmCIF text."""
    atoms = islice(_ATOM.finditer(_head(source)), LOOKED_AT)
    return {tuple(round(100 * float(x)) for x in atom.groups()) for atom in atoms}


def _head(source: Source) -> bytes:
    """The first bytes of a file or a member, unpacked; none if it cannot be read."""
    with contextlib.suppress(OSError, StructureError, zlib.error):
        head = source.member_bytes()
        if head is None:
            with open(source.path, "rb") as file:
                head = file.read(HEAD)
        return zlib.decompressobj(31).decompress(head, HEAD) if head.startswith(b"\x1f\x8b") else head[:HEAD]
    return b""
