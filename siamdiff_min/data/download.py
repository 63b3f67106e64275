"""The paper's data from where they are published: `python -m siamdiff_min.data.download psr --out DIR`.

`published.tsv` says where. A file is called `NAME.part` until it is whole and checked: that it is an archive, and has
the published checksum if there is one. The same command continues an interrupted download. Archives of AlphaFold models
stay as they are, those of the labelled sets are unpacked. `verify DIR` reads all of it again.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..files import StructureError, console, lock, sha256, structure_errors, sync_folder, write_file, writing
from .archives import tar_members, unpack
from .fetch import DownloadError, fetch
from .worker import run

ALPHAFOLD = "https://ftp.ebi.ac.uk/pub/databases/alphafold"
ZENODO = "https://zenodo.org/records"

_ROWS = [line.split("\t") for line in Path(__file__).with_name("published.tsv").read_text().splitlines()[1:]]
# The 21 proteomes of pre-training, and Swiss-Prot -> MD5 of version v2, the only one it is known of
PROTEOMES = {name: md5 for group, name, md5 in _ROWS if group == "afdb"}
LABELLED = {task: (path, md5 or None) for task, path, md5 in _ROWS if task != "afdb"}  # task -> record and file, MD5


@dataclass(frozen=True)
class Remote:
    """An archive to download."""

    set: str  # "afdb" or the task
    url: str
    folder: str  # what to give to `--data`: holds the archive itself (AlphaFold), or the files that were in it
    md5: str | None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def labelled(task: str) -> Remote:
    """The archive of a downstream set."""
    path, md5 = LABELLED[task]
    return Remote(task, f"{ZENODO}/{path}", task, md5)


def proteomes(chosen=(), version: str = "v6") -> list[Remote]:
    """Archives of AlphaFold models: the 21 of pre-training, or those chosen by proteome, taxon or mnemonic.

    Raises DownloadError if one of `chosen` is not in the table, or `version` is no version.
    """
    if not re.fullmatch("v[0-9]+", version):
        raise DownloadError(f"{version}: no version, expected v6 or the like")
    names = [] if chosen else [name for name in PROTEOMES if name.startswith("UP")]
    for text in chosen:
        found = [name for name in PROTEOMES if text.upper() in (name.upper(), *name.upper().split("_"))]
        if not found:
            raise DownloadError(f"{text}: no such proteome, there are {', '.join(PROTEOMES)}")
        names += found
    known = PROTEOMES if version == "v2" else {}
    return [
        Remote("afdb", f"{ALPHAFOLD}/{version}/{name}_{version}.tar", f"afdb-{version}", known.get(name))
        for name in dict.fromkeys(names)
    ]


def download(remote: Remote, out, base_url: str | None = None, from_file=None) -> Path:
    """Download an archive into the folder `out`, check it and unpack it; what is there already is not touched.

    Args:
        base_url: of a mirror that has the file under the same name, without folders.
        from_file: the archive if the user has it; it is copied.

    Returns:
        The folder for `--data`.

    Raises:
        DownloadError: the server refuses, or what came is damaged or not the published archive. A damaged file is
            removed, an incomplete one stays.
        WriteError: the disk is full or cannot be written.
    """
    out, packed = Path(out), remote.set == "afdb"
    folder, partial = out / remote.folder, out / f"{remote.folder}.partial"
    archive = (folder if packed else out) / remote.name
    source = archive if archive.exists() else archive.with_name(f"{archive.name}.part")
    url = f"{base_url.rstrip('/')}/{remote.name}" if base_url else remote.url
    rows = read_manifest(out)
    if archive.relative_to(out).as_posix() in rows and (archive if packed else folder).exists():
        print(f"{archive if packed else folder} is there already")
        return folder
    if folder.exists() and not packed:
        raise DownloadError(f"{folder}: is there, but not from here ({out / 'manifest.json'} does not list it)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    if source != archive and from_file:
        with contextlib.suppress(shutil.SameFileError):
            shutil.copyfile(from_file, source)
    elif source != archive:
        fetch(url, source)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        check(source, remote)
        if not packed:
            unpack(source, partial)
    except StructureError as error:
        with open(source, "rb") as file:
            found = f"{error.reason} ({error.detail}), it begins with {file.read(20)!r}"
        if source == archive:
            raise DownloadError(f"{archive}: {found}; remove it") from error
        source.unlink()
        raise DownloadError(f"{from_file or url}: {found}; it was not kept") from error
    os.replace(source, archive)
    sync_folder(archive.parent)
    files = {archive.relative_to(out).as_posix(): archive}
    for file in partial.rglob("*"):
        if file.is_file() and file.name != "lock.mdb":  # LMDB writes there when others only read
            files[f"{remote.folder}/{file.relative_to(partial).as_posix()}"] = file
    about = {"set": remote.set, "url": str(from_file or url), "date": f"{datetime.date.today()}"}
    rows |= {name: {**about, "size": file.stat().st_size, "sha256": sha256(file)} for name, file in files.items()}
    text = json.dumps({"format": "siamdiff_min downloads 1", "files": rows}, indent=1, sort_keys=True)
    write_file(out / "manifest.json", text.encode())
    if not packed:  # last: a folder with this name is complete, and listed
        os.rename(partial, folder)
        sync_folder(out)
    return folder


def check(path: Path, remote: Remote) -> None:
    """Raise StructureError if a file is not the published archive; those that are unpacked are read there."""
    md5 = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while remote.md5 and (piece := file.read(2**20)):
            md5.update(piece)
    if remote.md5 not in (None, md5.hexdigest()):
        raise StructureError(path, "damaged or another version", f"MD5 {md5.hexdigest()}, expected {remote.md5}")
    if remote.name.endswith(".tar"):
        (listed,) = run([(str(path), tar_members, str(path))])
        if isinstance(listed, StructureError):
            raise listed
        with open(path, "rb") as file:  # one that was cut between two members lacks the zeros at its end
            file.seek(-512, os.SEEK_END)
            if file.read().strip(b"\0"):
                raise StructureError(path, "truncated archive", "without its end")


def read_manifest(out) -> dict[str, dict]:
    """What was downloaded to a folder: set, url, size, sha256 and date of every file. Raises StructureError."""
    file = Path(out) / "manifest.json"
    if not file.exists():
        return {}
    with structure_errors(file, "damaged"):
        content, keys = json.loads(file.read_text(encoding="utf-8")), ("set", "url", "size", "sha256", "date")
        return {name: {key: row[key] for key in keys} for name, row in content["files"].items()}


def verify(out) -> list[str]:
    """Read all that was downloaded to a folder again; every file that is missing or damaged, with the reason.

    An archive that was unpacked may be missing. Raises DownloadError if there is no manifest.
    """
    out, problems = Path(out), []
    rows = read_manifest(out)
    if not rows:
        raise DownloadError(f"{out}: no manifest.json, nothing was downloaded to it")
    for name, row in tqdm(sorted(rows.items()), unit="file", disable=None):
        file = out / name
        if not file.is_file():
            problems += [f"{file}: missing"] * ("/" in name)
        elif sha256(file) != row["sha256"]:
            problems.append(f"{file}: damaged (its checksum differs)")
    return problems


def main(argv: list[str] | None = None) -> int:
    """Run one command line. Returns 1 if a download failed, or `verify` found something damaged."""
    parser = argparse.ArgumentParser(prog="siamdiff-data download", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("afdb", *LABELLED):
        what = "AlphaFold models" if name == "afdb" else f"the set of the task {name}"
        command = commands.add_parser(name, help=what)
        command.add_argument("--out", required=True, type=Path, help="folder; one for everything is fine")
        command.add_argument("--base-url", help="of a mirror that has the files under the same names")
        command.add_argument("--from-file", type=Path, help="the archive, if you have it already")
        if name == "afdb":
            command.add_argument("--version", default="v6", help="of the AlphaFold database (default: v6)")
            which = "UP000005640, 9606 or human; swissprot (default: the 21 of pre-training)"
            command.add_argument("--proteome", nargs="+", default=[], metavar="NAME", help=which)
    commands.add_parser("verify", help="read what was downloaded again").add_argument("out", type=Path)
    args = parser.parse_args(argv)
    with console():
        if args.what == "verify":
            problems = verify(args.out)
            print("\n".join(problems) or f"{args.out}: everything is as it was downloaded")
            return int(bool(problems))
        remotes = proteomes(args.proteome, args.version) if args.what == "afdb" else [labelled(args.what)]
        if args.from_file and len(remotes) > 1:
            raise DownloadError(f"{args.from_file}: which proteome is it? say so with --proteome")
        if args.from_file and not args.from_file.is_file():
            raise DownloadError(f"{args.from_file}: no such file")
        failed = 0
        with writing(args.out), lock(args.out / ".lock", busy=f"{args.out}: another download is writing to it"):
            for remote in remotes:
                try:
                    folder = download(remote, args.out, args.base_url, args.from_file)
                except DownloadError as error:
                    print(f"error: {error}", file=sys.stderr)
                    failed += 1
    if failed:
        print(f"{failed} of {len(remotes)} archives could not be downloaded", file=sys.stderr)
        return 1
    script = "train.py" if args.what == "afdb" else f"finetune.py --task {args.what}"
    print(f"python {script} --data {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
