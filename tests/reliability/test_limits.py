"""No file holds up a bulk run: limits on time, memory and size; files that kill the process that reads them."""

import contextlib
import gzip
import io
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
from fuzz_files import real_mmcif, real_pdb

from siamdiff_min.data import worker
from siamdiff_min.data.build import open_origin, open_store, report_of
from siamdiff_min.data.store import ProteinStore
from siamdiff_min.data.structures import Listing, Origin, Source, find_structures
from siamdiff_min.data.worker import read_all, run
from siamdiff_min.files import SiamDiffError, StructureError
from siamdiff_min.protein import parse
from siamdiff_min.protein.parse import read_structure

PDB = real_pdb()


@dataclass(frozen=True)
class Hostile:
    """A source that does what its name says."""

    name: str
    path: str = "hostile.pdb"

    def read(self):
        if self.name.startswith("endless"):
            while True:
                with contextlib.suppress(Exception):  # as readers do that take every exception for a malformed file
                    sum(range(1000))
        if self.name.startswith("greedy"):
            return [bytes(2**20) for _ in range(2**20)]  # a terabyte, in pieces
        if self.name.startswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.name.startswith("unlucky"):  # killed once, as the system does where memory runs out
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path)
                os.kill(os.getpid(), signal.SIGTERM)
        if self.name.startswith("leaving"):
            raise SystemExit(3)
        if self.name.startswith("faulty"):
            return [][0]
        if self.name.startswith("crossing"):
            raise SiamDiffError("an error of ours")
        return read_structure(self.path, PDB)


REASONS = {
    "deadly": "ended the process that read it",
    "endless": "took too long",
    "faulty": "unreadable",
    "greedy": "too large",
    "leaving": "unreadable",
    "crossing": "unreadable",
}


@pytest.fixture
def tight(monkeypatch):
    """Limits that are reached soon."""
    monkeypatch.setattr(worker, "MAX_SECONDS", 1)
    monkeypatch.setattr(worker, "MAX_MEMORY", 2**28)


def origin(tmp_path, names):
    return Origin(tmp_path / "data", "x", lambda: Listing([Hostile(name) for name in sorted(names)], []))


# ---- whatever happens to the process ---------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3])
def test_whatever_a_file_does_is_a_failure_with_its_reason(tmp_path, tight, processes):
    names = sorted(["a", "b", "x", "y", "z", *REASONS])
    store = open_origin(origin(tmp_path, names), tmp_path / "s", processes)
    assert list(store.names) == ["a", "b", "x", "y", "z"]
    rows = [line.split("\t") for line in (store.path / "failures.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert {row[0]: row[2] for row in rows} == REASONS and all(row[3] == "hostile.pdb" for row in rows)
    details = {row[0]: row[4] for row in rows}
    assert details["endless"] == "more than 1 s of CPU time" and details["faulty"].startswith("IndexError: ")
    assert store.meta["report"]["seen"] == len(names)


def test_results_come_in_order(monkeypatch):
    monkeypatch.setattr(worker, "AHEAD", 3)
    seconds = [0.2, 0, 0, 0, 0.1, 0, 0, 0.05]
    for processes in (1, 2, 5, 50):
        assert list(run([("x", _busy, number) for number in seconds], processes)) == seconds
    assert list(run([], 2)) == list(read_all([])) == []


def test_a_structure_is_the_same_as_read_here():
    (structure,) = read_all([Hostile("good")])
    expected = Hostile("good").read()
    for name, value in vars(expected.protein).items():
        ours = getattr(structure.protein, name)
        assert type(ours) is type(value) and (ours == value if isinstance(value, int) else torch.equal(ours, value))
    assert all(getattr(structure, name) == getattr(expected, name) for name in ("chain_names", "dropped", "note"))
    structure.protein.pos.zero_()  # memory of our own


def test_the_limits_are_those_of_one_file(tight):
    """Together the files take longer than one may."""
    tasks = [("x", _busy, 0.4)] * 4
    assert list(run(tasks)) == [0.4] * 4


def _busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
    return seconds


def test_a_file_that_dies_for_another_one_is_read_again(tmp_path):
    """The system kills whom it likes when memory runs out; and SIGTERM for a group goes to all of its processes."""
    (structure,) = read_all([Hostile("unlucky", str(tmp_path / "once"))])
    assert structure.protein.num_residues > 0 and (tmp_path / "once").exists()


def test_processes_that_cannot_start_are_not_blamed_on_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_serve", lambda connection: os._exit(7))
    with pytest.raises(SiamDiffError, match=r"no process can be started to read files .exit status 7"):
        open_origin(origin(tmp_path, ["a", "b"]), tmp_path / "s", workers=2)
    assert not (tmp_path / "s").exists()


def test_workers_beside_the_threads_of_torch():
    """A fork has none of the threads of its parent: it must not wait for them."""
    code = "import torch; from siamdiff_min.data.worker import run; torch.set_num_threads(4)\n"
    code += "x = torch.rand(700, 700); (x @ x).exp().sum(); print(list(run([('x', torch.mm, x, x)] * 3, 2))[0].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "torch.Size([700, 700])\n", done.stderr


def test_no_process_is_left_behind(tight):
    before = _children()
    reading = read_all([Hostile("a"), Hostile("endless"), Hostile("b")], 2)
    next(reading)
    assert len(_children() - before) == 2
    reading.close()
    assert _children() == before


def _children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


@pytest.mark.slow
def test_processes_that_are_spawned(tmp_path, monkeypatch):
    """As on systems where forking is not safe."""
    monkeypatch.setattr(worker, "START", "spawn")
    (tmp_path / "a.pdb").write_bytes(PDB)
    (tmp_path / "b.pdb").write_bytes(b"<html>")
    structure, error = read_all([Source(name, str(tmp_path / f"{name}.pdb")) for name in "ab"], 2)
    assert structure.protein.num_residues > 0 and isinstance(error, StructureError)


def test_without_limits_of_the_system_a_file_is_read_all_the_same(monkeypatch):
    """Windows has no module `resource`."""
    monkeypatch.setattr(worker, "resource", None)
    structure, error = read_all([Hostile("good"), Hostile("deadly")])
    assert structure.protein.num_residues > 0 and error.reason == REASONS["deadly"]


# ---- small files that swell ------------------------------------------------------------------------------------------


def test_a_small_file_that_takes_gigabytes(tmp_path, tight):
    """100 kB of gzip: 30 million values in a table of mmCIF."""
    text = b"data_x\nloop_\n_atom_site.a\n_atom_site.Cartn_x\n" + b"1 2 3 4 5 6 7 8\n" * 2**22
    (tmp_path / "x.cif.gz").write_bytes(gzip.compress(text))
    (tmp_path / "good.pdb").write_bytes(PDB)
    monitor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = report_of(open_store(tmp_path, tmp_path / "s"))
    assert (report.used, report.failed.total()) == (1, 1) and set(report.failed) <= {"too large", "took too long"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - monitor < 2**10 * 100  # kilobytes


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


def test_columns_other_than_those_of_the_atoms_are_not_kept():
    table = parse._AtomSite(parse._lines(real_mmcif(PDB).replace(b"_cell.note", b"loop_\n_a.b\n1 2 3\n#\n_c.d")))
    assert len(table["_atom_site.Cartn_x"]) > 50
    assert not any(values for name, values in table.items() if not name.lower().startswith("_atom_site."))


def test_a_bulk_run_survives_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "MAX_BYTES", 2**20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.pdb").write_bytes(PDB)
    (tmp_path / "data" / "bomb.pdb.gz").write_bytes(gzip.compress(bytes(2**26)))
    with open(tmp_path / "data" / "terabyte.cif", "wb") as out:
        out.truncate(2**40)
    report = report_of(open_store(tmp_path / "data", tmp_path / "s"))
    assert (report.used, dict(report.failed)) == (1, {"too large": 2})
    assert list(ProteinStore(tmp_path / "s").names) == ["good"]


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
    "a size of -512": (packed(b"\xff" * 10 + b"\xfe\0"), "damaged archive"),  # was listed without end
    "a size of -512 in pax": (packed(size="-512"), "damaged archive"),
    "a size of -99999 in pax": (packed(size="-99999"), "damaged archive"),
    "digits without end": (packed(mtime="1" * 100_000), "took too long"),  # ten seconds each in tarfile
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_a_failure_and_the_others_are_read(tmp_path, tight, case):
    if case == "digits without end" and not hasattr(tarfile, "data_filter"):
        pytest.skip("such an old Python reads it at once")
    data, reason = HOSTILE[case]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "hostile.tar").write_bytes(data)
    (tmp_path / "data" / "harmless.tar").write_bytes(packed())
    (tmp_path / "data" / "single.pdb").write_bytes(PDB)
    store = open_store(tmp_path / "data", tmp_path / "s")
    assert list(store.names) == ["first", "second", "single"]
    assert store.meta["report"]["failed"] == {reason: 1} and store.meta["report"]["seen"] == 4
    row = (store.path / "failures.tsv").read_text().splitlines()[1].split("\t")
    assert row[:4] == ["hostile.tar", "failed", reason, str(tmp_path / "data" / "hostile.tar")]
    with pytest.raises(StructureError, match=rf"hostile\.tar: {reason}"):
        find_structures(tmp_path / "data" / "hostile.tar")
