"""Processes that read structures: a file that kills its reader fails by name, a fault of the machine ends the build.

And a folder as people have them, real entries among everything else.
"""

import contextlib
import gzip
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import processes
import pytest
import torch
from helpers import as_mmcif, as_pdb, residue, tar

from siamdiff_min.files import MACHINE, MachineError, StructureError, read_rows
from siamdiff_min.reading import pool as readers
from siamdiff_min.reading import store
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.pool import read_all
from siamdiff_min.reading.sources import Listing, Origin, Source, bundle_path, find_structures
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools.build import verify

LCD = (Path(__file__).parents[1] / "reading" / "1LCD.pdb.gz").read_bytes()


@dataclass(frozen=True)
class Odd:
    """A source that does what its name says."""

    name: str
    path: str = "odd.pdb.gz"

    def read(self):
        if self.name.startswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name.startswith("unlucky"):  # killed once, as the system does if memory runs out
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path)
                os.kill(os.getpid(), signal.SIGTERM)
        if self.name.startswith("faulty"):
            return [][0]
        if self.name.startswith("bare"):
            return read_structure("odd.pdb.gz", LCD).protein
        if self.name.startswith("machine"):
            raise OSError(int(self.name.rpartition(" ")[2]), "of the machine")
        return read_structure("odd.pdb.gz", LCD)


def origin(tmp_path, names):
    return Origin(tmp_path / "data", "x", lambda: Listing([Odd(name) for name in sorted(names)], []))


@pytest.mark.parametrize("processes", [1, 3])
def test_a_file_that_kills_its_reader_or_raises_anything_fails_with_its_reason(tmp_path, processes):
    deadly = dict.fromkeys(["deadly", "deadly too"], "ended the process that read it")
    reasons = deadly | {"faulty": "unreadable", "bare": "unreadable"}
    built = open_store(origin(tmp_path, ["a", "b", "x", "y", *reasons]), tmp_path / "s", processes)
    assert [*built.names] == ["a", "b", "x", "y"] and built.meta["seen"] == 8
    _, *rows = read_rows(built.path / "failures.tsv").values()
    assert {row[0]: row[2] for row in rows} == reasons and {row[3] for row in rows} == {"odd.pdb.gz"}
    detail = {row[0]: row[4] for row in rows}
    assert detail["faulty"].startswith("IndexError: ")
    assert detail["bare"] == "AttributeError: 'Protein' object has no attribute 'check'"


def test_a_reader_that_is_killed_for_another_one_reads_its_file_again(tmp_path):
    structure, _ = read_all([Odd("unlucky", str(tmp_path / "once")), Odd("good")])
    assert structure.protein.num_residues > 0 and (tmp_path / "once").exists()


@pytest.mark.repeats
@pytest.mark.parametrize("number", sorted(MACHINE))
def test_a_fault_of_the_machine_ends_the_build_and_is_no_failure_of_a_file(tmp_path, number, monkeypatch):
    """Shards that are built stay; the next build goes on."""
    monkeypatch.setattr(store, "SHARD", 4)
    names = ["a", "b", "c", "d", f"machine {number}", "z"]
    with pytest.raises(MachineError, match=r"odd\.pdb\.gz: of the machine; that is a fault of the machine"):
        open_store(origin(tmp_path, names), tmp_path / "s")
    assert [path.name for path in tmp_path.glob("s/*/0*")] == ["00000.pt"]
    monkeypatch.setattr(Odd, "read", lambda self: read_structure("odd.pdb.gz", LCD))
    assert len(open_store(origin(tmp_path, names), tmp_path / "s")) == 6


def test_a_structure_is_the_same_as_read_here_in_order_and_nobody_is_left(monkeypatch):
    monkeypatch.setattr(readers, "WINDOW", 3)
    names, expected, before = ["a", "faulty", "b", "c", "faulty", "d", "e"], Odd("good").read(), processes.descendants()
    for number in (1, 2, 5):
        found = [*read_all([Odd(name) for name in names], number)]
        assert [isinstance(x, StructureError) for x in found] == [name == "faulty" for name in names]
    for name, value in vars(expected.protein).items():
        ours = getattr(found[0].protein, name)
        assert type(ours) is type(value) and (ours == value if isinstance(value, int) else torch.equal(ours, value))
    assert all(getattr(found[0], name) == getattr(expected, name) for name in ("chain_names", "dropped", "labels"))
    reading = read_all([Odd(name) for name in "abcdefgh"], 2)
    next(reading)
    reading.close()
    assert processes.descendants() == before and [*read_all([])] == []


@pytest.mark.full
@pytest.mark.slow
def test_readers_that_are_spawned(tmp_path, monkeypatch):
    """As on systems on which forking is not safe."""
    monkeypatch.setattr(readers, "START", "spawn")
    (tmp_path / "a.pdb.gz").write_bytes(LCD)
    (tmp_path / "b.pdb").write_bytes(b"<html>")
    listed = [Source("a", str(tmp_path / "a.pdb.gz")), Source("b", str(tmp_path / "b.pdb"))]
    structure, error = read_all(listed, 2)
    assert structure.protein.num_residues > 0 and isinstance(error, StructureError)


@pytest.mark.full
@pytest.mark.parametrize("program, number", [("convert", signal.SIGTERM), ("embed", signal.SIGKILL)])
def test_readers_end_with_the_command_that_started_them(program, number, tmp_path, enzymes):
    """Within 15 seconds after a kill -9 or TERM, a reader that waits for its file included."""
    os.mkfifo(tmp_path / "pipe")
    log = tmp_path / "log"
    (tmp_path / "data").mkdir()
    for i in range(40):
        os.symlink(
            tmp_path / "pipe" if i == 20 else next((enzymes / "train").glob("*.pdb")), tmp_path / f"data/{i}.pdb"
        )
    more = [tmp_path / "s", "2"] if program == "convert" else ["--out", tmp_path / "e.npz", "--num-workers", "2"]
    (child,) = processes.start(log, 1, program, tmp_path / "data", *more)
    processes.until(lambda: len(processes.descendants(child.pid)) >= 2 or not child.is_alive(), log)
    readers = processes.descendants(child.pid)
    os.kill(child.pid, number)
    begin = time.monotonic()
    processes.until(lambda: not any(map(processes.running, readers)), log)
    assert time.monotonic() - begin < 15 and readers
    assert processes.finish([child]) == [-number]


# ---- a folder as people have them: seen = used + skipped + failed, nothing silent ------------------------------------


ROWS = residue("GLY", 1) + residue("SER", 2) + residue("VAL", 3, chain="B")
PDB, MMCIF = as_pdb(ROWS).encode(), as_mmcif(ROWS).encode()
WATER = b"HETATM    1  O   HOH A   1       1.000   2.000   3.000  1.00  0.00           O\nEND\n"
DNA = b"".join(
    b"ATOM  %5d  P    DA A%4d    %8.3f   2.000   3.000  1.00  0.00           P\n" % (i, i, i) for i in range(1, 9)
)


def packed(source):
    """The bytes of a bundled entry, as they are in its archive."""
    with open(source.path, "rb") as archive:
        archive.seek(source.offset)
        return archive.read(source.size)


@pytest.fixture
def mixed(tmp_path):
    """The folder, and what is to become of every file in it, those inside of archives too."""
    entries = {source.name: packed(source) for source in find_structures(bundle_path()).sources[::10]}
    names = sorted(entries)
    first, second, third, *_ = (entries[name] for name in names)
    plain = gzip.decompress(first)
    files = {f"real/{name}.pdb.gz": (data, "used") for name, data in entries.items()}
    files |= {
        "x.pdb/inside a folder called x.pdb.ent": (plain, "used"),
        "SMALL.CIF.GZ": (gzip.compress(MMCIF), "used"),
        "crlf.pdb": (plain.replace(b"\n", b"\r\n"), "used"),
        "no extension on the disk": (plain, "not a structure file"),
        "README.txt": (b"where from", "not a structure file"),
        ".pdb": (plain, "not a structure file"),
        "small.pdb": (PDB, "used"),
        "small.cif": (MMCIF, "another file of the same structure"),
        "water.pdb": (WATER, "no protein in it"),
        "dna.pdb": (DNA, "no protein in it"),
        "404.pdb": (b"<!DOCTYPE html><html>Not found</html>", "an HTML or XML page, not a PDB or mmCIF file"),
        "empty.pdb": (b"", "empty"),
        "forged\nx\tused\x1b[2J.pdb": (b"", "empty"),
        "nothing inside.cif.gz": (gzip.compress(b""), "empty"),
        "cut.pdb": (plain[: len(plain) // 2].rpartition(b"\n")[0] + b"\nATOM   9999  N   AL", "truncated"),
        "cut.pdb.gz.ent.gz": (second[:-100], "damaged or truncated gzip data"),
        "flipped.pdb.gz": (third[:500] + bytes([third[500] ^ 8]) + third[501:], "damaged or truncated gzip data"),
        "stars.pdb": (plain.replace(plain[30:38], b"********"), "used"),  # of the header, not of an atom
        "nan.pdb": (PDB.replace(b"   1.000", b"     nan"), "unreadable"),
        "more stars.pdb": (PDB.replace(b"   1.000", b"********"), "unreadable"),
        "picture.ent": (bytes(range(256)) * 20, "not a text file"),
    }
    inside = {
        "a/in a tar.pdb": (plain, "used"),
        "water in a tar.pdb": (WATER, "no protein in it"),
        "../outside.pdb": (plain, "used"),  # nothing is written: a name is a mere label
        "/absolute.pdb": (plain, "used"),
        "notes": (b"", "not a structure file"),
    }
    root = tmp_path / "deep" / "data"
    for name, (data, _) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "some.tar").write_bytes(tar([(name, data) for name, (data, _) in inside.items()]))
    (root / "secret.pdb").write_bytes(plain)
    (root / "secret.pdb").chmod(0)
    readable = os.access(root / "secret.pdb", os.R_OK)  # as it is for root
    (root / "empty folder.pdb").mkdir()
    (root / "nowhere.pdb").symlink_to(root / "missing")
    (root / "elsewhere").symlink_to(root / "real")
    expected = Counter(outcome for _, outcome in [*files.values(), *inside.values()])
    others = ["not a regular file", "folder that is not entered", "used" if readable else "cannot be opened"]
    return root, expected + Counter(others)


def test_every_file_of_a_mixed_folder_is_accounted_for(mixed, tmp_path, capsys):
    root, expected = mixed
    before = sorted(tmp_path.rglob("*"))
    store = open_store(root, tmp_path / "s")
    skipped, failed, seen = Counter(store.meta["skipped"]), Counter(store.meta["failed"]), store.meta["seen"]
    assert skipped + failed == expected - Counter({"used": expected["used"]})
    assert len(store) == expected["used"] == len(set(store.names))
    assert seen == expected.total() == len(store) + skipped.total() + failed.total()
    assert f"seen {seen} = used {len(store)} + skipped {skipped.total()} (" in capsys.readouterr().err
    lines = (store.path / "failures.tsv").read_text().splitlines()[1:]
    table = [line.split("\t") for line in lines]
    assert {len(row) for row in table} == {5} and all(cell.isprintable() for row in table for cell in row)
    assert Counter(row[1] for row in table) == {"skipped": skipped.total(), "failed": failed.total()}
    assert len({row[3] for row in table}) == len(table)  # each names its file
    verify(store)
    new = {path for path in tmp_path.rglob("*") if tmp_path / "s" not in path.parents} - set(before)
    assert {path.name for path in new} == {"s"}  # nothing of the archives was written anywhere
    print(store.report_counts())  # pytest -rP
