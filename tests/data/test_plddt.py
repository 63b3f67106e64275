"""`siamdiff build --min-plddt`: predicted structures of low confidence are skipped and counted."""

import gzip
import tarfile

import pytest

from siamdiff_min.data import store as stores
from siamdiff_min.data.bundled import bundle_path
from siamdiff_min.data.store import open_store
from siamdiff_min.protein.parse import mean_plddt

MMCIF = """data_x
loop_
_atom_site.group_PDB
_atom_site.type_symbol
_atom_site.label_atom_id
_atom_site.label_comp_id
_atom_site.auth_asym_id
_atom_site.auth_seq_id
_atom_site.Cartn_x
_atom_site.Cartn_y
_atom_site.Cartn_z
_atom_site.B_iso_or_equiv
"""


def predicted(of) -> str:
    """5PTI with the value `of(residue number, atom)` in the column of B factors."""
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        text = gzip.decompress(archive.extractfile("5PTI_A.pdb.gz").read()).decode()
    lines = [line for line in text.splitlines() if line.startswith("ATOM")]
    return "".join(f"{line[:60]}{of(int(line[22:26]), line[12:16].strip()):6.2f}{line[66:]}\n" for line in lines)


def as_mmcif(text: str) -> str:
    cut = ((12, 16), (17, 20), (21, 22), (22, 26), (30, 38), (38, 46), (46, 54), (60, 66))
    rows = [[line[a:b].strip() for a, b in cut] for line in text.splitlines()]
    return MMCIF + "".join(f"ATOM {row[0][0]} {' '.join(row)}\n" for row in rows)


HALF = predicted(lambda number, atom: 50 if number % 2 else 90)  # 58 residues: 29 have 50, 29 have 90


@pytest.mark.parametrize("form", [str, as_mmcif])
def test_the_mean_is_over_residues(form):
    assert mean_plddt("x", form(HALF)) == pytest.approx(70)
    assert mean_plddt("x", form(predicted(lambda number, atom: 0.5 if number % 2 else 0.9))) == pytest.approx(70)
    models = form is str and f"MODEL 1\n{HALF}ENDMDL\nMODEL 2\n{predicted(lambda n, atom: n % 3)}ENDMDL\n"
    assert not models or mean_plddt("x", models) == pytest.approx(70)
    assert not models or mean_plddt("x", f"{HALF}END\n{predicted(lambda n, atom: n % 3)}END\n") == pytest.approx(70)


def test_a_table_with_label_columns_alone_has_it_too():
    text = as_mmcif(HALF).replace("auth_asym_id", "label_asym_id").replace("auth_seq_id", "label_seq_id")
    assert mean_plddt("x", text) == pytest.approx(70)


def test_a_value_that_is_no_number_is_of_no_prediction():
    """What can be read without the limit can be read with it."""
    for text, value in ((HALF, "******"), (as_mmcif(HALF), "?")):
        wrong = (
            text.replace(" 50.00 ", f" {value:>5} ", 1) if value == "******" else text.replace(" 50.00\n", " ?\n", 1)
        )
        assert wrong != text and mean_plddt("x", wrong) is None


@pytest.mark.parametrize("form", [str, as_mmcif])
@pytest.mark.parametrize(
    "of",
    [
        lambda number, atom: 20 + len(atom),  # differs within a residue, as experiments do
        lambda number, atom: 0,  # no values at all
        lambda number, atom: 101 if number == 5 else 70,
        lambda number, atom: -1 if number == 5 else 70,
    ],
)
def test_other_structures_have_none(form, of):
    assert mean_plddt("x", form(predicted(of))) is None


def test_a_trace_of_ca_atoms_has_none():
    assert mean_plddt("x", "".join(line + "\n" for line in HALF.splitlines() if line[12:16].strip() == "CA")) is None


def test_low_confidence_is_skipped_and_counted(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    (data / "good.pdb").write_text(predicted(lambda number, atom: 80 + number % 2))
    (data / "low.pdb").write_text(HALF)
    (data / "experiment.pdb").write_text(predicted(lambda number, atom: 20 + len(atom)))
    assert stores.main([str(data), "--min-plddt", "75"]) == 0
    said = capsys.readouterr().out
    assert "seen 3 = used 2 + skipped 1 (mean pLDDT below 75 1) + failed 0" in said
    chosen = open_store(said.split(": seen")[0])
    assert chosen.names == ["experiment", "good"]
    assert "low\tskipped\tmean pLDDT below 75\t" in (chosen.path / "failures.tsv").read_text()
    assert stores.main([str(chosen.path)]) == 0 and "finished store" not in capsys.readouterr().err
    with pytest.raises(SystemExit, match="is a finished store, which cannot be asked for mean pLDDT from 90: give its"):
        stores.main([str(chosen.path), "--min-plddt", "90"])
    everything = open_store(data)
    assert everything.names == ["experiment", "good", "low"] and everything.path != chosen.path
