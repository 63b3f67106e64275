"""Columns of atoms: odd files, numbers to the last bit, texts and keys."""

import hashlib
import random

import numpy as np
import pytest
from rows import as_mmcif, as_pdb, residue

from siamdiff_min.files import StructureError
from siamdiff_min.reading import policy
from siamdiff_min.reading.columns import decimals
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


@pytest.mark.parametrize("form", [as_pdb, as_mmcif])
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


def test_decimals_are_python_s_to_the_last_bit():
    rng = np.random.default_rng(0)
    for places in (0, 1, 3, 5):
        texts = [f"{x:#.{places}f}" for x in np.append(rng.normal(0, 300, 2000), [-0.0, 0.0])]
        texts += ["-.5" + "0" * (places - 1)] * (places > 0)
        width = max(map(len, texts))
        letters = np.array([text.rjust(width).encode() for text in texts]).view(np.uint8).reshape(-1, width)
        found, sound = decimals(letters.T, places)
        assert sound.all() and found.tobytes() == np.array(list(map(float, texts))).tobytes()
    wrong = ["  - 1.000", "1 2.00000", " 1.000.00", " 12.0e000", "--1.00000", " 1-2.0000", "+1.000000", "   1.00-0"]
    for text in wrong:
        letters = np.frombuffer(text.rjust(10).encode(), np.uint8)[:, None]
        for places in range(9):
            assert not decimals(letters, places)[1].any(), text


@pytest.mark.parametrize("number", ["1e39", "-1e39", "1e400"])
def test_a_coordinate_beyond_float32_is_a_sentence(number):
    """Without a RuntimeWarning of numpy, which is an error here."""
    with pytest.raises(StructureError, match="coordinates out of range"):
        read_structure("x", as_mmcif(residue("GLY", 1)).replace(" 1.000 ", f" {number} ", 1))
