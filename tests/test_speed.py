"""`python -m benchmarks.speed` and `.gpu`: their commands run, on small inputs, and print their figures."""

import pytest
import torch
from conftest import real_protein

from benchmarks import gpu, speed, step
from benchmarks.pdb import write_pdb
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.store import open_store


@pytest.fixture
def two_structures(tmp_path, monkeypatch):
    """Two structures in place of the bundle, and a batch of 40 residues."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("1LCD_A", "2BEG"):
        write_pdb(data / f"{name}.pdb", real_protein(name))
    small = Protein.pack([real_protein(dtype=torch.float32).crop(0, 20)] * 2)
    monkeypatch.setattr(step, "load_batch", lambda level: small)
    monkeypatch.setattr(speed, "bundle_path", lambda: data)
    monkeypatch.setattr(speed, "open_store", lambda path=data, *more: open_store(path, *more))


COMMANDS = {
    "graph --level residue --sizes 100": "| residue | 2 | 100 |",
    "step --level residue --size tiny --against plain": "x as fast as plain",
    "reading --every 1": "| 2 .cif.gz | 1,299 |",
    "store --proteins 5 --crops 20": "6 proteins, in the page cache: ",
    "embedding --level residue --size tiny": "structures/s",
}


@pytest.mark.repeats
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_comes_to_its_end(command, two_structures, capsys):
    words = command.split()
    speed.main([words[0], "--repeats", "1", *words[1:]])
    assert COMMANDS[command] in capsys.readouterr().out


@pytest.mark.full
def test_every_section_of_the_gpus_report_comes_to_its_end(two_structures, monkeypatch, capsys):
    result = {"weights": {"w": 1.0}, "proteins_per_second": 2.0, "peak_memory_mb": 3.0}
    monkeypatch.setattr(gpu, "train", lambda *_, **__: result)
    gpu.main("cpu")
    out = capsys.readouterr().out
    assert "Error" not in out and "- residue: " in out and "the same to the last bit" in out
    rows = [line.split("|")[1:-1] for line in out.splitlines() if line.startswith("| residue |")]
    assert len(rows) == 3 and all(float(row[4]) > 0 and len(row) == 7 for row in rows)
    with gpu.section("One"):
        raise ValueError("a reason")
    assert "**ValueError**: a reason" in capsys.readouterr().out
