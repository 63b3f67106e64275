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
from ...protein.protein import Protein

RADIUS = 10.0  # angstrom between CA: the first two shells of neighbours
REACH = 2  # neighbours on each side in the chain


def composition(protein: Protein) -> Tensor:
    """The share of every residue type and the log of the length of each protein: (B, 21) float64."""
    types = F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES).double()
    count = segment_sum(types, protein.residue_protein, protein.num_proteins)
    length = count.sum(1, keepdim=True)
    return torch.cat([count / length, length.log()], 1)


def surroundings(protein: Protein, focus: Tensor) -> Tensor:
    """Of the residues in `focus` (R,): own type, those of neighbours, number of residues within RADIUS. (K, 101)."""
    types = F.one_hot(protein.residue_type, NUM_RESIDUE_TYPES).double()
    rows = torch.arange(len(types))
    columns = [types]
    for offset in range(1, REACH + 1):
        for step in (-offset, offset):
            neighbour = (rows + step).clamp(0, len(rows) - 1)
            same_chain = protein.chain[neighbour] == protein.chain
            same_protein = protein.residue_protein[neighbour] == protein.residue_protein
            there = same_chain & same_protein & (neighbour == rows + step)
            columns.append(types[neighbour] * there[:, None])

    ca = protein.pos[protein.atom_name == CA].double()
    residue_of_ca = protein.atom_residue[protein.atom_name == CA]
    owner = protein.residue_protein[residue_of_ca]
    near = torch.zeros(len(types), dtype=torch.float64)
    for b in range(protein.num_proteins):
        own = owner == b
        within = torch.cdist(ca[own], ca[own]) <= RADIUS
        near[residue_of_ca[own]] = within.sum(1).double() - 1  # not itself
    return torch.cat([*columns, near[:, None]], 1)[focus]


def of_sample(sample: Sample, residues: bool) -> Tensor:
    """The features of a sample's structures (B, 21), or of its `residues` in focus (K, 101)."""
    protein = sample.protein.to("cpu")
    return surroundings(protein, sample.focus.cpu()) if residues else composition(protein)
