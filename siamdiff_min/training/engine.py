"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

`train` is the loop, in the order in which things happen. A global batch is cut into parts of `batch_size`. Part p of
step s draws its noise from a generator seeded with (seed, s, p), whichever process computes it. So the options alone
determine a run. Loader workers and interruptions change nothing. The number of processes changes rounding and batch
norm: on CPUs a process normalises each of its parts alone, and the running statistics are those of rank 0; on GPUs the
processes normalise their parts together (SyncBatchNorm).
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..files import ConfigError, SiamDiffError, printable, write_file
from ..statistics import Mean
from .evaluation import out_of_memory
from .loader import load_batches, seed_of, train_keys
from .metrics_file import lines_before
from .ranks import Ranks, catch_signals
from .run import Run, Step


def begin(run: Run) -> None:
    """Go on from the checkpoint, if there is one; say what is done in --out; connect the processes. As `Run`."""
    ranks = run.ranks
    run.restore()
    if ranks.rank == 0:
        written = lines_before(run.metrics, run.step)  # without the lines after the checkpoint
        run.describe()
        write_file(run.metrics, written)
    run.bar = ranks.bar(total=run.last_step, initial=run.step, unit="step")
    run.start = time.perf_counter()
    run.cpu_start = time.process_time()
    if not run.alone:
        # DDP reorders its buckets after step 1, unless find_unused_parameters is set. With three or more processes
        # that changes the last bit, and a resumed run would differ.
        exact = ranks.device.type == "cpu" and ranks.world > 2
        run.model = DistributedDataParallel(run.objective, find_unused_parameters=run.leaves_out or exact)


def train(run: Run, validate: Callable[[float], dict[str, float]]) -> int:
    """Minimise the objective of `run`, which `begin` has made ready. Checkpoints and metrics.jsonl go to --out.

    `validate` is called with the number of epochs done: after each epoch, or each --valid-every of them, at the end of
    a stage, at --max-steps and after --max-minutes. Its measures are written down, with the number of `samples` they
    are over.

    Returns 0 when the run is complete. After a signal it writes a checkpoint and returns the signal's number, even if
    the signal came during the last validation or save. Raises SiamDiffError on a non-finite loss, and WriteError.
    """
    config = run.config
    ranks = run.ranks
    first = run.step
    valid_every = getattr(config, "valid_every", 1)  # epochs; fine-tuning has no other
    steps = {}  # since the last line of the training: number -> what was measured
    stop = 0  # the number of a signal
    generator = torch.Generator(ranks.device)
    keys = train_keys(config, run.data.indices, range(run.step, run.last_step), ranks.rank, ranks.world)
    loaded = load_batches(run.data.dataset, keys, config, ranks.device)
    with closing(loaded) as batches, catch_signals() as caught, run.bar:
        while run.step < run.last_step and not stop:  # Alg. 1, line 1
            # epoch, stage and learning rate of this step
            run.prepare()

            # forward, backward, and one step of the optimizer
            if not steps:
                since = time.perf_counter()
            steps[run.step + 1] = train_step(run, batches, generator)
            run.step += 1
            run.bar.update()

            # ask all processes whether a signal came
            stop = max(ranks.all_gather(caught or [0]))

            # say once how long it will take (without validations and checkpoints), and watch the clock
            seconds = time.perf_counter() - run.start
            left = run.last_step - run.step
            if run.step - first == 10 and left:
                estimate = run.bar.format_interval(seconds / 10 * left)
                ranks.say(f"estimate    {estimate} for the {left:,} steps that are left")
            if config.max_minutes and max(ranks.all_gather([seconds])) > 60 * config.max_minutes:
                run.last_step = run.step

            # what is due after this step
            epoch_ends = run.step % run.per_epoch == 0
            stage_ends = run.step in (run.stage_2_begins, run.last_step)
            validating = stage_ends or run.step % (valid_every * run.per_epoch) == 0
            saving = epoch_ends or stage_ends or run.step % config.save_every == 0 or stop
            logging = saving or run.step % config.log_every == 0

            # a line of the training; here the host waits for the device
            if logging:
                check_finite(steps, ranks)
                run.log_train(steps, since)
                steps = {}

            # a line of the validation, and at the end of an epoch the learning rate that follows from it
            measured = {}
            if validating:
                measured = validate(run.step / run.per_epoch)
                run.log("valid", measured)
            if epoch_ends:
                value = (measured | {"loss": run.epoch_loss}).get(run.measure, math.nan)
                if math.isfinite(value):  # undefined if all samples have one label
                    run.scheduler.step(value)
                run.epoch_loss = 0.0

            # stage 2 is validated before its first step too, with the batch norm of stage 1
            if run.step == run.stage_2_begins < run.planned_steps:
                run.prepare()
                run.log("valid", validate(run.step / run.per_epoch))

            # a checkpoint, from which the run goes on
            if saving:
                run.save()
        # A signal may have come since, during the validation or the save. All wait here for rank 0.
        stop = max(ranks.all_gather(caught or [stop]))
    if stop:
        name = signal.Signals(stop).name
        ranks.say(f"stopped by {name} after step {run.step}; the same command continues from there")
    return stop


def train_step(run: Run, batches: Iterator, generator: torch.Generator) -> Step:
    """One step of the optimizer. The gradients of our parts of the global batch are added up."""
    config = run.config
    device = run.ranks.device
    parts = range(run.ranks.rank, config.global_batch_size // config.batch_size, run.ranks.world)
    done = []
    run.optimizer.zero_grad(set_to_none=True)
    for part in parts:
        batch, names = next(batches)
        generator.manual_seed(seed_of(config.seed, run.step, part))
        torch.manual_seed(seed_of(config.seed, run.step, part, 0, 1))  # dropout; with another seed than the noise has

        # Processes exchange their gradients with the last part.
        synchronous = nullcontext() if part == parts[-1] or run.alone else run.model.no_sync()
        with out_of_memory(names, batch), synchronous:
            with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                loss, logs = run.model(batch.to(device, non_blocking=True), generator)
            (loss / len(parts)).backward()
        done.append((names, logs | {"loss": Mean.of(loss.double().expand(len(names)))}))

    # A parameter without a gradient stays as it is, which may be meant.
    gradients = {name: p.grad for name, p in run.objective.named_parameters() if p.requires_grad}
    trained = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    missing = [name for name in gradients if name not in trained]
    if missing and not run.leaves_out:
        problem = f"the loss gives no gradient to {', '.join(missing):.500}"
        if not run.alone:  # each process waits for the gradients of the others
            raise ConfigError(f"{problem}; with several processes it must, or they need requires_grad_(False)")
        run.ranks.say(f"warning     {problem}: it stays as it is")
        run.leaves_out = True  # said once

    norms = torch.stack(torch._foreach_norm([*trained.values()]))
    if config.clip:
        nn.utils.clip_grads_with_norm_(run.objective.parameters(), config.clip, norms.norm())
    run.optimizer.step()  # Alg. 1, line 12
    return Step(done, [*trained], norms)


def check_finite(steps: dict[int, Step], ranks: Ranks) -> None:
    """Raise SiamDiffError, on all ranks, that names the proteins of the first step that went wrong."""
    bad = ranks.all_gather([number for number, step in steps.items() if not step.finite()])
    if not bad:
        return
    first = min(bad)
    step = steps[first]

    # The loss of each part of that step, on all ranks; those that are not finite, if any.
    mine = []
    for names, logs in step.parts:
        total = float(logs["loss"].sums[0])
        mine.append((names, total / len(names)))
    losses = ranks.all_gather(mine)
    infinite = [part for part in losses if not math.isfinite(part[1])]

    if infinite:
        problem = "the loss is not finite"
        mend = "Lower --lr, or leave them out"
    else:
        parameters = [name for name, finite in zip(step.trained, step.norms.isfinite()) if not finite]
        problem = f"the loss is finite, but not the gradient of {', '.join(parameters):.500}"
        mend = "Look for a square root, a norm, or a division at zero in what is new; or leave the proteins out"
    listing = "; ".join(f"loss {loss:.4g}: {', '.join(map(printable, names))}" for names, loss in infinite or losses)
    failed = SiamDiffError(f"step {first}: {problem}. Proteins: {listing}. {mend}")
    failed.everywhere = True
    raise failed
