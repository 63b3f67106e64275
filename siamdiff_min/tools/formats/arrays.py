"""The fields of a `Protein` from arrays of a user's own, numpy or tensors: see `Protein.from_ca`, `from_atom37`.

Wrong shapes or values raise a StructureError that names the array and the residue.
"""

import numpy as np
import torch
from torch import Tensor

from ...files import StructureError
from ...protein.constants import ATOM_ELEMENT, ATOM_INDEX, CA, ONE_LETTER, RESIDUE_ATOMS, RESIDUES

# The order of atoms (`atom37`) and of residue types (`aatype`) in AlphaFold (Jumper et al. 2021) and OpenFold.
ATOM37 = [
    "N", "CA", "C", "CB", "O", "CG", "CG1", "CG2", "OG", "OG1", "SG", "CD", "CD1", "CD2", "ND1", "ND2", "OD1", "OD2",
    "SD", "CE", "CE1", "CE2", "CE3", "NE", "NE1", "NE2", "OE1", "OE2", "CH2", "NH1", "NH2", "OH", "CZ", "CZ2", "CZ3",
    "NZ", "OXT",
]  # fmt: skip
AATYPE = "ARNDCQEGHILKMFPSTWYV"

_NAMES = torch.tensor([ATOM_INDEX[name] for name in ATOM37])  # (37,)
_SLOTS = torch.full((len(RESIDUES), 15), -1)  # columns in ATOM37 of a residue's atoms, as PDB files order them
for _row, _residue in zip(_SLOTS, RESIDUES):
    _known = [ATOM37.index(name) for name in [*RESIDUE_ATOMS[_residue], "OXT"]]
    _row[: len(_known)] = torch.tensor(_known)


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

    # The columns of each residue's atoms in the order of PDB files, and which of them hold one: (R, 15) both.
    slots = _SLOTS.to(pos.device)[residue_type]
    present = mask.gather(1, slots.clamp(min=0)) & (slots >= 0)

    # No atom of the mask may be left without a slot, and no residue without its CA.
    foreign = (present.sum(1) != mask.sum(1)).nonzero()
    if len(foreign):
        row = int(foreign[0])
        residue = RESIDUES[residue_type[row]]
        problem = f"{residue} has no {_foreign_atom(residue, mask[row])}"
        raise StructureError("mask", problem, f"residue {row}; numbers of a sequence count {AATYPE}")
    no_carbon = (~mask[:, ATOM37.index("CA")]).nonzero()
    if len(no_carbon):
        row = int(no_carbon[0])
        raise StructureError("mask", "a residue without CA", f"residue {row}; leave out such residues")

    # The atoms, residue by residue.
    atom_residue, slot = present.nonzero().unbind(1)
    column = slots[atom_residue, slot]
    atom_name = _NAMES.to(pos.device)[column]
    return _fields(pos[atom_residue, column], atom_name, atom_residue, residue_type, chain)


def _foreign_atom(residue: str, mask: Tensor) -> str:
    """The first atom of the mask (37,) that this residue does not have."""
    own = [*RESIDUE_ATOMS[residue], "OXT"]
    atoms = [ATOM37[column] for column in mask.nonzero().flatten().tolist()]
    return next(atom for atom in atoms if atom not in own)


def _array(name: str, value, *shape: str | int) -> Tensor:
    """A tensor of this shape, in which "R" stands for any size. Anything but a tensor is copied."""
    try:
        array = value if isinstance(value, Tensor) else torch.from_numpy(_native(np.array(value)))
    except (TypeError, ValueError) as error:
        raise StructureError(name, "not an array of numbers", str(error)) from error
    if array.dtype in (torch.float16, torch.bfloat16) and name == "pos":
        detail = "it moves atoms by up to .25 angstrom: give float32, and compute under torch.autocast"
        raise StructureError(name, "coordinates in half precision", detail)
    sizes = zip(shape, array.shape)
    if array.ndim != len(shape) or any(wanted not in (size, "R") for wanted, size in sizes):
        is_batch = array.ndim == len(shape) + 1
        advice = "; pack one protein for each, see Protein.pack" if is_batch else ""
        expected = str(shape).replace("'", "")
        raise StructureError(name, f"of shape {tuple(array.shape)} in place of {expected}{advice}")
    if not len(array):
        raise StructureError(name, "no residue in it")
    return array


def _native(array: np.ndarray) -> np.ndarray:
    """The array in the byte order of this machine: files of NetCDF have the other."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _types(sequence, size: int, order: str) -> Tensor:
    """Indices into RESIDUES (R,), from a text, an array of letters, or whole numbers that index into `order`."""
    letters = _letters(sequence, order)
    if len(letters) != size:
        raise StructureError("sequence", f"of {len(letters)} residues beside pos of {size}")
    for row, letter in enumerate(letters):
        if letter not in ONE_LETTER:
            raise StructureError("sequence", f"{letter!r} is none of the 20 amino acids {ONE_LETTER}", f"residue {row}")
    return torch.tensor([ONE_LETTER.index(letter) for letter in letters])


def _letters(sequence, order: str) -> str:
    """One-letter codes, as `_types` is given them."""
    if isinstance(sequence, str):
        return sequence
    if not isinstance(sequence, Tensor):
        cells = np.asarray(sequence).flatten().tolist()  # of the column of a table too
        letters = [cell.decode("latin-1") if isinstance(cell, bytes) else cell for cell in cells]
        if letters and all(isinstance(letter, str) for letter in letters):
            return "".join(letters)
    numbers = _array("sequence", sequence, "R")
    if numbers.dtype == torch.bool or numbers.is_floating_point() or numbers.is_complex():
        raise StructureError("sequence", "neither letters nor whole numbers", str(numbers.dtype))
    numbers = numbers.tolist()
    if min(numbers) < 0 or max(numbers) >= len(order):
        raise StructureError("sequence", f"numbers beyond 0 to 19, which count {order}")
    return "".join(order[number] for number in numbers)


def _fields(pos: Tensor, atom_name: Tensor, atom_residue: Tensor, residue_type: Tensor, chain) -> dict[str, Tensor]:
    """All fields of one protein; residues are numbered from 1 in each chain."""
    finite = pos.isfinite().all(1)
    if not finite.all():
        row = int(atom_residue[~finite][0])
        raise StructureError("pos", "not finite", f"residue {row}")

    # A chain begins wherever the name changes, and its name does not come back.
    device = pos.device
    size = len(residue_type)
    names = _chain_names(chain, size)
    starts = [row for row in range(size) if row == 0 or names[row] != names[row - 1]]
    different = {str(name) for name in names}
    if len(different) != len(starts):
        raise StructureError("chain", "residues of one chain do not stand together")
    start = torch.tensor(starts)
    lengths = torch.tensor([*starts[1:], size]) - start
    chain = torch.arange(len(starts)).repeat_interleave(lengths)
    index = torch.arange(size) - start[chain]
    index = index.to(device)
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
        "chain": chain.to(device),
        "residue_protein": torch.zeros(size, dtype=torch.long, device=device),
    }


def _chain_names(chain, size: int) -> list:
    """The name or number of every residue's chain; without any, all are of one."""
    if chain is None:
        return [0] * size
    names = chain.tolist() if hasattr(chain, "tolist") else list(chain)
    if len(names) != size:
        raise StructureError("chain", f"of {len(names)} residues beside pos of {size}")
    return names
