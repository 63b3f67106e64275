"""CPU seconds of what people run, here and in another checkout, in turns: `benchmarks.speed commands`.

Rows are chosen by the beginnings of their names; the two trainings take half an hour. Files are bundled structures.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.pdb import write_pdb
from siamdiff_min.reading.sources import bundle_path, find_structures

ROOT = Path(__file__).parent.parent
STRUCTURES, MUTANT_LENGTH = 60, 89  # files to embed; residues of the protein that is mutated
FREEZE = "finetune --task table --init-from siamdiff-residue --freeze --folds 10 --data {files} --labels {files}.csv"
EMBED = "embed {files} --num-workers 0 --out {out}.npz --checkpoint siamdiff-"
ROWS = {  # name -> the line after `python -m siamdiff_min`
    "help": "embed --help",
    "wrong option": "train --no-such-option",
    "unknown file": "embed {files}/no-such-file.pdb",
    "dry run": "train --dry-run",
    "freeze": FREEZE + " --out {out}",
    "freeze all": FREEZE.replace("{files}", "{all}") + " --out {out}",
    "mutants": "mutants {protein} --out {out}.csv",
    "embed residue": EMBED + "residue",
    "embed atom": EMBED + "atom",
    "train residue": "train --size tiny --level residue --threads 1 --num-workers 0 --out {out}",
    "train atom": "train --size tiny --level atom --threads 1 --num-workers 0 --out {out}",
}


def write_files(folder: Path) -> dict[str, str]:
    """Some structures and all of the bundle (217), with made-up labels, and the protein to mutate."""
    made = {"files": folder / "files", "all": folder / "all"}
    draw = random.Random(0)
    labels = ["id,value"]
    protein = None
    for path in made.values():
        path.mkdir()
    for source in find_structures(bundle_path()).sources:
        structure = source.read().protein
        write_pdb(made["all"] / f"{source.name}.pdb", structure)
        if len(labels) <= STRUCTURES:
            write_pdb(made["files"] / f"{source.name}.pdb", structure)
        labels.append(f"{source.name},{draw.gauss(0, 1):.3f}")
        if structure.num_residues == MUTANT_LENGTH and protein is None:
            protein = folder / f"{source.name}.pdb"
            write_pdb(protein, structure)
    Path(f"{made['all']}.csv").write_text("\n".join(labels) + "\n")
    Path(f"{made['files']}.csv").write_text("\n".join(labels[: STRUCTURES + 1]) + "\n")
    return {name: str(path) for name, path in made.items()} | {"protein": str(protein)}


def cpu_seconds(checkout: Path, line: str) -> float:
    """User and system time of one command with all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "siamdiff_min", *line.split()]
    subprocess.run(command, cwd=checkout, env=environment, capture_output=True)  # an error is what some rows are about
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def in_validation(run: Path) -> str:
    """The share of a training's CPU time that its validations took, from metrics.jsonl."""
    if not (run / "metrics.jsonl").exists():
        return ""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    pairs = [(line, before) for before, line in pairwise(lines) if line["split"] == "valid"]
    seconds = sum(line["cpu_seconds"] - before["cpu_seconds"] for line, before in pairs)
    return f"{seconds / lines[-1]['cpu_seconds']:.0%}"


def commands(args: argparse.Namespace) -> None:
    """The table: CPU seconds there and here, medians, the median of their ratios, and the share of validation."""
    chosen = [row for row in ROWS if not args.rows or row.startswith(tuple(args.rows))]
    checkouts = {"here": ROOT, **({"beside": Path(args.beside)} if args.beside else {})}
    print("| row | " + " | ".join(checkouts) + " | ratio | validation |\n|" + "---|" * (len(checkouts) + 3))
    with tempfile.TemporaryDirectory() as folder:
        made = write_files(Path(folder))
        for row in chosen:
            seconds = {name: [] for name in checkouts}
            for turn in range(args.repeats):
                for name, checkout in checkouts.items():
                    out = f"{folder}/{row.replace(' ', '-')}-{name}-{turn}"
                    seconds[name].append(cpu_seconds(checkout, ROWS[row].format(out=out, **made)))
            ratios = [here / beside for here, beside in zip(seconds["here"], seconds.get("beside", []))]
            ratio = f"{statistics.median(ratios):.2f}" if ratios else ""
            shares = [in_validation(Path(f"{folder}/{row.replace(' ', '-')}-{name}-0")) for name in checkouts]
            cells = [f"{statistics.median(times):.2f}" for times in seconds.values()]
            print("| " + " | ".join([row, *cells, ratio, ", ".join(filter(None, shares))]) + " |", flush=True)
