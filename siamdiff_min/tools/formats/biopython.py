"""Structures, models and chains of Biopython to columns of atoms."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from Bio.PDB.Entity import Entity

from ...reading.columns import OTHER_MODELS, Atoms, Column, Model


def biopython_models(entity: Entity) -> Iterator[Model]:
    """One model after the other. Biopython's parser has left out what it took for duplicates."""
    models = {"S": list(entity), "M": [entity], "C": [[entity]]}.get(entity.level, [])
    for chains in models:
        yield _atoms_of(chains), Counter({OTHER_MODELS: len(models) - 1}), None


def _atoms_of(chains) -> Atoms:
    """The atoms of some chains, by columns."""
    residues = []
    atoms = []
    for chain in chains:
        for residue in chain.get_unpacked_list():
            for atom in residue.get_unpacked_list():
                residues.append((chain.id.strip(), *residue.id, residue.resname.strip(), residue.segid.strip()))
                atoms.append(atom)
    chain_id, hetero, number, code, name, segment = list(zip(*residues)) or [()] * 6
    return Atoms(
        chain=Column.of(chain_id),
        number=np.array(number, np.int64),
        code=Column.of([text or " " for text in code]),
        residue=Column.of(name),
        atom=Column.of([atom.name for atom in atoms]),
        altloc=Column.of([atom.altloc for atom in atoms]),
        occupancy=np.array([1.0 if atom.occupancy is None else atom.occupancy for atom in atoms], float),
        xyz=np.array([atom.coord.tolist() for atom in atoms], float).reshape(-1, 3),
        element=Column.of([(atom.element or "").upper() for atom in atoms]),
        hetero=np.array([text != " " for text in hetero], bool),
        b_factor=Column.of([atom.bfactor for atom in atoms]),
        place=np.arange(len(atoms)),
        marks=(Column.of(segment),),
    )
