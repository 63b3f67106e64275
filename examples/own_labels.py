"""Two tables of labels for the bundled structures: labels.tsv (resolutions) and residues.tsv (neighbours)."""

import csv
import tarfile
from pathlib import Path

import siamdiff_min
from siamdiff_min.reading.parse import read_structure

bundle = Path(siamdiff_min.__file__).parent / "reading" / "bundle"
with tarfile.open(bundle / "structures.tar") as archive:
    archive.extractall("structures", filter="data")  # Python 3.10.12, 3.11.4 or later
with open(bundle / "index.tsv") as file:
    rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
rows = [row for row in rows if row["set"] == "structure" and row["resolution"]]
with open("labels.tsv", "w") as file:
    print("name", "value", sep="\t", file=file)
    for row in rows:
        print(Path(row["file"]).name, row["resolution"], sep="\t", file=file)
with open("residues.tsv", "w") as file:
    print("name", "chain", "number", "value", sep="\t", file=file)
    for row in rows[:30]:
        structure = read_structure(next(Path("structures").rglob(Path(row["file"]).name)))
        protein = structure.protein
        ca = protein.pos[protein.atom_name == 1]  # N, CA, C, O are 0 to 3
        neighbours = ((ca[:, None] - ca).norm(dim=-1) < 10).sum(1).tolist()
        numbers = zip(protein.residue_number.tolist(), map(chr, protein.insertion_code.tolist()))
        for (number, code), value in zip(numbers, neighbours):
            print(Path(row["file"]).name, row["chains"], f"{number}{code}".strip(), value, sep="\t", file=file)
