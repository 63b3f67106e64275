"""The page of a run: every measure and every kind of prediction is drawn; what is no run is named."""

import csv
import json
import re
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.metrics import auc

from siamdiff_min import cli
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import SiamDiffError, write_rows
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.tools.evidence import wording
from siamdiff_min.tools.evidence.wording import finish
from siamdiff_min.tools.report import command as report
from siamdiff_min.tools.report import picture
from siamdiff_min.tools.report.runs import read_predictions
from siamdiff_min.tools.table.results import TablePredictions, write_table_results
from siamdiff_min.tools.table.task import table_task
from siamdiff_min.training.config import finetune_options, pretrain_options
from siamdiff_min.training.presets import differences
from siamdiff_min.training.results import Predictions, result_of, write_predictions

RNG = np.random.default_rng(0)
SCORES = {
    "psr": (RNG.random(20), RNG.random(20), ()),
    "ec": (np.tile(np.eye(3), (6, 1)), RNG.random((18, 3)), ("1.1.1.1", "2.-", "3.4")),
    "res": (RNG.integers(20, size=40), RNG.random((40, 20)), RESIDUES),
    "pip": (np.arange(16) % 2.0, RNG.random(16), ()),
    "msp": (np.arange(16) % 2.0, RNG.random(16), ()),
    "table": (RNG.normal(size=16), RNG.normal(size=16), ()),
}
ENCODER = ENCODERS["gearnet"]("residue", "tiny")
KINDS = ("train", "valid")


pytestmark = pytest.mark.usefixtures("few_draws")


def write_lines(folder, lines) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def predictions(task: str, shift: float = 0.0) -> Predictions:
    target, score, _ = SCORES[task]
    names = [f"sample {i}" for i in range(len(target))]
    return Predictions(names, [f"group {i // 2}" for i in range(len(target))], target, score + shift)


def finetuned(out: Path, task: str, seeds=(0, 7), shift: float = 0.0, *options) -> None:
    """What finetune.py leaves in --out, but for the models: three validations, one in each epoch."""
    target, _, columns = SCORES[task]
    config = finetune_options(["--task", task, "--seeds", *map(str, seeds), *options])
    model = TASKS[task](ENCODER, len(columns) or None)
    model.known = {"answer": model.baseline(target[: len(target) // 2])}
    tested = {seed: predictions(task, shift) for seed in seeds}
    result = result_of(config, model, tested, {str(seed): 2.0 for seed in seeds}, {})
    finish(out / "results.json", result, model, tested)
    for seed in seeds:
        lines = [{"step": s, "epoch": s - 1, "split": "valid", model.measures[0]: 0.1 * s} for s in (1, 2, 3)]
        write_lines(out / f"seed-{seed}", lines)
        write_predictions(out / f"seed-{seed}" / "predictions.tsv", tested[seed], columns, task == "res")


def titles(page: str) -> list[str]:
    return re.findall("<h3>(.*?)</h3>", page)


def drawn(*paths: Path) -> dict[str, list]:
    """The lines of every picture of a page, (colour, x, y), by the picture's name."""
    found = {}
    for runs in report.read_sections(paths).values():
        for one in chain(*report.pictures_of(runs)):
            axes = Figure().add_subplot()
            one.draw(axes)
            found[one.name] = [(line.get_color(), *map(list, line.get_data())) for line in axes.lines]
    return found


# ---- pre-training ----------------------------------------------------------------------------------------------------


def test_held_out_losses_stand_beside_their_baseline(tmp_path):
    """A measure that is exactly 0 has its card too."""
    values = {"clash_rate": 0.0, "sequence_accuracy": 0.125, "loss": 3.0, "x_loss_constant": 2.5}
    lines = [{"step": s, "epoch": s, "split": k, **values, "x_loss": 2 - s / 8} for s in (1, 2) for k in KINDS]
    write_lines(tmp_path, lines)
    rows = [("protein", "draw", *values, "x_loss"), *((name, 0, 0, 0.1, 3, 2.5, 1.75) for name in "AB")]
    write_rows(tmp_path / "valid.tsv", rows)
    page = report.write_page([tmp_path]).read_text()
    assert titles(page) == ["clash rate", "sequence accuracy", "loss", "x loss", "x loss"]  # a curve of what changes
    assert "<p class=big>1.75</p>" in page and "<p class=better>better than the baseline (2.50)" in page
    assert [y for _, _, y in drawn(tmp_path)["x_loss-curve"]] == [[1.875, 1.75], [1.875, 1.75], [2.5, 2.5], []]


def describe(folder: Path, config, steps: int = 1) -> None:
    by_preset = [row._asdict() for row in differences(config)]
    content = {"command": "train.py", "options": vars(config), "by preset": by_preset, "steps": steps}
    (folder / "options.json").write_text(json.dumps(content, default=str))


def test_the_options_and_what_the_preset_decides(tmp_path):
    config = pretrain_options(["--method", "diffpret", "--size", "tiny", "--lr", "0.5", "--data", "x/proteins"])
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    describe(tmp_path, config)
    page = report.write_page([tmp_path]).read_text()
    assert "What --preset decides for" in page and ", of preset paper</h2>" in page
    assert "<td>noise of stage 1<td>" in page
    assert "<td>method<td>diffpret" in page and "<td>lr<td>0.5<" in page
    assert all(f"<td>{name}<" in page for name in vars(config))


def test_a_run_that_is_not_finished_says_so_in_big_letters(tmp_path):
    steps = [{"step": s, "epoch": (s - 1) // 4, "split": "train", "loss": 1.0 / s} for s in range(1, 65)]
    describe(tmp_path, pretrain_options(["--method", "diffpret", "--epochs", "8"]), 64)
    write_lines(tmp_path, steps[:11])
    said = "<p class='big worse'>not finished: 11 of 64 steps"
    assert said in report.write_page([tmp_path]).read_text()
    write_lines(tmp_path, steps)
    assert "not finished" not in report.write_page([tmp_path]).read_text()


# ---- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("task", "title", "pictures"),
    [
        ("psr", "GDT_TS of a model (PSR)", ["Predicted against true"]),
        ("ec", "(EC)", ["Precision and recall"]),
        ("res", "(RES)", []),
        ("pip", "(PIP)", ["ROC curve", "Precision and recall"]),
        ("table", "None: regression of structures", ["Predicted against true"]),
    ],
)
def test_the_page_begins_with_the_result_and_its_baseline(tmp_path, task, title, pictures):
    finetuned(tmp_path, task)
    page = report.write_page([tmp_path]).read_text()
    found = json.loads((tmp_path / "results.json").read_text())
    assert title in re.search("<h1>(.*?)</h1>", page)[1]
    first, *others = found["mean"]
    show = partial(wording.show, first)
    assert f"<p class=big>{show(found['mean'][first])}</p>" in page
    assert f"95 % interval {' to '.join(map(show, found['interval'][first]))}, over test structures" in page
    assert f"the baseline ({show(found['constant'][first])})" in page
    assert "<th>seed 0<th>seed 7<" in page and f"test split: {found['samples']} samples of" in page
    assert titles(page)[1 + len(others) : -1] == pictures


def test_the_numbers_of_the_predictions_are_drawn(tmp_path):
    finetuned(tmp_path, "pip", (0,))
    _, x, y = drawn(tmp_path)["roc curve"][0]
    found = json.loads((tmp_path / "results.json").read_text())
    assert np.isclose(auc(x, y), found["test"]["0"]["auroc"])


def test_a_seed_with_a_score_of_0_has_its_dot(tmp_path):
    """And one whose score is not defined has none."""
    finetuned(tmp_path, "pip", (0, 1, 2))
    found = json.loads((tmp_path / "results.json").read_text())
    for seed, value in {"0": 0.0, "1": 0.5, "2": None}.items():
        found["test"][seed]["auroc"] = value
    (tmp_path / "results.json").write_text(json.dumps(found))
    assert [0.0, 0.5] in [x for _, x, _ in drawn(tmp_path)["auroc-intervals"]]


def test_several_runs_are_compared_on_one_page(tmp_path, monkeypatch):
    for name, shift in (("scratch", 0.0), ("pretrained", 0.2)):
        finetuned(tmp_path / name, "psr", (0, 1), shift, "--lr", str(1e-3 + shift))
    finetuned(tmp_path / "other" / "scratch", "ec", (0,))
    monkeypatch.chdir(tmp_path)
    assert cli.run("report", ["scratch", "pretrained", "other/scratch"]) == 0
    page = (tmp_path / "comparison.html").read_text()
    parts = re.findall("<h1>(.*?)</h1>", page)
    assert parts == ["GDT_TS of a model (PSR)", "enzyme numbers (EC) of a protein"]
    psr = page.split("<h1>")[1]
    assert f"{tmp_path.name}/scratch</text>" in psr and "pretrained</text>" in psr
    assert "<tr><td>lr<td>0.001<td>0.201" in psr and "<td>preset" not in psr  # options that differ, no others
    assert psr.count("Predicted against true") == 2 and "<td>not told apart from it" in psr
    with pytest.raises(SiamDiffError, match="other is no run: there is no metrics"):
        cli.run("report", ["scratch", "other"])


def test_three_runs_are_compared_with_the_first_one(tmp_path):
    """Differences over the same draws of structures; on the page and in the table."""
    runs = [tmp_path / name for name in "abc"]
    for run, shift in zip(runs, (0.0, 0.3, 3.0)):
        finetuned(run, "table", (0,), shift)
    table = tmp_path / "table.csv"
    cli.run("report", [*map(str, runs), "--out", str(tmp_path / "page.html"), "--csv", str(table)])
    with open(table, newline="") as file:
        first, *others = [row for row in csv.DictReader(file) if row["measure"] == "rmse"]
    draws = [np.load(run / "draws.npz")["rmse"] for run in runs]
    for row, drawn in zip(others, draws[1:]):
        found = [float(row["difference low"]), float(row["difference high"])]
        assert found == pytest.approx(np.quantile(drawn - draws[0], [0.025, 0.975]))
        assert row["difference over"] == "test structures"
    page = (tmp_path / "page.html").read_text()
    assert f"<td>c<td>1<td>{float(others[1]['mean']):.3g}" in page and page.count("<h2>Side by side") == 1
    assert "<td>worse than it" in page and first["difference"] == ""


def test_a_page_is_one_file_without_scripts_and_follows_the_reader(tmp_path):
    finetuned(tmp_path, "psr")
    page = report.write_page([tmp_path], tmp_path / "page.html").read_text()
    assert not re.search(r"<script|<link|<img|src=|url\(h|@import|href=\"[^#]", page)
    assert "prefers-color-scheme:dark" in page and "name=viewport" in page and picture.INK not in page


def test_the_head_of_length_and_composition_is_beside_that_of_a_table(tmp_path):
    target, *noise = np.random.default_rng(0).normal(size=(3, 40))
    names = [str(i) for i in range(40)]
    for run, sign in {"good": 1, "bad": -1}.items():
        task = table_task(ENCODER, kind="regression", linear=True, metric="mae")
        task.fit(target, "tiny")
        task.known = {"answer": task.baseline(target)}
        tested = TablePredictions(names, names, target, sign * target + 0.2 * noise[0], names)
        tested = replace(tested, composition=replace(tested, prediction=target + 0.8 * noise[1]))
        result = result_of(Namespace(task="table", labels="a"), task, {0: tested}, {}, {})
        write_table_results(tmp_path / run / "results.json", result, task, {0: tested})

    page = report.write_page([tmp_path / "good"]).read_text()
    floor = json.loads((tmp_path / "good" / "results.json").read_text())["floor"]["mean"]["mae"]
    assert "<p class=better>by mae better than the baseline, better than length and composition</p>" in page
    assert f"<p class=better>better than length and composition ({floor:.3f})</p>" in page
    page = report.write_page([tmp_path / "good", tmp_path / "bad"], tmp_path / "both.html").read_text()
    assert "<p class=worse>bad: by mae worse than the baseline" in page


def test_runs_of_version_0_4_are_drawn_too(tmp_path):
    """A table that it wrote: its verdicts are words, and further keys are missing."""
    of_all = {"test": {"0": {"rmse": 5.32}}, "mean": {"rmse": 5.32}, "std": {"rmse": None}, "constant": {"rmse": 5.5}}
    counts = {"samples": 9, "structures": 9, "sequences": 8}
    old = {**of_all, "samples": 9, "counts": counts, "interval": {"rmse": [4.0, 6.0]}, "no_interval": ""}
    old |= {"verdict": {"rmse": "not told apart from"}, "config": {"task": "table", "labels": "x/a.tsv"}}
    old["floor"] = {"features": "length", "mean": {"rmse": 5.4}, "verdict": {"rmse": "better than"}}
    tmp_path.joinpath("results.json").write_text(json.dumps(old))
    page = report.write_page([tmp_path]).read_text()
    assert "a: labels of structures" in page and "4.00 to 6.00, over test sequences" in page
    assert "not told apart from the baseline (5.50)" in page and "better than length (5.40)" in page


def test_without_matplotlib_there_is_the_table_alone(tmp_path, monkeypatch):
    finetuned(tmp_path, "table")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SiamDiffError, match="need matplotlib: pip install"):
        cli.run("report", [str(tmp_path), "--csv", str(tmp_path / "table.csv")])
    assert (tmp_path / "table.csv").exists() and not (tmp_path / "report.html").exists()


# ---- predictions.tsv -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SCORES)
def test_predictions_come_back(tmp_path, task):
    """Further columns play no part, though their names begin as ours do. Of exclusive classes there is no picture."""
    target, score, columns = SCORES[task]
    own = predictions(task)
    further = {title: ["x"] * len(own.names) for title in ("prediction_sd", "targets", "model")}
    write_predictions(tmp_path / "p.tsv", own, columns, task == "res", further)
    read = read_predictions(tmp_path / "p.tsv")
    if task == "res":
        line = (tmp_path / "p.tsv").read_text().splitlines()[1].split("\t")
        assert line[2] == RESIDUES[target[0]] and RESIDUES[score[0].argmax()] in line[3:]
        assert read == {}
    else:
        shape = len(target), -1
        assert np.allclose(read["target"], target.reshape(shape))
        assert np.allclose(read["prediction"], score.reshape(shape), atol=1e-5)


def test_predictions_that_are_not_finite_are_not_written(tmp_path):
    broken = Predictions(["a", "b"], ["a", "b"], np.zeros(2), np.array([0.5, np.nan]))
    with pytest.raises(SiamDiffError, match="is not written, since some predictions are not finite"):
        write_predictions(tmp_path / "p.tsv", broken, ())
    assert not (tmp_path / "p.tsv").exists()


@pytest.mark.full
def test_pictures_for_a_paper(tmp_path):
    """Every picture in three formats and two widths; each says its N and its interval in its own words."""
    finetuned(tmp_path, "pip", (0,))
    sections = report.read_sections([tmp_path])
    report.write_pictures(tmp_path / "figures", sections)
    files = [path.name for path in (tmp_path / "figures").iterdir()]
    for shown in ("auroc-intervals", "auroc-curve", "roc-curve", "precision-and-recall"):
        for width in ("one-column", "two-columns"):
            assert {f"{shown}-{width}.{form}" for form in ("pdf", "svg", "png")} <= {*files}
    assert len(files) == 24
    png = (tmp_path / "figures" / "roc-curve-one-column.png").read_bytes()
    assert int.from_bytes(png[16:20], "big") == int(3.35 * 300)
    (runs,) = sections.values()
    report.write_pictures(tmp_path / "two", {"Tm (C)": runs, "Tm (°C)": runs})
    names = [file.name for file in (tmp_path / "two").iterdir()]
    assert len(names) == 48 and {"Tm-C-roc-curve-two-columns.pdf", "Tm-C-roc-curve-2-two-columns.pdf"} <= {*names}
    notes = {one.name: one.note for one in chain(*report.pictures_of(runs))}
    assert all("N = 16" in note for note in notes.values())
    assert (
        "95 % intervals over test structures" in notes["roc curve"]
        and f"AUROC of {tmp_path.name[:40]} 0." in notes["roc curve"]
    )
