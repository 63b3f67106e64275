"""Nested corpora for App. E: links to the first 650, 1,300, 2,600 and all files of a folder, in an order of no meaning.

    python -m studies.2026-12-scale.corpora CHAINS/train OUT [--sizes 650 1300 2600]

CHAINS is made by `studies.2026-11-benchmarks.corpus`. The order is that of the SHA-256 of the names, so every corpus
holds the smaller ones. Writes OUT/650/, ..., OUT/all/.
"""

import argparse
import hashlib
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Link the files of one command line."""
    program = "python -m studies.2026-12-scale.corpora"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("chains", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", nargs="+", type=int, default=[650, 1300, 2600])
    args = parser.parse_args(argv)
    files = {path.name.split(".")[0]: path.resolve() for path in args.chains.iterdir()}  # name -> file
    order = sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    for folder, size in {**{str(size): size for size in args.sizes}, "all": len(order)}.items():
        if size > len(order):
            parser.error(f"{args.chains} has {len(order)} structures, fewer than {size}")
        (args.out / folder).mkdir(parents=True, exist_ok=True)
        for name in order[:size]:
            link = args.out / folder / files[name].name
            link.unlink(missing_ok=True)
            link.symlink_to(files[name])
        print(f"{args.out / folder}: {size} structures")


if __name__ == "__main__":
    main()
