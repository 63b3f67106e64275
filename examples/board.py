"""metrics.jsonl for TensorBoard."""

import json

from torch.utils.tensorboard import SummaryWriter

with SummaryWriter("board") as writer, open("metrics.jsonl") as file:
    for line in map(json.loads, file):
        for name in line.keys() - {"step", "split"}:
            writer.add_scalar(f"{line['split']}/{name}", line[name], line["step"])
