"""Does another commit give the same numbers? The same small commands in two checkouts, compared to the last bit.

    python -m benchmarks.same_numbers --beside CHECKOUT [--only train psr] [--keep FOLDER]

Runs pre-training, fine-tuning, a table, embeddings, mutants and a store, one process and thread each, and compares
losses, weights, vectors, predictions and all numbers of results.json. Prints a row for every file of every command: how
many values are equal, and how far the others are apart. Takes ten CPU minutes.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parents[1]
QUIET = "--num-workers 0 --threads 1 --device cpu"
QUICK = f"--size tiny --max-steps 3 {QUIET}"
TABLE = f"finetune --task table --labels labels.csv --data structures {QUIET}"
COMMANDS = {  # name of the folder that it writes -> the command
    "psr": f"finetune --task psr --level residue --seeds 0 1 {QUICK}",
    "res": f"finetune --task res {QUICK} --batch-size 8",
    "ec": f"finetune --task ec {QUICK}",
    "psr-again": f"finetune --eval-only psr/seed-1/best.pt {QUIET}",
    "psr-predict": f"finetune --eval-only psr/seed-1/best.pt --predict structures {QUIET}",
    "table": f"{TABLE} --value-column value --init-from siamdiff-residue --freeze --folds 5",
    "table-split": f"{TABLE} --value-column yes --level residue --size tiny --max-steps 3",
    "embed": "embed structures --include mean per_residue per_atom --num-workers 0 --device cpu",
    "embed-atom": "embed structures --checkpoint siamdiff-atom --num-workers 0 --device cpu",
    "mutants": "mutants structures/1A19_A.pdb.gz --measured measured.csv",
    "store": "build structures --num-workers 0",
}
for method in ("siamdiff", "diffpret", "residue-type", "score-matching"):
    for level in ("residue", "atom"):
        COMMANDS[f"train-{method}-{level}"] = f"train --method {method} --level {level} {QUICK}"
# What may differ: times, versions, paths, words.
PASSED_OVER = {"seconds", "cpu_seconds", "peak_memory_mb", "proteins_per_second", "samples_per_second"}
PASSED_OVER |= {"about", "made", "config", "options", "version", "encoder", "model", "processes"}


def prepare(folder: Path) -> None:
    """The inputs of all commands: structures, a table of labels for them, measured mutants."""
    (folder / "structures").mkdir(parents=True)
    with tarfile.open(HERE / "siamdiff_min" / "reading" / "bundle" / "structures.tar") as archive:
        names = sorted(archive.getnames())[:40]
        for name in names:
            path = folder / "structures" / Path(name).name
            path.write_bytes(archive.extractfile(name).read())
            os.utime(path, (0, 0))
    random = np.random.default_rng(0)
    labels = ["name,value,yes"]
    for name in names:
        value = random.normal()
        labels.append(f"{Path(name).name.split('.')[0]},{value:.4f},{'yes' if value > 0 else 'no'}")
    (folder / "labels.csv").write_text("\n".join(labels))
    measured = [f"{wild}{i}W,{random.normal():.4f}" for i, wild in enumerate("KKAVINGEQIRSISDLHQTL", 1)]
    (folder / "measured.csv").write_text("\n".join(["name,value", *measured]))


def run(checkout: Path, folder: Path, name: str, command: str) -> str:
    """Run one command in a checkout; returns "" or the last line of its error."""
    out = f"{name}.npz" if command.startswith("embed") else name
    option = "--store" if command.startswith("build") else "--out"
    own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "SIAMDIFF_CACHE": str(folder / "cache")}
    line = [sys.executable, "-m", "siamdiff_min", *command.split(), option, out]
    done = subprocess.run(line, cwd=folder, env=os.environ | own, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def content(path: Path):
    """What a file holds, as dicts and lists of numbers."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return list(map(json.loads, path.read_text().splitlines()))
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))


def numbers(value, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every number, text and array of some content, by the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in PASSED_OVER:
                yield from numbers(item, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from numbers(item, f"{name}/{i}")
    elif value is not None:
        yield name, np.asarray(value)


def compare(one: Path, two: Path) -> str:
    """How many values of two files are equal, and how far the others are apart."""
    first, second = dict(numbers(content(one))), dict(numbers(content(two)))
    both = [name for name in first if name in second]
    differ, gaps = [], []
    for name in both:
        a, b = first[name], second[name]
        if a.shape != b.shape or a.tobytes() != b.tobytes():
            differ.append(name)
            if a.shape == b.shape and a.size and {a.dtype.kind, b.dtype.kind} <= set("fiub"):
                gaps.append(np.abs(a.astype(float) - b).max())
    words = f"{len(both) - len(differ)} of {len(both)} equal"
    if differ:
        words += f"; apart {max(gaps, default=float('nan')):.2g}: {', '.join(differ[:3])}"
    alone = sorted(first.keys() ^ second.keys())
    return words + (f"; {len(alone)} in one alone: {', '.join(alone[:3])}" if alone else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, required=True, help="the other checkout")
    parser.add_argument("--only", nargs="+", default=[""], help="commands whose names begin so")
    parser.add_argument("--keep", type=Path, help="folder of all that is written (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.keep or Path(temporary)
        here, beside = root / "here", root / "beside"
        prepare(here)
        prepare(beside)
        for name, command in COMMANDS.items():
            if not name.startswith(tuple(args.only)):
                continue
            failed = run(HERE, here, name, command), run(args.beside.resolve(), beside, name, command)
            print("\n".join(rows(name, here, beside)) if failed == ("", "") else f"{name:28} {failed}", flush=True)


def rows(name: str, here: Path, beside: Path) -> Iterator[str]:
    """A row for every file that a command wrote, but for options.json."""
    suffixes = {".pt", ".npz", ".json", ".jsonl", ".tsv", ".csv"}
    for path in sorted([*here.glob(f"{name}.npz"), *(here / name).rglob("*")]):
        if path.suffix in suffixes and path.name != "options.json":
            other = beside / path.relative_to(here)
            if name == "store":  # whose folder is called by a checksum of what it holds and of the code
                other = next((beside / name).rglob(path.name), other)
            yield f"{name:28} {path.name:26} {compare(path, other) if other.exists() else 'in one alone'}"


if __name__ == "__main__":
    main()
