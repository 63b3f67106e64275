"""Time to parse the bundled structures, and to convert them into a store.

python -m benchmarks.reading [--repeats 3]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from siamdiff_min.data.build import build_store
from siamdiff_min.data.structures import bundle_path, find_structures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    sources = find_structures(bundle_path()).sources
    parsing, building, atoms = [], [], 0
    for _ in range(repeats):
        started = time.perf_counter()
        atoms = sum(source.read().protein.num_atoms for source in sources)
        parsing.append(time.perf_counter() - started)
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            build_store(bundle_path(), Path(folder) / "store", workers=1, progress=False)
            building.append(time.perf_counter() - started)
    per_atom = statistics.median(parsing) / atoms * 1e6
    print(f"parsing {len(sources)} gzip-compressed PDB entries, {atoms} atoms: {per_atom:.1f} microseconds per atom")
    print(f"building their store, one process: {statistics.median(building):.2f} s")


if __name__ == "__main__":
    main()
