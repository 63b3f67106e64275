"""Proteins: vocabularies, the frozen `Protein`, reading files, geometry, conformers (Sec. 4.1)."""
