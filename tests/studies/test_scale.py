"""studies/2026-12-scale: nested corpora, its objectives, held-out losses of a run, and the report."""

import csv
import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import generator, real_protein
from processes import run

from benchmarks.pdb import write_pdb
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.training.config import TABLE_5

corpora = importlib.import_module("studies.2026-12-scale.corpora")
heldout = importlib.import_module("studies.2026-12-scale.heldout")
neighbours = importlib.import_module("studies.2026-12-scale.neighbours")
report = importlib.import_module("studies.2026-12-scale.report")
residue_types = importlib.import_module("studies.2026-12-scale.residue_types")


def test_a_corpus_holds_the_smaller_ones(tmp_path):
    (tmp_path / "chains").mkdir()
    for name in "abcdefgh":
        (tmp_path / "chains" / f"{name}.pdb.gz").write_bytes(name.encode())
    corpora.main([str(tmp_path / "chains"), str(tmp_path / "out"), "--sizes", "2", "5"])
    two, five, every = ({p.name for p in (tmp_path / "out" / n).iterdir()} for n in ("2", "5", "all"))
    assert len(two) == 2 and len(five) == 5 and len(every) == 8 and two < five < every
    assert all((tmp_path / "out" / "all" / name).read_bytes() == name[:1].encode() for name in every)


@pytest.fixture
def plugin():
    """The plugin, imported anew; other tests know the methods of the package only."""
    names, before = ("benchmarks.nearly_clean", "studies.2026-12-scale.plugin"), dict(sys.modules)
    tables = [(table, dict(table)) for table in (OBJECTIVES, TABLE_5)]
    for name in names:
        sys.modules.pop(name, None)
    yield importlib.import_module(names[1])
    for table, content in tables:
        table.clear()
        table.update(content)
    for name in names:
        sys.modules.pop(name)
    sys.modules.update({name: before[name] for name in names if name in before})


def test_the_partner_without_noise(plugin):
    """Both views are denoised from the first conformer: its own coordinates, with the masked types hidden."""
    protein, seen = real_protein("1LCD_A", torch.float32), []
    objective = OBJECTIVES["siamdiff-clean-partner"](ENCODERS["gearnet"]("atom", "tiny"), "atom")
    objective.encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    loss, logs = objective(protein, generator(0))
    loss.backward()
    (partner,) = seen
    clean = {tuple(row) for row in objective.encoder.builder.select_nodes(protein).pos.tolist()}
    assert {tuple(row) for row in partner.pos.tolist()} <= clean
    assert 0 < int(partner.masked.sum()) < protein.num_residues
    assert {"structure_loss", "sequence_loss"} <= logs.keys()
    assert objective.seq_mlp.layers[0].out_features == plugin.HEAD


def test_held_out_losses_of_a_run(tmp_path, capsys, plugin):
    """A row for every checkpoint and folder, and none twice."""
    data, out = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    shutil.copy(Path(__file__).parents[1] / "protein" / "1LCD.pdb.gz", data)
    options = "--method diffpret-scale --size tiny --batch-size 1 --epochs 2 --valid-fraction 0 --save-every 1"
    options = [*options.split(), "--plugin", plugin.__file__, "--num-workers", "0"]
    run("train", *options, "--data", data, "--out", out)
    command = [str(tmp_path / "rows.tsv"), "--data", f"a={data}", "--runs", str(out)]
    heldout.main(command)
    heldout.main(command)
    heldout.main([str(tmp_path / "encoder.tsv"), "--data", f"a={data}", "--runs", str(out / "encoder.pt")])
    with open(tmp_path / "rows.tsv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [(row["run"], row["step"], row["data"], row["proteins"]) for row in rows] == [
        ("run", "1", "a", "1"),
        ("run", "2", "a", "1"),
    ]
    assert all(float(row[name]) > 0 for row in rows for name in ("structure_loss", "sequence_loss"))
    with open(tmp_path / "encoder.tsv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file, delimiter="\t")
    assert row == rows[1] | {"structure_loss": "nan"}


def test_the_report_takes_last_checkpoints_and_kept_answers(tmp_path, capsys):
    """Against the kept answers, added up here; losses are of the last checkpoint, on the new validation chains."""
    folder = Path(report.__file__).parent / "results"
    report.main([str(folder)])
    printed = capsys.readouterr().out
    with np.load(folder / "probe" / "diffpret-all-atom-small-0.npz") as kept:
        right, of = kept["masked/100/sums"].sum(0)
        constant = float(kept["masked/100/constant"])
    rows = report.read_all([folder / "probe"])["atom", "small"]
    runs = [run.skill() for run in rows["diffpret-all"].values()]
    masked = rows["diffpret-all"][0].skills["masked", 100][0]
    assert masked == pytest.approx((right / of - constant) / (1 - constant), abs=1e-6)
    assert f"| DiffPreT | 5,170 | {len(runs)} | {np.mean(runs, axis=0)[0]:.3f} |" in printed
    assert "| 0.616 | 2.549 | 0.204 |" in printed  # of DiffPreT, 2,600 chains: last step; new validation, not old
    one, other = ([run.skill()[0] for run in rows[name].values()] for name in ("siamdiff-all", "siamdiff-650"))
    assert f"* siamdiff-all minus siamdiff-650: mean skill {np.mean(one) - np.mean(other):+.3f} (" in printed
    one, other = (rows[name][1].skill() for name in ("diffpret-2600", "diffpret-1300"))  # one run each
    low, high = np.quantile(one[1:] - other[1:], (0.025, 0.975))
    gap = f"{one[0] - other[0]:+.3f} ({low:+.3f} to {high:+.3f}, families drawn)"
    assert report.gap_of(rows, "diffpret-2600", "diffpret-1300") == gap
    counts = report.read(folder / "probe-test" / f"{report.COUNTS}.npz").skill()
    for name in report.NEW:
        new = report.read(folder / "probe-test" / f"{name}.npz").skill()
        low, high = np.quantile(new[1:] - counts[1:], (0.025, 0.975))
        assert printed.count(f"* {name} minus counts: {new[0] - counts[0]:+.3f} ({low:+.3f} to {high:+.3f})") == 1
    pytest.importorskip("matplotlib")
    report.main([str(folder), "--figure", str(tmp_path / "scale.png")])
    assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_two_runs_against_two_have_an_interval_over_runs():
    """Wider than over families alone: here families do not differ, and the runs of a row by .02."""
    made = {}
    for name, skills in {"diffpret-all": (0.62, 0.64), "diffpret-650": (0.58, 0.60), "siamdiff-all": (0.6,)}.items():
        runs = [{(probe, 100): np.full(2001, skill) for probe in report.PROBES} for skill in skills]
        made[name] = {seed: report.Result(run, run) for seed, run in enumerate(runs)}
    # standard deviation within a row 0.02 / sqrt(2), two degrees of freedom: 4.303 times 0.01 * sqrt(2)
    expected = "+0.040 (-0.021 to +0.101, families and runs)"
    assert report.gap_of(made, "diffpret-all", "diffpret-650") == expected
    assert report.gap_of(made, "diffpret-all", "siamdiff-all") == "+0.030 (+0.030 to +0.030, families drawn)"


def test_nearest_neighbours(tmp_path, capsys):
    """Halves of one chain are no relatives of each other by sequence, copies are; who is alone is not asked."""
    (tmp_path / "val").mkdir()
    whole = real_protein("1LCD_A", torch.float32)
    half = whole.num_residues // 2
    parts = {"A1": whole.crop(0, half), "A2": whole.crop(0, half - 3), "B1": whole.crop(half, half), "C1": whole}
    for name, protein in parts.items():
        write_pdb(tmp_path / "val" / f"{name}.pdb", protein)
    rows = [f"{name}\tval\t{name[0]}" for name in parts]
    (tmp_path / "table.tsv").write_text("\n".join(["id\tsplit\tcluster", *rows]) + "\n")
    out = tmp_path / "out.tsv"
    neighbours.main([str(tmp_path), str(tmp_path / "table.tsv"), "counts", "--out", str(out)])
    with open(out, encoding="utf-8") as file:
        found = [(row["chain"], row["alignment"]) for row in csv.DictReader(file, delimiter="\t")]
    assert found[:2] == [("A1", "A2"), ("A2", "A1")] and len(found) == 4
    said = capsys.readouterr().out
    assert "| alignment | 2 | 2 | 1.000 (1.000 to 1.000) |" in said and "| counts | 2 |" in said
    neighbours.main(["--report", str(out)])
    assert capsys.readouterr().out == said
    alike = neighbours.alignments(list(parts.values()))
    assert alike[0, 1] == pytest.approx(1) and alike[0, 2] < 0.5 and np.array_equal(alike, alike.T)


def test_residue_types(tmp_path, capsys):
    """RES on chains of families that are not in another table; rows of the same residues, added up by hand."""
    whole, rows = real_protein("1LCD_A", torch.float32), ["id\tsplit\tgroup\tcluster"]
    for number, (name, split) in enumerate({"A": "train", "B": "val", "C": "test", "D": "test", "E": "test"}.items()):
        (folder := tmp_path / "chains" / split).mkdir(parents=True, exist_ok=True)
        write_pdb(folder / f"{name}.pdb", whole.crop(number, whole.num_residues - 2 * number))
        rows.append(f"{name}\t{split}\tfamily-{name}\tcluster-{name}")
    (tmp_path / "table.tsv").write_text("\n".join(rows) + "\n")
    (tmp_path / "seen.tsv").write_text("file\tfamily\nD.pdb\tfamily-D\n")
    data, out = tmp_path / "res", tmp_path / "results"
    command = ["table", data / "probe.tsv", tmp_path / "chains", tmp_path / "table.tsv", tmp_path / "seen.tsv"]
    residue_types.main([*map(str, command)])
    assert {row["family"] for row in residue_types.rows_of(data / "probe.tsv")} == {f"family-{x}" for x in "ABCE"}
    residue_types.main(["linear", str(data), str(out), "counts"])
    items = {item.name: item for item in residue_types.read_items(data / "probe.tsv")}
    asked = {name: residue_types.environments(items[name], residue_types.EACH["test"])[0] for name in "CE"}
    train = items["A"].protein.residue_type[residue_types.environments(items["A"], residue_types.EACH["train"])[0]]
    with np.load(out / "constant.npz") as kept:
        types = [items[name].protein.residue_type[asked[name]] for name in "CE"]
        right = [(of == train.bincount().argmax()).sum().item() for of in types]
        assert kept["names"].tolist() == ["C", "E"]
        assert kept["sums"].tolist() == [[n, len(of)] for n, of in zip(right, types)]
    # finetune.py: two seeds from scratch. The first has all of C right, the second nothing
    for seed, name in enumerate(("C", "")):
        lines = ["group\ttarget\tclass"]
        lines += [f"{of}\tALA\t{'ALA' if of == name else 'GLY'}" for of in "EC" for _ in asked[of]]
        (tmp_path / "predictions.tsv").write_text("\n".join(lines) + "\n")
        residue_types.main(["keep", str(out / f"scratch-atom-{seed}.npz"), str(tmp_path / "predictions.tsv")])
    capsys.readouterr()
    residue_types.main(["report", str(out)])
    total, said = sum(map(len, asked.values())), capsys.readouterr().out
    low, high = 0, 1 / 2  # of draws of two chains: of E twice, of C twice
    assert f"| scratch-atom | 2 | {len(asked['C']) / 2 / total:.3f} ({low:.3f} to {high:.3f}) |  |" in said
    assert f"| constant | 1 | {sum(right) / total:.3f} (" in said
    assert f"| {sum(right) / total - len(asked['C']) / 2 / total:+.3f} (" in said
    with np.load(out / "counts.npz") as kept:
        residue_types.write(out / "other.npz", dict(zip(kept["names"].tolist(), kept["sums"] + 1)))
    with pytest.raises(ConfigError, match="not all of the same residues"):
        residue_types.main(["report", str(out)])
