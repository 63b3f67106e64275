"""The EC set: folders and zips, tables, names of files, what is left out and why; hostile and damaged zips."""

import gzip
import io
import zipfile
from dataclasses import replace

import pytest
import torch
from conftest import real_protein
from helpers import reasons

from benchmarks.pdb import write_pdb
from siamdiff_min.files import StructureError
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets.ec import chain_id, ec_set

CLASSES = ("1.1.1.-", "2.7.11.1", "3.4.21.n1", "4.2.1.1")
CHAINS = {  # of the annotation
    "1ABC-A": ["1.1.1.-"],
    "1ABC-a": ["2.7.11.1"],
    "2DEF-B": ["1.1.1.-", "4.2.1.1"],
    "3GHI-AAA": [],
    "4JKL-A": ["3.4.21.n1"],
    "5MNO-7": ["2.7.11.1"],
    "6PQR-A": ["4.2.1.1"],
}
ANNOTATION = [
    "### EC-numbers",
    "\t".join(CLASSES),
    "### PDB-chain\tEC-numbers",
    *(f"{name}\t{','.join(numbers)}" for name, numbers in CHAINS.items()),
]
IDENTITY = ["PDB-chain,<30%,<40%,<50%,<70%,<95%", "4JKL-A,0,0,1,1,1", "5MNO-7,1,1,1,1,1", "6PQR-A,0,0,0,0,0"]
FILES = {
    "train": ["1ABC-A.pdb", "1abc_a.pdb"],
    "valid": ["2DEF_B_0001.pdb.gz", "3GHI-AAA.pdb"],
    "test": ["4JKL-A.pdb", "5MNO-7.ent", "6PQR-A.pdb"],
}


def pdb(size=5):
    text = io.StringIO()
    protein = real_protein("1LCD_A", torch.float32)
    write_pdb(text, replace(protein, chain=torch.zeros_like(protein.chain)).crop(0, size))
    return text.getvalue().encode()


TEXT = pdb()


def content(name):
    return gzip.compress(TEXT) if name.endswith(".gz") else TEXT


def pack(path, members, compression=zipfile.ZIP_DEFLATED):
    """A zip of (name or ZipInfo, bytes)."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def layout(root, files=FILES, zipped=(), annotation=ANNOTATION, identity=IDENTITY, year="2020"):
    """The official layout, with its file names of either time."""
    root.mkdir(exist_ok=True)
    year = "_2020.04" if year else ""
    (root / f"nrPDB-EC{year}_annot.tsv").write_text("\r\n".join(annotation) + "\r\n")
    (root / f"nrPDB-EC{year}_test.csv").write_text("\n".join(identity) + "\n")
    for split, names in files.items():
        if split in zipped:
            pack(root / f"{split}.zip", [(f"{split}/{name}", content(name)) for name in names])
        else:
            for name in names:
                path = root / split / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content(name))
    return root


UNKNOWN = "no labels, or not in this split (--cutoff)"


def names(origin):
    return [source.name for source in origin.listing().sources]


def all_names(data):
    return [names(origin) for origin in (data.train, data.valid, data.test)]


@pytest.mark.parametrize("zipped, year", [((), "2020"), (("train", "valid", "test"), ""), (("test",), "2020")])
def test_splits_and_labels(tmp_path, zipped, year):
    data = ec_set(layout(tmp_path / "EnzymeCommission", zipped=zipped, year=year).parent)
    assert data.classes == CLASSES and "4 classes, 7 chains with labels" in data.about
    assert all_names(data) == [["1ABC-A", "1ABC-a"], ["2DEF-B", "3GHI-AAA"], ["4JKL-A", "5MNO-7"]]
    assert reasons(data.test.listing()) == {UNKNOWN: 1}
    for origin in (data.train, data.valid, data.test):
        for source in origin.listing().sources:
            structure = source.read()
            assert structure.protein.num_residues == 5 and structure.labels["values"][0] == CHAINS[source.name]


@pytest.mark.parametrize("cutoff, expected", [(95, 2), (70, 2), (50, 2), (40, 1), (30, 1)])
def test_the_cutoff_selects_the_test_split(tmp_path, cutoff, expected):
    data = ec_set(layout(tmp_path / "s"), cutoff)
    assert len(names(data.test)) == expected and len(names(data.train)) == 2
    assert reasons(data.test.listing()) == {UNKNOWN: 3 - expected}


def test_what_is_not_used_has_its_reason(tmp_path):
    files = {
        "train": ["1ABC-A.pdb", "1ABC_A_2.pdb", "readme.txt", "9XYZ-A.pdb", "AF-P1-F1.pdb", "1abc.pdb"],
        "valid": ["2DEF-B.pdb", "1ABC-A.pdb", "noname.pdb"],
        "test": ["1ABC-a.pdb", "4JKL-A.pdb"],
    }
    for zipped in ((), tuple(files)):
        data = ec_set(layout(tmp_path / f"s{len(zipped)}", files, zipped))
        listing = data.train.listing()
        assert names(data.train) == ["1ABC-A"] and len(listing.skipped) == 5
        assert reasons(listing) == {
            "another file of the same chain": 1, UNKNOWN: 1, "not a structure file": 1,
            "no PDB id and chain in the name": 2,
        }  # fmt: skip
        assert all(file.startswith(str(data.train.path)) for file, _ in listing.skipped)
        assert reasons(data.test.listing()) == {UNKNOWN: 1}


@pytest.mark.parametrize("zipped", [(), ("train", "valid", "test")])
def test_the_folder_of_a_file_is_no_part_of_its_name(tmp_path, zipped):
    """A folder for each entry or each chain, as downloads have them; the file alone says which chain it is."""
    files = {
        "train": ["1abc/1ABC-A.pdb", "2DEF-B/1abc_a.pdb"],
        "valid": ["9XYZ-Z/2DEF-B.pdb"],
        "test": ["x/y/4JKL-A.pdb"],
    }
    data = ec_set(layout(tmp_path / "s", files, zipped))
    assert all_names(data) == [["1ABC-A", "1ABC-a"], ["2DEF-B"], ["4JKL-A"]]
    files["train"] = ["old/1ABC-A.pdb", "5MNO-7/1ABC-A.pdb", "1abc_a.pdb"]  # told apart by their folders
    data = ec_set(layout(tmp_path / "twice", files, zipped))
    assert names(data.train) == ["1ABC-A", "1ABC-a"]
    assert reasons(data.train.listing()) == {"another file of the same chain": 1}


def test_a_chain_in_two_splits_is_said(tmp_path):
    """It would be trained on and tested."""
    assert "more than one split" not in ec_set(layout(tmp_path / "one")).about
    files = {"train": ["1ABC-A.pdb"], "valid": ["2DEF-B.pdb", "1ABC-A.pdb"], "test": ["4JKL-A.pdb"]}
    assert ec_set(layout(tmp_path / "two", files)).about.endswith("; 1 in more than one split, e.g. 1ABC-A")


def test_there_is_another_store_if_anything_changes_that_it_depends_on(tmp_path):
    root = layout(tmp_path / "s", zipped=("valid",))

    def stores(**options):
        data = ec_set(root, **options)
        return [open_store(origin, workers=1).path for origin in (data.train, data.valid, data.test)]

    def differs(other):
        return [a != b for a, b in zip(first, other)]

    first = stores()
    assert [path.parent for path in first] == [root / f"{name}.store" for name in ("train", "valid.zip", "test")]
    assert not any(differs(stores()))
    assert differs(stores(cutoff=30)) == [False, False, True]
    (root / "train" / "new.pdb").write_bytes(TEXT)
    assert differs(stores()) == [True, False, False]
    pack(root / "valid.zip", [("2DEF-B.pdb", TEXT + b"END\n")])
    assert differs(stores()) == [True, True, False]
    (root / "nrPDB-EC_2020.04_annot.tsv").write_text("\n".join([*ANNOTATION, "7STU-A\t1.1.1.-"]))
    assert differs(stores()) == [True, True, False]  # no chain of the test split


@pytest.mark.parametrize(
    "text, expected",
    [
        *((text, "2FOR-A") for text in ("2FOR-A", "2for_A", "2FOR.A", "2FOR-A_0001", "2for_A_v2")),
        *((text, None) for text in ("2FOR", "2FOR-", "AF-P12345-F1-model_v4", "", "._2FOR-A")),
        ("6KMX-aD", "6KMX-aD"),
        ("7z9t_AAA", "7Z9T-AAA"),
    ],
)
def test_ids_in_file_names(text, expected):
    assert chain_id(text) == expected


@pytest.mark.parametrize("missing", ["train", "valid", "test", "annot.tsv", "test.csv"])
def test_what_is_missing_is_named(tmp_path, missing):
    root = layout(tmp_path / "s", zipped=("train", "valid", "test"))
    (root / (f"nrPDB-EC_2020.04_{missing}" if "." in missing else f"{missing}.zip")).unlink()
    with pytest.raises(StructureError, match="expected") as caught:
        ec_set(root)
    assert caught.value.path == str(root)
    assert missing in caught.value.detail


MALFORMED = {  # of either table
    "annot.tsv": [
        [],
        ANNOTATION[1:],
        [*ANNOTATION, "1ABC-A\t1.1.1.-"],  # a second line
        [*ANNOTATION, "7STU-A\t9.9.9.9"],  # a label that is not in the header
        [*ANNOTATION, "nonsense"],
        [*ANNOTATION, "7STU-A\t1.1.1.-\t1.1.1.-"],
    ],
    "test.csv": [["PDB-chain,near,far"], [*IDENTITY, "7STU-A,0,0,1,1"], [*IDENTITY, "7STU-A,0,0,1,1,2"]],
}


@pytest.mark.parametrize("table, lines", [(name, lines) for name, cases in MALFORMED.items() for lines in cases])
def test_malformed_tables(tmp_path, table, lines):
    root = layout(tmp_path / "s", **{"annotation" if table == "annot.tsv" else "identity": lines})
    with pytest.raises(StructureError, match="malformed table") as caught:
        ec_set(root)
    assert caught.value.path.endswith(table)


def test_empty_cells_at_the_end_of_rows_are_no_labels(tmp_path):
    """As Excel leaves them."""
    expected, found = (
        ec_set(layout(tmp_path / end, annotation=[line + "\t" * (end == "b") for line in ANNOTATION])) for end in "ab"
    )
    assert found.classes == expected.classes and "" not in found.classes


def test_a_cutoff_that_the_table_does_not_have(tmp_path):
    with pytest.raises(StructureError, match=r"no such cutoff .60, there are \[30, 40, 50, 70, 95\]"):
        ec_set(layout(tmp_path / "s"), cutoff=60)
