"""The page of a run: every measure and every kind of prediction is drawn; what is no run is named."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.algorithm import draw_algorithm
from siamdiff_min import figures, report, runs
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import SiamDiffError, StructureError, escape, unescape
from siamdiff_min.protein.constants import RESIDUES
from siamdiff_min.training.checkpoint import save
from siamdiff_min.training.config import finetune_options, pretrain_options
from siamdiff_min.training.results import Predictions, read_predictions, write_predictions, write_results

RNG = np.random.default_rng(0)
SCORES = {
    "psr": (RNG.random(20), RNG.random(20), ()),
    "ec": (np.tile(np.eye(3), (4, 1)), RNG.random((12, 3)), ("1.1.1.1", "2.-", "3.4")),
    "res": (RNG.integers(20, size=40), RNG.random((40, 20)), RESIDUES),
    "pip": (np.arange(10) % 2.0, RNG.random(10), ()),
    "msp": (np.arange(10) % 2.0, RNG.random(10), ()),
    "table": (RNG.normal(size=10), RNG.normal(size=10), ()),
}
ENCODER = ENCODERS["gearnet"]("residue", "tiny")


def drawings(page: str) -> list[ElementTree.Element]:
    """The figures of a page; each is well-formed XML."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg viewBox.*?</svg>(?:</svg>)?(?=<)", page)]


def lines_of(figure: ElementTree.Element, kind: str) -> list[list[tuple[float, float]]]:
    """The points of the lines, or dots, of a class."""
    found = [x.get("d") for x in figure.iter("path") if kind in x.get("class", "").split()]
    return [[tuple(map(float, point.split())) for point in re.findall(r"[-\d.]+ [-\d.]+", d)] for d in found]


def caption(page: str, title: str) -> ElementTree.Element:
    """The figure below a title."""
    (found,) = re.findall(rf"<figcaption>{re.escape(title)}.*?</figcaption>(<svg.*?</svg></svg>|<svg.*?</svg>)", page)
    return ElementTree.fromstring(found)


def write_lines(folder, lines) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def predictions(task: str, shift: float = 0.0) -> Predictions:
    target, score, _ = SCORES[task]
    names = [f"sample {i}" for i in range(len(target))]
    return Predictions(names, [f"group {i // 2}" for i in range(len(target))], target, score + shift)


def finetuned(out: Path, task: str, seeds=(0, 7), shift: float = 0.0, *options, steps: int = 1) -> None:
    """What finetune.py leaves in --out, but for the models: three validations, with so many steps in an epoch."""
    config, columns = finetune_options(["--task", task, "--seeds", *map(str, seeds), *options]), SCORES[task][2]
    model = TASKS[task](ENCODER, len(columns) or None)
    targets = {"ec": np.eye(3)[[0, 0, 1]], "res": np.array([3, 3, 4])}.get(task, np.array([0.0, 1.0, 1.0, 0.5]))
    model.known = {"answer": model.answer(targets), "splits": {"train": {"samples": steps * config.global_batch_size}}}
    tested = {seed: predictions(task, shift) for seed in seeds}
    write_results(out / "results.json", config, model, tested, {str(seed): 2.0 / steps for seed in seeds}, "0.3")
    for seed in seeds:
        folder, first = out / f"seed-{seed}", model.measures[0]
        write_lines(folder, [{"step": s, "epoch": s - 1, "split": "valid", first: 0.1 * s} for s in (1, 2, 3)])
        write_predictions(folder / "predictions.tsv", tested[seed], columns, task == "res")


# ---- pre-training ----------------------------------------------------------------------------------------------------


def test_pretraining_curves_with_stages(tmp_path):
    lines = [{"step": s, "epoch": (s - 1) // 5, "stage": 1 + (s > 10), "split": "train", "structure_loss": 1 / s,
              "proteins_per_second": 3} for s in range(1, 21)]  # fmt: skip
    write_lines(tmp_path, lines)
    page = report.write_page([tmp_path]).read_text()
    (figure,) = drawings(page)
    assert [x.text for x in figure.iter("text")][-1] == "stage 2" and "per second" not in page
    (train,) = lines_of(figure, "thin")
    assert len(train) == 20 and train == sorted(train)  # the loss falls, on a screen downwards
    (start,) = lines_of(figure, "dotted")
    assert train[9][0] < start[0][0] == train[10][0]  # the first line of stage 2


def test_the_axis_is_right_before_an_epoch_has_ended(tmp_path):
    begun = [{"step": s, "epoch": e, "split": "train", "loss": 1.0} for s, e in ((20, 0), (40, 0), (50, 1))]
    write_lines(tmp_path, begun)
    assert runs.read_metrics(tmp_path / "metrics.jsonl")[0]["loss"]["train"] == [(0.5, 1.0), (1.0, 1.0), (1.25, 1.0)]


def test_losses_come_first_beside_a_constant_and_what_is_flat_is_left_out(tmp_path):
    values = {"clash_rate": 0.0, "native_side_chains": 0.0, "sequence_accuracy": 0.125, "loss": 3.0, "x_loss": 2.0}
    lines = [
        {"step": s, "epoch": s, "split": k, **values, "sequence_accuracy": 0.1 * s, "x_loss_constant": 2.5}
        for s in (1, 2)
        for k in ("train", "valid")
    ]
    write_lines(tmp_path, [*lines[:-1], {**lines[-1], "x_loss": 1.75, "samples": 5}])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "epo')  # just being written
    page = report.write_page([tmp_path]).read_text()
    order = ["loss", "sequence_accuracy", "x_loss", "clash_rate", "native_side_chains"]
    assert list(runs.read_metrics(tmp_path / "metrics.jsonl")[0]) == [*order, "samples"]
    assert re.findall("<h3>(.*?)</h3>", page) == ["loss", "sequence accuracy", "x loss"]  # no card of a zero
    assert re.findall("<figcaption>(.*?)</figcaption>", page) == ["sequence accuracy", "x loss"]
    assert "Left out, as flat or empty: loss (3.00), clash rate (0), native side chains (0)" in page
    assert "30.0% below the constant answer (2.50)" in page and "Held out at the end, N = 5;" in page
    figure = caption(page, "x loss")
    (constant,), (valid,) = lines_of(figure, "dashed"), lines_of(figure, "thick")
    assert constant[0][1] == constant[1][1] < valid[0][1] < valid[1][1]  # 2.5, 2, 1.75 from the top


def test_the_options_are_those_of_the_checkpoint(tmp_path):
    config = pretrain_options(["--method", "diffpret", "--size", "tiny", "--lr", "0.5", "--data", "x/proteins"])
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    file = save(tmp_path, 1, {"config": vars(config), "data": [173, "a5"], "objective": {}})
    page = report.write_page([tmp_path]).read_text()
    assert "<td>method<td>diffpret" in page and "<td>lr<td>0.5<" in page and "173 to train on" in page
    shown = {"method", "preset", "encoder", "level", "data", "size", "epochs", "batch_size", "global_batch_size", "lr"}
    shown |= {"max_length", "num_workers", "out"}
    assert {name for name in vars(config) if f"<td>{name}<" in page} == shown  # the others are as --help says
    assert "<h1>pre-training: diffpret</h1>" in page and "gearnet, tiny, atom level, x/proteins" in page
    file.write_bytes(b"damaged")
    assert "<td>method" not in report.write_page([tmp_path]).read_text()


# ---- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SCORES)
def test_the_page_begins_with_the_result_and_its_constant(tmp_path, task):
    finetuned(tmp_path, task)
    page, found = report.write_page([tmp_path]).read_text(), json.loads((tmp_path / "results.json").read_text())
    title = {"psr": "GDT_TS of a model (PSR)", "table": "None: regression of structures"}.get(task, f"({task.upper()})")
    assert title in re.search("<h1>(.*?)</h1>", page)[1]
    first, value = next(iter(found["mean"].items()))
    big = re.findall("<p class=big>(.*?)</p>", page)
    assert len(big) == len(found["mean"]) and page.index(big[0]) < page.index("<figure>") < page.index("<h2>Curves")
    hits = round((value or 0) * found["samples"])
    counts = f" <small>{hits} / {hits} of {found['samples']}</small>" if first == "accuracy" else ""
    show = (lambda x: f"{100 * x:.1f} %") if first == "accuracy" else (lambda x: f"{x:#.3g}" if x else "0")
    assert big[0] == show(value) + counts and f"answer ({show(found['constant'][first])})" in page
    assert f"95 % interval {' to '.join(show(x) for x in found['interval'][first])}" in page
    assert f"Test split {found['samples']} samples of {found['counts']['structures']} structures" in page
    assert all(x in page for x in found["about"].values()) and "seed 0" in page and "seed 7" in page
    kinds = {"ec": ["Precision and recall"], "res": ["Confusion matrix"], "pip": ["ROC curve", "Precision and recall"]}
    expected = kinds.get("pip" if task == "msp" else task, ["Predicted against true"])
    titles = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert [title.split(",")[0] for title in titles[: len(expected)]] == expected
    assert len(drawings(page)) == len(big) + len(titles)
    curve = caption(page, titles[-1])
    assert len(lines_of(curve, "thick")) == 2 and len([*curve.iter("circle")]) == 2  # both seeds; the best epochs
    assert curve.find(".//circle").get("cx") == f"{lines_of(curve, 'thick')[0][1][0]:.1f}"


def test_the_best_epoch_is_marked_in_a_run_that_ended_within_the_first(tmp_path):
    finetuned(tmp_path, "msp", (0,), steps=6)
    figure = caption(report.write_page([tmp_path]).read_text(), "AUROC")
    assert figure.find(".//circle").get("cx") == f"{lines_of(figure, 'thick')[0][1][0]:.1f}"
    assert "0.5" in [x.text for x in figure.iter("text")] and "1.0" not in [x.text for x in figure.iter("text")]


def test_the_numbers_of_the_predictions_are_drawn(tmp_path):
    """Dots where they belong, counts in the cells, and the curve that scikit-learn computes."""
    finetuned(tmp_path / "psr", "psr", (0,))
    figure = caption(report.write_page([tmp_path / "psr"]).read_text(), "Predicted against true, N = 20")
    (dots,), (target, score, _) = lines_of(figure, "dots"), SCORES["psr"]
    x, y = np.array(dots).T
    order = np.random.default_rng(0).permutation(20)
    assert np.corrcoef(x, target[order])[0, 1] > 0.9999 and np.corrcoef(y, score[order])[0, 1] < -0.9999
    slope = np.polyfit(target[order], x, 1)[0] / np.polyfit(score[order], y, 1)[0]
    assert np.isclose(slope, -1, atol=0.01)  # one scale on both axes
    folder = tmp_path / "three"
    write_lines(folder, [{"step": 1, "epoch": 0, "split": "valid", "loss": 1.0}])
    three = Predictions(["a", "b", "c"], [""] * 3, np.array([0, 0, 1]), np.eye(2)[[0, 1, 1]])
    write_predictions(folder / "predictions.tsv", three, ("$\\foo$", "x"), exclusive=True)
    figure = caption(report.write_page([folder]).read_text(), "Confusion matrix, N = 3")
    shown = [x.text for x in figure.iter("title")]
    assert shown[0] == "1 of 2 $\\\\foo$ are called $\\\\foo$".replace("\\\\", "\\") and shown[2].startswith(
        "0 of 1 x "
    )
    assert [x.text for x in figure.iter("text") if x.get("class") is not None] == ["1", "1", "1"]
    finetuned(tmp_path / "pip", "pip", (0,))
    (roc,) = lines_of(caption(report.write_page([tmp_path / "pip"]).read_text(), "ROC curve, 5 positives of 10"), "c0")
    x, y = np.array(roc).T / 300 * [[1.01], [1.02]]
    area = (np.diff(x) * (2.04 - y[1:] - y[:-1]) / 2).sum()
    found = json.loads((tmp_path / "pip" / "results.json").read_text())
    assert np.isclose(area, found["test"]["0"]["auroc"], atol=1e-3)


def test_several_runs_are_compared_on_one_page(tmp_path, monkeypatch):
    for name, shift in (("scratch", 0.0), ("pretrained", 0.2)):
        finetuned(tmp_path / name, "psr", (0, 1), shift, "--lr", str(1e-3 + shift))
    finetuned(tmp_path / "other" / "scratch", "ec")
    write_lines(tmp_path / "pre", [{"step": s, "epoch": 0, "split": "valid", "loss": 1 / s} for s in (1, 2)])
    monkeypatch.chdir(tmp_path)
    assert report.main(["scratch", "pretrained", "other/scratch", "pre"]) == 0
    page = (tmp_path / "comparison.html").read_text()
    assert "4 runs" in page and "<b>scratch</b>" not in page and "<b>pretrained</b>" in page
    parts = re.findall("<h1 class=part>(.*?)</h1>", page)
    assert parts == ["GDT_TS of a model (PSR)", "enzyme numbers (EC) of a protein", "Pre-training"]
    psr = page.split("<h1 class=part>")[1]
    card = ElementTree.fromstring(re.search(r"<h3>Spearman.*?rho over all.*?(<svg.*?</svg>)", psr)[1])
    names = [x.text for x in card.iter("text") if x.get("class") == "strong"][::2]
    assert names == [f"{tmp_path.name}/scratch", "pretrained"]
    assert {x.get("class") for x in card.iter("circle")} == {"seed c0", "seed c1"}
    assert "<tr><td>lr<td>0.001<td>0.201" in psr and "<td>preset" not in psr  # options that differ, no others
    assert len(re.findall("Predicted against true", psr)) >= 2 and psr.count("<figcaption>Spearman") == 1
    with pytest.raises(SystemExit):
        report.main(["scratch", "nowhere"])


def test_losses_are_compared_where_they_are_the_same_sums_and_noise(tmp_path, monkeypatch):
    """Not with an ablation, nor with other weights; and a run that ended in stage 1 says so."""
    options = {"a": "", "b": "", "no-structure": "--ablation no-structure", "official": "--preset official"}
    for name, more in options.items():
        config = pretrain_options(["--method", "siamdiff", *more.split()])
        stages = (1, 2) if name != "b" else (1, 1)
        lines = [{"step": s, "epoch": s - 1, "stage": stage, "split": split, "loss": 2.0 / s, "sequence_loss": 1.0 / s}
                 for s, stage in enumerate(stages, 1) for split in ("train", "valid")]  # fmt: skip
        write_lines(tmp_path / name, lines)
        save(tmp_path / name, 2, {"config": vars(config), "data": [1, "a5"], "objective": {}})
    monkeypatch.chdir(tmp_path)
    for other, titles in {"b": ["loss"], "no-structure": [], "official": []}.items():
        chosen, titles = ["a", other], [*titles, "sequence loss (nats)"]
        assert report.main(chosen) == 0
        page = (tmp_path / "comparison.html").read_text()
        assert re.findall("<h3>(.*?)</h3>", page) == titles == re.findall("<figcaption>(.*?)</figcaption>", page)
        assert ("b (stage 1)" in page) is ("b" in chosen) and "a (stage 1)" not in page


def test_the_epochs_of_labelled_residues_are_those_of_structures(tmp_path):
    """A batch counts structures, and each has several labels."""
    finetuned(tmp_path, "table", (0,))
    content = json.loads((tmp_path / "results.json").read_text())
    batch = content["config"]["global_batch_size"]
    content |= {"options": {"kind": "regression", "residues": True}}
    content["splits"]["train"] = {"samples": 50 * batch, "structures": 3 * batch}
    (tmp_path / "results.json").write_text(json.dumps(content))
    ((curves, _),) = runs.read_run(tmp_path, "a").curves.values()
    assert [x for x, _ in curves["spearman"]["valid"]] == pytest.approx([1 / 3, 2 / 3, 1])


def test_a_page_is_one_file_without_scripts_and_follows_the_reader(tmp_path):
    finetuned(tmp_path, "psr")
    page = report.write_page([tmp_path], tmp_path / "page.html").read_text()
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|https?:", page)
    assert "prefers-color-scheme:dark" in page and "name=viewport" in page
    style, body = page.split("</style>")
    named = set(re.findall(r"var\((--[\w]+)", style))
    assert named - {"--c"} <= set(re.findall(r"(--\w+):", style)) and not re.search(r'(fill|stroke)="#', body)
    used = {x for found in re.findall(r'class="?([\w ]+)', body) for x in found.split()}
    assert used - set(re.findall(r"\.([a-z]\w*)", style)) <= {"about"}


def test_runs_of_the_last_version_are_drawn_too(tmp_path):
    old = {"test": {"0": {"rmse": 5.32}}, "mean": {"rmse": 5.32}, "std": {"rmse": None}, "samples": 9}
    tmp_path.joinpath("results.json").write_text(json.dumps({**old, "config": {"task": "table", "labels": "x/a.tsv"}}))
    page = report.write_page([tmp_path]).read_text()
    assert (
        "<p class=big>5.32</p>" in page
        and "<p class=unsure>constant answer (not known)</p>" in page
        and "a: labels of structures" in page
    )


def test_an_error_above_that_of_the_mean_is_called_worse():
    gains = {"rmse": [0.1, 0.9], "mae": [-0.9, -0.1], "pearson": [0.1, 0.9], "auroc": [-0.3, -0.1], "fmax": [-0.1, 0.1]}
    results = {"constant": dict.fromkeys(gains, 0.5), "gain_interval": gains}
    run = runs.Run(Path(), "", {}, results, {}, {}, "")
    said = {name: report.verdict(run, name) for name in gains}
    words = {"rmse": "worse than", "mae": "better than", "pearson": "better than", "auroc": "worse than"}
    for name, word in {**words, "fmax": "not told apart from"}.items():
        assert f">{word} the constant answer (0.500)<" in said[name]
    assert [name for name in said if "class=bad" in said[name]] == ["rmse", "auroc"]


# ---- predictions.tsv -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", SCORES)
def test_predictions_come_back(tmp_path, task):
    target, score, columns = SCORES[task]
    write_predictions(tmp_path / "p.tsv", predictions(task), columns, task == "res")
    read = read_predictions(tmp_path / "p.tsv")
    assert np.allclose(read["target"], target) and np.allclose(read["prediction"], score, atol=1e-5)
    assert read["group"].tolist() == predictions(task).groups
    if score.ndim == 2:
        assert read["classes"].tolist() == list(columns)
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
    assert read["group"].tolist() == FORGED and read["classes"].tolist() == FORGED[:2]


def test_no_name_reaches_the_terminal_as_it_is():
    for name in FORGED:
        for error in (StructureError(name, "empty", name), SiamDiffError(f"could not read {name}")):
            assert all(line.isprintable() for line in str(error).split("\n")), error
        assert str(StructureError(name, name)).isprintable()


# ---- what is no run --------------------------------------------------------------------------------------------------


def test_nothing_of_results_json_is_live_in_the_page(tmp_path):
    script = "0<script>alert(1)</script>"
    line = {"epoch": 0, "split": "valid", "<script>": 1.0}
    write_lines(tmp_path / f"seed-{script.replace('/', '')}", [{**line, "step": 1}, {**line, "step": 2, "<script>": 2}])
    results = {"test": {script: {script: 0.5}}, "mean": {script: 1.0}, "std": {script: None}, "samples": script}
    for task in (script, "table", "psr"):
        config = {"task": task, script: script, "labels": script, "init_from": script, "data": script}
        (tmp_path / "results.json").write_text(json.dumps({**results, "config": config, "about": {script: script}}))
        assert "<script" not in report.write_page([tmp_path]).read_text()
    bad = '{"config": {}, "test": {}, "mean": {}, "interval": {"a": ["<", 1]}}'
    for broken in ("{", "[" * 10**5, "[]", '{"config": {"task": "ec"}, "test": 3}', bad):
        (tmp_path / "results.json").write_text(broken)
        with pytest.raises(SiamDiffError, match=r"results\.json"):
            report.write_page([tmp_path])


def test_what_is_no_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        report.main([str(tmp_path)])
    assert "is no run: there is no metrics.jsonl" in str(exit_.value)
    for content, said in (("", "no lines yet"), ("{}\n", "or not one of"), ("[" * 10**5 + "\n", "jsonl: damaged")):
        (tmp_path / "metrics.jsonl").write_text(content)
        with pytest.raises(SiamDiffError, match=said):
            report.write_page([tmp_path])
    write_lines(tmp_path, [{"step": 1, "epoch": 0, "split": "train", "loss": 1.0}])
    for content in ("", "id\tgroup\ttarget\tprediction\n", "id\tgroup\tprediction\na\ta\t0.5\n",
                    "id\tgroup\ttarget\tprediction\na\ta\t1\tnan\n"):  # fmt: skip
        (tmp_path / "predictions.tsv").write_text(content)
        with pytest.raises(SiamDiffError, match=r"predictions\.tsv: damaged"):
            report.write_page([tmp_path])


def test_the_report_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    finetuned(tmp_path, "res")
    assert "Confusion matrix" in report.write_page([tmp_path]).read_text()


@pytest.mark.parametrize("low, high", [(0, 1), (0.31, 0.34), (-3e-5, 4e-5), (0, 12345), (99.5, 100.5), (-7, -2)])
def test_ticks_are_round_and_told_apart(low, high):
    found = figures.ticks(low, high)
    assert 3 <= len(found) <= 8 and len(set(found.values())) == len(found)
    assert all(low - 1e-9 <= place <= high + 1e-9 for place in found)
    assert all(np.isclose(float(name), place, rtol=1e-9, atol=1e-12) for place, name in found.items())


def test_the_figure_of_algorithm_1_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    draw_algorithm(tmp_path / "a.svg")
    comments = set(re.findall(r"<!-- (.*?) -->", (tmp_path / "a.svg").read_text()))
    published = set(re.findall(r"<!-- (.*?) -->", (Path(__file__).parents[1] / "docs" / "algorithm.svg").read_text()))
    assert {"representations", "Alg. 1, lines 10-11"} <= comments == published
