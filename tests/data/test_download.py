"""Data sets from a local server to the readers that use them; what is damaged never gets its name."""

import gzip
import hashlib
import random
import shlex
import subprocess
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import needs_filters
from helpers import tar

from siamdiff_min.data import atom3d, download
from siamdiff_min.data.download import LABELLED, PROTEOMES, DownloadError, labelled, main, proteomes
from siamdiff_min.data.sources import find_structures
from siamdiff_min.files import lock

pytestmark = needs_filters
TEXT = b"".join(
    b"ATOM  %5d  CA  GLY A%4d    %8.3f   0.000   0.000  1.00  0.00           C\n" % (i, i, 3.8 * i) for i in range(1, 4)
)
HUMAN = "UP000005640_9606_HUMAN_v6.tar"


class Handler(BaseHTTPRequestHandler):
    """Files by the last part of their address. `cut`: bytes after which the next connection breaks."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        site = self.server
        body = site.files.get(self.path.rpartition("/")[2])
        wanted = self.headers.get("Range") if site.ranges else None
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        site.starts.append(start)
        status = 404 if body is None else 200 if not wanted else 206 if start < len(body) else 416
        data = body[start:] if status in (200, 206) else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: site.cut])
        site.cut = None


@pytest.fixture
def site(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.files, server.starts, server.cut, server.ranges = {}, [], None, True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr(download, "ALPHAFOLD", url)
        monkeypatch.setattr(download, "ZENODO", url)
        yield server
        server.shutdown()
        thread.join()


def models(*names):
    """A proteome archive as AlphaFold DB has them: both formats of every model."""
    return tar([(f"AF-{n}-F1-model_v6.{kind}.gz", gzip.compress(TEXT)) for n in names for kind in ("cif", "pdb")])


def offer(site, monkeypatch, task, content):
    """Put an archive on the server, in place of the published one."""
    monkeypatch.setitem(LABELLED, task, (LABELLED[task][0], hashlib.md5(content).hexdigest()))
    site.files[Path(labelled(task).url).name] = content


def found(out):
    """Everything in a folder but the lock."""
    return sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file() and p.name != ".lock")


def test_the_published_archives():
    human = proteomes(["human"])
    assert [r.url for r in human] == [f"https://ftp.ebi.ac.uk/pub/databases/alphafold/v6/{HUMAN}"]
    assert human == proteomes(["UP000005640"]) == proteomes(["9606", "HUMAN"]) == proteomes([HUMAN[:-7]])
    assert len(proteomes()) == 21 and not any("swissprot" in r.url for r in proteomes())
    assert [Path(r.url).name for r in proteomes(["swissprot"], "v2")] == ["swissprot_pdb_v2.tar"]
    assert {r.md5 for r in proteomes()} == {""}
    assert [r.md5 for r in proteomes(version="v2")] == list(PROTEOMES.values())[:21]
    with pytest.raises(DownloadError, match="no such proteome, there are UP000006548_3702_ARATH"):
        proteomes(["klingon"])
    assert labelled("psr").url == "https://zenodo.org/records/4915648/files/PSR-split-by-year.tar.gz"
    assert labelled("pip").md5 == "" and LABELLED.keys() == atom3d.LAYOUT.keys() | {"ec"}


def test_proteomes_are_read_in_place(site, tmp_path, capsys):
    site.files = {HUMAN: models("P1", "P2"), "UP000002311_559292_YEAST_v6.tar": models("P3")}
    assert main(["afdb", "--proteome", "human", "559292", "--out", str(tmp_path)]) == 0
    *_, script, option, path = shlex.split(capsys.readouterr().out)
    assert (script, option) == ("train.py", "--data")
    listing = find_structures(path)
    assert [s.name for s in listing.sources] == [f"AF-P{i}-F1-model_v6" for i in (1, 2, 3)]
    assert all(s.read().protein.num_residues == 3 for s in listing.sources)
    assert found(tmp_path) == ["afdb-v6/UP000002311_559292_YEAST_v6.tar", f"afdb-v6/{HUMAN}"]
    assert main(["afdb", "--proteome", "yeast", "human", "--out", str(tmp_path)]) == 0
    assert len(site.starts) == 2 and "is there already" in capsys.readouterr().out


def test_a_proteome_that_is_gone_does_not_stop_the_others(site, tmp_path, capsys):
    site.files = {HUMAN: models("P1")}
    assert main(["afdb", "--out", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert errors.count("the server answers 404") == 20 and "20 of 21 archives could not be downloaded" in errors
    assert found(tmp_path) == [f"afdb-v6/{HUMAN}"]


@pytest.mark.parametrize("ranges", [True, False])
def test_the_same_command_goes_on(site, tmp_path, capsys, monkeypatch, ranges):
    body = random.Random(0).randbytes(200_000)
    offer(site, monkeypatch, "psr", tar([("split-by-year/data/test/data.mdb", body)], "w:gz"))
    site.cut, site.ranges = 50_000, ranges
    command = ["psr", "--out", str(tmp_path)]
    assert main(command) == 1 and "the same command goes on" in capsys.readouterr().err
    assert found(tmp_path) == ["PSR-split-by-year.tar.gz.part"]
    assert main(command) == 0 and site.starts == [0, 50_000 if ranges else 0]
    assert (tmp_path / "psr/split-by-year/data/test/data.mdb").read_bytes() == body
    assert f"finetune.py --task psr --data {tmp_path / 'psr'}" in capsys.readouterr().out
    archive = tmp_path / "PSR-split-by-year.tar.gz"
    archive.rename(f"{archive}.part")  # killed when all had come in
    (tmp_path / "psr").rename(tmp_path / "psr.partial")
    assert main(command) == 0 and site.starts[2:] == [len(site.files[archive.name]) if ranges else 0]
    assert found(tmp_path) == [archive.name, "psr/split-by-year/data/test/data.mdb"]


@pytest.mark.parametrize("content", ["<html>not found</html>", "", "another archive"])
def test_what_is_not_the_archive_is_not_kept(site, tmp_path, capsys, content):
    site.files = {
        Path(labelled("msp").url).name: tar([("x", b"1")], "w:gz") if content == "another archive" else content.encode()
    }
    assert main(["msp", "--out", str(tmp_path)]) == 1
    assert "not the published archive (MD5" in capsys.readouterr().err and found(tmp_path) == []


def test_a_zip_is_unpacked(site, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("nrPDB-EC_annot.tsv", "x")
        archive.writestr("../../outside", "x")
    offer(site, monkeypatch, "ec", (tmp_path / "x.zip").read_bytes())
    assert main(["ec", "--out", str(tmp_path / "out" / "d")]) == 0
    assert found(tmp_path / "out") == ["d/EnzymeCommission.zip", "d/ec/nrPDB-EC_annot.tsv", "d/ec/outside"]


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "link"])
def test_a_hostile_archive_writes_nothing_outside(site, tmp_path, monkeypatch, capsys, name):
    info = tarfile.TarInfo(name)
    if name == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    offer(site, monkeypatch, "res", tar([(info, b"")], "w:gz"))
    main(["res", "--out", str(tmp_path / "d")])
    assert not (tmp_path / "outside").exists() and not any(p.is_symlink() for p in tmp_path.rglob("*"))


def test_one_download_at_a_time(site, tmp_path):
    code = "import sys; from siamdiff_min.data.download import main; sys.exit(main(sys.argv[1:]))"
    with lock(tmp_path / ".lock"):
        done = subprocess.run([sys.executable, "-c", code, "psr", "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1 and "another download is writing to it" in done.stderr
