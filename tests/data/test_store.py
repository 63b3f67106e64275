"""The store: equal to direct reading, whatever the number of processes or interruptions; damage; crops; split."""

import hashlib
import importlib
import json
import mmap
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import processes
import pytest
import torch
from processes import CONTEXT, PATIENCE, run

from siamdiff_min.data import build, growing
from siamdiff_min.data.build import BuildReport, open_store, report_of
from siamdiff_min.data.crops import Crops, collate, split
from siamdiff_min.data.store import ARRAYS, FORMAT, VERSION, ProteinStore, is_store, read_checked
from siamdiff_min.data.structures import bundle_index, bundle_path, find_structures
from siamdiff_min.data.worker import read_all
from siamdiff_min.files import SiamDiffError, StoreError, WriteError
from siamdiff_min.protein.constants import ATOM_ELEMENT
from siamdiff_min.protein.protein import TENSOR_FIELDS, Protein
from siamdiff_min.protein.write import write_pdb

SIZES = (5, 1, 12, 30, 7, 9, 3, 4, 8, 2)


def assert_equal(a: Protein, b: Protein) -> None:
    for field in TENSOR_FIELDS:
        x, y = getattr(a, field), getattr(b, field)
        assert x.dtype == y.dtype and torch.equal(x, y), field
    assert a.num_graphs == b.num_graphs


def protein(size: int, seed: int) -> Protein:
    """CA, some with N or O: random, two chains where there is more than one residue, an insertion code."""
    g = torch.Generator().manual_seed(seed)
    has = torch.rand(size, 3, generator=g) < 0.7
    has[:, 1] = True
    residue, slot = has.nonzero().T
    chain = (torch.arange(size) >= (size + 1) // 2).long()
    return Protein(
        pos=(torch.randn(len(slot), 3, generator=g) * 30).round(decimals=3),
        element=torch.tensor(ATOM_ELEMENT)[torch.tensor([0, 1, 3])[slot]],
        atom_name=torch.tensor([0, 1, 3])[slot],
        atom_residue=residue,
        residue_type=torch.randint(20, (size,), generator=g),
        masked=torch.zeros(size, dtype=torch.bool),
        residue_number=torch.arange(size) - 3,
        insertion_code=torch.where(torch.arange(size) % 4 == 3, ord("B"), ord(" ")),
        residue_index=torch.arange(size) - chain * ((size + 1) // 2),
        chain=chain,
        residue_graph=torch.zeros(size, dtype=torch.long),
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
    monkeypatch.setattr(growing, "NOTE_EVERY", 3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAMDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The bundled structures as a store; built once for this module."""
    path = tmp_path_factory.mktemp("bundle") / "bundle.store"
    report = report_of(open_store(bundle_path(), path))
    return ProteinStore(path), report


def digest(store) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(store.iterdir())}


# ---- building --------------------------------------------------------------------------------------------------------


def test_the_store_equals_direct_reading(folder, tmp_path, small_steps):
    open_store(folder, tmp_path / "s")
    store = ProteinStore(tmp_path / "s")
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
    report = report_of(open_store(folder, tmp_path / "s"))
    assert (report.used, report.residues) == (10, sum(SIZES))
    assert report.failed == {"an HTML or XML page, not a PDB or mmCIF file": 1, "empty": 1, "no atoms in it": 1}
    assert report.skipped == {"not a structure file": 1}
    files = sum(len(names) for _, _, names in os.walk(folder))
    assert report.seen == files == report.used + report.skipped.total() + report.failed.total()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"{tmp_path / 's'}: {report}"] and "seen 14 = used 10 + skipped 1 (" in lines[0]
    table = [line.split("\t") for line in (tmp_path / "s" / "failures.tsv").read_text().splitlines()]
    assert Counter(row[1] for row in table[1:]) == {"failed": 3, "skipped": 1}
    assert {row[0] for row in table[1:]} == {"bad1", "bad2", "bad3", ""}
    assert all(len(row) == 5 for row in table)


def test_dropped_atoms_are_added_up(folder, tmp_path):
    water = "HETATM    1  O   HOH A  99       0.000   0.000   0.000  1.00  0.00           O\n"
    for name in ("p1.pdb", "p2.pdb"):
        (folder / name).write_text(water + (folder / name).read_text())
    report = report_of(open_store(folder, tmp_path / "s"))
    assert report.dropped == ProteinStore(tmp_path / "s").meta["report"]["dropped"] == {"waters": 2}


def test_number_of_processes_changes_no_byte(folder, tmp_path, small_steps):
    reports = [report_of(open_store(folder, tmp_path / f"s{workers}", workers)) for workers in (1, 3)]
    assert reports[0] == reports[1]
    assert digest(tmp_path / "s1") == digest(tmp_path / "s3")


def interrupt(*args):
    raise KeyboardInterrupt


def slow_build(data, store, phase):
    """A build that lasts: between two files, or before it describes itself."""
    growing.NOTE_EVERY = 1
    place, name = {"read": (growing.GrowingStore, "add"), "describe": (build, "write_checked")}[phase]
    function = getattr(place, name)

    def slow(*args):
        time.sleep(0.05 if name == "add" else PATIENCE)
        return function(*args)

    setattr(place, name, slow)
    build.open_store(data, store, workers=1)


@pytest.mark.parametrize("phase, done", [("read", 3), ("describe", 13)])
def test_a_build_that_is_killed_goes_on_and_gives_the_same_bytes(folder, tmp_path, phase, done, monkeypatch):
    open_store(folder, tmp_path / "whole")
    store, partial = tmp_path / "s", tmp_path / "s.partial"
    process = CONTEXT.Process(target=slow_build, args=(str(folder), str(store), phase))
    process.start()
    while not (partial / "progress.json").exists() or read_checked(partial / "progress.json")["done"] < done:
        assert process.is_alive()
        time.sleep(0.005)
    process.kill()
    process.join()
    assert not store.exists()
    with pytest.raises(StoreError, match="not a store"):
        ProteinStore(partial)

    done, again = read_checked(partial / "progress.json")["done"], []
    monkeypatch.setattr(build, "read_all", lambda sources, count: (again.extend(sources), read_all(sources, count))[1])
    open_store(folder, store)
    assert len(again) == 13 - done
    assert digest(store) == digest(tmp_path / "whole")
    assert not partial.exists()


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # ended, but not every container has an init process that takes note


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_the_processes_of_a_killed_build_end_too(tmp_path):
    code = "import sys; from siamdiff_min.data import build, growing; growing.NOTE_EVERY = 4"
    code += "; build.open_store(*sys.argv[1:], 2)"
    process = subprocess.Popen([sys.executable, "-c", code, bundle_path(), tmp_path / "s"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    notes = tmp_path / "s.partial" / "progress.json"
    while not notes.exists() or not read_checked(notes)["done"]:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 2
    process.kill()
    process.wait()
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["pos.bin", "failures.tsv", "progress.json"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: data[:50] + b"!" + data[51:], lambda data: b"", None],
    ids=["cut", "changed", "empty", "missing"],
)
def test_files_damaged_by_a_crash_are_made_again(folder, tmp_path, small_steps, monkeypatch, name, damage):
    open_store(folder, tmp_path / "whole")
    with monkeypatch.context() as context:
        context.setattr(build, "write_checked", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_store(folder, tmp_path / "s")
    file = tmp_path / "s.partial" / name
    data = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(data))
    open_store(folder, tmp_path / "s")
    assert digest(tmp_path / "s") == digest(tmp_path / "whole")


def test_an_interrupted_build_of_other_data_is_not_continued(folder, tmp_path, small_steps, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(build, "write_checked", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_store(folder, tmp_path / "s")
    write_pdb(folder / "p0a.pdb", protein(6, seed=99))
    open_store(folder, tmp_path / "s")
    open_store(folder, tmp_path / "whole")
    assert digest(tmp_path / "s") == digest(tmp_path / "whole")


def tree(folder) -> dict[str, bytes | None]:
    """Everything under a folder, None for a folder."""
    return {str(f.relative_to(folder)): None if f.is_dir() else f.read_bytes() for f in sorted(folder.rglob("*"))}


DEEP = "[" * 200_000
NOT_OURS = ["{}", "[]", "not json", "", DEEP, '{"format": 1}', '{"format": "siamdiff_min store 2"}']


@pytest.mark.parametrize("place", ["s", "s.partial"])
@pytest.mark.parametrize("content", [None, *NOT_OURS, "damaged"], ids=lambda c: str(c)[:20] or "empty")
def test_nothing_of_the_users_is_deleted(folder, tmp_path, place, content):
    """Neither where the user's file is called like one of ours, nor beside files of ours, nor in a dry run."""
    (tmp_path / place).mkdir()
    (tmp_path / place / "thesis.tex").write_text("dear")
    if content is not None:
        name = "meta.json" if place == "s" else "progress.json"
        ours = json.dumps({"format": FORMAT, "version": VERSION})
        (tmp_path / place / name).write_text(ours if content == "damaged" else content)
    before = tree(tmp_path)
    with pytest.raises(StoreError, match=r"thesis\.tex is no part of a store"):
        open_store(folder, tmp_path / "s")
    after = tree(tmp_path)
    after.pop("s.lock", None)
    assert after == before
    if place == "s":
        with pytest.raises(StoreError):
            open_store(folder, tmp_path / "s", build=False)
        assert tree(tmp_path).keys() - {"s.lock"} == before.keys()


@pytest.mark.parametrize("place", ["s", "s.partial"])
def test_a_file_of_the_users_among_ours_is_kept(folder, tmp_path, small_steps, monkeypatch, place):
    open_store(folder, tmp_path / "s")
    write_pdb(folder / "new.pdb", protein(6, seed=99))
    with monkeypatch.context() as context:
        context.setattr(build, "write_checked", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_store(folder, tmp_path / "s")
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "thesis.tex").write_text("dear")
    write_pdb(folder / "newer.pdb", protein(6, seed=98))
    with pytest.raises(SiamDiffError, match=r"thesis\.tex"):
        open_store(folder, tmp_path / "s")
    assert (tmp_path / place / "thesis.tex").read_text() == "dear"
    (tmp_path / place / "thesis.tex").unlink()
    assert len(open_store(folder, tmp_path / "s")) == 12 and not (tmp_path / "s.partial").exists()


def test_links_in_the_place_of_a_store(folder, tmp_path):
    """A link to a store is followed and stays; one in the place of the lock or of the unfinished store is refused."""
    victim = tmp_path / "victim"
    victim.write_text("dear")
    (tmp_path / "s.partial").mkdir()
    for name in ("s.partial/progress.json.tmp", "s.lock", "s.partial"):
        if name == "s.partial":
            (tmp_path / name).rmdir()
        (tmp_path / "s.lock").unlink(missing_ok=True)
        (tmp_path / name).symlink_to(victim)
        with pytest.raises(SiamDiffError, match=r"could not write|is no part of a store"):
            open_store(folder, tmp_path / "s")
        assert victim.read_text() == "dear" and not (tmp_path / "s").exists()
        (tmp_path / name).unlink()
    (tmp_path / "s").symlink_to(tmp_path / "large-disk")
    for count in (10, 11):
        assert len(open_store(folder, tmp_path / "s")) == count
        assert (tmp_path / "s").is_symlink() and is_store(tmp_path / "large-disk")
        write_pdb(folder / "new.pdb", protein(6, seed=99))


@pytest.mark.parametrize("content", NOT_OURS, ids=lambda c: c[:20] or "empty")
def test_data_with_a_meta_json_of_the_users(folder, content):
    (folder / "meta.json").write_text(content)
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
    monkeypatch.setattr(build.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    with pytest.raises(StoreError, match=r"no home folder .* SIAMDIFF_CACHE"):
        open_store(build=False)


def test_a_path_that_is_not_utf8(folder, tmp_path):
    """Neither the folder nor a file in it; and what is printed has to be UTF-8."""
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")
    folder.rename(odd)
    os.rename(f"{odd}/p1.pdb", os.fsdecode(os.fsencode(odd) + b"/p\xfe.pdb"))
    command = [sys.executable, "-m", "siamdiff_min.data.build", odd]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"})
    assert done.returncode == 0 and b"seen 14 = used 10" in done.stdout, done.stderr
    store = open_store(odd)
    assert os.fsdecode(b"p\xfe") in store.names and len(store) == 10


def test_no_readable_protein_is_an_error(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.pdb").write_text("<html>")
    with pytest.raises(StoreError, match=r"no protein that can be read .*failed 1 \(an HTML .*failures\.tsv names"):
        open_store(tmp_path / "data", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_disk_that_cannot_be_written_is_said_and_loses_nothing(folder, tmp_path, small_steps, monkeypatch):
    with pytest.raises(WriteError, match="could not write"):
        open_store(folder, folder / "p1.pdb" / "s")
    open_store(folder, tmp_path / "s")
    before = digest(tmp_path / "s")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    write_pdb(folder / "new.pdb", protein(6, seed=99))
    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(WriteError, match=r"could not write .*: No space left"):
            open_store(folder, tmp_path / "s")
    assert digest(tmp_path / "s") == before
    assert len(open_store(folder, tmp_path / "s")) == 11


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_open_builds_once_and_again_when_the_data_change(folder, capsys):
    first = open_store(folder)
    assert first.path == folder.with_name("data.store")
    stamp = (first.path / "meta.json").stat().st_mtime_ns
    assert open_store(folder).path == open_store(first.path).path == first.path
    assert (first.path / "meta.json").stat().st_mtime_ns == stamp
    capsys.readouterr()
    write_pdb(folder / "new.pdb", protein(6, seed=99))
    assert len(open_store(folder)) == 11
    assert "the data have changed since it was built; it is built anew" in capsys.readouterr().err
    assert not list(folder.parent.glob("*.partial"))


def test_open_builds_anew_what_is_damaged_or_of_another_version(folder, capsys):
    store = open_store(folder)
    (store.path / "pos.bin").write_bytes(b"")
    assert len(open_store(folder)) == 10
    assert "array pos has 0 bytes" in capsys.readouterr().err
    meta = store.path / "meta.json"
    meta.write_text(meta.read_text().replace(f'"version": {VERSION}', '"version": 0'))
    assert len(open_store(folder)) == 10
    assert "version 0" in capsys.readouterr().err


def test_data_in_a_folder_that_cannot_be_written_go_to_the_cache(folder, cache, monkeypatch):
    monkeypatch.setattr(build.os, "access", lambda path, mode: False)
    store = open_store(folder)
    assert store.path.parent == cache and re.fullmatch(r"data-[0-9a-f]{12}\.store", store.path.name)
    assert open_store(folder).path == store.path


def test_without_data_the_bundle_is_used_and_said(bundle, cache, capsys, monkeypatch):
    def copy(path, store, *args, **kwargs):  # building is tested above
        shutil.copytree(bundle[0].path, store)

    monkeypatch.setattr(build, "_build", copy)
    store = open_store()
    assert len(store) == 217 and store.path.parent == cache
    assert "structures bundled with the package are used" in capsys.readouterr().err
    monkeypatch.delattr(build, "_build")
    assert open_store().path == store.path


def test_two_processes_that_open_at_once(folder, tmp_path):
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    both = [child for log in logs for child in processes.start(log, 1, "convert", folder, tmp_path / "s")]
    codes, messages = processes.finish(both), [log.read_text() for log in logs]
    assert codes == [0, 0], messages
    assert sum("seen 14" in message for message in messages) == 1  # one built, the other waited
    store = open_store(folder, tmp_path / "s")
    store.verify()
    assert len(store) == 10


def test_files_are_looked_at_only_while_no_other_process_replaces_them(folder, tmp_path, monkeypatch):
    held, lock, check = [], build.lock, build._check_replaceable

    @contextmanager
    def noted(path, busy=""):
        with lock(path, busy):
            held.append(path)
            yield

    monkeypatch.setattr(build, "lock", noted)
    monkeypatch.setattr(build, "_check_replaceable", lambda path: check(path) if held else pytest.fail("too early"))
    assert len(open_store(folder, tmp_path / "s")) == 10


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


@pytest.mark.parametrize("memory", [10**9, 10])
def test_a_store_larger_than_memory_is_not_read_ahead(folder, memory, monkeypatch):
    """A crop would pull in megabytes around it, and push out what others have read."""
    advised = []

    class Map(mmap.mmap):
        def madvise(self, advice):
            advised.append(advice)
            super().madvise(advice)

    store = open_store(folder)
    whole = store[1]
    monkeypatch.setattr(mmap, "mmap", Map)
    monkeypatch.setattr("siamdiff_min.data.store.memory", lambda: memory)
    assert_equal(pickle.loads(pickle.dumps(store))[1], whole)
    assert set(advised) == ({mmap.MADV_RANDOM} if memory < store.size else set())
    assert store.size == sum(file.stat().st_size for file in store.path.glob("*.bin"))


def test_a_store_is_read_where_the_system_is_windows(folder, monkeypatch):
    store = open_store(folder)
    whole = store[1]
    monkeypatch.delattr(mmap, "MADV_RANDOM")
    monkeypatch.delattr(os, "sysconf")
    assert_equal(pickle.loads(pickle.dumps(store))[1], whole)


def test_the_store_passes_to_other_processes(folder):
    store = open_store(folder)
    whole = store[3]
    assert len(pickle.dumps(store)) < 10_000  # the description, not the data
    assert_equal(pickle.loads(pickle.dumps(store))[3], whole)
    loader = torch.utils.data.DataLoader(store, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    for i, p in enumerate(loader):
        assert_equal(p, store[i])


def test_every_flipped_byte_is_detected(folder):
    store = open_store(folder)
    store.verify()
    rng = np.random.default_rng(0)
    for name in ARRAYS:
        file = store.path / f"{name}.bin"
        data = file.read_bytes()
        if not data:
            continue  # these structures have no notes
        at = int(rng.integers(len(data)))
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StoreError, match=f"array {name} is damaged"):
            ProteinStore(store.path).verify()
        file.write_bytes(data)
    store.verify()


def test_a_store_is_built_and_checked_from_the_command_line(folder):
    command = [sys.executable, "-m", "siamdiff_min.data.build", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "seen 14" in done.stderr, done.stderr
    assert done.stdout.startswith(f"{folder}.store: seen 14 = used 10 + ") and "checksums are right" in done.stdout
    assert run("module", "siamdiff_min.data.build", folder) == done.stdout  # nothing is read again
    file = Path(f"{folder}.store/pos.bin")
    file.write_bytes(bytes(len(file.read_bytes())))
    said = run("module", "siamdiff_min.data.build", f"{folder}.store", status=1)
    assert said == f"error: {folder}.store: array pos is damaged (its checksum differs)\n"


@pytest.mark.parametrize("used", [False, True])
def test_a_store_that_is_replaced_while_it_is_in_use(folder, used):
    """What has been opened goes on with the old content; a process that opens it later would mix the two."""
    store = open_store(folder)
    before = [store[i] for i in range(len(store))] if used else []
    (folder / "p1.pdb").unlink()
    assert len(open_store(folder)) == len(store) - 1
    for i, whole in enumerate(before):
        assert_equal(store[i], whole)
    with pytest.raises(StoreError, match=r"store was replaced while it was in use"):
        pickle.loads(pickle.dumps(store))[3]


def test_truncated_or_missing_arrays_are_detected_at_open(folder):
    path = open_store(folder).path
    for name in ARRAYS:
        file = path / f"{name}.bin"
        data = file.read_bytes()
        file.write_bytes(data + b"!")
        with pytest.raises(StoreError, match=f"array {name} has {len(data) + 1} bytes, expected {len(data)}"):
            ProteinStore(path)
        file.write_bytes(data[:-1])
        with pytest.raises(StoreError, match=f"array {name} has") if data else nullcontext():
            ProteinStore(path)
        file.unlink()
        with pytest.raises(StoreError, match=f"array {name} is missing"):
            ProteinStore(path)
        file.write_bytes(data)
    ProteinStore(path).verify()


def test_every_damage_to_the_description_is_a_store_error(folder):
    meta = open_store(folder).path / "meta.json"
    data = meta.read_bytes()
    rng = np.random.default_rng(0)
    for end in (0, 1, len(data) // 2, len(data) - 1):
        meta.write_bytes(data[:end])
        with pytest.raises(StoreError, match="damaged"):
            ProteinStore(meta.parent)
    for at in rng.integers(len(data), size=60):
        flipped = data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :]
        meta.write_bytes(flipped)
        try:
            ProteinStore(meta.parent)
        except StoreError:
            continue
        assert flipped.split() == data.split()  # only layout changed
    for text in (b"[]", b"{}", b'{"format": 1, "version": 2}', b"null", b'"x"'):
        meta.write_bytes(text)
        with pytest.raises(StoreError):
            ProteinStore(meta.parent)
    with pytest.raises(StoreError, match="not a store"):
        ProteinStore(folder)


# ---- crops, split, bundle --------------------------------------------------------------------------------------------


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
    batch, names = collate([crops[0, i] for i in (4, 1)])
    assert names == ["p4", "p1"] and batch.num_graphs == 2
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
    store, _ = bundle
    row = {r["file"].split("/")[1].removesuffix(".pdb.gz"): r for r in bundle_index()}
    train, valid = split(store, 0.5)
    assert {row[store.names[i]]["split"] for i in train} == {"train"} and len(train) == 173
    assert {row[store.names[i]]["split"] for i in valid} == {"valid"} and len(valid) == 22


def test_the_bundled_store_has_the_counts_of_its_index(bundle):
    store, report = bundle
    row = {r["file"].split("/")[1].removesuffix(".pdb.gz"): r for r in bundle_index()}
    assert report == BuildReport(217, 47097, 370785, Counter({"not a structure file": 3}), Counter(), Counter())
    assert set(store.names) == row.keys()
    for i, name in enumerate(store.names):
        p = store[i]
        assert (p.num_residues, p.num_atoms) == (int(row[name]["n_residues"]), int(row[name]["n_atoms"]))
        assert int(p.chain.max()) + 1 == len(row[name]["chains"].split(","))
    store.verify()
