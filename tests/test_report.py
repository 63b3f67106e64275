"""The page of a run: every measure and every kind of prediction is drawn; what is no run is named."""

import base64
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.algorithm import draw_algorithm
from siamdiff_min import report
from siamdiff_min.files import SiamDiffError, StructureError, escape, unescape
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.training.checkpoint import save
from siamdiff_min.training.config import finetune_options, pretrain_options
from siamdiff_min.training.results import Predictions, read_predictions, write_predictions
from siamdiff_min.training.results import report as write_results

RNG = np.random.default_rng(0)
SCORES = {
    "psr": (RNG.random(20), RNG.random(20), ()),
    "ec": (np.tile(np.eye(3), (4, 1)), RNG.random((12, 3)), ("1.1.1.1", "2.-", "3.4")),
    "res": (RNG.integers(20, size=40), RNG.random((40, 20)), RESIDUES),
    "pip": (np.arange(10) % 2.0, RNG.random(10), ()),
    "msp": (np.arange(10) % 2.0, RNG.random(10), ()),
    "table": (RNG.normal(size=10), RNG.normal(size=10), ()),
}


def images(page) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page.read_text())
    return [base64.b64decode(text).decode() for text in found]


def write_lines(folder, lines) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def predictions(task: str) -> Predictions:
    target, score, _ = SCORES[task]
    names = [f"sample {i}" for i in range(len(target))]
    return Predictions(names, names, target, score)


def test_pretraining_curves_with_stages(tmp_path):
    pytest.importorskip("matplotlib")
    lines = [{"step": s, "epoch": (s - 1) // 5, "stage": 1 + (s > 10), "split": "train", "structure_loss": 1 / s,
              "proteins_per_second": 3} for s in range(1, 21)]  # fmt: skip
    write_lines(tmp_path, lines)
    (drawn,) = images(report.report(tmp_path))
    text = " ".join(re.findall(r"<!-- (.*?) -->", drawn))
    assert "structure loss" in text and "stage 2" in text and "per second" not in text


def test_the_axis_is_right_before_an_epoch_has_ended(tmp_path):
    begun = [{"step": s, "epoch": e, "split": "train", "loss": 1.0} for s, e in ((20, 0), (40, 0), (50, 1))]
    write_lines(tmp_path, begun)
    assert report.read_metrics(tmp_path / "metrics.jsonl")[0]["loss"]["train"] == [(0.5, 1.0), (1.0, 1.0), (1.25, 1.0)]


def test_losses_come_first_beside_a_constant_and_clash_rates_last(tmp_path):
    pytest.importorskip("matplotlib")
    values = {"clash_rate": 0.0, "native_side_chains": 0.0, "sequence_accuracy": 0.125, "loss": 3.0, "x_loss": 2.0}
    lines = [
        {"step": s, "epoch": s, "split": k, **values, "x_loss_constant": 2.5}
        for s in (1, 2)
        for k in ("train", "valid")
    ]
    write_lines(tmp_path, [*lines[:-1], {**lines[-1], "x_loss": 1.75, "samples": 5}])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "epo')  # just being written
    page = report.report(tmp_path).read_text()
    order = ["loss", "sequence_accuracy", "x_loss", "clash_rate", "native_side_chains"]
    assert list(report.read_metrics(tmp_path / "metrics.jsonl")[0]) == [*order, "samples"]
    (drawn,) = images(tmp_path / "report.html")
    comments = re.findall(r"<!-- (.*?) -->", drawn)
    titles = [text for text in comments if text in [name.replace("_", " ") for name in order]]
    assert titles == [name.replace("_", " ") for name in order] and comments.count("constant prediction") == 1
    assert float(re.search(r'<svg [^>]*width="([\d.]+)pt"', drawn)[1]) * 96 / 72 < 650
    assert "<td>x_loss</td><td>2.0000</td><td>1.7500</td><td>2.5000</td>" in page
    assert "<td>samples</td><td>-</td><td>5</td><td>-</td>" in page


def test_the_options_are_those_of_the_checkpoint(tmp_path):
    pytest.importorskip("matplotlib")
    config = pretrain_options(["--method", "diffpret", "--size", "tiny", "--lr", "0.5", "--data", "x/proteins"])
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    file = save(tmp_path, 1, {"config": vars(config), "objective": {}})
    page = report.report(tmp_path).read_text()
    assert "<td>method</td><td>diffpret" in page and "<td>lr</td><td>0.5<" in page
    shown = {"method", "preset", "encoder", "level", "data", "size", "epochs", "batch_size", "global_batch_size", "lr"}
    shown |= {"max_length", "num_workers", "out"}
    assert {name for name in vars(config) if f"<td>{name}</td>" in page} == shown  # the others are as --help says
    assert "<h1>diffpret, atom, x/proteins</h1>" in page
    file.write_bytes(b"damaged")
    assert "<td>method</td>" not in report.report(tmp_path).read_text()


@pytest.mark.parametrize("task", SCORES)
def test_fine_tuning_with_predictions(tmp_path, task):
    pytest.importorskip("matplotlib")
    config = finetune_options(["--task", task, "--seeds", "0", "7"])
    write_results(tmp_path / "results.json", config, {0: {"metric": 0.25}, 7: {"metric": 0.75}}, 20)
    for seed in (0, 7):
        folder = tmp_path / f"seed-{seed}"
        write_lines(folder, [{"step": s, "epoch": s, "split": "valid", "metric": 0.1 * s} for s in (1, 2)])
        write_predictions(folder / "predictions.tsv", predictions(task), SCORES[task][2], task == "res")
    page = report.report(tmp_path)
    assert len(images(page)) == 4
    text = page.read_text()
    assert f"<h1>{task}, {config.level}, demo set</h1>" in text and "<td>cutoff</td>" not in text
    assert "<td>0.2500</td><td>0.7500</td><td>0.5000</td><td>0.3536</td>" in text and "seed-7" in text
    assert "<td>test, N = 20</td>" in text


@pytest.mark.parametrize("task", SCORES)
def test_predictions_come_back(tmp_path, task):
    target, score, columns = SCORES[task]
    write_predictions(tmp_path / "p.tsv", predictions(task), columns, task == "res")
    read = read_predictions(tmp_path / "p.tsv")
    assert np.allclose(read["target"], target) and np.allclose(read["prediction"], score, atol=1e-5)
    assert read["group"].tolist() == predictions(task).groups
    if score.ndim == 2:
        assert read["labels"].tolist() == list(columns)
    if task == "res":  # by name: the true class, and the one of the largest probability
        header, *rows = (line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines())
        assert header[2] == "target" and [row[2] for row in rows] == [RESIDUES[i] for i in target]
        assert header[-1] == "class" and [row[-1] for row in rows] == [RESIDUES[i] for i in score.argmax(1)]


def test_predictions_that_are_not_finite_are_not_written(tmp_path):
    broken = Predictions(["a", "b"], ["a", "b"], np.zeros(2), np.array([0.5, np.nan]))
    with pytest.raises(SiamDiffError, match="is not written, since some predictions are not finite"):
        write_predictions(tmp_path / "p.tsv", broken, ())
    assert not (tmp_path / "p.tsv").exists()


FORGED = ["a\tb", "x\n1abc\tgroup\t0.5", "line\u2028and\x85", "\x1b[2J", "\udcff.pdb", "C:\\new\\x41", "日本 é"]


def test_no_name_forges_a_row(tmp_path):
    """A name of a file may hold anything but / and NUL; every sample stays one row, and comes back."""
    assert [unescape(escape(name)) for name in FORGED] == FORGED
    assert all(escape(name).isprintable() for name in FORGED)
    numbers = RNG.random((len(FORGED), 2))
    write_predictions(tmp_path / "p.tsv", Predictions(FORGED, FORGED, numbers, numbers), FORGED[:2])
    text = (tmp_path / "p.tsv").read_text(encoding="utf-8")
    assert [line.count("\t") for line in text.splitlines()] == [5] * (len(FORGED) + 1)
    read = read_predictions(tmp_path / "p.tsv")
    assert read["group"].tolist() == FORGED and read["labels"].tolist() == FORGED[:2]


def test_no_name_reaches_the_terminal_as_it_is():
    for name in FORGED:
        for error in (StructureError(name, "empty", name), SiamDiffError(f"could not read {name}")):
            assert all(line.isprintable() for line in str(error).split("\n")), error
        assert str(StructureError(name, name)).isprintable()


def test_predictions_have_their_numbers_and_names_as_they_are(tmp_path):
    """N beside every score, rho in a scatter, numbers in a confusion matrix, no formula in a name."""
    pytest.importorskip("matplotlib")
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": k, "loss": 1.0} for k in ("train", "valid")])
    classes = Predictions(["a", "b", "c"], [""] * 3, np.array([0, 0, 1]), np.eye(2)[[0, 1, 1]])
    for scores, columns, expected in (
        (predictions("psr"), (), ["rho = ", "N = 20"]),
        (classes, ("$\\foo$", "x"), ["$\\foo$", "50", "100", "N = 3"]),
    ):
        write_predictions(tmp_path / "predictions.tsv", scores, columns, bool(columns))
        curves, drawn = images(report.report(tmp_path))
        comments = " ".join(re.findall(r"<!-- (.*?) -->", drawn))
        assert all(text in comments for text in expected), comments
        assert len(set(re.findall(r"stroke: (#(?:1f77b4|ff7f0e))", curves))) == 2  # train and valid


def test_nothing_of_results_json_is_live_in_the_page(tmp_path):
    pytest.importorskip("matplotlib")
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0, "<script>": 1.0}])
    script = "0<script>alert(1)</script>"
    results = {"test": {script: {script: script}}, "mean": {script: 1.0}, "std": {script: None}}
    (tmp_path / "results.json").write_text(json.dumps({**results, "config": {"task": script, script: script}}))
    assert "<script" not in report.report(tmp_path).read_text()
    for broken in ("{", "[" * 10**5, "[]", '{"config": {"task": "ec"}, "test": 3}'):
        (tmp_path / "results.json").write_text(broken)
        with pytest.raises(SiamDiffError, match=r"results\.json"):
            report.report(tmp_path)


def test_what_is_no_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        report.main([str(tmp_path)])
    assert "is no run: there is no metrics.jsonl" in str(exit_.value)
    for content, said in (("", "or not one of"), ("{}\n", "or not one of"), ("[" * 10**5 + "\n", "jsonl: damaged")):
        (tmp_path / "metrics.jsonl").write_text(content)
        with pytest.raises(SiamDiffError, match=said):
            report.report(tmp_path)
    pytest.importorskip("matplotlib")
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    for content in ("", "id\tgroup\ttarget\tprediction\n", "id\tgroup\tprediction\na\ta\t0.5\n"):
        (tmp_path / "predictions.tsv").write_text(content)
        with pytest.raises(SiamDiffError, match=r"predictions\.tsv: damaged"):
            report.report(tmp_path)


def test_without_matplotlib_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    with pytest.raises(SiamDiffError, match="pip install matplotlib"):
        report.report(tmp_path)


def test_the_figure_of_algorithm_1_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    draw_algorithm(tmp_path / "a.svg")
    comments = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "a.svg").read_text()))
    published = set(re.findall(r"<!-- (.*?) -->", (Path(__file__).parents[1] / "docs" / "algorithm.svg").read_text()))
    assert {"representations", "Alg. 1, lines 10-11"} <= comments == published
