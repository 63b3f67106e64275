"""Every reader on damaged input: what it documents, or the one exception it documents, within bounds.

The short version runs always, the long one by `python -m pytest -s -m soak tests/reliability/test_fuzz.py`, which
prints the table of the README. Both are deterministic; FUZZ_SEED=n draws other inputs. Whatever was found is a test
here, with the smallest input that shows it.
"""

import contextlib
import gzip
import importlib.util
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

import fuzz
import molecules
import numpy as np
import pytest
import torch
from fuzz_files import real_mmcif, real_pdb
from fuzz_targets import TARGETS, Target, make
from grammar import FAMILIES
from mutations import BINARY, TEXT, many_chains, tar_header, tar_repeat

from siamdiff_min.data.sources import find_structures
from siamdiff_min.encoders import weights
from siamdiff_min.encoders.esm import ESM2
from siamdiff_min.encoders.weights import load_esm
from siamdiff_min.files import CheckpointError, StructureError
from siamdiff_min.protein.parse import read_structure

ROOT = Path(__file__).parents[2]
FINDINGS = Path(tempfile.gettempdir()) / "findings"
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SOAK = {
    "pdb": 25_000, "mmcif": 25_000, "pdb-grammar": 15_000, "mmcif-grammar": 15_000, "pdb-molecules": 14_000,
    "mmcif-molecules": 6_000, "gz": 20_000, "lmdb": 15_000, "tar": 8_000, "ec": 6_000, "store": 5_000,
    "weights": 6_000, "esm": 2_000,
}  # fmt: skip
SECOND = ("-grammar", "-molecules")  # these need gemmi as a second reader
SILENCE = 120  # seconds without progress, after which a reader is taken to be stuck in code that no signal interrupts


def make_or_skip(reader, folder):
    if reader == "lmdb":
        pytest.importorskip("lmdb")
    if reader.endswith(SECOND):
        pytest.importorskip("gemmi")
    return make(reader, folder)


@pytest.mark.parametrize("reader", TARGETS)
def test_damaged_input_is_read_or_refused(reader, tmp_path):
    target = make_or_skip(reader, tmp_path / "work")
    counts = Counter()
    inputs = 250 if reader == "store" else 125  # checksums refuse nearly all damage to a store
    for outcome, finding in fuzz.run(target, reader, SEED, range(inputs)):
        assert finding is None, (
            f"{outcome}: {finding.detail}; {finding.file!r}, again by: PYTHONPATH=. python tests/reliability/fuzz.py "
            f"{reader} --seed {SEED} --start {finding.index} --inputs 1"
        )
        counts[outcome] += 1
    assert counts["accepted"] >= 2 and counts["refused"] >= 25, counts


@pytest.mark.soak
def test_a_hundred_thousand_inputs(tmp_path):
    """One process for each reader, so that what kills it is found too."""
    gemmi = importlib.util.find_spec("gemmi") is not None
    table = {r: soak(r, inputs, tmp_path) for r, inputs in SOAK.items() if gemmi or not r.endswith(SECOND)}
    print("\n\n| reader | inputs | accepted | refused | crashes | hangs | wrong |\n|---|---|---|---|---|---|---|")
    for reader, counts in table.items():
        print(f"| {reader} | {counts.total():,} | " + " | ".join(f"{counts[o]:,}" for o in fuzz.OUTCOMES) + " |")
    total = sum(table.values(), Counter())
    print(f"| all | {total.total():,} | " + " | ".join(f"{total[o]:,}" for o in fuzz.OUTCOMES) + " |")
    assert total.total() == sum(SOAK[reader] for reader in table) >= 100_000
    assert total["crash"] == total["hang"] == total["wrong"] == 0, f"see {FINDINGS}"


def soak(reader, inputs, folder):
    """The outcomes of all inputs of a reader; after one that ends the process, another goes on with the next."""
    counts, start, progress = Counter(), 0, folder / f"{reader}.progress"
    while start < inputs:
        command = [sys.executable, "-W", "error", ROOT / "tests" / "reliability" / "fuzz.py", reader]
        command += ["--seed", SEED, "--start", start, "--inputs", inputs - start, "--progress", progress]
        process = subprocess.Popen(
            [*map(str, command), "--findings", str(FINDINGS)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        code, out = wait(process, progress)
        counts.update(json.loads(out.splitlines()[-1]) if out else {})
        if code == 0:
            break
        index = struct.unpack("<q", progress.read_bytes())[0]
        print(f"{'hang' if code is None else 'crash'}: {reader} --seed {SEED} --start {index}, exit status {code}")
        counts["hang" if code is None else "crash"] += 1
        start = index + 1
    return counts


def wait(process, progress):
    """Exit status and output of a process; None for the status where it had to be stopped."""
    last = None
    while True:
        try:
            out, _ = process.communicate(timeout=SILENCE)
            return process.returncode, out
        except subprocess.TimeoutExpired:
            now = progress.read_bytes()
            if now == last:
                process.kill()
                return None, process.communicate()[0]
            last = now


# ---- the fuzzer itself -----------------------------------------------------------------------------------------------


def test_what_goes_wrong_is_found(monkeypatch):
    """Readers with known faults: each is told apart, and an exception for lateness cannot be swallowed."""

    def read(name, data):
        while name == "slow":
            with contextlib.suppress(Exception):
                sum(range(100))
        faults = {"crash": lambda: [][0], "refused": lambda: int("x"), "memory": lambda: bytearray(2**62)}
        return faults.get(name, str)()

    def check(name, data, value):
        assert name != "wrong"

    names = ["crash", "refused", "memory", "wrong", "slow", "accepted"]
    target = Target({name: b"x" for name in names}, ValueError, read, check)
    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    found = {}
    for outcome, finding in fuzz.run(target, "none", 0, range(40)):
        if finding:
            found[finding.file] = outcome
    assert found == {"crash": "crash", "memory": "hang", "slow": "hang", "wrong": "wrong"}


def test_a_process_that_dies_or_hangs_is_counted_and_the_next_goes_on(tmp_path, monkeypatch, capsys):
    """Stand-ins for a reader that ends its process at input 2, and one that never comes back from input 5."""
    code = """
import json, os, struct, sys, time
option = dict(zip(sys.argv[2::2], sys.argv[3::2]))
start, inputs, progress = int(option["--start"]), int(option["--inputs"]), option["--progress"]
for i in range(start, start + inputs):
    open(progress, "wb").write(struct.pack("<q", i))
    if i == 2:
        os.abort()
    if i == 5:
        time.sleep(1000)
print(json.dumps({"accepted": inputs}))
"""
    (tmp_path / "tests" / "reliability").mkdir(parents=True)
    (tmp_path / "tests" / "reliability" / "fuzz.py").write_text(code)
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "SILENCE", 1)
    assert soak("pdb", 10, tmp_path) == {"crash": 1, "hang": 1, "accepted": 4}
    assert "crash: pdb --seed 0 --start 2" in capsys.readouterr().out


def test_inputs_are_a_function_of_seed_and_number():
    target = Target({"a": real_pdb(), "b": real_mmcif(real_pdb())}, ValueError, None, None)
    drawn = [fuzz.damaged(target, "pdb", 0, i) for i in range(50)]
    assert drawn == [fuzz.damaged(target, "pdb", 0, i) for i in range(50)]
    assert len({data for _, data in drawn}) > 40
    assert drawn != [fuzz.damaged(target, "pdb", 1, i) for i in range(50)]


@pytest.mark.parametrize(
    "family",
    [*BINARY, *TEXT, *set(FAMILIES), *dict.fromkeys(molecules.OF_PDB), many_chains, tar_header, tar_repeat],
    ids=lambda f: f.__name__,
)
def test_every_family_changes_any_file(family):
    changed = 0
    for data in (real_pdb(), real_mmcif(real_pdb()), b"", b"\n", b"1", bytes(2048), gzip.compress(real_pdb())):
        for i in range(20 if family is not many_chains else 1):
            before = bytes(data)
            damaged = family(data, np.random.default_rng(i))
            assert data == before and isinstance(damaged, bytes)
            changed += damaged != data
    assert changed >= 2


# ---- what was found, each with the smallest input that shows it ------------------------------------------------------

ATOM = "ATOM      1  CA  GLY A   1       1.000   2.000   3.000  1.00  0.00           C\n"
LOOP = "data_x\nloop_\n" + "".join(
    f"_atom_site.{name}\n"
    for name in ("label_atom_id", "label_comp_id", "auth_asym_id", "auth_seq_id", "Cartn_x", "Cartn_y", "Cartn_z")
)


@pytest.mark.parametrize("old, new", [("1.000  ", "1_0.0  "), ("A   1 ", "A 1_2 ")])
def test_underscores_in_numbers_are_no_digits(old, new):
    """Python reads 1_0.0 as ten: a coordinate that was not in the file."""
    assert read_structure("x", ATOM.encode()).protein.num_atoms == 1
    with pytest.raises(StructureError, match="line 1: its residue number or"):
        read_structure("x", ATOM.replace(old, new, 1).encode())


@pytest.mark.parametrize("row", ["CA GLY A 1_1 1 2 3", "CA GLY A 1 1 2 3_0"])
def test_underscores_in_numbers_of_mmcif(row):
    assert read_structure("x", (LOOP + "CA GLY A_B 1 1 2 3\n").encode()).chain_names == ("A_B",)
    with pytest.raises(StructureError, match="a number with _"):
        read_structure("x", (LOOP + row + "\n").encode())


def long_name():
    """The headers of a member with a long name: two blocks for the name, one for the member."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as writer:
        writer.addfile(tarfile.TarInfo("x/" * 60 + "a.pdb"))
    return archive.getvalue()


def test_a_name_in_a_tar_that_claims_to_be_large(tmp_path):
    """tarfile asks for that much memory: MemoryError."""
    archive = bytearray(long_name())
    archive[124:136] = b"\x80" + (2**40).to_bytes(11, "big")
    archive[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(archive[:512])
    (tmp_path / "x.tar").write_bytes(archive)
    with pytest.raises(StructureError, match=r"x\.tar: too large \(memory ran out\)"):
        find_structures(tmp_path / "x.tar")


def test_names_of_names_in_a_tar(tmp_path):
    """tarfile calls itself for each: RecursionError."""
    archive = long_name()
    (tmp_path / "x.tar").write_bytes(archive[:1024] * 1000 + archive[1024:])
    with pytest.raises(StructureError, match=r"x\.tar: damaged archive \(RecursionError: maximum recursion depth"):
        find_structures(tmp_path / "x.tar")


@pytest.fixture
def encoder_file(tmp_path):
    weights.save_encoder_file(tmp_path / "encoder.pt", torch.nn.Linear(2, 2), "gearnet", "atom", "tiny", "paper")
    return tmp_path / "encoder.pt"


def test_weights_with_a_flipped_byte_are_refused(encoder_file):
    """torch writes checksums and does not compare them: the weights would be others."""
    weight = weights.load_encoder_file(encoder_file)["state"]["weight"].numpy().tobytes()
    data = bytearray(encoder_file.read_bytes())
    data[data.index(weight)] ^= 1
    encoder_file.write_bytes(data)
    with pytest.raises(
        CheckpointError, match=r"encoder\.pt cannot be read .*, or is damaged: the checksum of .*/data/"
    ):
        weights.load_encoder_file(encoder_file)


def test_weights_marked_as_a_folder_are_refused(encoder_file):
    """torch does not read them: the weights would be whatever is in memory."""
    data = bytearray(encoder_file.read_bytes())
    data[data.rindex(b"PK\1\2", 0, data.rindex(b"/data/0")) + 38] = 16
    encoder_file.write_bytes(data)
    with pytest.raises(CheckpointError, match="/data/0 is marked as a folder"):
        weights.load_encoder_file(encoder_file)


def test_an_empty_file_of_weights(encoder_file):
    """torch's error has no message: IndexError."""
    encoder_file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"encoder\.pt cannot be read .*, or is damaged: "):
        weights.load_encoder_file(encoder_file)


def test_a_text_of_three_gigabytes_in_a_small_file(tmp_path):
    """torch would take the memory for it before it looks whether the file is that long: MemoryError."""
    (tmp_path / "esm.pt").write_bytes(b"X\xff\xff\xff\xff")
    with pytest.raises(ValueError, match=r"cannot be read as a torch file, or is damaged: File is not a zip"):
        load_esm(ESM2(1, 4, 2), str(tmp_path / "esm.pt"))


@pytest.mark.parametrize("content", [[1], {"model": 1}, {"model": {1: torch.ones(2)}}, {"model": {"a": 1}}], ids=str)
def test_weights_of_esm_that_are_no_tensors(tmp_path, content):
    torch.save(content, tmp_path / "esm.pt")
    with pytest.raises(ValueError, match=r"esm\.pt( is not a weight file of fair-esm: |, as ESM-2 .* do not fit)"):
        load_esm(ESM2(1, 4, 2), str(tmp_path / "esm.pt"))
