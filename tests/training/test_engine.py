"""A run in one process: what it is determined by, its state, how it ends and goes on, and what it leaves behind."""

import gc
import json
import math
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import standin
import torch
from conftest import generator, real_protein
from sklearn.metrics import log_loss
from standin import assert_equal_weights, configure, lines, train
from torch.utils.data import Subset

from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.weights import find_weights
from siamdiff_min.files import ConfigError, SiamDiffError, checksum, read_rows
from siamdiff_min.pretraining import OBJECTIVES, SCHEDULES, SiamDiff
from siamdiff_min.protein.protein import Protein
from siamdiff_min.reading.crops import Crops
from siamdiff_min.statistics import Entropy, Mean, Variance
from siamdiff_min.training import checkpoint, engine, evaluation, ranks
from siamdiff_min.training.config import PRETRAIN
from siamdiff_min.training.engine import Run
from siamdiff_min.training.loader import valid_keys
from siamdiff_min.training.metrics_file import summary
from siamdiff_min.training.presets import LR_DECAYS
from siamdiff_min.training.ranks import Ranks

ALONE = Ranks(torch.device("cpu"))
DATA = Subset(standin.Dataset(40), range(40))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(tmp_path_factory, one_thread):
    out = tmp_path_factory.mktemp("reference")
    return train(configure(out))[0], lines(out)


@pytest.mark.parametrize(
    ("every", "validated"),
    [
        (1, [(1, 10), (1, 20), (2, 20), (2, 30), (2, 40)]),
        (2, [(1, 20), (2, 20), (2, 40)]),
        (3, [(1, 20), (2, 20), (2, 30), (2, 40)]),  # epochs are counted from the first step
    ],
)
def test_a_stage_is_validated_at_its_ends_and_after_some_epochs(every, validated, tmp_path):
    train(configure(tmp_path, "--valid-every", every))
    assert [(x["stage"], x["step"]) for x in lines(tmp_path) if x["split"] == "valid"] == validated


def test_what_a_stage_has_measured_once_has_no_start(tmp_path):
    measured = ({"stage": 1, "loss": 4.0}, {"stage": 2, "loss": 4.5}, {"stage": 2, "loss": 3.5})
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps({"split": "valid", **line}) for line in measured))
    rows = [row.split() for row in summary(tmp_path / "m.jsonl").splitlines()]
    assert rows[1:] == [["1", "valid", "loss", "4"], ["2", "valid", "loss", "4.5", "3.5"]]


def test_a_run_leaves_weights_metrics_and_a_summary(tmp_path, capsys):
    objective, stopped = train(configure(tmp_path))
    assert stopped == 0
    kept = ["checkpoint-000000030.pt", "checkpoint-000000040.pt", "metrics.jsonl", "options.json"]
    assert sorted(os.listdir(tmp_path)) == kept
    assert_equal_weights(checkpoint.latest(tmp_path)[1]["objective"], objective)
    written = lines(tmp_path)
    places = [(line["split"], line["stage"], line["step"]) for line in written]
    assert len(set(places)) == len(places)
    assert {place[1] for place in places if place[2] <= 20 and place[0] == "train"} == {1}
    train_loss = [line["loss"] for line in written if line["split"] == "train"]
    assert train_loss[-1] < train_loss[0]
    measures = {"loss", "structure_loss", "sequence_loss"}
    assert set(written[-1]) == {"step", "epoch", "stage", "split", "samples", *measures} and written[-1]["samples"] == 6
    assert "step     40" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_workers_and_repetition_change_nothing(tmp_path, reference, workers):
    objective, _ = train(configure(tmp_path, "--num-workers", workers))
    assert_equal_weights(objective, reference[0])
    assert lines(tmp_path) == reference[1]


def test_a_run_ends_after_max_minutes_and_goes_on(tmp_path, reference):
    """At least a step, a checkpoint, a validation; the same command goes on, and without the option to the end."""
    for step in (1, 2):
        assert train(configure(tmp_path, "--max-minutes", 1e-9))[1] == 0
        assert checkpoint.latest(tmp_path)[1]["step"] == step
        last = lines(tmp_path)[-1]
        assert (last["split"], last["step"], last["samples"]) == ("valid", step, 6)
    assert_equal_weights(train(configure(tmp_path))[0], reference[0])


class Exact(standin.Objective):
    """Without noise or dropout the parts of a batch make no difference but rounding."""

    def forward(self, protein, generator):
        h = self.encoder(protein.pos)
        loss = torch.nn.functional.cross_entropy(self.sequence(h), protein.residue_type)
        return loss + self.structure(h).square().mean(), {}


def test_accumulation_equals_the_big_batch(tmp_path):
    found = []
    for size in (8, 2):
        config = configure(tmp_path / str(size), "--global-batch-size", 8, "--epochs", 1, 0, "--batch-size", size)
        torch.manual_seed(5)
        found.append(train(config, Exact(norm=False, dropout=0))[0].state_dict())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


class Seeds(standin.Objective):
    """Notes the seed of the generator that it is handed, and that of torch (dropout), for every batch."""

    def forward(self, protein, generator):
        self.seeds = [*getattr(self, "seeds", []), (generator.initial_seed(), torch.initial_seed())]
        return super().forward(protein, generator)


def test_every_part_of_every_step_and_every_held_out_protein_has_random_numbers_of_its_own(tmp_path):
    """Two epochs of five steps, four parts each. Those of a held-out protein are the same in every epoch and run."""
    config = configure(tmp_path, "--global-batch-size", 8, "--batch-size", 2, "--epochs", 1, 1)
    objective, _ = train(config, Seeds(), num_valid=0)
    noise, dropout = zip(*objective.seeds)
    assert len({*noise, *dropout}) == 2 * len(noise) == 2 * 10 * 4
    for other in (["--seed", 0], ["--seed", 7, "--batch-size", 1]):
        config = configure(tmp_path, *other)
        evaluation.evaluate(objective, Subset(standin.Dataset(10), range(10)), config, ALONE)
    measured = [seed for seed, _ in objective.seeds[len(noise) :]]
    once = 10 * evaluation.DRAWS
    assert len({*measured, *noise}) == once + len(noise) and measured[:once] == measured[once:]


class Pieces(torch.utils.data.Dataset):
    """Parts of a protein of 15 residues each."""

    checksum = ""
    collate = staticmethod(Crops.collate)

    def __getitem__(self, key):
        return real_protein(dtype=torch.float32).crop(12 * key[1], 15), f"piece{key[1]}"


def test_the_losses_of_every_held_out_protein_are_written_down(tmp_path):
    """Their means are the values of the run, those of the best constant too."""
    objective = SiamDiff(ENCODERS["gearnet"]("residue", "tiny"), None, SCHEDULES["paper"])
    config, path = configure(tmp_path), tmp_path / "valid.tsv"
    values = evaluation.evaluate(objective, Subset(Pieces(), range(3)), config, ALONE, path)
    titles, *rows = read_rows(path).values()
    assert [(row[0], row[1]) for row in rows] == [(f"piece{i}", str(k)) for i in range(3) for k in range(4)]
    assert titles[:3] == ["protein", "draw", "loss"]
    assert {*titles[2:]} == values.keys() - {"samples"}
    for column, title in enumerate(titles[2:], 2):
        mean = np.mean([float(row[column]) for row in rows])
        if title != "sequence_accuracy":  # its mean is over residues
            assert values[title] == pytest.approx(mean, rel=1e-6), title


@pytest.mark.parametrize("values", [torch.tensor([True, False, True, True]), torch.full((1001,), 0.75).bfloat16()])
def test_logs_of_any_type_are_exact_means_and_plain_numbers_are_refused(values):
    assert ranks.means([{"share": Mean.of(values)}] * 3, ALONE) == {"share": 0.75}
    with pytest.raises(ConfigError, match=r"the objective logs share as a Tensor: take Mean.of\(the values\)"):
        ranks.means([{"share": values.float().mean()}], ALONE)


def test_held_out_batches_see_the_batch_norm_of_rank_0(tmp_path, monkeypatch):
    objective, data, seen = standin.Objective(), Subset(standin.Dataset(9), range(9)), []
    monkeypatch.setattr(evaluation.dist, "broadcast", lambda buffer, source: buffer.fill_(7) if source == 0 else None)

    def measure(number, batch, names):
        seen.append(dict(objective.encoder.norm.named_buffers()))

    batches = valid_keys(data.indices, 4)
    evaluation.each_batch(
        objective, batches, data.dataset, configure(tmp_path), replace(ALONE, rank=1, world=2), measure
    )
    assert len(seen) == 1 and all((buffer == 7).all() for buffer in seen[0].values())


@pytest.mark.parametrize("num", [0, 7, 8, 21])
def test_evaluation_does_not_depend_on_the_number_of_ranks(tmp_path, monkeypatch, num):
    """Every rank is asked in turn, and what they would gather is put together by hand. Nor on seed and batch size."""
    objective, held_out = standin.Objective(), Subset(standin.Dataset(num), range(num))
    config = configure(tmp_path)
    alone = evaluation.evaluate(objective, held_out, config, ALONE)
    assert alone.pop("samples", 0) == num
    other = evaluation.evaluate(objective, held_out, configure(tmp_path, "--seed", 5, "--batch-size", 3), ALONE)
    assert other.pop("samples", 0) == num and other == alone
    monkeypatch.setattr(evaluation.dist, "broadcast", lambda buffer, rank: None)
    for world in (2, 3):
        parts = []
        monkeypatch.setattr(Ranks, "all_gather", lambda self, items, parts=parts: parts.extend(items) or items)
        for rank in range(world):
            evaluation.evaluate(objective, held_out, config, replace(ALONE, rank=rank, world=world))
        monkeypatch.setattr(Ranks, "all_gather", lambda self, items, parts=parts: parts)
        assert ranks.means([], ALONE) == alone  # identical, not close


def test_a_gradient_that_is_not_finite_stops_too(tmp_path, monkeypatch):
    forward = standin.Objective.forward

    def infinite_slope(self, protein, generator):
        loss, logs = forward(self, protein, generator)
        return loss + (self.structure.weight.sum() * 0).sqrt(), logs

    monkeypatch.setattr(standin.Objective, "forward", infinite_slope)
    with pytest.raises(SiamDiffError, match=r"step 1: the loss is finite, but not the gradient of structure\.weight\."):
        train(configure(tmp_path))


@pytest.mark.parametrize(
    "content", ["my notes", "my notes\n", '{"step": 1, "loss": 2}\n', '{"step": 3, "epoch": 0, oops\n', "{}", "\n"]
)
def test_a_metrics_jsonl_of_the_user_is_left_alone(content, tmp_path):
    """What a kill cut off is ours. The same of an options.json."""
    for name, said in {"metrics.jsonl": "is damaged, or not", "options.json": "was not"}.items():
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_text(content)
        with pytest.raises(SiamDiffError, match=rf"{name} {said} written by a run: choose another --out"):
            train(configure(path.parent, "--max-steps", 3))
        assert path.read_text() == content and os.listdir(path.parent) == [name]


def test_half_a_line_of_a_run_that_was_killed_is_cut(tmp_path, reference):
    train(configure(tmp_path, "--max-steps", 30))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 31, "epo')
    train(configure(tmp_path))
    assert lines(tmp_path) == reference[1]


def test_more_epochs_go_on_from_the_end_as_one_longer_run(tmp_path):
    train(configure(tmp_path / "a", "--epochs", 2, 1))
    train(configure(tmp_path / "a", "--epochs", 2, 3))
    train(configure(tmp_path / "b", "--epochs", 2, 3))
    a, b = (checkpoint.latest(tmp_path / name)[1] for name in "ab")
    assert a["step"] == b["step"] == 50
    assert_equal_weights(a["objective"], b["objective"])
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_a_parameter_without_a_gradient_is_a_warning_that_names_it_once(tmp_path, capsys):
    train(configure(tmp_path), standin.Idle())
    said = capsys.readouterr().out
    assert said.count("warning     the loss gives no gradient to encoder.idle.weight, encoder.idle.bias: it stays") == 1


def test_clipping_bounds_the_norm_of_the_gradient(tmp_path, monkeypatch):
    seen, step = [], torch.optim.Adam.step

    def watched(self, *about):
        gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        seen.append(torch.cat(gradients).norm().item())
        return step(self, *about)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    for name, options in {"free": (), "clipped": ("--clip", 0.25)}.items():
        train(configure(tmp_path / name, "--max-steps", 5, *options))
    assert min(seen[:5]) > 0.3 and seen[5:] == pytest.approx([0.25] * 5, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_memory_that_runs_out_names_the_proteins_and_what_helps(training, tmp_path, monkeypatch):
    """The error is torch's own, for more bytes than any machine has."""
    forward = standin.Objective.forward

    def too_large(self, protein, generator):
        return (torch.empty(2**60), {}) if self.training == training else forward(self, protein, generator)

    monkeypatch.setattr(standin.Objective, "forward", too_large)
    size = 4 if training else 1  # a held-out protein is measured alone
    names = ", ".join([r"protein-\d+"] * size)
    with pytest.raises(SiamDiffError, match=rf"memory ran out with {size} residues in a batch: {names}\. Take"):
        train(configure(tmp_path))


def test_resuming_something_else_is_refused(tmp_path, monkeypatch):
    train(configure(tmp_path, "--max-steps", 1))
    with pytest.raises(ValueError, match=r"--seed was 0, is 3. Choose another --out"):
        train(configure(tmp_path, "--seed", 3))
    with pytest.raises(ValueError, match=r"with other data: samples was 40, is 41\. Choose another --out"):
        train(configure(tmp_path), num=41)
    with pytest.raises(ValueError, match="fingerprint was 0123456789ab, is fedcba987654"):
        train(configure(tmp_path), checksum="fedcba9876543210")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="holds checkpoints: choose another"):
        train(configure(Path(), "--resume", "never"))
    with pytest.raises(checkpoint.CheckpointError, match="could not read"):
        train(configure(tmp_path / "other", "--resume", tmp_path / "absent.pt"))
    with pytest.raises(ValueError, match="no proteins"):
        train(configure(tmp_path / "other"), num=0)


def test_other_code_of_a_plugin_is_not_resumed(tmp_path, monkeypatch):
    """Its content counts, and that of the packages that it imports from its folder, and not where it lies."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    plugin, copy = tmp_path / "mine" / "my_plugin.py", tmp_path / "copy" / "my_copy.py"
    for file in (plugin, copy):
        (file.parent / "its_pack").mkdir(parents=True)
        file.write_text("import its_pack.helper\n")
        for name in ("__init__", "helper"):
            (file.parent / "its_pack" / f"{name}.py").write_text("WEIGHT = 1.0\n")
    try:
        train(configure(tmp_path / "out", "--max-steps", 1, "--plugin", plugin))
        for name in ("its_pack", "its_pack.helper"):
            del sys.modules[name]
        train(configure(tmp_path / "out", "--max-steps", 2, "--plugin", copy))
        for file in (copy.parent / "its_pack" / "helper.py", copy):
            text = file.read_text()
            file.write_text(text + "WEIGHT = 3.0\n")
            with pytest.raises(ConfigError, match=r"with other data: code of --plugin was \w+, is "):
                train(configure(tmp_path / "out", "--max-steps", 3, "--plugin", copy))
            file.write_text(text)
    finally:
        for name in ("its_pack", "its_pack.helper", "my_plugin", "my_copy"):
            sys.modules.pop(name, None)


def test_an_option_that_the_builder_of_a_plugin_does_not_take_is_refused(monkeypatch):
    """And left out if it is not given: a variant of SiamDiff need not know `head_dim`."""

    def bend(encoder, level, preset):
        return OBJECTIVES["siamdiff"](encoder, level, preset)

    monkeypatch.setitem(OBJECTIVES, "bend", bend)
    for name in ("ablation", "head_dim"):
        monkeypatch.setitem(PRETRAIN, name, PRETRAIN[name]._replace(only=["bend"]))
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    options = Namespace(method="bend", level="residue", preset="paper", ablation="none", head_dim=None)
    assert isinstance(checkpoint.new_objective(encoder, options), SiamDiff)
    options.ablation = "no-sequence"
    with pytest.raises(TypeError, match=r"bend.* got an unexpected keyword argument 'ablation'"):
        checkpoint.new_objective(encoder, options)


class Poisoned(standin.Objective):
    """Its loss is no number for any protein that is held out."""

    def forward(self, protein, generator):
        self.poison = 1e6 if self.training else -1.0
        return super().forward(protein, generator)


def test_a_validation_that_is_no_number_is_said_each_time(tmp_path, capsys):
    """Training goes on."""
    train(configure(tmp_path, "--epochs", 1, 1), Poisoned())
    said = capsys.readouterr().out
    assert said.count("warning     of the held-out proteins, loss is not finite") == 3  # two epochs, and stage 2 begins


def test_options_json_says_what_the_run_was(tmp_path, monkeypatch):
    """The command, the options, threads, the commit of the package, the plugin, and the file it started from."""
    plugin = tmp_path / "my_noted_plugin.py"
    plugin.write_text("A = 1\n")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", "my folder"])
    monkeypatch.setitem(sys.modules, "my_noted_plugin", None)
    del sys.modules["my_noted_plugin"]  # and again behind this test
    config = configure(tmp_path / "out", "--max-steps", 1, "--plugin", plugin)
    config.init_from = "siamdiff-residue"
    train(config)
    content = json.loads((tmp_path / "out" / "options.json").read_text())
    assert content["command"] == "train.py --data 'my folder'" and content["options"] == vars(config)
    assert content["versions"]["torch"] == torch.__version__ and content["processes"] == "1 x cpu"
    assert (content["data"]["samples"], content["data"]["fingerprint"]) == (40, "0123456789abcdef")
    assert {"field": "backbone", "paper": 4, "released_code": 3, "row": "9"} in content["by preset"]
    assert content["threads"] == torch.get_num_threads() and content["plugins"] == {str(plugin): checksum(plugin)}
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert content["commit"].removesuffix(", changed") == head.stdout.strip()
    weights = {"file": "siamdiff-residue", "sha256": checksum(find_weights("siamdiff-residue"))}
    assert content["started_from"] == weights


def test_resuming_from_a_path(tmp_path, reference, monkeypatch, capsys):
    """A checkpoint of another folder begins a new run. Of a folder that has checkpoints the newest is taken."""
    train(configure(tmp_path / "first", "--max-steps", 13, "--save-every", 1, "--keep", 3))
    source = checkpoint.checkpoints(tmp_path / "first")[0]
    objective, _ = train(configure(tmp_path / "second", "--resume", source))
    assert_equal_weights(objective, reference[0])
    assert lines(tmp_path / "second")[0]["step"] > 13
    with pytest.raises(ConfigError, match="second holds checkpoints: choose another --out"):
        train(configure(tmp_path / "second", "--resume", source))
    monkeypatch.chdir(tmp_path)
    train(configure("first", "--resume", source.with_name("checkpoint-000000012.pt"), "--max-steps", 13))
    assert "checkpoint-000000012.pt at step 12" in capsys.readouterr().out
    train(configure("first", "--max-steps", 14, "--resume", tmp_path / "first"))
    assert "checkpoint-000000013.pt at step 13" in capsys.readouterr().out


@pytest.mark.parametrize("split", [1, 5])
def test_what_the_best_constant_prediction_costs(split):
    """Whatever the batches: entropy of classes, variance of numbers, against scikit-learn and numpy."""
    rng = np.random.default_rng(0)
    classes, numbers, labels = rng.integers(5, size=40), rng.normal(3, 2, 40), rng.integers(2, size=(40, 3))
    records = []
    for part in np.array_split(np.arange(40), split):
        y = torch.from_numpy(labels[part]).double()
        counts = torch.stack([(1 - y).sum(0), y.sum(0)], dim=-1)
        of_classes, of_numbers = (
            Entropy.of(torch.from_numpy(classes[part]), 6),
            Variance.of(torch.tensor(numbers[part])),
        )
        records.append({"classes": of_classes, "numbers": of_numbers, "labels": Entropy(counts)})
    frequencies = np.tile(np.bincount(classes, minlength=6) / 40, (40, 1))
    expected = {"classes": log_loss(classes, frequencies, labels=range(6)), "numbers": numbers.var()}
    expected["labels"] = np.mean([log_loss(column, np.full(40, column.mean())) for column in labels.T])
    assert ranks.means(records, ALONE) == pytest.approx(expected)


def test_the_constant_of_the_sequence_loss_is_averaged_as_the_loss_is():
    """Over residues, then over proteins: that of one answer to all, the best one, beside an encoder that gives it."""
    objective = SiamDiff(ENCODERS["gearnet"]("residue", "tiny"), None, SCHEDULES["paper"])
    protein = Protein.pack([real_protein(name, torch.float32).alpha_carbons() for name in ("1LCD_A", "2BEG")])
    _, logs = objective(protein, generator())
    constant = ranks.means([{"constant": logs["sequence_loss_constant"]}], ALONE)["constant"]
    share = logs["sequence_loss_constant"].sums[0] / 2  # of the classes in the answer
    answer = torch.nn.Linear(objective.encoder.out_dim, 20)
    torch.nn.init.zeros_(answer.weight)
    answer.bias.data = share.clamp(min=1e-30).log()
    objective.seq_mlp = answer
    _, logs = objective(protein, generator())
    assert ranks.means([{"loss": logs["sequence_loss"]}], ALONE)["loss"] == pytest.approx(constant, rel=1e-5)


def test_the_learning_rate_falls_after_six_epochs_without_a_better_one(tmp_path):
    """Those before an interruption count; it waits while nothing can be measured."""
    values, rates = [0.5, *[0.4] * 6, 0.6, *[math.nan] * 9, *[0.4] * 6], []
    for epochs in (4, 23):
        options = "--lr", 0.125, "--weight-decay", 0.25, "--batch-size", 20
        config = configure(tmp_path, *options, "--epochs", 1, epochs - 1)
        run = Run(config, standin.Objective(), DATA, ALONE, ("auroc", "max"))
        engine.begin(run)
        assert {group["weight_decay"] for group in run.optimizer.param_groups} == {0.25}

        def validate(epochs, run=run):
            if run.step != run.stage_2_begins or run.stage == 1:
                rates.append(run.optimizer.param_groups[0]["lr"] / 0.125)
            return {"samples": 6, "auroc": values[round(epochs) - 1]}

        engine.train(run, validate)
    assert rates == pytest.approx([1] * 7 + [0.6] * 16)
    assert run.optimizer.param_groups[0]["lr"] / 0.125 == pytest.approx(0.36)


def rates_of(out) -> list[float]:
    return [line["lr"] for line in lines(out) if line["split"] == "train"]


def test_cosine_decay(tmp_path):
    """From the whole rate to nothing over both stages; a run that was interrupted takes the same path."""
    options = "--lr-decay", "cosine", "--log-every", 1
    whole, _ = train(configure(tmp_path / "a", *options))
    train(configure(tmp_path / "b", *options, "--max-steps", 13))
    assert_equal_weights(whole, train(configure(tmp_path / "b", *options))[0])
    assert rates_of(tmp_path / "a") == pytest.approx([0.005 * (1 + np.cos(np.pi * step / 40)) for step in range(40)])


def test_a_plugin_adds_a_schedule_of_the_rate_by_a_row(tmp_path, monkeypatch):
    monkeypatch.setitem(LR_DECAYS, "warm", lambda step, steps: (step + 1) / steps)
    train(configure(tmp_path, "--lr-decay", "warm", "--log-every", 1, "--max-steps", 4))
    assert rates_of(tmp_path) == pytest.approx([0.01 * k / 40 for k in range(1, 5)])


@pytest.fixture
def losses(monkeypatch):
    """The loss of every step of all runs, in order."""
    found, train_step = [], engine.train_step

    def watched(*about):
        step = train_step(*about)
        found.append(float(sum(logs["loss"].sums[0] for _, logs in step.parts)) / 4)
        return step

    monkeypatch.setattr(engine, "train_step", watched)
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


@pytest.mark.repeats
@pytest.mark.parametrize("stop", [9, 10, 20, 23])
def test_a_resumed_run_has_the_weights_and_the_lines_of_the_uninterrupted_one(stop, tmp_path, reference):
    """Besides them it has the line that was written when it stopped. The next one is over fewer steps."""
    train(configure(tmp_path / "a", "--log-every", 4))
    train(configure(tmp_path / "b", "--log-every", 4, "--max-steps", stop))
    for _ in range(2):  # the second time there is nothing left to do
        assert_equal_weights(train(configure(tmp_path / "b", "--log-every", 4))[0], reference[0])
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
        run = Run(config, objective, DATA, ALONE, ("loss", "min"))
        engine.begin(run)
        engine.train(run, lambda epochs: {})

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
        engine.begin(run)
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


def test_a_loss_that_is_not_finite_names_its_part_of_the_batch_and_keeps_the_weights_before(tmp_path):
    """Protein 13 comes in step 6 of this order: the checkpoint of step 5 is whole, and there is none after it."""
    parts = "--batch-size", 2, "--global-batch-size", 4
    with pytest.raises(SiamDiffError, match=r"step 6: the loss is not finite.*protein-13") as error:
        train(configure(tmp_path, "--save-every", 1, "--seed", 15, *parts), bad=13)
    assert str(error.value).count("protein-") == 2
    state = checkpoint.latest(tmp_path)[1]
    assert state["step"] == 5 and all(torch.isfinite(v).all() for v in state["objective"].values())


# ---- memory does not grow with the number of steps -------------------------------------------------------------------


SOAK = pytest.mark.soak


def resident() -> float:
    """Memory of this process in MB, what it shares with others left out."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.full
@pytest.mark.parametrize("steps, bound", [(200, 5), pytest.param(2300, 5, marks=SOAK)])
def test_memory_does_not_grow(steps, bound, tmp_path, monkeypatch):
    """Megabytes from step 100 to the end, with a save, a validation or a line in the log every few steps."""
    seen, seed_of = [], engine.seed_of

    def measured(*key):  # with three numbers once in every step of the loop
        if len(key) == 3:
            seen.append(key[1])
            if key[1] in (100, steps - 1):
                gc.collect()
                at[key[1]] = resident()
        return seed_of(*key)

    at: dict[int, float] = {}
    monkeypatch.setattr(engine, "seed_of", measured)
    options = "--epochs", steps // 20, "--save-every", 7
    standin.train(standin.configure(tmp_path, *options))
    assert len(seen) >= steps
    growth = at[steps - 1] - at[100]
    assert growth < bound, at


@pytest.mark.full
def test_bfloat16_keeps_nothing_of_shapes_that_are_gone():
    """60 of them took 0.24 GB where the CPU multiplies bfloat16: torch and oneDNN keep a plan of each."""
    code = """
import resource, torch
from siamdiff_min.training.ranks import launch
torch.set_num_threads(1)
layer, peak = torch.nn.Linear(64, 512), []
with launch("cpu", amp="bf16"):
    for rows in range(60):
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.randn(2000 + rows, 64)).sum().backward()
        peak.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peak[-1] - peak[20])
"""
    settings = {
        name: os.environ[name] for name in os.environ.keys() - {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    }
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100e3
