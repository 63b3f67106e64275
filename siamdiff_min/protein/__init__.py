"""What a protein is: vocabularies, the frozen `Protein`, reading and writing files, geometry, conformers (Sec. 4.1)."""
