"""`train.py` as a user runs it: on one process and under torchrun, resumed, dry, and from an encoder file."""

import os
import re
import shutil

import pytest
import torch
from processes import ROOT, TWO_RANKS, cold, run
from standin import lines

from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.training import checkpoint

SMALL = "--size tiny --batch-size 2 --max-length 30 --valid-fraction 0.2 --num-workers 1 --device cpu --threads 1"


def train(*argv, **how) -> str:
    return run("train", *SMALL.split(), *argv, **how)


def train_cold(*argv, **how) -> str:
    return cold("train.py", *SMALL.split(), *argv, **how)


@pytest.fixture
def few(enzymes):
    """A folder of eight small chains."""
    return enzymes / "train"


@pytest.mark.slow
def test_interrupted_and_resumed_as_documented(tmp_path, few):
    common = ["--method", "siamdiff", "--level", "residue", "--data", few]
    said = train(*common, "--max-steps", 2, "--out", tmp_path / "a")
    assert "encoder.pt" in said
    assert re.search(r"^1      valid  sequence_loss  +[\d.]+  +[\d.]+ \([\d.]+\)$", said, re.M)  # the summary
    assert re.search(r"valid, \d+ proteins: loss ", said)
    train(*common, "--max-steps", 1, "--out", tmp_path / "b")
    said = train(*common, "--max-steps", 2, "--out", tmp_path / "b")
    assert "resumed from" in said and "at step 1" in said
    a, b = (checkpoint.latest(tmp_path / x)[1]["objective"] for x in "ab")
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert {"loss", "structure_loss", "sequence_loss", "sequence_accuracy"} <= lines(tmp_path / "a")[-1].keys()

    said = train(*common, "--seed", 5, "--out", tmp_path / "b", status=1)
    assert "--seed was 0, is 5" in said

    content = weights.load_encoder_file(tmp_path / "a" / "encoder.pt")
    encoder = ENCODERS[content["encoder"]](content["level"], content["size"], content["preset"])
    weights.load_weights(encoder, content["state"], "encoder.pt")
    assert all(torch.equal(tensor, a[f"seq_mlp.{name}"]) for name, tensor in content["seq_mlp"].items())
    assert len(content["seq_mlp"]) == 6


@pytest.mark.parametrize("ablation", ["none", "no-sequence"])
def test_a_sequence_head_that_has_learned_nothing_is_not_in_the_file(ablation, tmp_path):
    """Scores of mutations would be those of random weights."""
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "tests" / "reading" / "1LCD.pdb.gz", tmp_path / "data")
    options = ["--method", "siamdiff", "--ablation", ablation, "--level", "residue", "--data", tmp_path / "data"]
    options += ["--batch-size", 1, "--valid-fraction", 0, "--max-steps", 1]
    said = train(*options, "--out", tmp_path / "run")
    assert "1 proteins to train on, 0 held out" in said and "warning     no protein is held out" in said
    assert ("seq_mlp" in weights.load_encoder_file(tmp_path / "run" / "encoder.pt")) is (ablation == "none")


@pytest.mark.full
@pytest.mark.slow
def test_two_ranks_stay_in_step(tmp_path, few):
    """Two of them in the default run: tests/reliability/test_ranks.py."""
    options = ["--method", "siamdiff", "--level", "atom", "--preset", "official", "--data", few, "--out", tmp_path]
    options += ["--save-every", 1]
    said = train_cold(*options, "--max-steps", 1, launcher=TWO_RANKS)
    assert "on 2 x cpu" in said and said.count("proteins to train on") == 1
    assert "at step 1" in train(*options, "--max-steps", 2, world=2)
    assert [line["step"] for line in lines(tmp_path) if line["split"] == "train"] == [1, 2]


@pytest.mark.slow
def test_stage_2_from_an_encoder_file(tmp_path, few):
    options = ["--method", "diffpret", "--data", few, "--max-steps", 1]
    train(*options, "--epochs", 5, 0, "--out", tmp_path / "1")
    source = tmp_path / "1" / "encoder.pt"
    said = train(*options, "--epochs", 0, 6, "--init-from", source, "--out", tmp_path / "2")
    assert f"loaded from {source}: encoder.layers" in said and "to be learned: dist_mlp" in said
    assert {line["stage"] for line in lines(tmp_path / "2")} == {2}
    said = train(*options, "--init-from", source, "--preset", "official", "--out", tmp_path / "3", status=1)
    assert f"--preset official, but {source} holds: paper" in said


def test_dry_run_and_errors(tmp_path, few):
    said = train_cold("--dry-run", "--data", few, "--out", tmp_path / "none", "--lr", 0.25)
    assert "parameters" in said and "per epoch" in said and not (tmp_path / "none").exists()
    assert any(line.split() == ["lr", "0.25"] for line in said.splitlines())
    said = train("--dry-run", "--data", few, "--encoder", "esm-gearnet")
    assert ["level", "residue"] in [line.split() for line in said.splitlines()]
    assert "invalid choice: 'x'" in train("--method", "x", status=2)
    for argv, message in (
        (("--encoder", "gvp", "--level", "residue"), "error: the encoder gvp exists at atom level only"),
        (("--level", "residue", "--encoder", "esm-gearnet", "--esm", tmp_path / "x"), "no such file"),
        (("--level", "residue", "--encoder", "esm-gearnet-8M"), "esm-gearnet-8M is of --size paper"),
        (("--device", "cuda"), "error: --device cuda, but this torch sees no GPU"),
    ):
        if "cuda" not in argv or not torch.cuda.is_available():
            said = train(*argv, "--data", few, status=1)
            assert message in said and "Traceback" not in said


@pytest.mark.slow
def test_changed_data_are_not_resumed(enzymes, tmp_path):
    """Their content decides, and not the name of the folder, as when they have moved."""
    shutil.copytree(enzymes / "train", tmp_path / "data")
    options = "--data", tmp_path / "data", "--out", tmp_path / "out", "--level", "residue"
    train(*options, "--max-steps", 1)
    os.utime(tmp_path / "data" / "1000-A.pdb")  # the store is built anew, with the same content
    assert "at step 1" in train(*options, "--max-steps", 2)
    os.rename(tmp_path / "data", tmp_path / "moved")
    options = "--data", os.path.relpath(tmp_path / "moved", ROOT), *options[2:]
    assert "at step 2" in train(*options, "--max-steps", 3)
    shutil.copy(enzymes / "test" / "1011-A.pdb", tmp_path / "moved" / "1000-A.pdb")
    said = train(*options, "--max-steps", 4, status=1)
    assert "with other data: fingerprint was " in said
    assert "Traceback" not in said


@pytest.mark.full
@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_and_its_loaders(tmp_path, few):
    """`train` fails after ten minutes: Python waits at its exit for processes that nobody ended."""
    options = ["--method", "diffpret", "--data", few, "--lr", 1e30, "--max-steps", 9, "--num-workers", 2]
    said = train_cold(*options, "--out", tmp_path, status=1)
    assert "the loss is not finite. Proteins: loss" in said
    assert "error: step " in said and "Traceback" not in said
