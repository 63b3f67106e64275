"""The study of studies/2026-11: its commands are ones that train.py and finetune.py accept, and are run in order."""

import json
import signal
import threading
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import real_protein
from given import CLASSES, entries

from siamdiff_min.data.labelled import LabelledData
from siamdiff_min.data.samples import Sample
from siamdiff_min.data.sources import Listing, Origin
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import FINETUNE, for_seed, parse, pretrain_options

study = import_module("studies.2026-11.study")
study_results = import_module("studies.2026-11.study_results")
Answers, Pool, Run = study_results.Answers, study.Pool, study.Run
OUT = Path("runs/study")
CONFIG = json.loads(study.CONFIG.read_text())


def options(run: Run):
    script, *argv = run.command
    if script == "train.py":
        return pretrain_options(argv)
    return parse(argv, FINETUNE, "")


def test_every_command_is_accepted_and_trains_as_long_as_the_others():
    runs = study.plan(CONFIG, OUT)
    assert len({run.name for run in runs}) == len(runs)
    epochs = {"atom": set(), "residue": set()}
    for run in runs:
        config = options(run)
        assert config.out == f"runs/study/{run.name}" and run.done.parent == Path(config.out)
        if hasattr(config, "method"):
            epochs[config.level].add((sum(config.epochs), config.global_batch_size, config.max_length))
    assert all(len(budget) == 1 for budget in epochs.values())


def test_every_seed_of_the_second_witness_starts_from_a_run_of_its_own():
    config = json.loads(study.CONFIG.with_name("witness.json").read_text())
    runs = {run.name: run for run in study.plan(config, OUT)}
    assert all(run.command[0] == "finetune.py" for run in runs.values())
    one = runs["siamdiff/ec-residue-mean"]
    files = [for_seed(options(one), seed).init_from for seed in options(one).seeds]
    assert files == [f"runs/pretrain/siamdiff-residue-tiny-{seed}/encoder.pt" for seed in range(3)]
    assert one.needs == Path(files[-1]) and options(runs["scratch/ec-residue-mean"]).init_from is None


def test_what_is_pre_trained_comes_before_it_is_needed():
    runs = study.plan(CONFIG, OUT)
    places = {run.done: i for i, run in enumerate(runs)}
    needing = [(i, run.needs) for i, run in enumerate(runs) if run.needs]
    assert needing and all(places[needs] < i for i, needs in needing)


def test_every_method_and_task_is_in_the_order():
    named = {(m, t) for methods, tasks in CONFIG["order"] for m in methods.split() for t in tasks.split()}
    assert {m for m, _ in named} == {"scratch", *CONFIG["methods"]}
    assert {t for _, t in named} - {"pretrain-residue"} == set(CONFIG["tasks"])


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_pool_waits_for_what_is_needed_and_names_what_failed(tmp_path, jobs):
    def run(name: str, needs: str | None = None, code: str = "pass") -> Run:
        done = tmp_path / f"{name}.done"
        code = f"import pathlib; {code}; pathlib.Path({str(done)!r}).write_text('')"
        return Run(name, ["-c", code], done, needs and tmp_path / f"{needs}.done")

    slow = "import time; time.sleep(0.5)"
    runs = [run("last", needs="first"), run("bad", code="1 / 0"), run("never", needs="bad"), run("first", code=slow)]
    failed = Pool(runs, tmp_path, jobs).run()
    assert [text.split(" (")[0].split(":")[0] for text in failed] == ["bad", "never"]
    assert (tmp_path / "last.done").exists() and not (tmp_path / "never.done").exists()
    assert "ZeroDivisionError" in (tmp_path / "bad.log").read_text()
    before = (tmp_path / "times.tsv").read_text().splitlines()
    assert sorted(line.split("\t")[0] for line in before) == ["bad", "first", "last"]
    assert Pool(runs[::3], tmp_path, jobs).run() == []  # both are there: nothing is run again
    assert (tmp_path / "times.tsv").read_text().splitlines() == before


def test_a_signal_ends_what_runs_and_begins_nothing(tmp_path):
    sleep = ["-c", "import time; time.sleep(60)"]
    pool = Pool([Run(name, sleep, tmp_path / f"{name}.done") for name in ("one", "two", "three")], tmp_path, 2)

    def stop():
        while len(pool.processes) < 2:
            time.sleep(0.01)
        pool.stop(signal.SIGTERM, None)

    thread = threading.Thread(target=stop)
    thread.start()
    failed = pool.run()
    thread.join()
    assert sorted(text.split(":")[0] for text in failed) == ["one", "two"]
    times = [line.split("\t") for line in (tmp_path / "times.tsv").read_text().splitlines()]
    assert sorted((name, status) for name, _, _, status in times) == [("one", "-15"), ("two", "-15")]


def test_links_to_the_data_in_the_layouts_that_are_read(tmp_path):
    data = tmp_path / "data"
    for task in ("psr", "msp", "pip", "res"):
        for split in ("train", "val", "test"):
            (data / task / split).mkdir(parents=True)
            (data / task / split / "data.mdb").touch()
    for folder in ("chains", "ec"):
        (data / folder).mkdir()
    for name in "abc":
        (data / f"chains/{name}.pdb.gz").touch()
    (data / "pretrain.tsv").write_text("id\tsplit\tcluster30\na\ttrain\ts1\nb\tval\ts2\nc\ttest\ts3\n")
    rows = ["a\ttrain\t1abc\tA\ts1\t1.1.1.1,2.7.11.1", "b\tval\t2abc\t-\ts2\t1.1.1.1"]
    rows.append("c\ttest\t3abc\tB\ts3\t2.7.11.1")
    (data / "ec.tsv").write_text("\n".join(["id\tsplit\tpdb_id\tchain\tcluster30\tec", *rows]) + "\n")
    (data / "psr/index.tsv").write_text("target\tdecoy\tcomponent\n4ABC\tx\ts4\n4ABC\ty\ts4\n")
    (data / "msp/mutations.tsv").write_text("id\tcomponent\n5ABC_A_B_X1\ts5\n5ABC_A_B_X2\ts5\n")
    (data / "pip/index.tsv").write_text("id\tcomponent\n4ABC\ts6\n")
    (data / "res/index.tsv").write_text("id\tcomponent\nd\ts7\n")
    (data / "ec/x_annot.tsv").write_text("### EC-numbers\n1.1.1.1\t2.7.11.1\n### PDB-chain\tEC-numbers\nold\told\n")
    out = tmp_path / "out"
    study.prepare(data, out)
    assert [p.name for p in (out / "data/train").iterdir()] == ["a.pdb.gz"]
    assert [p.name for p in (out / "data/val").iterdir()] == ["b.pdb.gz"]
    found = study.ec.ec_set(out / "data/ec")
    assert found.classes == ("1.1.1.1", "2.7.11.1") and "3 chains with labels" in found.about
    names = [[source.name for source in getattr(found, s).listing().sources] for s in ("train", "valid", "test")]
    assert names == [["1ABC-A"], ["2ABC-0"], ["3ABC-B"]]
    related = {"res/a": "s1", "res/b": "s2", "res/c": "s3", "ec/1ABC-A": "s1", "ec/2ABC-0": "s2", "ec/3ABC-B": "s3"}
    related |= {"psr/4ABC": "s4", "msp/5ABC_A_B_X1": "s5", "msp/5ABC_A_B_X2": "s5", "pip/4ABC": "s6", "res/d": "s7"}
    assert json.loads((out / "data/families.json").read_text()) == related


@pytest.fixture
def fewer_draws(monkeypatch):
    monkeypatch.setattr(study_results, "DRAWS", 200)
    study_results.redrawn.cache_clear()


def predictions(out: Path, method: str, task: str, rows: list[tuple[str, float, float]], seeds: int = 1) -> None:
    """What a study holds of a method whose fine-tuned seeds all predicted `rows` (group, target, score)."""
    lines = [f"{i}\t{group}\t{target}\t{score}" for i, (group, target, score) in enumerate(rows)]
    for seed in range(seeds):
        path = out / method / task / f"seed-{seed}" / "predictions.tsv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(["id\tgroup\ttarget\tprediction", *lines]) + "\n")
    (out / method / task / "results.json").touch()


def families(out: Path, related: dict[str, str]) -> None:
    (out / "data").mkdir(parents=True)
    (out / "data/families.json").write_text(json.dumps(related))


def test_tests_are_redrawn_by_whole_families(tmp_path, fewer_draws):
    """Two families of mutants, one ordered right and one wrong: AUROC 1, 0, and 3/4 where both are drawn."""
    rows = [("1ABC_A_B_X1", 1, 0.9), ("1ABC_A_B_X2", 0, 0.1), ("2DEF_A_B_X1", 1, 0.2), ("3DEF_A_B_X2", 0, 0.8)]
    families(tmp_path, {f"msp/{name}": "first" if name.startswith("1") else "second" for name, *_ in rows})
    predictions(tmp_path, "scratch", "msp-residue", rows)
    values = study_results.redrawn(tmp_path, "scratch", "msp-residue")
    assert values.shape == (study_results.DRAWS, 1, 2)
    auroc, counts = np.unique(values[:, 0, 0], return_counts=True)
    assert auroc.tolist() == [0, 0.75, 1] and counts.min() > study_results.DRAWS / 5


def test_a_family_that_is_redrawn_keeps_its_proteins_apart(tmp_path, fewer_draws):
    """Each target of PSR ordered right, but not one against the other: the mean over targets stays 1."""
    rows = [("1ABC", 0.1, 5), ("1ABC", 0.2, 6), ("2ABC", 0.3, 1), ("2ABC", 0.4, 2)]
    families(tmp_path, {"psr/1ABC": "family", "psr/2ABC": "family"})
    predictions(tmp_path, "scratch", "psr-residue", rows)
    assert np.allclose(study_results.redrawn(tmp_path, "scratch", "psr-residue")[:, 0], [-0.6, 1])


def test_intervals_are_of_the_same_draws(tmp_path, fewer_draws):
    random = np.random.default_rng(0)
    rows = [(f"{i // 4}", float(x), float(x + n)) for i, (x, n) in enumerate(zip(*random.normal(size=(2, 40))))]
    families(tmp_path, {})
    predictions(tmp_path, "noisy", "psr-residue", rows, seeds=2)
    predictions(tmp_path, "again", "psr-residue", [(g, t, 2 * s) for g, t, s in rows], seeds=3)
    predictions(tmp_path, "exact", "psr-residue", [(g, t, t) for g, t, _ in rows], seeds=3)
    kept = study_results.redrawn(tmp_path, "noisy", "psr-residue")
    study_results.redrawn.cache_clear()
    assert np.array_equal(study_results.redrawn(tmp_path, "noisy", "psr-residue"), kept)  # read again
    for bounds in study_results.versus(tmp_path, "again", "noisy", "psr-residue").values():
        assert bounds == pytest.approx([0, 0], abs=1e-12)
    for name, (low, high) in study_results.versus(tmp_path, "exact", "noisy", "psr-residue").items():
        assert 0 < low < high, name


def test_the_family_that_matters_most():
    """One of five families is ordered wrong; leaving it out makes AUROC 1, and leaving out another changes it less."""
    score, target = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.15, 0.85, 0.6, 0.4]), np.array([1, 0] * 5)
    answers = Answers(score, target, np.array(list("abcdefghij")), np.array(list("1122334455")))
    assert study_results.most_telling("msp-residue", [[answers, answers], [answers]]) == "4"
    assert study_results.metrics("msp", answers, answers.family != "4").tolist() == [1, 1]
    assert study_results.metrics("msp", answers)[0] == pytest.approx(18 / 25)


@pytest.mark.full
def test_results_and_tables_of_a_study(tmp_path, monkeypatch, capsys):
    """Two methods on MSP, one that orders all mutants right: what is copied, and every table."""
    made = []
    for num in (8, 6, 4):  # training, validation, test
        items = [replace(entry, name=f"{num}-{k}") for k, entry in enumerate(entries("msp", num))]
        made.append(Origin(tmp_path / str(num), "given", lambda items=items: Listing(items, [])))
    monkeypatch.setattr(study_results.atom3d, "atom3d_set", lambda folder, kind: LabelledData(*made))
    monkeypatch.setattr(study_results, "RESULTS", tmp_path / "results")
    out, names = tmp_path / "study", [f"4-{k}" for k in range(4)]
    families(out, {f"msp/{name}": "of three" for name in names[1:]})
    for method, scores in (("scratch", [0.1, 0.9, 0.8, 0.2]), ("diffpret", [0.9, 0.1, 0.8, 0.2])):
        predictions(out, method, "msp-residue", list(zip(names, (1, 0, 1, 0), scores)), seeds=2)
        (out / method / "msp-residue/results.json").write_text(json.dumps({"mean": "copied"}))
    (out / "times.tsv").write_text("scratch/msp-residue\t90\t120\t0\ndiffpret/msp-residue\t90\t60\t0\n")
    order = [["scratch diffpret", "msp-residue msp-residue-slow"]]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG | {"order": order, "pairs": [["diffpret", "scratch"]]}))
    study_results.main(["--out", str(out), "--config", str(config)])
    lines = capsys.readouterr().out.splitlines()
    missing = "scratch/msp-residue-slow, diffpret/pretrain-residue, diffpret/msp-residue-slow"
    assert lines[0] == f"CPU hours: 0.1; not run: {missing}"
    copied = json.loads((tmp_path / "results/diffpret/msp-residue.json").read_text())
    assert copied["mean"] == "copied" and copied["cpu_minutes"] == 1
    assert copied["command"].endswith("/pretrain-residue/encoder.pt --out runs/study/diffpret/msp-residue")
    assert copied["minus_scratch"]["auroc"] == [0.5, 0.75]  # of three twice; both (neither class is in the other alone)
    assert "minus_scratch" not in json.loads((tmp_path / "results/scratch/msp-residue.json").read_text())
    rows = [line for line in lines if line.startswith("| diffpret")]
    assert rows[0].startswith("| diffpret | 1.000 ± 0.000 | +0.500 .. +0.750 | 1.000 ± 0.000 | ")
    assert rows[1:] == ["| diffpret | 1.000 ± 0.000 |"] * 2 + ["| diffpret minus scratch | +0.500 .. +0.750 |"]
    assert "|  | msp-residue without 4-0 (1 of 4) |" in lines  # AUROC from scratch 0.25, and 0.5 without it
    assert [line for line in lines if line.startswith("| scratch")][1:] == [
        "| scratch | 0.250 ± 0.000 |",
        "| scratch | 0.500 ± 0.000 |",
    ]
    for start in ("| msp train | 8 | 8 | 1 (8-0) | 8 | 0.500 | ", "| msp test | 4 | 2 | 3 (of three) | 1 | 0.500 | "):
        assert any(line.startswith(start) for line in lines), lines


@pytest.mark.parametrize("kind", ["ec", "pip", "msp", "res", "psr"])
def test_what_needs_no_network(tmp_path, kind):
    """A linear model of composition and size is there for every task, and finds mutations to tryptophan."""
    train, test = (Origin(tmp_path / str(n), "given", lambda n=n: Listing(entries(kind, n), [])) for n in (24, 8))
    answers = study_results.trivial(kind, LabelledData(train, test, test, CLASSES if kind == "ec" else ()), {})
    assert list(answers) == ["always the same", "linear"]
    constant, linear = (study_results.metrics(kind, of_model["test"]).tolist() for of_model in answers.values())
    assert np.isfinite(constant[0]) and np.isfinite(linear[0]) and max(constant + linear) <= 1
    if kind == "msp":
        assert constant[0] == 0.5 and linear[0] == 1


def test_numbers_of_a_structure():
    """A chain and its mirror image in one sample, one residue hidden and two in focus, against a count in Python."""
    one = real_protein("1LCD_A", torch.float32)
    one = replace(one, masked=torch.arange(one.num_residues) == 3)
    focus = torch.arange(one.num_residues) < 2
    pair = Protein.pack([one, replace(one, pos=-one.pos)])
    seen = study_results.described(Sample(pair, focus.repeat(2), torch.zeros(1), ("x",), ("x",)))
    first, second = seen.reshape(2, 42)
    assert np.allclose(first, second)
    types = one.residue_type.tolist()
    visible = types[:3] + types[4:]
    assert np.allclose(first[:20], [visible.count(t) / len(visible) for t in range(20)])
    assert np.allclose(first[20:40], [types[:2].count(t) / 2 for t in range(20)])
    pos = one.pos.double().numpy()
    radius = np.sqrt(((pos - pos.mean(0)) ** 2).sum(1).mean())
    assert np.allclose(first[40:], [np.log(len(types)), radius / len(types) ** 0.38])


def test_without_data_or_a_study_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(study.ROOT)  # where they work
    with pytest.raises(SystemExit, match=r"error: .*: there is no psr/train/data.mdb, .*pip/index.tsv in it"):
        study.main(["nowhere", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"error: .* holds no study"):
        study_results.main(["--out", str(tmp_path)])
