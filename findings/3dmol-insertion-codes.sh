#!/usr/bin/env bash
# 3Dmol.js reads no insertion codes of mmCIF: residues 184 and 184A are both residue 184, so a selection, a label or a
# colour by number hits both. In PDB it reads them.
#
# 3dmol==2.5.5 (npm, in node, with stand-ins for a browser's objects), 2026-11-28. Seen: `icode` is undefined in mmCIF.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
npm install --silent --no-audit --no-fund --prefix "$folder" 3dmol@2.5.5
cat > "$folder/run.cjs" <<'JS'
const assert = require("assert");
const nothing = () => undefined;
const element = () => ({ style: {}, getContext: nothing, addEventListener: nothing, appendChild: nothing });
const none = () => [];
Object.assign(globalThis, { self: globalThis, window: globalThis, HTMLElement: class {} });
Object.defineProperty(globalThis, "navigator", { value: { userAgent: "node" }, configurable: true });
globalThis.customElements = { define: nothing, get: nothing };
globalThis.location = { href: "https://example.org/", search: "" };
globalThis.document = {
  createElement: element, getElementById: nothing, getElementsByTagName: none, querySelectorAll: none, documentElement: element(),
  addEventListener: nothing, readyState: "complete", currentScript: { src: "https://example.org/3Dmol.js" }, head: element(), body: element(),
};
const { Parsers } = require("3dmol/build/3Dmol.js");
const columns = "group_PDB id type_symbol label_atom_id label_comp_id label_asym_id label_seq_id pdbx_PDB_ins_code " +
  "Cartn_x Cartn_y Cartn_z auth_seq_id auth_asym_id";
const cif = `data_x
loop_
${columns.split(" ").map((name) => "_atom_site." + name).join("\n")}
ATOM 1 C CA GLY A 1 ? 46.525 -3.830 15.771 184 A
ATOM 2 C CA TYR A 2 A 46.520 -7.482 14.726 184 A
`;
const pdb = `ATOM   1192  CA  GLY A 184      46.525  -3.830  15.771  1.00  7.26           C
ATOM   1201  CA  TYR A 184A     46.520  -7.482  14.726  1.00  9.90           C
`;
const seen = (atoms) => atoms.map((atom) => [atom.resn, atom.resi, atom.icode]);
const found = { cif: seen(Parsers.CIF(cif, {})[0]), pdb: seen(Parsers.PDB(pdb, {})[0]) };
console.log(found);
assert.deepStrictEqual(found.cif, [["GLY", 184, undefined], ["TYR", 184, undefined]]);
assert.deepStrictEqual(found.pdb, [["GLY", 184, " "], ["TYR", 184, "A"]]);
JS
node "$folder/run.cjs"
