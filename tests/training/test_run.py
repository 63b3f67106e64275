"""The state of a run: what it averages, what the learning rate follows, what a resumed run takes up, and where."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
import standin
import torch
from standin import configure, lines, train
from torch.utils.data import Subset

from siamdiff_min.files import ConfigError, SiamDiffError
from siamdiff_min.training import checkpoint, engine
from siamdiff_min.training.engine import Run
from siamdiff_min.training.ranks import Ranks

ALONE = Ranks(torch.device("cpu"))
DATA = Subset(standin.Dataset(40), range(40))


@pytest.fixture
def losses(monkeypatch):
    """The loss of every step of all runs, in order."""
    found, minimise = [], engine.minimise

    def watched(*about):
        step = minimise(*about)
        found.append(float(sum(logs["loss"].sums[0] for _, logs in step.parts)) / 4)
        return step

    monkeypatch.setattr(engine, "minimise", watched)
    return found


def trained_lines(out) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(out) if line["split"] == "train"}


def test_a_line_averages_the_last_steps_of_its_stage(tmp_path, losses):
    """Four at a time, ten an epoch: that of an epoch's end was the mean of two steps, and the curves had spikes."""
    train(configure(tmp_path, "--log-every", 4))
    found = trained_lines(tmp_path)
    assert list(found) == [4, 8, 10, 12, 16, 20, 24, 28, 30, 32, 36, 40]
    for step, loss in found.items():
        begin = max(step - 4, 20 if step > 20 else 0)
        assert loss == pytest.approx(np.mean(losses[begin:step]), rel=1e-6), step


@pytest.mark.parametrize("stop", [9, 13, 20, 23])
def test_the_lines_of_a_resumed_run_are_those_of_the_uninterrupted_one(stop, tmp_path):
    """Besides them it has the line that was written when it stopped. The next one is over fewer steps."""
    train(configure(tmp_path / "a", "--log-every", 4))
    train(configure(tmp_path / "b", "--log-every", 4, "--max-steps", stop))
    train(configure(tmp_path / "b", "--log-every", 4))
    whole, resumed = lines(tmp_path / "a"), lines(tmp_path / "b")
    assert [line for line in resumed if line["step"] == stop and line["split"] == "train"]
    for of_run in (whole, resumed):
        of_run[:] = [line for line in of_run if not (line["split"] == "train" and stop <= line["step"] < stop + 4)]
    assert [line for line in resumed if line["step"] != stop] == [line for line in whole if line["step"] != stop]


@pytest.mark.parametrize("stop", [None, 7, 10, 24])
def test_the_learning_rate_follows_the_loss_of_the_epoch(stop, tmp_path, monkeypatch, losses):
    """Of all its steps, those before an interruption included, and of no others."""
    seen = []
    monkeypatch.setattr(torch.optim.lr_scheduler.ReduceLROnPlateau, "step", lambda self, loss: seen.append(loss))

    def go_on(*more):
        torch.manual_seed(0)
        config, objective = configure(tmp_path, "--log-every", 4, *more), standin.Objective()
        engine.train(Run(config, objective, DATA, ALONE, ("loss", "min")), lambda epochs: {})

    if stop:
        go_on("--max-steps", stop)
    go_on()
    assert seen == pytest.approx([sum(losses[i : i + 10]) for i in range(0, 40, 10)], rel=1e-6)


@pytest.mark.parametrize("value", [Path("a.txt"), np.float64(1), {"a": [print]}])
def test_an_option_that_no_checkpoint_can_hold_is_refused_before_the_run(value, tmp_path):
    """A plugin's, as of `option(..., type=Path)`."""
    config = configure(tmp_path)
    config.my_file = value
    with pytest.raises(ConfigError, match=r"--my-file is .*: options must be numbers, words, or lists of them"):
        Run(config, standin.Objective(), DATA, ALONE)
    assert not [*tmp_path.iterdir()]


def test_the_plateau_is_taken_up_again(tmp_path):
    """Three bad epochs before an interruption and three after it are six."""
    config = configure(tmp_path)
    run = Run(config, standin.Objective(), DATA, ALONE, ("auroc", "max"))
    for value in (0.5, 0.4, 0.4, 0.4):
        run.end_epoch({"auroc": value})
    run.save()
    run = Run(config, standin.Objective(), DATA, ALONE, ("auroc", "max"))
    for _ in range(3):
        run.end_epoch({"auroc": 0.4})
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.6 * config.lr)


class Slower(standin.Encoder):
    """An encoder whose first layer learns at a tenth, as ESM-2 does."""

    def lr_factors(self):
        return {"linear.weight": 0.1, "linear.bias": 0.1}


def test_a_part_of_the_encoder_learns_at_a_tenth(tmp_path):
    """In the optimizer, at the start, along the cosine, and when the run is resumed."""
    config, rates = configure(tmp_path, "--lr", 0.5, "--lr-decay", "cosine"), []

    def made() -> Run:
        objective = standin.Objective()
        objective.encoder = Slower(True, 0.1)
        run = Run(config, objective, DATA, ALONE)
        of = {parameter: group["lr"] for group in run.optimizer.param_groups for parameter in group["params"]}
        rates.append({name: of[parameter] for name, parameter in objective.named_parameters()})
        return run

    run = made()
    for name, rate in rates[0].items():
        assert rate == pytest.approx(0.05 if name.startswith("encoder.linear") else 0.5), name
    run.step = 10
    run.prepare()
    run.save()
    made()
    factor = (1 + math.cos(math.pi / 4)) / 2
    assert rates[1] == pytest.approx({name: rate * factor for name, rate in rates[0].items()})


def test_a_checkpoint_of_another_folder_is_not_mixed_with_those_of_this_one(tmp_path, monkeypatch, capsys):
    """One of this folder may be named in any way."""
    for name in ("mine", "other"):
        train(configure(tmp_path / name, "--max-steps", 3, "--save-every", 1, "--keep", 9))
    with pytest.raises(ConfigError, match="mine holds checkpoints: choose another --out"):
        train(configure(tmp_path / "mine", "--resume", tmp_path / "other" / "checkpoint-000000002.pt"))
    monkeypatch.chdir(tmp_path)
    train(configure("mine", "--resume", tmp_path / "mine" / "checkpoint-000000002.pt", "--max-steps", 3))
    assert "checkpoint-000000002.pt at step 2" in capsys.readouterr().out


def test_the_time_of_the_cpu_is_of_this_process(tmp_path):
    """Since it began to train: it rises, and is no longer than the process has worked."""
    begin = time.process_time()
    train(configure(tmp_path, "--log-every", 1))
    times = [json.loads(line)["cpu_seconds"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert times == sorted(times) and 0 < times[0] < times[-1] < time.process_time() - begin


def test_the_folder_of_the_run_stands_for_its_newest_checkpoint(tmp_path, capsys):
    train(configure(tmp_path / "mine", "--max-steps", 2, "--save-every", 1))
    train(configure(tmp_path / "mine", "--max-steps", 3, "--resume", tmp_path / "mine"))
    assert "checkpoint-000000002.pt at step 2" in capsys.readouterr().out


def test_a_loss_that_is_not_finite_stops_though_its_gradient_is(tmp_path, monkeypatch):
    forward = standin.Objective.forward

    def offset(self, protein, generator):
        loss, logs = forward(self, protein, generator)
        return loss + torch.tensor(math.inf), logs

    monkeypatch.setattr(standin.Objective, "forward", offset)
    with pytest.raises(SiamDiffError, match=r"step 1: the loss is not finite\. Proteins: loss inf"):
        train(configure(tmp_path, "--log-every", 1))


def test_weights_before_a_loss_that_is_not_finite_are_kept(tmp_path):
    """Protein 13 comes in step 6 of this order: the checkpoint of step 5 is whole, and there is none after it."""
    with pytest.raises(SiamDiffError, match=r"step 6: the loss is not finite.*protein-13"):
        train(configure(tmp_path, "--save-every", 1, "--seed", 15), bad=13)
    state = checkpoint.latest(tmp_path)[1]
    assert state["step"] == 5 and all(torch.isfinite(v).all() for v in state["objective"].values())
