"""Every figure of speed on the pages, each by one command: medians, since machines are shared.

    python -m benchmarks.speed step        one pre-training step, its parts and its memory (step.py)
    python -m benchmarks.speed against     steps here and in another commit, in turns (step.py)
    python -m benchmarks.speed graph       graphs and line graphs of 1,000 to 100,000 nodes, side chains turned
    python -m benchmarks.speed reading     bundled structures read, here and by other programs that are installed
    python -m benchmarks.speed store       random crops from a store of 100,000 proteins
    python -m benchmarks.speed embedding   bundled structures embedded per second, by the command that users run
    python -m benchmarks.speed commands    what people run, beside another checkout: CPU seconds in turns (commands.py)
    python -m benchmarks.speed peers       what vectors cost beside other encoders: CPU milliseconds a residue
    python -m benchmarks.speed ddp         proteins per second of 1, 2, ... processes, one thread each

Options: `python -m benchmarks.speed --help`.
"""

import argparse
import contextlib
import glob
import gzip
import importlib
import io
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks import commands, step
from benchmarks.pdb import write_pdb
from benchmarks.step import timed
from siamdiff_min import load_encoder
from siamdiff_min.encoders import ATOM_GRAPH, ENCODERS, RESIDUE_GRAPH, fast
from siamdiff_min.encoders.graph import line_graph
from siamdiff_min.encoders.ops import Links
from siamdiff_min.protein.conformer import rotate_side_chains
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.crops import Crops
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.reading.store import META, ProteinStore, open_store, read_meta, shard_file

ROOT = Path(__file__).parent.parent
BATCH, STEPS = 4, 20  # of a process in `ddp`: proteins, steps
ESM2 = {"8M": (6, 320), "35M": (12, 480)}  # layers, width


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
    for level, size in itertools.product(args.level, args.sizes):
        builder, timing = {"atom": ATOM_GRAPH, "residue": RESIDUE_GRAPH}[level], (args.repeats, args.device)
        protein = builder.select_nodes(batch(size, level == "atom")).to(args.device)
        made, building = repeated(partial(builder, protein), *timing)
        (edge_in, edge_out, bins), lining = repeated(partial(line_graph, made, protein.pos, 8), *timing)
        links = edge_in, edge_out, bins, made.num_edges, made.num_edges, 8
        _, preparing = repeated(lambda links=links: fast.at_results(Links(*links)).transposed, *timing)
        counts = [f"{n:,}" for n in (protein.num_proteins, protein.num_atoms, made.num_edges, len(edge_in))]
        times = [f"{seconds * 1e3:.1f}" for seconds in (building, lining, preparing)]
        print("| " + " | ".join([level, *counts, *times]) + " |", flush=True)
    protein = batch(1000, atoms=False).to(args.device)
    angles = torch.randn(protein.num_residues, 4, generator=torch.Generator().manual_seed(0)).to(args.device)
    _, turning = repeated(lambda: rotate_side_chains(protein, angles), args.repeats, args.device)
    print(f"side chains of {protein.num_residues} residues turned in {turning * 1e3:.1f} ms")


def _in_biopython(path: Path) -> None:
    from Bio.PDB import FastMMCIFParser, PDBParser

    with gzip.open(path, "rt") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parser = FastMMCIFParser if path.name.endswith(".cif.gz") else PDBParser
        parser(QUIET=True).get_structure("x", file)


def _in_gemmi(path: Path) -> None:
    import gemmi

    gemmi.read_structure(str(path))


def _in_biotite(path: Path) -> None:
    from biotite.structure.io import pdb, pdbx

    with gzip.open(path, "rt") as file:
        if path.name.endswith(".cif.gz"):
            pdbx.get_structure(pdbx.CIFFile.read(file), model=1)
        else:
            pdb.get_structure(pdb.PDBFile.read(file), model=1)


def _in_prody(path: Path) -> None:
    import prody

    prody.confProDy(verbosity="none")
    prody.parsePDB(str(path)) if path.name.endswith(".pdb.gz") else prody.parseMMCIF(str(path))


READERS = {"biopython": _in_biopython, "gemmi": _in_gemmi, "biotite": _in_biotite, "prody": _in_prody}


def _as_mmcif(path: Path) -> bytes:
    """A file of PDB as Biopython writes it in mmCIF."""
    from Bio.PDB import MMCIFIO, PDBParser

    with gzip.open(path, "rt") as file:
        structure = PDBParser(QUIET=True).get_structure("x", file)
    text, writer = io.StringIO(), MMCIFIO()
    writer.set_structure(structure)
    writer.save(text)
    return gzip.compress(text.getvalue().encode())


_WORKER = """
import json, sys, time, torch
from siamdiff_min import read_structure
torch.set_num_threads(1)
for line in sys.stdin:
    start = time.process_time()
    for path in json.loads(line):
        read_structure(path)
    print(time.process_time() - start, flush=True)
"""


@contextlib.contextmanager
def _in_checkout(folder: str):
    """Our reader of another checkout, in a process of its own: paths -> CPU seconds to read them."""
    command = [sys.executable, "-c", _WORKER]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(paths: list[Path]) -> float:
        process.stdin.write(json.dumps([str(path) for path in paths]) + "\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    with process:
        yield seconds
        process.stdin.close()


def _cpu_seconds(reader, paths: list[Path]) -> float:
    start = time.process_time()
    for path in paths:
        reader(path)
    return time.process_time() - start


def _bundled_files(folder: Path, every: int) -> dict[str, list[Path]]:
    """Some bundled structures as PDB and as mmCIF files."""
    files: dict[str, list[Path]] = {".pdb.gz": [], ".cif.gz": []}
    for source in find_structures(bundle_path()).sources[::every]:
        path = folder / f"{source.name}.pdb.gz"
        write_pdb(path.with_suffix(""), source.read().protein)
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
        files[".pdb.gz"].append(path)
        other = path.with_name(f"{source.name}.cif.gz")
        other.write_bytes(_as_mmcif(path))
        files[".cif.gz"].append(other)
    return files


def reading(args: argparse.Namespace) -> None:
    """CPU microseconds per atom to read structures, here and by other programs that are installed, in turns.

    The medians of some rounds; one process, files in the page cache. Ours gives a checked `Protein`, the others what
    they call a structure. With `--beside` also our reader of another checkout, and how much of its time ours takes.
    """
    torch.set_num_threads(1)  # as in processes that read for a store
    timers = {"siamdiff_min": partial(_cpu_seconds, read_structure)}
    for name, reader in READERS.items():
        with contextlib.suppress(ImportError):
            importlib.import_module("Bio" if name == "biopython" else name)
            timers[name] = partial(_cpu_seconds, reader)
    with contextlib.ExitStack() as stack:
        if args.beside:
            timers = {"siamdiff_min": timers["siamdiff_min"], "beside": stack.enter_context(_in_checkout(args.beside))}
        print("| files | atoms | " + " | ".join(timers) + " |\n|" + "---|" * (len(timers) + 2))
        files = {pattern: [Path(path) for path in sorted(glob.glob(pattern))] for pattern in args.files}
        if not files:
            files = _bundled_files(Path(stack.enter_context(tempfile.TemporaryDirectory())), args.every)
        for kind, paths in files.items():
            atoms = sum(read_structure(path).protein.num_atoms for path in paths)
            rounds = [[timer(paths) for timer in timers.values()] for _ in range(args.repeats)]
            cells = [f"{statistics.median(of) / atoms * 1e6:.2f}" for of in zip(*rounds, strict=True)]
            if args.beside:
                cells.append(f"ratio {statistics.median(ours / other for ours, other in rounds):.3f}")
            print(f"| {len(paths)} {kind} | {atoms:,} | " + " | ".join(cells) + " |", flush=True)


def repeat(store: ProteinStore, proteins: int, folder: Path) -> ProteinStore:
    """A store that holds the shards of another one again and again, `proteins` in all or a few more."""
    folder.mkdir()
    meta = read_meta(store.path)
    meta["shards"] *= -(-proteins // len(store))
    for number in range(len(meta["shards"])):
        shutil.copyfile(shard_file(store.path, number % len(store.meta["shards"])), shard_file(folder, number))
    (folder / META).write_text(json.dumps(meta))
    return ProteinStore(folder)


def store(args: argparse.Namespace) -> None:
    """Random crops of 100 residues per second, in batches of 64: of the bundled store, and of one that repeats it.

    The large one takes a few GB in the temporary folder, which are removed at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        for made in open_store(), repeat(open_store(), args.proteins, Path(folder) / "store"):
            rates = []
            for seed in range(args.repeats):
                crops, order = Crops(made, 100, seed), np.random.default_rng(seed).integers(len(made), size=args.crops)
                keys = [(0, int(i)) for i in order]
                parts = [keys[k : k + 64] for k in range(0, len(keys), 64)]
                _, seconds = timed(lambda: [crops.collate([crops[key] for key in part]) for part in parts])  # noqa: B023
                rates.append(len(keys) / seconds)
            print(f"{len(made)} proteins, in the page cache: {statistics.median(rates):.0f} crops/s", flush=True)


def embedding(args: argparse.Namespace) -> None:
    """The whole command: imports, gzip-compressed files, graphs, GearNet with random weights, the .npz."""
    count = len(find_structures(bundle_path()).sources)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "encoder.pt"
        command = [sys.executable, "-m", "siamdiff_min", "embed", bundle_path(), "--checkpoint", checkpoint]
        command += ["--include", "mean", "per_residue", "--out", Path(folder) / "embeddings.npz"]
        embed = partial(subprocess.run, command, cwd=ROOT, check=True, capture_output=True)
        for level, size in itertools.product(args.level, args.size):
            ENCODERS["gearnet"](level, size).save(checkpoint)
            print(f"{level}, {size}: {count / repeated(embed, args.repeats)[1]:.1f} structures/s", flush=True)


@torch.inference_mode()
def peers(args: argparse.Namespace) -> None:
    """What 60 bundled chains as PDB files cost, reading included, one thread, start apart, programs in turns.

    mini3di (PyPI, if it is installed) gives the states of Foldseek. ESM-2 is torch's own transformer in its shape, with
    random weights, without rotary positions: its time, not its vectors.
    """
    torch.set_num_threads(1)
    programs = {f"shape of ESM-2 {name}": transformer(*shape) for name, shape in ESM2.items()}
    for name in ("siamdiff-residue", "siamdiff-atom"):
        programs[name] = partial(load_encoder(name, "cpu").embed, include=["per_residue"])
    with contextlib.suppress(ImportError):
        programs["mini3di"] = mini3di()
    seconds = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(Path(commands.write_files(Path(folder))["files"]).glob("*.pdb"))
        residues = sum(read_structure(file).protein.num_residues for file in files)
        for turn in range(1 + args.repeats):
            for name, program in programs.items():
                start = time.process_time()
                for file in files if turn else files[:1]:  # the first turn warms up
                    program(file)
                if turn:
                    seconds[name].append(time.process_time() - start)
    print(f"{len(files)} files, {residues:,} residues, torch {torch.__version__}")
    for name, times in seconds.items():
        print(f"{name}: {1000 * statistics.median(times) / residues:.3f} CPU ms a residue")


def transformer(layers: int, width: int):
    """The vectors of the residues of a file, by a transformer with 20 heads."""
    options = {"activation": "gelu", "batch_first": True, "norm_first": True}
    layer = torch.nn.TransformerEncoderLayer(width, 20, 4 * width, **options)
    stack = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
    letters = torch.nn.Embedding(20, width)
    return lambda file: stack(letters(read_structure(file).protein.residue_type)[None])


def mini3di():
    """The states of the chains of a file, read by Biopython."""
    from Bio.PDB import PDBParser
    from mini3di import Encoder

    encoder = Encoder()
    parser = PDBParser(QUIET=True)
    return lambda file: [encoder.encode_chain(chain) for chain in parser.get_structure("", file).get_chains()]


def last_line(run: Path) -> dict:
    """The last training line of a run's metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == "train"][-1]


def ddp(args: argparse.Namespace) -> None:
    """Proteins per second over the second half of the steps of train.py, size tiny, on the bundled structures.

    The numbers of processes are interleaved. Efficiency is the rate per process over that of the first number.
    """
    measured = {ranks: [] for ranks in args.ranks}
    for ranks in args.ranks * args.repeats:
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
            command += ["train.py", "--size", "tiny", "--threads", "1", "--max-steps", str(STEPS), "--out", out]
            command += ["--batch-size", str(BATCH), "--global-batch-size", str(BATCH * ranks)]
            command += ["--log-every", str(STEPS // 2), "--save-every", str(10 * STEPS)]
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            measured[ranks].append(last_line(Path(out)))
    base = None
    for ranks, last in measured.items():
        rate, memory = (statistics.median(x[key] for x in last) for key in ("proteins_per_second", "peak_memory_mb"))
        base = base or rate / ranks
        share = rate / ranks / base
        print(f"{ranks} ranks: {rate:.2f} proteins/s, efficiency {share:.0%}, {memory / 1e3:.2f} GB per rank")


COMMANDS = {"step": (step.measure, 5), "against": (step.compare, 20), "graph": (graph, 5), "reading": (reading, 3)}
COMMANDS |= {
    "store": (store, 5),
    "embedding": (embedding, 3),
    "ddp": (ddp, 3),
    "peers": (peers, 3),
    "commands": (commands.commands, 3),
}  # what to run, how often


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("commit", nargs="?", default="HEAD", help="against: a commit, branch or tag")
    parser.add_argument("--repeats", type=int)
    step.add_options(parser)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000], help="graph: nodes")
    parser.add_argument("--every", type=int, default=8, help="reading: one structure of so many")
    parser.add_argument("--files", nargs="+", default=[], help="reading: patterns of files, in place of the bundle")
    parser.add_argument("--beside", help="commands, reading: another checkout (reading: in place of other programs)")
    parser.add_argument("--rows", nargs="+", help="commands: beginnings of the rows' names")
    parser.add_argument("--proteins", type=int, default=100_000, help="store")
    parser.add_argument("--crops", type=int, default=2000, help="store")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="ddp: numbers of processes")
    args = parser.parse_args(argv)
    run, repeats = COMMANDS[args.command]
    args.repeats = args.repeats or repeats
    run(args)


if __name__ == "__main__":
    main()
