"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

Read `train`, the last function, first. A global batch is cut into parts of `batch_size`. Part p of step s draws its
noise from a generator seeded with (seed, s, p), whichever process computes it. So the options alone determine a run.
Loader workers and interruptions change nothing. The number of processes changes rounding and batch norm: on CPUs a
process normalises each of its parts alone, and the running statistics are those of rank 0; on GPUs the processes
normalise their parts together (SyncBatchNorm).
"""

import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext

import torch
import torch.distributed as dist
from torch import nn

from ..statistics import Mean
from .batches import Data, seed_of, train_keys, valid_keys
from .loader import load_batches
from .ranks import Ranks, Record, catch_signals, means
from .run import Run, Step


@torch.no_grad()
def held_out(model: nn.Module, data: Data, config: Namespace, ranks: Ranks, measure: Callable) -> list:
    """Call `measure(number of the batch, batch, names)` for the held-out batches of this process; return its results.

    The processes take the batches in turn. So every sample comes exactly once, however many processes there are.
    """
    if ranks.world > 1:  # the running statistics of batch norm are rank 0's, here and in checkpoints
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
    batches = valid_keys(data.indices, config.batch_size)
    mine, results = range(ranks.rank, len(batches), ranks.world), []
    model.eval()
    loaded = load_batches(data, [batches[b] for b in mine], config, ranks.device)
    with closing(loaded), ranks.bar(mine, desc="held out", leave=False) as bar:
        for b, (batch, names) in zip(bar, loaded):
            with torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                results.append(measure(b, batch.to(ranks.device, non_blocking=True), names))
    model.train()
    return results


def evaluate(objective: nn.Module, data: Data, config: Namespace, ranks: Ranks) -> dict[str, float]:
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


def minimise(run: Run, batches: Iterator, generator: torch.Generator) -> Step:
    """One step of the optimizer. The gradients of our parts of the global batch are added up."""
    config, device = run.config, run.ranks.device
    parts = range(run.ranks.rank, config.global_batch_size // config.batch_size, run.ranks.world)
    done = []
    run.optimizer.zero_grad(set_to_none=True)
    for part in parts:
        batch, names = next(batches)
        generator.manual_seed(seed_of(config.seed, run.step, part))
        torch.manual_seed(seed_of(config.seed, run.step, part, 0, 1))  # dropout; with another seed than the noise has
        with nullcontext() if part == parts[-1] or run.model is run.objective else run.model.no_sync():
            with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                loss, logs = run.model(batch.to(device, non_blocking=True), generator)
            (loss / len(parts)).backward()
        done.append((names, logs | {"loss": Mean.of(loss.double().expand(len(names)))}))
    norm = nn.utils.get_total_norm([p.grad for p in run.objective.parameters() if p.grad is not None])
    run.optimizer.step()  # Alg. 1, line 12
    return Step(done, norm + sum(logs["loss"].sums[0] for _, logs in done))


def train(run: Run, validate: Callable[[float], dict[str, float]]) -> int:
    """Minimise the objective of `run`. Checkpoints and metrics.jsonl go to --out.

    `validate` is called with the number of epochs done, after each epoch, at --max-steps and after --max-minutes. Its
    measures are written down, with the number of `samples` they are over.

    Returns 0 when the run is complete. After a signal it writes a checkpoint and returns the signal's number, even if
    the signal came during the last validation or save. Raises SiamDiffError on a non-finite loss, and WriteError.
    """
    config, ranks = run.config, run.ranks
    keys = train_keys(config, run.data.indices, range(run.step, run.last_step), ranks.rank, ranks.world)
    loaded, generator, stop = load_batches(run.data, keys, config, ranks.device), torch.Generator(ranks.device), 0
    with closing(loaded) as batches, catch_signals() as caught, run.bar:
        while run.step < run.last_step and not stop:  # Alg. 1, line 1
            run.begin_step()
            run.end_step(minimise(run, batches, generator))
            stop = max(ranks.gather(caught or [0]))
            run.watch_time()
            saving = run.ends_epoch() or run.step % config.save_every == 0 or stop
            if saving or run.step % config.log_every == 0:
                run.log_train()
            if run.ends_epoch():
                run.end_epoch(run.log_valid(validate(run.step / run.per_epoch)))
            if run.step == run.stage_2_begins < run.planned_steps:  # validated at once, with the batch norm of stage 1
                run.begin_step()
                run.log_valid(validate(run.step / run.per_epoch))
            if saving:
                run.save()
        # A signal may have come since, during the validation or the save. All wait here for rank 0.
        stop = max(ranks.gather(caught or [stop]))
    if stop:
        name = signal.Signals(stop).name
        ranks.say(f"stopped by {name} after step {run.step}; the same command continues from there")
    return stop
