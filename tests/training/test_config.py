"""Options: Table 5 digit for digit, presets, the help, and what may not change on resuming."""

import inspect
import re
import sys

import pytest
import torch

from siamdiff_min.conventions import CONVENTIONS, OFFICIAL, PAPER
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS, weights
from siamdiff_min.files import ConfigError
from siamdiff_min.names import ONE_LEVEL, STAGED
from siamdiff_min.pretrain import build_objective
from siamdiff_min.pretraining import OBJECTIVES
from siamdiff_min.tools.table.options import table_options
from siamdiff_min.training import config as options
from siamdiff_min.training import presets
from siamdiff_min.training.checkpoint import check_resumable
from siamdiff_min.training.config import (
    PREDICTED,
    PRETRAIN,
    SIZES,
    TABLE_5,
    finetune_options,
    for_seed,
    option,
    pretrain_options,
    printed,
)
from siamdiff_min.training.presets import Settings, differences
from siamdiff_min.training.ranks import Ranks


def pretrain(line="", world=1):
    return pretrain_options(line.split(), world=world)


def finetune(line=""):
    return finetune_options(line.split())


@pytest.mark.parametrize(
    "argv, max_length, batch_size, lr, epochs",
    [
        ("--method siamdiff --level residue", 150, 16, 1e-4, [25, 25]),
        ("--method siamdiff --level atom", 100, 32, 1e-4, [25, 25]),
        ("--method diffpret --level residue --preset official", 150, 16, 1e-4, [25, 50]),
        ("--method diffpret --level atom", 100, 64, 1e-4, [25, 25]),
        ("--method diffpret --level atom --size tiny", 100, 2, 2e-3, [5, 6]),
        ("--batch-size 3 --lr 0.5 --max-length 9 --epochs 4 --size tiny", 9, 3, 0.5, [4, 4]),
        ("--epochs 0 6", 100, 32, 1e-4, [0, 6]),
    ],
)
def test_presets(argv, max_length, batch_size, lr, epochs):
    config = pretrain(argv)
    assert (config.max_length, config.batch_size, config.lr, config.epochs) == (max_length, batch_size, lr, epochs)


@pytest.mark.parametrize(
    "argv", ["--method sia", "--batch-size 0", "--valid-fraction 1", "--seed -1", "--lr 0", "--lr nan", "--epochs -1"]
)
def test_nonsense_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as exit_:
        pretrain(argv)
    assert exit_.value.code == 2
    assert argv.split()[0] in capsys.readouterr().err


def written(folder, kind=weights.ENCODER, name="encoder.pt", **values):
    """A file of weights that says this of itself."""
    identity = {"encoder": "gearnet", "level": "residue", "size": "tiny", "preset": "paper"} | values
    weights.write_weights(folder / name, kind, {"options": {}, "labels": [], **identity, "state": {}})
    return folder / name


def test_weights_of_esm_come_from_one_file(tmp_path):
    source = written(tmp_path, encoder="esm-gearnet-8M")
    assert pretrain(f"--init-from {source}").encoder == "esm-gearnet-8M"
    for read, task in ((pretrain, ""), (finetune, "--task psr --data x")):
        with pytest.raises(ConfigError, match=r"--esm: .*encoder.pt has an ESM-2 of its own. Leave out --esm"):
            read(f"{task} --init-from {source} --esm esm.pt")
    plain = written(tmp_path, name="plain.pt")  # `new_encoder` says that its encoder has none
    assert pretrain(f"--init-from {plain} --esm esm.pt").encoder == "gearnet"


def test_runs_that_differ_in_labels_encoder_or_start_have_folders_of_their_own(tmp_path):
    assert pretrain().out == "runs/siamdiff-atom-paper"
    assert pretrain("--encoder gvp --size tiny --data ../own/").out == "runs/siamdiff-gvp-atom-tiny"  # data may move
    table = tmp_path / "solubility.tsv"
    table.write_text("name\tvalue\na\t1\nb\t2\n")
    labelled = table_options(["--task", "table", "--data", "x", "--labels", str(table)])
    assert labelled.out == "runs/table-solubility-atom-paper-x-scratch"
    for folder in ("mine", "x-0"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder)
    for start, name in {
        "siamdiff-residue": "siamdiff-residue",
        f"{tmp_path}/mine/encoder.pt": "mine-encoder",
        f"{tmp_path}/x-{{seed}}/encoder.pt": "x-{seed}-encoder",
    }.items():
        assert finetune(f"--init-from {start}").out.endswith(f"-from-{name}")
    assert finetune("--size paper --data a.tar").out == "runs/psr-atom-paper-a.tar-scratch"


def test_changed_options_are_named():
    before = vars(pretrain("--seed 1"))
    check_resumable(pretrain("--seed 1 --out elsewhere --max-steps 3 --num-workers 2 --data moved"), before, "x")
    with pytest.raises(ConfigError, match=r"--epochs was \[25, 25\], is \[3, 3\].*--batch-size was 32, is 2.*--glob"):
        check_resumable(pretrain("--batch-size 2 --epochs 3"), before, "x")


LINES = {"siamdiff": "--batch-size 4", "multiview": "--batch-size 4", "angle": ""}


@pytest.mark.parametrize("before, now", [(1, 2), (2, 1), (2, 4), (4, 3), (4, 2), (1, 3)])
@pytest.mark.parametrize("method", LINES)
def test_a_run_goes_on_with_other_processes_as_the_error_says(before, now, method):
    """The same global batch, in parts that fit; a contrast of the proteins of a part needs the same parts."""
    line = f"--method {method} {LINES[method]}"
    saved = vars(pretrain(line, before))
    together = saved["global_batch_size"]
    compared = method == "multiview"
    with pytest.raises(ConfigError, match="cannot resume x with other options: --global-batch-size was") as error:
        check_resumable(pretrain(line, now), saved, "x", now, compared)
    said = re.search(
        r"With (--global-batch-size .*) it goes on, in as many processes as divide (\d+)", str(error.value)
    )
    processes = int(said[2])
    fits = processes % now == 0
    assert fits == (together % (now * saved["batch_size"] if compared else now) == 0)
    goes_on = pretrain(f"--method {method} {said[1]}", now if fits else processes)
    check_resumable(goes_on, saved, "x", now, compared)


def test_a_batch_that_does_not_fit_names_one_that_does():
    with pytest.raises(
        ConfigError, match=r"2 is not a multiple of 2 processes x --batch-size 2 = 4\. Take --batch-size 1"
    ):
        pretrain("--batch-size 2 --global-batch-size 2", 2)
    with pytest.raises(ConfigError, match="Take a multiple, or other processes"):
        pretrain("--batch-size 2 --global-batch-size 4", 3)


def test_an_option_that_a_checkpoint_does_not_know_counts_as_its_default(monkeypatch):
    """Whether the table of options or a preset gives the default."""
    before = vars(pretrain("--size tiny"))
    del before["lr"]  # of the preset
    monkeypatch.setitem(PRETRAIN, "betas", option("schedule of the noise", "sigmoid"))
    check_resumable(pretrain("--size tiny"), before, "x")
    for line, changed in (
        ("--betas cosine", "--betas was 'sigmoid', is 'cosine'"),
        ("--lr 0.5", "--lr was 0.002, is 0.5"),
    ):
        with pytest.raises(ConfigError, match=changed):
            check_resumable(pretrain(f"--size tiny {line}"), before, "x")


def test_more_epochs_of_the_last_stage_go_on_unless_the_learning_rate_has_come_to_its_end():
    check_resumable(pretrain("--epochs 2 5"), vars(pretrain("--epochs 2 3")), "x")
    with pytest.raises(ConfigError, match="--epochs was"):
        check_resumable(pretrain("--epochs 3 5"), vars(pretrain("--epochs 2 3")), "x")
    with pytest.raises(ConfigError, match=r"--epochs was"):
        check_resumable(pretrain("--epochs 4 --lr-decay cosine"), vars(pretrain("--epochs 4 2 --lr-decay cosine")), "x")


def test_an_option_of_a_plugin_may_be_free(monkeypatch):
    monkeypatch.setitem(PRETRAIN, "note", option("a note", free=True))
    monkeypatch.setitem(PRETRAIN, "radius", option("a radius", 1.0, type=float))
    before = vars(pretrain("--note a"))
    check_resumable(pretrain("--note b"), before, "x")
    with pytest.raises(ConfigError, match=r"other options: --radius was 1.0, is 2.0\."):
        check_resumable(pretrain("--note b --radius 2"), before, "x")


def test_an_option_of_some_methods_is_an_argument_of_what_builds_them():
    """Without that it does nothing."""
    for name, described in PRETRAIN.items():
        for method in described.only:
            assert name in inspect.signature(OBJECTIVES[method]).parameters, f"{name} of {method}"


def test_the_level_follows_from_the_encoder():
    assert pretrain("--encoder gvp").level == "atom"
    assert pretrain("--method diffpret --encoder esm-gearnet-8M").level == "residue"
    assert finetune("--task psr --encoder esm-gearnet").level == "residue"
    assert finetune("--task psr").level == "atom"
    for name, level in ONE_LEVEL.items():
        other = {"atom": "residue", "residue": "atom"}[level]
        with pytest.raises(ValueError, match=f"exists at {level} level only .*not at {other} level"):
            ENCODERS[name](other, "tiny")


def test_an_objective_of_another_level_than_its_encoder_is_refused():
    for level, other in (("atom", "residue"), ("residue", "atom")):
        for method in ("siamdiff", "diffpret"):
            with pytest.raises(ConfigError, match=f"the encoder is of {other} level, the objective of {level} level"):
                OBJECTIVES[method](ENCODERS["gearnet"](other, "tiny"), level)


def test_what_a_file_holds_that_is_not_known_is_a_sentence(tmp_path):
    """As the encoder of a plugin, without --plugin."""
    for name, value in (("encoder", "mine"), ("size", "huge"), ("preset", "mine"), ("level", "mine"), ("task", "mine")):
        file = written(tmp_path, **{name: value})
        with pytest.raises(ConfigError, match=f"--{name} {value} of .*encoder.pt is not known here"):
            finetune(f"--init-from {file}")


def test_a_method_of_a_plugin_keeps_its_own_settings_at_every_size(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "toy", OBJECTIVES["angle"])
    monkeypatch.setitem(TABLE_5, "toy", {"atom": Settings(70, 16, 0.3)})
    for size in SIZES:
        config = pretrain(f"--method toy --size {size}")
        assert (config.max_length, config.batch_size, config.lr) == (70, 16, 0.3)
    assert (config.size, config.epochs) == ("tiny", [11])
    monkeypatch.delitem(TABLE_5, "toy")
    with pytest.raises(ConfigError, match="--method toy needs a row in TABLE_5"):
        pretrain("--method toy")


def test_a_variant_of_siamdiff_has_both_stages_if_it_says_so_and_a_warning_otherwise(monkeypatch, capsys):
    monkeypatch.setitem(OBJECTIVES, "toy", OBJECTIVES["siamdiff"])
    monkeypatch.setitem(TABLE_5, "toy", {"residue": Settings(70, 16, 0.3)})
    argv = "--method toy --level residue --size tiny"
    build_objective(pretrain(argv), Ranks(torch.device("cpu")))
    assert "warning     toy is trained in stage 1 alone" in capsys.readouterr().out
    STAGED.append("toy")
    try:
        config = pretrain(f"{argv} --ablation no-sequence")
        objective = build_objective(config, Ranks(torch.device("cpu")))
    finally:
        STAGED.remove("toy")
    assert config.epochs == [12, 12] and not objective.stages[2].weight_sequence
    assert "warning" not in capsys.readouterr().out


def test_a_task_of_a_plugin_can_be_applied_if_it_says_so(monkeypatch):
    monkeypatch.setitem(TASKS, "toy", TASKS["psr"])
    with pytest.raises(ConfigError, match="--predict is for ec and psr and table, not for toy"):
        finetune("--task toy --predict new")
    PREDICTED.append("toy")
    try:
        assert finetune("--task toy --predict new").predict == ["new"]
    finally:
        PREDICTED.remove("toy")


@pytest.mark.parametrize(
    "read, argv, said",
    [
        (pretrain, "--method torsional --level residue", "--method torsional exists at atom level, not at residue"),
        (pretrain, "--method distance --head-dim 8", "--head-dim is for diffpret and siamdiff, not for distance"),
        (pretrain, "--method angle --ablation no-sequence", "--ablation is for diffpret and siamdiff, not for angle"),
        (pretrain, "--method angle --epochs 3 4", "--epochs 3 4: angle has 1 of them, and needs one above 0"),
        (pretrain, "--epochs 1 2 3", "--epochs 1 2 3: siamdiff has 2 of them"),
        (pretrain, "--epochs 0", "--epochs 0 0: siamdiff has 2 of them"),
        (pretrain, "--method multiview --batch-size 1", "multiview contrasts the proteins of a batch"),
        (finetune, "--task msp --predict x", "--predict is for ec and psr and table, not for msp"),
        (finetune, "--task pip --max-residues 300", "--max-residues: pip sees no more than the surroundings of a res"),
        (finetune, "--seeds 1 1", "--seeds must be different, got 1 1"),
        (finetune, "--task psr --labels x.tsv", "--labels is for table, not for psr"),
    ],
)
def test_options_that_do_not_fit_are_a_sentence(read, argv, said):
    with pytest.raises(ConfigError, match=said):
        read(argv)


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
    config = finetune(argv)
    assert (config.level, config.size, config.batch_size, config.lr) == (level, size, batch_size, lr)
    assert (config.epochs, config.max_residues, config.seeds) == ([epochs], max_residues, [0])


def test_the_encoder_file_says_what_is_not_given(tmp_path):
    source = {"encoder": "gvp", "level": "atom", "size": "tiny", "preset": "official"}
    file = written(tmp_path, **source)
    for config in (finetune(f"--task psr --data x --init-from {file}"), pretrain(f"--init-from {file}")):
        assert {name: getattr(config, name) for name in source} == source
    with pytest.raises(ConfigError, match=r"--preset paper, but .* holds: official\. Leave out --preset"):
        finetune(f"--task psr --init-from {file} --preset paper")
    with pytest.raises(ConfigError, match=r"--encoder gearnet, but .*encoder.pt holds: gvp"):
        pretrain(f"--init-from {file} --encoder gearnet")
    with pytest.raises(ConfigError, match="--task ec exists at residue level, not at atom level"):
        finetune(f"--task ec --init-from {file}")


def test_a_users_own_values_in_an_encoder_file_are_no_options(tmp_path):
    """`Encoder.save(path, **values)` takes any name: `task` was looked for among the options of train.py."""
    file = written(tmp_path, task="psr", seeds=[3], epochs=9, metric="mae", max_residues=7, out="elsewhere")
    plain = pretrain(f"--init-from {written(tmp_path, name='plain.pt')}")
    ours = {**vars(pretrain(f"--init-from {file}")), "init_from": plain.init_from, "out": plain.out}
    assert ours == vars(plain)
    config = finetune(f"--init-from {file} --data x")
    assert (config.seeds, config.epochs, config.metric, config.max_residues) == ([0], [8], None, None)


def test_the_first_source_that_knows_an_option_decides(tmp_path):
    """Command line, file, size, preset, the rest: each step is left out in turn, and the next one decides."""
    file = written(tmp_path, level="atom", size="small", preset="official")
    start = f"--init-from {file} --method diffpret"
    assert pretrain(start + " --epochs 3").epochs == [3, 3]  # the command line
    config = pretrain(start + " --batch-size 6", world=2)
    assert (config.size, config.batch_size, config.global_batch_size) == ("small", 6, 12)
    assert config.epochs == [25, 25]  # the size of the file, before its preset
    assert pretrain("--method diffpret --preset official").epochs == [25, 50]  # the preset
    assert config.max_length == 100  # Table 5, which a size leaves as it is


def test_what_is_given_may_not_contradict_a_model(tmp_path):
    (tmp_path / "seed-3").mkdir()
    model = written(tmp_path / "seed-3", weights.MODEL, "best.pt", task="msp", seed=3, max_residues=70, level="atom")
    config = finetune(f"--eval-only {model}")
    assert (config.task, config.seeds, config.max_residues) == ("msp", [3], 70)
    assert config.out == f"{tmp_path}/seed-3/eval"
    assert finetune(f"--eval-only {model} --task msp --seeds 3 --max-residues 80").max_residues == 80
    for given, held in (("--task psr", "msp"), ("--seeds 3 4", "3"), ("--level residue", "atom")):
        with pytest.raises(ConfigError, match=rf"{given}, but .*best.pt holds: {held}"):
            finetune(f"--eval-only {model} {given}")


def test_every_seed_has_a_folder_and_a_start_of_its_own(tmp_path):
    for seed in (4, 5):
        written(tmp_path, name=f"{seed}.pt")
    config = finetune(f"--seeds 4 5 --init-from {tmp_path}/{{seed}}.pt --out x")
    assert [for_seed(config, seed).init_from for seed in config.seeds] == [f"{tmp_path}/4.pt", f"{tmp_path}/5.pt"]
    assert (for_seed(config, 5).out, for_seed(config, 5).seed) == ("x/seed-5", 5)


@pytest.mark.parametrize("parent, staged", [("siamdiff", ["bend"]), ("multiview", [])])
def test_a_variant_with_the_row_of_its_parent_is_trained_as_it(monkeypatch, parent, staged):
    """Rate, batch, crop and epochs; also of multiview, whose batches are larger at --size tiny."""
    for module in (options, presets):
        monkeypatch.setattr(module, "STAGED", [*STAGED, *staged])
    monkeypatch.setitem(OBJECTIVES, "bend", OBJECTIVES[parent])
    monkeypatch.setitem(TABLE_5, "bend", TABLE_5[parent])
    for line in ("--level atom", "--size small --level residue", "--size tiny --level residue"):
        one, two = (vars(pretrain(f"--method {name} {line}")) for name in (parent, "bend"))
        assert {name for name in one if one[name] != two[name]} == {"method", "out"}


@pytest.mark.parametrize(
    "line, rows",
    [
        ("", "3 8 9 10 12 15 16 17 18 19 2 1,2,11 1,2,11"),
        ("--level residue --size tiny", "3 8 15 16 19 1,2,11 1,2,11"),  # the size decides on epochs
        ("--method diffpret --epochs 3", "3 8 9 10 15 16 19 1,2,11 1,2,11"),
        ("--ablation no-clash-check", "3 8 9 10 15 16 17 18 19 2 1,2,11 1,2,11"),
        ("--ablation no-sequence", "12 15 16 17 18 19 2 1,2,11 1,2,11"),
        ("--method torsional", "15 16 17 18 19 1,2,11"),
        ("--method multiview --encoder gvp", "15 16 28 31"),  # no crop of its own
        ("--method residue-type+angle --level residue", "3 8 15 16 19 26"),
    ],
)
def test_a_run_says_what_its_preset_decides(line, rows):
    """By field, paper, released code and row of differences.md; the fields are those of the two records."""
    config = pretrain(line)
    found = differences(config)
    assert " ".join(x.row.replace(" ", "") for x in found) == rows
    for x in found:
        if hasattr(PAPER, x.field):
            assert (x.paper, x.released_code) == (getattr(PAPER, x.field), getattr(OFFICIAL, x.field))
        assert x.paper != x.released_code and f"{x.field:21}  {x.paper!s:47}  {x.released_code!s}" in printed(config)


def test_what_a_preset_decides_names_the_one_of_the_run():
    for preset in ("paper", "official"):
        assert f"  {preset} (this run)  " in printed(pretrain(f"--preset {preset}"))
        assert printed(pretrain(f"--preset {preset}")).count("this run") == 1


@pytest.mark.parametrize(
    "line, noise",
    [
        ("", ["t 10..100", "t 1..9"]),
        ("--ablation small-noise", ["t 1..1", "t 1..1"]),
        ("--ablation no-sequence", ["weights 1, 0", "weights 1, 0"]),
        ("--method torsional", ["t 1..100"]),
    ],
)
def test_a_run_says_which_noise_it_trains_on(line, noise):
    """That of its ablation, not that of the whole method."""
    told = [x.paper for x in differences(pretrain(line)) if x.field.startswith("noise")]
    assert len(told) == len(noise) and all(part in of_stage for part, of_stage in zip(noise, told))


def test_a_task_says_what_its_preset_decides():
    rows = {"res": "8 15 16 22", "psr": "15 16 21", "pip": "15 16"}
    for task, expected in rows.items():
        assert " ".join(x.row for x in differences(finetune(f"--task {task} --size paper"))) == expected


def test_another_seed_has_another_folder():
    assert pretrain("--seed 3 --size tiny").out == pretrain("--size tiny").out + "-seed-3"
    assert pretrain("--seed 3 --size tiny --out here").out == "here"


def test_a_preset_of_a_plugin_has_the_epochs_of_the_paper(monkeypatch):
    monkeypatch.setitem(CONVENTIONS, "mine", CONVENTIONS["paper"])
    assert pretrain("--preset mine").epochs == pretrain("").epochs


def test_plugins_add_to_what_can_be_chosen_and_each_has_a_name_of_its_own(tmp_path, monkeypatch):
    """Python knows modules by their names: a second one of a name would be left out."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in ("a/one_plugin.py", "b/one_plugin.py", "b/json.py", "b/a.v2.py", "b/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    code = "from siamdiff_min import OBJECTIVES\nfrom siamdiff_min.training.config import TABLE_5\n"
    code += "OBJECTIVES['mine'], TABLE_5['mine'] = OBJECTIVES['distance'], TABLE_5['distance']\n"
    (tmp_path / "b" / "other_plugin.py").write_text(code)
    try:
        with pytest.raises(SystemExit):
            pretrain("--method mine")
        both = f"--plugin {tmp_path}/a/one_plugin.py --plugin {tmp_path}/b/other_plugin.py"
        assert pretrain(f"{both} --method mine").method == "mine" and "one_plugin" in sys.modules
        for name in ("one_plugin", "json"):
            with pytest.raises(ConfigError, match=rf"b/{name}\.py: another module has its name, .*{name}.*Rename it"):
                pretrain(f"--plugin {tmp_path}/b/{name}.py")
    finally:
        OBJECTIVES.pop("mine", None), TABLE_5.pop("mine", None)
        sys.modules.pop("one_plugin", None), sys.modules.pop("other_plugin", None)
    for name in ("none.py", "a.v2.py", "a.txt"):
        with pytest.raises(ConfigError, match=rf"--plugin .*{re.escape(name)}: no such file, or its name is not NAME"):
            pretrain(f"--plugin {tmp_path}/b/{name}")
