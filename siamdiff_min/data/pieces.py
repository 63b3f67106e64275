"""Batches cut by what they cost, so that one of large proteins takes no more memory than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .samples import Sample


class Pieces:
    """Collates items into a list of pieces (batch, names), in order, each of at most `limit` nodes or of one item.

    Edges, and with them time and memory, go with the nodes: about 16 for an atom, 20 for a residue.

    Args:
        collate: makes a piece of items, which are `Sample`s or (Protein, name).
        limit: None for a single piece.
        level: whether atoms or residues are the nodes.
    """

    def __init__(self, collate: Callable, limit: int | None, level: str):
        self.collate, self.limit, self.level = collate, limit, level

    def __call__(self, items: Sequence) -> list[tuple]:
        if self.limit is None:
            return [self.collate(items)]
        cut, size = [[]], 0
        for item in items:
            nodes = self.nodes(item)
            if cut[-1] and size + nodes > self.limit:
                cut.append([])
                size = 0
            cut[-1].append(item)
            size += nodes
        return [self.collate(piece) for piece in cut]

    def nodes(self, item: Sample | tuple) -> int:
        """Size of the graph of an item; of both, where a sample has two."""
        protein = item.protein if isinstance(item, Sample) else item[0]
        return protein.num_atoms if self.level == "atom" else protein.num_residues
