"""Embeddings per second of the bundled structures, by the command that users run.

    python -m benchmarks.embedding [--level atom residue] [--size tiny paper] [--encoder gearnet] [--repeats 3]
    python -m benchmarks.embedding --copies 12000    # memory over many structures

The encoder has random weights: they cost the same. Timed is the whole command (imports, reading the gzip-compressed
files, graphs, encoder, writing the .npz), and the encoder's part of it, from structures that are already read.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.pdb import write_pdb
from siamdiff_min import embed, load_encoder
from siamdiff_min.data.sources import bundle_path, find_structures
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.training.checkpoint import save_encoder_file

from .timing import timed

ROOT = Path(__file__).parent.parent


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

        def watched(*args) -> list:
            used.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6)
            return embed_group(*args)

        embed.Embedder.embed_group = watched
        embed.main(
            [f"{folder}/data", "--checkpoint", f"{folder}/e.pt", "--out", f"{folder}/out.npz", "--device", "cpu"]
        )
    tenth = len(used) // 10 or 1
    for part in used[:tenth], used[-tenth:]:
        print(f"{min(part):.0f} to {max(part):.0f} MB over {len(part) * embed.GROUP} structures")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", nargs="+", default=["atom", "residue"], choices=["atom", "residue"])
    parser.add_argument("--size", nargs="+", default=["tiny", "paper"], choices=["tiny", "paper"])
    parser.add_argument("--encoder", default="gearnet", choices=list(ENCODERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--copies", type=int, help="of the smallest entry: is the memory flat?")
    args = parser.parse_args()
    if args.copies:
        return memory(args.copies)
    structures = [source.read() for source in find_structures(bundle_path()).sources]
    atoms = sum(structure.protein.num_atoms for structure in structures)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {len(structures)} structures, {atoms} atoms")

    def run(embedder) -> None:
        embedder.embed(structures)

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


if __name__ == "__main__":
    main()
