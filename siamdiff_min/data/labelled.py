"""A downstream set before it is read: the origins of its three splits, its labels and its classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..files import StructureError
from .samples import Samples, ValueSamples
from .sources import Origin
from .store import ProteinStore, open_store

SPLITS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}  # split -> its names in data sets


@dataclass(frozen=True)
class LabelledData:
    """A downstream set: where its three splits come from. A split that was not asked for is None."""

    train: Origin | None = None
    valid: Origin | None = None
    test: Origin | None = None
    classes: tuple[str, ...] = ()  # their names, in the order of the outputs; empty for tasks without classes
    about: str = ""  # where the labels come from, for the user
    samples: type[Samples] = ValueSamples  # from a store, the classes and --max-residues
    options: Mapping = field(default_factory=dict)  # arguments of the task (table)
    labels: Mapping = field(default_factory=dict)  # split -> its labels, see `ProteinStore.with_labels` (table)

    def open(self, split: str, **options) -> ProteinStore | None:
        """The store of a split (see `open_store`); if its labels come from a table, of the proteins that have some."""
        store = open_store(getattr(self, split), **options)
        return store.with_labels(self.options["kind"], self.labels[split]) if store and self.labels else store


def find_part(root, folders: Sequence[str], names: Sequence[str], what: str) -> Path:
    """The first of these files or folders, in the first of these folders of a set. Raises StructureError."""
    for path in (Path(root, folder, name) for folder in folders for name in names):
        if path.exists():
            return path
    raise StructureError(root, f"no {what}", f"expected {' or '.join(names)} there or in {folders[-1]}")
