"""Labels of residues for `benchmarks.probe`, made from the coordinates of single chains, in angstrom."""

import numpy as np
import torch
from Bio.PDB.Atom import Atom
from Bio.PDB.Chain import Chain
from Bio.PDB.Residue import Residue
from Bio.PDB.SASA import ShrakeRupley
from torch.nn import functional as F

from siamdiff_min.encoders.ops import segment_mean
from siamdiff_min.protein.constants import ATOM_NAMES, CA, ELEMENTS, RESIDUES, C, N, O
from siamdiff_min.protein.geometry import dihedral
from siamdiff_min.protein.protein import Protein

LARGEST_AREA = dict(  # square angstrom, Tien et al. (2013), PLoS ONE 8:e80635, Table 1, theoretical
    zip(
        "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL".split(),  # noqa: SIM905
        (129, 274, 195, 193, 167, 225, 223, 104, 224, 197, 201, 236, 224, 240, 159, 155, 172, 285, 263, 174),
    )
)
CB = ATOM_NAMES.index("CB")


def atoms_of(protein: Protein, name: int) -> torch.Tensor:
    """Coordinates (R, 3) of the atom of this name in every residue, nan where there is none; float64."""
    found = torch.full((protein.num_residues, 3), torch.nan, dtype=torch.float64)
    here = protein.atom_name == name
    return found.index_copy(0, protein.atom_residue[here], protein.pos[here].double())


def hydrogen_bonds(protein: Protein) -> np.ndarray:
    """bonded[i, j] (R, R): CO of i and NH of j, by the energy of Kabsch and Sander (1983), below -0.5 kcal/mol.

    The hydrogen is 1 angstrom from N, along the CO of the residue before; proline and starts of chains have none.
    """
    n, c, o = (atoms_of(protein, name) for name in (N, C, O))
    linked = torch.linalg.vector_norm(n[1:] - c[:-1], dim=-1) < 2.5
    h = torch.full_like(n, torch.nan)
    h[1:][linked] = (n[1:] + F.normalize(c[:-1] - o[:-1], dim=-1))[linked]
    h[protein.residue_type == RESIDUES.index("PRO")] = torch.nan

    def inverse(a, b):
        return 1 / torch.linalg.vector_norm(a[:, None] - b[None], dim=-1).clamp(min=0.5)

    energy = 27.9 * (inverse(o, n) + inverse(c, h) - inverse(o, h) - inverse(c, n))
    row = torch.arange(len(n))
    far = (row[:, None] - row[None]).abs() >= 2
    return ((energy < -0.5) & far).numpy()


def secondary_structure(protein: Protein) -> np.ndarray:
    """0 other, 1 helix, 2 strand (R,), after Kabsch and Sander (1983), for one chain.

    Helix: i .. i + 3 if CO of i - 1 and of i are bonded to NH four places on, and -150 < psi < 50, phi < 0. Strand:
    part of a parallel or antiparallel bridge to a residue three or more places away, and psi is outside -120 .. 50.
    """
    bond = hydrogen_bonds(protein)
    r = len(bond)
    wide = np.zeros((r + 2, r + 2), dtype=bool)
    wide[1:-1, 1:-1] = bond
    before, after = slice(0, r), slice(2, r + 2)
    row = np.arange(r)
    parallel = wide[before, 1:-1] & wide[1:-1, after].T  # i - 1 to j, and j to i + 1
    bridge = parallel | parallel.T | (bond & bond.T) | (wide[before, after] & wide[before, after].T)
    bridge &= abs(row[:, None] - row[None]) >= 3
    turn = np.zeros(r + 4, dtype=bool)
    turn[: max(r - 4, 0)] = np.diagonal(bond, 4)
    start = turn[1:] & turn[:-1]  # of residues i = 1, 2, ...
    helix = np.zeros(r + 8, dtype=bool)
    for shift in range(4):
        helix[1 + shift : 1 + shift + len(start)] |= start
    n, ca, c = (atoms_of(protein, name) for name in (N, CA, C))
    phi, psi = np.full(r, np.nan), np.full(r, np.nan)
    phi[1:] = dihedral(c[:-1], n[1:], ca[1:], c[1:]).rad2deg()
    psi[:-1] = dihedral(n[:-1], ca[:-1], c[:-1], n[1:]).rad2deg()
    found = np.zeros(r, dtype=np.uint8)
    found[bridge.any(1) & ((psi > 50) | (psi < -120))] = 2
    found[helix[:r] & (psi > -150) & (psi < 50) & (phi < 0)] = 1
    return found


def exposure(protein: Protein) -> np.ndarray:
    """Solvent accessible area of every residue over the largest of its type (R,)."""
    chain, places = Chain("A"), protein.atom_residue.tolist()
    for i, kind in enumerate(protein.residue_type.tolist()):
        chain.add(Residue((" ", i, " "), RESIDUES[kind], " "))
    for k, (name, element) in enumerate(zip(protein.atom_name.tolist(), protein.element.tolist())):
        text, pos = ATOM_NAMES[name], protein.pos[k].numpy()
        chain[places[k]].add(Atom(text, pos, 0.0, 1.0, " ", text, k, ELEMENTS[element]))
    ShrakeRupley(n_points=60).compute(chain, level="R")
    return np.array([residue.sasa / LARGEST_AREA[residue.resname] for residue in chain])


def labels_of(protein: Protein, partner: Protein | None) -> dict[str, np.ndarray]:
    """The labels of a chain, or with a partner those of the interface."""
    if partner is not None:
        near = torch.cdist(protein.pos, partner.pos, compute_mode="donot_use_mm_for_euclid_dist").amin(1) < 6
        return {"interface": segment_mean(near.double(), protein.atom_residue, protein.num_residues).numpy() > 0}
    beta = atoms_of(protein, CB)
    beta = torch.where(beta.isnan(), atoms_of(protein, CA), beta).numpy()
    distance = np.linalg.norm(beta[:, None] - beta[None], axis=-1)
    place = protein.residue_index.numpy()
    far = abs(place[:, None] - place[None]) >= 24
    return {
        "structure": secondary_structure(protein),
        "contacts": ((distance < 10).sum(1) - 1).astype(float),
        "longrange": ((distance < 8) & far).sum(1).astype(float),
        "exposure": exposure(protein),
    }
