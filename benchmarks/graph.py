"""Time to build graphs and line graphs, from 1,000 atoms to 100,000, and to turn the side chains of 1,000 residues.

    python -m benchmarks.graph [--level atom residue] [--sizes 1000 10000 100000] [--repeats 5] [--device cpu]

The batches are bundled structures packed until they have so many nodes (atoms, or residues at residue level). Prints
medians in milliseconds: the edges with their features, the line graph with its angles, and what is prepared for the
sums of the encoder.
"""

import argparse
import statistics

import torch

from siamdiff_min.data.build import open_store
from siamdiff_min.encoders import ATOM_GRAPH, RESIDUE_GRAPH, fast
from siamdiff_min.encoders.graph import line_graph
from siamdiff_min.encoders.ops import Links
from siamdiff_min.protein.conformer import rotate_side_chains
from siamdiff_min.protein.protein import Protein

from .timing import timed

BINS = 8


def repeated(work, repeats: int, device: str):
    """What `work()` returns, and the median of its time in milliseconds. The first run warms up."""
    runs = [timed(work, device) for _ in range(repeats + 1)]
    return runs[-1][0], statistics.median(seconds for _, seconds in runs[1:]) * 1e3


def batch(nodes: int, atoms: bool) -> Protein:
    """Bundled structures with `nodes` atoms or residues in all, the last one cut."""
    store, proteins, total = open_store(), [], 0
    while total < nodes:
        protein = store[len(proteins) % len(store)]
        size = protein.num_atoms if atoms else protein.num_residues
        if total + size > nodes:
            keep = round(protein.num_residues * (nodes - total) / size)
            protein = protein.crop(0, max(keep, 1))
        proteins.append(protein)
        total += protein.num_atoms if atoms else protein.num_residues
    return Protein.pack(proteins)


def row(level: str, size: int, repeats: int, device: str) -> str:
    """What is measured of one batch."""
    builder = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level]
    protein = builder.select_nodes(batch(size, level == "atom")).to(device)
    graph, building = repeated(lambda: builder(protein), repeats, device)
    (edge_in, edge_out, bins), lining = repeated(lambda: line_graph(graph, protein.pos, BINS), repeats, device)
    links = Links(edge_in, edge_out, bins, graph.num_edges, graph.num_edges, BINS)
    _, preparing = repeated(lambda: fast.by_source_and_relation(links), repeats, device)
    counts = [protein.num_proteins, protein.num_atoms, graph.num_edges, len(edge_in)]
    times = [f"{ms:.1f}" for ms in (building, lining, preparing)]
    return "| " + " | ".join([level, *(f"{count:,}" for count in counts), *times]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads")
    print("| level | proteins | nodes | edges | edges of the line graph | graph, ms | line graph, ms | sums, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for level in args.level:
        for size in args.sizes:
            print(row(level, size, args.repeats, args.device), flush=True)
    protein = batch(1000, atoms=False).to(args.device)
    angles = torch.randn(protein.num_residues, 4, generator=torch.Generator().manual_seed(0)).to(args.device)
    _, turning = repeated(lambda: rotate_side_chains(protein, angles), args.repeats, args.device)
    print(f"side chains of {protein.num_residues} residues ({protein.num_atoms} atoms) turned in {turning:.1f} ms")


if __name__ == "__main__":
    main()
