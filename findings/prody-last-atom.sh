#!/usr/bin/env bash
# ProDy's parseMMCIF leaves out the last atom of a file that ends with its line, as files of gemmi do: a category of
# mmCIF need not be followed by "#" or an empty line. Nothing is said.
#
# ProDy 2.6.1, 2026-11-28, four atoms. Seen: three atoms without a line "#" behind them, four with it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q prody==2.6.1
cat > "$folder/ends-with-atom.cif" <<'CIF'
data_x
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
CIF
(cat "$folder/ends-with-atom.cif" && echo "#") > "$folder/ends-with-hash.cif"
"$folder/venv/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import prody

prody.confProDy(verbosity="none")
seen = {name: prody.parseMMCIF(f"{sys.argv[1]}/{name}.cif").numAtoms() for name in ("ends-with-atom", "ends-with-hash")}
print("atoms read, of 4:", seen)
assert seen == {"ends-with-atom": 3, "ends-with-hash": 4}
PYTHON
