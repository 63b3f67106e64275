"""The paper's data from where they are published: `python -m siamdiff_min.data.download psr --out DIR`.

A file is `NAME.part` until it is whole and checked: its checksum if one is published, and that it is the archive it
should be. An interrupted download goes on when it is started again. Archives of AlphaFold models stay as they are,
those of the labelled sets are unpacked. `verify DIR` reads all of it again.
"""

from __future__ import annotations

import argparse
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

from ..files import SiamDiffError, StructureError, lock, sha256, structure_errors, sync_folder, write_file, writing
from .archives import unpack
from .fetch import DownloadError, discard, fetch

ALPHAFOLD = "https://ftp.ebi.ac.uk/pub/databases/alphafold"
SWISSPROT = "swissprot_pdb"  # not of the 21 proteomes of pre-training
PROTEOMES = {  # proteome, taxon and mnemonic -> MD5 of version v2, the only one it is known of
    "UP000006548_3702_ARATH": "4cd5f596ebfc3d45d9f6b647dc5684af",
    "UP000001940_6239_CAEEL": "b89bee5507f78f971417cc8fd75b40f7",
    "UP000000559_237561_CANAL": "a6459a1f1a0a22fbf25f1c05c2889ae3",
    "UP000000437_7955_DANRE": "24dfba8ab93dbf3f51e7db6b912dd6b4",
    "UP000002195_44689_DICDI": "6b81b3086ed9e57e04a54f148ecf974c",
    "UP000000803_7227_DROME": "a50f4fd9f581c89e79e1b2857e54b786",
    "UP000000625_83333_ECOLI": "fdd16245769bf1f7d91a0e285ac00e52",
    "UP000008827_3847_SOYBN": "66b9750c511182bc5f8ee71fe2ab2a17",
    "UP000005640_9606_HUMAN": "5dadeb5aac704025cac33f7557794858",
    "UP000008153_5671_LEIIN": "99b22e0f050d845782d914becbfe4d2f",
    "UP000000805_243232_METJA": "da938dfae4fabf6e144f4b5ede5885ec",
    "UP000000589_10090_MOUSE": "2003c09d437cfb4093552c588a33e06d",
    "UP000001584_83332_MYCTU": "fba59f386cfa33af3f70ae664b7feac0",
    "UP000059680_39947_ORYSJ": "d7a1a6c02213754ee1a1ffb3b41ad4ba",
    "UP000001450_36329_PLAF7": "8a0e8deadffec2aba3b7edd6534b7481",
    "UP000002494_10116_RAT": "1854d0bbcf819de1de7b0cfdb6d32b2e",
    "UP000002311_559292_YEAST": "d9720e3809db6916405db096b520c236",
    "UP000002485_284812_SCHPO": "6b918e9e4d645b12a80468bcea805f1f",
    "UP000008816_93061_STAA8": "ed0eefe927eb8c3b81cf87eaabbb8d6e",
    "UP000002296_353153_TRYCC": "051369e0dc8fed4798c8b2c68e6cbe2e",
    "UP000007305_4577_MAIZE": "b05ff57164167851651c625dca66ed28",
    SWISSPROT: "68e7a6e57bd43cb52e344b3190073387",
}
ZENODO = "https://zenodo.org/records"
LABELLED = {  # task -> record and file, MD5
    "ec": ("6622158/files/EnzymeCommission.zip", "33f799065f8ad75f87b709a87293bc65"),
    "psr": ("4915648/files/PSR-split-by-year.tar.gz", "8647b9d10d0a79dff81d1d83c825e74c"),
    "msp": ("4962515/files/MSP-split-by-sequence-identity-30.tar.gz", "6628e8efac12648d3b78bb0fc0d8860c"),
    "res": ("5026743/files/RES-split-by-cath-topology.tar.gz", "c93125eb93d89e3b5898d5781c538662"),
    "pip": ("4911102/files/PPI-DIPS-split.tar.gz", None),  # none published
}
MAGIC = {".tar": (257, b"ustar"), ".tar.gz": (0, b"\x1f\x8b"), ".zip": (0, b"PK\3\4")}  # where which bytes are

FORMAT = "siamdiff_min downloads 1"


@dataclass(frozen=True)
class Remote:
    """An archive to download."""

    set: str  # "afdb" or the task
    url: str
    folder: str  # for `--data`: of the archive itself (AlphaFold), or of the files in it
    md5: str | None = None

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
        raise DownloadError(version, "no version, expected v6 or the like")
    names = [] if chosen else [name for name in PROTEOMES if name != SWISSPROT]
    for text in chosen:
        found = [name for name in PROTEOMES if text.upper() in (name.upper(), *name.upper().split("_"))]
        if not found:
            raise DownloadError(text, f"no such proteome, there are {', '.join(PROTEOMES)}")
        names += found
    urls = {name: f"{ALPHAFOLD}/{version}/{name}_{version}.tar" for name in PROTEOMES if name in names}
    known = PROTEOMES if version == "v2" else {}
    return [Remote("afdb", url, f"afdb-{version}", known.get(name)) for name, url in urls.items()]


def download(remote: Remote, out, base_url: str | None = None, from_file=None) -> Path:
    """Download an archive into the folder `out`, check it and unpack it; what is there already is not touched.

    Args:
        base_url: of a mirror that has the file under the same name, without folders.
        from_file: the archive if the user has it; it is copied.

    Returns:
        The folder for `--data`.

    Raises:
        DownloadError: see there. What was damaged is removed, what was incomplete stays, to go on from there.
        OSError: the disk is full or cannot be written.
    """
    out, packed = Path(out), remote.set == "afdb"
    folder = out / remote.folder
    archive = (folder if packed else out) / remote.name
    part, partial = archive.with_name(f"{archive.name}.part"), out / f"{remote.folder}.partial"
    url = f"{base_url.rstrip('/')}/{remote.name}" if base_url else remote.url
    rows = read_manifest(out)
    known = rows.get(archive.relative_to(out).as_posix())
    if known and (archive.exists() and archive.stat().st_size == known["size"] if packed else folder.exists()):
        print(f"{archive if packed else folder} is there already")
        return folder
    if folder.exists() and not packed:
        raise DownloadError(folder, f"is there, but not from here ({out / 'manifest.json'} does not list it)")
    archive.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    source = archive if archive.exists() else part
    if source == part and from_file:
        discard(part)
        shutil.copyfile(from_file, part)
    elif source == part:
        fetch(url, part)
    try:
        check(source, remote)
        if not packed:
            unpack(source, partial)
    except StructureError as error:
        if source == part:
            discard(part)
        advice = "it was not kept" if source == part else f"{archive} is the file to remove"
        raise DownloadError(from_file or url, f"{error.reason} ({error.detail}); {advice}") from error
    except OSError:  # the disk's fault, not the archive's
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if source == part:
        os.replace(part, archive)
    discard(part)
    sync_folder(archive.parent)
    files = {archive.relative_to(out).as_posix(): archive}
    for file in partial.rglob("*"):
        if file.is_file() and file.name != "lock.mdb":  # LMDB writes there when others only read
            files[f"{remote.folder}/{file.relative_to(partial).as_posix()}"] = file
    about = {"set": remote.set, "url": str(from_file or url), "date": f"{datetime.date.today()}"}
    rows |= {name: {**about, "size": file.stat().st_size, "sha256": sha256(file)} for name, file in files.items()}
    text = json.dumps({"format": FORMAT, "files": rows}, indent=1, sort_keys=True)
    write_file(out / "manifest.json", text.encode())
    if not packed:  # last: a folder with this name is complete, and listed
        os.rename(partial, folder)
    sync_folder(out)
    return folder


def check(path: Path, remote: Remote) -> None:
    """Raise StructureError if a file is not the archive that it should be."""
    kind, md5 = remote.name[remote.name.index(".") :], hashlib.md5(usedforsecurity=False)
    place, magic = MAGIC[kind]
    with open(path, "rb") as file:
        head = file.read(512)
        file.seek(-min(1024, path.stat().st_size), os.SEEK_END)
        tail = file.read()
        file.seek(0)
        while remote.md5 and (block := file.read(2**20)):
            md5.update(block)
    if not head[place:].startswith(magic):
        raise StructureError(path, f"not a {kind[1:]} archive", f"it begins with {head[:20]!r}")
    if remote.md5 not in (None, md5.hexdigest()):
        raise StructureError(path, "damaged or another version", f"MD5 {md5.hexdigest()}, expected {remote.md5}")
    if kind == ".tar" and tail.strip(b"\0"):
        raise StructureError(path, "truncated archive", "without its end")


def read_manifest(out) -> dict[str, dict]:
    """What was downloaded to a folder: set, url, size, sha256 and date of every file. Raises StructureError."""
    file = Path(out) / "manifest.json"
    if not file.exists():
        return {}
    with structure_errors(file, "damaged"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r:.50}")
        keys = ("set", "url", "size", "sha256", "date")
        return {name: {key: row[key] for key in keys} for name, row in content["files"].items()}


def verify(out) -> list[str]:
    """Read all that was downloaded to a folder again; every file that is missing or damaged, with the reason.

    An archive that was unpacked may be missing. Raises DownloadError if there is no manifest.
    """
    out, problems = Path(out), []
    rows = read_manifest(out)
    if not rows:
        raise DownloadError(out, "no manifest.json, nothing was downloaded to it")
    for name, row in tqdm(sorted(rows.items()), unit="file", disable=None):
        file = out / name
        if not file.is_file():
            problems += [f"{file}: missing"] * ("/" in name)
        elif file.stat().st_size != row["size"]:
            problems.append(f"{file}: damaged ({file.stat().st_size} bytes, expected {row['size']})")
        elif sha256(file) != row["sha256"]:
            problems.append(f"{file}: damaged (its checksum differs)")
    return problems


# ---- the command line ------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    """Run one command line; 1 where a file could not be downloaded, or one that was is damaged."""
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
    try:
        if args.what == "verify":
            problems = verify(args.out)
            print("\n".join(problems) or f"{args.out}: everything is as it was downloaded")
            return int(bool(problems))
        remotes = proteomes(args.proteome, args.version) if args.what == "afdb" else [labelled(args.what)]
        if args.from_file:
            if not args.from_file.is_file():
                raise DownloadError(args.from_file, "no such file")
            remotes = [remote for remote in remotes if remote.name == args.from_file.name] or remotes
        if args.from_file and len(remotes) > 1:
            raise DownloadError(args.from_file, "which proteome is it? say so with --proteome")
        failed = 0
        with writing(args.out), lock(args.out / ".lock", busy=f"{args.out}: another download is writing to it"):
            for remote in remotes:
                try:
                    folder = download(remote, args.out, args.base_url, args.from_file)
                except DownloadError as error:
                    print(f"error: {error}", file=sys.stderr)
                    failed += 1
    except SiamDiffError as error:
        sys.exit(f"error: {error}")
    if failed:
        print(f"{failed} of {len(remotes)} archives could not be downloaded", file=sys.stderr)
        return 1
    script = "train.py" if args.what == "afdb" else f"finetune.py --task {args.what}"
    print(f"python {script} --data {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
