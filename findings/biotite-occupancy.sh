#!/usr/bin/env bash
# An mmCIF file that biotite reads and writes again, as it comes, has no occupancies and no B factors: annotations that
# are not asked for are left out. Biopython's MMCIFParser ends with a KeyError on it, though both columns are optional
# in mmCIF; gemmi reads it.
#
# biotite 2.0.0 (Python 3.12 and later), Biopython 1.88, gemmi 0.7.5, 2026-11-28. Seen: KeyError '_atom_site.B_iso_or_equiv'; with
# extra_fields=["occupancy", "b_factor"] Biopython reads the two atoms.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q biotite==2.0.0 biopython==1.88 gemmi==0.7.5
cat > "$folder/in.cif" <<'CIF'
data_in
loop_
_atom_site.group_PDB
_atom_site.id
_atom_site.type_symbol
_atom_site.label_atom_id
_atom_site.label_alt_id
_atom_site.label_comp_id
_atom_site.label_asym_id
_atom_site.label_entity_id
_atom_site.label_seq_id
_atom_site.pdbx_PDB_ins_code
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
_atom_site.occupancy
_atom_site.B_iso_or_equiv
_atom_site.auth_seq_id
_atom_site.auth_comp_id
_atom_site.auth_asym_id
_atom_site.auth_atom_id
_atom_site.pdbx_PDB_model_num
ATOM 1 N N  . ALA A 1 1 ? 43.036 -0.783 16.269 1.00 5.57 1 ALA A N  1
ATOM 2 C CA . ALA A 1 1 ? 44.276 -0.843 15.570 1.00 6.87 1 ALA A CA 1
CIF
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import pathlib
import sys

import gemmi
from Bio.PDB import MMCIFParser
from biotite.structure.io import pdbx

folder = pathlib.Path(sys.argv[1])


def copied(name: str, *fields: str) -> str:
    atoms = pdbx.get_structure(pdbx.CIFFile.read(folder / "in.cif"), model=1, extra_fields=list(fields))
    file = pdbx.CIFFile()
    pdbx.set_structure(file, atoms)
    file.write(folder / name)
    return str(folder / name)


plain, asked = copied("plain.cif"), copied("asked.cif", "occupancy", "b_factor")
try:
    seen = len(list(MMCIFParser(QUIET=True).get_structure("x", plain).get_atoms()))
except KeyError as error:
    seen = str(error)
whole = len(list(MMCIFParser(QUIET=True).get_structure("x", asked).get_atoms()))
by_gemmi = gemmi.read_structure(plain)[0].count_atom_sites()
print("Biopython, as it comes:", seen, "asked for:", whole, "gemmi, as it comes:", by_gemmi)
assert "B_iso_or_equiv" not in pathlib.Path(plain).read_text()
assert (seen, whole, by_gemmi) == ("'_atom_site.B_iso_or_equiv'", 2, 2)
PYTHON
