"""Columns of atoms: odd files are read as plain loops over their rows read them, numbers as Python reads them."""

import hashlib
import random

import numpy as np
import pytest
from helpers import as_mmcif, as_pdb, residue

from siamdiff_min.files import StructureError
from siamdiff_min.reading import policy
from siamdiff_min.reading.parse import read_structure

NAMES = ("N", "CA", "C", "O", "CB")
KINDS = ["ALA", "SER", "LYS", "GLY", "MSE", "SEP", "UNK", "HOH", "DAL", "DA", "ATP", "HID"]


def odd_file(rng: random.Random) -> list[dict]:
    """A chain, then what people's files have: alternatives, ligands, two molecules, other orders."""
    rows = []
    for number in range(1, rng.randint(2, 12)):
        kind = rng.choice(KINDS[:4] if rng.random() < 0.7 else KINDS)
        rows += residue(kind, number, rng.sample(NAMES, rng.randint(1, 5)), x=1.7 * number, het=rng.random() < 0.2)
    for _ in range(rng.randint(0, 6)):
        row = rng.choice(rows)
        begin = rng.randrange(len(rows))
        part = rows[begin : begin + rng.randint(1, 9)]
        change = rng.choice(["alt", "name", "code", "chain", "twice", "order", "number", "residue", "segment"])
        if change == "alt":
            rows += [{**row, "alt": rng.choice("AB"), "occ": rng.choice([0.3, 0.5, 0.7]), "x": row["x"] + 0.1}]
        elif change == "name":
            row["name"] = rng.choice(["HA", "1HB", "X", "CG", "OXT"])
        elif change == "twice":
            shift, segment = rng.choice([0.2, 2.0, 40.0]), rng.choice(["", "S"])
            rows += [{**r, "x": r["x"] + shift, "segment": segment, "label": segment or None} for r in part]
        elif change == "order":
            rng.shuffle(part)
            rows[begin : begin + len(part)] = part
        else:
            value = {"code": "A", "chain": "B", "number": row["number"], "residue": rng.choice(KINDS), "segment": "T"}
            for r in part:
                r[change] = value[change]
    return rows


# A hash of what is read. Plain loops over the rows gave the same (tests/reading/by_rows.py of version 0.4.0), but for
# one OXT, which now is of the residue whose C it is bonded to.
READ = {as_pdb: "7b08377a57a17475", as_mmcif: "b8ca29aea55748dc"}


@pytest.mark.parametrize("form", [as_pdb, pytest.param(as_mmcif, marks=pytest.mark.full)])
def test_odd_files_are_read_as_before(form, monkeypatch):
    """Atoms, their order, chains, counts and refusals, whatever their geometry."""
    monkeypatch.setattr(policy, "check_protein", lambda *_: None)
    digest = hashlib.sha256()
    for seed in range(300):
        rng = random.Random(seed)
        rows = odd_file(rng)
        try:
            found = read_structure("x", form(rows), chain=rng.choice([None, None, None, "A"]))
        except StructureError as error:
            digest.update(str(error).encode())
            continue
        digest.update(repr([found.positions, sorted(found.dropped.items()), found.protein.atom_name.tolist()]).encode())
        digest.update(found.protein.pos.numpy().tobytes())
    assert digest.hexdigest()[:16] == READ[form]


def test_coordinates_are_those_of_python():
    numbers = np.random.default_rng(0).normal(0, 300, 99)
    texts = ["-999.999", "  -0.000", "   -.500", "9999.995", *(f"{x:8.3f}" for x in numbers)]
    for text in texts:
        found = read_structure("x", as_pdb(residue("GLY", 1, ("CA",))).replace("   1.000", text, 1)).protein.pos
        assert found[0, 0].numpy().tobytes() == np.float32(text).tobytes()


@pytest.mark.parametrize("text", [" - 1.000", "1 2.0000", "1.00.000", "2.0e+000", "--1.0000", "1-2.0000", "  1.00-0"])
def test_a_coordinate_that_is_no_number_is_a_sentence(text):
    with pytest.raises(StructureError, match=r"unreadable|out of range|no number"):
        read_structure("x", as_pdb(residue("GLY", 1)).replace("   1.000", text, 1))


@pytest.mark.parametrize("number", ["1e39", "-1e39", "1e400"])
def test_a_coordinate_beyond_float32_is_a_sentence(number):
    """Without a RuntimeWarning of numpy, which is an error here."""
    with pytest.raises(StructureError, match="coordinates out of range"):
        read_structure("x", as_mmcif(residue("GLY", 1)).replace(" 1.000 ", f" {number} ", 1))
