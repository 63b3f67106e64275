"""`siamdiff color`: numbers of residues stand in the B factors of all their atoms, and nothing else is changed."""

import gzip
import io
import warnings
from pathlib import Path

import pytest
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from Bio.PDB.MMCIFParser import MMCIFParser
from Bio.PDB.PDBParser import PDBParser
from helpers import as_mmcif, as_pdb, residue

from siamdiff_min.cli import run
from siamdiff_min.files import SiamDiffError
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import bundle_path, find_structures
from siamdiff_min.tools import color

ROWS = [
    *residue("ALA", 52, names=("N", "CA", "C", "O", "CB")),
    *residue("GLY", 52, code="A"),
    *residue("TRP", 53),
    *residue("SER", 52, chain="B"),
    *residue("HOH", 201, names=("O",), chain="B", het=True),
]
TABLE = "name,chain,number,code,value\nx,A,52,,1.5\nx,A,52,A,-0.25\nx,B,52,,3\ny,A,53,,9\n"
NUMBERS = {("A", 52, " "): 1.5, ("A", 52, "A"): -0.25, ("B", 52, " "): 3.0}


def b_factors(text: str) -> dict[tuple[str, int, str], set[float]]:
    """By Biopython: the B factors of all atoms of every residue in the first model."""
    parser = MMCIFParser(QUIET=True) if text.startswith("data_") else PDBParser(QUIET=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = next(parser.get_structure("x", io.StringIO(text)).get_models())
    found = {}
    for atom in model.get_atoms():
        _, number, code = atom.parent.id
        found.setdefault((atom.parent.parent.id, number, code), set()).add(atom.bfactor)
    return found


def colored(tmp_path, text: str, table: str = TABLE, *options) -> str:
    """What `siamdiff color` makes of a file and a table."""
    ending = "cif" if text.startswith("data_") else "pdb"
    structure = tmp_path / f"x.{ending}"
    structure.write_text(text)
    (tmp_path / "table.csv").write_text(table)
    out = tmp_path / f"copy.{ending}"
    assert run("color", [str(structure), str(tmp_path / "table.csv"), "--out", str(out), *options]) == 0
    assert structure.read_text() == text
    return out.read_text()


@pytest.mark.parametrize("write", [as_pdb, as_mmcif])
def test_all_atoms_of_a_residue_get_its_number(write, tmp_path, capsys):
    """Insertion codes and chains are told apart; residues without a number have one below all others."""
    found = b_factors(colored(tmp_path, write(ROWS)))
    assert {key: values for key, values in found.items() if key in NUMBERS} == {k: {x} for k, x in NUMBERS.items()}
    assert {*found} == {*NUMBERS, ("A", 53, " "), ("B", 201, " ")} and found["A", 53, " "] == {-3.5}
    ending = "pdb" if write is as_pdb else "cif"
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith(f"copy.{ending}: value of 3 of 3 residues of the table, -0.25 to 3")
    scripts = {kind: (tmp_path / f"copy.{kind}").read_text() for kind in ("pml", "cxc")}
    assert all(str(tmp_path / f"copy.{kind}") in said[1] for kind in scripts)
    assert "minimum=-0.25, maximum=3\ncolor grey70, coloured and b < -1.875\nramp_new legend" in scripts["pml"]
    assert f'open "copy.{ending}"\ncolor byattribute bfactor palette blue:white:red range -0.25,3' in scripts["cxc"]
    assert "color @@bfactor<-1.875 grey target acs\nkey blue:-0.25 white:1.375 red:3\n" in scripts["cxc"]


def test_nothing_but_b_factors_of_a_pdb_file_is_changed(tmp_path):
    """Every model is coloured, and a short line gets the column that it lacks."""
    text = as_pdb([row | {"model": model} for model in (1, 2) for row in ROWS], models=True)
    copy = colored(tmp_path, text)
    assert len(copy.splitlines()) == len(text.splitlines())
    for before, after in zip(text.splitlines(), copy.splitlines()):
        if before.startswith(("ATOM", "HETATM")):
            assert before[:60] + before[66:] == after[:60] + after[66:] and float(after[60:66]) != 0
        else:
            assert before == after
    short = [line[:56].rstrip() if line.startswith("ATOM") else line for line in text.splitlines()]
    assert b_factors(colored(tmp_path, "\n".join([*short, ""]))) == b_factors(copy)


def test_nothing_but_b_factors_of_an_mmcif_file_is_changed(tmp_path):
    """Every model is coloured; values in quotes and of several lines stay. A file without the column is refused."""
    more = "_citation.title 'of two words'\n_entity.details\n;one\ntwo\n;\n"
    text = as_mmcif([row | {"model": model} for model in (1, 2) for row in ROWS], models=True) + more
    text = text.replace(" N . ALA", " 'N x' . ALA")
    before, after = (MMCIF2Dict(io.StringIO(content)) for content in (text, colored(tmp_path, text)))
    column = "_atom_site.B_iso_or_equiv"
    assert {*map(float, after[column])} == {1.5, -0.25, 3, -3.5}
    assert before | {column: 0} == after | {column: 0}
    with pytest.raises(SiamDiffError, match=r"no column _atom_site\.B_iso_or_equiv with a value for each of its"):
        colored(tmp_path, text.replace("B_iso_or_equiv", "of_another_name"))


def test_real_files_with_insertion_codes(tmp_path):
    """Each residue of a bundled structure gets its place in the file, which Biopython reads again."""
    source = next(source for source in find_structures(bundle_path()).sources if source.name == "4NHC_H")
    text = gzip.decompress(source.member_bytes()).decode("latin-1")
    positions = read_structure("x", text).positions
    rows = [f"x:{chain}:{number}{code.strip()}" for chain, number, code in positions]
    assert any(row[-1].isalpha() for row in rows)
    lines = [f"{row}\t{i}\n" for i, row in enumerate(rows)]
    table = "id\tprediction\n" + "".join(lines)
    found = b_factors(colored(tmp_path, text, table))
    assert [found[position] for position in positions] == [{float(i)} for i in range(len(rows))]


def test_mutations_count_by_their_mean(tmp_path):
    """As in mutants.tsv: chain A is not named, and the type of a residue is checked."""
    table = "mutation\tpredicted\tlow\nA52G\t1\t0\nA52V\t2\t0\nG52AS\t-1\t0\nB:S52A\t4\t7\n"
    found = b_factors(colored(tmp_path, as_pdb(ROWS), table))
    assert found["A", 52, " "] == {1.5}
    assert found["A", 52, "A"] == {-1}
    assert found["B", 52, " "] == {4}
    assert b_factors(colored(tmp_path, as_pdb(ROWS), table, "--column", "low"))["B", 52, " "] == {7}
    with pytest.raises(SiamDiffError, match="A:52 is A, but W in the table"):
        colored(tmp_path, as_pdb(ROWS), "mutation\tpredicted\nW52G\t1\n")
    only_b = b_factors(colored(tmp_path, as_pdb(ROWS), "mutation\tpredicted\nS52G\t1\n", "--chain", "B"))
    assert only_b["B", 52, " "] == {1} and only_b["A", 52, " "] == {0}


def test_numbers_that_six_columns_cannot_hold(tmp_path):
    """Small ones get the digits that fit; an mmCIF file holds all."""
    table = "chain,number,value\nA,52,0.01234567\nB,52,0.5\n"
    assert b_factors(colored(tmp_path, as_pdb(ROWS), table))["A", 52, " "] == {0.012}
    assert b_factors(colored(tmp_path, as_mmcif(ROWS), table))["A", 52, " "] == {0.01234567}
    for low, high in ((1e-5, 2e-5), (0, 1e7)):
        table = f"chain,number,value\nA,52,{low}\nB,52,{high}\n"
        with pytest.raises(SiamDiffError, match="six columns cannot hold"):
            colored(tmp_path, as_pdb(ROWS), table)
        assert b_factors(colored(tmp_path, as_mmcif(ROWS), table))["B", 52, " "] == {float(high)}


def test_files_and_tables_that_do_not_fit(tmp_path):
    wrong = {
        "chain,number,value\nC,52,1\n": "none of the residues of the table; its first one is A:52",
        "chain,number,score\nA,52,1\n": "no column value; there are chain, number, score: see --column",
        "name,chain,number,value\n1abc.pdb,A,52,1\n": "no number of x in it, but of 1abc",
        "chain,value\nA,1\n": "no residue in it",
        "mutation,predicted\n52,1\n": "is no mutation like A52G",
        "chain,number,residue,value\nA,52,GLY,1\n": "A:52 is A, but G in the table",
    }
    for table, words in wrong.items():
        with pytest.raises(SiamDiffError, match=words):
            colored(tmp_path, as_pdb(ROWS), table)
    (tmp_path / "table.csv").write_text(TABLE)
    (tmp_path / "x.pdb").write_text(as_pdb(ROWS))
    with pytest.raises(SiamDiffError, match="is the structure itself"):
        run("color", [f"{tmp_path}/x.pdb", f"{tmp_path}/table.csv", "--out", f"{tmp_path}/x.pdb"])


TWICE = [*residue("ALA", 52, label="X"), *residue("TRP", 52, x=92.0, label="Y")]
BLANK = as_pdb([*residue("ALA", 1, chain=" "), *residue("GLY", 2, chain=" ")])


@pytest.mark.parametrize(
    ("text", "between", "places", "table"),
    [
        (as_pdb(TWICE), "TER\n", [("A", 52), ("A_2", 52)], "chain,number,value\nA,52,1\nA_2,52,5\n"),
        (as_pdb(TWICE), "END\n", [("A", 52), ("A_2", 52)], "id,prediction\nx:A:52,1\nx:A_2:52,5\n"),
        (as_mmcif(TWICE), "", [("A_X", 52), ("A_Y", 52)], "chain,number,value\nA_X,52,1\nA_Y,52,5\n"),
        (BLANK, "TER\n", [("", 1), ("_2", 2)], "chain,number,value\n,1,1\n_2,2,5\n"),
    ],
)
def test_chains_are_called_as_the_reader_calls_them(text, between, places, table, tmp_path):
    """Two molecules of one name, as docking servers write them; blank names."""
    lines = text.splitlines(keepends=True)
    text = "".join([*lines[:4], between, *lines[4:]])
    assert [(chain, number) for chain, number, _ in read_structure("x", text).positions] == places
    copy = colored(tmp_path, text, table).splitlines()
    numbers = [line[60:66] if between else line.split()[14] for line in copy if line.startswith("ATOM")]
    assert [*map(float, numbers)] == [1] * 4 + [5] * 4


def test_two_files_of_one_stem_have_their_own_numbers(tmp_path):
    """A row of the exact name of a file is of that file."""
    (tmp_path / "P07.cif").write_text(as_mmcif(ROWS))
    table = tmp_path / "t.csv"
    table.write_text("name,chain,number,value\nP07,A,52,1\nP07.cif,A,52,2\n")
    assert [color.read_values(table, name)[1]["A", "52"] for name in ("P07.pdb", "P07.cif")] == [(1, ""), (2, "")]


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "table.csv").write_text("chain,number,value\nA,52,1\n")
    packed = f"{Path(__file__).parents[1]}/reading/3JQH.bcif.gz"
    with pytest.raises(SiamDiffError, match="it is no text: give mmCIF or PDB"):
        run("color", [packed, f"{tmp_path}/table.csv", "--out", f"{tmp_path}/x.bcif"])
