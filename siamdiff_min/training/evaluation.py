"""Held-out samples: each is measured exactly once, by any number of processes."""

import math
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Subset

from ..files import SiamDiffError, printable, write_rows
from ..machine import no_memory_left
from ..pretraining.held_out import HeldOutNoise
from ..statistics import Mean
from .batches import valid_keys
from .loader import load_batches
from .metrics_file import in_order
from .ranks import Ranks, Record, totals

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


def evaluate(
    objective: nn.Module, data: Subset, config: Namespace, ranks: Ranks, file: Path | None = None
) -> dict[str, float]:
    """The means of the loss and of all logs over the held-out proteins, whose number is `samples`.

    Every protein is measured alone (or with as many others as `objective.compared` says), with DRAWS draws of the noise
    of the current stage. The noise follows from its name alone (`HeldOutNoise`): neither --seed, --batch-size, the
    method nor the number of processes changes it. With `file` the losses of every protein and draw are written there.

    Empty if nothing is held out.
    """
    # Each batch is a protein, or as many as are compared with one another.
    batches = valid_keys(data.indices, getattr(objective, "compared", 1))

    def measure(b: int, batch, names: list[str]) -> list[Measured]:
        found = []
        for draw in range(DRAWS):
            generator = HeldOutNoise(ranks.device, ",".join(names), draw, DRAWS)
            loss, logs = objective(batch, generator)
            record = logs | {"loss": Mean.of(loss.double().expand(len(names)))}
            found.append(Measured(b, ",".join(names), draw, record))
        return found

    # The means over everything that was measured, on all processes.
    of_batches = each_batch(objective, batches, data.dataset, config, ranks, measure)
    measured = [one for of_batch in of_batches for one in of_batch]
    found = totals([one.record for one in measured], ranks)
    values = {name: statistic.value(total) for name, (statistic, total) in found.items()}

    # And a row for each protein and draw.
    if file is not None:
        rows = ranks.all_gather([one.row(found) for one in measured])
        if ranks.rank == 0:
            measures = [name for name, _ in in_order(values)]
            titles = measures + [name for name in values if name not in measures]
            write_rows(file, [("protein", "draw", *titles), *(as_cells(row, titles) for row in sorted(rows))])
    return {"samples": len(data.indices), **values} if values else {}


class Measured(NamedTuple):
    """What one draw of noise gave for one held-out protein."""

    batch: int
    protein: str
    draw: int
    record: Record

    def row(self, found: Mapping) -> tuple[int, int, str, dict[str, float]]:
        """Its place, its name, and its values; those of constants are of the best constant of all proteins."""
        values = {}
        for name, log in self.record.items():
            if name in found:
                statistic, total = found[name]
                values[name] = statistic.share(log.sums.double().tolist(), total)
        return self.batch, self.draw, self.protein, values


def as_cells(row: tuple, titles: Sequence[str]) -> list:
    """A row of valid.tsv; the cell of what was not measured is empty."""
    _, draw, protein, values = row
    cells = [values.get(title, math.nan) for title in titles]
    return [protein, draw, *("" if math.isnan(cell) else f"{cell:.9g}" for cell in cells)]
