"""The chains of pre-training: links to all files of one split, without relatives of the published test sets.

    python -m studies.2026-11-benchmarks.corpus OUT --chains FOLDER TABLE --exclude TABLE NAME...

--chains may be repeated. A TABLE of chains has the columns id and split; FOLDER holds ID.pdb.gz, or SPLIT/ID.pdb.
--exclude takes tables whose column `chain` names what is left out, and single names. Writes OUT/train/ and OUT/val/.
"""

import argparse
import csv
from collections import Counter
from pathlib import Path


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table with tabs."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def main(argv: list[str] | None = None) -> None:
    """Link the files of one command line."""
    program = "python -m studies.2026-11-benchmarks.corpus"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--chains", nargs=2, type=Path, action="append", required=True)
    parser.add_argument("--exclude", nargs="+", default=[])
    args = parser.parse_args(argv)
    left_out = {name for name in args.exclude if not Path(name).is_file()}
    for table in set(args.exclude) - left_out:
        left_out |= {row["chain"] for row in rows_of(Path(table))}
    linked = Counter()
    for folder, table in args.chains:
        for row in rows_of(table):
            places = (folder / f"{row['id']}.pdb.gz", folder / row["split"] / f"{row['id']}.pdb")
            found = next((path for path in places if path.is_file()), None)
            if found is None or row["split"] not in ("train", "val") or row["id"] in left_out:
                continue
            link = args.out / row["split"] / found.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(found.resolve())
            linked[row["split"]] += 1
    print(f"{args.out}: {', '.join(f'{split} {number}' for split, number in sorted(linked.items()))}")


if __name__ == "__main__":
    main()
