"""Held-out samples: each is measured exactly once, by any number of processes."""

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Subset

from ..files import SiamDiffError, printable
from ..machine import no_memory_left
from ..statistics import Mean
from .batches import seed_of, valid_keys
from .loader import load_batches
from .ranks import Ranks, Record, means


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
def held_out(model: nn.Module, data: Subset, config: Namespace, ranks: Ranks, measure: Callable) -> list:
    """Call `measure(number of the batch, batch, names)` for the held-out batches of this process; return its results.

    The processes take the batches in turn. So every sample comes exactly once, however many processes there are.
    """
    if ranks.world > 1:  # the running statistics of batch norm are rank 0's, here and in checkpoints
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    batches = valid_keys(data.indices, config.batch_size)
    mine, results = range(ranks.rank, len(batches), ranks.world), []
    model.eval()
    loaded = load_batches(data.dataset, [batches[b] for b in mine], config, ranks.device)
    with closing(loaded), ranks.bar(mine, desc="held out", leave=False) as bar:
        for b, (batch, names) in zip(bar, loaded):
            autocast = torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16")
            with out_of_memory(names, batch), autocast:
                results.append(measure(b, batch.to(ranks.device, non_blocking=True), names))
    model.train()
    return results


def evaluate(objective: nn.Module, data: Subset, config: Namespace, ranks: Ranks) -> dict[str, float]:
    """The means of the loss and of all logs over the held-out proteins, whose number is `samples`.

    Noise is drawn as in the current stage. Empty if nothing is held out.
    """
    generator = torch.Generator(ranks.device)

    def measure(b: int, batch, names: list[str]) -> Record:
        generator.manual_seed(seed_of(config.seed, 0, 0, 1 + b))  # four numbers: not the seed of any training step
        loss, logs = objective(batch, generator)
        return logs | {"loss": Mean.of(loss.double().expand(len(names)))}

    values = means(held_out(objective, data, config, ranks, measure), ranks)
    return {"samples": len(data.indices), **values} if values else {}
