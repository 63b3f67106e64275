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


def groups_of(store: ProteinStore, names: Iterable[str], family_of: Mapping[str, str]) -> list[dict[str, str]]:
    """For each protein in `names` what its near copies are called, and what all its relatives: a hash of a sequence.

    Those with the same `family_of` belong together in both.
    """
    wanted = {*names}
    chosen = [row for row, name in enumerate(store.names) if name in wanted]
    proteins = [store.names[row] for row in chosen]
    keys, first, sequence = np.unique(np.array(store.sequences)[chosen], return_index=True, return_inverse=True)
    types = [store.read(chosen[i]).residue_type.numpy() for i in first]

    # All sequences of a family are linked to its first.
    group = np.arange(len(keys))
    first_of: dict[str, int] = {}
    for name, i in zip(proteins, sequence):
        family = family_of.get(name)
        if family:
            unite(group, first_of.setdefault(family, i), i)
    for one, two in near_copies(types):
        unite(group, one, two)
    copies = group.copy()
    join_relatives(group, types)

    # A group is called by the first of its sequences.
    return [dict(zip(proteins, keys[of][sequence].tolist())) for of in (copies, group)]


def unite(group: np.ndarray, one: int, two: int) -> None:
    """Make two groups one, which is called by the smaller number."""
    low, high = sorted((group[one], group[two]))
    group[group == high] = low


def words_of(sequences: Sequence[np.ndarray], length: int) -> np.ndarray:
    """All words of sequences (3, n): their number, their sequence, their place. One that is too short has none."""
    found = [np.zeros((3, 0), dtype=int)]
    for owner, types in enumerate(sequences):
        if len(types) >= SHORTEST:
            letters = np.lib.stride_tricks.sliding_window_view(types.astype(int), length)
            word = letters @ 32 ** np.arange(length)
            found.append(np.stack([word, np.full(len(word), owner), np.arange(len(word))]))
    return np.concatenate(found, 1)


def counted(row: np.ndarray, column: np.ndarray, shape: tuple[int, int]) -> csr_array:
    """How often each pair of a row and a column is there."""
    return csr_array((np.ones(len(row), dtype=int), (row, column)), shape=shape)


def near_copies(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The pairs (n, 2) of sequences of residue types with about 90 % identity, over the shorter of the two."""
    word, owner, _ = words_of(sequences, WORD)
    there = counted(owner, word, (len(sequences), 32**WORD)) > 0
    size = np.diff(there.indptr)
    words = there.T.astype(int)
    pairs = [np.zeros((0, 2), dtype=int)]
    for start in range(0, len(sequences), BLOCK):
        shared = (there[start : start + BLOCK] @ words).tocoo()
        one, two = shared.coords
        one = one + start
        near = (one < two) & (shared.data >= SHARED * np.minimum(size[one], size[two]))
        pairs.append(np.column_stack([one, two])[near])
    return np.concatenate(pairs)


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
    word, owner, place = words_of(sequences, SHORT_WORD)
    size = np.bincount(owner, minlength=len(sequences))
    is_word = counted(np.arange(len(word)), word, (len(word), 32**SHORT_WORD))
    pairs = [np.zeros((0, 2), dtype=int)]
    surprise = [np.zeros(0)]
    for start in range(0, len(sequences), BLOCK):
        # Every word of these sequences beside all equal words of later ones.
        rows = np.flatnonzero((owner >= start) & (owner < start + BLOCK))
        one, two = (is_word[rows] @ is_word.T).nonzero()
        one = rows[one]
        later = owner[two] > owner[one]
        pair = owner[one] * len(sequences) + owner[two]
        pair, shared = most_in_a_band(pair[later], (place[one] - place[two])[later])

        # By chance mu words would be: how much less probable are so many?
        one, two = np.divmod(pair, len(sequences))
        shorter = np.minimum(size[one], size[two])
        mu = BAND * shorter * 1.3 / 20**SHORT_WORD
        more = shared * np.log(shared / mu) - shared + mu
        pairs.append(np.column_stack([one, two]))
        surprise.append(more - np.log(size[one] + size[two]))
    best = np.argsort(-np.concatenate(surprise), kind="stable")
    return np.concatenate(pairs)[best[: LIKELY * len(sequences)]]


def most_in_a_band(pair: np.ndarray, diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different pairs, and the most common words of each within a band of diagonals. Bands overlap by half."""
    different, row = np.unique(pair, return_inverse=True)
    half = diagonal // (BAND // 2)
    half -= half.min(initial=0)
    in_band = counted(np.tile(row, 2), np.concatenate([half, half + 1]), (len(different), half.max(initial=0) + 2))
    return different, in_band.max(axis=1).toarray().ravel()
