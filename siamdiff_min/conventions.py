"""Where the paper's text and the released code differ: one record per preset.

`paper` (the default) follows the text, `official` the released code. Schedules of the noise, which differ too, are data
of their own (`pretraining.diffusion.SCHEDULES`).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Conventions:
    """The defaults are the paper's."""

    mask_with_replacement: bool = False  # differences.md, row 3: a residue may be drawn twice
    mask_is_glycine: bool = False  # differences.md, row 8: what edge one-hots show of a masked residue
    backbone: int = 4  # differences.md, row 9: atoms that a masked residue keeps, the first of N, CA, C, O
    hide_all_types: bool = False  # differences.md, row 10: atoms of other residues lose their one-hots too
    clash_check: bool = True  # differences.md, row 12: side chains that clash are drawn again
    max_neighbors: int | None = None  # differences.md, row 15: of a node within the radius, the nearest ones
    rows_as_distance: bool = False  # differences.md, row 16: sequence distance counts rows, through all chains
    proline_turns: bool = False  # differences.md, row 17: its ring opens
    missing_at_origin: bool = False  # differences.md, row 18: side-chain atoms that are not there count as (0, 0, 0)
    last_window: bool = True  # differences.md, row 19: a random crop may be the last window
    hide_repetitions: bool = True  # differences.md, row 26: a hidden edge takes those between the same nodes with it
    contrast_all_crops: bool = True  # differences.md, row 28: negatives are all other crops, or second ones only
    radial_basis: float = 4.5  # differences.md, row 31: longest centre of GVP's basis, angstrom


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
