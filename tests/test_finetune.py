"""`finetune.py` as a user runs it: trained, interrupted, resumed, on two ranks, scored again, applied, compared."""

import csv
import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENZYMES, real_protein
from processes import run
from standin import lines

from benchmarks.pdb import write_pdb
from siamdiff_min.downstream.metrics import fmax
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.reading.store import open_store
from siamdiff_min.sets import ec
from siamdiff_min.training import checkpoint, tuning
from siamdiff_min.training.config import finetune_options, for_seed
from siamdiff_min.training.ranks import Ranks

SMALL = ["--size", "tiny", "--batch-size", "2", "--epochs", "3", "--lr", "0.003"]
SMALL += ["--num-workers", "0", "--device", "cpu", "--threads", "1"]


def finetune(*argv, **how) -> str:
    return run("finetune", *argv, **how)


def table(path: Path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def results_of(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())


def best_of(out: Path, seed: int) -> dict:
    return weights.read_weights(out / f"seed-{seed}" / "best.pt", weights.MODEL)


@pytest.fixture(scope="module")
def trained(enzymes, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    options = ["--task", "ec", "--data", enzymes, *SMALL, "--seeds", 3, 4, "--out", out]
    said = finetune(*options, "--predict", enzymes / "test", "--store", out / "stores")
    assert len([*(out / "stores").glob("*/meta.json")]) == 4  # of three splits, and of what is predicted
    assert "samples     train 8, valid 3, test 5" in said and "from scratch" in said and "16 chains with labels" in said
    assert "95 % interval  constant" in said and str(out / "results.json") in said
    assert "test split  5 samples, 5 positive (train 8, valid 3)" in said
    return out


@pytest.mark.slow
def test_results_of_two_seeds(trained):
    results = results_of(trained)
    assert set(results["test"]) == {"3", "4"} and set(results["mean"]) == {"fmax", "auprc"}
    for name, mean in results["mean"].items():
        values = [results["test"][seed][name] for seed in "34"]
        assert np.isclose(mean, np.mean(values)) and np.isclose(results["std"][name], np.std(values, ddof=1))
    for seed in (3, 4):
        best = best_of(trained, seed)
        valid = [line for line in lines(trained / f"seed-{seed}") if line["split"] == "valid"]
        assert [line["epoch"] for line in valid] == [0, 1, 2] and "stage" not in valid[0]
        fmax_of = {line["epoch"] + 1: line["fmax"] for line in valid}
        assert best["valid"]["fmax"] == fmax_of[best["epochs"]] == max(fmax_of.values())
        assert tuple(best["labels"]) == ENZYMES and results["best_epoch"][str(seed)] == best["epochs"]


@pytest.mark.slow
def test_results_stand_beside_the_constant_answer_and_say_where_they_come_from(trained):
    """The shares of the labels in training are the answer that looks at nothing."""
    results = results_of(trained)
    share = np.array([3, 3, 2]) / 8
    target = np.eye(3)[np.arange(11, 16) % 3]
    assert results["answer"] == {"mean": share.tolist()}
    assert results["constant"]["fmax"] == fmax(np.tile(share, (5, 1)), target) > 0.3
    assert results["interval"]["fmax"] is None and results["no_interval"].startswith("of 5 structures, too few")
    assert results["direction"] == {"fmax": "max", "auprc": "max"}
    sizes = {"train": 8, "valid": 3, "test": 5}
    assert results["splits"] == {split: {"samples": n, "structures": n} for split, n in sizes.items()}
    assert results["counts"] == {"samples": 5, "structures": 5, "positives": 5} and results["about"]["date"][:2] == "20"


def scores_in(rows: list[dict], what: str) -> np.ndarray:
    return np.array([[float(row[f"{what}:{label}"]) for label in ENZYMES] for row in rows])


@pytest.mark.slow
def test_predictions_are_those_that_were_scored(trained):
    target = np.eye(3)[np.arange(11, 16) % 3]
    for seed in (3, 4):
        rows = table(trained / f"seed-{seed}" / "predictions.tsv")
        assert [row["id"] for row in rows] == [f"{i + 1000}-A" for i in range(11, 16)]
        assert np.array_equal(scores_in(rows, "target"), target)
        score = scores_in(rows, "prediction")
        assert np.isclose(fmax(score, target), results_of(trained)["test"][str(seed)]["fmax"], atol=1e-4)
    applied = table(*trained.glob("predicted-test-*.tsv"))  # by the last seed's model, to the files of the test split
    assert [row["id"] for row in applied] == [row["id"] for row in rows] and "target" not in "".join(applied[0])
    assert np.allclose(scores_in(applied, "prediction"), score, rtol=1e-4)


@pytest.mark.slow
def test_a_saved_model_scores_the_same(trained, enzymes, tmp_path):
    model = ["--eval-only", trained / "seed-3" / "best.pt", "--num-workers", 0, "--device", "cpu", "--threads", 1]
    data = ["--data", enzymes, "--batch-size", 2]
    first = results_of(trained)
    finetune(*model, *data, "--out", tmp_path / "eval")
    again = results_of(tmp_path / "eval")
    assert again["test"] == {"3": first["test"]["3"]} and again["config"]["out"] != first["config"]["out"]
    same = {"splits", "counts", "constant", "answer", "direction", "options"}
    assert {key for key in same if again[key] != first[key]} == set() and again["best_epoch"]["3"]
    finetune(*model, *data, "--out", tmp_path / "two", world=2)
    assert results_of(tmp_path / "two")["test"] == again["test"]
    shutil.copytree(enzymes, alone := tmp_path / "alone", ignore=lambda *_: ["train", "valid"])
    said = finetune(*model, "--data", alone, "--out", tmp_path / "three")
    assert "samples     test 5" in said and "without a file" not in said
    assert results_of(tmp_path / "three")["test"] == again["test"]


@pytest.mark.slow
def test_structures_of_another_folder_of_the_same_name_get_another_table(trained, enzymes, tmp_path):
    shutil.copytree(enzymes / "train", other := tmp_path / "other" / "valid")
    model = ["--eval-only", trained / "seed-3" / "best.pt", "--out", tmp_path, "--num-workers", 0]
    finetune(*model, "--predict", enzymes / "valid")
    (first,) = tmp_path.glob("predicted-*.tsv")
    before = first.read_bytes()
    finetune(*model, "--predict", other)
    assert sorted(len(table(path)) for path in tmp_path.glob("predicted-valid-*.tsv")) == [3, 8]
    assert first.read_bytes() == before


@pytest.mark.slow
def test_interrupted_and_resumed_it_is_the_same_run(trained, enzymes, tmp_path):
    options = ["--task", "ec", "--data", enzymes, *SMALL, "--seeds", 3, "--out", tmp_path]
    finetune(*options, "--max-steps", 5)
    assert "resumed from" in finetune(*options)
    a, b = (checkpoint.latest(folder / "seed-3")[1] for folder in (trained, tmp_path))
    assert [k for k, v in a["objective"].items() if not torch.equal(v, b["objective"][k])] == []
    assert a["scheduler"] == b["scheduler"]
    valid = [[line for line in lines(folder / "seed-3") if line["split"] == "valid"] for folder in (trained, tmp_path)]
    assert valid[0] == [line for line in valid[1] if line["step"] != 5]  # the interrupted run was scored where it ended
    assert results_of(trained)["test"]["3"] == results_of(tmp_path)["test"]["3"]
    finetune(*options)  # nothing to do
    said = finetune(*options, "--lr", 0.5, status=1)
    assert "--lr was 0.003, is 0.5" in said and "Traceback" not in said


@pytest.mark.full
def test_two_ranks_from_a_pretrained_encoder_frozen(enzymes, tmp_path):
    torch.manual_seed(1)
    source, encoder = tmp_path / "encoder-0.pt", ENCODERS["gearnet"]("residue", "tiny")
    weights.save_encoder_file(source, encoder, "gearnet", "residue", "tiny", "paper")
    said = finetune(
        "--task", "ec", "--data", enzymes, *SMALL[2:], "--max-steps", 2, "--freeze",
        "--init-from", tmp_path / "encoder-{seed}.pt", "--out", tmp_path / "run", world=2,
    )  # fmt: skip
    assert f"loaded from {source}: encoder.layers" in said and "to be learned: head (6 tensors)" in said
    assert said.count("samples     train") == 1
    state = best_of(tmp_path / "run", 0)["state"]
    assert all(torch.equal(state[f"encoder.{k}"], v) for k, v in encoder.state_dict().items())
    said = finetune("--task", "ec", "--data", enzymes, "--init-from", source, "--size", "paper", status=1)
    assert "--size paper, but" in said and "holds: tiny" in said


@pytest.mark.slow
def test_frozen_from_scratch_sees_values_of_order_one(enzymes, tmp_path):
    """Nothing else would teach its batch norm what to subtract and to divide by."""
    finetune("--task", "ec", "--data", enzymes, *SMALL, "--max-steps", 1, "--freeze", "--out", tmp_path)
    state = best_of(tmp_path, 0)["state"]
    encoder = ENCODERS["gearnet"]("residue", "tiny").eval()
    encoder.load_state_dict({name: state[f"encoder.{name}"] for name in encoder.state_dict()})
    protein = encoder.builder.select_nodes(open_store(ec.ec_set(enzymes).train, workers=1).read(0))
    with torch.no_grad():
        assert 0.3 < encoder(protein).node.std() < 3
        for norm in (m for m in encoder.modules() if isinstance(m, torch.nn.BatchNorm1d)):
            norm.reset_running_stats()
        assert encoder(protein).node.std() > 10


class Split(list):
    """The targets of a split, in place of its samples."""

    checksum = "0"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory) -> list:
    """The options for a table of eight structures with a class each."""
    folder = tmp_path_factory.mktemp("labelled")
    protein = real_protein("1LCD_A", torch.float32)
    rows = ["name\tvalue\tsplit"]
    for i, split in enumerate(["train"] * 4 + ["valid"] * 2 + ["test"] * 2):
        write_pdb(folder / f"p{i}.pdb", protein.crop(i, 20 + 2 * i))
        rows.append(f"p{i}\t{('protease', 'kinase', 'unknown')[(i % 2) + (i == 7)]}\t{split}")
    labels = folder.with_suffix(".tsv")
    labels.write_text("\n".join(rows) + "\n")
    return ["--data", folder, "--labels", labels]


@pytest.mark.parametrize(
    "before, after",
    [
        ("p7\tunknown", "p7\tisomerase"),
        ("p4\tprotease\tvalid", "p4\tprotease\ttest"),
        pytest.param("protease|kinase|unknown", lambda name: str(len(name[0])), marks=pytest.mark.full, id="numbers"),
    ],
)
def test_a_run_is_not_resumed_with_other_classes_or_another_validation(labelled, tmp_path, before, after):
    """The training split is the same. A class of the test split alone moves the columns of the others."""
    out = tmp_path / "out"
    other = tmp_path / "labels.tsv"
    other.write_text(re.sub(before, after, labelled[-1].read_text()))
    options = ["--task", "table", "--level", "residue", *SMALL, "--out", out, *labelled]
    finetune(*options)
    kept = results_of(out)
    said = finetune(*options[:-1], other, status=1)
    assert "error: " in said and "Choose another --out" in said and "Traceback" not in said
    assert "with other data: validation split or classes was" in said or callable(after)
    assert results_of(out) == kept


@pytest.mark.full
def test_resume_takes_the_folder_of_all_seeds(labelled, tmp_path):
    options = ["--task", "table", "--level", "residue", *labelled, *SMALL, "--seeds", 0, 1]
    options += ["--out", tmp_path, "--resume", tmp_path]
    assert "resumed" not in finetune(*options, "--max-steps", 2)
    assert finetune(*options).count("resumed from") == 2


@pytest.mark.full
def test_a_frozen_encoder_gives_the_same_in_any_number_of_processes(labelled, tmp_path):
    options = ["--task", "table", *labelled, "--level", "residue", "--size", "tiny", "--freeze", "--device", "cpu"]
    finetune(*options, "--num-workers", 2, "--out", tmp_path / "one")
    finetune(*options, "--num-workers", 0, "--out", tmp_path / "two", world=2)
    one, two = ((tmp_path / out / "seed-0" / "predictions.tsv").read_bytes() for out in ("one", "two"))
    assert one == two
    results = results_of(tmp_path / "two")
    assert results["made"]["processes"] == "2 x cpu" and results["made"]["threads"] == 1
    assert results["made"]["started_from"] is None


@pytest.fixture
def minimised(tmp_path, monkeypatch):
    """Fine-tuning in which `engine.train` only validates; the k-th validation measures entry k of `valid`."""

    def run(valid, *options, epochs=(1.0, 2.0, 3.0), measure="global_spearman", best=None, losses=()):
        config = for_seed(
            finetune_options(["--task", "psr", "--level", "residue", "--out", str(tmp_path), *options]), 0
        )
        Path(config.out).mkdir(parents=True, exist_ok=True)
        task = TASKS["psr"](ENCODERS["gearnet"]("residue", "tiny"))
        task.measures, task.best = (measure,), best
        place, loss, started = iter(range(len(valid))), iter(losses), []
        task.metrics = lambda split, *_: {measure: split[next(place)]}
        splits = {"train": Split([9.0, 2.0, 1.0]), "valid": Split(valid), "test": Split([1.0, 2.0, 9.0])}

        def train(run, validate):
            started.append(run.plateau)
            for epoch in epochs:
                validate(epoch)

        def predict(task, split, *_):
            return Namespace(prediction=split, target=(), groups=(), names=())

        step = len(checkpoint.checkpoints(Path(config.out)))
        monkeypatch.setattr(tuning.results, "predict", predict)
        monkeypatch.setattr(tuning.engine, "Run", lambda *_, **about: Namespace(step=step, plateau=_[4]))
        monkeypatch.setattr(tuning.engine, "begin", lambda run: None)
        monkeypatch.setattr(tuning.engine, "train", train)
        monkeypatch.setattr(tuning, "evaluate", lambda *_: {"loss": next(loss)})
        tuning.train(config, task, splits, (), Ranks(torch.device("cpu")))
        return best_of(tmp_path, 0), started[0]

    return run


@pytest.mark.parametrize(
    "valid, how, chosen, follows",
    [
        ((1.0, 3.0, 2.0), {}, 2.0, ("global_spearman", "max")),
        ((2.0, 1.0, 3.0), {"measure": "rmse"}, 2.0, ("rmse", "min")),
        ((2.0, 1.0, 3.0), {"measure": "degrees", "best": "min"}, 2.0, ("degrees", "min")),
        ((2.0, 1.0, 3.0), {"measure": "degrees", "best": "max"}, 3.0, ("degrees", "max")),
        ((2.0, 1.0, 3.0), {"measure": "degrees", "losses": (0.1, 0.2, 0.3)}, 1.0, ("loss", "min")),  # nobody says
        ((1.0, np.nan, 2.0), {"epochs": (1.0, 2.0, 2.5)}, 1.0, ("global_spearman", "max")),  # the last one is cut short
        ((np.nan, np.nan, np.nan), {}, 3.0, ("global_spearman", "max")),
    ],
)
def test_the_best_epoch_and_the_learning_rate_follow_the_validation(minimised, capsys, valid, how, chosen, follows):
    best, plateau = minimised(valid, **how)
    assert best["epochs"] == chosen and plateau == follows
    said = "no epoch could be compared (global_spearman could not be measured, or none was whole): best.pt is"
    assert (said in capsys.readouterr().out) is bool(np.isnan(valid).all())


@pytest.mark.parametrize("before, chosen, value", [((1.0, 3.0, 2.0), 2.0, 3.0), ((np.nan,) * 3, 4.0, 2.5)])
def test_a_resumed_run_remembers_the_best_epoch(minimised, tmp_path, before, chosen, value):
    """Unless its metric was not a number, as AUROC if all samples are of one class."""
    minimised(before)
    checkpoint.save(tmp_path / "seed-0", 3, {}, 1)
    best, _ = minimised((2.0, 2.5), epochs=(3.0, 4.0))
    assert best["epochs"] == chosen and best["valid"]["global_spearman"] == value


def test_in_the_released_code_the_learning_rate_follows_the_training_loss(minimised):
    """It falls while the loss of PSR falls (differences.md, row 21)."""
    assert minimised((1.0, 2.0, 3.0), "--preset", "official", "--resume", "never")[1] == ("loss", "max")


def test_what_cannot_be_is_said(tmp_path):
    for argv, said in {
        ("--cutoff", 50): "error: --cutoff is for",
        ("--eval-only", tmp_path / "absent.pt"): "could not read",
        ("--task", "psr", "--data", tmp_path): str(tmp_path),
    }.items():
        found = finetune(*argv, status=1)
        assert said in found and "Traceback" not in found
