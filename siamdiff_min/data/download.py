"""The paper's data from where they are published: `python -m siamdiff_min.data.download psr --out DIR`.

`published.tsv` says where. The same command goes on with a download that broke off: what has come in so far is called
`NAME.part`. Archives of AlphaFold models stay as they are, those of the labelled sets are unpacked beside themselves.
"""

import http.client
import os
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from ..files import Parser, SiamDiffError, checksum, console, lock, read_rows, writing

ALPHAFOLD = "https://ftp.ebi.ac.uk/pub/databases/alphafold"
ZENODO = "https://zenodo.org/records"

_ROWS = read_rows(Path(__file__).with_name("published.tsv"))[1:]
# The 21 proteomes of pre-training, and Swiss-Prot -> MD5 of version v2, the only one it is known of
PROTEOMES = {name: md5 for group, name, md5 in _ROWS if group == "afdb"}
LABELLED = {task: (path, md5) for task, path, md5 in _ROWS if task != "afdb"}  # task -> record and file, MD5 or ""


class DownloadError(SiamDiffError):
    """Something could not be downloaded, or is not what it should be; the message names it and the reason."""


@dataclass(frozen=True)
class Remote:
    """An archive to download."""

    url: str
    folder: str  # what to give to `--data`: holds the archive itself (AlphaFold), or the files that were in it
    md5: str = ""  # "" if unknown
    packed: bool = False  # it stays an archive


def labelled(task: str) -> Remote:
    """The archive of a downstream set."""
    path, md5 = LABELLED[task]
    return Remote(f"{ZENODO}/{path}", task, md5)


def proteomes(chosen=(), version: str = "v6") -> list[Remote]:
    """Archives of AlphaFold models: the 21 of pre-training, or those chosen by proteome, taxon or mnemonic.

    Raises DownloadError if one of `chosen` is not in the table.
    """
    names = []
    for text in chosen or [name for name in PROTEOMES if name.startswith("UP")]:
        found = [name for name in PROTEOMES if text.upper() in (name.upper(), *name.upper().split("_"))]
        if not found:
            raise DownloadError(f"{text}: no such proteome, there are {', '.join(PROTEOMES)}")
        names += found
    known = PROTEOMES if version == "v2" else {}
    urls = {name: f"{ALPHAFOLD}/{version}/{name}_{version}.tar" for name in names}
    return [Remote(url, f"afdb-{version}", known.get(name, ""), packed=True) for name, url in urls.items()]


def download(remote: Remote, out) -> Path:
    """Download an archive into the folder `out` and unpack it; what is there already is not touched.

    Returns the folder for `--data`. Raises DownloadError if the server refuses, or what came is damaged or not the
    published archive; it is removed then. WriteError: the disk is full or cannot be written.
    """
    folder = Path(out) / remote.folder
    archive = (folder if remote.packed else Path(out)) / Path(remote.url).name
    if (archive if remote.packed else folder).exists():
        print(f"{archive if remote.packed else folder} is there already")
        return folder
    part = archive.with_name(f"{archive.name}.part")
    with writing(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            _fetch(remote.url, part)
            _check(part, remote)
            os.replace(part, archive)
        if not remote.packed:
            _unpack(archive, folder)
    return folder


def _fetch(url: str, part: Path) -> None:
    """Append to `part` what is missing of the file at an address. Raises DownloadError."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer, open(part, "ab") as file:
            if answer.status != http.client.PARTIAL_CONTENT:  # a server that knows no ranges begins anew
                start = 0
                file.truncate(0)
            total = answer.length and start + answer.length
            bar = {"total": total, "initial": start, "desc": part.stem, "disable": None}
            with tqdm.wrapattr(file, "write", **bar) as counted:
                shutil.copyfileobj(answer, counted)
        if total not in (None, part.stat().st_size):
            raise ConnectionError("the connection broke off")
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # else nothing was missing
            raise DownloadError(f"{url}: the server answers {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise DownloadError(f"{url}: {error}; the same command goes on from what has come in") from error


def _check(part: Path, remote: Remote) -> None:
    """Remove what is not the published archive, and raise DownloadError."""
    found = checksum(part, "md5")
    if remote.md5 in ("", found) and (zipfile.is_zipfile(part) or tarfile.is_tarfile(part)):
        return
    with open(part, "rb") as file:
        begins = file.read(20)
    part.unlink()
    reason = f"MD5 {found}, expected {remote.md5 or 'an archive'}; it begins with {begins}"
    raise DownloadError(f"{remote.url}: not the published archive ({reason}); it was not kept")


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` into a new folder, which has its name when all is there. Nothing is written outside.

    Raises DownloadError for a damaged archive, and if this Python is too old to unpack one safely.
    """
    if not hasattr(tarfile, "data_filter"):
        raise DownloadError(f"{archive}: this Python has no filters for archives; unpack it yourself to {folder}")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        with zipfile.ZipFile(archive) if zipfile.is_zipfile(archive) else tarfile.open(archive) as content:
            content.extraction_filter = tarfile.data_filter  # of a tar; a zip is always unpacked inside
            content.extractall(partial)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, zlib.error) as error:
        raise DownloadError(f"{archive}: damaged or refused ({error}); remove it") from error
    os.rename(partial, folder)


def main(argv: list[str] | None = None) -> int:
    """Run one command line. Returns 1 if a download failed."""
    parser = Parser(prog="siamdiff-download", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("afdb", *LABELLED), help="AlphaFold models, or the set of a task")
    parser.add_argument("--out", required=True, type=Path, help="folder; one for everything is fine")
    parser.add_argument("--version", default="v6", help="of the AlphaFold database (default: v6)")
    which = "UP000005640, 9606 or human; swissprot (default: the 21 of pre-training)"
    parser.add_argument("--proteome", nargs="+", default=[], metavar="NAME", help=which)
    args = parser.parse_args(argv)
    failed = 0
    with console(), lock(args.out / ".lock", busy=f"{args.out}: another download is writing to it"):
        remotes = proteomes(args.proteome, args.version) if args.what == "afdb" else [labelled(args.what)]
        for remote in remotes:
            try:
                folder = download(remote, args.out)
            except DownloadError as error:
                print(f"error: {error}", file=sys.stderr)
                failed += 1
    if failed:
        print(f"{failed} of {len(remotes)} archives could not be downloaded", file=sys.stderr)
        return 1
    print(f"python {'train.py' if args.what == 'afdb' else f'finetune.py --task {args.what}'} --data {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
