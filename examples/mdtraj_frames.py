"""Vectors of the frames of a trajectory that MDTraj reads, in nanometres."""

import mdtraj
import numpy as np

import siamdiff_min
from siamdiff_min.protein.constants import ATOM37

encoder = siamdiff_min.load_encoder("siamdiff-residue", "cpu")
topology = mdtraj.load_topology("run.pdb")
residues = [atom.residue for atom in topology.atoms if atom.name == "CA" and atom.residue.code]  # no calcium
sequence, chain = "".join(x.code for x in residues), [x.chain.index for x in residues]
known = [(row, ATOM37.index(a.name), a.index) for row, x in enumerate(residues) for a in x.atoms if a.name in ATOM37]
row, column, atom = np.array(known).T
mask, pos = np.zeros((len(residues), 37)), np.zeros((len(residues), 37, 3))
mask[row, column] = 1
for part in mdtraj.iterload("run.xtc", top=topology, chunk=100):  # 100 frames in memory
    for frame in part.xyz:
        pos[row, column] = 10 * frame[atom]  # to angstrom
        vectors = encoder.embed(siamdiff_min.Protein.from_atom37(pos, mask, sequence, chain)).per_residue
