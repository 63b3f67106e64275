#!/usr/bin/env bash
# Mol* reads the hybrid-36 numbers with which programs go on after residue 9999 of a PDB file (A000 is 10000, A001 is
# 10001) as 0, so that all of these residues have one number, and stand before residue 9999. Nothing is said.
#
# molstar==5.11.0 (npm, in node), 2026-11-28. Seen: residues 9999, A000, A001 are read as 0, 0, 9999.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" molstar@5.11.0
cat > "$folder/run.cjs" <<'JS'
const assert = require("assert");
const { parsePDB } = require("molstar/lib/commonjs/mol-io/reader/pdb/parser");
const { trajectoryFromPDB } = require("molstar/lib/commonjs/mol-model-formats/structure/pdb");
const text = `ATOM      1  CA  GLY A9999      46.525  -3.830  15.771  1.00  7.26           C
ATOM      2  CA  ALA AA000      46.520  -7.482  14.726  1.00  9.90           C
ATOM      3  CA  SER AA001      46.520 -11.482  14.726  1.00  9.90           C
END
`;
async function main() {
  const file = await parsePDB(text, "three residues", false).run();
  assert(!file.isError, file.message);
  const trajectory = await trajectoryFromPDB(file.result).run();
  const { atoms, residues } = trajectory.representative.atomicHierarchy;
  const rows = [0, 1, 2].map((row) => [atoms.label_comp_id.value(row), residues.auth_seq_id.value(row)]);
  console.log(rows);
  assert.deepStrictEqual(rows, [["ALA", 0], ["SER", 0], ["GLY", 9999]]);
}
main().catch((error) => { console.error(error); process.exit(1); });
JS
node "$folder/run.cjs"
