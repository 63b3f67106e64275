"""Pre-training runs of the study: every method with the same number of steps, for several seeds, one after the other.

    nice python -m studies.2026-11.pretrain TRAIN [--out runs/pretrain] [--levels atom residue] [--seeds 0 1 2]

TRAIN is a folder of structures. Runs that are complete are passed over and an interrupted one goes on, so the same
command is given again until all are there; SIGTERM or Ctrl-C ends it after a checkpoint. Every run is
OUT/METHOD-LEVEL-SEED with its encoder.pt and metrics.jsonl.
"""

import argparse
import subprocess
import sys
from pathlib import Path

METHODS = "diffpret siamdiff residue-type score-matching multiview distance angle dihedral torsional".split()  # noqa: SIM905
STAGED = ("diffpret", "siamdiff")
FIXED = "--lr-decay cosine --threads 1 --num-workers 1 --valid-fraction 0.01 --log-every 50 --save-every 200 --keep 1"
BATCH = {"multiview": 8}  # it needs others to contrast with; 4 for the rest
EPOCHS = 18  # of batches of 4


def command(method: str, level: str, seed: int, size: str, train: str, out: str) -> list[str]:
    """The command line of one run; larger batches take more epochs, so that all take as many steps."""
    batch = BATCH.get(method, 4)
    epochs = EPOCHS * batch // 4
    shown = [str(epochs // 2), str(epochs - epochs // 2)] if method in STAGED else [str(epochs)]
    options = f"--method {method} --level {level} --seed {seed} --size {size} --batch-size {batch} {FIXED}".split()
    return [sys.executable, "train.py", *options, "--epochs", *shown, "--data", train, "--out", out]


def main(argv: list[str] | None = None) -> int:
    """Run what is missing; returns the status of the first run that failed or was stopped."""
    parser = argparse.ArgumentParser(prog="python -m studies.2026-11.pretrain", description=__doc__.splitlines()[0])
    parser.add_argument("train", help="folder of structures")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrain"))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--levels", nargs="+", choices=("atom", "residue"), default=["atom", "residue"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--size", default="tiny")
    args = parser.parse_args(argv)
    for seed in args.seeds:
        for level in args.levels:
            for method in args.methods:
                out = args.out / f"{method}-{level}-{args.size}-{seed}"
                if (out / "encoder.pt").exists() or (method, level) == ("torsional", "residue"):
                    continue
                status = subprocess.call(command(method, level, seed, args.size, args.train, str(out)))
                if status:
                    return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
