"""The study of benchmarks/: its commands are ones that train.py and finetune.py accept, and are run in order."""

import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import real_protein
from given import LABELS, entries

from benchmarks import study
from benchmarks.study import Pool, Run
from siamdiff_min.data.samples import LabelledData
from siamdiff_min.data.structures import Listing, Origin
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.pretraining import ABLATIONS, OBJECTIVES
from siamdiff_min.protein.protein import Protein
from siamdiff_min.training.config import FinetuneConfig, PretrainConfig, parse

OUT = Path("runs/study")
CONFIG = json.loads(Path(study.__file__).with_suffix(".json").read_text())


def options(run: Run):
    script, *argv = run.command
    if script == "train.py":
        return parse(
            argv, {"method": OBJECTIVES, "encoder": ENCODERS, "ablation": ABLATIONS}, "", PretrainConfig
        ).resolve()
    return parse(argv, {"task": TASKS, "encoder": ENCODERS}, "", FinetuneConfig).resolve()


def test_every_command_is_accepted_and_trains_as_long_as_the_others():
    runs = study.plan(CONFIG, OUT)
    assert len({run.name for run in runs}) == len(runs)
    epochs = {"atom": set(), "residue": set()}
    for run in runs:
        config = options(run)
        assert config.out == f"runs/study/{run.name}" and run.done.parent == Path(config.out)
        if isinstance(config, PretrainConfig):
            epochs[config.level].add((sum(config.epochs), config.global_batch_size, config.max_length))
    assert all(len(budget) == 1 for budget in epochs.values())


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
    (data / "ec/x_annot.tsv").write_text("### EC-numbers\n1.1.1.1\t2.7.11.1\n### PDB-chain\tEC-numbers\nold\told\n")
    out = tmp_path / "out"
    study.prepare(data, out)
    assert [p.name for p in (out / "data/train").iterdir()] == ["a.pdb.gz"]
    assert [p.name for p in (out / "data/val").iterdir()] == ["b.pdb.gz"]
    found = study.ec.find(out / "data/ec")
    assert found.labels == ("1.1.1.1", "2.7.11.1") and "3 chains with labels" in found.about
    names = [[source.name for source in getattr(found, s).listing().sources] for s in ("train", "valid", "test")]
    assert names == [["1ABC-A"], ["2ABC-0"], ["3ABC-B"]]
    related = {"res/a": "s1", "res/b": "s2", "res/c": "s3", "ec/1ABC-A": "s1", "ec/2ABC-0": "s2", "ec/3ABC-B": "s3"}
    related |= {"psr/4ABC": "s4", "msp/5ABC_A_B_X1": "s5", "msp/5ABC_A_B_X2": "s5", "pip/4ABC": "s6"}
    assert json.loads((out / "data/families.json").read_text()) == related


def predictions(out: Path, task: str, rows: list[tuple[str, float, float]], seeds: int = 1, families=None) -> Path:
    """A method's folder of fine-tuned seeds that all predicted `rows` (group, target, score); `task` only names it."""
    (out / "data").mkdir(parents=True, exist_ok=True)
    (out / "data/families.json").write_text(json.dumps(families or {}))
    for seed in range(seeds):
        path = out / "method" / task / f"seed-{seed}" / "predictions.tsv"
        path.parent.mkdir(parents=True)
        lines = [f"{i}\t{group}\t{target}\t{score}" for i, (group, target, score) in enumerate(rows)]
        path.write_text("\n".join(["id\tgroup\ttarget\tprediction", *lines]) + "\n")
    return out / "method" / task


def test_tests_are_redrawn_by_whole_families(tmp_path):
    """Two families of mutants, one ordered right and one wrong: AUROC 1, 0, and 3/4 where both are drawn."""
    rows = [("1ABC_A_B_X1", 1, 0.9), ("1ABC_A_B_X2", 0, 0.1), ("2DEF_A_B_X1", 1, 0.2), ("3DEF_A_B_X2", 0, 0.8)]
    families = {f"msp/{name}": "first" if name.startswith("1") else "second" for name, *_ in rows}
    values = study.redrawn(predictions(tmp_path, "msp-residue", rows, families=families), "msp-residue")
    assert values.shape == (study.DRAWS, 1, 2)
    auroc, counts = np.unique(values[:, 0, 0], return_counts=True)
    assert auroc.tolist() == [0, 0.75, 1] and counts.min() > study.DRAWS / 5


def test_a_family_that_is_redrawn_keeps_its_proteins_apart(tmp_path):
    """Each target of PSR ordered right, but not one against the other: the mean over targets stays 1."""
    rows = [("1ABC", 0.1, 5), ("1ABC", 0.2, 6), ("2ABC", 0.3, 1), ("2ABC", 0.4, 2)]
    families = {"psr/1ABC": "family", "psr/2ABC": "family"}
    values = study.redrawn(predictions(tmp_path, "psr-residue", rows, families=families), "psr-residue")
    assert np.allclose(values[:, 0], [-0.6, 1])


def test_intervals_are_of_the_same_draws(tmp_path):
    random = np.random.default_rng(0)
    rows = [(f"{i // 4}", float(x), float(x + n)) for i, (x, n) in enumerate(zip(*random.normal(size=(2, 40))))]
    noisy = predictions(tmp_path / "noisy", "psr-residue", rows, seeds=2)
    again = predictions(tmp_path / "again", "psr-residue", [(g, t, 2 * s) for g, t, s in rows], seeds=3)
    exact = predictions(tmp_path / "exact", "psr-residue", [(g, t, t) for g, t, _ in rows], seeds=3)
    for bounds in study.versus(again, noisy, "psr-residue").values():
        assert bounds == pytest.approx([0, 0], abs=1e-12)
    for name, (low, high) in study.versus(exact, noisy, "psr-residue").items():
        assert 0 < low < high, name


@pytest.mark.parametrize("kind", ["ec", "pip", "msp", "res", "psr"])
def test_what_needs_no_network(tmp_path, kind):
    """A linear model of composition and size is there for every task, and finds mutations to tryptophan."""
    train, test = (Origin(tmp_path / str(n), "given", lambda n=n: Listing(entries(kind, n), [])) for n in (24, 8))
    values = study.trivial(kind, LabelledData(train, test, test, LABELS if kind == "ec" else ()))
    assert list(values) == ["always the same", "linear"]
    constant, linear = ([v[name] for name in study.SHOWN[kind]] for v in values.values())
    assert np.isfinite(constant[0]) and np.isfinite(linear[0]) and max(constant + linear) <= 1
    if kind == "msp":
        assert constant[0] == 0.5 and linear[0] == 1


def test_numbers_of_a_structure():
    """A chain and its mirror image in one sample, one residue hidden and two in focus, against a count in Python."""
    one = real_protein("1LCD_A", torch.float32)
    one = replace(one, masked=torch.arange(one.num_residues) == 3)
    focus = torch.arange(one.num_residues) < 2
    pair = Protein.pack([one, replace(one, pos=-one.pos)])
    seen = study.described(study.Sample(pair, focus.repeat(2), torch.zeros(1), ("x",), ("x",)))
    first, second = seen.reshape(2, 42)
    assert np.allclose(first, second)
    types = one.residue_type.tolist()
    visible = types[:3] + types[4:]
    assert np.allclose(first[:20], [visible.count(t) / len(visible) for t in range(20)])
    assert np.allclose(first[20:40], [types[:2].count(t) / 2 for t in range(20)])
    pos = one.pos.double().numpy()
    radius = np.sqrt(((pos - pos.mean(0)) ** 2).sum(1).mean())
    assert np.allclose(first[40:], [np.log(len(types)), radius / len(types) ** 0.38])


@pytest.mark.parametrize("argv", [["nowhere"], ["--table"], ["--curves"]])
def test_without_data_or_a_study_one_sentence(tmp_path, monkeypatch, argv):
    monkeypatch.chdir(study.ROOT)  # where it works
    with pytest.raises(SystemExit, match=r"error: .*(no pretrain.tsv in it|holds no study)"):
        study.main([*argv, "--out", str(tmp_path)])
