"""What a linear head is asked to beat first: the same head of the length and the composition of the sequence.

Of a residue: its type, the types of its neighbours in the chain, and how many residues are near. None of it needs a
trained encoder.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...downstream.sample import Sample
from ...encoders.ops import segment_sum
from ...protein.constants import CA, NUM_RESIDUE_TYPES
from ...protein.neighbors import histogram, radius_neighbors
from ...protein.protein import Protein

RADIUS = 10.0  # angstrom between CA: the first two shells of neighbours
BESIDE = (-1, 1, -2, 2)  # steps along the chain to the neighbours
REACH = max(BESIDE)


def composition(protein: Protein) -> Tensor:
    """The share of every residue type and the log of the length of each protein: (B, 21) float64."""
    types = F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES).double()
    count = segment_sum(types, protein.residue_protein, protein.num_proteins)
    length = count.sum(1, keepdim=True)
    return torch.cat([count / length, length.log()], 1)


def surroundings(protein: Protein, focus: Tensor) -> Tensor:
    """Of the residues in `focus` (R,): own type, those of neighbours, number of residues within RADIUS. (K, 101)."""
    types = F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES).double()
    chain = protein.residue_protein * (protein.chain.max() + 1) + protein.chain  # of all proteins
    padded = F.pad(types, (0, 0, REACH, REACH))
    padded_chain = F.pad(chain, (REACH, REACH), value=-1)
    columns = [types]
    for step in BESIDE:
        beside = slice(REACH + step, REACH + step + len(types))
        columns.append(padded[beside] * (padded_chain[beside] == chain)[:, None])

    is_ca = protein.atom_name == CA
    residue = protein.atom_residue[is_ca]
    point, _ = radius_neighbors(protein.pos[is_ca].double(), protein.residue_protein[residue], RADIUS, None)
    near = histogram(residue[point], len(types)).double()
    return torch.cat([*columns, near[:, None]], 1)[focus]


def of_sample(sample: Sample, residues: bool) -> Tensor:
    """The features of a sample's structures (B, 21), or of its `residues` in focus (K, 101)."""
    protein = sample.protein.to("cpu")
    return surroundings(protein, sample.focus.cpu()) if residues else composition(protein)
