"""Data sets from a local server to the readers that use them; what is damaged never gets its name."""

import gzip
import hashlib
import io
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import needs_filters
from test_archives import content, tar, zipped
from test_ec import layout
from test_fetch import serve

from siamdiff_min.data import atom3d, build, download, ec, fetch
from siamdiff_min.data.download import LABELLED, PROTEOMES, DownloadError, labelled, main, proteomes, verify
from siamdiff_min.data.structures import find_structures
from siamdiff_min.files import SiamDiffError, lock

pytestmark = needs_filters
ROOT = Path(__file__).parents[2]
TEXT = b"".join(
    b"ATOM  %5d  CA  GLY A%4d    %8.3f   0.000   0.000  1.00  0.00           C\n" % (i, i, 3.8 * i) for i in range(1, 4)
)
HUMAN = "UP000005640_9606_HUMAN_v6.tar"


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(fetch, "PAUSES", (0,) * 7)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve({}) as running:
        yield running


def models(*names):
    """A proteome archive as AlphaFold DB has them: both formats of every model."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in [f"AF-{name}-F1-model_v6.{kind}.gz" for name in names for kind in ("cif", "pdb")]:
            info = tarfile.TarInfo(name)
            data = gzip.compress(TEXT)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def packed(task, folder, root):
    """The archive of a labelled set, from the folder of its top level."""
    name = labelled(task).name
    members = [(str(f.relative_to(folder)), f.read_bytes() if f.is_file() else None) for f in sorted(folder.rglob("*"))]
    return (zipped if name.endswith(".zip") else tar)(root / name, members)


def offer(site, monkeypatch, archive, task):
    """Put an archive on the server, in place of the published one."""
    monkeypatch.setitem(LABELLED, task, (LABELLED[task][0], hashlib.md5(archive.read_bytes()).hexdigest()))
    site.files[archive.name] = archive.read_bytes()


def small(task, root):
    """The layout of an ATOM3D archive with files that are as good as any to be found."""
    for split in ("train", "val", "test"):
        folder = root / atom3d.LAYOUT[task] / split
        folder.mkdir(parents=True)
        (folder / "data.mdb").write_bytes(random.Random(split).randbytes(5000))
        (folder / "lock.mdb").write_bytes(b"\0" * 8192)
    return root


def run(site, *arguments):
    return main([*map(str, arguments), "--base-url", site.url])


def found(out):
    """Everything in a folder but the lock."""
    return sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file() and p.name != ".lock")


# ---- the tables ------------------------------------------------------------------------------------------------------


def test_the_published_archives():
    human = proteomes(["human"])
    assert [r.url for r in human] == [f"https://ftp.ebi.ac.uk/pub/databases/alphafold/v6/{HUMAN}"]
    assert human == proteomes(["UP000005640"]) == proteomes(["9606", "HUMAN"]) == proteomes([HUMAN[:-7]])
    assert len(proteomes()) == 21 and not any("swissprot" in r.name for r in proteomes())
    assert [r.name for r in proteomes(["swissprot"], "v2")] == ["swissprot_pdb_v2.tar"]
    assert [r.md5 for r in proteomes()] == [None] * 21
    assert [r.md5 for r in proteomes(version="v2")] == list(PROTEOMES.values())[:21]
    for wrong in ("klingon", "UP", ""):
        with pytest.raises(DownloadError, match="no such proteome, there are UP000006548_3702_ARATH"):
            proteomes([wrong])
    for wrong in ("6", "../v6", "v6/x", "latest"):
        with pytest.raises(DownloadError, match="no version"):
            proteomes(version=wrong)
    assert labelled("psr").url == "https://zenodo.org/records/4915648/files/PSR-split-by-year.tar.gz"
    assert labelled("pip").md5 is None and LABELLED.keys() == atom3d.LAYOUT.keys() | {"ec"}
    sums = [md5 for md5 in [*PROTEOMES.values(), *(md5 for _, md5 in LABELLED.values())] if md5]
    assert len(set(sums)) == len(sums) == 26 and all(len(bytes.fromhex(md5)) == 16 for md5 in sums)


# ---- from the server to the readers ----------------------------------------------------------------------------------


def test_proteomes_are_read_in_place(site, tmp_path, capsys):
    site.files = {HUMAN: models("P1", "P2"), "UP000002311_559292_YEAST_v6.tar": models("P3")}
    site.plan = [{"cut": 1500}]
    assert run(site, "afdb", "--proteome", "human", "559292", "--out", tmp_path) == 0
    *_, script, option, path = shlex.split(capsys.readouterr().out)
    assert (script, option) == ("train.py", "--data")
    listing = find_structures(path)
    assert [s.name for s in listing.sources] == [f"AF-P{i}-F1-model_v6" for i in (1, 2, 3)]
    assert all(s.read().protein.num_residues == 3 for s in listing.sources)
    assert found(tmp_path) == ["afdb-v6/UP000002311_559292_YEAST_v6.tar", f"afdb-v6/{HUMAN}", "manifest.json"]
    rows = download.read_manifest(tmp_path)
    row = rows[f"afdb-v6/{HUMAN}"]
    assert row["sha256"] == hashlib.sha256(site.files[HUMAN]).hexdigest() and row["size"] == len(site.files[HUMAN])
    assert row["url"] == f"{site.url}/{HUMAN}" and row["set"] == "afdb" and len(row["date"]) == 10
    requests = len(site.requests)
    assert run(site, "afdb", "--proteome", "yeast", "human", "--out", tmp_path) == 0
    assert len(site.requests) == requests and "is there already" in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 0


def test_a_proteome_that_is_gone_does_not_stop_the_others(site, tmp_path, capsys):
    site.files = {HUMAN: models("P1")}
    assert run(site, "afdb", "--out", tmp_path) == 1
    errors = capsys.readouterr().err
    assert errors.count("HTTP Error 404") == 20 and "20 of 21 archives could not be downloaded" in errors
    assert f"{site.url}/UP000002311_559292_YEAST_v6.tar" in errors
    assert found(tmp_path) == [f"afdb-v6/{HUMAN}", "manifest.json"]


def test_psr_to_its_samples(site, tmp_path, monkeypatch, capsys):
    pytest.importorskip("lmdb")
    import test_atom3d

    source = tmp_path / "source"
    for split in ("train", "val", "test"):
        test_atom3d.write(source / atom3d.LAYOUT["psr"] / split, [test_atom3d.psr(0), test_atom3d.psr(3)])
    offer(site, monkeypatch, packed("psr", source, tmp_path), "psr")
    site.plan = [{"cut": 2000}]
    assert run(site, "psr", "--out", tmp_path / "out") == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:-1] == ["python", "finetune.py", "--task", "psr", "--data"]
    assert verify(tmp_path / "out") == []
    try:
        store = build.open_origin(atom3d.atom3d_set(command[-1], "psr").test)
        assert len(store) == 2 and store.read(0).num_residues == 51
    finally:
        atom3d._environment.cache_clear()
    assert verify(tmp_path / "out") == []  # reading changes nothing


@pytest.mark.parametrize("task", atom3d.LAYOUT)
def test_every_layout_is_found(site, tmp_path, monkeypatch, capsys, task):
    source = small(task, tmp_path / "source")
    offer(site, monkeypatch, packed(task, source, tmp_path), task)
    assert run(site, task, "--out", tmp_path / "out") == 0
    path = Path(shlex.split(capsys.readouterr().out)[-1])
    data = atom3d.atom3d_set(path, task)
    assert data.valid.path == path / atom3d.LAYOUT[task] / "val" and content(path) == content(source)
    assert labelled(task).name in os.listdir(tmp_path / "out")
    assert not [name for name in found(tmp_path / "out") if "part" in Path(name).name]


@pytest.mark.parametrize("zips", [(), ("train", "valid", "test")])
@pytest.mark.parametrize("top", ["EnzymeCommission", "."])
def test_ec_to_its_splits(site, tmp_path, monkeypatch, capsys, zips, top):
    (tmp_path / "source").mkdir()
    layout(tmp_path / "source" / top, zipped=zips)
    offer(site, monkeypatch, packed("ec", tmp_path / "source", tmp_path), "ec")
    assert run(site, "ec", "--out", tmp_path / "out") == 0
    data = ec.ec_set(shlex.split(capsys.readouterr().out)[-1])
    assert [len(o.listing().sources) for o in (data.train, data.valid, data.test)] == [2, 2, 2]


# ---- what is refused -------------------------------------------------------------------------------------------------


def cut_at_a_member(body):
    """Just before the last member's header: every member that is there is whole."""
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return body[: archive.getmembers()[-1].offset]


BAD = {
    "HTML": (lambda body: b"\n<!DOCTYPE html><html>not here</html>", "damaged.* it begins with .*html"),
    "nothing": (lambda body: b"", "an empty file|damaged.* it begins with b''"),
    "text": (lambda body: b"quota exceeded " * 99, "damaged.* it begins with b'quota"),
    "half": (lambda body: body[: len(body) // 2], "damaged|truncated"),
    "little": (lambda body: body[:700], "damaged|truncated"),
}
WAYS = [(case, how) for case in BAD for how in ("body", "chunks")]  # as it is, or without a length
WAYS += [("half", "announced"), ("little", "announced")]  # the good file, whose length is announced too short


@pytest.mark.parametrize("case, how", WAYS)
@pytest.mark.parametrize("name", ["afdb", "pip", "ec"])
def test_nothing_bad_gets_its_name(site, tmp_path, monkeypatch, capsys, case, how, name):
    change, reason = BAD[case]
    if name == "afdb":
        file, good = HUMAN, models("P1", "P2", "P3")
    else:
        source = small("pip", tmp_path / "source") if name == "pip" else layout(tmp_path / "source")
        archive = packed(name, source, tmp_path)
        monkeypatch.setitem(LABELLED, name, (LABELLED[name][0], None))
        file, good = archive.name, archive.read_bytes()
    bad = change(good)
    site.files[file] = good if how == "announced" else bad
    site.always["length"] = None if how == "chunks" else len(bad)
    arguments = [name, "--out", tmp_path / "out", *(["--proteome", "human"] if name == "afdb" else [])]
    assert run(site, *arguments) == 1
    errors = capsys.readouterr().err
    assert re.search(f"error: {site.url}/{file}: .*({reason})", errors)
    assert found(tmp_path / "out") == []
    site.files[file] = good
    site.always["length"] = len(good)
    assert run(site, *arguments) == 0 and verify(tmp_path / "out") == []


def test_a_file_that_changes_on_the_way(site, tmp_path, monkeypatch, capsys):
    """Two versions may be joined, but what comes of it is not kept."""
    archive = packed("psr", small("psr", tmp_path / "source"), tmp_path)
    offer(site, monkeypatch, archive, "psr")
    site.plan = [{"body": random.Random(9).randbytes(archive.stat().st_size), "cut": 2000}]
    assert run(site, "psr", "--out", tmp_path / "out") == 1 and len(site.requests) == 2
    assert "damaged or another version (MD5 " in capsys.readouterr().err and found(tmp_path / "out") == []
    assert run(site, "psr", "--out", tmp_path / "out") == 0 and verify(tmp_path / "out") == []


def test_cut_between_two_members(site, tmp_path, capsys):
    """Only the zeros at its end tell that such an archive is whole."""
    site.files = {HUMAN: cut_at_a_member(models("P1", "P2", "P3"))}
    assert run(site, "afdb", "--proteome", "human", "--out", tmp_path) == 1
    assert "truncated archive (without its end)" in capsys.readouterr().err and found(tmp_path) == []


def test_a_wrong_checksum(site, tmp_path, monkeypatch, capsys):
    source = small("msp", tmp_path / "source")
    archive = packed("msp", source, tmp_path)
    site.files[archive.name] = archive.read_bytes()
    assert run(site, "msp", "--out", tmp_path / "out") == 1
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    assert f"MD5 {md5}, expected 6628e8efac12648d3b78bb0fc0d8860c" in capsys.readouterr().err
    assert found(tmp_path / "out") == []
    site.files["UP000005640_9606_HUMAN_v2.tar"] = models("P1")
    assert run(site, "afdb", "--proteome", "human", "--version", "v2", "--out", tmp_path / "out") == 1
    assert "expected 5dadeb5aac704025cac33f7557794858" in capsys.readouterr().err


def test_a_hostile_set(site, tmp_path, monkeypatch, capsys):
    archive = tar(tmp_path / labelled("psr").name, [("split-by-year/data/a", b"x"), ("../../evil", b"x")])
    offer(site, monkeypatch, archive, "psr")
    assert run(site, "psr", "--out", tmp_path / "deep" / "out") == 1
    assert "'../../evil': path outside the archive" in capsys.readouterr().err
    assert found(tmp_path) == [archive.name]


def test_a_folder_that_is_not_from_here(site, tmp_path):
    (tmp_path / "psr").mkdir()
    with pytest.raises(DownloadError, match=r"psr: is there, but .*manifest\.json does not list it"):
        download.download(labelled("psr"), tmp_path, site.url)
    assert site.requests == []


def test_a_full_disk(site, tmp_path, monkeypatch):
    """In the download, or in unpacking: the message names the folder, and what had arrived is used later."""
    source = small("res", tmp_path / "source")
    (source / atom3d.LAYOUT["res"] / "train" / "data.mdb").write_bytes(bytes(60_000))
    archive = packed("res", source, tmp_path)
    offer(site, monkeypatch, archive, "res")
    assert 8000 < archive.stat().st_size < 20_000
    out, before = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 8000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(SystemExit, match=r"error: could not write .*out.*: File too large"):
                run(site, "res", "--out", out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not (out / "res").exists() and not (out / "manifest.json").exists()
        assert not (out / "res.partial").exists()
    sent = site.sent
    assert run(site, "res", "--out", out) == 0 and verify(out) == [] and site.sent <= sent + len(b"no")
    assert content(out / "res") == content(source)


# ---- interrupted -----------------------------------------------------------------------------------------------------

KILLED = """
import hashlib, http.client, os, signal, sys
from pathlib import Path
from siamdiff_min.data import download
url, root, archive = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
md5 = hashlib.md5(archive.read_bytes()).hexdigest()
download.LABELLED["psr"] = (download.LABELLED["psr"][0], md5)
calls = 0
def fatal(function, number):
    def call(*a, **k):
        global calls
        calls += 1
        return os.kill(os.getpid(), signal.SIGKILL) if calls == number else function(*a, **k)
    return call
def run(out, number):
    child = os.fork()
    if not child:
        for name in ("replace", "rename", "unlink", "rmdir", "fsync", "mkdir"):
            setattr(os, name, fatal(getattr(os, name), number))
        http.client.HTTPResponse.read1 = fatal(http.client.HTTPResponse.read1, number)
        os._exit(download.main(["psr", "--out", str(out), "--base-url", url]))
    return os.waitpid(child, 0)[1]
number, status = 0, signal.SIGKILL
while status == signal.SIGKILL:
    number += 1
    out = root / str(number)
    status = run(out, number)
    if (out / "psr").exists():
        assert download.verify(out) == []
    if (out / archive.name).exists():
        assert hashlib.md5((out / archive.name).read_bytes()).hexdigest() == md5
    assert run(out, 0) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that were forked")
def test_killed_before_every_call_that_matters(site, tmp_path):
    """Before its first call that changes the disk or reads the network, before its second, and so on.

    What has its name is then complete, and the next process ends as if nothing had happened.
    """
    archive = packed("psr", small("psr", tmp_path / "source"), tmp_path)
    site.files[archive.name] = archive.read_bytes()
    command = [sys.executable, "-c", KILLED, site.url, str(tmp_path / "out"), str(archive)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    outs = sorted((tmp_path / "out").iterdir())
    assert len(outs) > 15  # Python 3.10 makes fewer calls than later ones
    for out in outs:
        assert content(out / "psr") == content(tmp_path / "source") and verify(out) == []
        assert sorted(os.listdir(out)) == [".lock", archive.name, "manifest.json", "psr"]


def test_one_download_at_a_time(site, tmp_path):
    with lock(tmp_path / ".lock"), pytest.raises(SystemExit, match="another download is writing to it"):
        run(site, "psr", "--out", tmp_path)
    assert site.requests == []


def test_an_archive_that_was_renamed_but_not_listed(site, tmp_path, capsys):
    """Or that a user has put there: it is checked like any other, and not fetched again, nor removed."""
    (tmp_path / "afdb-v6").mkdir()
    path = tmp_path / "afdb-v6" / HUMAN
    path.write_bytes(models("P1")[:700])
    assert run(site, "afdb", "--proteome", "human", "--out", tmp_path) == 1
    assert f"error: {path}: damaged archive" in capsys.readouterr().err and path.exists()
    path.write_bytes(models("P1"))
    assert run(site, "afdb", "--proteome", "human", "--out", tmp_path) == 0 and verify(tmp_path) == []
    assert site.requests == []


# ---- files that users have, and verify -------------------------------------------------------------------------------


def test_from_a_file(tmp_path, monkeypatch, capsys):
    source = small("pip", tmp_path / "source")
    archive = packed("pip", source, tmp_path)
    mine = archive.rename(tmp_path / "mine.tgz")
    assert main(["pip", "--from-file", str(mine), "--out", str(tmp_path / "out")]) == 0
    assert content(tmp_path / "out" / "pip") == content(source) and mine.exists()
    assert download.read_manifest(tmp_path / "out")[labelled("pip").name]["url"] == str(mine)
    mine.write_bytes(mine.read_bytes()[:-9])
    assert main(["pip", "--from-file", str(mine), "--out", str(tmp_path / "other")]) == 1
    assert f"{mine}: damaged or refused" in capsys.readouterr().err
    assert mine.exists() and found(tmp_path / "other") == []
    (tmp_path / "begun").mkdir()
    begun = tmp_path / "begun" / f"{archive.name}.part"  # by a download, and finished by other means
    packed("pip", source, tmp_path).rename(begun)
    assert main(["pip", "--from-file", str(begun), "--out", str(begun.parent)]) == 0 and verify(begun.parent) == []


def test_a_proteome_from_a_file(tmp_path):
    mine = tmp_path / HUMAN
    mine.write_bytes(models("P1"))
    out = tmp_path / "out"
    assert main(["afdb", "--from-file", str(mine), "--proteome", "human", "--out", str(out)]) == 0
    assert (out / "afdb-v6" / HUMAN).read_bytes() == mine.read_bytes()
    other = mine.rename(tmp_path / "other.tar")
    with pytest.raises(SystemExit, match="which proteome is it"):
        main(["afdb", "--from-file", str(other), "--out", str(out)])
    assert main(["afdb", "--from-file", str(other), "--proteome", "yeast", "--out", str(out)]) == 0
    assert len(find_structures(out / "afdb-v6").sources) == 2
    with pytest.raises(SystemExit, match=r"nothing\.tar: no such file"):
        main(["afdb", "--from-file", str(tmp_path / "nothing.tar"), "--proteome", "human", "--out", str(out)])


def test_verify_finds_a_flipped_byte(tmp_path, capsys):
    source = small("pip", tmp_path / "source")
    archive, out = packed("pip", source, tmp_path), tmp_path / "out"
    assert main(["pip", "--from-file", str(archive), "--out", str(out)]) == 0
    assert main(["verify", str(out)]) == 0 and "everything is as it was" in capsys.readouterr().out
    data = out / "pip" / atom3d.LAYOUT["pip"]
    (out / archive.name).unlink()  # whoever has unpacked it may remove it
    (data / "train" / "lock.mdb").write_bytes(b"another reader was here")
    assert main(["verify", str(out)]) == 0
    flipped, cut, missing = (data / split / "data.mdb" for split in ("train", "val", "test"))
    content = bytearray(flipped.read_bytes())
    content[2500] ^= 4
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-1])
    missing.unlink()
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == sorted([
        f"{flipped}: damaged (its checksum differs)",
        f"{cut}: damaged (its checksum differs)",
        f"{missing}: missing",
    ])  # fmt: skip


def test_a_manifest_that_is_damaged_or_absent(tmp_path):
    with pytest.raises(SystemExit, match=r"no manifest\.json"):
        main(["verify", str(tmp_path)])
    for text in ("", "{}", "[]", '{"format": "siamdiff_min downloads 1", "files": [1]}',
                 '{"format": "siamdiff_min downloads 1", "files": {"a": {"size": 1}}}', "[" * 10**5):  # fmt: skip
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(SystemExit, match=r"manifest\.json: damaged"):
            main(["verify", str(tmp_path)])
        with pytest.raises(SiamDiffError, match=r"manifest\.json: damaged"):
            download.download(replace(labelled("psr"), url="http://127.0.0.1:1/x.tar.gz"), tmp_path)


def test_the_command_line_as_a_user_runs_it(site, tmp_path):
    site.files = {HUMAN: models("P1")}
    options = ["--proteome", "human", "--out", str(tmp_path), "--base-url", site.url]
    command = [sys.executable, "-m", "siamdiff_min.data.download", "afdb", *options]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"python train.py --data {tmp_path / 'afdb-v6'}\n"
