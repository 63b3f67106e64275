"""How many draws of noise a held-out protein needs: what chance is left in a validation, and what it costs.

    python -m benchmarks.held_out_draws RUN --repeats 8

RUN is a folder of pre-training with a checkpoint. For 1, 2, 4 and 8 draws per protein, stratified over t as in a
validation, the held-out proteins are measured several times, each time with other noise. Prints the standard deviation
of the mean losses over these repeats, beside their standard error over proteins, and the CPU seconds of a validation.
"""

import argparse
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch

from siamdiff_min.pretrain import build_objective, open_data
from siamdiff_min.pretraining.held_out import HeldOutNoise
from siamdiff_min.training import checkpoint
from siamdiff_min.training.ranks import Ranks

LOSSES = ("structure_loss", "sequence_loss")


@torch.no_grad()
def measured(objective, data, draws: int, repeat: int) -> np.ndarray:
    """The losses of every protein (P, 2), means over its draws."""
    found = []
    for index in data.indices:
        batch, (name,) = data.dataset.collate([data.dataset[0, index]])
        values = []
        for draw in range(draws):
            _, logs = objective(batch, HeldOutNoise("cpu", f"{name} repeat {repeat}", draw, draws))
            values.append([logs[loss].value(logs[loss].sums.tolist()) for loss in LOSSES])
        found.append(np.mean(values, 0))
    return np.array(found)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args(argv)

    _, state = checkpoint.latest(args.run)
    config = Namespace(**{**state["config"], "device": "cpu", "init_from": None})
    ranks = Ranks(torch.device("cpu"))
    _, data = open_data(config, ranks)
    objective = build_objective(config, ranks)
    objective.load_state_dict(state["objective"])
    objective.eval()
    for stage in (1, 2):
        objective.set_stage(stage)
        for draws in (1, 2, 4, 8):
            start = time.process_time()
            values = np.array([measured(objective, data, draws, repeat) for repeat in range(args.repeats)])
            seconds = (time.process_time() - start) / args.repeats
            chance = values.mean(1).std(0, ddof=1)
            proteins = values.mean(0).std(0, ddof=1) / len(data.indices) ** 0.5
            of_losses = "  ".join(f"{loss} {a:.4f} ({b:.4f})" for loss, a, b in zip(LOSSES, chance, proteins))
            print(f"stage {stage}  draws {draws}  {of_losses}  {seconds:.2f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
