"""Which structures `benchmarks.probe` uses: one of every family, from tables of chains and of complexes.

    python -m benchmarks.probe_table OUT/probe.tsv --chains FOLDER TABLE... --complexes FOLDER TABLE

FOLDER holds SPLIT/ID.pdb or .pdb.gz, split train, val or test. A TABLE of chains has the columns id, split, cluster,
group and length; that of complexes id, split, receptor, ligand (names of their chains), n_res_receptor, n_res_ligand
and clusters_receptor. Another table may give the `kind` of an id; what is not `experimental` is left out.
"""

import argparse
import csv
import hashlib
import os
from collections import defaultdict
from pathlib import Path

LONGEST, SHORTEST = 250, 50  # residues of a chain; one side of a complex has as many at most
FAMILIES = {"train": 100, "val": 50, "test": 10**6}  # of chains; and of complexes half as many
SPLITS = tuple(FAMILIES)
COLUMNS = ("file", "split", "family", "cluster", "partners")


def rows_of(path) -> list[dict[str, str]]:
    """The rows of a table with tabs."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def shuffled(names) -> list[str]:
    """In an order that means nothing and is always the same."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def chosen(rows: list[dict], split: str, limit: int) -> list[dict]:
    """One row of each of `limit` families; in testing also a second one, of chains of the same cluster."""
    families = defaultdict(dict)
    for row in rows:
        if row["split"] == split:
            families[row["group"]][row["id"]] = row
    found = []
    for family in shuffled(families)[:limit]:
        order = [families[family][name] for name in shuffled(families[family])]
        alike = [row for row in order[1:] if row["partners"] or row["cluster"] == order[0]["cluster"]]
        found += order[:1] + (alike[:1] if split == "test" else [])
    return found


def main(argv: list[str] | None = None) -> None:
    """Write the table of one command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.probe_table", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--chains", nargs="+", type=Path, required=True)
    parser.add_argument("--complexes", nargs=2, type=Path, required=True)
    args = parser.parse_args(argv)
    folder, *tables = args.chains
    kind, chains, group = {}, {}, {}
    for row in (row for table in tables for row in rows_of(table)):
        kind[row["id"]] = row.get("kind") or kind.get(row["id"], "experimental")
        if "cluster" in row:
            group[row["cluster"]] = row["group"]
            chains.setdefault(row["id"], {**row, "partners": ""})
    usable = []
    for name, row in chains.items():
        files = [path for end in (".pdb", ".pdb.gz") if (path := folder / row["split"] / f"{name}{end}").is_file()]
        if files and kind[name] == "experimental" and SHORTEST <= int(row["length"]) <= LONGEST:
            usable.append({**row, "file": files[0]})
    pairs = []
    for row in rows_of(args.complexes[1]):
        cluster, partners = row["clusters_receptor"].split(",")[0], f"{row['receptor']}:{row['ligand']}"
        path = args.complexes[0] / row["split"] / f"{row['id']}.pdb"
        if path.is_file() and min(int(row["n_res_receptor"]), int(row["n_res_ligand"])) <= LONGEST:
            family = group.get(cluster, cluster)
            pairs.append({**row, "file": path, "cluster": cluster, "group": family, "partners": partners})
    lines = ["\t".join(COLUMNS)]
    for rows, share in ((usable, 1), (pairs, 2)):
        for split in SPLITS:
            for row in chosen(rows, split, FAMILIES[split] // share):
                path = os.path.relpath(row["file"], args.out.parent)
                lines.append("\t".join([path, split, row["group"], row["cluster"], row["partners"]]))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{args.out}: {len(lines) - 1} structures")


if __name__ == "__main__":
    main()
