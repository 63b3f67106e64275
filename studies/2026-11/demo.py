"""What the demo runs of the README reach on proteins they have not seen, next to the trivial predictors.

    python -m studies.2026-11.demo [--level atom residue] [--method siamdiff ...] [--encoder gearnet] [--lr-decay none]
                             [--out runs/demo]

Runs `train.py --size tiny` on the bundled structures for every level and method (runs that are complete in --out are
not repeated), then prints two tables in markdown: of the methods with stages, and of the others. Training losses over
the first 20 steps -> measures of the last weights on the held-out proteins, over 8 draws. Trivial predictors are judged
on the same draws: no noise at all (structure, score matching, torsions), what is most frequent or the mean over one
draw of the training proteins (types, bins, distances), and chance (contrast).
"""

import argparse
import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import torch
from torch.utils.data import Subset

from siamdiff_min.data.crops import Crops, split
from siamdiff_min.data.store import open_store
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import read_weights
from siamdiff_min.pretraining import OBJECTIVES, STAGED
from siamdiff_min.training import checkpoint, evaluation
from siamdiff_min.training.config import pretrain_options, replace
from siamdiff_min.training.ranks import Ranks

ROOT = Path(__file__).parents[2]
RANKS = Ranks(torch.device("cpu"))


DEFAULTS = ("gearnet", "none")  # left out of the names of runs
DRAWS = 8  # crops, masks and noise of every held-out protein


def run(config: Namespace) -> tuple[list[dict], float]:
    """The lines of metrics.jsonl of one complete run, and the minutes it took."""
    out = Path(config.out)
    command = [sys.executable, "train.py", "--size", "tiny", "--method", config.method, "--level", config.level]
    command += ["--encoder", config.encoder, "--lr-decay", config.lr_decay]
    command += ["--keep", "99", "--resume", "never", "--out", str(out.resolve())]
    if not (out / "minutes.json").exists():
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True)
        (out / "minutes.json").write_text(json.dumps((time.perf_counter() - started) / 60))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return lines, json.loads((out / "minutes.json").read_text())


def build(config: Namespace) -> torch.nn.Module:
    return OBJECTIVES[config.method](ENCODERS[config.encoder](config.level, config.size), config.level)


def evaluate(objective: torch.nn.Module, config: Namespace, stage: int, store, valid: list[int]) -> dict:
    """Means over DRAWS draws of every held-out protein."""
    objective.set_stage(stage)
    means = []
    for seed in range(DRAWS):
        crops = Crops(store, config.max_length, seed)
        means.append(evaluation.evaluate(objective, Subset(crops, valid), replace(config, seed=seed), RANKS))
    return {name: sum(m[name] for m in means) / DRAWS for name in means[0]}


def rows(config: Namespace) -> list[str]:
    """One row of the table for each stage."""
    lines, minutes = run(config)
    store = open_store()
    train, valid = split(store, config.valid_fraction)
    trained = build(config)
    common = torch.cat([store[i].residue_type for i in train]).bincount().argmax()
    share = float((torch.cat([store[i].residue_type for i in valid]) == common).float().mean())
    table = []
    for stage in (1, 2):
        last = max(line["step"] for line in lines if line["stage"] == stage and line["split"] == "train")
        weights = read_weights(Path(config.out) / f"checkpoint-{last:09d}.pt")["objective"]
        trained.load_state_dict(weights)
        start = next(line for line in lines if line["stage"] == stage and line["split"] == "train")
        end = evaluate(trained, config, stage, store, valid)
        cells = [
            config.method if config.encoder == "gearnet" else f"{config.method}, {config.encoder}",
            config.level,
            str(stage),
            f"{start['structure_loss']:.2f} -> {end['structure_loss']:.2f} ({end['structure_loss_constant']:.2f})",
            f"{start['sequence_loss']:.2f} -> {end['sequence_loss']:.2f}",
            f"{end['sequence_accuracy']:.1%} ({share:.1%})",
            f"{minutes:.1f}",
        ]
        table.append("| " + " | ".join(cells) + " |")
    return table


class Constant(torch.nn.Module):
    """A head that says the same of everything."""

    def __init__(self, output: torch.Tensor):
        super().__init__()
        self.output = output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(x), -1)


def targets(part: torch.nn.Module, objective: torch.nn.Module, config: Namespace, store, indices) -> torch.Tensor:
    """What a part of a self-prediction objective has to predict, in one draw of the given proteins."""
    seen, loss = [], part.loss
    part.loss = lambda target, h: seen.append(target) or loss(target, h)
    evaluation.evaluate(objective, Subset(Crops(store, config.max_length, 99), indices), config, RANKS)
    part.loss = loss
    return torch.cat(seen)


def trivialise(objective: torch.nn.Module, config: Namespace, store, train: list[int]) -> None:
    """Replace the heads of a self-prediction objective by the most frequent class, or the mean, of training."""
    for part in (objective.types, objective.geometry):
        if part is not None:
            target = targets(part, objective, config, store, train)
            if target.dtype == torch.long:
                output = torch.nn.functional.one_hot(target.bincount().argmax(), part.mlp.layers[-1].out_features)
            else:
                output = target.mean()[None]
            part.mlp = Constant(output.float())


def other_row(config: Namespace) -> str:
    """The row of a method without stages."""
    lines, minutes = run(config)
    store = open_store()
    train, valid = split(store, config.valid_fraction)
    trained, trivial = build(config), build(config)
    trained.load_state_dict(read_weights(checkpoint.checkpoints(Path(config.out))[0])["objective"])
    end, start = evaluate(trained, config, 1, store, valid), next(x for x in lines if x["split"] == "train")
    if hasattr(trivial, "types"):
        trivialise(trivial, config, store, train)
        compared = evaluate(trivial, config, 1, store, valid)
    else:
        others = [2 * min(config.batch_size, len(valid) - i) - 1 for i in range(0, len(valid), config.batch_size)]
        chance = sum((n + 1) / n for n in others) / sum(n + 1 for n in others)  # 1 / n for each of n + 1 views
        compared = {"score_matching_loss": 1.0, "contrastive_accuracy": chance}
        compared["torsion_loss"] = end.get("torsion_loss_constant")
    cells = []
    for name in end:
        if name.endswith("accuracy"):
            cells.append(f"{name.replace('_', ' ')} {end[name]:.1%} ({compared[name]:.1%})")
        elif name == "distance_squared_error":
            cells.append(f"distance RMSE {end[name] ** 0.5:.2f} A ({compared[name] ** 0.5:.2f} A)")
        elif name in ("score_matching_loss", "torsion_loss"):
            cells.append(f"{name.replace('_', ' ')} {end[name]:.3f} ({compared[name]:.3f})")
    loss = f"{start['loss']:.2f} -> {end['loss']:.2f}"
    return f"| {config.method} | {config.level} | {loss} | {'; '.join(cells)} | {minutes:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", nargs="+", default=["atom", "residue"])
    parser.add_argument("--method", nargs="+", default=list(OBJECTIVES))
    parser.add_argument("--encoder", default="gearnet", choices=list(ENCODERS))
    parser.add_argument("--lr-decay", default="none", choices=("none", "cosine"))
    parser.add_argument("--out", default=str(ROOT / "runs/demo"))
    args = parser.parse_args()
    staged, others = [], []
    for level in args.level:
        for method in args.method:
            if (method, level) == ("torsional", "residue"):
                continue  # there is no such thing
            options = {"encoder": args.encoder, "lr_decay": args.lr_decay}
            out = "-".join([f"{args.out}/{method}-{level}", *(v for v in options.values() if v not in DEFAULTS)])
            argv = ["--method", method, "--level", level, "--size", "tiny", "--out", out, "--encoder", args.encoder]
            config = pretrain_options([*argv, "--lr-decay", args.lr_decay])
            if method in STAGED:
                staged += rows(config)
            else:
                others.append(other_row(config))
                print(others[-1], flush=True)
    titles = "method | level | stage | structure loss (no noise) | sequence loss | accuracy (commonest type) | minutes"
    for title, table in ((titles, staged), ("method | level | loss | held-out measure (trivial) | minutes", others)):
        if table:
            print(f"| {title} |\n|" + "---|" * (title.count("|") + 1))
            print("\n".join(table))


if __name__ == "__main__":
    main()
