"""One flipped byte anywhere in a store or a file of weights: detected, or without any effect.

`python -m pytest -s -m soak tests/reliability/test_corruption.py` flips every byte and prints the table of the README.
"""

from collections import Counter

import fuzz
import numpy as np
import pytest
from fuzz_targets import make


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
