"""Is the most similar chain a relative? Mean vectors of encoders, of random weights, and of what has no network.

    python -m benchmarks.relatives FOLDER TABLE siamdiff-residue random composition --states states.npz --batch OTHER

FOLDER holds PDB files, TABLE (tab separated) has their columns `id` and `cluster`. For every chain that shares its
cluster with another one, the nearest other mean vector (cosine, each number standardised over all chains) should be of
the same cluster. `random` is the network of siamdiff-residue as it is built, and with the statistics of batch norm
measured on the files in OTHER. `states.npz` holds an integer array of 3Di states (0 to 19) for every id, as mini3di
writes them; the floor is the share of each state, and of each pair along the chain.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.probe import retrieve
from siamdiff_min import ENCODERS, load_encoder, read_structure
from siamdiff_min.encoders import Encoder
from siamdiff_min.files import console, read_rows
from siamdiff_min.protein.protein import Protein

SEEDS = 3  # draws of random weights
STATES = 20  # of 3Di, and residue types


@torch.inference_mode()
def mean_vectors(encoder: Encoder, proteins: list[Protein]) -> np.ndarray:
    """Means over residues: (K, d)."""
    return np.stack([encoder(protein).residue.double().mean(0).numpy() for protein in proteins])


def random_network(seed: int, batch: list[Protein]) -> Encoder:
    """The network of siamdiff-residue with random weights; its batch norm has the statistics of `batch`, if any."""
    torch.manual_seed(seed)
    encoder = ENCODERS["gearnet"]("residue", "medium")
    for module in encoder.modules():
        if hasattr(module, "momentum"):
            module.momentum = None  # then torch keeps the plain mean over all batches
    encoder.train()
    with torch.no_grad():
        for protein in batch:
            encoder(protein)
    return encoder.eval()


def shares(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each state (20,), and of each pair of states along the chain (400,)."""
    pairs = states[:-1] * STATES + states[1:]
    single = np.bincount(states, minlength=STATES) / len(states)
    return single, np.bincount(pairs, minlength=STATES**2) / max(len(pairs), 1)


def main(argv: list[str] | None = None) -> None:
    """Print a line for every row asked for: how many of how many."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relatives", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", type=Path)
    parser.add_argument("rows", nargs="+", help="names of encoders, random, or composition")
    parser.add_argument("--states", type=Path)
    parser.add_argument("--batch", type=Path)
    args = parser.parse_args(argv)

    # The chains, and the cluster of each.
    titles, *lines = read_rows(args.table).values()
    cluster_of = {line[titles.index("id")]: line[titles.index("cluster")] for line in lines}
    files = sorted(args.folder.glob("*.pdb"))
    clusters = [cluster_of[file.stem] for file in files]
    proteins = [read_structure(file).protein for file in files]

    def show(label: str, vectors: np.ndarray) -> None:
        found, asked = retrieve(vectors, clusters).sum(0)
        print(f"{label}: {found:.0f} of {asked:.0f}", flush=True)

    for name in args.rows:
        if name == "composition":
            types = [protein.residue_type.numpy() for protein in proteins]
            show(name, np.stack([shares(of_chain)[0] for of_chain in types]))
        elif name == "random":
            show("random weights, as built", mean_vectors(random_network(0, []), proteins))
            batch = [read_structure(file).protein for file in sorted(args.batch.glob("*.pdb"))] if args.batch else []
            for seed in range(SEEDS if batch else 0):
                vectors = mean_vectors(random_network(seed, batch), proteins)
                show(f"random weights, batch norm measured, draw {seed}", vectors)
        else:
            show(name, mean_vectors(load_encoder(name, "cpu"), proteins))
    if args.states:
        with np.load(args.states) as states:
            of_chains = [shares(states[file.stem]) for file in files]
        show("3Di states", np.stack([single for single, _ in of_chains]))
        show("pairs of 3Di states", np.stack([pairs for _, pairs in of_chains]))


if __name__ == "__main__":
    with console():
        main()
