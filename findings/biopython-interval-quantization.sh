#!/usr/bin/env bash
# Biopython's BinaryCIFParser cannot read a column in IntervalQuantization, one of the seven encodings of BinaryCIF: it
# looks for `num_steps`, the specification and biotite write `numSteps`. biotite reads its file back.
#
# biotite 1.6.0, Biopython 1.88, msgpack 1.1.2, 2026-11-28. Seen: KeyError 'num_steps'; the same file with B factors as
# plain numbers is read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q biotite==1.6.0 biopython==1.88 msgpack==1.1.2
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import pathlib
import sys

import biotite.structure as struc
import numpy as np
from Bio.PDB.binary_cif import BinaryCIFParser
from biotite.structure.io import pdbx

folder = pathlib.Path(sys.argv[1])
atoms = struc.array([
    struc.Atom([43.036, -0.783, 16.269], chain_id="A", res_id=1, res_name="ALA", atom_name="N", element="N"),
    struc.Atom([44.276, -0.843, 15.570], chain_id="A", res_id=1, res_name="ALA", atom_name="CA", element="C"),
])
atoms.set_annotation("b_factor", np.array([5.0, 7.5]))
atoms.set_annotation("occupancy", np.ones(2))
atoms.set_annotation("atom_id", np.array([1, 2]))


def written(name: str, quantized: bool) -> str:
    file = pdbx.BinaryCIFFile()
    pdbx.set_structure(file, atoms)
    file.block["entry"] = pdbx.BinaryCIFCategory({"id": "X"})  # Biopython asks for it
    if quantized:
        steps = pdbx.IntervalQuantizationEncoding(0.0, 100.0, 1001, pdbx.TypeCode.FLOAT64)
        data = pdbx.BinaryCIFData(atoms.b_factor, [steps, pdbx.ByteArrayEncoding(pdbx.TypeCode.INT32)])
        file.block["atom_site"]["B_iso_or_equiv"] = pdbx.BinaryCIFColumn(data)
    file.write(folder / name)
    return str(folder / name)


def in_biopython(path: str) -> str:
    try:
        structure = BinaryCIFParser().get_structure("x", path)
    except KeyError as error:
        return f"KeyError {error}"
    return str([round(float(atom.get_bfactor()), 2) for atom in structure.get_atoms()])


plain, quantized = in_biopython(written("plain.bcif", False)), in_biopython(written("quantized.bcif", True))
again = pdbx.get_structure(pdbx.BinaryCIFFile.read(folder / "quantized.bcif"), model=1, extra_fields=["b_factor"])
print("Biopython, plain:", plain, "quantized:", quantized, "biotite:", again.b_factor.tolist())
assert plain == "[5.0, 7.5]" and quantized == "KeyError 'num_steps'"
assert np.allclose(again.b_factor, [5.0, 7.5])
PYTHON
