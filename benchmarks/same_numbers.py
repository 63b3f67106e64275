"""Does another commit give the same numbers? The same small commands in two checkouts, compared to the last bit.

    python -m benchmarks.same_numbers --beside CHECKOUT [--only train psr] [--keep FOLDER]

Runs pre-training, fine-tuning, a table, embeddings, mutants and a store, one process and thread each, and compares
losses, weights, vectors, predictions and all numbers of results.json. Prints a row for every kind of file of every
command: how many values are equal, and the largest difference of those that are not. Takes about six CPU minutes.
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
STRUCTURES = 40
QUIET = "--num-workers 0 --threads 1 --device cpu"
QUICK = f"--size tiny --max-steps 3 {QUIET}"
METHODS = ("siamdiff", "diffpret", "residue-type", "score-matching")
START = "--init-from siamdiff-residue"
TABLE = f"finetune --task table --labels labels.csv --data structures {QUIET}"
COMMANDS = {  # name of the folder that it writes -> the command
    **{
        f"train-{method}-{level}": f"train --method {method} --level {level} {QUICK}"
        for method in METHODS
        for level in ("residue", "atom")
    },
    "psr": f"finetune --task psr --level residue --seeds 0 1 {QUICK}",
    "res": f"finetune --task res {QUICK} --batch-size 8",
    "ec": f"finetune --task ec {QUICK}",
    "psr-again": f"finetune --eval-only psr/seed-1/best.pt {QUIET}",
    "psr-predict": f"finetune --eval-only psr/seed-1/best.pt --predict structures {QUIET}",
    "table": f"{TABLE} {START} --freeze --folds 5",
    "table-split": f"{TABLE} --level residue --size tiny --max-steps 3 --value-column yes",
    "embed": "embed structures --include mean per_residue per_atom --num-workers 0 --device cpu",
    "embed-atom": "embed structures --checkpoint siamdiff-atom --num-workers 0 --device cpu",
    "mutants": "mutants structures/1A19_A.pdb.gz --measured measured.csv",
    "store": "build structures --num-workers 0",
}
# What may differ: times, versions, paths, words.
PASSED_OVER = {"seconds", "cpu_seconds", "peak_memory_mb", "about", "made", "config", "options", "version", "encoder"}


def prepare(folder: Path) -> None:
    """The inputs of all commands: structures, a table of labels for them, measured mutants."""
    bundle = HERE / "siamdiff_min" / "reading" / "bundle" / "structures.tar"
    with tarfile.open(bundle) as archive:
        members = sorted(archive.getnames())[:STRUCTURES]
        for name in members:
            path = folder / "structures" / Path(name).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(name).read())
            os.utime(path, (0, 0))
    random = np.random.default_rng(0)
    names = [path.name.split(".")[0] for path in sorted((folder / "structures").iterdir())]
    rows = [
        f"{name},{value:.4f},{'yes' if value > 0 else 'no'}"
        for name, value in zip(names, random.normal(size=len(names)))
    ]
    (folder / "labels.csv").write_text("\n".join(["name,value,yes", *rows]))
    mutants = [
        f"{wild}{number}A,{random.normal():.4f}" for number, wild in enumerate("KKAVINGEQIRSISDLHQTL", 1) if wild != "A"
    ]
    (folder / "measured.csv").write_text("\n".join(["name,value", *mutants]))


def run(checkout: Path, folder: Path, name: str, command: str) -> str:
    """Run one command in a checkout; returns "" or the last line of its error."""
    out = {"embed": f"{name}.npz", "mutants": name}.get(command.split()[0], name)
    option = "--store" if command.startswith("build") else "--out"
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
        "SIAMDIFF_CACHE": str(folder / "cache"),
    }
    line = [sys.executable, "-m", "siamdiff_min", *command.split(), option, out]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def numbers(value, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every number, text and array of some content, by the path to it."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in PASSED_OVER and not str(key).endswith("_per_second"):
                yield from numbers(item, f"{name}/{key}")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from numbers(item, f"{name}/{i}")
    elif isinstance(value, torch.Tensor):
        yield name, value.numpy()
    elif value is not None:
        yield name, np.asarray(value)


def content(path: Path):
    """What a file holds, as dicts and lists of numbers."""
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    if path.suffix == ".npz":
        return dict(np.load(path))
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    with open(path, newline="") as file:
        rows = csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t")
        return [{title: as_number(cell) for title, cell in row.items() if title != "model"} for row in rows]


def as_number(cell: str) -> float | str:
    """A cell of a table."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell


def compare(one: Path, two: Path) -> str:
    """How many values of two files are equal, and how far the others are apart."""
    first, second = dict(numbers(content(one))), dict(numbers(content(two)))
    both = [name for name in first if name in second]
    differ = [
        name
        for name in both
        if first[name].tobytes() != second[name].tobytes() or first[name].shape != second[name].shape
    ]
    words = f"{len(both) - len(differ)} of {len(both)} equal"
    if differ:
        gaps = [
            np.abs(first[n].astype(float) - second[n]).max()
            for n in differ
            if first[n].dtype.kind in "fiub" and second[n].dtype.kind in "fiub" and first[n].shape == second[n].shape
        ]
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
        sides = {root / "here": HERE, root / "beside": args.beside.resolve()}
        for folder in sides:
            prepare(folder)
        for name, command in COMMANDS.items():
            if not name.startswith(tuple(args.only)):
                continue
            errors = [run(checkout, folder, name, command) for folder, checkout in sides.items()]
            if any(errors):
                print(f"{name:28} failed: {' | '.join(errors)}", flush=True)
                continue
            report(name, *sides)


def report(name: str, here: Path, beside: Path) -> None:
    """A row for every file that a command wrote on both sides."""
    suffixes = (".pt", ".npz", ".json", ".jsonl", ".tsv", ".csv")
    written = [*here.glob(f"{name}.npz"), *(here / name).rglob("*")]
    for path in sorted(path for path in written if path.suffix in suffixes and path.name != "options.json"):
        other = beside / path.relative_to(here)
        words = compare(path, other) if other.exists() else "in one alone"
        print(f"{name:28} {path.relative_to(here).name:22} {words}", flush=True)


if __name__ == "__main__":
    main()
