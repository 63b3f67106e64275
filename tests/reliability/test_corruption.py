"""One flipped byte anywhere in a store or a file of weights: detected, or without any effect.

`python -m pytest -s -m soak tests/reliability/test_corruption.py` flips every byte and prints the table of the README.
"""

from collections import Counter

import fuzz
import numpy as np
import pytest
from fuzz_targets import make
from given import CLASSES, dataset

from siamdiff_min.data.samples import SAMPLES
from siamdiff_min.data.store import ProteinStore
from siamdiff_min.files import StoreError
from siamdiff_min.protein.constants import RESIDUES


def flip(target, name, place, rng):
    data = target.files[name]
    damaged = data[:place] + bytes([data[place] ^ int(rng.integers(1, 256))]) + data[place + 1 :]
    return fuzz.outcome(target, name, damaged)


@pytest.mark.parametrize("reader", ["store", "weights", "esm"])
def test_a_flipped_byte_is_detected_or_changes_nothing(reader, tmp_path):
    target, rng, counts = make(reader, tmp_path / "work"), np.random.default_rng(0), Counter()
    for name, data in target.files.items():
        for place in [0, len(data) - 1, *rng.integers(len(data), size=10)]:
            outcome, detail = flip(target, name, place, rng)
            assert outcome in ("refused", "accepted"), f"byte {place} of {name}: {detail}"
            counts[outcome, reader == "store" and name.endswith(".pt")] += 1
    assert counts["refused", reader == "store"] > 0 == counts["accepted", True]  # checksums find all


def read_all(path, task) -> None:
    """Everything that training, fine-tuning and prediction read of a store."""
    store = ProteinStore(path)
    for i in range(len(store)):
        half = store.num_residues(i) // 2
        assert store.read(i, half).num_residues + store.read(i, 0, half).num_residues == store[i].num_residues
        assert len(store.positions(i)) == store[i].num_residues and store[i].residue_type.max() < len(RESIDUES)
    if task != "plain":
        samples = SAMPLES[task](store, classes=CLASSES if task == "ec" else ())
        for i in range(0, len(samples), 3):
            samples[0, i]


@pytest.mark.repeats
@pytest.mark.parametrize("flips", [300, pytest.param(6000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("task", ["res", "plain", "ec", "msp", "pip", "psr"])
def test_a_flipped_byte_that_no_checksum_was_asked_about(task, flips, tmp_path, record_property):
    """A store that is read without a look at its checksums: StoreError, or numbers; never another error."""
    made, rng, counts = dataset("psr" if task == "plain" else task, tmp_path), np.random.default_rng(1), Counter()
    (file,) = made.store.files
    data = file.read_bytes()
    for _ in range(flips):
        place = int(rng.integers(len(data)))
        file.write_bytes(data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :])
        try:
            read_all(made.store.path, task)
            counts["not seen"] += 1
        except StoreError as error:
            assert f"{file} is damaged (" in str(error)
            counts["said"] += 1
    assert counts["said"] > flips // 50
    for name, count in counts.items():
        record_property(name, count)


@pytest.mark.soak
def test_every_byte(tmp_path):
    table: dict[str, Counter] = {}
    for reader in ("store", "weights", "esm"):
        target, rng = make(reader, tmp_path / reader), np.random.default_rng(0)
        for name, data in target.files.items():
            counts = table.setdefault(name, Counter())
            counts.update(flip(target, name, place, rng)[0] for place in range(len(data)))
    print("\n\n| file | bytes flipped | detected | without effect | other content |\n|---|---|---|---|---|")
    for name, counts in table.items():
        bad = counts.total() - counts["refused"] - counts["accepted"]
        print(f"| {name} | {counts.total():,} | {counts['refused']:,} | {counts['accepted']:,} | {bad:,} |")
    assert set().union(*table.values()) == {"refused", "accepted"}
