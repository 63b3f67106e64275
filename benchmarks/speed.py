"""Every figure of docs/performance.md, each by one command. Machines are shared: medians of interleaved runs.

    python -m benchmarks.speed step        one pre-training step, its parts and its memory (step.py)
    python -m benchmarks.speed graph       graphs and line graphs of 1,000 to 100,000 nodes, side chains turned
    python -m benchmarks.speed encoders    GVP and ESM-2 against the same numbers computed the plain way
    python -m benchmarks.speed reading     bundled structures parsed, and converted into a store
    python -m benchmarks.speed store       random crops from a store of 100,000 proteins; with --cold from the disk
    python -m benchmarks.speed embedding   structures embedded per second, by the command that users run
    python -m benchmarks.speed ddp         proteins per second of 1, 2, ... processes
    python -m benchmarks.speed against     any of these here and in another commit, in turns (against.py)

`python -m benchmarks.speed COMMAND --help` has the options of each.
"""

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks import against, step
from benchmarks.pdb import write_pdb
from benchmarks.step import load_batch, timed
from siamdiff_min import embed, load_encoder
from siamdiff_min.data.crops import Crops, split
from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.data.store import META, ProteinStore, open_store, shard_file
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH, fast, formulas
from siamdiff_min.encoders.esm import CLS, EOS, ESM2, ESM_SIZES, RESIDUE_TOKEN, VOCABULARY, Tokens
from siamdiff_min.encoders.graph import line_graph
from siamdiff_min.encoders.ops import Links
from siamdiff_min.encoders.weights import save_encoder_file
from siamdiff_min.machine import peak_memory
from siamdiff_min.protein.conformer import rotate_side_chains
from siamdiff_min.protein.protein import Protein

ROOT = Path(__file__).parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# ---- graph -----------------------------------------------------------------------------------------------------------

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
    _, preparing = repeated(lambda: fast.prepare(links, True, False).transposed, repeats, device)
    counts = [protein.num_proteins, protein.num_atoms, graph.num_edges, len(edge_in)]
    times = [f"{ms:.1f}" for ms in (building, lining, preparing)]
    return "| " + " | ".join([level, *(f"{count:,}" for count in counts), *times]) + " |"


def graph(args: argparse.Namespace) -> None:
    """Time to build graphs and line graphs, from 1,000 nodes to 100,000, and to turn the side chains of 1,000 residues.

    The batches are bundled structures packed until they have so many nodes (atoms, or residues at residue level).
    Prints medians in milliseconds: the edges with their features, the line graph with its angles, and the preparation
    of the encoder's sums.
    """
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


# ---- encoders --------------------------------------------------------------------------------------------------------


def compare(runs: dict, repeats: int) -> None:
    """Run both functions in turn; the first is the plain one. The first round warms up."""
    seconds, results = {name: [] for name in runs}, {}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            results[name], spent = timed(run)
            seconds[name].append(spent)
    median = {name: statistics.median(s[1:]) for name, s in seconds.items()}
    (plain, reference), (here, result) = results.items()
    error = (result - reference).abs().max() / reference.abs().max()
    for name, s in seconds.items():
        print(f"{name}: {median[name]:.3f} s ({min(s[1:]):.3f} .. {max(s[1:]):.3f})")
    print(f"{here} is {median[plain] / median[here]:.2f} x as fast as {plain}, results differ by {error:.1e}")


def gvp(repeats: int) -> None:
    """Both forms of the kernel, forward and backward, without dropout so that both compute the same."""
    torch.manual_seed(0)
    net, batch = ENCODERS["gvp"]("atom").eval(), load_batch("atom")
    graph = net.builder(batch)
    print(f"{batch.num_proteins} proteins, {graph.num_nodes} atoms, {graph.num_edges} edges")

    def run(form: str) -> Tensor:
        net.zero_grad()
        with patch.object(formulas, "form", form):
            node = net(batch, graph).node
            node.square().sum().backward()
        return node.detach()

    compare({"per edge": lambda: run("plain"), "per node": lambda: run("fast")}, repeats)


def esm(repeats: int, size: str, lengths: list[int]) -> None:
    """Padded and packed, forward without gradients."""
    import esm as fair

    torch.manual_seed(0)
    theirs, ours = fair.ESM2(*ESM_SIZES[size]).eval(), ESM2(*ESM_SIZES[size]).eval()
    ours.load_state_dict({name: theirs.state_dict()[name] for name in ours.state_dict()})
    lengths = sorted(lengths)
    rows = torch.full((len(lengths), lengths[-1] + 2), VOCABULARY.index("<pad>"))
    inside = torch.arange(lengths[-1] + 2) < torch.tensor(lengths)[:, None] + 2
    rows[inside] = torch.tensor(RESIDUE_TOKEN)[torch.randint(0, 20, (int(inside.sum()),))]
    rows[:, 0] = CLS
    rows[torch.arange(len(lengths)), torch.tensor(lengths) + 1] = EOS
    position = torch.arange(rows.shape[1]).expand_as(rows)[inside]
    counts = [(lengths.count(n), n + 2) for n in sorted(set(lengths))]
    scale = torch.full((len(position), 1), 0.88)  # nothing is masked
    tokens = Tokens(rows[inside], position, scale, torch.arange(len(position)), counts)
    print(f"{len(lengths)} sequences, {len(position)} tokens, {1 - len(position) / rows.numel():.0%} padding, {size}")

    def run_padded() -> Tensor:
        return theirs(rows, repr_layers=[theirs.num_layers])["representations"][theirs.num_layers][inside]

    with torch.no_grad():
        compare({"fair-esm": run_padded, "packed": lambda: ours.encode(tokens)}, repeats)


def encoders(args: argparse.Namespace) -> None:
    """GVP and ESM-2 against the same numbers computed the plain way.

    gvp: forward and backward of the paper's network on the real batch of `benchmarks/batches/atom.npz`, with all
    products of a message taken per edge, and with those of the nodes taken per node. esm: forward of ESM-2 with random
    weights on sequences of the given lengths, in fair-esm (padded; it must be installed) and here (packed). Both are
    interleaved. Prints medians in seconds, their ratio, and the largest relative difference.
    """
    print(f"torch {torch.__version__}, CPU, {torch.get_num_threads()} threads")
    gvp(args.repeats) if args.encoder == "gvp" else esm(args.repeats, args.size, args.lengths)


# ---- reading ---------------------------------------------------------------------------------------------------------


def reading(args: argparse.Namespace) -> None:
    """Time to parse the bundled structures, and to convert them into a store."""
    sources = find_structures(bundle_path()).sources
    parsing, building = [], []
    for _ in range(args.repeats):
        atoms, seconds = timed(lambda: sum(source.read().protein.num_atoms for source in sources))
        parsing.append(seconds)
        with tempfile.TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            building.append(timed(lambda store=store: open_store(bundle_path(), store, 1))[1])
    per_atom = statistics.median(parsing) / atoms * 1e6
    print(f"parsing {len(sources)} gzip-compressed PDB entries, {atoms} atoms: {per_atom:.1f} microseconds per atom")
    print(f"building their store, one process: {statistics.median(building):.2f} s")


# ---- store -----------------------------------------------------------------------------------------------------------


def repeat(store: ProteinStore, proteins: int, folder: Path) -> ProteinStore:
    """A store that holds the shards of another one again and again, `proteins` in all or a few more."""
    folder.mkdir()
    times = -(-proteins // len(store))
    meta = store.meta | {"shards": store.meta["shards"] * times}
    for number in range(len(meta["shards"])):
        shutil.copyfile(shard_file(store.path, number % len(store.meta["shards"])), shard_file(folder, number))
    (folder / META).write_text(json.dumps(meta))
    return ProteinStore(folder)


def read(crops: Crops, keys: list[tuple[int, int]]) -> None:
    """Crops in batches of 64, as training takes them."""
    for first in range(0, len(keys), 64):
        crops.collate([crops[key] for key in keys[first : first + 64]])


def cold(path: Path, count: int, length: int, fits: bool, seed: int) -> tuple[float, float]:
    """The first crops of a store that is on the disk only: crops per second, and kB read for each."""
    for file in path.glob("*.pt"):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    keys = [(0, int(i)) for i in np.random.default_rng(seed).integers(len(ProteinStore(path)), size=count)]
    with mock.patch("siamdiff_min.data.store.memory", lambda: math.inf if fits else 0):
        before = read_bytes()
        seconds = timed(partial(read, Crops(ProteinStore(path), length, seed), keys))[1]
        return count / seconds, (read_bytes() - before) / count / 1e3


def read_bytes() -> int:
    """What this process has read from the disk so far (Linux)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def store(args: argparse.Namespace) -> None:
    """Reading random crops from a small store and from one of 100,000 proteins.

    The large store repeats the arrays of the bundled structures (a few GB in the temporary folder, removed at the end).
    Both are read in turn by one process, through the data set and the batches that training uses. Prints bytes per
    structure, seconds to open a store and to split and shuffle its proteins, and crops per second. With `--cold` also
    the first crops of the large store while nothing of it is in memory, read as a store
    that fits there and as one that does not.
    """
    with tempfile.TemporaryDirectory() as folder:
        small = open_store()
        stores = [small, repeat(small, args.proteins, Path(folder) / "store")]
        rates = [[], []]
        for repeat_number in range(args.repeats):
            for store, rate in zip(stores, rates):
                crops = Crops(store, args.length, repeat_number)
                random = np.random.default_rng(repeat_number)
                keys = [(0, int(i)) for i in random.integers(len(store), size=args.crops)]
                rate.append(args.crops / timed(partial(read, crops, keys))[1])
        for store, rate in zip(stores, rates):
            size = sum(file.stat().st_size for file in store.path.glob("*.pt"))
            opened, opening = timed(partial(ProteinStore, store.path))
            (train, _), splitting = timed(partial(split, opened, 0.02))
            _, shuffling = timed(partial(np.random.default_rng(0).permutation, train))
            print(
                f"{len(store)} proteins: {size / len(store) / 1e3:.1f} kB each; opened in {opening * 1e3:.1f} ms, "
                f"split in {splitting:.2f} s, shuffled in {shuffling * 1e3:.1f} ms; "
                f"{statistics.median(rate):.0f} crops/s ({min(rate):.0f} .. {max(rate):.0f}) of {args.length} "
                "residues, one process, in the page cache"
            )
        del small, store, stores, crops, opened  # pages that are mapped stay in memory
        first = args.crops // 10
        for fits in (True, False) if args.cold else ():
            found = [cold(Path(folder) / "store", first, args.length, fits, seed) for seed in range(args.repeats)]
            rate, size = (statistics.median(values) for values in zip(*found))
            rates = [rate for rate, _ in found]
            print(
                f"from the disk, as a store that {'fits' if fits else 'does not fit'} into memory: the first "
                f"{first} crops at {rate:.0f}/s ({min(rates):.0f} .. {max(rates):.0f}), {size:.0f} kB each"
            )
    peak = peak_memory(torch.device("cpu")) / 1e3
    print(f"peak memory of the process, mapped pages included: {peak:.2f} GB")


# ---- embedding -------------------------------------------------------------------------------------------------------


def memory(copies: int) -> None:
    """Memory of the process that embeds, every 256 structures (Linux)."""
    entry = min(find_structures(bundle_path()).sources, key=lambda source: source.size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        write_pdb(folder / "data" / "0.pdb", entry.read().protein)
        for i in range(1, copies):
            os.link(folder / "data" / "0.pdb", folder / "data" / f"{i}.pdb")
        save_encoder_file(
            folder / "e.pt", ENCODERS["gearnet"]("residue", "tiny"), "gearnet", "residue", "tiny", "paper"
        )
        used, embed_group = [], embed.Embedder.embed_group

        def watched(*args):
            used.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
            return embed_group(*args)

        embed.Embedder.embed_group = watched
        embed.main(
            [f"{folder}/data", "--checkpoint", f"{folder}/e.pt", "--out", f"{folder}/out.npz", "--device", "cpu"]
        )
    tenth = len(used) // 10 or 1
    for part in used[:tenth], used[-tenth:]:
        print(f"{min(part):.0f} to {max(part):.0f} MB over {len(part) * embed.GROUP} structures")


def embedding(args: argparse.Namespace) -> None:
    """Embeddings per second of the bundled structures, by the command that users run.

    The encoder has random weights: they cost the same. Timed are the whole command (imports, reading the
    gzip-compressed files, graphs, encoder, writing the .npz), and the encoder's part of it, from structures that are
    already read. With `--copies 12000`: memory over that many structures instead.
    """
    if args.copies:
        return memory(args.copies)
    structures = [source.read() for source in find_structures(bundle_path()).sources]
    atoms = sum(structure.protein.num_atoms for structure in structures)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {len(structures)} structures, {atoms} atoms")

    def run(embedder) -> None:
        embedder.embed(*structures)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder) / "encoder.pt", Path(folder) / "embeddings.npz"
        command = [sys.executable, "-m", "siamdiff_min.embed", str(bundle_path()), "--checkpoint", str(checkpoint)]
        command += ["--include", "mean", "per_residue", "--out", str(out)]
        for level in args.level:
            for size in args.size:
                save_encoder_file(checkpoint, ENCODERS[args.encoder](level, size), args.encoder, level, size, "paper")
                embedder, whole, inner = load_encoder(checkpoint), [], []
                for _ in range(args.repeats):
                    whole.append(timed(partial(subprocess.run, command, cwd=ROOT, check=True, capture_output=True))[1])
                    inner.append(timed(partial(run, embedder))[1])
                rates = [len(structures) / statistics.median(seconds) for seconds in (whole, inner)]
                print(
                    f"{args.encoder}, {level}, {size}: {rates[0]:.1f} structures/s, reading and writing included; "
                    f"{rates[1]:.1f}/s once they are read",
                    flush=True,
                )


# ---- ddp -------------------------------------------------------------------------------------------------------------

BATCH = 4  # proteins per process


def rate(ranks: int, steps: int, options: list[str]) -> tuple[float, float]:
    """Proteins per second over the second half of the steps, and peak memory in GB."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        command += ["train.py", "--size", "tiny", "--threads", "1", "--max-steps", str(steps), "--out", out]
        command += ["--batch-size", str(BATCH), "--global-batch-size", str(BATCH * ranks)]
        command += ["--log-every", str(steps // 2), "--save-every", str(10 * steps), *options]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["split"] == "train"][-1]
    return last["proteins_per_second"], last["peak_memory_mb"] / 1e3


def ddp(args: argparse.Namespace) -> None:
    """Proteins per second of 1, 2, ... processes with the same batch each.

    Runs `train.py` through torchrun on the bundled structures, one thread per process, and reads the rate of the last
    steps from metrics.jsonl; the numbers of processes are interleaved. Efficiency is the rate per process over that of
    the first number of processes. Memory is the peak of rank 0.
    """
    measured = {ranks: [] for ranks in args.ranks}
    for _ in range(args.repeats):
        for ranks in args.ranks:
            measured[ranks].append(rate(ranks, args.steps, args.options))
    base = None
    for ranks, results in measured.items():
        rates = [r for r, _ in results]
        per_rank = statistics.median(rates) / ranks
        base = base or per_rank
        memory = statistics.median(m for _, m in results)
        print(
            f"{ranks} ranks: {statistics.median(rates):.2f} proteins/s ({min(rates):.2f} .. {max(rates):.2f}), "
            f"efficiency {per_rank / base:.0%}, {memory:.2f} GB per rank"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run, about: str, repeats: int) -> argparse.ArgumentParser:
        added = commands.add_parser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        added.set_defaults(run=run)
        added.add_argument("--repeats", type=int, default=repeats)
        return added

    step.add_options(command("step", step.measure, step.__doc__, 5))
    graphs = command("graph", graph, graph.__doc__, 5)
    graphs.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    graphs.add_argument("--device", default=DEVICE)
    networks = command("encoders", encoders, encoders.__doc__, 5)
    networks.add_argument("encoder", choices=["gvp", "esm"])
    networks.add_argument("--size", default="35M", choices=list(ESM_SIZES))
    networks.add_argument("--lengths", type=int, nargs="+", default=[80, 118, 150, 198, 258, 298, 408, 538])
    command("reading", reading, reading.__doc__, 3)
    stores = command("store", store, store.__doc__, 5)
    stores.add_argument("--proteins", type=int, default=100_000)
    stores.add_argument("--crops", type=int, default=2000)
    stores.add_argument("--length", type=int, default=100, help="residues of a crop")
    stores.add_argument("--cold", action="store_true", help="also from the disk (Linux)")
    embeddings = command("embedding", embedding, embedding.__doc__, 3)
    embeddings.add_argument("--size", nargs="+", default=["tiny", "paper"], choices=["tiny", "paper"])
    embeddings.add_argument("--encoder", default="gearnet", choices=list(ENCODERS))
    embeddings.add_argument("--copies", type=int, help="of the smallest entry: is the memory flat?")
    for added in graphs, embeddings:
        added.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    processes = command("ddp", ddp, ddp.__doc__, 3)
    processes.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    processes.add_argument("--steps", type=int, default=20)
    processes.add_argument("options", nargs="*", help="options of train.py, after --")
    compared = command("against", against.compare, against.__doc__, 5)
    compared.add_argument("--in-turns", action="store_true", help="single steps of two processes that stay alive")
    compared.add_argument("commit", help="a commit, branch or tag of this repository")
    compared.add_argument("command", nargs=argparse.REMAINDER, help="a command of benchmarks.speed with its options")
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
