#!/usr/bin/env bash
# torch_geometric decides by the name of an attribute how a batch changes it: what has "index" in its name is counted
# on by the number of nodes of the graphs before it, all else is joined as it is. So of two fields that one adds to a
# `Data`, a place in a chain called `residue_index` is changed, and a pointer to rows called `atom_residue` is not: each
# is wrong, and nothing is said.
#
# torch_geometric 2.8.1, torch 2.13.0, 2026-11-28. Seen: two equal proteins of four atoms and two residues: residue_index
# 0, 1, 4, 5 and atom_residue 0, 0, 1, 1, 0, 0, 1, 1, where a batch needs 0, 1, 0, 1 and 0, 0, 1, 1, 2, 2, 3, 3.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 torch_geometric==2.8.1
"$folder/venv/bin/python" - <<'PYTHON'
import torch
from torch_geometric.data import Batch, Data

protein = {"pos": torch.zeros(4, 3), "residue_index": torch.tensor([0, 1]), "atom_residue": torch.tensor([0, 0, 1, 1])}
batch = Batch.from_data_list([Data(**protein), Data(**protein)])
print("residue_index", batch.residue_index.tolist(), "atom_residue", batch.atom_residue.tolist())
assert batch.residue_index.tolist() == [0, 1, 4, 5]
assert batch.atom_residue.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
PYTHON
