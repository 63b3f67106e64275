"""A source of one's own: alpha carbons from .npz files. Prints the path of the store, which is --data."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siamdiff_min import Protein, Structure
from siamdiff_min.reading.sources import Listing, Origin
from siamdiff_min.reading.store import open_store


@dataclass(frozen=True)
class Npz:
    name: str
    path: str

    def read(self):
        with np.load(self.path) as file:
            return Structure(Protein.from_ca(file["ca"], str(file["sequence"])), chain_names=("A",))


folder = Path(sys.argv[1])
paths = sorted(folder.glob("*.npz"))
files = [Npz(path.stem, str(path)) for path in paths]
key = f"npz {[(path.name, path.stat().st_mtime_ns) for path in paths]}"
store = open_store(Origin(folder, key, lambda: Listing(files, [])))
print(store.path)
