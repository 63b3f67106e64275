"""BinaryCIF: the same as mmCIF of the same entry, by every encoding of the specification."""

import gzip
import hashlib
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import as_mmcif, as_pdb, assert_equal, atom, residue

from siamdiff_min.files import StructureError
from siamdiff_min.reading import policy
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import find_structures
from siamdiff_min.tools.formats.bcif import _decoded

msgpack = pytest.importorskip("msgpack")
HERE = Path(__file__).parent
TYPES = {"i1": 1, "i2": 2, "i4": 3, "u1": 4, "u2": 5, "u4": 6, "f4": 32, "f8": 33}


def packed(values, kind):
    """The bytes of some numbers, and how they are encoded."""
    return np.asarray(values, f"<{kind}").tobytes(), [{"kind": "ByteArray", "type": TYPES[kind]}]


def column(name: str, texts: list[str]) -> dict:
    """A column of mmCIF as BinaryCIF, numbers as numbers."""
    mask = [{".": 1, "?": 2}.get(text, 0) for text in texts]
    texts = ["" if hidden else text for text, hidden in zip(texts, mask)]
    if name.startswith("Cartn") or name in ("occupancy", "B_iso_or_equiv", "metric_value"):
        data, encoding = packed([float(text or 0) for text in texts], "f8")
    elif name.endswith(("_seq_id", "model_num", "Model_Num")):
        data, encoding = packed([int(text or 0) for text in texts], "i4")
    else:
        different = sorted({*texts} - {""})
        data, of_data = packed([different.index(text) if text else -1 for text in texts], "i4")
        offsets, of_offsets = packed(np.cumsum([0, *map(len, different)]), "i4")
        strings = {"kind": "StringArray", "stringData": "".join(different), "offsets": offsets}
        encoding = [{**strings, "offsetEncoding": of_offsets, "dataEncoding": of_data}]
    hidden = dict(zip(("data", "encoding"), packed(mask, "u1")))
    return {"name": name, "data": {"data": data, "encoding": encoding}, "mask": hidden if any(mask) else None}


def as_bcif(text: str) -> bytes:
    """The atoms of `rows.as_mmcif` as BinaryCIF."""
    lines = text.splitlines()
    names = [line.removeprefix("_atom_site.") for line in lines if line.startswith("_atom_site.")]
    table = [line.split() for line in lines if line.startswith(("ATOM", "HETATM"))]
    columns = [column(name, list(values)) for name, values in zip(names, zip(*table))]
    category = {"name": "_atom_site", "rowCount": len(table), "columns": columns}
    empty = {"header": "NOTHING", "categories": []}
    blocks = [empty, {"header": "X", "categories": [category]}]
    return msgpack.packb({"encoder": "test", "version": "0.3.0", "dataBlocks": blocks})


ROWS = residue("GLY", -5, chain="B") + residue("SER", 2, chain="B", x=-3.7, code="A") + residue("MSE", 3, het=True)
ROWS += [atom("CB", "SER", 2, chain="B", code="A", alt=alt, occ=occ, x=occ) for alt, occ in (("A", 0.4), ("B", 0.6))]
ROWS += residue("LYS", 3000, x=200.0) + residue("HOH", 9, ("O",), het=True) + [atom("C5'", "ATP", 1, het=True, alt="A")]
ROWS += [{**row, "x": row["x"] + 50, "model": 2} for row in ROWS]


def test_it_is_what_mmcif_gives():
    """Models, altlocs, insertion codes, author's chains and numbers, ligands."""
    text = as_mmcif(ROWS, models=True).replace('"', "")
    for model in (0, 1):
        ours, expected = (read_structure("x", data, model) for data in (as_bcif(text), text))
        assert_equal(ours.protein, expected.protein)
        assert (ours.chain_names, ours.dropped) == (expected.chain_names, expected.dropped)
    assert ours.chain_names == ("B", "A") and ours.dropped["other models"] == 1
    content = msgpack.unpackb(as_bcif(text))
    content["dataBlocks"] *= 2
    twice = read_structure("x", msgpack.packb(content), 1)
    assert twice.dropped == ours.dropped + Counter({"other data blocks with atoms": 1})


def test_an_entry_of_the_pdb(tmp_path):
    """3JQH of the PDB (CC0) as RCSB writes it, as in the test files of Biopython 1.88. Found by its ending, too."""
    ours, expected = (read_structure(HERE / f"3JQH.{form}.gz") for form in ("bcif", "cif"))
    assert_equal(ours.protein, expected.protein)
    assert (ours.chain_names, ours.dropped, ours.plddt) == (expected.chain_names, expected.dropped, None)
    (tmp_path / "3JQH.bcif").write_bytes(gzip.decompress((HERE / "3JQH.bcif.gz").read_bytes()))
    (tmp_path / "other.bcif.gz").write_bytes((HERE / "3JQH.bcif.gz").read_bytes())
    for source in find_structures(tmp_path).sources:
        assert_equal(source.read().protein, ours.protein)
    assert [source.name for source in find_structures(tmp_path).sources] == ["3JQH", "other"]


@pytest.mark.parametrize(
    ("values", "kind", "encoding", "expected"),
    [
        ([255, 4, 0, 255, 0], "u1", {"kind": "IntegerPacking", "isUnsigned": True, "srcSize": 3}, [259, 0, 255]),
        ([127, 1, -128, -1, -5], "i1", {"kind": "IntegerPacking", "isUnsigned": False, "srcSize": 3}, [128, -129, -5]),
        ([7, 2, -1, 3], "i4", {"kind": "RunLength", "srcSize": 5}, [7, 7, -1, -1, -1]),
        ([0, 1, 4], "u1", {"kind": "IntervalQuantization", "min": -1, "max": 3, "numSteps": 5}, [-1, 0, 3]),
        ([3, 1, 1], "i4", {"kind": "Delta", "origin": 10}, [13, 14, 15]),
        ([1250, -5], "i2", {"kind": "FixedPoint", "factor": 10}, [125, -0.5]),
    ],
)
def test_every_encoding_undoes_what_the_specification_says(values, kind, encoding, expected):
    data, raw = packed(values, kind)
    assert _decoded(data, [{"srcType": 32, **encoding}, *raw]).tolist() == expected


def test_confidence_of_residues():
    content = msgpack.unpackb(as_bcif(as_mmcif(residue("GLY", 1) + residue("ALA", 2))))
    categories = content["dataBlocks"][1]["categories"]
    for of_atoms in categories[0]["columns"]:
        if of_atoms["name"] == "label_seq_id":
            of_atoms |= column("label_seq_id", ["1"] * 4 + ["5"] * 4)
    texts = {"metric_id": "11", "model_id": "11", "label_asym_id": ["L2"] * 2, "label_seq_id": "15"}
    texts["metric_value"] = ["40.5", "60.5"]
    columns = [column(name, list(values)) for name, values in texts.items()]
    categories.append({"name": "_ma_qa_metric_local", "rowCount": 2, "columns": columns})
    assert read_structure("x", msgpack.packb(content)).plddt == pytest.approx(50.5)


def test_what_is_damaged_is_a_sentence():
    whole = as_bcif(as_mmcif(ROWS))
    for end in range(100, len(whole), 2000):
        with pytest.raises(StructureError, match="unreadable"):
            read_structure("x", whole[:end])
    content = msgpack.unpackb(whole)
    with pytest.raises(StructureError, match="no atoms in it"):
        read_structure("x", msgpack.packb({**content, "dataBlocks": []}))
    content["dataBlocks"][1]["categories"][0]["columns"][0] = column("group_PDB", ["ATOM"] * 3)
    with pytest.raises(StructureError, match="damaged table"):
        read_structure("x", msgpack.packb(content))


# ---- columns of atoms ------------------------------------------------------------------------------------------------


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
