#!/usr/bin/env bash
# chemfiles writes mmCIF without the line `data_...` that begins a data block. By the grammar of CIF no table may stand
# outside of one, so other readers refuse the file.
#
# chemfiles 0.10.4, 2026-11-28, one atom. Seen: no data_ in the file; Biopython 1.88 and gemmi 0.7.5 refuse it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q chemfiles==0.10.4 biopython==1.88 gemmi==0.7.5
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import chemfiles
import gemmi
from Bio.PDB.MMCIF2Dict import MMCIF2Dict

folder = sys.argv[1]
frame = chemfiles.Frame()
frame.add_atom(chemfiles.Atom("CA"), [1, 2, 3])
residue = chemfiles.Residue("GLY", 1)
residue.atoms.append(0)
frame.add_residue(residue)
with chemfiles.Trajectory(f"{folder}/out.mmcif", "w") as out:
    out.write(frame)
with open(f"{folder}/out.mmcif") as file:
    text = file.read()
print(text)
assert "_atom_site.Cartn_x" in text and "data_" not in text
for read, said in ((MMCIF2Dict, "must begin with a 'data_'"), (gemmi.cif.read, "expected block header")):
    try:
        read(f"{folder}/out.mmcif")
        sys.exit("it is read")
    except ValueError as error:
        print(error)
        assert said in str(error)
PYTHON
