"""What the demo run of the README reaches on proteins it has not seen, next to the trivial predictors.

    python -m benchmarks.demo [--level atom residue] [--method siamdiff diffpret] [--out runs/demo]

Runs `train.py --size tiny` on the bundled structures for every level and method (runs that are complete in --out are
not repeated), then prints a table in markdown: training losses over the first 20 steps of a stage -> losses of the
weights at its end on the held-out proteins. Trivial predictors, on the same held-out crops with the same noise: no
noise at all for the structure loss, the most frequent residue type of the training chains for the sequence accuracy.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from siamdiff_min.data.build import open_store
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.training import checkpoint, engine
from siamdiff_min.training.config import PretrainConfig
from siamdiff_min.training.ranks import launch

ROOT = Path(__file__).parent.parent
RANKS = launch("cpu")


DRAWS = 8  # crops, masks and noise of every held-out protein


def run(config: PretrainConfig) -> tuple[list[dict], float]:
    """The lines of metrics.jsonl of one complete run, and the minutes it took."""
    out = Path(config.out)
    command = [sys.executable, "train.py", "--size", "tiny", "--method", config.method, "--level", config.level]
    command += ["--keep", "99", "--resume", "never", "--out", str(out.resolve())]
    if not (out / "minutes.json").exists():
        started = time.perf_counter()
        subprocess.run(
            [*command, "--keep", "99", "--resume", "never", "--out", str(out.resolve())], cwd=ROOT, check=True
        )
        (out / "minutes.json").write_text(json.dumps((time.perf_counter() - started) / 60))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return lines, json.loads((out / "minutes.json").read_text())


def build(config: PretrainConfig) -> torch.nn.Module:
    return OBJECTIVES[config.method](ENCODERS[config.encoder](config.level, config.size), config.level)


def evaluate(objective: torch.nn.Module, config: PretrainConfig, stage: int, store, valid: list[int]) -> dict:
    """Means over DRAWS draws of every held-out protein."""
    objective.set_stage(stage)
    means = []
    for seed in range(DRAWS):
        crops = Crops(store, config.max_length, seed)
        means.append(engine.evaluate(objective, (crops, collate, valid), replace(config, seed=seed), RANKS))
    return {name: sum(m[name] for m in means) / DRAWS for name in means[0]}


def rows(config: PretrainConfig) -> list[str]:
    """One row of the table for each stage."""
    lines, minutes = run(config)
    store = open_store()
    train, valid = split(store, config.valid_fraction)
    trained, silent = build(config), build(config)
    silent.edge_scores = lambda a, graph, pos: pos.new_zeros(graph.num_edges)  # predicts no noise at all
    common = torch.cat([store[i].residue_type for i in train]).bincount().argmax()
    share = float((torch.cat([store[i].residue_type for i in valid]) == common).float().mean())
    table = []
    for stage in (1, 2):
        last = max(line["step"] for line in lines if line["stage"] == stage and line["split"] == "train")
        weights = checkpoint.load(Path(config.out) / f"checkpoint-{last:09d}.pt")["objective"]
        trained.load_state_dict(weights)
        start = next(line for line in lines if line["stage"] == stage and line["split"] == "train")
        end = evaluate(trained, config, stage, store, valid)
        no_noise = evaluate(silent, config, stage, store, valid)["structure_loss"]
        cells = [
            config.method,
            config.level,
            str(stage),
            f"{start['structure_loss']:.2f} -> {end['structure_loss']:.2f} ({no_noise:.2f})",
            f"{start['sequence_loss']:.2f} -> {end['sequence_loss']:.2f}",
            f"{end['sequence_accuracy']:.1%} ({share:.1%})",
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
