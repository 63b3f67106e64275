"""What the demo run of the README reaches on proteins it has not seen, next to the trivial predictors.

    python -m benchmarks.demo [--level atom residue] [--method siamdiff diffpret] [--out runs/demo]

Runs `train.py --size tiny` on the bundled structures for every level and method (runs that are complete in --out are
not repeated), then prints a table in markdown. Trivial predictors, on the same held-out crops with the same noise: no
noise at all for the structure loss, the most frequent residue type of the training chains for the sequence accuracy.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from siamdiff_min.data.build import open_store
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.training import engine
from siamdiff_min.training.config import PretrainConfig

ROOT = Path(__file__).parent.parent


def run(config: PretrainConfig) -> list[dict]:
    """The lines of metrics.jsonl of one complete run."""
    out = Path(config.out)
    command = [sys.executable, "train.py", "--size", "tiny", "--method", config.method, "--level", config.level]
    if not (out / "encoder.pt").exists():
        started = time.perf_counter()
        subprocess.run([*command, "--out", str(out.resolve())], cwd=ROOT, check=True)
        (out / "minutes.json").write_text(json.dumps((time.perf_counter() - started) / 60))
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def trivial(config: PretrainConfig) -> tuple[dict[int, float], float]:
    """Structure loss of predicting no noise, by stage; share of the commonest training type in the held-out crops."""
    store = open_store()
    train, valid = split(store, config.valid_fraction)
    crops = Crops(store, config.max_length, config.seed)
    objective = OBJECTIVES[config.method](ENCODERS["gearnet"](config.level, "tiny"), config.level)
    objective.edge_scores = lambda a, graph, pos: pos.new_zeros(graph.num_edges)
    ranks, losses = engine.launch("cpu"), {}
    for stage in (1, 2):
        objective.set_stage(stage)
        loader = lambda keys: DataLoader(crops, batch_sampler=keys, collate_fn=collate)  # noqa: E731
        losses[stage] = engine.evaluate(objective, loader, valid, config, ranks)["structure_loss"]
    common = torch.cat([store[i].residue_type for i in train]).bincount().argmax()
    held_out = torch.cat([crops[0, i][0].residue_type for i in valid])
    return losses, float((held_out == common).float().mean())


def rows(config: PretrainConfig) -> list[str]:
    """One row of the table for each stage."""
    lines, (no_noise, common) = run(config), trivial(config)
    minutes = json.loads((Path(config.out) / "minutes.json").read_text())
    table = []
    for stage in (1, 2):
        train = [x for x in lines if x["stage"] == stage and x["split"] == "train"]
        first, last = train[0], [x for x in lines if x["stage"] == stage and x["split"] == "valid"][-1]
        cells = [
            config.method,
            config.level,
            str(stage),
            f"{first['structure_loss']:.2f} -> {last['structure_loss']:.2f} ({no_noise[stage]:.2f})",
            f"{first['sequence_loss']:.2f} -> {last['sequence_loss']:.2f}",
            f"{last['sequence_accuracy']:.1%} ({common:.1%})",
            f"{minutes:.1f}",
        ]
        table.append("| " + " | ".join(cells) + " |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", nargs="+", default=["atom", "residue"])
    parser.add_argument("--method", nargs="+", default=["siamdiff", "diffpret"])
    parser.add_argument("--out", default=str(ROOT / "runs/demo"))
    args = parser.parse_args()
    table = []
    for level in args.level:
        for method in args.method:
            out = f"{args.out}/{method}-{level}"
            table += rows(PretrainConfig(method=method, level=level, size="tiny", out=out).resolve())
    print(
        "| method | level | stage | structure loss (no noise) | sequence loss | accuracy (commonest type) | minutes |"
    )
    print("|" + "---|" * 7)
    print("\n".join(table))


if __name__ == "__main__":
    main()
