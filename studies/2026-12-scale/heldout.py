"""Held-out losses of pre-training runs: every checkpoint, on every folder of structures, with the same noise.

    python -m studies.2026-12-scale.heldout results/heldout.tsv --data v4=V4/val old=OLD/val --runs RUN...

A RUN is a folder of train.py with its checkpoints; or its encoder.pt, which has no structure head, so that loss is nan.
A row is run, step, data, number of proteins, and the means of the structure loss, of the sequence loss and of the
accuracy of types. Rows that are there already are not made again.
"""

import argparse
import csv
import importlib
import json
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import Subset

from siamdiff_min import pretrain as train
from siamdiff_min.data.crops import Crops
from siamdiff_min.encoders.weights import load_encoder_file, load_weights, read_weights
from siamdiff_min.files import console
from siamdiff_min.training import checkpoint, evaluation
from siamdiff_min.training.ranks import launch

COLUMNS = ("run", "step", "data", "proteins", "structure_loss", "sequence_loss", "sequence_accuracy")


def states(run: Path) -> Iterator[tuple[str, int, dict, dict]]:
    """Name of a run, step, options and weights of its objective, as far as they are known."""
    if run.is_file():
        content = load_encoder_file(run)
        parts = {"encoder": content["state"], "seq_mlp": content["seq_mlp"]}
        step = json.loads((run.parent / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        yield run.parent.name, step, content["config"], {f"{k}.{n}": x for k in parts for n, x in parts[k].items()}
        return
    for path in sorted(checkpoint.checkpoints(run)):
        state = read_weights(path)
        yield run.name, state["step"], state["config"], state["objective"]


def main(argv: list[str] | None = None) -> None:
    """Score the runs of one command line."""
    program = "python -m studies.2026-12-scale.heldout"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--runs", nargs="+", type=Path, required=True)
    args = parser.parse_args(argv)
    importlib.import_module("studies.2026-12-scale.plugin")  # the objectives of this study
    done = set()
    if args.out.is_file():
        with open(args.out, encoding="utf-8", newline="") as file:
            done = {(row["run"], row["step"], row["data"]) for row in csv.DictReader(file, delimiter="\t")}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with launch("cpu", 1) as ranks, open(args.out, "a", encoding="utf-8") as out:
        if not done:
            print(*COLUMNS, sep="\t", file=out)
        stores = {}
        for name, folder in (item.split("=", 1) for item in args.data):
            stores[name] = ranks.first(lambda folder=folder: train.open_store(folder, None, 1))
        for run in args.runs:
            for run_name, step, options, state in states(run):
                names = [name for name in stores if (run_name, str(step), name) not in done]
                if not names:
                    continue
                config = Namespace(**options | {"init_from": None, "amp": "off", "seed": 0, "num_workers": 0})
                objective = train.build_objective(config, ranks)
                load_weights(objective, objective.state_dict() | state, str(run))
                for name in names:
                    data = Subset(Crops(stores[name], config.max_length, 0), range(len(stores[name])))
                    with torch.no_grad():
                        found = evaluation.evaluate(objective, data, config, ranks)
                    if run.is_file():
                        found["structure_loss"] = float("nan")
                    values = [f"{found[column]:.4f}" for column in COLUMNS[4:]]
                    print(run_name, step, name, len(stores[name]), *values, sep="\t", file=out, flush=True)


if __name__ == "__main__":
    with console():
        main()
