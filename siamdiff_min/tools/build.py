"""Convert structures to a store, or check one: `siamdiff build PATH...`. Every other command does so by itself."""

from pathlib import Path

import torch

from ..files import Parser
from ..reading.sources import structure_files
from ..reading.store import open_store


def main(argv: list[str] | None = None) -> int:
    """Run one command line."""
    parser = Parser(prog="siamdiff build", description="Build and check stores.")
    parser.add_argument("path", nargs="+", help="structures (their store is built), or a store")
    parser.add_argument("--store", type=Path, help="folder of the stores (default: PATH.store)")
    text = "skip predicted structures whose mean pLDDT is below; the store's folder, which is printed, is --data then"
    parser.add_argument("--min-plddt", type=float, help=text)
    text = "an entry for every chain, NAME_A; a store of its own, as with --min-plddt"
    parser.add_argument("--each-chain", action="store_true", help=text)
    text = "processes that read; the store does not depend on it (default: one for 500 structures, up to one per core)"
    parser.add_argument("--num-workers", type=int, help=text)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # other processes read, and this one only writes
    for path in args.path:
        plain = args.min_plddt is None and not args.each_chain
        origin = path if plain else structure_files(path, args.min_plddt, args.each_chain)
        store = open_store(origin, args.store, args.num_workers)
        store.verify()
        print(f"{store.path}: {store.report_counts()}; all checksums are right")
    return 0
