"""Near copies by k-mers: at 90 % identity, cut ends, peptides; families of a table."""

from types import SimpleNamespace

import numpy as np
import torch

from siamdiff_min.sets.relatives import SHORTEST, near_copies, relatives

RANDOM = np.random.default_rng(0)


def changed(types: np.ndarray, identity: float) -> np.ndarray:
    rows = RANDOM.permutation(len(types))[: round(len(types) * (1 - identity))]
    other = types.copy()
    other[rows] = (types[rows] + RANDOM.integers(1, 20, len(rows))) % 20
    return other


def test_sequences_of_90_percent_identity_are_found_and_of_80_are_not():
    found = {identity: 0 for identity in (0.95, 0.9, 0.8)}
    for _ in range(50):
        types = RANDOM.integers(20, size=150)
        for identity in found:
            found[identity] += len(near_copies([types, changed(types, identity)]))
    assert found[0.95] == 50 and found[0.9] >= 45 and found[0.8] == 0


def test_cut_ends_are_found_and_short_peptides_are_not():
    types = RANDOM.integers(20, size=100)
    pairs = near_copies([types[4:], RANDOM.integers(20, size=100), types, types[:-3]])
    assert {tuple(pair) for pair in pairs.tolist()} == {(0, 2), (0, 3), (2, 3)}
    short = types[: SHORTEST - 1]
    assert len(near_copies([short, short[1:]])) == 0


def test_families_and_near_copies_are_one_group():
    """a and b are near copies, b and c a family; d is alone, e is not in the table."""
    a, d = RANDOM.integers(20, size=(2, 60))
    sequences = {"a": a, "b": a[1:], "c": RANDOM.integers(20, size=60), "d": d, "e": d}
    store = SimpleNamespace(
        names=[*sequences],
        sequences=["h3", "h2", "h1", "h4", "h4"],
        read=lambda row: SimpleNamespace(residue_type=torch.tensor([*sequences.values()][row])),
    )
    named = dict.fromkeys("abcd")
    assert relatives(store, named, {"b": "kinases", "c": "kinases"}) == ["h1", "h1", "h1", "h4", "h4"]
    assert relatives(store, named, {}) == ["h2", "h2", "h1", "h4", "h4"]
