#!/usr/bin/env bash
# pdb_reres gives the two alternatives of one residue two numbers, if they are of different types (PRO and SER at one
# place, altloc A and B). Each is a residue of its own then, and all that follow are one too far.
#
# pdb-tools 2.7.0, 2026-11-28, residues 1 to 3 of PDB entry 3JQH. Seen: PRO 1 (A) and SER 1 (B) become 1 and 2, GLU 2
# becomes 3; LYS 3 (A) and LYS 3 (B), of one type, both become 4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pdb-tools==2.7.0
cat > "$folder/in.pdb" <<'PDB'
ATOM      1  N  APRO A   1       3.278  21.202  20.087  0.83 56.23           N
ATOM      2  CA APRO A   1       3.746  20.507  21.289  0.83 65.19           C
ATOM      3  C  APRO A   1       4.699  19.352  20.954  0.83 68.81           C
ATOM      4  O  APRO A   1       4.356  18.523  20.105  0.83 62.06           O
ATOM      8  N  BSER A   1       3.302  21.148  20.087  0.17 56.57           N
ATOM      9  CA BSER A   1       3.772  20.496  21.302  0.17 64.89           C
ATOM     10  C  BSER A   1       4.693  19.323  20.978  0.17 68.25           C
ATOM     11  O  BSER A   1       4.352  18.458  20.170  0.17 62.08           O
ATOM     14  N   GLU A   2       5.863  19.303  21.612  1.00 64.84           N
ATOM     15  CA  GLU A   2       6.861  18.244  21.377  1.00 60.65           C
ATOM     16  C   GLU A   2       6.977  17.223  22.503  1.00 61.35           C
ATOM     17  O   GLU A   2       6.607  17.489  23.657  1.00 61.06           O
ATOM     23  N   LYS A   3       7.510  16.054  22.150  1.00 60.70           N
ATOM     24  CA ALYS A   3       7.680  14.952  23.094  0.50 60.74           C
ATOM     25  CA BLYS A   3       7.674  14.952  23.095  0.50 60.74           C
ATOM     26  C   LYS A   3       8.383  15.368  24.391  1.00 66.77           C
ATOM     27  O   LYS A   3       7.975  14.975  25.493  1.00 59.94           O
END
PDB
"$folder/venv/bin/pdb_reres" -1 "$folder/in.pdb" > "$folder/out.pdb"
awk '$3 ~ /^CA/ { print substr($0, 17, 4), substr($0, 23, 4) + 0 }' "$folder/out.pdb" > "$folder/seen"
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
APRO 1
BSER 2
 GLU 3
ALYS 4
BLYS 4
SEEN
