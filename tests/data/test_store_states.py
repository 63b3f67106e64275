"""Any sequence of {add, remove, touch, rewrite, damage; kill, resume, open, open by two, mend, prune} against a model.

The model is a dict of what the files hold. A store must hold the proteins of the files as they are, whatever happened
before; and the stores of earlier states stay as they were.
"""

import contextlib
import io
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from helpers import assert_equal
from processes import at_disk_operation

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from siamdiff_min.data import shards
from siamdiff_min.data import store as stores
from siamdiff_min.data.store import ProteinStore, open_store
from siamdiff_min.files import StoreError, StructureError
from siamdiff_min.protein.parse import read_structure

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "sub/a", "sub/f"])


def text(size: int, shift: int) -> bytes:
    """A chain of glycines, as long as every other one of its size; with a shift of 2 none of them has a CA."""
    line = "ATOM  %5d  C%s  GLY A%4d    %8.3f%8.3f   0.000  1.00  0.00           C\n"
    return "".join(line % (i, "AAB"[shift], i, 3.8 * i, shift) for i in range(1, size + 1)).encode()


CONTENTS = st.builds(text, st.integers(1, 3), st.integers(0, 2))


def expected(content: bytes):
    """The protein of a file; None if it cannot be read."""
    with contextlib.suppress(StructureError):
        return read_structure("x", content).protein


def killed(folder: str, operation: int) -> None:
    """Build, and be killed at an operation on the disk."""
    at_disk_operation("kill", operation, f"{folder}.store")
    opened(folder)


def opened(folder: str) -> None:
    with contextlib.suppress(StoreError), contextlib.redirect_stderr(io.StringIO()):
        open_store(folder, workers=1)


class Stores(RuleBasedStateMachine):
    """`files`: what is in the folder; `made`: what is in every store that was seen; `damaged`: the stores that are."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder, self.home = self.root / "data", self.root / "data.store"
        self.files: dict[str, bytes] = {}
        self.made: dict[str, dict] = {}
        self.damaged: set[str] = set()
        self.small = patch.object(shards, "SHARD", 2)
        self.small.start()

    @initialize()
    def begin(self):
        self.folder.mkdir()
        self.home.mkdir()
        (self.home / "mine.txt").write_text("dear")
        for name in ("a", "b", "c"):
            self.add(name, text(2, len(self.files) % 2))

    def teardown(self):
        try:
            assert (self.home / "mine.txt").read_text() == "dear"
            for name, proteins in self.made.items():
                if name not in self.damaged:
                    self.check(ProteinStore(self.home / name), proteins)
        finally:
            self.small.stop()
            shutil.rmtree(self.root)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pdb"

    @rule(name=NAMES, content=CONTENTS)
    def add(self, name, content):
        """A new file, or another content of one."""
        self.path(name).parent.mkdir(exist_ok=True)
        self.path(name).write_bytes(content)
        self.files[name] = content

    @rule(name=NAMES)
    def remove(self, name):
        if self.files.pop(name, None) is not None:
            self.path(name).unlink()

    @rule(name=NAMES, time=st.integers(0, 3))
    def touch(self, name, time):
        if name in self.files:
            os.utime(self.path(name), ns=(time, time))

    @rule(name=NAMES, shift=st.integers(0, 1))
    def rewrite(self, name, shift):
        """Another content of the same size at the same time of change, in a new file."""
        if name in self.files:
            size = self.files[name].count(b"\n")
            before = self.path(name).stat()
            (self.root / "new").write_bytes(text(size, shift))
            os.utime(self.root / "new", ns=(before.st_mtime_ns, before.st_mtime_ns))
            os.replace(self.root / "new", self.path(name))
            self.files[name] = text(size, shift)

    @rule(name=NAMES)
    def damage(self, name):
        """A file of the data loses its second half."""
        if name in self.files:
            self.add(name, self.files[name][: len(self.files[name]) // 2])

    @precondition(lambda self: self.made.keys() - self.damaged)
    @rule(place=st.floats(0, 1, exclude_max=True), data=st.data())
    def damage_a_store(self, place, data):
        """One bit of a file of a store flips."""
        name = data.draw(st.sampled_from(sorted(self.made.keys() - self.damaged)))
        files = sorted((self.home / name).glob("[!f]*"))  # `failures.tsv` is for people
        file = files[int(place * len(files))]
        content = bytearray(file.read_bytes())
        content[int(place * len(content))] ^= 1
        file.write_bytes(content)
        self.damaged.add(name)

    @rule(operation=st.integers(1, 25))
    def kill(self, operation):
        self.run([(killed, str(self.folder), operation)])

    @rule()
    def open_by_two(self):
        assert self.run([(opened, str(self.folder))] * 2) == [0, 0]

    @rule()
    def open(self):
        """Or resume what was killed."""
        proteins = self.proteins()
        if not proteins:
            with pytest.raises(StoreError, match=r"no (structure|protein that can be read) in "):
                open_store(self.folder, workers=1)
            return
        try:
            store = open_store(self.folder, workers=1)
        except StoreError as error:  # damage that shows at once
            assert "is damaged" in str(error) and any(name in str(error) for name in self.damaged)
        else:
            if store.path.name not in self.damaged:
                self.check(store, proteins)
                self.made[store.path.name] = proteins

    @rule()
    def mend(self):
        if proteins := self.proteins():
            with contextlib.redirect_stdout(io.StringIO()):
                stores.main([str(self.folder)])
            store = open_store(self.folder)
            self.check(store, proteins)
            self.made[store.path.name] = proteins
            self.damaged.discard(store.path.name)

    @rule()
    def prune(self):
        if self.files:
            current = open_store(self.folder, build=False) if not self.damaged else None
            if current is not None:
                with contextlib.redirect_stdout(io.StringIO()):
                    stores.main(["--prune", str(self.folder)])
                self.made = {current.path.name: self.made[current.path.name]} if current.path.name in self.made else {}

    def run(self, targets) -> list[int]:
        processes = [multiprocessing.get_context("fork").Process(target=f, args=args) for f, *args in targets]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [process.exitcode for process in processes]

    def proteins(self) -> dict:
        """What the store of the files must hold, by the name in the store."""
        plain = {name: Path(name).name for name in self.files}
        count = list(plain.values())
        found = {name if count.count(plain[name]) > 1 else plain[name]: self.files[name] for name in self.files}
        return {name: protein for name, x in sorted(found.items()) if (protein := expected(x)) is not None}

    def check(self, store, proteins) -> None:
        store.verify()
        assert store.names == list(proteins)
        for i, protein in enumerate(proteins.values()):
            assert_equal(store[i], protein)


@pytest.mark.repeats
@pytest.mark.parametrize("examples, steps", [(8, 12), pytest.param(150, 30, marks=pytest.mark.soak)])
def test_whatever_happens_a_store_holds_what_the_files_hold(examples, steps, record_property):
    health = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, database=None)
    chosen = settings(chosen, derandomize=examples < 100, suppress_health_check=health)
    run_state_machine_as_test(Stores, settings=chosen)
    record_property("sequences of up to", f"{examples} x {steps}")
