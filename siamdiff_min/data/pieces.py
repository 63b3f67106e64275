"""Batches cut by what they cost, so that one of large proteins takes no more memory than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .samples import Sample


def cut(items: Sequence, collate: Callable, limit: int | None, level: str) -> list[tuple]:
    """Items (`Sample` or (Protein, name)) as pieces (batch, names) in order, each of `limit` nodes at most or one item.

    Edges, and with them time and memory, go with the nodes (atoms or residues, by level; of both structures where a
    sample has two): about 16 for an atom, 20 for a residue. Without a limit there is one piece.
    """
    pieces, size = [[]], 0
    for item in items:
        protein = item.protein if isinstance(item, Sample) else item[0]
        nodes = protein.num_atoms if level == "atom" else protein.num_residues
        if limit is not None and pieces[-1] and size + nodes > limit:
            pieces.append([])
            size = 0
        pieces[-1].append(item)
        size += nodes
    return [collate(piece) for piece in pieces]
