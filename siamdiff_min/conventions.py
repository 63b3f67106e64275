"""Where the paper's text and the released code differ: one record per preset.

`paper` (the default) follows the text, `official` the released code. Schedules of the noise, which differ too, are data
of their own (`pretraining.diffusion.SCHEDULES`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


def by_preset(default, row: int, of: Sequence[str] = (), level: str = ""):
    """A field: the paper's value, row of differences.md, level, and methods, tasks, encoders (none: all) it is `of`."""
    return field(default=default, metadata={"row": row, "of": of, "level": level})


MASKING = ("siamdiff", "diffpret", "residue-type")
SIDE_CHAINS = ("siamdiff", "torsional")


@dataclass(frozen=True)
class Conventions:
    """The defaults are the paper's."""

    # A residue may be drawn twice.
    mask_with_replacement: bool = by_preset(False, row=3, of=MASKING)
    # What edge one-hots show of a masked residue.
    mask_is_glycine: bool = by_preset(False, row=8, of=(*MASKING, "res"))
    # Atoms that a masked residue keeps, the first of N, CA, C, O.
    backbone: int = by_preset(4, row=9, of=MASKING, level="atom")
    # Atoms of other residues lose their one-hots too.
    hide_all_types: bool = by_preset(False, row=10, of=("siamdiff", "diffpret"), level="atom")
    # Side chains that clash are drawn again.
    clash_check: bool = by_preset(True, row=12, of=("siamdiff",), level="atom")
    # Of a node within the radius, the nearest ones.
    max_neighbors: int | None = by_preset(None, row=15)
    # Distance along the sequence counts rows, through all chains.
    rows_as_distance: bool = by_preset(False, row=16)
    # The ring of proline opens.
    proline_turns: bool = by_preset(False, row=17, of=SIDE_CHAINS, level="atom")
    # Side-chain atoms that are not there count as (0, 0, 0).
    missing_at_origin: bool = by_preset(False, row=18, of=SIDE_CHAINS, level="atom")
    # A random crop may be the last window.
    last_window: bool = by_preset(True, row=19, of=("crop",))
    # A hidden edge takes those between the same nodes with it.
    hide_repetitions: bool = by_preset(True, row=26, of=("distance", "angle", "dihedral"))
    # Negatives are all other crops, or second ones only.
    contrast_all_crops: bool = by_preset(True, row=28, of=("multiview",))
    # Longest centre of GVP's basis, angstrom.
    radial_basis: float = by_preset(4.5, row=31, of=("gvp",))


PAPER = Conventions()
OFFICIAL = Conventions(
    mask_with_replacement=True,
    mask_is_glycine=True,
    backbone=3,
    hide_all_types=True,
    clash_check=False,
    max_neighbors=32,
    rows_as_distance=True,
    proline_turns=True,
    missing_at_origin=True,
    last_window=False,
    hide_repetitions=False,
    contrast_all_crops=False,
    radial_basis=20.0,
)
CONVENTIONS = {"paper": PAPER, "official": OFFICIAL}  # the choice of `--preset`
