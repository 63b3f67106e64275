#!/usr/bin/env bash
# chemfiles copies a PDB file with occupancy 1.00 and B factor 0.00 in every line. Both alternatives of an atom then are
# always there, so that no reader can take the one that was seen more often, and a prediction has lost its confidence.
#
# chemfiles 0.10.4, 2026-11-28, one residue with two places of CB (.30 and .70). Seen: both with 1.00, all with 0.00.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q chemfiles==0.10.4
cat > "$folder/in.pdb" <<'PDB'
ATOM     11  CA  TYR A 184      46.520  -7.482  14.726  1.00  9.90           C
ATOM     14  CB ATYR A 184      47.955  -8.052  15.009  0.30  7.51           C
ATOM     15  CB BTYR A 184      47.055  -8.552  15.309  0.70  8.51           C
END
PDB
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import chemfiles

folder = sys.argv[1]
frame = chemfiles.Trajectory(f"{folder}/in.pdb").read()
with chemfiles.Trajectory(f"{folder}/out.pdb", "w") as out:
    out.write(frame)
with open(f"{folder}/out.pdb") as file:
    found = [line.rstrip() for line in file if line.startswith("ATOM")]
print(*found, sep="\n")
assert [line[16] for line in found] == [" ", "A", "B"]
assert {(line[54:60].strip(), line[60:66].strip()) for line in found} == {("1.00", "0.00")}
PYTHON
