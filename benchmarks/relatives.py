"""Is the most similar chain a relative? Mean vectors of encoders, of random weights, and of what has no network.

    python -m benchmarks.relatives FOLDER TABLE siamdiff-residue random composition --states states.npz --batch OTHER
    python -m benchmarks.relatives FOLDER TABLE siamdiff-residue --tails AF-P36508.pdb AF-Q96HM7.pdb

FOLDER holds PDB files, TABLE (tab separated) has their columns `id` and `cluster`. For every chain that shares its
cluster with another one, the nearest other mean vector (cosine, each number standardised over all chains) should be of
the same cluster. `random` is the network of siamdiff-residue as it is built, and with the statistics of batch norm
measured on the files in OTHER. `states.npz` holds an integer array of 3Di states (0 to 19) for every id, as mini3di
writes them; the floor is the share of each state, and of each pair along the chain.

`--tails` has predicted structures. Their stretches of low pLDDT are put behind every other chain, as in a prediction,
and three means are compared: of all residues, of the chain's own in the whole, and of the chain without a tail.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.probe import retrieve
from siamdiff_min import ENCODERS, load_encoder, read_structure, whiten
from siamdiff_min.encoders import Encoder
from siamdiff_min.files import console, read_rows
from siamdiff_min.names import BUNDLED
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


def disordered(path: Path) -> list[Protein]:
    """The stretches of a predicted structure, of 30 residues or more, with a pLDDT below 50."""
    structure = read_structure(path)
    low = np.pad(structure.residue_plddt < 50, 1).astype(int)
    starts, ends = np.flatnonzero(np.diff(low) == 1), np.flatnonzero(np.diff(low) == -1)
    return [structure.protein.crop(int(a), int(b - a)) for a, b in zip(starts, ends) if b - a >= 30]


def with_tail(protein: Protein, tails: list[Protein], generator: np.random.Generator) -> Protein:
    """The chain, and behind it a tail of up to 0.3 to 0.8 of its length, in the one of 40 directions with most room."""
    tail = tails[generator.integers(len(tails))]
    tail = tail.crop(0, int(protein.num_residues * generator.uniform(0.3, 0.8)))
    carbons = protein.alpha_carbons().pos
    out = carbons[-1] - carbons.mean(0)
    first = carbons[-1] + 3.8 * out / out.norm()  # angstrom, from CA to CA
    best = None
    for _ in range(40):
        turn, _ = np.linalg.qr(generator.normal(size=(3, 3)))
        turn *= np.sign(np.linalg.det(turn))
        pos = (tail.pos - tail.alpha_carbons().pos[0]) @ torch.from_numpy(turn).float() + first
        placed = replace(tail, pos=pos)
        touching = int((torch.cdist(placed.alpha_carbons().pos, carbons) < 6).sum())
        if best is None or touching < best[0]:
            best = touching, placed
    index = tail.residue_index - tail.residue_index[0] + protein.residue_index[-1] + 1
    both = Protein.pack([protein, replace(best[1], chain=torch.zeros_like(tail.chain), residue_index=index)])
    return replace(both, residue_protein=torch.zeros_like(both.residue_protein), num_proteins=1)


@torch.inference_mode()
def means_with_tails(encoder: Encoder, proteins: list[Protein], tails: list[Protein]) -> dict[str, np.ndarray]:
    """Means (K, d): over all residues, over the residues of the chain within the whole, and over the chain alone."""
    generator = np.random.default_rng(0)
    found = {"all residues": [], "the chain's residues": [], "no tails": []}
    for k, protein in enumerate(proteins):
        whole = protein if k % 2 else with_tail(protein, tails, generator)
        vectors = encoder(whole).residue.double()
        found["all residues"].append(vectors.mean(0))
        found["the chain's residues"].append(vectors[: protein.num_residues].mean(0))
        found["no tails"].append(encoder(protein).residue.double().mean(0))
    return {label: torch.stack(rows).numpy() for label, rows in found.items()}


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
    parser.add_argument("--tails", type=Path, nargs="+", default=[])
    args = parser.parse_args(argv)

    # The chains, and the cluster of each.
    titles, *lines = read_rows(args.table).values()
    cluster_of = {line[titles.index("id")]: line[titles.index("cluster")] for line in lines}
    files = sorted(args.folder.glob("*.pdb"))
    clusters = [cluster_of[file.stem] for file in files]
    proteins = [read_structure(file).protein for file in files]

    def show(label: str, vectors: np.ndarray, whitened: bool = False) -> None:
        found, asked = retrieve(vectors, clusters, whitened).sum(0)
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
        elif args.tails:
            tails = [stretch for path in args.tails for stretch in disordered(path)]
            for label, vectors in means_with_tails(load_encoder(name, "cpu"), proteins, tails).items():
                show(f"{name}, {label}", vectors)
        else:
            vectors = mean_vectors(load_encoder(name, "cpu"), proteins)
            show(name, vectors)
            if (BUNDLED / f"{name}.scale.npz").is_file():
                show(f"{name}, whitened", whiten(vectors, name), whitened=True)
    if args.states:
        with np.load(args.states) as states:
            of_chains = [shares(states[file.stem]) for file in files]
        show("3Di states", np.stack([single for single, _ in of_chains]))
        show("pairs of 3Di states", np.stack([pairs for _, pairs in of_chains]))


if __name__ == "__main__":
    with console():
        main()
