"""Time to parse the bundled structures, and to convert them into a store.

python -m benchmarks.reading [--repeats 3]
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from siamdiff_min.data.build import open_store
from siamdiff_min.data.sources import bundle_path, find_structures

from .timing import timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    sources = find_structures(bundle_path()).sources
    parsing, building = [], []
    for _ in range(repeats):
        atoms, seconds = timed(lambda: sum(source.read().protein.num_atoms for source in sources))
        parsing.append(seconds)
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            building.append(timed(lambda store=store: open_store(bundle_path(), store, 1))[1])
    per_atom = statistics.median(parsing) / atoms * 1e6
    print(f"parsing {len(sources)} gzip-compressed PDB entries, {atoms} atoms: {per_atom:.1f} microseconds per atom")
    print(f"building their store, one process: {statistics.median(building):.2f} s")


if __name__ == "__main__":
    main()
