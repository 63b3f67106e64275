"""Structures, models and chains of Biopython to columns of atoms."""

from collections import Counter
from collections.abc import Iterator

from Bio.PDB.Entity import Entity

from ...reading.columns import OTHER_MODELS, AtomRow, Model, columns_of


def biopython_models(entity: Entity) -> Iterator[Model]:
    """One model after the other. Biopython's parser has left out what it took for duplicates."""
    models = {"S": list(entity), "M": [entity], "C": [[entity]]}.get(entity.level, [])
    for chains in models:
        rows = []
        for chain in chains:
            for residue in chain.get_unpacked_list():
                hetero, number, code = residue.id
                of_residue = chain.id.strip(), number, code, residue.resname.strip()
                segment = residue.segid.strip()
                for atom in residue.get_unpacked_list():
                    occupancy = 1.0 if atom.occupancy is None else float(atom.occupancy)
                    xyz, element = tuple(atom.coord.tolist()), (atom.element or "").upper()
                    of_atom = atom.name, atom.altloc, occupancy, xyz, element, atom.bfactor
                    rows.append(AtomRow(*of_residue, *of_atom, hetero != " ", segment))
        yield columns_of(rows), Counter({OTHER_MODELS: len(models) - 1}), None
