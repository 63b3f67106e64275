"""Every figure of docs/performance.md, each by one command. Machines are shared: medians of interleaved runs.

    python -m benchmarks.speed step        one pre-training step, its parts and its memory (step.py)
    python -m benchmarks.speed against     steps here and in another commit, in turns (against.py)
    python -m benchmarks.speed graph       graphs and line graphs of 1,000 to 100,000 nodes, side chains turned
    python -m benchmarks.speed reading     bundled structures parsed, and converted into a store
    python -m benchmarks.speed store       random crops from a store of 100,000 proteins
    python -m benchmarks.speed embedding   bundled structures embedded per second, by the command that users run
    python -m benchmarks.speed ddp         proteins per second of 1, 2, ... processes, one thread each

`python -m benchmarks.speed COMMAND --help` has the options of each.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import against, step
from benchmarks.step import timed
from siamdiff_min.data.crops import Crops
from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.data.store import META, ProteinStore, open_store, shard_file
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH, fast
from siamdiff_min.encoders.graph import line_graph
from siamdiff_min.encoders.ops import Links
from siamdiff_min.protein.conformer import rotate_side_chains
from siamdiff_min.protein.protein import Protein

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH = 4  # proteins of a process, in `ddp`


def repeated(work, repeats: int, device: str = "cpu"):
    """What `work()` returns, and the median of its seconds. The first run warms up."""
    runs = [timed(work, device) for _ in range(repeats + 1)]
    return runs[-1][0], statistics.median(seconds for _, seconds in runs[1:])


def batch(nodes: int, atoms: bool) -> Protein:
    """Bundled structures with `nodes` atoms or residues in all, the last one cut."""
    store, proteins = open_store(), []
    while nodes > 0:
        protein = store[len(proteins) % len(store)]
        size = protein.num_atoms if atoms else protein.num_residues
        proteins.append(protein.crop(0, max(1, round(protein.num_residues * min(1, nodes / size)))))
        nodes -= size
    return Protein.pack(proteins)


def graph(args: argparse.Namespace) -> None:
    """Milliseconds to build the edges with their features, the line graph with its angles, and the encoder's sums."""
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads")
    print("| level | proteins | nodes | edges | edges of the line graph | graph | line graph | sums |\n|" + "---|" * 8)
    for level, size in ((level, size) for level in args.level for size in args.sizes):
        builder, timing = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level], (args.repeats, args.device)
        protein = builder.select_nodes(batch(size, level == "atom")).to(args.device)
        made, building = repeated(partial(builder, protein), *timing)
        (edge_in, edge_out, bins), lining = repeated(partial(line_graph, made, protein.pos, 8), *timing)
        links = Links(edge_in, edge_out, bins, made.num_edges, made.num_edges, 8)
        _, preparing = repeated(lambda links=links: fast.prepare(links, True, False).transposed, *timing)
        counts = [f"{n:,}" for n in (protein.num_proteins, protein.num_atoms, made.num_edges, len(edge_in))]
        times = [f"{seconds * 1e3:.1f}" for seconds in (building, lining, preparing)]
        print("| " + " | ".join([level, *counts, *times]) + " |", flush=True)
    protein = batch(1000, atoms=False).to(args.device)
    angles = torch.randn(protein.num_residues, 4, generator=torch.Generator().manual_seed(0)).to(args.device)
    _, turning = repeated(lambda: rotate_side_chains(protein, angles), args.repeats, args.device)
    print(f"side chains of {protein.num_residues} residues turned in {turning * 1e3:.1f} ms")


def reading(args: argparse.Namespace) -> None:
    """Time to parse the bundled structures, and to convert them into a store, with one process."""
    sources = find_structures(bundle_path()).sources
    atoms, seconds = repeated(lambda: sum(source.read().protein.num_atoms for source in sources), args.repeats)
    per_atom = seconds / atoms * 1e6
    print(f"parsing {len(sources)} gzip-compressed PDB entries, {atoms} atoms: {per_atom:.1f} microseconds per atom")

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            open_store(bundle_path(), Path(folder) / "store", 1)

    print(f"building their store: {repeated(build, args.repeats)[1]:.2f} s")


def repeat(store: ProteinStore, proteins: int, folder: Path) -> ProteinStore:
    """A store that holds the shards of another one again and again, `proteins` in all or a few more."""
    folder.mkdir()
    meta = store.meta | {"shards": store.meta["shards"] * -(-proteins // len(store))}
    for number in range(len(meta["shards"])):
        shutil.copyfile(shard_file(store.path, number % len(store.meta["shards"])), shard_file(folder, number))
    (folder / META).write_text(json.dumps(meta))
    return ProteinStore(folder)


def crops_per_second(store: ProteinStore, count: int, length: int, seed: int) -> float:
    """Random crops in batches of 64, as training takes them."""
    crops = Crops(store, length, seed)
    keys = [(0, int(i)) for i in np.random.default_rng(seed).integers(len(store), size=count)]
    work = lambda: [crops.collate([crops[key] for key in keys[k : k + 64]]) for k in range(0, count, 64)]  # noqa: E731
    return count / timed(work)[1]


def store(args: argparse.Namespace) -> None:
    """Random crops of 100 residues per second, one process: of the bundled store, and of one that repeats it.

    The large one takes a few GB in the temporary folder, which are removed at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        for made in open_store(), repeat(open_store(), args.proteins, Path(folder) / "store"):
            rates = [crops_per_second(made, args.crops, 100, seed) for seed in range(args.repeats)]
            print(f"{len(made)} proteins, in the page cache: {statistics.median(rates):.0f} crops/s", flush=True)


def embedding(args: argparse.Namespace) -> None:
    """The whole command: imports, gzip-compressed files, graphs, an encoder with random weights, the .npz."""
    count = len(find_structures(bundle_path()).sources)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "encoder.pt"
        command = [sys.executable, "-m", "siamdiff_min.embed", bundle_path(), "--checkpoint", checkpoint]
        command += ["--include", "mean", "per_residue", "--out", Path(folder) / "embeddings.npz"]
        for level, size in ((level, size) for level in args.level for size in args.size):
            ENCODERS[args.encoder](level, size).save(checkpoint)
            _, seconds = repeated(
                partial(subprocess.run, command, cwd=ROOT, check=True, capture_output=True), args.repeats
            )
            print(f"{args.encoder}, {level}, {size}: {count / seconds:.1f} structures/s", flush=True)


def ddp(args: argparse.Namespace) -> None:
    """Proteins per second over the second half of the steps of train.py, size tiny, on the bundled structures.

    The numbers of processes are interleaved. Efficiency is the rate per process over that of the first number.
    """
    measured = {ranks: [] for ranks in args.ranks}
    for _, ranks in ((n, ranks) for n in range(args.repeats) for ranks in args.ranks):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
            command += ["train.py", "--size", "tiny", "--threads", "1", "--max-steps", str(args.steps), "--out", out]
            command += ["--batch-size", str(BATCH), "--global-batch-size", str(BATCH * ranks)]
            command += ["--log-every", str(args.steps // 2), "--save-every", str(10 * args.steps), *args.options]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
        measured[ranks].append([line for line in lines if line["split"] == "train"][-1])
    base = None
    for ranks, last in measured.items():
        rate, memory = (statistics.median(x[key] for x in last) for key in ("proteins_per_second", "peak_memory_mb"))
        base = base or rate / ranks
        share = rate / ranks / base
        print(f"{ranks} ranks: {rate:.2f} proteins/s, efficiency {share:.0%}, {memory / 1e3:.2f} GB per rank")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run, about: str, repeats: int) -> argparse.ArgumentParser:
        added = commands.add_parser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        added.set_defaults(run=run)
        added.add_argument("--repeats", type=int, default=repeats)
        return added

    step.add_options(command("step", step.measure, step.__doc__, 5))
    compared = command("against", against.compare, against.__doc__, 20)
    compared.add_argument("commit", help="a commit, branch or tag of this repository")
    step.add_options(compared)
    graphs = command("graph", graph, graph.__doc__, 5)
    graphs.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    graphs.add_argument("--device", default=DEVICE)
    command("reading", reading, reading.__doc__, 3)
    stores = command("store", store, store.__doc__, 5)
    stores.add_argument("--proteins", type=int, default=100_000)
    stores.add_argument("--crops", type=int, default=2000)
    embeddings = command("embedding", embedding, embedding.__doc__, 3)
    embeddings.add_argument("--size", nargs="+", default=["tiny", "paper"], choices=["tiny", "paper"])
    embeddings.add_argument("--encoder", default="gearnet", choices=list(ENCODERS))
    for added in graphs, embeddings:
        added.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    processes = command("ddp", ddp, ddp.__doc__, 3)
    processes.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    processes.add_argument("--steps", type=int, default=20)
    processes.add_argument("options", nargs="*", help="options of train.py, after --")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
