#!/usr/bin/env bash
# Open Babel writes mmCIF without a name of the chain: neither label_asym_id nor auth_asym_id. Two chains that begin
# with residue 1 become one, in which every residue stands twice, and nothing is said.
#
# openbabel-wheel 3.1.1.23, 2026-11-28, two residues GLY 1 in chains A and B. Seen: the columns of _atom_site are id,
# type_symbol, label_atom_id, label_comp_id, label_entity_id, label_seq_id and the coordinates.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openbabel-wheel==3.1.1.23
cat > "$folder/in.pdb" <<'PDB'
ATOM      1  N   GLY A   1       0.000   0.000   0.000  1.00  0.00           N
ATOM      2  CA  GLY A   1       1.458   0.000   0.000  1.00  0.00           C
ATOM      3  C   GLY A   1       2.009   1.420   0.000  1.00  0.00           C
ATOM      4  O   GLY A   1       1.251   2.390   0.000  1.00  0.00           O
TER       5      GLY A   1
ATOM      6  N   GLY B   1      20.000   0.000   0.000  1.00  0.00           N
ATOM      7  CA  GLY B   1      21.458   0.000   0.000  1.00  0.00           C
ATOM      8  C   GLY B   1      22.009   1.420   0.000  1.00  0.00           C
ATOM      9  O   GLY B   1      21.251   2.390   0.000  1.00  0.00           O
TER      10      GLY B   1
END
PDB
"$folder/venv/bin/python" - "$folder/in.pdb" <<'PYTHON'
import re
import sys

from openbabel import pybel

molecule = next(pybel.readfile("pdb", sys.argv[1]))
chains = {residue.OBResidue.GetChain() for residue in molecule.residues}
columns = re.findall(r"_atom_site\.(\w+)", molecule.write("mmcif"))
print("chains read:", sorted(chains), "columns written:", columns)
assert chains == {"A", "B"} and "label_atom_id" in columns
assert not any("asym" in column for column in columns)
PYTHON
