"""Proteins per second of 1, 2, ... processes with the same batch each.

    python -m benchmarks.ddp [--ranks 1 2] [--steps 20] [--repeats 3] [-- further options of train.py]

Runs `train.py` through torchrun on the bundled structures, one thread per process, and reads the rate of the last
steps from metrics.jsonl; the numbers of processes are interleaved. Efficiency is the rate per process over that of the
first number of processes. Memory is the peak of rank 0.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("options", nargs="*", help="options of train.py, after --")
    args = parser.parse_args()
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


if __name__ == "__main__":
    main()
