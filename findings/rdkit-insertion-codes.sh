#!/usr/bin/env bash
# RDKit's AddHs(addResidueInfo=True) gives the hydrogens the number of their residue, but not its insertion code. So
# those of residue 184A are written as residue 184, which is another residue.
#
# RDKit 2026.9.1, 2026-11-28, residues 183, 184 and 184A of PDB entry 1GBT. Seen: heavy atoms of TYR have code "A", its
# hydrogens "".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q rdkit==2026.9.1
cat > "$folder/in.pdb" <<'PDB'
ATOM   1191  N   ALA A 183      43.036  -0.783  16.269  1.00  5.57           N
ATOM   1192  CA  ALA A 183      44.276  -0.843  15.570  1.00  6.87           C
ATOM   1193  C   ALA A 183      45.017  -2.088  16.063  1.00  6.76           C
ATOM   1194  O   ALA A 183      44.984  -2.416  17.280  1.00  6.11           O
ATOM   1195  CB  ALA A 183      45.105   0.328  16.051  1.00  7.87           C
ATOM   1196  N   GLY A 184      45.795  -2.744  15.167  1.00  7.04           N
ATOM   1197  CA  GLY A 184      46.525  -3.830  15.771  1.00  7.26           C
ATOM   1198  C   GLY A 184      46.510  -5.024  14.871  1.00  7.62           C
ATOM   1199  O   GLY A 184      46.448  -4.829  13.656  1.00  6.80           O
ATOM   1200  N   TYR A 184A     46.448  -6.214  15.478  1.00  9.04           N
ATOM   1201  CA  TYR A 184A     46.520  -7.482  14.726  1.00  9.90           C
ATOM   1202  C   TYR A 184A     45.436  -8.490  15.136  1.00 11.10           C
ATOM   1203  O   TYR A 184A     45.260  -8.916  16.285  1.00 10.93           O
ATOM   1204  CB  TYR A 184A     47.955  -8.052  15.009  1.00  7.51           C
ATOM   1205  CG  TYR A 184A     49.021  -7.123  14.581  1.00  6.64           C
ATOM   1206  CD1 TYR A 184A     49.474  -6.045  15.344  1.00  7.73           C
ATOM   1207  CD2 TYR A 184A     49.662  -7.309  13.368  1.00  7.10           C
ATOM   1208  CE1 TYR A 184A     50.552  -5.215  15.010  1.00  8.12           C
ATOM   1209  CE2 TYR A 184A     50.666  -6.417  12.963  1.00  8.22           C
ATOM   1210  CZ  TYR A 184A     51.095  -5.375  13.754  1.00  8.41           C
ATOM   1211  OH  TYR A 184A     52.044  -4.501  13.306  1.00  9.56           O
END
PDB
"$folder/venv/bin/python" - "$folder/in.pdb" <<'PYTHON'
import sys

from rdkit import Chem

molecule = Chem.AddHs(Chem.MolFromPDBFile(sys.argv[1]), addCoords=True, addResidueInfo=True)
codes = {"heavy": set(), "hydrogen": set()}
for atom in molecule.GetAtoms():
    residue = atom.GetPDBResidueInfo()
    if residue.GetResidueName() == "TYR":
        codes["hydrogen" if atom.GetAtomicNum() == 1 else "heavy"].add(residue.GetInsertionCode().strip())
print("insertion codes of the atoms of TYR 184A:", codes)
assert codes == {"heavy": {"A"}, "hydrogen": {""}}
PYTHON
