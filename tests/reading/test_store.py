"""The store: equal to direct reading, whatever the number of processes or interruptions; damage; crops; split."""

import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import as_pdb, assert_equal, residue

from siamdiff_min import cli
from siamdiff_min.cli import run
from siamdiff_min.files import ConfigError, StoreError, WriteError
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.reading import sources
from siamdiff_min.reading import store as stores
from siamdiff_min.reading.crops import Crops, split
from siamdiff_min.reading.shards import load_shard
from siamdiff_min.reading.sources import bundle_index, bundle_path, find_structures, structure_files
from siamdiff_min.reading.store import META, ProteinStore, open_store
from siamdiff_min.tools.build import verify

SIZES = (5, 1, 12, 30, 7, 9, 3, 4, 8, 2)


def write(path: Path, size: int, seed: int) -> None:
    """A small structure: CA, some with N or O, two chains where there is more than one residue, insertion codes."""
    draw, rows = random.Random(seed), []
    for i in range(size):
        names = [name for name in ("N", "CA", "O") if name == "CA" or draw.random() < 0.7]
        place = {"chain": "AB"[i >= (size + 1) // 2], "code": " B"[i % 4 == 3], "x": 2.1 * i}
        rows += residue(draw.choice(RESIDUES), i - 3, names, **place)
    path.write_text(as_pdb(rows))


@pytest.fixture
def folder(tmp_path):
    """Ten small structures, three files that cannot be read and one that is none."""
    root = tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    for i, size in enumerate(SIZES):
        write(root / ("sub" if i % 3 == 0 else "") / f"p{i}.pdb", size, seed=i)
    (root / "bad1.pdb").write_text("<html>")
    (root / "bad2.pdb").write_text("")
    (root / "bad3.cif").write_text("data_x\n")
    (root / "notes.txt").write_text("")
    return root


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(stores, "SHARD", 3)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIAMDIFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def read_only(monkeypatch):
    monkeypatch.setattr(stores.os, "access", lambda path, mode: False)


def digest(store) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(store.iterdir())}


def tree(folder) -> dict[str, bytes | None]:
    """Everything under a folder, None for a folder."""
    return {str(f.relative_to(folder)): None if f.is_dir() else f.read_bytes() for f in sorted(folder.rglob("*"))}


# ---- building --------------------------------------------------------------------------------------------------------


def test_the_store_equals_direct_reading(folder, tmp_path, small_steps):
    store = ProteinStore(open_store(folder, tmp_path / "s").path)
    direct = {s.name: s.read() for s in find_structures(folder).sources if s.name.startswith("p")}
    assert store.names == sorted(direct) == [f"p{i}" for i in range(10)]
    assert [store.num_residues(i) for i in range(len(store))] == list(SIZES)
    for i, name in enumerate(store.names):
        assert_equal(store[i], direct[name].protein)
        assert store.positions(i) == direct[name].positions
    assert_equal(store[-1], store[9])
    for index in (10, -11):
        with pytest.raises(IndexError):
            store[index]


def test_number_of_processes_changes_no_byte(folder, tmp_path, small_steps):
    assert run("build", [str(folder), "--store", str(tmp_path / "s3"), "--num-workers", "3"]) == 0
    zero, one = (open_store(folder, tmp_path / f"s{workers}", workers) for workers in (0, 1))
    three = tmp_path / "s3" / one.path.name
    assert digest(zero.path) == digest(one.path) == digest(three)


@pytest.mark.repeats
@pytest.mark.parametrize("shard", [1, 0, 4])
def test_a_build_that_is_killed_goes_on_and_gives_the_same_bytes(folder, tmp_path, small_steps, monkeypatch, shard):
    """What is read again is what its last shard had, at most."""
    whole, write, read_all, read = open_store(folder, tmp_path / "whole"), stores.write_file, stores.read_all, []

    def die(file, *args):
        if file.name == f"{shard:05d}.pt":
            raise KeyboardInterrupt
        write(file, *args)

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(stores, "write_file", die)
        open_store(folder, tmp_path / "s")
    unfinished = tmp_path / "s" / whole.path.name
    with pytest.raises(StoreError, match="not a finished store"):
        ProteinStore(unfinished)
    monkeypatch.setattr(stores, "read_all", lambda sources, count: (read.extend(sources), read_all(sources, count))[1])
    assert open_store(folder, tmp_path / "s").path == unfinished
    assert len(read) == 13 - 3 * shard and digest(unfinished) == digest(whole.path)


def test_a_meta_json_of_the_users_is_data(folder):
    (folder / META).write_text('{"format": 1}')
    before = tree(folder)
    assert len(open_store(folder)) == 10 and tree(folder) == before
    with pytest.raises(StoreError, match="not a"):
        ProteinStore(folder)


@pytest.mark.parametrize("command, options", [("train", ""), ("finetune", "--task psr")])
def test_a_dry_run_changes_nothing_on_the_disk(folder, cache, tmp_path, command, options, capsys):
    data = [] if options else ["--data", str(folder)]
    before = tree(tmp_path)
    assert open_store(folder, build=False) is None
    assert (
        cli.main([command, *options.split(), *data, "--dry-run", "--out", str(tmp_path / "out"), "--size", "tiny"]) == 0
    )
    assert tree(tmp_path) == before and "not converted to a store yet" in capsys.readouterr().out


def test_a_name_that_is_not_utf8(folder, capsys):
    """And what is printed has to be UTF-8."""
    odd = str(folder)
    os.rename(f"{odd}/p1.pdb", os.fsdecode(os.fsencode(odd) + b"/p\xfe.pdb"))
    assert cli.main(["build", odd]) == 0 and "seen 14 = used 10" in capsys.readouterr().out
    store = open_store(odd)
    assert os.fsdecode(b"p\xfe") in store.names and len(store) == 10


def test_a_path_that_torch_cannot_take_is_no_damage(folder, tmp_path):
    """As of a folder with an umlaut where LC_ALL=C. The way out is named, and the store stays."""
    place = tmp_path / os.fsdecode(b"\xfcber.store")
    with pytest.raises(StoreError, match=r"torch takes only paths in UTF-8. Set PYTHONUTF8=1, or") as error:
        open_store(folder, place)
    assert "damaged" not in str(error.value) and "remove" not in str(error.value)


@pytest.mark.parametrize("files, found", [([], "it is empty"), (["a.mmtf", "b.mmtf"], r"\.mmtf is not read: .* 2")])
def test_where_nothing_is_found_it_is_said_what_was_looked_for(tmp_path, files, found):
    (tmp_path / "data").mkdir()
    for name in files:
        (tmp_path / "data" / name).write_text("<html>")
    reason = rf"no protein that can be read in .*data \({found}\); see .*failures\.tsv"
    with pytest.raises(StoreError, match=reason):
        open_store(tmp_path / "data", tmp_path / "s")
    assert open_store(tmp_path / "data", tmp_path / "s", build=False) is None


def test_a_disk_that_is_full_is_said_and_loses_nothing(folder, tmp_path, small_steps, monkeypatch):
    with pytest.raises(WriteError, match="could not write"):
        open_store(folder, folder / "p1.pdb" / "s")
    store = open_store(folder, tmp_path / "s")
    before = digest(store.path)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    write(folder / "new.pdb", 6, seed=99)
    with monkeypatch.context() as context, pytest.raises(WriteError, match=r"could not write .*: No space left"):
        context.setattr(os, "fsync", full)
        open_store(folder, tmp_path / "s")
    assert digest(store.path) == before
    assert len(open_store(folder, tmp_path / "s")) == 11


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_open_builds_once_and_again_when_the_data_change(folder, capsys):
    first = open_store(folder)
    assert first.path.parent == folder.with_name("data.store")
    before = tree(folder.parent)
    assert open_store(folder).path == open_store(first.path).path == open_store(first.path.parent).path == first.path
    assert tree(folder.parent) == before
    write(folder / "new.pdb", 6, seed=99)
    capsys.readouterr()
    assert len(open_store(folder)) == 11 and "seen 15" in capsys.readouterr().err
    assert len(open_store(first.path)) == 10
    with pytest.raises(StoreError, match="has 2 finished stores, give the folder of one"):
        open_store(first.path.parent)
    with pytest.raises(ConfigError, match="is a finished store: nothing is built from it"):
        open_store(structure_files(first.path, each_chain=True))
    (folder / "new.pdb").unlink()
    assert open_store(folder).path == first.path and capsys.readouterr().err == ""


def test_names_sizes_and_times_decide_on_a_store_and_its_content_on_a_run(folder, tmp_path):
    """Copied or moved with its times a folder keeps its store. Without them it gets another one, of equal checksum."""
    store = open_store(folder)
    shutil.copytree(folder, tmp_path / "copy")  # as `cp -a`
    assert open_store(tmp_path / "copy").path.name == store.path.name
    (tmp_path / "new").mkdir()
    for name in ("data", "data.store"):
        (tmp_path / name).rename(tmp_path / "new" / name)
    before = tree(tmp_path / "new")
    moved = open_store(tmp_path / "new" / "data")
    assert moved.checksum == store.checksum and tree(tmp_path / "new") == before
    os.utime(tmp_path / "new" / "data" / "p1.pdb", ns=(5, 5))
    again = open_store(tmp_path / "new" / "data")
    assert again.path != moved.path and again.checksum == store.checksum
    (tmp_path / "copy" / "bad1.pdb").unlink()  # what could not be read does not matter, nor where the data lay
    assert open_store(tmp_path / "copy").checksum == store.checksum
    os.rename(tmp_path / "copy" / "p1.pdb", tmp_path / "copy" / "p1a.pdb")
    assert open_store(tmp_path / "copy").checksum != store.checksum


def test_two_versions_lie_side_by_side(folder, monkeypatch):
    before = open_store(folder)
    with monkeypatch.context() as context:
        context.setattr(stores, "FORMAT", "siamdiff_min store, version 99")
        after = open_store(folder)
        assert after.path.parent == before.path.parent and after.path != before.path
        with pytest.raises(StoreError, match="is not a siamdiff_min store, version 99: give the structures"):
            open_store(before.path)
    assert open_store(folder).path == before.path


def test_where_nothing_is_written_beside_the_data_the_store_is_in_the_cache(folder, cache):
    """Of a single file, and as for --predict; a store that is there is used, one that is named is built there."""
    before = tree(folder.parent)
    store = open_store(folder / "p1.pdb")
    assert store.names == ["p1"] and store.path.parent.parent == cache
    assert open_store(folder, beside=False).path.parent.parent == cache
    shutil.rmtree(cache)
    assert tree(folder.parent) == before
    store = open_store(folder)
    assert open_store(folder, beside=False).path == store.path and not cache.exists()
    assert open_store(folder / "p1.pdb", folder.parent / "chosen").path.parent == folder.parent / "chosen"


def test_folders_that_cannot_be_written_have_their_stores_in_the_cache(folder, cache, tmp_path, read_only):
    """Two of one name have places of their own there; a store that lies beside the data is used."""
    shutil.copytree(folder, tmp_path / "two" / "data")
    one, two = (open_store(place) for place in (folder, tmp_path / "two" / "data"))
    assert one.path.parent != two.path.parent and one.path.parent.parent == two.path.parent.parent == cache
    assert re.fullmatch(r"data-[0-9a-f]{12}\.store", one.path.parent.name) and open_store(folder).path == one.path
    one.path.parent.rename(folder.with_name("data.store"))
    assert open_store(folder).path.parent == folder.with_name("data.store")


def test_the_cache_follows_xdg_and_is_missed_only_where_it_is_needed(folder, tmp_path, monkeypatch):
    """A user without a home folder, as in a container, reads what is there and builds beside the data."""
    for name in ("SIAMDIFF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)  # nobody has a home
    store = open_store(folder)
    assert open_store(folder).path == open_store(store.path).path == store.path
    assert open_store(folder / "p1.pdb", build=False) is None
    advice = "give a folder for stores with --store, or set SIAMDIFF_CACHE"
    with pytest.raises(ConfigError, match=rf"no place for the store of .*p1\.pdb: this user has no home .*; {advice}"):
        open_store(folder / "p1.pdb")
    assert open_store(folder / "p1.pdb", tmp_path / "s").path.parent == tmp_path / "s"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_store(folder / "p1.pdb").path.parent.parent == tmp_path / "xdg" / "siamdiff_min"
    monkeypatch.setenv("SIAMDIFF_CACHE", str(folder / "p1.pdb" / "cache"))
    with pytest.raises(WriteError, match=rf"no store can be built in .*cache/p2\.pdb-.*: Not a directory; {advice}"):
        open_store(folder / "p2.pdb")


def test_two_processes_that_open_at_once(folder, tmp_path, capfd):
    """One builds, the other waits."""
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=open_store, args=(folder, tmp_path / "s")) for _ in range(2)]
    for method in ("start", "join"):
        for process in both:
            getattr(process, method)()
    assert [process.exitcode for process in both] == [0, 0] and capfd.readouterr().err.count("seen 14") == 1
    verify(open_store(folder, tmp_path / "s"))


def test_without_data_the_bundle_is_used(folder, cache, monkeypatch):
    monkeypatch.setattr(sources, "bundle_path", lambda: folder)
    store = open_store()
    assert len(store) == 10 and store.path.parent.parent == cache
    assert open_store().path == store.path


# ---- reading and damage ----------------------------------------------------------------------------------------------


def test_a_slice_equals_a_crop_and_does_not_alias_the_store(folder):
    store = open_store(folder)
    for i, size in enumerate(SIZES):
        for start_at in range(size + 1):
            for length in {0, size - start_at}:
                assert_equal(store.read(i, start_at, length), store[i].crop(start_at, length))
    for start_at, length in ((-1, 1), (0, 6), (5, 1), (0, -1), (6, None)):
        with pytest.raises(ValueError, match="p0, which has 5"):
            store.read(0, start_at, length)
    before = store[0].pos.clone()
    store[0].pos.zero_()
    assert torch.equal(store[0].pos, before)


@pytest.mark.full
def test_processes_that_are_spawned_read_the_store(folder):
    store = open_store(folder)
    loader = torch.utils.data.DataLoader(store, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for i, p in enumerate(loader):
        assert_equal(p, store[i])


def test_damage_is_named_and_mended_by_removing_the_folder(folder, small_steps):
    store = open_store(folder)
    before = digest(store.path)
    file = sorted(store.path.glob("*.pt"))[1]  # the first has failures only
    data, atoms = file.read_bytes(), load_shard(file)["atoms"].numpy().tobytes()
    for damage in (data[: len(data) // 2], b"", None):
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(StoreError, match=rf"{file.name} is damaged \(.*: remove {store.path}, and it is built"):
            verify(ProteinStore(store.path))
    at = data.index(atoms)  # what torch does not notice, the checksum does
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(StoreError, match=rf"{file.name} is damaged \(its checksum differs\)"):
        verify(ProteinStore(store.path))
    file.write_bytes(data)
    verify(store)
    shutil.rmtree(store.path)
    assert digest(open_store(folder).path) == before


def test_the_build_command_builds_and_checks(folder, capsys):
    assert run("build", [str(folder)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    (file,) = Path(f"{folder}.store").glob("*/00000.pt")
    assert said.startswith(f"{file.parent}: seen 14 = used 10 + ") and "all checksums are right" in said
    assert run("build", [str(file.parent), "--num-workers", "0"]) == 0
    assert capsys.readouterr().out.splitlines() == [said]  # nothing is read again
    file.write_bytes(bytes(len(file.read_bytes())))
    for place in (folder, file.parent, f"{folder}.store"):
        with pytest.raises(StoreError, match=rf"^{file} is damaged \(.*remove {file.parent}, and it is built again"):
            run("build", [str(place)])
    (file.parent / META).write_text("{")
    with pytest.raises(StoreError, match=r"not a finished store \(meta\.json: Expecting property name"):
        open_store(folder)


# ---- crops, split, bundle --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", ["seed", "epoch", "index"])
@pytest.mark.parametrize("draw_last_window, windows", [(True, 8), (False, 7)])
def test_every_window_is_equally_likely(changes, draw_last_window, windows):
    """Whichever of seed, epoch and protein changes, the others being fixed."""
    store, draws, count = Namespace(num_residues=lambda index: 12, checksum=""), 2000, Counter()
    fixed = {"seed": 3, "epoch": 3, "index": 3}
    for key in (fixed | {changes: number} for number in range(draws)):
        crops = Crops(store, 5, key["seed"], draw_last_window=draw_last_window)
        count[crops.window(key["epoch"], key["index"])[0]] += 1
    assert sorted(count) == list(range(windows))
    expected = draws / windows
    assert sum((n - expected) ** 2 / expected for n in count.values()) < 30  # p about 1e-4 with 7 degrees of freedom


def test_a_crop_is_a_pure_function_of_seed_epoch_and_index(folder):
    store = open_store(folder)
    crops, again = Crops(store, 5, seed=7), Crops(store, 5, seed=7)
    keys = [(epoch, index) for epoch in range(6) for index in range(len(store))]
    drawn = {key: again[key][0] for key in reversed(keys)}
    for epoch, index in keys:
        item, name = crops[epoch, index]
        assert_equal(item, drawn[epoch, index])
        assert_equal(item, store[index].crop(*crops.window(epoch, index)))
        assert (name, item.num_residues) == (store.names[index], min(5, SIZES[index]))


def test_whole_proteins_without_a_length_and_batches(folder):
    store = open_store(folder)
    crops = Crops(store, None, seed=0)
    assert len(crops) == 10
    assert_equal(crops[3, 3][0], store[3])
    batch, names = crops.collate([crops[0, i] for i in (4, 1)])
    assert names == ["p4", "p1"] and batch.num_proteins == 2
    assert_equal(batch.unpack()[0], store[4])


class Described(Namespace):
    """What `split` asks of a store."""

    def __len__(self):
        return len(self.names)


def test_the_split_is_stable_and_near_the_share_that_was_asked(folder):
    keys = [hashlib.sha256(str(i).encode()).hexdigest()[:16] for i in range(1000)]
    many = Described(names=[str(i) for i in range(1000)], sequences=keys)
    train, valid = split(many, 0.3)
    everyone = [*range(1000)]
    assert sorted(train + valid) == everyone
    assert train == sorted(train)
    assert 250 < len(valid) < 350
    assert split(many, 0.0) == (everyone, [])
    assert {*valid} > {*split(many, 0.2)[1]}
    store = open_store(folder)
    before = {store.names[i] for i in split(store, 0.4)[1]}
    write(folder / "p00.pdb", 3, seed=50)  # one more shifts the rows, but nobody changes sides
    store = open_store(folder)
    after = {store.names[i] for i in split(store, 0.4)[1]}
    assert after - {"p00"} == before
    assert 0 < len(before) < 10


BUNDLED = {row["file"].split("/")[1].removesuffix(".pdb.gz"): row for row in bundle_index()}


def test_the_bundle_has_the_split_of_its_index():
    sides = split(Described(names=sorted(BUNDLED)), 0.5)
    for side, name, size in zip(sides, ("train", "valid"), (173, 22), strict=True):
        assert {BUNDLED[sorted(BUNDLED)[i]]["split"] for i in side} == {name} and len(side) == size


@pytest.mark.full
def test_the_bundle_has_the_counts_of_its_index(tmp_path):
    bundle = open_store(bundle_path(), tmp_path / "bundle.store")
    meta, row = bundle.meta, BUNDLED
    assert [meta[name] for name in ("proteins", "residues", "atoms", "seen")] == [217, 47097, 370785, 219]
    assert (meta["skipped"], meta["failed"]) == ({"not a structure file": 2}, {})
    assert meta["dropped"] == {"modified residues (read as their parent)": 7}
    assert set(bundle.names) == row.keys()
    for i, name in enumerate(bundle.names):
        protein = bundle[i]
        counts = protein.num_residues, protein.num_atoms, len(protein.chain.unique())
        assert counts == (int(row[name]["n_residues"]), int(row[name]["n_atoms"]), row[name]["chains"].count(",") + 1)
    verify(bundle)
    assert json.loads((bundle.path / META).read_bytes())["path"] == str(bundle_path().resolve())
