"""The fields of a `Protein` from arrays of a user's own, numpy or tensors: see `Protein.from_ca`, `from_atom37`.

Wrong shapes or values raise a StructureError that names the array and the residue.
"""

import numpy as np
import torch
from torch import Tensor

from ...files import StructureError
from ...protein.constants import ATOM_ELEMENT, ATOM_INDEX, BACKBONE, CA, GREEK_RANK, ONE_LETTER, RESIDUE_ATOMS, RESIDUES
from ...reading.columns import Column, changes

# The order of atoms (`atom37`) and of residue types (`aatype`) in AlphaFold (Jumper et al. 2021) and OpenFold.
ATOM37 = [
    "N", "CA", "C", "CB", "O", "CG", "CG1", "CG2", "OG", "OG1", "SG", "CD", "CD1", "CD2", "ND1", "ND2", "OD1", "OD2",
    "SD", "CE", "CE1", "CE2", "CE3", "NE", "NE1", "NE2", "OE1", "OE2", "CH2", "NH1", "NH2", "OH", "CZ", "CZ2", "CZ3",
    "NZ", "OXT",
]  # fmt: skip
AATYPE = "ARNDCQEGHILKMFPSTWYV"

# The order of the atoms of every residue in PDB files: backbone, then by remoteness and number (CG1, OG1, CG2, CD1).
_SIDE_CHAIN = {*ATOM37} - {*BACKBONE, "CB", "OXT"}
_PDB_ORDER = [*BACKBONE, "CB", *sorted(_SIDE_CHAIN, key=lambda name: (GREEK_RANK[ATOM_INDEX[name]], name[2:])), "OXT"]
_COLUMNS = torch.tensor([ATOM37.index(name) for name in _PDB_ORDER])  # (37,)
_NAMES = torch.tensor([ATOM_INDEX[name] for name in _PDB_ORDER])  # (37,)
_KNOWN = torch.zeros(len(RESIDUES), 37, dtype=torch.bool)  # which of these atoms a residue has
for _row, _residue in zip(_KNOWN, RESIDUES):
    _row[[_PDB_ORDER.index(name) for name in [*RESIDUE_ATOMS[_residue], "OXT"]]] = True


def from_ca(pos, sequence, chain) -> dict[str, Tensor]:
    """The fields of `Protein.from_ca`."""
    pos = _array("pos", pos, "R", 3).float().clone()
    residue_type = _types(sequence, len(pos), ONE_LETTER).to(pos.device)
    row = torch.arange(len(pos), device=pos.device)
    return _fields(pos, torch.full_like(row, CA), row, residue_type, chain)


def from_atom37(pos, mask, sequence, chain) -> dict[str, Tensor]:
    """The fields of `Protein.from_atom37`."""
    pos = _array("pos", pos, "R", 37, 3).float()
    mask = _array("mask", mask, "R", 37).to(pos.device) != 0
    if len(mask) != len(pos):
        raise StructureError("mask", f"of {len(mask)} residues beside pos of {len(pos)}")
    residue_type = _types(sequence, len(pos), AATYPE).to(pos.device)

    device = pos.device
    columns = _COLUMNS.to(device)
    present = mask[:, columns]

    # No atom of the mask may be foreign to its residue, and no residue without its CA.
    foreign = (present & ~_KNOWN.to(device)[residue_type]).nonzero().tolist()
    if foreign:
        row, slot = foreign[0]
        problem = f"{RESIDUES[residue_type[row]]} has no {_PDB_ORDER[slot]}"
        raise StructureError("mask", problem, f"residue {row}; numbers of a sequence count {AATYPE}")
    no_carbon = (~present[:, CA]).nonzero()
    if len(no_carbon):
        raise StructureError("mask", "a residue without CA", f"residue {int(no_carbon[0])}; leave out such residues")

    # The atoms, residue by residue.
    atom_residue, slot = present.nonzero().unbind(1)
    return _fields(pos[atom_residue, columns[slot]], _NAMES.to(device)[slot], atom_residue, residue_type, chain)


def _array(name: str, value, *shape: str | int) -> Tensor:
    """A tensor of this shape, in which "R" stands for any size. Anything but a tensor is copied."""
    try:
        if not isinstance(value, Tensor):
            value = torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise StructureError(name, "not an array of numbers", str(error)) from error
    if value.dtype in (torch.float16, torch.bfloat16) and name == "pos":
        detail = "it moves atoms by up to .25 angstrom: give float32, and compute under torch.autocast"
        raise StructureError(name, "coordinates in half precision", detail)
    sizes = zip(shape, value.shape)
    if value.ndim != len(shape) or any(wanted not in (size, "R") for wanted, size in sizes):
        expected = str(shape).replace("'", "")
        raise StructureError(name, f"of shape {tuple(value.shape)} in place of {expected}, of one protein")
    if not len(value):
        raise StructureError(name, "no residue in it")
    return value


def _types(sequence, size: int, order: str) -> Tensor:
    """Indices into RESIDUES (R,), from a text, letters, or whole numbers that index into `order`."""
    cells = [*sequence] if isinstance(sequence, str) else np.asarray(sequence).flatten().tolist()
    if len(cells) != size:
        raise StructureError("sequence", f"of {len(cells)} residues beside pos of {size}")
    types = []
    for row, cell in enumerate(cells):
        letter = order[cell] if type(cell) is int and 0 <= cell < len(order) else cell
        if letter not in [*ONE_LETTER]:
            which = f"the 20 amino acids {ONE_LETTER}, and no number from 0 to 19, which count {order}"
            raise StructureError("sequence", f"{letter!r} is none of {which}", f"residue {row}")
        types.append(ONE_LETTER.index(letter))
    return torch.tensor(types)


def _fields(pos: Tensor, atom_name: Tensor, atom_residue: Tensor, residue_type: Tensor, chain) -> dict[str, Tensor]:
    """All fields of one protein; residues are numbered from 1 in each chain."""
    # A chain begins wherever the name changes, and its name does not come back.
    device = pos.device
    size = len(residue_type)
    names = [0] * size if chain is None else chain.tolist() if hasattr(chain, "tolist") else list(chain)
    if len(names) != size:
        raise StructureError("chain", f"of {len(names)} residues beside pos of {size}")
    name = Column.of(list(map(str, names)))
    starts = changes(name.index)
    if len(starts) != len(name.values):
        raise StructureError("chain", "residues of one chain do not stand together")
    number = torch.from_numpy(name.index).to(device)
    index = torch.arange(size, device=device) - torch.from_numpy(starts).to(device)[number]
    return {
        "pos": pos,
        "element": torch.tensor(ATOM_ELEMENT, device=device)[atom_name],
        "atom_name": atom_name,
        "atom_residue": atom_residue,
        "residue_type": residue_type,
        "masked": torch.zeros(size, dtype=torch.bool, device=device),
        "residue_number": index + 1,
        "insertion_code": torch.full((size,), ord(" "), device=device),
        "residue_index": index,
        "chain": number,
        "residue_protein": torch.zeros(size, dtype=torch.long, device=device),
    }
