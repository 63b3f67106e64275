#!/usr/bin/env bash
# Boltz writes a chain called AA into columns 22 and 23 of a PDB file, and all that follows one column further right.
# gemmi reads such a file without a word: chain A, another number, and y and z that begin with a digit of x and y.
# Chains of one letter are right, and so is Boltz's mmCIF.
#
# Boltz 2.2.1 (its writer; of torch it takes a name), gemmi 0.7.5, 2026-11-28. Seen: CA at 13.456, 8.912, -4.328 of
# ALA 1 is read at 13.45, 6, 2, with B factor 0, of residue -456550.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-deps boltz==2.2.1 gemmi==0.7.5 rdkit==2026.9.1 numpy==2.4.6 mashumaro==3.23 \
    typing_extensions==4.16.0 pillow==13.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import types

sys.modules["torch"] = types.SimpleNamespace(Tensor=object)  # for the types of arguments

import gemmi
import numpy
from boltz.data import types as boltz
from boltz.data.write.pdb import to_pdb

atoms = [("N", (12.345, 7.891, -3.217)), ("CA", (13.456, 8.912, -4.328)), ("C", (14.567, 7.123, -5.439))]
atoms = numpy.array([(*atom, True, 0, 0) for atom in atoms], boltz.AtomV2)
residues = numpy.array([("ALA", 0, 0, 0, 3, 0, 0, True, True)], boltz.Residue)


def read_again(chain: str) -> tuple:
    chains = numpy.array([(chain, 0, 0, 0, 0, 0, 0, 0, 1, 0)], boltz.Chain)
    structure = boltz.StructureV2(atoms, [], residues, chains, *[[]] * 5)
    text = to_pdb(structure, numpy.full(1, 0.8), boltz2=True)
    print(text.splitlines()[1])
    found = gemmi.read_pdb_string(text)[0]
    carbon = found[0][0]["CA"][0]
    return found[0].name, found[0][0].seqid.num, carbon.pos.tolist(), carbon.b_iso


one, two = read_again("A"), read_again("AA")
print(one, two, sep="\n")
assert one == ("A", 1, [13.456, 8.912, -4.328], 80)
assert two == ("A", -456550, [13.45, 6, 2], 0)
PYTHON
