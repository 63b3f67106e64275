"""Lists of the atoms around residues (ATOM3D's RES), as runs: 58 bytes for 440 atoms, in place of four for each.

Atoms of a residue follow each other, so the atoms of a sphere are a few dozen runs of rows. Two bytes tell a run: how
many rows are left out before it, and how many it has.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MOST = 255  # rows that a byte can count; what is longer takes several pairs


def pack_lists(lists: Sequence[np.ndarray]) -> dict:
    """The labels `sizes` and `runs` of some lists of rows, each sorted and without repetitions."""
    packed = [_runs(rows) for rows in lists]
    together = [byte for of_list in packed for byte in of_list]
    return {"sizes": [len(of_list) for of_list in packed], "runs": torch.tensor(together, dtype=torch.uint8)}


def unpack_list(labels: dict, number: int) -> Tensor:
    """The rows of list `number`. Older stores have the rows in `atoms`, and in `counts` how many are of each list."""
    if "atoms" in labels:
        return labels["atoms"].split(labels["counts"])[number].long()
    skipped, size = labels["runs"].split(labels["sizes"])[number].long().view(-1, 2).unbind(1)
    first = (skipped + size).cumsum(0) - size
    before = size.cumsum(0) - size
    return (first - before).repeat_interleave(size) + torch.arange(int(size.sum()))


def _runs(rows: np.ndarray) -> list[int]:
    """Pairs of (rows left out, rows of the run), one after the other."""
    packed = []
    end = 0
    for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else ():
        skipped = int(run[0]) - end
        while skipped > MOST:
            packed += [MOST, 0]
            skipped -= MOST
        size = len(run)
        while size > MOST:
            packed += [skipped, MOST]
            skipped = 0
            size -= MOST
        packed += [skipped, size]
        end = int(run[-1]) + 1
    return packed
