"""`siamdiff build --min-plddt`: predicted structures of low confidence are skipped and counted."""

import gzip
import math
import tarfile

import numpy as np
import pytest

from siamdiff_min.cli import run
from siamdiff_min.protein.constants import ATOM_NAMES
from siamdiff_min.reading.parse import read_structure
from siamdiff_min.reading.sources import bundle_path
from siamdiff_min.reading.store import open_store
from siamdiff_min.tools.build import chains_of

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


ATOMS = predicted(lambda number, atom: 40 + len(atom))  # a value for each atom, as of AlphaFold 3, Boltz and Chai
MEAN = 41.7  # over residues, to a decimal
METRIC = "loop_\n_ma_qa_metric.id\n_ma_qa_metric.name\n_ma_qa_metric.type\n1 global pLDDT\n2 local pLDDT\n"
COLUMNS = "model_id label_asym_id label_seq_id metric_id metric_value"
LOCAL = "loop_\n" + "".join(f"_ma_qa_metric_local.{name}\n" for name in COLUMNS.split())
LOCAL += "".join(f"1 A {number} 2 {30 if number % 2 else 50}\n" for number in range(1, 59))
# On a scale from 0 to 1; every sixth residue is left out, so that only its B factor is there.
HOLES = LOCAL.partition("1 A")[0] + "".join(f"1 A {n} 2 .{694 + n % 3 - 1}\n" for n in range(1, 59) if n % 6)


def mean_plddt(text: str) -> float | None:
    return read_structure("x", text).plddt


OTHER = predicted(lambda number, atom: number % 3)


@pytest.mark.parametrize("text, expected", [
    (as_mmcif(HALF), 70),
    (as_mmcif(predicted(lambda number, atom: 0.5 if number % 2 else 0.9)), 70),
    (f"MODEL 1\n{HALF}ENDMDL\nMODEL 2\n{OTHER}ENDMDL\n", 70),
    (f"{HALF}END\n{OTHER}END\n", 70),
    ("EXPDTA    THEORETICAL MODEL\n" + HALF, 70),
    ("EXPDTA    X-RAY DIFFRACTION\n" + HALF, None),  # one B factor for each residue, as of a coarse experiment
    (as_mmcif(HALF) + "_exptl.method 'X-RAY DIFFRACTION'\n_software.name AlphaFold\n", None),
    (as_mmcif(HALF) + "_exptl.method 'THEORETICAL MODEL'\n", 70),
    (as_mmcif(ATOMS) + METRIC, MEAN),
    (as_mmcif(ATOMS) + "_software.name AlphaFold-beta-20231127\n", MEAN),
    (as_mmcif(ATOMS) + "_software.name 'Boltz-2'\n", MEAN),
    (as_mmcif(ATOMS) + "_software.name CHAINSAW\n", math.nan),  # a program of crystallographers
    (as_mmcif(ATOMS).replace("auth_", "label_") + METRIC + LOCAL, 40),
    (as_mmcif(ATOMS).replace("auth_", "label_") + LOCAL, 40),
    (as_mmcif(ATOMS) + METRIC.replace("pLDDT", "QMEAN"), math.nan),
    (ATOMS, math.nan),
    (HALF.replace(" 50.00 ", "****** ", 1), math.nan),
    (as_mmcif(HALF).replace(" 50.00\n", " ?\n", 1) + METRIC, math.nan),
    (predicted(lambda number, atom: 0), math.nan),
    (predicted(lambda number, atom: 0.2 + number / 15), math.nan),  # errors in angstrom
    (predicted(lambda number, atom: 25 if number == 5 else 0.2 + number / 15), math.nan),
    (as_mmcif(predicted(lambda number, atom: 0.2 + number / 15)) + "_software.name AlphaFold\n", math.nan),
    (as_mmcif(HALF).replace("auth_", "label_") + METRIC + HOLES + "1 A 6 2 ?\n1 A 12 2 .\n", 69.4),
    (predicted(lambda number, atom: 101 if number == 5 else 70), math.nan),
    ("".join(line + "\n" for line in HALF.splitlines() if line[12:16].strip() == "CA"), math.nan),
])  # fmt: skip
def test_the_words_of_a_file_decide_then_its_b_factors(text, expected):
    """None is of an experiment, nan of a file that says neither."""
    assert mean_plddt(text) == pytest.approx(expected, abs=0.05, nan_ok=True)


def test_every_residue_has_its_own():
    """The mean over its atoms, from 0 to 100; a chain keeps the values of its residues, and has their mean."""
    numbers = read_structure("x", HALF).protein.residue_number.tolist()
    half = [50 if number % 2 else 90 for number in numbers]
    local = as_mmcif(ATOMS).replace("auth_", "label_") + METRIC + LOCAL
    for text, expected in (
        (HALF, half),
        (predicted(lambda number, atom: 0.5 if number % 2 else 0.9), half),
        (local, [30 if number % 2 else 50 for number in numbers]),
    ):
        assert read_structure("x", text).residue_plddt == pytest.approx(expected)
    of_atoms = read_structure("x", as_mmcif(ATOMS) + METRIC)
    first = of_atoms.protein.atom_name[of_atoms.protein.atom_residue == 0]
    assert of_atoms.residue_plddt[0] == pytest.approx(40 + np.mean([len(ATOM_NAMES[name]) for name in first]))
    for text in (ATOMS, "EXPDTA    X-RAY DIFFRACTION\n" + HALF):
        assert read_structure("x", text).residue_plddt is None

    both = HALF
    for line in HALF.splitlines():
        x = float(line[30:38]) + 60
        both += f"{line[:21]}B{line[22:30]}{x:8.3f}{line[38:60]} 30.00{line[66:]}\n"
    chains = chains_of(read_structure("x", both))
    assert {name: part.plddt for name, part in chains.items()} == {"A": 70, "B": 30}
    assert chains["A"].residue_plddt.tolist() == half
    assert chains["B"].residue_plddt.tolist() == [30] * 58


def test_low_confidence_is_skipped_and_counted(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    contents = {"good.pdb": predicted(lambda number, atom: 80 + number % 2), "low.pdb": HALF, "silent.pdb": ATOMS}
    contents |= {"experiment.pdb": "EXPDTA    X-RAY DIFFRACTION\n" + ATOMS, "low3.cif": as_mmcif(ATOMS) + METRIC}
    for name, text in contents.items():
        (data / name).write_text(text)
    assert run("build", [str(data), "--min-plddt", "75"]) == 0
    said = capsys.readouterr().out
    assert "seen 5 = used 3 + skipped 2 (mean pLDDT below 75 2) + failed 0" in said
    assert "left out or replaced 0; kept 1 (files that name neither pLDDT nor an experiment 1)" in said
    chosen = open_store(said.split(": seen")[0])
    assert chosen.names == ["experiment", "good", "silent"]
    assert "low\tskipped\tmean pLDDT below 75\t" in (chosen.path / "failures.tsv").read_text()
    everything = open_store(data)
    assert everything.names == ["experiment", "good", "low", "low3", "silent"] and everything.path != chosen.path
