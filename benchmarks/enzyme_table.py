"""A table of enzymes of three classes, to compare `--freeze` with training (docs/extending.md).

    python -m benchmarks.enzyme_table ec.tsv CHAINS OUT
    siamdiff finetune --task table --labels OUT/labels.csv --data OUT/data --init-from siamdiff-residue [--freeze]

`ec.tsv` has the columns id, ec and n_res. CHAINS holds ID.pdb.gz. Chains have up to 260 residues, and are drawn: 80 for
testing, 20 for validation, 100 for training. Relatives may be on both sides. Figures: one thread of a shared machine
with two cores, torch 2.13, 2026-11-26.
"""

import csv
import random
import sys
from pathlib import Path

CLASSES = {"1": "oxidoreductase", "2": "transferase", "3": "hydrolase"}

table, chains, out = map(Path, sys.argv[1:])
with open(table) as file:
    rows = list(csv.DictReader(file, delimiter="\t"))
found = []
for row in rows:
    first = {number[0] for number in row["ec"].split(",")}
    there = (chains / f"{row['id']}.pdb.gz").exists()
    if there and len(first) == 1 and first <= CLASSES.keys() and int(row["n_res"]) <= 260:
        found.append((row["id"], CLASSES[first.pop()]))
random.seed(1)
random.shuffle(found)
(out / "data").mkdir(parents=True, exist_ok=True)
lines = ["name,value,split"]
for split, part in {"test": found[:80], "valid": found[80:100], "train": found[100:200]}.items():
    for name, value in part:
        lines.append(f"{name},{value},{split}")
        link = out / "data" / f"{name}.pdb.gz"
        if not link.exists():
            link.symlink_to((chains / link.name).resolve())
(out / "labels.csv").write_text("\n".join(lines) + "\n")
