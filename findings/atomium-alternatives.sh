#!/usr/bin/env bash
# Of alternative atoms atomium keeps the first of the file, however rarely it was seen, and writes it as one that is
# always there: an atom of occupancy .30 becomes one of 1.00, and the place of the other .70 is gone.
#
# atomium 1.0.11, 2026-11-28, one residue with two places of CB. Seen: CB of A (.30) is kept and written with 1.00.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q atomium==1.0.11
cat > "$folder/in.pdb" <<'PDB'
ATOM     10  N   TYR A 184      46.448  -6.214  15.478  1.00  9.04           N
ATOM     11  CA  TYR A 184      46.520  -7.482  14.726  1.00  9.90           C
ATOM     12  C   TYR A 184      45.436  -8.490  15.136  1.00 11.10           C
ATOM     13  O   TYR A 184      45.260  -8.916  16.285  1.00 10.93           O
ATOM     14  CB ATYR A 184      47.955  -8.052  15.009  0.30  7.51           C
ATOM     15  CB BTYR A 184      47.055  -8.552  15.309  0.70  8.51           C
TER
END
PDB
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import atomium

folder = sys.argv[1]
model = atomium.open(f"{folder}/in.pdb").model
model.save(f"{folder}/out.pdb")
with open(f"{folder}/out.pdb") as file:
    found = [line.rstrip() for line in file if line[12:16].strip() == "CB"]
print(*found, sep="\n")
assert len(found) == 1
assert (found[0][30:38].strip(), found[0][54:60].strip()) == ("47.955", "1.00")
PYTHON
