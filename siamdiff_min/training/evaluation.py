"""Held-out samples: each is measured exactly once, by any number of processes."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import is_dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Subset

from ..files import SiamDiffError, printable, write_rows
from ..machine import no_memory_left
from ..pretraining.held_out import HeldOutNoise
from ..statistics import Mean
from .loader import load_batches, valid_keys
from .metrics_file import in_order
from .ranks import Ranks, Record, totals

MOST_KEPT = 1 << 30  # bytes of `Kept`
DRAWS = 4  # of the noise of a held-out protein; docs/outputs.md has what chance is left, and what they cost


@contextmanager
def out_of_memory(names: Sequence[str], batch) -> Iterator[None]:
    """Turn the error of torch, if memory runs out, into a SiamDiffError that names the proteins of a batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not no_memory_left(error):
            raise
        size = getattr(batch, "protein", batch).num_residues
        problem = f"memory ran out with {size:,} residues in a batch: {printable(', '.join(names)):.500}"
        help = "Take a smaller --batch-size (--global-batch-size keeps the result), crops by --max-length"
        raise SiamDiffError(f"{problem}. {help} or --max-residues, or leave it out") from error


@torch.no_grad()
def each_batch(model: nn.Module, batches: list[list], data, config: Namespace, ranks: Ranks, measure: Callable) -> list:
    """Call `measure(number of the batch, batch, names)` for the batches of this process; return its results.

    `batches` are lists of keys of `data`. The processes take them in turn: so each comes exactly once, however many
    processes there are.
    """
    if ranks.world > 1:  # the running statistics of batch norm are rank 0's, here and in checkpoints
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    mine = range(ranks.rank, len(batches), ranks.world)
    results = []
    model.eval()
    loaded = load_batches(data, [batches[b] for b in mine], config, ranks.device)
    with closing(loaded), ranks.bar(mine, desc="held out", leave=False) as bar:
        for b, (batch, names) in zip(bar, loaded):
            autocast = torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16")
            with out_of_memory(names, batch), autocast:
                results.append(measure(b, batch.to(ranks.device, non_blocking=True), names))
    model.train()
    return results


class Kept:
    """What does not depend on weights of held-out proteins: their second views, noise, edges and sorted links.

    It is the same in every validation of a stage. On a CPU it is kept, in at most MOST_KEPT bytes.
    """

    def __init__(self, schedule=None):
        self.schedule = schedule  # of the stage
        self.made: dict[tuple[int, int], list] = {}  # of a batch and draw
        self.room = MOST_KEPT

    def add(self, batch: int, draw: int, generator: HeldOutNoise) -> None:
        """Keep what was made, if there is room."""
        if generator.device.type != "cpu" or (batch, draw) in self.made:
            return
        size = bytes_of(generator.made)
        if 0 < size <= self.room:
            self.made[batch, draw] = generator.made
            self.room -= size


def bytes_of(x) -> int:
    """Of all tensors in lists, dicts and dataclasses."""
    if isinstance(x, torch.Tensor):
        return x.nbytes
    if is_dataclass(x):
        x = vars(x)
    values = x.values() if isinstance(x, dict) else x
    return sum(map(bytes_of, values)) if isinstance(x, (dict, list, tuple)) else 0


def evaluate(
    objective: nn.Module,
    data: Subset,
    config: Namespace,
    ranks: Ranks,
    file: Path | None = None,
    kept: Kept | None = None,
) -> dict[str, float]:
    """The means of the loss and of all logs over the held-out proteins, whose number is `samples`.

    Every protein is measured alone (or with as many others as `objective.compared` says), with DRAWS draws of the noise
    of the current stage. The noise follows from its name alone (`HeldOutNoise`): neither --seed, --batch-size, the
    method nor the number of processes changes it. With `file` the losses of every protein and draw are written there.
    `kept` goes from one validation of these data to the next.

    Empty if nothing is held out.
    """
    # Each batch is a protein, or as many as are compared with one another.
    batches = valid_keys(data.indices, getattr(objective, "compared", 1))

    kept = kept or Kept()
    schedule = getattr(objective, "schedule", None)
    if kept.schedule is not schedule:  # another stage
        kept.__init__(schedule)

    def measure(b: int, batch, names: list[str]) -> list[tuple]:
        found = []
        protein = ",".join(names)
        for draw in range(DRAWS):
            generator = HeldOutNoise(ranks.device, protein, draw, DRAWS, kept.made.get((b, draw)))
            loss, logs = objective(batch, generator)
            kept.add(b, draw, generator)
            record = logs | {"loss": Mean.of(loss.double().expand(len(names)))}
            found.append(((b, draw, protein), record))
        return found

    # The means over everything that was measured, on all processes.
    of_batches = each_batch(objective, batches, data.dataset, config, ranks, measure)
    measured = [one for of_batch in of_batches for one in of_batch]
    found = totals([record for _, record in measured], ranks)
    values = {name: statistic.value(total) for name, (statistic, total) in found.items()}

    # And a row for each protein and draw. The values of baselines are those of the best constant of all proteins.
    if file is not None:
        ordered = [name for name, _ in in_order(values)]
        titles = ordered + [name for name in values if name not in ordered]
        rows = [(*place, *shares(record, titles, found)) for place, record in measured]
        rows = sorted(ranks.all_gather(rows))
        if ranks.rank == 0:
            write_rows(file, [("protein", "draw", *titles), *((name, draw, *cells) for _, draw, name, *cells in rows)])
    return {"samples": len(data.indices), **values} if values else {}


def shares(record: Record, titles: Sequence[str], found: Mapping) -> list[str]:
    """The values of one draw of noise by their titles; "" if one was not measured."""
    cells = []
    for title in titles:
        statistic, total = found[title]
        value = statistic.share(record[title].sums.double().tolist(), total) if title in record else math.nan
        cells.append("" if math.isnan(value) else f"{value:.9g}")
    return cells
