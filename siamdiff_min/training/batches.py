"""What comes when: the batches of a run as pure functions of (seed, epoch, step), and the seeds of all its draws."""

from argparse import Namespace
from collections.abc import Iterator, Sequence

import numpy as np


def seed_of(*key: int) -> int:
    """A seed for torch from a few integers, well mixed. A zero at the end of the key changes nothing."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) >> 1


def epoch_batches(num: int, size: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the global batches of one epoch (steps, size): a pure function of (seed, epoch).

    The incomplete last batch is dropped. If it is the only one, it is filled by going round.
    """
    order = np.random.default_rng([seed, epoch]).permutation(num)
    steps = num // size
    return order[: steps * size].reshape(steps, size) if steps else np.resize(order, (1, size))


def train_keys(config: Namespace, indices: Sequence[int], steps: range, rank: int, world: int) -> Iterator[list]:
    """The keys (epoch, index) of the proteins of every part that is ours, step by step."""
    per_epoch = max(1, len(indices) // config.global_batch_size)
    for step in steps:
        epoch, batch = divmod(step, per_epoch)
        if batch == 0 or step == steps[0]:
            batches = epoch_batches(len(indices), config.global_batch_size, config.seed, epoch)
        for part in batches[batch].reshape(-1, config.batch_size)[rank::world]:
            yield [(epoch, int(indices[i])) for i in part]


def valid_keys(indices: Sequence[int], batch_size: int) -> list[list]:
    """The batches of the held-out proteins: each once, the same in every epoch and for any number of processes.

    A last one that would be alone joins the batch before it: `multiview` contrasts the proteins of a batch.
    """
    keys = [(0, int(i)) for i in indices]
    batches = [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]
    if len(batches) > 1 and len(batches[-1]) == 1 < batch_size:
        alone = batches.pop()
        batches[-1] += alone
    return batches
