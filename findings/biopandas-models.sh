#!/usr/bin/env bash
# BioPandas converts mmCIF to PDB without the number of the model: an NMR entry becomes one model in which every atom
# stands as often as there are models, with the same chain, number and name, at different places.
#
# biopandas 0.5.2, 2026-11-28, a residue in two models. Seen: two CA atoms of GLY 1 in chain A, and no line MODEL.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q biopandas==0.5.2
cat > "$folder/in.cif" <<'CIF'
data_x
_entry.id x
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
_atom_site.pdbx_formal_charge
_atom_site.auth_seq_id
_atom_site.auth_comp_id
_atom_site.auth_asym_id
_atom_site.auth_atom_id
_atom_site.pdbx_PDB_model_num
ATOM 1 N N . GLY A 1 1 ? 0.000 0.000 0.000 1.00 0.00 ? 1 GLY A N 1
ATOM 2 C CA . GLY A 1 1 ? 1.458 0.000 0.000 1.00 0.00 ? 1 GLY A CA 1
ATOM 3 C C . GLY A 1 1 ? 2.009 1.420 0.000 1.00 0.00 ? 1 GLY A C 1
ATOM 4 O O . GLY A 1 1 ? 1.251 2.390 0.000 1.00 0.00 ? 1 GLY A O 1
ATOM 5 N N . GLY A 1 1 ? 1.000 0.000 0.000 1.00 0.00 ? 1 GLY A N 2
ATOM 6 C CA . GLY A 1 1 ? 2.458 0.000 0.000 1.00 0.00 ? 1 GLY A CA 2
ATOM 7 C C . GLY A 1 1 ? 3.009 1.420 0.000 1.00 0.00 ? 1 GLY A C 2
ATOM 8 O O . GLY A 1 1 ? 2.251 2.390 0.000 1.00 0.00 ? 1 GLY A O 2
#
CIF
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

from biopandas.mmcif import PandasMmcif

PandasMmcif().read_mmcif(f"{sys.argv[1]}/in.cif").convert_to_pandas_pdb().to_pdb(f"{sys.argv[1]}/out.pdb")
lines = Path(sys.argv[1], "out.pdb").read_text().splitlines()
alphas = [line for line in lines if line.startswith("ATOM") and line[12:16].strip() == "CA"]
print(*alphas, sep="\n")
assert len(alphas) == 2 and alphas[0][12:26] == alphas[1][12:26] and alphas[0][30:54] != alphas[1][30:54]
assert not any(line.startswith("MODEL") for line in lines)
PYTHON
