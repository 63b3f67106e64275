"""Options: Table 5 digit for digit, presets, the help, and what may not change on resuming."""

import sys
from dataclasses import fields, replace
from functools import partial

import pytest

from siamdiff_min.encoders import ENCODERS, ONE_LEVEL
from siamdiff_min.files import ConfigError
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.training.config import TABLE_5, FinetuneConfig, PretrainConfig, parse


def resolved(*argv, world=1):
    return parse(list(argv)).resolve(world)


@pytest.mark.parametrize(
    "argv, max_length, batch_size, lr, epochs",
    [
        ("--method siamdiff --level residue", 150, 16, 1e-4, (25, 25)),
        ("--method siamdiff --level atom", 100, 32, 1e-4, (25, 25)),
        ("--method diffpret --level residue --preset official", 150, 16, 1e-4, (25, 50)),
        ("--method diffpret --level atom", 100, 64, 1e-4, (25, 25)),
        ("--method diffpret --level atom --size tiny", 100, 2, 2e-3, (5, 6)),
        ("--batch-size 3 --lr 0.5 --max-length 9 --epochs 4 --size tiny", 9, 3, 0.5, (4, 4)),
        ("--epochs 4 6 --stages both", 100, 32, 1e-4, (4, 6)),
        ("--epochs 4 6 --stage 1", 100, 32, 1e-4, (4, 0)),
        ("--epochs 4 6 --stages 2", 100, 32, 1e-4, (0, 6)),
        ("--stage 2", 100, 32, 1e-4, (0, 25)),
    ],
)
def test_presets(argv, max_length, batch_size, lr, epochs):
    config = resolved(*argv.split())
    assert (config.max_length, config.batch_size, config.lr, config.epochs) == (max_length, batch_size, lr, epochs)


def test_table_5_has_all_rows():
    assert len(TABLE_5) == 8 + 4  # those of App. F and G, which the table leaves out
    assert all(set(row) == {"residue", "atom"} for row in TABLE_5.values())
    assert TABLE_5["distance"]["residue"] == (100, 128, 1e-3)


def test_global_batch_size():
    assert resolved("--batch-size", "4", world=2).global_batch_size == 8
    assert resolved("--batch-size", "4", "--global-batch-size", "24", world=2).global_batch_size == 24
    with pytest.raises(ValueError, match="12 is not a multiple of 2 processes x --batch-size 4 = 8"):
        resolved("--batch-size", "4", "--global-batch-size", "12", world=2)


def test_every_option_is_explained(capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    for f in fields(PretrainConfig):
        assert f"--{f.name.replace('_', '-')}" in text
        assert f.metadata["help"][:20] in " ".join(text.split())


@pytest.mark.parametrize(
    "argv", ["--method sia", "--batch-size 0", "--valid-fraction 1", "--seed -1", "--save-every 0"]
)
def test_nonsense_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(argv.split())
    assert exit_.value.code == 2
    assert argv.split()[0] in capsys.readouterr().err


def test_numbers_that_cannot_be_are_refused():
    wrong = ("--lr 0", "--lr nan", "--lr -1", "--weight-decay -1", "--num-workers -1", "--threads 0")
    for argv in wrong:
        with pytest.raises(SystemExit):
            parse(argv.split())


def test_runs_that_differ_in_data_encoder_or_start_have_folders_of_their_own():
    assert resolved().out == "runs/siamdiff-atom-paper"
    assert resolved("--encoder", "gvp", "--size", "tiny", "--data", "../own/").out == "runs/siamdiff-gvp-atom-tiny-own"
    known = {"encoder": "gearnet", "level": "residue", "size": "tiny", "preset": "paper"}
    for start, name in {
        "siamdiff-residue": "siamdiff-residue",
        "runs/mine/encoder.pt": "mine-encoder",
        "runs/mine/seed-0/best.pt": "seed-0-best",
        "runs/x-{seed}/encoder.pt": "x-{seed}-encoder",
    }.items():
        config = FinetuneConfig(init_from=start).resolve(1, known)
        assert config.out == f"runs/psr-residue-tiny-from-{name}"
    assert FinetuneConfig(size="paper", data="a.tar").resolve().out == "runs/psr-atom-paper-a.tar-scratch"


def test_changed_options_are_named():
    before = resolved("--seed", "1").plain()
    resolved("--seed", "1", "--out", "elsewhere", "--max-steps", "3", "--num-workers", "2").check_resumable(
        before, "x", 1
    )
    with pytest.raises(ValueError, match=r"--batch-size was 32, is 2.*--seed was 1, is 0"):
        resolved("--batch-size", "2").check_resumable(before, "x", 1)


@pytest.mark.parametrize(
    "before, now, begun, fits",
    [
        ((3, 3), (3, 5), 0, True),
        ((3, 3), (3, 5), 6, True),  # stage 2 grows, though the run was complete
        ((3, 3), (5, 3), 3, True),  # stage 1 grows before stage 2 begins
        ((3, 3), (5, 3), 4, False),
        ((3, 3), (3, 2), 5, True),
        ((3, 3), (3, 2), 6, False),  # more is done than asked for
        (3, 5, 3, True),
        (3, 2, 3, False),
    ],
)
def test_epochs_may_change_where_those_begun_keep_their_stage(before, now, begun, fits):
    config = PretrainConfig(epochs=before).plain()
    check = partial(PretrainConfig(epochs=now).check_resumable, config, "run/checkpoint.pt", begun)
    if fits:
        check()
    else:
        with pytest.raises(ValueError, match=rf"run/checkpoint.pt with --epochs .*: it is in epoch {begun} of"):
            check()


def test_epochs_stay_where_the_learning_rate_depends_on_them():
    before = PretrainConfig(epochs=(3, 3), lr_decay="cosine")
    before.check_resumable(before.plain(), "checkpoint.pt", 2)
    with pytest.raises(ConfigError, match=r"--epochs was \[3, 3\], is \[3, 4\]"):
        replace(before, epochs=(3, 4)).check_resumable(before.plain(), "checkpoint.pt", 2)


def test_the_level_follows_from_the_encoder():
    assert PretrainConfig(encoder="gvp").resolve().level == "atom"
    assert PretrainConfig(method="diffpret", encoder="esm-gearnet-8M").resolve().level == "residue"
    assert FinetuneConfig(task="psr", encoder="esm-gearnet").resolve().level == "residue"
    assert FinetuneConfig(task="psr").resolve().level == "atom"
    for name, level in ONE_LEVEL.items():
        other = {"atom": "residue", "residue": "atom"}[level]
        with pytest.raises(ValueError, match=f"exists at {level} level only .*not at {other} level"):
            ENCODERS[name](other, "tiny")


def test_a_method_without_settings_at_a_level_is_a_sentence(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "toy", OBJECTIVES["angle"])
    monkeypatch.setitem(TABLE_5, "toy", {"atom": TABLE_5["angle"]["atom"]})
    with pytest.raises(ConfigError, match="--method toy exists at atom level, not at residue level"):
        PretrainConfig(method="toy", level="residue").resolve()


def test_what_a_file_holds_that_is_not_known_is_a_sentence():
    """As the encoder of a plugin, without --plugin."""
    for name, value in (("encoder", "mine"), ("size", "huge"), ("preset", "mine"), ("level", "mine"), ("task", "mine")):
        with pytest.raises(ConfigError, match=f"--{name} {value} is none of "):
            FinetuneConfig(init_from="e.pt").resolve(1, {name: value})


def test_options_of_other_methods_and_tasks_are_refused():
    with pytest.raises(ConfigError, match="--head-dim is for diffpret and siamdiff, not for distance"):
        PretrainConfig(method="distance", head_dim=8).resolve()
    with pytest.raises(ConfigError, match="--ablation is for diffpret and siamdiff, not for angle"):
        PretrainConfig(method="angle", ablation="no-sequence").resolve()
    with pytest.raises(ConfigError, match="--predict is for ec and psr and table, not for msp"):
        FinetuneConfig(task="msp", predict="x").resolve()


def test_methods_without_stages():
    def epochs(**options):
        return PretrainConfig(method="angle", **options).resolve().epochs

    assert epochs() == (50,) and epochs(epochs=(7,)) == (7,)
    assert PretrainConfig(method="multiview", level="residue", size="tiny").resolve().batch_size == 8
    for wrong in ({"epochs": (3, 4)}, {"stages": "1"}):
        with pytest.raises(ValueError, match="angle is not trained in stages"):
            epochs(**wrong)


@pytest.mark.parametrize(
    "argv, level, size, batch_size, lr, epochs, max_residues",
    [
        ("--task ec --data x", "residue", "paper", 2, 1e-4, 50, None),
        ("--task pip --data x", "atom", "paper", 8, 1e-4, 10, None),
        ("--task msp --data x", "atom", "paper", 8, 1e-4, 50, 400),
        ("--task msp --data x --level residue", "residue", "paper", 1, 1e-4, 50, None),
        ("--task res --data x", "atom", "paper", 64, 1e-4, 10, None),
        ("--task res --data x --preset official", "atom", "paper", 64, 1e-4, 5, None),
        ("--task psr --data x --level residue", "residue", "paper", 8, 1e-4, 50, None),
        ("--task psr", "atom", "tiny", 8, 1e-3, 8, None),  # the demo
        ("--task psr --lr 0.5 --epochs 3 --batch-size 2 --size paper", "atom", "paper", 2, 0.5, 3, None),
    ],
)
def test_table_6(argv, level, size, batch_size, lr, epochs, max_residues):
    config = parse(argv.split(), FinetuneConfig).resolve()
    assert (config.level, config.size, config.batch_size, config.lr) == (level, size, batch_size, lr)
    assert (config.epochs, config.max_residues, config.seeds) == (epochs, max_residues, (0,))


def test_the_encoder_file_says_what_is_not_given():
    source = {"encoder": "gvp", "level": "atom", "size": "tiny", "preset": "official"}
    config = FinetuneConfig(task="psr", data="x", init_from="e.pt").resolve(1, source)
    assert {name: getattr(config, name) for name in source} == source
    with pytest.raises(ValueError, match=r"--preset paper, but e.pt holds: official"):
        FinetuneConfig(task="psr", init_from="e.pt", preset="paper").resolve(1, source)
    with pytest.raises(ValueError, match=r"--level residue, but best.pt holds: atom"):
        FinetuneConfig(task="psr", eval_only="best.pt", level="residue").resolve(1, source)
    with pytest.raises(ValueError, match=r"--encoder gearnet, but e.pt holds: gvp"):
        PretrainConfig(init_from="e.pt", encoder="gearnet").resolve(1, source)
    config = PretrainConfig(init_from="e.pt").resolve(1, source)
    assert {name: getattr(config, name) for name in source} == source
    with pytest.raises(ValueError, match="--task ec exists at residue level, not at atom level"):
        FinetuneConfig(task="ec", init_from="e.pt").resolve(1, source)


def test_what_is_given_may_not_contradict_a_model():
    model = {"task": "msp", "seeds": (3,), "max_residues": 70, "level": "atom", "size": "tiny", "preset": "paper"}
    given = FinetuneConfig(eval_only="run/seed-3/best.pt")
    config = given.resolve(1, model)
    assert (config.task, config.seeds, config.max_residues, config.out) == ("msp", (3,), 70, "run/seed-3/eval")
    assert replace(given, task="msp", seeds=(3,), max_residues=80).resolve(1, model).max_residues == 80
    with pytest.raises(ConfigError, match=r"--task psr, but run/seed-3/best.pt holds: msp"):
        replace(given, task="psr").resolve(1, model)
    with pytest.raises(ConfigError, match=r"--seeds 3 4, but run/seed-3/best.pt holds: 3"):
        replace(given, seeds=(3, 4)).resolve(1, model)


def test_a_plugin_adds_to_what_can_be_chosen(tmp_path):
    (tmp_path / "a_plugin.py").write_text(
        "from siamdiff_min import OBJECTIVES\nOBJECTIVES['mine'] = OBJECTIVES['distance']\n"
    )
    try:
        with pytest.raises(SystemExit):
            parse(["--method", "mine"])
        assert parse(["--plugin", str(tmp_path / "a_plugin.py"), "--method", "mine"]).method == "mine"
    finally:
        OBJECTIVES.pop("mine", None)
        sys.modules.pop("a_plugin", None)
    for nothing in ("none.py", "no_such_module", "no_such_module.inside"):
        with pytest.raises(ConfigError, match=f"--plugin {nothing}: no such file or module"):
            parse(["--plugin", nothing])
