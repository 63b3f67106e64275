"""The fields of a `Protein` from arrays of a user's own, numpy or tensors: see `Protein.from_ca`, `from_atom37`.

Wrong shapes or values raise a StructureError that names the array and the residue.
"""

import numpy as np
import torch
from torch import Tensor

from ..files import StructureError
from .constants import AATYPE, ATOM37, ATOM_ELEMENT, ATOM_INDEX, CA, ONE_LETTER, RESIDUE_ATOMS, RESIDUES

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
    slots = _SLOTS.to(pos.device)[residue_type]  # (R, 15)
    present = mask.gather(1, slots.clamp(min=0)) & (slots >= 0)
    if (wrong := (present.sum(1) != mask.sum(1)).nonzero()).numel():
        row = int(wrong[0])
        name, atoms = RESIDUES[residue_type[row]], [ATOM37[i] for i in mask[row].nonzero().squeeze(1).tolist()]
        other = next(atom for atom in atoms if atom not in [*RESIDUE_ATOMS[name], "OXT"])
        raise StructureError("mask", f"{name} has no {other}", f"residue {row}; numbers of a sequence count {AATYPE}")
    if (without := (~mask[:, ATOM37.index("CA")]).nonzero()).numel():
        raise StructureError("mask", "a residue without CA", f"residue {int(without[0])}; leave out such residues")
    atom_residue, slot = present.nonzero().unbind(1)
    column = slots[atom_residue, slot]
    return _fields(pos[atom_residue, column], _NAMES.to(pos.device)[column], atom_residue, residue_type, chain)


def _array(name: str, value, *shape: str | int) -> Tensor:
    """A tensor of this shape, in which a letter stands for any size. Anything but a tensor is copied."""
    try:
        array = value if isinstance(value, Tensor) else torch.from_numpy(_native(np.array(value)))
    except (TypeError, ValueError) as error:
        raise StructureError(name, "not an array of numbers", str(error)) from error
    if array.dtype in (torch.float16, torch.bfloat16) and name == "pos":
        detail = "it moves atoms by up to .25 angstrom: give float32, and compute under torch.autocast"
        raise StructureError(name, "coordinates in half precision", detail)
    if array.ndim != len(shape) or any(want not in (size, "R") for want, size in zip(shape, array.shape)):
        batch = "; pack one protein for each, see Protein.pack" if array.ndim == len(shape) + 1 else ""
        expected = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        raise StructureError(name, f"of shape {tuple(array.shape)} in place of {expected}{batch}")
    if not len(array):
        raise StructureError(name, "no residue in it")
    return array


def _native(array: np.ndarray) -> np.ndarray:
    """The array in the byte order of this machine: files of NetCDF have the other."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _types(sequence, size: int, order: str) -> Tensor:
    """Indices into RESIDUES (R,), from a text, an array of letters, or whole numbers that index into `order`."""
    if not isinstance(sequence, (str, Tensor)):
        letters = np.asarray(sequence).flatten().tolist()  # of the column of a table too
        letters = [x.decode("latin-1") if isinstance(x, bytes) else x for x in letters]
        sequence = "".join(letters) if letters and all(isinstance(x, str) for x in letters) else sequence
    if not isinstance(sequence, str):
        numbers = _array("sequence", sequence, "R")
        if numbers.dtype == torch.bool or numbers.is_floating_point() or numbers.is_complex():
            raise StructureError("sequence", "neither letters nor whole numbers", str(numbers.dtype))
        if not all(0 <= i < len(order) for i in numbers.tolist()):
            raise StructureError("sequence", f"numbers beyond 0 to 19, which count {order}")
        sequence = "".join(order[i] for i in numbers.tolist())
    if len(sequence) != size:
        raise StructureError("sequence", f"of {len(sequence)} residues beside pos of {size}")
    for row, letter in enumerate(sequence):
        if letter not in ONE_LETTER:
            raise StructureError("sequence", f"{letter!r} is none of the 20 amino acids {ONE_LETTER}", f"residue {row}")
    return torch.tensor([ONE_LETTER.index(letter) for letter in sequence])


def _fields(pos: Tensor, atom_name: Tensor, atom_residue: Tensor, residue_type: Tensor, chain) -> dict[str, Tensor]:
    """All fields of one protein; residues are numbered from 1 in each chain."""
    if not pos.isfinite().all():
        row = int(atom_residue[~pos.isfinite().all(1)][0])
        raise StructureError("pos", "not finite", f"residue {row}")
    device, size = pos.device, len(residue_type)
    names = [0] * size if chain is None else chain.tolist() if hasattr(chain, "tolist") else list(chain)
    if len(names) != size:
        raise StructureError("chain", f"of {len(names)} residues beside pos of {size}")
    starts = [i for i in range(size) if i == 0 or names[i] != names[i - 1]]
    if len({*map(str, names)}) != len(starts):
        raise StructureError("chain", "residues of one chain do not stand together")
    lengths = torch.tensor([*starts[1:], size]) - torch.tensor(starts)
    index = torch.cat([torch.arange(length) for length in lengths.tolist()]).to(device)
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
        "chain": torch.arange(len(starts)).repeat_interleave(lengths).to(device),
        "residue_protein": torch.zeros(size, dtype=torch.long, device=device),
    }
