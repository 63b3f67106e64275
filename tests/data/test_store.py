"""The store: equal to direct reading, whatever the number of processes or interruptions; damage; crops; split."""

import hashlib
import importlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
from helpers import assert_equal, tar
from processes import PATIENCE, run
from siamdiff_min.data.shards import KEYS, META, ProteinStore

from benchmarks.pdb import write_pdb
from siamdiff_min.data import shards
from siamdiff_min.data import store as stores
from siamdiff_min.data.bundled import bundle_index, bundle_path
from siamdiff_min.data.crops import Crops, split
from siamdiff_min.data.sources import INDEX, LOCK, Listing, Source, find_structures, structure_files
from siamdiff_min.data.store import open_store
from siamdiff_min.files import (
    TEMPORARY,
    ConfigError,
    StoreError,
    WriteError,
    lock,
    replacing,
    write_file,
)
from siamdiff_min.protein.constants import ATOM_ELEMENT
from siamdiff_min.protein.protein import Protein

SIZES = (5, 1, 12, 30, 7, 9, 3, 4, 8, 2)


def protein(size: int, seed: int) -> Protein:
    """CA, some with N or O: random, two chains where there is more than one residue, an insertion code."""
    g = torch.Generator().manual_seed(seed)
    has = torch.rand(size, 3, generator=g) < 0.7
    has[:, 1] = True
    residue, slot = has.nonzero().T
    chain = (torch.arange(size) >= (size + 1) // 2).long()
    return Protein(
        pos=(torch.randn(size, 3, generator=g)[residue] * 30 + torch.randn(len(slot), 3, generator=g)).round(
            decimals=3
        ),
        element=torch.tensor(ATOM_ELEMENT)[torch.tensor([0, 1, 3])[slot]],
        atom_name=torch.tensor([0, 1, 3])[slot],
        atom_residue=residue,
        residue_type=torch.randint(20, (size,), generator=g),
        masked=torch.zeros(size, dtype=torch.bool),
        residue_number=torch.arange(size) - 3,
        insertion_code=torch.where(torch.arange(size) % 4 == 3, ord("B"), ord(" ")),
        residue_index=torch.arange(size) - chain * ((size + 1) // 2),
        chain=chain,
        residue_protein=torch.zeros(size, dtype=torch.long),
    )


@pytest.fixture
def folder(tmp_path):
    """Ten small structures, three files that cannot be read and one that is none."""
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    for i, size in enumerate(SIZES):
        write_pdb(root / ("sub" if i % 3 == 0 else "") / f"p{i}.pdb", protein(size, seed=i))
    (root / "bad1.pdb").write_text("<html>")
    (root / "bad2.pdb").write_text("")
    (root / "bad3.cif").write_text("data_x\n")
    (root / "notes.txt").write_text("")
    return root


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(shards, "SHARD", 3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAMDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The bundled structures as a store; built once for this module."""
    return open_store(bundle_path(), tmp_path_factory.mktemp("bundle") / "bundle.store")


def digest(store) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(store.iterdir())}


# ---- building --------------------------------------------------------------------------------------------------------


def test_the_store_equals_direct_reading(folder, tmp_path, small_steps):
    store = ProteinStore(open_store(folder, tmp_path / "s").path)
    direct = {s.name: s for s in find_structures(folder).sources}
    assert list(store.names) == sorted(f"p{i}" for i in range(10))
    assert len(store) == 10 and [store.num_residues(i) for i in range(10)] == list(SIZES)
    for i, name in enumerate(store.names):
        assert_equal(store[i], direct[name].read().protein)
        assert_equal(store[i], protein(SIZES[i], seed=i))
        assert store.num_residues(i) == SIZES[i]
    assert_equal(store[-1], store[9])
    assert store.names[-1] == "p9"
    for index in (10, -11):
        with pytest.raises(IndexError):
            store[index]
        with pytest.raises(IndexError):
            store.names[index]


def test_every_file_is_accounted_for(folder, tmp_path, capsys):
    store = open_store(folder, tmp_path / "s")
    meta = store.meta
    assert (len(store), meta["residues"]) == (10, sum(SIZES))
    assert meta["failed"] == {"an HTML or XML page, not a PDB or mmCIF file": 1, "empty": 1, "no atoms in it": 1}
    assert meta["skipped"] == {"not a structure file": 1}
    files = sum(len(names) for _, _, names in os.walk(folder))
    assert meta["seen"] == files == len(store) + 1 + 3
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{store.path}: {store.report_counts()}"] and "seen 14 = used 10 + skipped 1 (" in lines[0]
    assert lines[0].endswith(f"; what failed: {store.path / 'failures.tsv'}")
    table = [line.split("\t") for line in (store.path / "failures.tsv").read_text().splitlines()]
    assert Counter(row[1] for row in table[1:]) == {"failed": 3, "skipped": 1}
    assert {row[0] for row in table[1:]} == {"bad1", "bad2", "bad3", ""}
    assert all(len(row) == 5 for row in table)


def test_dropped_atoms_are_added_up(folder, tmp_path):
    water = "HETATM    1  O   HOH A  99       0.000   0.000   0.000  1.00  0.00           O\n"
    for name in ("p1.pdb", "p2.pdb"):
        (folder / name).write_text(water + (folder / name).read_text())
    assert open_store(folder, tmp_path / "s").meta["dropped"] == {"waters": 2}


def test_number_of_processes_changes_no_byte(folder, tmp_path, small_steps):
    one, three = (open_store(folder, tmp_path / f"s{workers}", workers) for workers in (1, 3))
    assert one.path.name == three.path.name and digest(one.path) == digest(three.path)


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, but not every container has an init process that takes note


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_the_processes_of_a_killed_build_end_too(tmp_path):
    code = "import sys; from siamdiff_min.data import shards, store; shards.SHARD = 4"
    code += "; store.open_store(*sys.argv[1:], 2)"
    process = subprocess.Popen([sys.executable, "-c", code, bundle_path(), tmp_path / "s"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("s/*/00000.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    process.kill()
    process.wait()
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def tree(folder) -> dict[str, bytes | None]:
    """Everything under a folder, None for a folder."""
    return {str(f.relative_to(folder)): None if f.is_dir() else f.read_bytes() for f in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("shard", range(5))
def test_a_build_that_is_killed_goes_on_and_gives_the_same_bytes(folder, tmp_path, small_steps, monkeypatch, shard):
    """What is read again is what its last shard had, at most."""
    whole = open_store(folder, tmp_path / "whole")
    write, read = shards.write_shard, []

    def die(file, *args):
        if file.name == f"{shard:05d}.pt":
            raise KeyboardInterrupt
        write(file, *args)

    with monkeypatch.context() as context:
        context.setattr(shards, "write_shard", die)
        with pytest.raises(KeyboardInterrupt):
            open_store(folder, tmp_path / "s")
    unfinished = tmp_path / "s" / whole.path.name
    with pytest.raises(StoreError, match="not a finished store"):
        ProteinStore(unfinished)
    read_all = shards.read_all
    monkeypatch.setattr(shards, "read_all", lambda sources, count: (read.extend(sources), read_all(sources, count))[1])
    assert open_store(folder, tmp_path / "s").path == unfinished
    assert len(read) == 13 - 3 * shard
    assert digest(unfinished) == digest(whole.path)


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize("damage", [half, flipped])
def test_a_shard_that_a_crash_has_damaged_is_made_again(folder, tmp_path, small_steps, damage):
    """Of a build that was killed: `meta.json`, and with it the checksums, is not there yet."""
    store = open_store(folder, tmp_path / "s")
    before, file = digest(store.path), store.path / "00001.pt"
    (store.path / META).unlink()
    file.write_bytes(damage(file.read_bytes()))
    open_store(folder, tmp_path / "s")
    assert digest(store.path) == before


NOT_OURS = ["{}", "[]", "not json", "", "[" * 200_000, '{"format": 1}', '{"format": "siamdiff_min store 2"}']


@pytest.mark.parametrize("content", [None, *NOT_OURS], ids=lambda c: str(c)[:20] or "empty")
def test_nothing_of_the_users_is_written_over(folder, tmp_path, content):
    """Neither where the user's file is called like one of ours, nor in a dry run."""
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "00000.pt").write_text("dear")
    (tmp_path / "dear").write_text("dear")
    (tmp_path / "s" / "failures.tsv").symlink_to(tmp_path / "dear")
    if content is not None:
        (tmp_path / "s" / META).write_text(content)
    before = tree(tmp_path)
    assert open_store(folder, tmp_path / "s", build=False) is None and tree(tmp_path) == before
    store = open_store(folder, tmp_path / "s")
    assert {name: data for name, data in tree(tmp_path).items() if name in before} == before
    assert {path.name for path in (tmp_path / "s").iterdir()} - {Path(x).name for x in before} == {
        LOCK,
        INDEX,
        store.path.name,
    }
    with pytest.raises(WriteError, match=r"could not write .*p1\.pdb/siamdiff-lock: File exists"):
        open_store(folder, folder / "p1.pdb")


def test_no_link_is_written_through(folder, tmp_path):
    """Not even one that lies where a shard will lie."""
    name = open_store(folder, tmp_path / "other").path.name
    (tmp_path / "s" / name).mkdir(parents=True)
    (tmp_path / "dear").write_text("dear")
    for ours in ("00000.pt", "failures.tsv", META + TEMPORARY):
        (tmp_path / "s" / name / ours).symlink_to(tmp_path / "dear")
    open_store(folder, tmp_path / "s").verify()
    assert (tmp_path / "dear").read_text() == "dear"


def test_a_reader_during_a_build_of_other_data(folder, tmp_path, small_steps):
    """Its store is not replaced: what it has not mapped yet is there too."""
    early, late = (open_store(folder, tmp_path / "s") for _ in range(2))
    assert_equal(early[0], protein(SIZES[0], seed=0))
    write_pdb(folder / "a.pdb", protein(6, seed=99))
    assert len(open_store(folder, tmp_path / "s")) == 11
    for store in (early, late, pickle.loads(pickle.dumps(early))):
        for i, size in enumerate(SIZES):
            assert_equal(store[i], protein(size, seed=i))


def add_label(kind, structure):
    return replace(structure, labels={"kind": kind})


def test_other_labels_are_another_store(folder, tmp_path):
    """Its checksum is another one too; labels and proteins of the first stay where they are."""
    sources = find_structures(folder).sources

    def labelled(kind):
        listing = Listing([replace(source, label=partial(add_label, kind)) for source in sources], [])
        return replace(structure_files(folder), key=kind, listing=lambda: listing)

    plain = open_store(folder, tmp_path / "s")
    old, new = (open_store(labelled(kind), tmp_path / "s") for kind in ("old", "new"))
    assert (old.labels(0), new.labels(0), plain.labels(0)) == ({"kind": "old"}, {"kind": "new"}, {})
    assert len({old.path, new.path, plain.path}) == len({old.checksum, new.checksum, plain.checksum}) == 3
    assert open_store(labelled("old"), tmp_path / "s").path == old.path
    assert {store.path.name[:16] for store in (old, new, plain)} == {plain.path.name}


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_cache_folder_without_rights(folder, cache, monkeypatch):
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        shutil.copytree(folder, f"{place}/data")
        for number, mode in enumerate((0o000, 0o444, 0o555)):
            (Path(place) / str(number)).mkdir(mode=mode)
            monkeypatch.setenv("SIAMDIFF_CACHE", f"{place}/{number}")
            os.seteuid(65534)
            try:
                with pytest.raises(WriteError, match=r"could not write .*: Permission denied"):
                    open_store(f"{place}/data")
            finally:
                os.seteuid(0)


def test_two_processes_that_write_one_file(tmp_path):
    """The later one writes it. The earlier one neither puts half of it in its place, nor removes it."""
    path, early, late = tmp_path / "x", replacing(tmp_path / "x"), replacing(tmp_path / "x")
    path.write_bytes(b"old")
    early.__enter__().write(b"early")
    file = late.__enter__()
    file.write(b"la")
    file.flush()
    with pytest.raises(WriteError, match="another process writes it too"):
        early.__exit__(None, None, None)
    assert path.read_bytes() == b"old"
    file.write(b"te")
    late.__exit__(None, None, None)
    assert tree(tmp_path) == {"x": b"late"}


def test_a_file_of_the_users_named_like_a_temporary_one(tmp_path):
    """Neither the name of before, `X.tmp`, nor a link of the name of today is written through."""
    for name in ("x.tmp", "y"):
        (tmp_path / name).write_text("dear")
    (tmp_path / f"x{TEMPORARY}").symlink_to(tmp_path / "y")
    write_file(tmp_path / "x", b"ours")
    assert tree(tmp_path) == {"x": b"ours", "x.tmp": b"dear", "y": b"dear"}
    (tmp_path / "x.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WriteError, match=r"x\.lock"), lock(tmp_path / "x.lock"):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("content", NOT_OURS, ids=lambda c: c[:20] or "empty")
def test_data_with_a_meta_json_of_the_users(folder, content):
    (folder / META).write_text(content)
    assert len(open_store(folder)) == 10
    with pytest.raises(StoreError, match=r"damaged|version"):
        ProteinStore(folder)


def test_without_building_nothing_changes_on_the_disk(folder, tmp_path, monkeypatch):
    before = tree(tmp_path)
    assert open_store(folder, build=False) is None and tree(tmp_path) == before
    built = open_store(folder)
    assert open_store(folder, build=False).path == built.path
    write_pdb(folder / "new.pdb", protein(6, seed=99))
    before = tree(tmp_path)
    assert open_store(folder, build=False) is None and tree(tmp_path) == before


@pytest.mark.parametrize("script, options", [("train", "--size tiny"), ("finetune", "--task ec"), ("finetune", "")])
def test_a_dry_run_changes_nothing_on_the_disk(script, options, folder, tmp_path, enzymes, monkeypatch, capsys):
    monkeypatch.setenv("SIAMDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(enzymes, tmp_path / "ec", ignore=shutil.ignore_patterns("*.store*"))  # of other tests
    data = {"train": ["--data", str(folder)], "finetune": ["--data", str(tmp_path / "ec")]}[script]
    before = tree(tmp_path)
    main = importlib.import_module(script).main
    assert main([*(options.split() or ["--task", "psr"]), *(data if options else []), "--dry-run"]) == 0
    assert tree(tmp_path) == before
    assert "not converted to a store yet" in capsys.readouterr().out


def test_no_home_folder(monkeypatch):
    """As in a container whose user has no entry in the list of users."""
    monkeypatch.delenv("SIAMDIFF_CACHE", raising=False)
    monkeypatch.setattr(stores.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(StoreError, match=r"no home folder .* SIAMDIFF_CACHE"):
        open_store(build=False)


def test_a_name_that_is_not_utf8(folder, tmp_path):
    """And what is printed has to be UTF-8."""
    odd = str(folder)
    os.rename(f"{odd}/p1.pdb", os.fsdecode(os.fsencode(odd) + b"/p\xfe.pdb"))
    command = [sys.executable, "-m", "siamdiff_min.build", odd]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"})
    assert done.returncode == 0 and b"seen 14 = used 10" in done.stdout, done.stderr
    store = open_store(odd)
    assert os.fsdecode(b"p\xfe") in store.names and len(store) == 10


def test_no_readable_protein_is_an_error(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.pdb").write_text("<html>")
    with pytest.raises(StoreError, match=r"no protein that can be read .*an HTML .* 1\); see .*failures\.tsv"):
        open_store(tmp_path / "data", tmp_path / "s")
    assert open_store(tmp_path / "data", tmp_path / "s", build=False) is None


def test_the_store_of_a_path_that_is_no_utf8_lies_in_the_cache(tmp_path, monkeypatch):
    """torch cannot map files beside it."""
    monkeypatch.setenv("SIAMDIFF_CACHE", str(tmp_path / "cache"))
    data = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(data)
    shutil.copy(Path(__file__).parents[1] / "protein" / "1LCD.pdb.gz", data)
    store = open_store(data, workers=1)
    assert store.path.parent.parent == tmp_path / "cache" and store.names == ["1LCD"]
    assert open_store(data).path == store.path and sorted(os.listdir(tmp_path)) == sorted(["cache", "\udcff"])
    with pytest.raises(ConfigError, match=r"torch opens no file on a path that is not UTF-8\. Give --store another"):
        open_store(Path(__file__).parents[1] / "protein" / "1LCD.pdb.gz", store=f"{data}/new", workers=1)
    assert os.listdir(data) == ["1LCD.pdb.gz"]


@pytest.mark.parametrize("files, found", [([], "it is empty"), (["a.txt", "b.xz"], "not a structure file 2")])
def test_where_nothing_is_found_it_is_said_what_was_looked_for(tmp_path, files, found):
    (tmp_path / "data").mkdir()
    for name in files:
        (tmp_path / "data" / name).write_text("")
    with pytest.raises(StoreError, match=rf"no structure in .*data \({found}\); looked for \.pdb, .*\.cif\.gz.*\.tar"):
        open_store(tmp_path / "data")


def test_a_disk_that_cannot_be_written_is_said_and_loses_nothing(folder, tmp_path, small_steps, monkeypatch):
    with pytest.raises(WriteError, match="could not write"):
        open_store(folder, folder / "p1.pdb" / "s")
    store = open_store(folder, tmp_path / "s")
    before = digest(store.path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    write_pdb(folder / "new.pdb", protein(6, seed=99))
    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match=r"could not write .*: No space left"):
            open_store(folder, tmp_path / "s")
    assert digest(store.path) == before
    assert len(open_store(folder, tmp_path / "s")) == 11


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_open_builds_once_and_again_when_the_data_change(folder, capsys):
    first = open_store(folder)
    assert first.path.parent == folder.with_name("data.store")
    stamp = (first.path / META).stat().st_mtime_ns
    assert open_store(folder).path == open_store(first.path).path == open_store(first.path.parent).path == first.path
    assert (first.path / META).stat().st_mtime_ns == stamp
    write_pdb(folder / "new.pdb", protein(6, seed=99))
    capsys.readouterr()
    second = open_store(folder)
    assert len(second) == 11 and "seen 15" in capsys.readouterr().err
    assert len(open_store(first.path)) == 10
    with pytest.raises(StoreError, match=rf"has 2 finished stores, give one of them: .*{first.path.name}"):
        open_store(first.path.parent)
    (folder / "new.pdb").unlink()
    assert open_store(folder).path == first.path and capsys.readouterr().err == ""


def test_two_versions_lie_side_by_side(folder, monkeypatch):
    before = open_store(folder)
    with monkeypatch.context() as context:
        context.setattr(shards, "VERSION", shards.VERSION + 1)
        after = open_store(folder)
        assert after.path.parent == before.path.parent and after.path != before.path
        with pytest.raises(
            StoreError, match=rf"version {shards.VERSION - 1}; this is .* version {shards.VERSION}: give"
        ):
            open_store(before.path)
        assert open_store(folder).path == after.path
    assert open_store(folder).path == before.path


def hashed(monkeypatch) -> list[str]:
    """The names of the files that are hashed from now on."""
    names, checksum = [], stores.checksum
    monkeypatch.setattr(stores, "checksum", lambda file: (names.append(Path(file).name), checksum(file))[1])
    return names


def test_bytes_are_hashed_once(folder, monkeypatch):
    """Also those of an archive; then only if size or time are new, or the index is gone."""
    write_file(folder / "x.tar", tar([("t.pdb", (folder / "p1.pdb").read_bytes())]))
    store, names = open_store(folder), hashed(monkeypatch)
    assert len(store) == 11 and open_store(folder).path == store.path and names == []
    os.utime(folder / "x.tar", ns=(0, 0))
    assert open_store(folder).path == store.path and names == ["x.tar"]
    assert open_store(folder).path == store.path and names == ["x.tar"]
    (folder.with_name("data.store") / INDEX).write_text("{")
    assert open_store(folder).path == store.path and len(names) == 15


def test_content_decides_and_not_times(folder):
    """A digit that changes at equal size and times is another content; the same content at other times is the same."""
    store, file = open_store(folder), folder / "p1.pdb"
    data = file.read_bytes()
    os.utime(file, ns=(5, 5))
    assert open_store(folder).path == store.path
    time.sleep(0.02)  # two changes of a file at one time are not told apart
    place = data.index(b" CA ") + 30  # in a coordinate
    file.write_bytes(data[:place] + (b"1" if data[place : place + 1] != b"1" else b"2") + data[place + 1 :])
    os.utime(file, ns=(5, 5))
    assert file.stat().st_size == len(data) and file.stat().st_mtime_ns == 5
    assert open_store(folder).path != store.path


def test_a_copy_of_data_and_store_needs_no_second_build(folder, tmp_path, monkeypatch):
    """As `cp -r` makes it, with times of its own; moved on, it is not even hashed again."""
    store = open_store(folder)
    (tmp_path / "new").mkdir()
    for name in ("data", "data.store"):
        shutil.copytree(tmp_path / name, tmp_path / "new" / name, copy_function=shutil.copyfile)
    monkeypatch.setattr(stores, "_build_store", None)
    copied = open_store(tmp_path / "new" / "data")
    assert copied.path == tmp_path / "new" / "data.store" / store.path.name and copied.checksum == store.checksum
    (tmp_path / "new").rename(tmp_path / "newer")
    names = hashed(monkeypatch)
    assert open_store(tmp_path / "newer" / "data").checksum == store.checksum and names == []


def test_a_store_beside_data_on_a_disk_that_cannot_be_written(folder, cache, monkeypatch):
    """It is found, and what is hashed once is remembered in the cache."""
    store = open_store(folder)
    os.utime(folder / "p1.pdb", ns=(5, 5))
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)
    names = hashed(monkeypatch)
    assert [open_store(folder).path for _ in range(2)] == [store.path] * 2 and names == ["p1.pdb"]


def test_a_checksum_is_that_of_proteins_names_and_labels(folder, tmp_path):
    """Where the data lay, and what could not be read, does not matter; the files of the stores differ in that."""
    shutil.copytree(folder, tmp_path / "elsewhere")
    one, two = (open_store(place) for place in (folder, tmp_path / "elsewhere"))
    assert one.path.name == two.path.name and digest(one.path) != digest(two.path)
    (folder / "bad1.pdb").unlink()
    assert open_store(folder).checksum == one.checksum == two.checksum
    os.rename(folder / "p1.pdb", folder / "p1a.pdb")  # the order of the files stays
    assert open_store(folder).checksum != one.checksum


def test_positions_name_the_chain_of_every_residue(folder):
    store = open_store(folder)
    for i, source in enumerate(s for s in find_structures(folder).sources if s.name.startswith("p")):
        assert store.positions(i) == source.read().positions
    assert {chain for chain, _, _ in store.positions(2)} == {"A", "B"}


def test_a_single_file_leaves_nothing_beside_itself(folder, cache):
    before = tree(folder)
    store = open_store(folder / "p1.pdb")
    assert store.names == ["p1"] and store.path.parent.parent == cache and tree(folder) == before
    chosen = folder.parent / "chosen"
    assert open_store(folder / "p1.pdb", chosen).names == ["p1"]
    os.rename(folder / "p1.pdb", folder / "other.pdb")
    assert open_store(folder / "other.pdb", chosen).names == ["other"]


def test_beside_the_data_nothing_is_written_if_that_is_asked(folder, cache):
    """As for --predict; a store that is there is used."""
    before = tree(folder.parent)
    there = open_store(folder, beside=False)
    assert there.path.parent.parent == cache
    shutil.rmtree(cache)
    assert tree(folder.parent) == before
    store = open_store(folder)
    assert open_store(folder, beside=False).path == store.path and not cache.exists()


def test_two_folders_of_one_name(folder, cache, tmp_path, monkeypatch):
    """In the cache each has its own place, as beside the data; and `store` is used where it is given."""
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)
    (tmp_path / "two").mkdir()
    shutil.copytree(folder, tmp_path / "two" / "data")
    one, two = (open_store(place) for place in (folder, tmp_path / "two" / "data"))
    assert one.path.parent != two.path.parent and one.path.parent.parent == two.path.parent.parent == cache
    assert open_store(folder, tmp_path / "given").path.parent == tmp_path / "given"


def test_no_store_is_taken_for_data(folder, tmp_path, monkeypatch):
    """Whether it is finished or not, has the default name or not; what the user has put beside it is data."""
    inside = [folder / "sub.store", folder / "chosen", folder]
    for place in inside:
        open_store(folder, place)
        with monkeypatch.context() as context:
            context.setattr(shards, "write_meta", lambda *_: 1 / 0)
            context.setattr(shards, "VERSION", 0)
            with pytest.raises(ZeroDivisionError):
                open_store(folder, place)
        assert len(list(place.glob("*/00000.pt"))) == 2
    store = open_store(folder)
    assert store.meta["seen"] == 14 and {open_store(folder, place).path.name for place in inside} == {store.path.name}
    write_pdb(folder / "chosen" / "mine.pdb", protein(6, seed=99))
    assert "mine" in open_store(folder).names


def test_other_stores_go_if_that_is_asked(folder, capsys):
    """Those of other data, finished or not; not of other labels, and no file of the user's."""
    first = open_store(folder)
    (first.path / "00000.pt").rename(first.path / f"00000.pt{TEMPORARY}")
    (first.path / "dear.pt").write_text("dear")
    write_pdb(folder / "new.pdb", protein(6, seed=99))
    kept = [open_store(replace(structure_files(folder), key=key)) for key in ("", "labels")]
    home = folder.with_name("data.store")
    for name in ("0" * 16, "dear"):
        (home / name).mkdir()
    capsys.readouterr()
    stores.main(["--prune", str(folder)])
    said = capsys.readouterr().out
    assert sorted(said.splitlines()) == sorted(f"{path}: removed" for path in (home / ("0" * 16), first.path))
    assert [path.name for path in first.path.iterdir()] == ["dear.pt"] and not (home / ("0" * 16)).exists()
    assert (home / "dear").is_dir()
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(SystemExit, match="Nothing is removed"):
        stores.main(["--prune", str(folder)])
    for store in kept:
        store.verify()


@dataclass(frozen=True)
class Replaced(Source):
    """A source whose archive is replaced by one of the same members while it is read."""

    def read(self):
        found = super().read()
        write_file(Path(self.path), Path(f"{self.path}.new").read_bytes())
        return found


@pytest.mark.parametrize("lists", [False, True])
def test_data_that_change_while_they_are_read(folder, tmp_path, small_steps, lists):
    """An archive is replaced, by one of the same size; or a file goes while the others are listed. No shard is kept."""
    members = [(f"t{i}.pdb", (folder / f"p{i}.pdb").read_bytes()) for i in (1, 2)]
    write_file(folder / "x.tar", tar(members))
    write_file(folder / "x.tar.new", tar([(name, data.replace(b"A", b"B")) for name, data in members]))

    def listing():
        found = find_structures(folder)
        if lists:
            (folder / "p1.pdb").unlink()
            return find_structures(folder)
        return replace(
            found, sources=[Replaced(*map(partial(getattr, s), s.__slots__)) if s.member else s for s in found.sources]
        )

    with pytest.raises(StoreError, match=rf"{'p1.pdb' if lists else 'x.tar'} has changed while .* was read"):
        open_store(replace(structure_files(folder), listing=listing))
    home = folder.with_name("data.store")
    kept = 4 if not lists else 0
    assert len(list(home.glob("*/*.pt"))) == kept
    assert open_store(folder).checksum == open_store(folder, tmp_path / "whole").checksum


@pytest.mark.parametrize("file", ["00001.pt", "00004.pt", META])
def test_what_is_damaged_is_named_and_built_again_by_the_build_command(folder, small_steps, capsys, file):
    store = open_store(folder)
    before, file = digest(store.path), store.path / file
    for damage in (half, flipped, None):
        file.unlink() if damage is None else file.write_bytes(damage(file.read_bytes()))
        if damage is half:
            with pytest.raises(StoreError, match=rf"{file.name} is damaged \(.*siamdiff build .* makes it again"):
                open_store(folder)
        capsys.readouterr()
        stores.main([str(folder)])
        said = capsys.readouterr()
        assert digest(store.path) == before and "all checksums are right" in said.out
        assert (f"{file} is damaged: it is built again" in said.err) == (damage is not None or file.name != META)
    stores.main([str(folder)])
    assert capsys.readouterr().err == ""


def test_data_in_a_folder_that_cannot_be_written_go_to_the_cache(folder, cache, monkeypatch):
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)
    store = open_store(folder)
    assert store.path.parent.parent == cache and re.fullmatch(r"data-[0-9a-f]{12}\.store", store.path.parent.name)
    assert open_store(folder).path == store.path


def test_two_processes_that_open_at_once(folder, tmp_path):
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    both = [child for log in logs for child in processes.start(log, 1, "convert", folder, tmp_path / "s")]
    codes, messages = processes.finish(both), [log.read_text() for log in logs]
    assert codes == [0, 0], messages
    assert sum("seen 14" in message for message in messages) == 1  # one built, the other waited
    store = open_store(folder, tmp_path / "s")
    store.verify()
    assert len(store) == 10


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_a_slice_equals_a_crop(folder):
    store = open_store(folder)
    for i in range(len(store)):
        for start in range(SIZES[i] + 1):
            for length in {0, min(1, SIZES[i] - start), SIZES[i] - start}:
                assert_equal(store.read(i, start, length), store[i].crop(start, length))
        assert_equal(store.read(i, SIZES[i] // 2), store.read(i, SIZES[i] // 2, SIZES[i] - SIZES[i] // 2))
    for start, length in ((-1, 1), (0, 6), (5, 1), (0, -1), (6, None)):
        with pytest.raises(ValueError, match="p0, which has 5"):
            store.read(0, start, length)


def test_what_is_read_does_not_alias_the_store(folder):
    store = open_store(folder)
    store[0].pos.zero_()
    assert_equal(store[0], protein(SIZES[0], seed=0))


@pytest.mark.full
def test_the_store_passes_to_other_processes(folder):
    store = open_store(folder)
    whole = store[3]
    assert len(pickle.dumps(store)) < 10_000  # the description, not the data
    assert_equal(pickle.loads(pickle.dumps(store))[3], whole)
    loader = torch.utils.data.DataLoader(store, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    for i, p in enumerate(loader):
        assert_equal(p, store[i])


def test_every_flipped_byte_is_detected(folder, small_steps):
    store = open_store(folder)
    store.verify()
    rng = np.random.default_rng(0)
    for file in store.files:
        data = file.read_bytes()
        for at in rng.integers(len(data), size=20):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(StoreError, match=rf"{file.name} is damaged"):
                ProteinStore(store.path).verify()
        file.write_bytes(data)
    store.verify()


@pytest.mark.parametrize("key", KEYS)
def test_a_flipped_byte_in_the_key_of_a_shard_is_one_sentence(folder, key):
    """torch compares no checksums; it reads the dict as if it had been written so."""
    (file,) = open_store(folder).files
    data, written = file.read_bytes(), b"X" + len(key).to_bytes(4, "little") + key.encode()  # as in a pickle
    assert data.count(written) == 1
    file.write_bytes(data.replace(written, written[:-1] + b"?"))
    with pytest.raises(StoreError, match=r"00000\.pt is damaged"):
        ProteinStore(file.parent).labels(0)


def test_truncated_or_missing_files_are_detected_at_open(folder):
    store = open_store(folder)
    (file,) = store.files
    data = file.read_bytes()
    for damaged in (data + b"!", data[:-1], None):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(StoreError, match=rf"00000\.pt is damaged \(.* bytes, expected {len(data)}\)"):
            ProteinStore(store.path)


def test_without_data_the_bundle_is_used_and_said(bundle, cache, capsys, monkeypatch):
    def copy(data, folder, workers):  # building is tested above
        shutil.copytree(bundle.path, folder)

    monkeypatch.setattr(stores, "_build_store", copy)
    store = open_store()
    assert len(store) == 217 and store.path.parent.parent == cache
    assert "structures bundled with the package are used" in capsys.readouterr().err
    monkeypatch.delattr(stores, "_build_store")
    assert open_store().path == store.path


def test_a_store_is_built_and_checked_from_the_command_line(folder):
    command = [sys.executable, "-m", "siamdiff_min.build", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "seen 14" in done.stderr, done.stderr
    (file,) = Path(f"{folder}.store").glob("*/00000.pt")
    assert done.stdout.startswith(f"{file.parent}: seen 14 = used 10 + ") and "checksums are right" in done.stdout
    assert run("module", "siamdiff_min.build", folder) == done.stdout  # nothing is read again
    file.write_bytes(bytes(len(file.read_bytes())))
    for place in (file.parent, f"{folder}.store"):  # without its data
        said = run("module", "siamdiff_min.build", place, status=1)
        assert said.startswith(f"error: {file} is damaged (its checksum differs): siamdiff build ")
    (file.parent / META).write_text("{")
    for place in (file.parent, file.parent.parent, folder):
        with pytest.raises(StoreError, match=r"meta\.json is damaged \(Expecting property name"):
            open_store(place)


def test_a_damaged_description_is_a_store_error(folder):
    meta = open_store(folder).path / "meta.json"
    data = meta.read_bytes()
    for text in (b"[]", b"{}", b'{"format": 1, "version": 2}', b"null", b'"x"', *(data[:end] for end in (0, 1, 99))):
        meta.write_bytes(text)
        with pytest.raises(StoreError, match=r"damaged|version"):
            ProteinStore(meta.parent)
    content = json.loads(data)
    assert content.pop("sha256")
    for other in (content, content | {"sha256": "0"}):
        meta.write_text(json.dumps(other))
        with pytest.raises(StoreError, match=r"damaged \(its checksum differs"):
            ProteinStore(meta.parent)
    with pytest.raises(StoreError, match="not a finished store"):
        ProteinStore(folder)


# ---- crops, split, bundle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", ["seed", "epoch", "index"])
def test_every_seed_epoch_and_protein_has_a_window_of_its_own(changes):
    """Of proteins that are equally long: 40 draws among 91 windows, the others being fixed."""
    store, fixed = Namespace(num_residues=lambda index: 100, checksum=""), {"seed": 3, "epoch": 3, "index": 3}
    keys = [fixed | {changes: number} for number in range(40)]
    starts = {Crops(store, 10, key["seed"]).window(key["epoch"], key["index"])[0] for key in keys}
    assert len(starts) > 25


@pytest.mark.parametrize("draw_last_window, windows", [(True, 8), (False, 7)])
def test_every_window_is_equally_likely(folder, draw_last_window, windows):
    crops = Crops(open_store(folder), 5, seed=1, draw_last_window=draw_last_window)
    draws = 4000
    count = Counter(crops.window(epoch, 2)[0] for epoch in range(draws))  # protein 2 has 12 residues
    assert sorted(count) == list(range(windows))
    expected = draws / windows
    chi_square = sum((n - expected) ** 2 / expected for n in count.values())
    assert chi_square < 30  # p about 1e-4 with 7 degrees of freedom


def test_a_crop_is_a_pure_function_of_seed_epoch_and_index(folder):
    store = open_store(folder)
    keys = [(epoch, index) for epoch in range(6) for index in range(len(store))]
    drawn = {key: Crops(store, 5, seed=7)[key] for key in reversed(keys)}
    again = Crops(store, 5, seed=7)
    for key in keys:
        item, name = again[key]
        assert_equal(item, drawn[key][0])
        assert name == drawn[key][1] == store.names[key[1]]
        start, length = again.window(*key)
        assert_equal(item, store[key[1]].crop(start, length))
        assert item.num_residues == min(5, SIZES[key[1]])

    def windows(seed, epoch):
        return [Crops(store, 5, seed).window(epoch, index)[0] for index in range(len(store))]

    assert len({str(windows(*pair)) for pair in ((7, 0), (7, 1), (8, 0), (8, 1))}) == 4


def test_whole_proteins_without_a_length_and_batches(folder):
    store = open_store(folder)
    crops = Crops(store, None, seed=0)
    assert len(crops) == 10
    assert_equal(crops[3, 3][0], store[3])
    batch, names = crops.collate([crops[0, i] for i in (4, 1)])
    assert names == ["p4", "p1"] and batch.num_proteins == 2
    assert_equal(batch.unpack()[0], store[4])
    with pytest.raises(ValueError, match="at least one residue"):
        Crops(store, 0, seed=0)


def test_the_split_goes_by_the_name(folder):
    train, valid = split(open_store(folder), 0.4)
    names = [f"p{i}" for i in range(10)]
    by_hand = [i for i, n in enumerate(names) if int(hashlib.sha256(n.encode()).hexdigest()[:12], 16) / 16**12 < 0.4]
    assert valid == by_hand and sorted(train + valid) == list(range(10)) and train == sorted(train)
    assert 0 < len(valid) < 10
    assert split(open_store(folder), 0.0) == (list(range(10)), [])
    write_pdb(folder / "p00.pdb", protein(3, seed=50))  # one more shifts the rows, but nobody changes sides
    store = open_store(folder)
    assert {store.names[i] for i in split(store, 0.4)[1]} - {"p00"} == {names[i] for i in valid}
    with pytest.raises(ValueError, match="valid_fraction"):
        split(store, 1.0)


def test_the_bundle_has_the_split_of_its_index(bundle):
    store = bundle
    row = {r["file"].split("/")[1].removesuffix(".pdb.gz"): r for r in bundle_index()}
    train, valid = split(store, 0.5)
    assert {row[store.names[i]]["split"] for i in train} == {"train"} and len(train) == 173
    assert {row[store.names[i]]["split"] for i in valid} == {"valid"} and len(valid) == 22


def test_the_bundled_store_has_the_counts_of_its_index(bundle):
    store, meta = bundle, bundle.meta
    row = {r["file"].split("/")[1].removesuffix(".pdb.gz"): r for r in bundle_index()}
    assert [meta[name] for name in ("proteins", "residues", "atoms", "seen")] == [217, 47097, 370785, 220]
    assert (meta["skipped"], meta["failed"]) == ({"not a structure file": 3}, {})
    assert meta["dropped"] == {"modified residues (read as their parent)": 7}
    assert set(store.names) == row.keys()
    for i, name in enumerate(store.names):
        p = store[i]
        assert (p.num_residues, p.num_atoms) == (int(row[name]["n_residues"]), int(row[name]["n_atoms"]))
        assert int(p.chain.max()) + 1 == len(row[name]["chains"].split(","))
    store.verify()
