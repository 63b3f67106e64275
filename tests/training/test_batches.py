"""The order of the data is a pure function of (seed, epoch), dealt evenly to any number of processes."""

import itertools

import pytest
from standin import configure

from siamdiff_min.training.batches import epoch_batches, seed_of, train_keys, valid_keys


def test_an_epoch_takes_each_at_most_once():
    batches = epoch_batches(103, 10, seed=1, epoch=2)
    assert batches.shape == (10, 10) and len(set(batches.ravel())) == 100 and batches.max() < 103
    assert (batches == epoch_batches(103, 10, seed=1, epoch=2)).all()
    assert (batches != epoch_batches(103, 10, seed=1, epoch=3)).any()
    assert (batches != epoch_batches(103, 10, seed=2, epoch=2)).any()


def test_a_batch_larger_than_the_data_goes_round():
    batch = epoch_batches(3, 8, seed=0, epoch=0)
    assert batch.shape == (1, 8) and set(batch[0, :3]) == {0, 1, 2} and (batch[0, 3:6] == batch[0, :3]).all()


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("num", [5, 30, 101])
def test_ranks_share_the_same_global_batches(num, world):
    config = configure("x", "--batch-size", 4, "--global-batch-size", 24, world=world)
    indices, steps = [7 * i for i in range(num)], range(0, 9)
    one = list(train_keys(config, indices, steps, 0, 1))
    ranks = [list(train_keys(config, indices, steps, rank, world)) for rank in range(world)]
    assert {len(r) for r in ranks} == {9 * 6 // world}
    assert [part for together in zip(*ranks) for part in together] == one  # dealt in turn
    resumed = list(train_keys(config, indices, range(5, 9), 0, 1))
    assert resumed == one[5 * 6 :]
    for epoch, keys in itertools.groupby((key for part in one for key in part), key=lambda key: key[0]):
        keys = list(keys)
        assert num < 24 or len(set(keys)) == len(keys), epoch


@pytest.mark.parametrize("num", [0, 1, 7, 8, 9, 101])
def test_held_out_proteins_come_once(num):
    """None is alone if there are others: `multiview` compares the proteins of a batch."""
    batches = valid_keys(range(num), 4)
    assert [key for batch in batches for key in batch] == [(0, i) for i in range(num)]
    assert all(len(batch) == 4 for batch in batches[:-1]) and all(2 <= len(batch) <= 5 or num == 1 for batch in batches)
    assert [len(batch) for batch in valid_keys(range(num), 1)] == [1] * num


def test_seeds_differ():
    keys = [(s, a, b) for s in range(5) for a in range(50) for b in range(5)]
    validation = [(s, 0, 0, 1 + b) for s in range(5) for b in range(50)]
    dropout = [(*key, 0, 1) for key in keys]
    seeds = {seed_of(*key) for key in keys + validation + dropout}
    assert len(seeds) == len(keys) + len(validation) + len(dropout) and min(seeds) >= 0 and max(seeds) < 2**63
