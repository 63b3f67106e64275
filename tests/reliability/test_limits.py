"""No file holds up a bulk run: limits on time, memory, size, atoms; files that kill the process that reads them."""

import contextlib
import gzip
import os
import resource
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import pytest
from fuzz_files import real_mmcif, real_pdb

from siamdiff_min.data import build, structures
from siamdiff_min.data.build import open_origin, open_store, report_of
from siamdiff_min.data.store import ProteinStore
from siamdiff_min.data.structures import Listing, Origin, Source, read_in_time
from siamdiff_min.files import StructureError
from siamdiff_min.protein import parse
from siamdiff_min.protein.parse import read_structure


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
            return bytearray(2**62)
        if self.name.startswith("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        return read_structure(self.path, real_pdb())


def origin(tmp_path, names):
    return Origin(tmp_path / "data", "x", lambda: Listing([Hostile(name) for name in sorted(names)], []))


# ---- time and memory -------------------------------------------------------------------------------------------------


def test_what_takes_too_long_is_a_failure_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(structures, "MAX_SECONDS", 0.2)
    before = signal.getsignal(signal.SIGPROF)
    store = open_origin(origin(tmp_path, ["a", "endless", "greedy", "z"]), tmp_path / "s")
    assert list(store.names) == ["a", "z"]
    assert store.meta["report"]["seen"] == 4
    assert store.meta["report"]["failed"] == {"took too long": 1, "too large": 1}
    assert "endless\tfailed\ttook too long\thostile.pdb\tmore than 0.2 s of CPU time" in (
        store.path / "failures.tsv"
    ).read_text(encoding="utf-8")
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_the_limit_is_reset_for_every_file(monkeypatch):
    monkeypatch.setattr(structures, "MAX_SECONDS", 0.2)
    start = os.times().user
    while os.times().user < start + 0.4:  # together longer than one may take
        assert read_in_time(Hostile("quick")).protein.num_residues > 0


def test_other_threads_read_without_a_limit():
    found = []
    thread = threading.Thread(target=lambda: found.append(read_in_time(Hostile("quick"))))
    thread.start()
    thread.join()
    assert found[0].protein.num_residues > 0


@pytest.mark.slow
def test_files_that_kill_their_process_are_failures_with_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SHARD_SIZE", 2)
    store = open_origin(origin(tmp_path, ["a", "deadly", "z"]), tmp_path / "s", workers=2)
    assert list(store.names) == ["a", "z"]
    assert store.meta["report"]["failed"] == {"ended the process that read it": 1}


def test_processes_that_cannot_start_are_not_blamed_on_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SHARD_SIZE", 1)
    monkeypatch.setattr(build, "_prepare_worker", os.abort)
    with pytest.raises(BrokenProcessPool):
        open_origin(origin(tmp_path, ["a", "b"]), tmp_path / "s", workers=2)
    assert not (tmp_path / "s").exists()


# ---- size ------------------------------------------------------------------------------------------------------------


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
    table = parse._AtomSite(parse._lines(real_mmcif(real_pdb()).replace(b"_cell.note", b"loop_\n_a.b\n1 2 3\n#\n_c.d")))
    assert len(table["_atom_site.Cartn_x"]) > 50
    assert not any(values for name, values in table.items() if not name.startswith("_atom_site."))


def test_a_bulk_run_survives_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(parse, "MAX_BYTES", 2**20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "good.pdb").write_bytes(real_pdb())
    (tmp_path / "data" / "bomb.pdb.gz").write_bytes(gzip.compress(bytes(2**26)))
    with open(tmp_path / "data" / "terabyte.cif", "wb") as out:
        out.truncate(2**40)
    report = report_of(open_store(tmp_path / "data", tmp_path / "s"))
    assert (report.used, dict(report.failed)) == (1, {"too large": 2})
    assert list(ProteinStore(tmp_path / "s").names) == ["good"]
