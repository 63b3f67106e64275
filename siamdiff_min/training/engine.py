"""How training runs: one process or several under torchrun, any of them killed at any time and resumed.

`train` is the loop, read it from top to bottom. A global batch is cut into parts of `batch_size`; part p of step s
draws its noise from a generator seeded with (seed, s, p), whichever process computes it, so a run is determined by its
options alone: by neither the number of loader workers, nor interruptions, nor (up to rounding) the number of processes.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from tqdm import tqdm

from . import checkpoint
from .config import PretrainConfig

Record = dict[str, Tensor]  # name -> (total, count), float64 after `means`


@dataclass(frozen=True)
class Ranks:
    """The processes of this run and the one we are."""

    rank: int
    world: int
    device: torch.device
    store: dist.Store | None  # where processes meet before there are collectives

    def first(self, build: Callable):
        """`build()` on rank 0, then on the others: whatever it leaves on the disk is built once. No time limit."""
        if self.rank:
            self.store.wait(["built"], timedelta(days=30))
        result = build()
        if self.rank == 0 and self.store is not None:
            self.store.set("built", "yes")
        return result

    def say(self, text: str) -> None:
        """Print once."""
        if self.rank == 0:
            tqdm.write(text)
            sys.stdout.flush()


def launch(device: str = "auto", threads: int | None = None, deterministic: bool = False) -> Ranks:
    """Find out from torchrun's environment who we are; without it we are the only process."""
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    if threads:
        torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        chosen = torch.device("cuda", local)
        torch.cuda.set_device(chosen)
    else:
        chosen = torch.device("cpu")
    if world == 1:
        return Ranks(0, 1, chosen, None)
    store, rank, world = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun keeps the store, with its stale addresses
    return Ranks(rank, world, chosen, dist.PrefixStore(f"attempt_{attempt}", store))


def seed_of(*key: int) -> int:
    """A seed for torch from a few integers, well mixed."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1


def epoch_batches(num: int, size: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the global batches of one epoch (steps, size): a pure function of (seed, epoch).

    The incomplete last batch is dropped, unless it is the only one: then it is filled by going round.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num)
    steps = num // size
    return order[: steps * size].reshape(steps, size) if steps else np.resize(order, (1, size))


def train_keys(config: PretrainConfig, indices: Sequence[int], steps: range, rank: int, world: int) -> Iterator[list]:
    """For every part of every step that is ours, the keys (epoch, index) of its proteins."""
    per_epoch = max(1, len(indices) // config.global_batch_size)
    epoch, batches = -1, None
    for step in steps:
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            batches = epoch_batches(len(indices), config.global_batch_size, config.seed, epoch)
        for part in batches[step % per_epoch].reshape(-1, config.batch_size)[rank::world]:
            yield [(epoch, int(indices[i])) for i in part]


def valid_keys(indices: Sequence[int], batch_size: int) -> list[list]:
    """The batches of the held-out proteins: each once, the same in every epoch and for any number of processes."""
    keys = [(0, int(i)) for i in indices]
    return [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]


def gather(items: list, world: int) -> list:
    """The items of all ranks, on all ranks."""
    if world == 1:
        return items
    everyone = [None] * world
    dist.all_gather_object(everyone, items)
    return [item for one in everyone for item in one]


def means(records: list[Record], world: int) -> dict[str, float]:
    """Exact mean of every log over batches and ranks: sum(total) / sum(count), correctly rounded in any order."""
    names = sorted({name for record in records for name in record})
    sums = {name: torch.stack([r[name].double() for r in records if name in r]).cpu().tolist() for name in names}
    everyone = gather([sums], world)
    result = {}
    for name in sorted({name for one in everyone for name in one}):
        pairs = [pair for one in everyone for pair in one.get(name, [])]
        count = math.fsum(c for _, c in pairs)
        if count:
            result[name] = math.fsum(t for t, _ in pairs) / count
    return result


def record(loss: Tensor, logs: Record, size: int) -> Record:
    """What to remember of one batch, on its device."""
    loss = loss.detach().double()
    return {"loss": torch.stack([loss * size, torch.full_like(loss, size)])} | {k: v.detach() for k, v in logs.items()}


@torch.no_grad()
def evaluate(
    objective: nn.Module, loader: Callable, valid: Sequence[int], config: PretrainConfig, ranks: Ranks
) -> dict:
    """Means of the loss and of all logs over the held-out proteins, at the noise levels of the current stage.

    Noise is seeded by batch, and batches are dealt to the ranks in turn: the result does not depend on their number.
    """
    if ranks.world > 1:  # batch norm: the running statistics of rank 0 are the ones that count, and that are saved
        for buffer in objective.buffers():
            dist.broadcast(buffer, 0)
    objective.eval()
    batches = valid_keys(valid, config.batch_size)
    mine, records = range(ranks.rank, len(batches), ranks.world), []
    generator = torch.Generator(ranks.device)
    for b, (protein, _) in zip(mine, loader([batches[b] for b in mine])):
        generator.manual_seed(seed_of(config.seed, 0, 0, 1 + b))  # a fourth number: not the seed of any training step
        with torch.autocast(ranks.device.type, torch.bfloat16, enabled=config.amp == "bf16"):
            loss, logs = objective(protein.to(ranks.device, non_blocking=True), generator)
        records.append(record(loss, logs, protein.num_graphs))
    objective.train()
    return means(records, ranks.world)


@contextmanager
def catch_signals():
    """SIGTERM and Ctrl-C are put on the list that is yielded; a second Ctrl-C interrupts at once."""
    caught: list[int] = []

    def remember(number, frame):
        if number == signal.SIGINT and number in caught:
            raise KeyboardInterrupt
        caught.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Flags:
    """What all processes have to agree on after every step: has one gone non-finite, has one been told to stop.

    Read at once on the CPU; on a GPU one step later, so that no step waits for the device. Nothing is saved unread.
    """

    def __init__(self, ranks: Ranks):
        self.ranks, self.lag, self.pending = ranks, int(ranks.device.type == "cuda"), deque()

    def add(self, step: int, bad: Tensor, stop: int, parts: list[tuple[list[str], Tensor]]) -> None:
        """`bad` () and `stop` (a signal's number or 0) of this step; `parts` are its proteins and their losses."""
        flags = torch.stack([bad.float(), torch.full_like(bad, stop, dtype=torch.float32)])
        if self.ranks.world > 1:
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        flags, event = flags.to("cpu", non_blocking=True), None
        if self.lag:
            event = torch.cuda.Event()
            event.record()
        self.pending.append((step, flags, event, parts))

    def read(self, everything: bool = False) -> int:
        """The signal to stop for, or 0. Raises FloatingPointError, on all ranks, that names the proteins."""
        stop = 0
        while len(self.pending) > (0 if everything else self.lag):
            step, flags, event, parts = self.pending.popleft()
            if event is not None:
                event.synchronize()
            bad, stop = int(flags[0]), max(stop, int(flags[1]))
            if bad:
                parts = gather([(names, float(loss)) for names, loss in parts], self.ranks.world)
                named = [part for part in parts if not math.isfinite(part[1])] or parts
                listing = "; ".join(f"loss {loss:.4g}: {', '.join(names)}" for names, loss in named)
                raise FloatingPointError(
                    f"step {step + 1}: the loss or its gradient is not finite. Proteins: {listing}"
                )
        return stop


def resume(config: PretrainConfig, ranks: Ranks) -> tuple[Path | None, dict | None]:
    """The checkpoint to continue from, found by rank 0; (None, None) on a first start."""
    out, found = Path(config.out), None
    if ranks.rank == 0:
        if config.resume == "auto":
            found = checkpoint.latest(out, ranks.say)
        elif checkpoint.checkpoints(out) and Path(config.resume).parent != out:
            raise ValueError(f"{out} holds checkpoints of another run: choose another --out or remove them")
        elif config.resume != "never":
            found = Path(config.resume), checkpoint.load(Path(config.resume))
    if ranks.world > 1:  # the path only: the processes share a file system
        paths = [str(found[0]) if found else None]
        dist.broadcast_object_list(paths, 0)
        if ranks.rank and paths[0]:
            found = Path(paths[0]), checkpoint.load(Path(paths[0]))
    if not found:
        return None, None
    config.check_resumable(found[1]["config"], found[0])
    return found


def train(
    config: PretrainConfig,
    objective: nn.Module,
    dataset: torch.utils.data.Dataset,
    collate: Callable,
    train_indices: Sequence[int],
    valid_indices: Sequence[int],
    ranks: Ranks,
) -> int:
    """Minimise `objective` on `dataset`, whose keys are (epoch, index); checkpoints and metrics.jsonl go to config.out.

    Returns 0 when the run is complete, or the number of the signal that ended it after a checkpoint. Raises
    FloatingPointError on a non-finite loss, CheckpointError when a checkpoint cannot be written.
    """
    if not len(train_indices):
        raise ValueError("no proteins to train on")
    device, out, start_time = ranks.device, Path(config.out), time.perf_counter()
    if ranks.world > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=ranks.store, rank=ranks.rank, world_size=ranks.world, timeout=timedelta(minutes=10)
        )
    objective.to(device).train()
    if ranks.world > 1 and device.type == "cuda":
        objective = nn.SyncBatchNorm.convert_sync_batchnorm(objective)
    optimizer = torch.optim.Adam(
        objective.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=device.type == "cuda"
    )

    path, state = resume(config, ranks)
    start, metrics_size = 0, 0
    if state is not None:
        if state["num_train"] != len(train_indices):
            raise ValueError(f"{path} was trained on {state['num_train']} proteins, there are {len(train_indices)} now")
        checkpoint.load_weights(objective, state["objective"], str(path))
        optimizer.load_state_dict(state["optimizer"])
        start, metrics_size = state["step"], state["metrics_size"] if path.parent == out else 0
        ranks.say(f"resumed from {path} at step {start}")
    model = objective
    if ranks.world > 1:  # parameters go without a gradient only where an ablation leaves out a loss
        unused = config.ablation != "none"
        model = DistributedDataParallel(objective, find_unused_parameters=unused)

    per_epoch = max(1, len(train_indices) // config.global_batch_size)
    switch, total = config.epochs[0] * per_epoch, sum(config.epochs) * per_epoch
    total = min(total, config.max_steps or total)
    parts = range(ranks.rank, config.global_batch_size // config.batch_size, ranks.world)

    def loader(keys) -> DataLoader:
        workers = min(config.num_workers, len(keys)) if isinstance(keys, list) else config.num_workers
        return DataLoader(
            dataset,
            batch_sampler=keys,
            collate_fn=collate,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # unused by our sampler; without it torch would draw from its global one
        )

    flags, records, line_time, line_step = Flags(ranks), [], time.perf_counter(), start
    generator = torch.Generator(device)
    batches = iter(loader(train_keys(config, train_indices, range(start, total), ranks.rank, ranks.world)))

    def write(step: int, **values) -> None:
        """One line of metrics.jsonl; `step` counts the finished ones."""
        if ranks.rank == 0:
            line = {"step": step, "epoch": epoch, "stage": stage, **values, "seconds": time.perf_counter() - start_time}
            metrics.write((json.dumps(line) + "\n").encode())

    def validate(step: int) -> None:
        values = evaluate(objective, loader, valid_indices, config, ranks)
        if values:
            write(step, split="valid", **values)
            shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            ranks.say(f"step {step:>6}  epoch {epoch}  stage {stage}  valid: {shown}")

    bar = tqdm(total=total, initial=start, unit="step", disable=None if ranks.rank == 0 else True)
    stop, done = 0, start
    with catch_signals() as caught, bar, _open_metrics(out, metrics_size, ranks) as metrics:
        for step in range(start, total):
            epoch, stage = step // per_epoch, 1 if step < switch else 2
            if step in (start, switch):
                objective.set_stage(stage)
            if step == switch and step:  # stage 2 begins; an untrained batch norm makes no sense in evaluation
                validate(step)

            losses = []
            optimizer.zero_grad(set_to_none=True)
            for part in parts:
                protein, names = next(batches)
                seed = seed_of(config.seed, step, part)
                generator.manual_seed(seed)
                torch.manual_seed(seed)  # dropout
                hold = model.no_sync() if model is not objective and part != parts[-1] else nullcontext()
                with hold:
                    with torch.autocast(device.type, torch.bfloat16, enabled=config.amp == "bf16"):
                        loss, logs = model(protein.to(device, non_blocking=True), generator)
                    (loss / len(parts)).backward()
                records.append(record(loss, logs, protein.num_graphs))
                losses.append((names, loss.detach()))
            norm = nn.utils.get_total_norm([p.grad for p in objective.parameters() if p.grad is not None])
            bad = ~(norm + sum(loss for _, loss in losses)).isfinite()
            flags.add(step, bad, caught[-1] if caught else 0, losses)
            optimizer.step()

            done = step + 1
            bar.update()
            boundary = done % per_epoch == 0 or done == total
            saving = boundary or done % config.save_every == 0
            logging = saving or done % config.log_every == 0
            stop = flags.read(everything=logging)  # where we log, the host waits for the device
            if stop:
                saving = logging = True
                flags.read(everything=True)
            if logging:
                values, now = means(records, ranks.world), time.perf_counter()
                rate = (done - line_step) * config.global_batch_size / (now - line_time)
                speed = {"proteins_per_second": rate, "lr": config.lr, "peak_memory_mb": _peak_memory(device)}
                write(done, split="train", **values, **speed)
                bar.set_postfix_str(f"loss {values['loss']:.4g}, {rate:.3g} proteins/s")
            if boundary:
                validate(done)
            if saving and ranks.rank == 0:
                metrics.flush()
                os.fsync(metrics.fileno())
                state = {
                    "config": config.plain(),
                    "step": done,
                    "num_train": len(train_indices),
                    "metrics_size": metrics.tell(),
                    "objective": objective.state_dict(),
                    "optimizer": optimizer.state_dict(),
                }
                checkpoint.save(out, done, state, config.keep)
            if logging:
                records, line_time, line_step = [], time.perf_counter(), done
            if stop:
                break

    if stop and done < total:
        ranks.say(f"stopped by {signal.Signals(stop).name} after step {done}; the same command continues from there")
    elif ranks.rank == 0:
        about = {"method": config.method, "steps": total, "config": config.plain()}
        checkpoint.save_encoder_file(
            out / "encoder.pt", objective.encoder, config.encoder, config.level, config.size, config.preset, **about
        )
    if ranks.world > 1:
        dist.barrier()
        del model, batches  # DDP holds on to the process group, whose threads have to end before the interpreter does
        gc.collect()
        dist.destroy_process_group()
    return stop if done < total else 0


def summary(metrics: Path) -> str:
    """The first and the last line of every measure of a metrics.jsonl, stage by stage, as a table."""
    first, last = {}, {}
    skip = {"step", "epoch", "stage", "split", "seconds", "proteins_per_second", "lr", "peak_memory_mb"}
    for text in Path(metrics).read_text().splitlines():
        line = json.loads(text)
        for name in line.keys() - skip:
            key = (line["stage"], line["split"], name)
            first.setdefault(key, line[name])
            last[key] = line[name]
    rows = [f"{'stage':5}  {'split':5}  {'measure':24}  {'start':>10}  {'end':>10}"]
    rows += [
        f"{s:<5}  {split:5}  {name:24}  {first[s, split, name]:>10.4g}  {last[s, split, name]:>10.4g}"
        for s, split, name in sorted(first)
    ]
    return "\n".join(rows)


def _open_metrics(out: Path, size: int, ranks: Ranks):
    """metrics.jsonl for appending on rank 0, without the lines written after the checkpoint that is resumed."""
    if ranks.rank:
        return nullcontext()
    out.mkdir(parents=True, exist_ok=True)
    file = open(out / "metrics.jsonl", "ab")  # noqa: SIM115 (the caller closes it)
    file.truncate(min(size, file.tell()))
    return file


def _ignore_interrupts(worker: int) -> None:
    """Ctrl-C reaches the loader's processes too; they end with the run, after its checkpoint."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _peak_memory(device: torch.device) -> float:
    """Most memory this process has used so far, in MB: of the GPU when on one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return kilobytes / 1e3
