"""Structures that belong together: near copies of a sequence, its relatives, and families that a table names.

They share a fold, or a side of a split, and are drawn together: a head that has seen one knows the others. Near copies
are found by the words that two sequences share. Relatives (30 % identity) share few; those that share some in the same
places are aligned.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from ...protein.constants import ONE_LETTER
from ...reading.store import ProteinStore

WORD = 4  # residues. Two unrelated sequences of 300 share .2 % of their words by chance; words of 3 would be 4 %
# Of two sequences with 90 % identity .9^4 = 66 % of the words are the same where the changes lie evenly. Some lie
# closer by chance, then fewer words differ; some farther apart.
SHARED = 0.6
SHORTEST = 40  # residues. In series of peptides one or two changes are the point of the experiment
BLOCK = 100  # sequences compared at a time with all others, to bound the memory

# Relatives. Of 176 chains of 40 families 43 groups are found with 30 pairs each (2.4 s), 45 with 10 (.7 s), 49 with 4.
SHORT_WORD = 3  # residues
BAND = 16  # places by which one sequence may be shifted against the other within a run of common words
LIKELY = 30  # for each sequence so many pairs are aligned
MOST_CELLS = 10**9  # of all alignments together, some 10 seconds
# A score of BLOSUM62, gaps 11 + 1 for each residue: 28 bits. Of 5,000 pairs of 250 residues one has it by chance.
RELATED = 60


def groups_of(store: ProteinStore, names: Iterable[str], family_of: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """For each protein of a store the name of its near copies, and that of all its relatives: the hash of a sequence.

    Only proteins in `names` are compared. Those with the same `family_of` belong together in both.
    """
    wanted = {*names}
    chosen = [row for row, name in enumerate(store.names) if name in wanted]
    sequences = store.sequences  # made anew by every look
    row_of = {sequences[row]: row for row in chosen}  # one row of every sequence
    keys = sorted(row_of)
    number = {key: i for i, key in enumerate(keys)}
    types = [store.read(row_of[key]).residue_type.numpy() for key in keys]

    # All sequences of a family are linked to its first.
    group = np.arange(len(keys))
    first_of: dict[str, int] = {}
    for row in chosen:
        family = family_of.get(store.names[row])
        if family:
            sequence = number[sequences[row]]
            unite(group, first_of.setdefault(family, sequence), sequence)
    for one, two in near_copies(types):
        unite(group, one, two)
    copies = group.copy()
    join_relatives(group, types)

    # A group is called by the first of its sequences.
    found = []
    for groups in (copies, group):
        name_of = {key: keys[i] for key, i in zip(keys, groups)}
        found.append([name_of.get(key, key) for key in sequences])
    return found[0], found[1]


def unite(group: np.ndarray, one: int, two: int) -> None:
    """Make two groups one, which is called by the smaller number."""
    low, high = sorted((group[one], group[two]))
    group[group == high] = low


def near_copies(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The pairs (n, 2) of sequences of residue types with about 90 % identity, over the shorter of the two."""
    words = [np.unique(words_of(types, WORD)) for types in sequences]
    size = np.array([*map(len, words)])
    row = np.repeat(np.arange(len(words)), size)
    column = np.concatenate([*words, np.zeros(0, dtype=int)])
    _, column = np.unique(column, return_inverse=True)
    ones = np.ones(len(row), dtype=np.int32)
    there = csr_array((ones, (row, column)), shape=(len(words), len(column) + 1))

    pairs = [np.zeros((0, 2), dtype=int)]
    for start in range(0, len(words), BLOCK):
        shared = (there[start : start + BLOCK] @ there.T).tocoo()
        one, two = shared.coords
        one = one + start
        enough = SHARED * np.minimum(size[one], size[two])
        near = (one < two) & (shared.data >= enough)
        pairs.append(np.column_stack([one[near], two[near]]))
    return np.concatenate(pairs)


def words_of(types: np.ndarray, length: int) -> np.ndarray:
    """The words of a sequence in its order, as numbers; none of one that is too short to compare."""
    if len(types) < SHORTEST:
        return np.zeros(0, dtype=int)
    letters = np.lib.stride_tricks.sliding_window_view(types.astype(int), length)
    return letters @ 32 ** np.arange(length)


def join_relatives(group: np.ndarray, sequences: Sequence[np.ndarray]) -> None:
    """Unite the groups of sequences whose local alignment has a score that chance hardly gives."""
    from Bio.Align import PairwiseAligner, substitution_matrices

    matrix = substitution_matrices.load("BLOSUM62")
    aligner = PairwiseAligner(mode="local", substitution_matrix=matrix, open_gap_score=-12, extend_gap_score=-1)
    texts = ["".join(ONE_LETTER[residue] for residue in types) for types in sequences]
    cells = 0
    for one, two in likely_pairs(sequences):
        if group[one] == group[two]:
            continue
        cells += len(texts[one]) * len(texts[two])
        if cells > MOST_CELLS:
            return
        if aligner.score(texts[one], texts[two]) >= RELATED:
            unite(group, one, two)


def likely_pairs(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The pairs (n, 2) that share the most short words within a band of diagonals, the most surprising first."""
    words = [words_of(types, SHORT_WORD) for types in sequences]
    size = np.array([*map(len, words)])
    word = np.concatenate([*words, np.zeros(0, dtype=int)])
    place = np.concatenate([*map(np.arange, size), np.zeros(0, dtype=int)])
    owner = np.repeat(np.arange(len(words)), size)

    # Equal words lie together then.
    order = np.argsort(word, kind="stable")
    first = np.searchsorted(word[order], word)
    last = np.searchsorted(word[order], word, side="right")
    pairs = []
    surprise = []
    for start in range(0, len(words), BLOCK):
        # Every word of these sequences beside all equal words of later ones.
        rows = np.flatnonzero((owner >= start) & (owner < start + BLOCK))
        count = (last - first)[rows]
        one = np.repeat(rows, count)
        step = np.arange(count.sum()) - np.repeat(count.cumsum() - count, count)
        two = order[first[one] + step]
        later = owner[two] > owner[one]
        one = one[later]
        two = two[later]

        # The most of them in a band; bands overlap by half.
        pair = owner[one] * len(words) + owner[two]
        half = (place[one] - place[two]) // (BAND // 2) + 2**23
        band = np.concatenate([pair << 24 | half, pair << 24 | half + 1])
        band, shared = np.unique(band, return_counts=True)
        pair, at = np.unique(band >> 24, return_index=True)
        shared = np.maximum.reduceat(shared, at) if len(at) else shared

        # By chance mu words would be: how much less probable are so many?
        one, two = np.divmod(pair, len(words))
        mu = BAND * np.minimum(size[one], size[two]) * 1.3 / 20**SHORT_WORD
        pairs.append(np.column_stack([one, two]))
        surprise.append(shared * np.log(shared / mu) - shared + mu - np.log(size[one] + size[two]))
    if not pairs:
        return np.zeros((0, 2), dtype=int)
    best = np.argsort(-np.concatenate(surprise), kind="stable")
    return np.concatenate(pairs)[best[: LIKELY * len(words)]]
