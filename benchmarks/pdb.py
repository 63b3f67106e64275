"""Writing a protein as a PDB file."""

import string
from pathlib import Path

from siamdiff_min.protein.constants import ATOM_ELEMENT, ATOM_NAMES, ELEMENTS, RESIDUES
from siamdiff_min.protein.protein import Protein

CHAIN_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits


def write_pdb(path_or_file, protein: Protein, chain_names: tuple[str, ...] | None = None) -> None:
    """Write one protein as a PDB file. `read_structure` gives it back with coordinates rounded to 0.001 angstrom.

    Residues that lost their CA are written, but not read back. `chain_names` are single characters, one for every value
    of `protein.chain`; by default A, B, C, ... Numbers and coordinates must fit into their columns.
    """
    names = CHAIN_LETTERS if chain_names is None else [name or " " for name in chain_names]
    chains = protein.chain.tolist()
    per_residue = protein.residue_type, protein.residue_number, protein.insertion_code
    labels = [
        f"{RESIDUES[kind]} {names[chain]}{number:4d}{chr(code)}"
        for chain, kind, number, code in zip(chains, *(x.tolist() for x in per_residue))
    ]
    lines, previous = [], None
    per_atom = zip(protein.atom_residue.tolist(), protein.atom_name.tolist(), protein.pos.tolist())
    for residue, atom, (x, y, z) in per_atom:
        if previous is not None and chains[residue] != chains[previous]:
            lines.append(f"TER   {(len(lines) + 1) % 100000:5d}      {labels[previous]}")
        previous, element = residue, ELEMENTS[ATOM_ELEMENT[atom]]
        lines.append(
            f"ATOM  {(len(lines) + 1) % 100000:5d}  {ATOM_NAMES[atom]:<3} {labels[residue]}   "
            f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00          {element:>2}"
        )
    text = "\n".join([*lines, "TER", "END", ""])
    if hasattr(path_or_file, "write"):
        path_or_file.write(text)
    else:
        Path(path_or_file).write_text(text, encoding="ascii")
