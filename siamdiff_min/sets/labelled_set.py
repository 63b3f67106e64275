"""A downstream set before it is read: the origins of its three splits and its classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import StructureError
from ..reading.sources import Origin
from ..reading.store import ProteinStore, open_store
from .samples import Samples, ValueSamples

SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}  # split -> its names in data sets


@dataclass(frozen=True)
class LabelledData:
    """A downstream set: where its three splits come from. A split that was not asked for is None."""

    train: Origin | None = None
    valid: Origin | None = None
    test: Origin | None = None
    classes: tuple[str, ...] = ()  # their names, in the order of the outputs; empty for tasks without classes
    about: str = ""  # where the labels come from, for the user
    notes: Sequence[str] = ()  # what else to say of them
    samples: type[Samples] = ValueSamples  # from a store, the classes and --max-residues

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`)."""
        return open_store(getattr(self, split), **options)


def find_part(root, folders: Sequence[str], names: Sequence[str], what: str) -> Path:
    """The first of these files or folders, in the first of these folders of a set. Raises StructureError."""
    for path in (Path(root, folder, name) for folder in folders for name in names):
        if path.exists():
            return path
    raise StructureError(root, f"no {what}", f"expected {' or '.join(names)} there or in {folders[-1]}")
