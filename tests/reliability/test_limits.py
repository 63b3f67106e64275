"""No file holds up a bulk run: files that kill the process that reads them, that swell, archives without end."""

import contextlib
import gzip
import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass

import pytest
import torch
from fuzz_files import real_pdb
from siamdiff_min.data.pool import read_all

from siamdiff_min import embed
from siamdiff_min.data import pool, shards
from siamdiff_min.data.sources import Listing, Origin, Source, find_structures
from siamdiff_min.data.store import open_store
from siamdiff_min.encoders import embedding
from siamdiff_min.files import MACHINE, MachineError, SiamDiffError, StoreError, StructureError
from siamdiff_min.protein import parse
from siamdiff_min.protein.parse import read_structure
from siamdiff_min.protein.structure import Structure

PDB = real_pdb()


@dataclass(frozen=True)
class Hostile:
    """A source that does what its name says."""

    name: str
    path: str = "hostile.pdb"

    def read(self):
        if self.name.startswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name.startswith("unlucky"):  # killed once, as the system does where memory runs out
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path)
                os.kill(os.getpid(), signal.SIGTERM)
        if self.name.startswith("greedy"):
            return [bytes(2**20) for _ in range(2**20)]  # a terabyte, in pieces
        if self.name.startswith("endless"):
            while True:
                with contextlib.suppress(Exception):  # as readers do that take every exception for a malformed file
                    sum(range(1000))
        if self.name.startswith("silent"):  # takes no CPU time: a pipe that nobody writes to
            read, _ = os.pipe()
            os.read(read, 1)
        if self.name.startswith("faulty"):
            return [][0]
        if self.name.startswith("machine"):
            raise OSError(int(self.name.rpartition(" ")[2]), "of the machine")
        if self.name.startswith("crossing"):
            raise SiamDiffError("an error of ours")
        return read_structure(self.path, PDB)


REASONS = {
    "deadly": "ended the process that read it",
    "deadly too": "ended the process that read it",
    "faulty": "unreadable",
    "greedy": "too large",
    "crossing": "unreadable",
    "endless": "took too long",
    "silent": "took too long",
}


@pytest.fixture
def tight(monkeypatch):
    """Limits that are reached soon."""
    monkeypatch.setattr(pool, "MAX_SECONDS", 4)
    monkeypatch.setattr(pool, "MAX_MEMORY", 2**28)


def origin(tmp_path, names):
    return Origin(tmp_path / "data", "x", lambda: Listing([Hostile(name) for name in sorted(names)], []))


@pytest.mark.repeats
@pytest.mark.parametrize("processes", [1, 3])
def test_whatever_a_file_does_is_a_failure_with_its_reason(tmp_path, tight, processes):
    names = sorted(["a", "b", "x", "y", "z", *REASONS])
    store = open_store(origin(tmp_path, names), tmp_path / "s", processes)
    assert list(store.names) == ["a", "b", "x", "y", "z"]
    rows = [line.split("\t") for line in (store.path / "failures.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert {row[0]: row[2] for row in rows} == REASONS and all(row[3] == "hostile.pdb" for row in rows)
    details = {row[0]: row[4] for row in rows}
    assert details["faulty"].startswith("IndexError: ") and details["silent"] == "more than 4 s"
    assert store.meta["seen"] == len(names)


@pytest.mark.repeats
@pytest.mark.parametrize("number", sorted(MACHINE))
def test_a_fault_of_the_machine_ends_the_build_and_is_no_failure_of_a_file(tmp_path, number, monkeypatch):
    """What has been built is kept; the next build goes on."""
    monkeypatch.setattr(shards, "SHARD", 2)
    names = ["a", "b", f"machine {number}", "z"]
    with pytest.raises(MachineError, match=r"hostile\.pdb: of the machine; that is a fault of the mach"):
        open_store(origin(tmp_path, names), tmp_path / "s")
    assert [path.name for path in tmp_path.glob("s/*/*")] == ["00000.pt"]
    monkeypatch.setattr(Hostile, "read", lambda self: read_structure(self.path, PDB))
    assert len(open_store(origin(tmp_path, names), tmp_path / "s")) == 4


def test_too_many_open_files_are_no_fault_of_a_file(tmp_path):
    """Neither where a file is opened, nor where a reader is started."""
    (tmp_path / "a.pdb").write_bytes(PDB)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
    try:
        with pytest.raises(MachineError, match=r"a\.pdb: Too many open files; that is a fault of the machine"):
            read_structure(tmp_path / "a.pdb")
        with pytest.raises(MachineError, match="no process can be started that reads files: Too many open files"):
            next(read_all([Source("a", str(tmp_path / "a.pdb"))]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert next(read_all([Source("a", str(tmp_path / "a.pdb"))])).protein.num_residues > 0


def read_and_wait() -> None:
    pool.MAX_SECONDS = 1
    assert isinstance(pool._read_source(Hostile("a")), Structure)
    time.sleep(1.5)
    os._exit(7)


def test_the_clock_of_a_file_stops_with_it():
    process = multiprocessing.get_context("fork").Process(target=read_and_wait)
    process.start()
    process.join()
    assert process.exitcode == 7


def test_in_python_an_embedding_has_the_same_limits(tmp_path, monkeypatch):
    """A file that never ends; and where no process can be started, it is read all the same."""
    (tmp_path / "a.pdb").write_bytes(PDB)
    os.mkfifo(tmp_path / "b.pdb")
    monkeypatch.setattr(pool, "MAX_SECONDS", 4)
    encoder = embed.load_encoder("siamdiff-residue", "cpu")
    listing = Listing([Source(name, str(tmp_path / f"{name}.pdb")) for name in "ab"], [])
    with (
        monkeypatch.context() as context,
        pytest.raises(StructureError, match=r"b\.pdb: took too long"),
    ):
        context.setattr(embedding, "find_structures", lambda path: listing)
        encoder.embed(tmp_path)
    expected = encoder.embed(tmp_path / "a.pdb").mean
    monkeypatch.setattr(pool, "START", "spawn")
    monkeypatch.setattr(embedding, "read_all", None)
    assert (encoder.embed(tmp_path / "a.pdb").mean == expected).all()


def test_results_come_in_order(monkeypatch):
    monkeypatch.setattr(pool, "WINDOW", 3)
    names = ["a", "faulty", "b", "c", "faulty", "d", "e"]
    for processes in (1, 2, 5):
        found = list(read_all([Hostile(name) for name in names], processes))
        assert [isinstance(x, StructureError) for x in found] == [name == "faulty" for name in names]
    assert list(read_all([])) == []


def test_the_limits_are_those_of_one_file(monkeypatch):
    """Together the files take longer than one may."""
    monkeypatch.setattr(pool, "MAX_SECONDS", 1.5)
    found = list(read_all([Slow(str(i)) for i in range(4)]))
    assert [type(x) for x in found] == [Structure] * 4


class Slow(Hostile):
    def read(self):
        time.sleep(0.6)
        return super().read()


@pytest.mark.full
def test_a_pipe_does_not_hold_up_a_conversion_or_an_embedding(tmp_path, monkeypatch, capsys):
    """It took the place of a structure after the files were listed."""
    monkeypatch.setattr(pool, "MAX_SECONDS", 4)
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.pdb").write_bytes(PDB)
    read = Source.read

    def replaced(self):
        if self.name == "b" and not os.path.exists(tmp_path / "gone"):
            os.rename(self.path, tmp_path / "gone")
            os.mkfifo(self.path)
        return read(self)

    monkeypatch.setattr(Source, "read", replaced)
    with pytest.raises(StoreError, match=r"b\.pdb has changed while .* was read"):
        open_store(tmp_path / "data", tmp_path / "s")
    os.remove(tmp_path / "data" / "b.pdb")
    os.rename(tmp_path / "gone", tmp_path / "data" / "b.pdb")
    argv = [str(tmp_path / "data"), "--checkpoint", "siamdiff-residue", "--out", str(tmp_path / "e.npz")]
    assert embed.main([*argv, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "embedded 1 + skipped 0 + failed 1" in said.out and "b.pdb: took too long (more than 4 s)" in said.err


def test_a_structure_is_the_same_as_read_here():
    (structure,) = read_all([Hostile("good")])
    expected = Hostile("good").read()
    for name, value in vars(expected.protein).items():
        ours = getattr(structure.protein, name)
        assert type(ours) is type(value) and (ours == value if isinstance(value, int) else torch.equal(ours, value))
    assert all(getattr(structure, name) == getattr(expected, name) for name in ("chain_names", "dropped", "labels"))
    structure.protein.pos.zero_()  # memory of our own


def test_a_file_that_dies_for_another_one_is_read_again(tmp_path):
    """The system kills whom it likes when memory runs out; and SIGTERM for a group goes to all of its processes."""
    structure, _ = read_all([Hostile("unlucky", str(tmp_path / "once")), Hostile("good")])
    assert structure.protein.num_residues > 0 and (tmp_path / "once").exists()


@pytest.mark.repeats
@pytest.mark.parametrize("processes", [1, 2])  # the second waits for the lock of the first, and holds the pipe open
def test_a_process_that_is_killed_amid_its_answer(processes, tmp_path):
    """Half of a message lies in the pipe. Ctrl-C of siamdiff-embed does this now and then, and it waited for ever."""
    code = """
import os, sys
from multiprocessing.connection import Connection
from siamdiff_min.data.pool import read_all
from siamdiff_min.data.sources import Source
send, here = Connection._send, os.getpid()
def half(self, message, *rest):
    if os.getpid() != here and len(message) > 100:
        os.write(self._handle, message[: len(message) // 2])
        os.kill(os.getpid(), 9)
    return send(self, message, *rest)
Connection._send = half
print(*[error.reason for error in read_all([Source("x", sys.argv[1])] * 2, int(sys.argv[2]))], sep="\\n")
"""
    (tmp_path / "a.pdb").write_bytes(PDB)
    command = [sys.executable, "-c", code, tmp_path / "a.pdb", str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "ended the process that read it\n" * 2, done.stderr


def test_workers_beside_the_threads_of_torch(tmp_path):
    """A fork has none of the threads of its parent: it must not wait for them."""
    code = "import sys, torch; from siamdiff_min.data.pool import read_all; torch.set_num_threads(4)\n"
    code += "from siamdiff_min.data.sources import Source\nx = torch.rand(700, 700); (x @ x).exp().sum()\n"
    code += "print([s.protein.num_residues > 0 for s in read_all([Source('x', sys.argv[1])] * 3, 2)])"
    (tmp_path / "a.pdb").write_bytes(PDB)
    command = [sys.executable, "-c", code, tmp_path / "a.pdb"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[True, True, True]\n", done.stderr


def test_no_process_is_left_behind():
    before = _children()
    reading, begin = read_all([Hostile("a"), Hostile("silent"), Hostile("silent")], 2), time.monotonic()
    next(reading)
    reading.close()
    assert time.monotonic() - begin < 60 < pool.MAX_SECONDS  # nobody waits for the silent ones
    assert _children() == before


def _children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.full
@pytest.mark.slow
def test_processes_that_are_spawned(tmp_path, monkeypatch):
    """As on systems where forking is not safe."""
    monkeypatch.setattr(pool, "START", "spawn")
    (tmp_path / "a.pdb").write_bytes(PDB)
    (tmp_path / "b.pdb").write_bytes(b"<html>")
    structure, error = read_all([Source(name, str(tmp_path / f"{name}.pdb")) for name in "ab"], 2)
    assert structure.protein.num_residues > 0 and isinstance(error, StructureError)


# ---- small files that swell ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_no_more_is_read_of_a_file_than_is_allowed(tmp_path, monkeypatch, packed):
    """A sparse file of a terabyte, and a gzip bomb."""
    file = tmp_path / "x.pdb"
    with open(file, "wb") as out:
        if packed:
            out.write(gzip.compress(bytes(2**26)))
        else:
            out.truncate(2**40)
    monkeypatch.setattr(parse, "MAX_BYTES", 2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StructureError, match=r"x\.pdb: too large"):
        Source("x", str(file)).read()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**10 * 100  # kilobytes


def test_a_bulk_run_survives_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "MAX_BYTES", 2**20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.pdb").write_bytes(PDB)
    (tmp_path / "data" / "bomb.pdb.gz").write_bytes(gzip.compress(bytes(2**26)))
    with open(tmp_path / "data" / "terabyte.cif", "wb") as out:
        out.truncate(2**40)
    store = open_store(tmp_path / "data", tmp_path / "s")
    assert (store.names, store.meta["failed"]) == (["good"], {"too large": 2})


# ---- archives --------------------------------------------------------------------------------------------------------


def packed(field=b"", **pax) -> bytes:
    """A tar of two members; the header of the second has another size, or further fields."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, headers in (("first.pdb", {}), ("second.pdb", pax)):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(PDB), headers
            archive.addfile(info, io.BytesIO(PDB))
    data = bytearray(out.getvalue())
    if field:
        at = data.rindex(b"second.pdb".ljust(100, b"\0"))
        data[at + 124 : at + 136] = field
        data[at + 148 : at + 156] = b" " * 8
        data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


HOSTILE = {
    "a size of -512": packed(b"\xff" * 10 + b"\xfe\0"),  # was listed without end
    "a size of -512 in pax": packed(size="-512"),
    "a size of -99999 in pax": packed(size="-99999"),
    "cut within a member": packed()[: packed().rindex(b"second.pdb") + 1000],
    "a damaged header": packed().replace(b"second.pdb\0\0", b"changed.pdb\0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_archive_fails_and_the_others_are_read(tmp_path, case):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hostile.tar").write_bytes(HOSTILE[case])
    (tmp_path / "data" / "harmless.tar").write_bytes(packed())
    (tmp_path / "data" / "single.pdb").write_bytes(PDB)
    store = open_store(tmp_path / "data", tmp_path / "s")
    assert list(store.names) == ["first", "second", "single"]
    assert store.meta["failed"] == {"damaged archive": 1} and store.meta["seen"] == 4
    row = (store.path / "failures.tsv").read_text().splitlines()[1].split("\t")
    assert row[:4] == ["hostile.tar", "failed", "damaged archive", str(tmp_path / "data" / "hostile.tar")]
    with pytest.raises(StructureError, match=r"hostile\.tar: damaged archive"):
        find_structures(tmp_path / "data" / "hostile.tar")
