"""The faults of a table: all are named at once, the first three of each kind."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ...files import StructureError

SHOWN = 3  # of each kind
LONGEST = 300  # letters of a fault: a cell may hold any text


class Faults:
    """What is wrong with the table of a file, as it is read, and notes on what may not be meant."""

    def __init__(self, path):
        self.path = path
        self.found: dict[str, list[str]] = defaultdict(list)
        self.notes: list[str] = []

    def add(self, kind: str, fault: str) -> None:
        """Keep a fault, to go on with others."""
        self.found[kind].append(fault[:LONGEST])

    @contextmanager
    def of(self, kind: str) -> Iterator[None]:
        """Go on after a ValueError, which is kept."""
        try:
            yield
        except ValueError as error:
            self.add(kind, str(error))

    def check(self) -> None:
        """Raise StructureError if there are any."""
        said = []
        for faults in self.found.values():
            said += faults[:SHOWN]
            if len(faults) > SHOWN:
                said.append(f"and {len(faults) - SHOWN} more of this kind")
        if said:
            raise StructureError(self.path, "malformed table", "; ".join(said))
