"""Columns against rows: what the reader makes of a file is what a plain loop over its atoms makes."""

import random

import numpy as np
import pytest
import torch
from by_rows import Row, residues_of
from given import Given
from rows import as_mmcif, as_pdb, residue

from siamdiff_min.files import StructureError
from siamdiff_min.protein.constants import CA
from siamdiff_min.reading import policy, structure
from siamdiff_min.reading.columns import Column, decimals, one_key
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.pool import read_source
from siamdiff_min.reading.sources import find_structures

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


def as_row(r: dict, form) -> Row:
    x = round(r["x"], 3)
    marks = (r["segment"], 0) if form is as_pdb else (r["label"] or f"L{ord(r['chain']) % 7}",)
    xyz = x, float(f"{r['x'] + 1:.3f}"), -x
    of_residue = r["chain"], r["number"], r["code"], r["residue"]
    return Row(*of_residue, r["name"], r["alt"], r["occ"], xyz, r["element"], r["het"], marks)


@pytest.mark.parametrize("files", [150, pytest.param(600, marks=pytest.mark.full)])
@pytest.mark.parametrize("form", [as_pdb, as_mmcif])
def test_columns_give_what_rows_give(form, files, monkeypatch):
    """Atoms, their order, chains, counts in their order, and refusals of odd files, whatever their geometry."""
    monkeypatch.setattr(policy, "check_protein", lambda *_: None)
    read, refused = 0, 0
    for seed in range(files):
        rng = random.Random(seed)
        rows = odd_file(rng)
        chain = rng.choice([None, None, None, "A"])
        try:
            chains, counts = residues_of([as_row(row, form) for row in rows], chain)
        except StructureError as error:
            refused += 1
            with pytest.raises(StructureError) as caught:
                read_structure("x", form(rows), chain=chain)
            assert str(caught.value) == str(error)
            continue
        if not chains:
            with pytest.raises(StructureError, match=r"no protein in it|no such chain"):
                read_structure("x", form(rows), chain=chain)
            continue
        read += 1
        found = read_structure("x", form(rows), chain=chain)
        residues = [atoms for of_chain in chains.values() for atoms in of_chain]
        assert found.chain_names == tuple(chains)
        assert found.dropped == counts
        expected = [(chain, atoms[CA].number, atoms[CA].code) for chain, of in chains.items() for atoms in of]
        assert found.positions == expected
        assert found.protein.atom_name.tolist() == [atom for atoms in residues for atom in atoms]
        xyz = [row.xyz for atoms in residues for row in atoms.values()]
        assert torch.equal(found.protein.pos, torch.tensor(xyz, dtype=torch.float64).float())
    assert read > files / 2 and refused > files / 30


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


def test_columns_of_texts_and_keys():
    texts = ["A", "A", "B ", "A", "", "caf\xe9"]
    letters = np.array([text.ljust(4, "\0").encode("latin-1") for text in texts], "S4").view(np.uint8).reshape(-1, 4)
    for column in (Column.of(texts), Column.of_letters(letters)):
        assert column.texts() == texts and sorted(column.values) == sorted(set(texts))
    assert Column.of(texts).or_else(np.arange(6) > 3, Column.constant("B ", 6)).texts() == [*texts[:4], "B ", "B "]
    far = np.array([-(2**61), 2**61, -(2**61), 5, 5, 2**61])
    other = np.array([0, 2**61, 0, 7, 8, 2**61])
    assert one_key(far, other).tolist() == [0, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("number", ["1e39", "-1e39", "1e400"])
def test_a_coordinate_beyond_float32_is_a_sentence(number):
    """Without a RuntimeWarning of numpy, which is an error here."""
    with pytest.raises(StructureError, match="coordinates out of range"):
        read_structure("x", as_mmcif(residue("GLY", 1)).replace(" 1.000 ", f" {number} ", 1))


def test_a_structure_of_a_file_is_checked_once(tmp_path, monkeypatch):
    """That of a source of one's own when it is handed over."""
    seen = []
    for module in (policy, structure):
        monkeypatch.setattr(module, "check_protein", lambda path, *_: seen.append(path))
    (tmp_path / "a.pdb").write_text(as_pdb(residue("GLY", 1)))
    read = read_source(find_structures(tmp_path).sources[0])
    assert len(seen) == 1
    assert read_source(Given("own", read)) is read and seen[1:] == ["given"]
