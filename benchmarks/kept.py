"""The answers that a study keeps: one file for every row, in a folder while it runs, in results.zip once it has ended.

python -m benchmarks.kept studies/NAME/results  # pack them
"""

import argparse
import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np


def zip_of(folder: Path) -> Path:
    """FOLDER.zip of FOLDER."""
    return folder.with_name(folder.name + ".zip")


def files(folder: Path) -> dict[str, bytes]:
    """Name -> content of every file in a folder, by name; if it is not there, of the zip above it.

    `results/probe` is `probe/` in `results.zip`.
    """
    if folder.is_dir():
        found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        return dict(sorted(found.items()))
    for above in (folder, *folder.parents):
        if above != Path(above.anchor) and zip_of(above).is_file():
            start = "".join(f"{part}/" for part in folder.relative_to(above).parts)
            with zipfile.ZipFile(zip_of(above)) as archive:
                names = sorted(name for name in archive.namelist() if name.startswith(start))
                return {name.removeprefix(start): archive.read(name) for name in names}
    return {}


def kept(*folders: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """(name, arrays) of every row, folder by folder."""
    for folder in folders:
        for name, content in files(folder).items():
            if name.endswith(".npz"):
                with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                    yield name.removesuffix(".npz"), dict(arrays)


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table with tabs, which may be in a zip as `files` says."""
    content = path.read_bytes() if path.is_file() else files(path.parent)[path.name]
    return list(csv.DictReader(io.StringIO(content.decode(), newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))


def pack(folder: Path) -> None:
    """Put the files of a folder into FOLDER.zip, the same bytes whoever does it."""
    with zipfile.ZipFile(zip_of(folder), "w") as archive:
        for name, content in files(folder).items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    for folder in parser.parse_args().folders:
        pack(folder)
