"""The speedrun: how good are frozen features for how many CPU minutes of pre-training? Runs the record.

    python -m benchmarks.speedrun TRAIN PROBES [--seeds 0 1] [--out runs/speedrun] [OPTIONS of train.py]

TRAIN is a folder of structures, PROBES one with probe.tsv (`benchmarks.probe`), of whose test families nothing is read.
For every seed train.py runs once with the options of RECORD, on one thread. Other options are handed to it and replace
those: that is how a candidate is tried. Prints, and adds to OUT/records.tsv, the CPU minutes of train.py and the mean
skill of the six probes on validation families. The table of records is in studies/2026-11-benchmarks/records.md.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.probe import KIND

RECORD = (
    "--plugin benchmarks/nearly_clean.py --method diffpret-clean --level residue --size tiny --batch-size 4 --lr 2e-3 "
    "--lr-decay cosine --epochs 4 --threads 1 --num-workers 0 --valid-fraction 0"
)
PROBES = [name for name in KIND if name != "retrieval"]


def cpu_minutes() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the status of the first command that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun", description=__doc__.splitlines()[0])
    parser.add_argument("train", help="folder of structures")
    parser.add_argument("probes", help="folder with probe.tsv")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("runs/speedrun"))
    args, options = parser.parse_known_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        run, before = args.out / f"seed-{seed}", cpu_minutes()
        command = ["train.py", *RECORD.split(), *options, "--data", args.train, "--seed", str(seed)]
        if status := subprocess.call([sys.executable, *command, "--out", str(run), "--resume", "never"]):
            return status
        minutes = cpu_minutes() - before
        probe = ["-m", "benchmarks.probe", args.probes, str(run / "encoder.pt"), "--valid", "--out", str(args.out)]
        if status := subprocess.call([sys.executable, *probe]):
            return status
        with np.load(args.out / f"{run.name}.npz", allow_pickle=False) as kept:
            values = {name: float(kept[f"{name}/100/val"]) for name in PROBES if f"{name}/100/val" in kept.files}
            skills = [(v - c) / (1 - c) for p, v in values.items() for c in [float(kept[f"{p}/100/constant"])]]
        cells = [f"{seed}", f"{minutes:.1f}", f"{np.mean(skills):.3f}", *(f"{v:.3f}" for v in values.values())]
        with open(args.out / "records.tsv", "a", encoding="utf-8") as file:
            print(*cells, " ".join(options), sep="\t", file=file)
        print(f"seed {seed}: {minutes:.1f} CPU minutes, mean skill {np.mean(skills):.3f} on validation families")
    return 0


if __name__ == "__main__":
    sys.exit(main())
