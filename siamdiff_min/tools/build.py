"""Convert structures to a store, or check one: `siamdiff build PATH...`. Every other command does so by itself."""

import math
from argparse import Namespace
from collections import Counter
from dataclasses import replace

import numpy as np
import torch

from ..reading.shards import content_hash, damaged, load_shard, shard_file
from ..reading.store import ProteinStore, open_store
from ..reading.structure import Structure
from .formats.plddt import confident_files


def run(args: Namespace) -> int:
    """Build and check the stores that `options.build` asks for."""
    torch.set_num_threads(1)  # other processes read, and this one only writes
    for path in args.path:
        plain = args.min_plddt is None and not args.each_chain
        origin = path if plain else confident_files(path, args.min_plddt, args.each_chain)
        store = open_store(origin, args.store, args.num_workers)
        verify(store)
        print(f"{store.path}: {store.report_counts()}; all checksums are right")
    return 0


def verify(store: ProteinStore) -> None:
    """Read everything and compare the checksums. Raises StoreError that names the first damaged file."""
    for number, described in enumerate(store.meta["shards"]):
        file = shard_file(store.path, number)
        if content_hash(load_shard(file)) != described["content"]:
            raise damaged(file, "its checksum differs")


def chains_of(structure: Structure) -> dict[str, Structure]:
    """Every chain as a structure of its own, by its id. Counts of left-out atoms and residues stay with the first."""
    found, dropped = {}, structure.dropped
    for number, name in enumerate(structure.chain_names):
        ours = structure.protein.chain == number
        protein = structure.protein.select_residues(ours)
        protein = replace(protein, chain=torch.zeros_like(protein.chain))
        plddt, of_residues = structure.plddt, structure.residue_plddt
        if of_residues is not None:
            of_residues = of_residues[ours.numpy()]
            there = of_residues[~np.isnan(of_residues)].tolist()
            plddt = math.fsum(there) / len(there) if there else math.nan
        found[name] = Structure(protein, (name,), dropped, plddt=plddt, residue_plddt=of_residues)
        dropped = Counter()
    return found
