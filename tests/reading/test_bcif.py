"""BinaryCIF: the same as mmCIF of the same entry, by every encoding of the specification."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import as_mmcif, assert_equal, atom, residue

from siamdiff_min.files import MachineError, StructureError
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import find_structures

msgpack = pytest.importorskip("msgpack")
HERE = Path(__file__).parent
TYPES = {"i1": 1, "i2": 2, "i4": 3, "u1": 4, "u2": 5, "u4": 6, "f4": 32, "f8": 33}
FIXED = {"kind": "FixedPoint", "factor": 100, "srcType": 32}
INTERVAL = {"kind": "IntervalQuantization", "min": -1, "max": 3, "numSteps": 5, "srcType": 32}
PACKED = {"kind": "IntegerPacking", "byteCount": 1, "srcSize": 4}


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
    with pytest.raises(StructureError, match="several data blocks with atoms"):
        read_structure("x", msgpack.packb(content))


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
    ("values", "kind", "encodings", "expected"),
    [
        ([1.25, -0.5, 0, 2], "f4", [], [1.25, -0.5, 0, 2]),
        ([125, -5, 0, 9], "i2", [FIXED], [1.25, -0.05, 0, 0.09]),
        ([0, 1, 4, 4], "u1", [INTERVAL], [-1, 0, 3, 3]),
        ([7, 2, -1, 2], "i4", [{"kind": "RunLength", "srcType": 3, "srcSize": 4}], [7, 7, -1, -1]),
        ([3, -1, -1, 0], "i1", [{"kind": "Delta", "srcType": 3, "origin": 1}], [4, 3, 2, 2]),
        ([255, 4, 0, 255, 0, 9], "u1", [FIXED, {**PACKED, "isUnsigned": True}], [2.59, 0, 2.55, 0.09]),
        ([127, 1, -128, -1, -5, 3], "i1", [FIXED, {**PACKED, "isUnsigned": False}], [1.28, -1.29, -0.05, 0.03]),
    ],
)
def test_every_encoding_undoes_what_the_specification_says(values, kind, encodings, expected):
    content = msgpack.unpackb(as_bcif(as_mmcif(residue("GLY", 1))))
    (x,) = (c for c in content["dataBlocks"][1]["categories"][0]["columns"] if c["name"] == "Cartn_x")
    data, raw = packed(values, kind)
    x["data"] = {"data": data, "encoding": [*encodings, *raw]}
    protein = read_structure("x", msgpack.packb(content)).protein
    assert protein.pos[:, 0].tolist() == np.float32(expected).tolist()
    x["data"]["encoding"] = [{"kind": "Zip"}, *raw]
    with pytest.raises(StructureError, match=r"unreadable \(KeyError: 'Zip'"):
        read_structure("x", msgpack.packb(content))


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


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(MachineError, match=r"3JQH\.bcif\.gz needs the package msgpack: pip install msgpack"):
        read_structure(HERE / "3JQH.bcif.gz")


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
