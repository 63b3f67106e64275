"""examples/compare.py: where two structures of one protein differ."""

import csv
import gzip
import runpy
import sys
from pathlib import Path

import numpy as np

from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.tools import color

SCRIPT = Path(__file__).parents[1] / "examples" / "compare.py"
MOVED = range(36, 43)  # residues of barnase that stand 2.5 angstrom away in the second file


def changed(text: str, shift: int, chain: str) -> str:
    """The file with errors of .05 angstrom, a loop moved, and perhaps other numbers and another chain."""
    rng = np.random.default_rng(0)
    lines = []
    for line in text.splitlines():
        if line.startswith("ATOM"):
            number = int(line[22:26])
            xyz = np.array(line[30:54].split(), dtype=float) + 0.05 * rng.normal(size=3)
            xyz[2] += 2.5 * (number in MOVED)
            line = f"{line[:21]}{chain}{number + shift:4d}{line[26:30]}{''.join(f'{x:8.3f}' for x in xyz)}{line[54:]}"
        lines.append(line)
    return "\n".join([*lines, ""])


def test_a_loop_that_has_moved_stands_out(tmp_path, monkeypatch, capsys):
    """With equal numbers, and with others that only the sequences match: the same residues, above the noise."""
    source = next(source for source in find_structures(bundle_path()).sources if source.name == "1A2P_A")
    text = gzip.decompress(source._member()).decode()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "a.pdb", "b.pdb"])
    Path("a.pdb").write_text(text)
    found = []
    for shift, chain in ((0, "A"), (1, "Z")):  # numbers that are there, but of other residues
        Path("b.pdb").write_text(changed(text, shift, chain))
        runpy.run_path(str(SCRIPT), run_name="__main__")
        assert capsys.readouterr().out.startswith("108 of 108 and 108 residues matched")
        with open("compare.csv", newline="") as file:
            found.append({int(row["number"]): float(row["value"]) for row in csv.DictReader(file)})
    assert found[0] == found[1] and len(found[0]) == 108
    largest = sorted(found[0], key=found[0].get)[-5:]
    assert all(min(abs(number - moved) for moved in MOVED) <= 1 for number in largest)
    near = [value for number, value in found[0].items() if abs(number - 39) <= 4]
    far = [value for number, value in found[0].items() if abs(number - 39) > 15]
    assert np.mean(near) > 1.5 and np.median(far) < 0.8
    assert Path("compare.png").read_bytes().startswith(b"\x89PNG")
    values = color.read_values(Path("compare.csv"), "a")
    assert len(color.color("a.pdb", text, values)[1]) == 108
