"""Structures that belong together: copies and near copies of a sequence, and families that a table names.

They share a fold, or a side of a split, and are drawn together: a head that has seen one knows the others.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components

from ...reading.store import ProteinStore

WORD = 4  # residues. Two unrelated sequences of 300 share .2 % of their words by chance; words of 3 would be 4 %
# Of two sequences with 90 % identity .9^4 = 66 % of the words are the same where the changes lie evenly. Some lie
# closer by chance, then fewer words differ; some farther apart.
SHARED = 0.6
SHORTEST = 40  # residues. In series of peptides one or two changes are the point of the experiment
BLOCK = 500  # sequences compared at a time with all others, to bound the memory


def relatives(store: ProteinStore, names: Mapping, family_of: Mapping[str, str]) -> list[str]:
    """For each protein of a store the name of those that it belongs to; of one alone it is the hash of its sequence.

    Only proteins in `names` are compared. Those with the same `family_of` belong together too.
    """
    chosen = [row for row, name in enumerate(store.names) if name in names]
    sequences = store.sequences  # made anew by every look
    row_of = {sequences[row]: row for row in chosen}  # one row of every sequence
    keys = sorted(row_of)
    number = {key: i for i, key in enumerate(keys)}
    types = [store.read(row_of[key]).residue_type.numpy() for key in keys]
    pairs = [near_copies(types)]

    # All sequences of a family are linked to its first.
    first_of = {}
    for row in chosen:
        family = family_of.get(store.names[row], "")
        if family:
            sequence = number[sequences[row]]
            pairs.append(np.array([[first_of.setdefault(family, sequence), sequence]]))
    one, two = np.concatenate(pairs).T
    links = coo_array((np.ones(len(one)), (one, two)), shape=(len(keys), len(keys)))
    _, group = connected_components(links, directed=False)

    # A group is called by the first of its sequences.
    name_of = {}
    for key, label in zip(keys, group):
        name_of.setdefault(label, key)
    found = list(sequences)
    for row in chosen:
        found[row] = name_of[group[number[sequences[row]]]]
    return found


def near_copies(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The pairs (n, 2) of sequences of residue types with about 90 % identity, over the shorter of the two."""
    words = [words_of(types) for types in sequences]
    size = np.array([len(of_one) for of_one in words])
    row = np.repeat(np.arange(len(words)), size)
    column = np.concatenate([*words, np.zeros(0, dtype=int)])
    _, column = np.unique(column, return_inverse=True)
    there = csr_array((np.ones(len(row), dtype=np.int32), (row, column)), shape=(len(words), len(column) + 1))

    pairs = [np.zeros((0, 2), dtype=int)]
    for start in range(0, len(words), BLOCK):
        shared = (there[start : start + BLOCK] @ there.T).tocoo()
        one, two = shared.coords
        one = one + start
        near = (one < two) & (shared.data >= SHARED * np.minimum(size[one], size[two]))
        pairs.append(np.column_stack([one[near], two[near]]))
    return np.concatenate(pairs)


def words_of(types: np.ndarray) -> np.ndarray:
    """The different words of a sequence, as numbers; none of one that is too short to compare."""
    if len(types) < SHORTEST:
        return np.zeros(0, dtype=int)
    letters = np.lib.stride_tricks.sliding_window_view(types.astype(int), WORD)
    return np.unique(letters @ 32 ** np.arange(WORD))
