"""Runs side by side: intervals that cover, seeds of one method as one run, tables on the page, as CSV and in LaTeX."""

import csv
import json
import re
import shlex
import subprocess
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from processes import run
from scipy import stats

from benchmarks.probe_report import PAPER
from siamdiff_min import cli
from siamdiff_min.downstream.tasks import TASKS
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.files import SiamDiffError, write_rows
from siamdiff_min.tools.evidence.intervals import mean_interval, range_of, t_interval
from siamdiff_min.tools.evidence.wording import finish
from siamdiff_min.tools.report.comparison import Difference, compare, difference, interval_of
from siamdiff_min.tools.report.runs import EARLIER, HeldOut, RunFolder, of_held_out, read_held_out, read_runs
from siamdiff_min.training.config import pretrain_options
from siamdiff_min.training.results import Predictions, result_of

ROOT = Path(__file__).parents[2]
MEASURES = ("sequence_loss", "structure_loss")


def pretrained(folder: Path, losses, *options, seed: int = 0, noise: float = 2.9, **more: float) -> Path:
    """What train.py leaves in --out: options, a last validation, and the losses (P, draws) of every held-out protein.

    The structure loss is twice the sequence loss; the baseline of a draw tells its noise, which is `noise`.
    """
    config = pretrain_options(["--size", "tiny", "--epochs", "1", "1", "--seed", str(seed), *options])
    folder.mkdir(parents=True)
    (folder / "options.json").write_text(json.dumps({"command": "train.py", "options": vars(config), "steps": 4}))
    lines = [{"step": step, "epoch": step - 1, "split": "valid", "sequence_loss": 2.5} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [["protein", "draw", *MEASURES, "sequence_loss_constant", "clash_rate", *more]]
    for (protein, draw), loss in np.ndenumerate(losses):
        rows.append([f"P{protein}", draw, float(loss), 2 * float(loss), noise, 0.5, *more.values()])
    write_rows(folder / "valid.tsv", rows)
    return folder


def made(name: str, values: np.ndarray, measure: str = "x") -> RunFolder:
    """A pre-trained run of which every protein is known: values (seeds, P)."""
    seeds = [HeldOut([], {measure: of_seed}) for of_seed in values]
    return RunFolder(name, {}, [], [], [], EARLIER, unfinished="", **of_held_out(seeds))


def reported(tmp_path: Path, paths) -> tuple[str, list[dict], list[list[str]]]:
    """What `siamdiff report` writes of these runs: the page, the rows of the CSV file, those of the tabular."""
    options = {name: tmp_path / f"table.{name}" for name in ("out", "csv", "latex")}
    flags = [text for name, path in options.items() for text in (f"--{name}", str(path))]
    assert cli.run("report", [*map(str, paths), *flags]) == 0
    page, table, tabular = (path.read_text() for path in options.values())
    _, *lines, _ = tabular.splitlines()
    cells = [re.sub(r"\\\w+rule | \\\\$", "", line).split(" & ") for line in lines]
    return page, [*csv.DictReader(table.splitlines())], cells


# ---- intervals -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize("of_seeds", [0.0, 0.1, 0.5, 2.0])
def test_intervals_cover_the_truth(of_seeds):
    """95 % of 1,500, whichever of the two sources is the larger one.

    22 proteins as in the demo set, three seeds. Proteins differ by 1, and by .3 from seed to seed. Seeds of the second
    method vary by half as much, and its loss is 0.2 lower.
    """
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(1500):
        proteins = rng.normal(size=22)
        values = []
        for spread in (of_seeds, of_seeds / 2):
            values.append(proteins + spread * rng.normal(size=(3, 1)) + 0.3 * rng.normal(size=(3, 22)))
        first, second = made("a", values[0]), made("b", values[1] - 0.2)
        gain_low, gain_high = difference(first, second, "x").interval
        low, high = interval_of(first, "x")
        alone = t_interval(values[0][0])
        hits.append((low < 0 < high, gain_low < -0.2 < gain_high, alone[0] < 0 < alone[1]))
    both, of_difference, one_seed = np.mean(hits, axis=0)
    assert 0.935 < both < 0.985 and 0.935 < of_difference < 0.985
    if of_seeds == 2:  # proteins alone do not cover what another seed would give
        assert one_seed < 0.4


def test_half_widths_add_up_in_squares():
    """Three proteins, two seeds, by hand. Every protein changes by the same from seed to seed, so nothing is taken off.

    With a run of one seed the interval is that of the proteins alone.
    """
    proteins = np.array([1.0, 2.0, 3.0])
    half = stats.t.ppf(0.975, 2) / np.sqrt(3)  # standard deviation 1
    both = np.hypot(half, stats.t.ppf(0.975, 1))  # variance 2 among two seeds
    one = made("a", proteins[None])
    run = made("b", np.stack([proteins - 1, proteins + 1]))
    assert interval_of(one, "x") == pytest.approx([2 - half, 2 + half])
    assert interval_of(run, "x") == pytest.approx([2 - both, 2 + both])

    # Of two methods that differ in their seeds alone: Welch's test.
    others = np.array([0.0, 0.5, 4.0])
    found = difference(run, made("c", proteins + others[:, None]), "x").interval
    expected = stats.ttest_ind(others, [-1, 1], equal_var=False).confidence_interval()
    assert found == pytest.approx([expected.low, expected.high])


def test_the_difference_of_paired_proteins_is_narrower():
    """Two runs 0.1 apart on every protein, give or take .01, though proteins differ by 1."""
    proteins, noise = np.random.default_rng(0).normal(size=(2, 22))
    gains = 0.1 + 0.01 * noise
    one, two = compare([made("a", proteins[None]), made("b", (proteins + gains)[None])], "x")
    assert one.difference == Difference() and one.interval[1] > 0.2
    expected = stats.ttest_1samp(gains, 0).confidence_interval()
    assert two.difference.interval == pytest.approx([expected.low, expected.high]) and expected.high < 0.12
    assert (two.sources, two.seeds, two.std) == ("held-out proteins", 1, None)


def test_runs_at_another_noise_are_not_compared(tmp_path):
    """One whose baselines are others, by as little as .01 %: no difference, no rank, nothing in bold."""
    proteins = np.random.default_rng(0).random((8, 4))
    noise = {"a": 2.9, "b": 2.9003, "c": 2.9}
    paths = [pretrained(tmp_path / name, proteins + k, noise=x) for k, (name, x) in enumerate(noise.items())]
    found = {row.run.name: row.difference for row in compare(read_runs(paths), "sequence_loss")}
    assert found["a"] == Difference() and found["b"] == Difference(why_not="held out at other noise")
    assert found["c"].gain == pytest.approx(2)
    _, _, (_, *tabular) = reported(tmp_path, paths)
    assert {line[-1] for line in tabular} == {"-", ""}
    assert "bf{" not in str(tabular)
    baselines = [line[1] for line in tabular[1::2]]
    assert baselines == ["2.900", "2.900", "2.900"]


def test_an_interval_ends_where_its_measure_does():
    """Two seeds of a small accuracy; shares that are all 0 or 1, by the exact interval (0 of 10: 0 to .31)."""
    few = made("a", np.array([[0.02, 0.04], [0.1, 0.12]]), "x_accuracy")
    low, high = interval_of(few, "x_accuracy")
    assert low == 0 and 0.3 < high <= 1
    for value, expected in ((0.0, [0, 0.3085]), (1.0, [0.6915, 1])):
        assert mean_interval("x_accuracy", np.full(10, value)) == pytest.approx(expected, abs=1e-4)
    assert mean_interval("x_loss", np.full(10, 1.0)) == [1, 1]
    assert range_of("spearman:kd") == (-1, 1) and range_of("of_a_plugin") == (-np.inf, np.inf)


def test_a_measured_0_stays_and_the_first_run_is_the_first(tmp_path):
    """The next run would else be compared with, under the title "minus a"."""
    runs = read_runs([pretrained(tmp_path / name, np.full((8, 4), k)) for k, name in enumerate("abc")])
    zero, *others = compare(runs, "sequence_loss")
    assert (zero.run.name, zero.mean, zero.difference) == ("a", 0, Difference())
    assert [row.difference.gain for row in others] == [1, 2]
    b, c = compare([replace(runs[0], mean={}), *runs[1:]], "sequence_loss")
    assert b.difference == c.difference == Difference(why_not="not measured in a")


def test_runs_scored_on_other_rows_are_not_compared(tmp_path):
    """Two test splits, and five folds beside them: no difference, no rank; page and file say so."""
    target = np.random.default_rng(0).normal(size=40)
    names = [f"s{i}" for i in range(40)]
    scored = {"a": (slice(30), None), "b": (slice(10, 40), None), "c": (slice(30), 5)}
    for name, (rows, folds) in scored.items():
        model = TASKS["table"](ENCODERS["gearnet"]("residue", "tiny"))
        model.known = {"answer": model.baseline(target[rows])}
        tested = {0: Predictions(names[rows], names[rows], target[rows], 0.9 * target[rows])}
        config = Namespace(task="table", labels="x.tsv", folds=folds)
        result = result_of(config, model, tested, {}, {})
        finish(tmp_path / name / "results.json", result, model, tested)
    page, rows, (_, *tabular) = reported(tmp_path, [tmp_path / name for name in "abc"])
    reasons = {(row["run"], row["difference"] + row["not compared"]) for row in rows}
    assert reasons == {("a", ""), ("b", "scored on other rows"), ("c", "scored on other rows")}
    assert page.count("<td>scored on other rows") == 2 * len({row["measure"] for row in rows})
    assert [line[-1] for line in tabular] == ["-", ""] * 3
    assert "bf{" not in str(tabular)
    own = [baseline[1] for baseline in tabular[1::2]]
    assert own[0] == own[2] != own[1]  # the mean of other rows


def test_a_loss_that_is_another_sum_is_in_the_table_with_the_reason(tmp_path):
    options = "--method siamdiff", "--method diffpret", "--ablation small-noise", "--ablation no-sequence"
    paths = [pretrained(tmp_path / f"r{k}", np.ones((4, 2)), *x.split(), loss=4.0) for k, x in enumerate(options)]
    _, rows, _ = reported(tmp_path, paths)
    reasons = [(row["mean"], row["not compared"]) for row in rows if row["measure"] == "loss"]
    assert reasons == [("4.0", ""), ("4.0", "another sum of losses")] * 2


# ---- valid.tsv, seeds ------------------------------------------------------------------------------------------------


def test_every_protein_counts_once_in_any_order(tmp_path):
    path = tmp_path / "valid.tsv"
    path.write_text("protein\tdraw\tx_loss\nB\t0\t1\nA\t0\t5\nB\t1\t3\nA\t1\tnan\nC\t0\tnan\nC\t1\tnan\n")
    read = read_held_out(path)
    assert np.array_equal(read.values["x_loss"], [5, 2, np.nan], equal_nan=True)
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], *reversed(rows[1:])]))
    assert read_held_out(path).rows == read.rows
    path.write_text("\n".join(rows[:-1]))  # a draw less
    assert read_held_out(path).rows != read.rows


def test_seeds_of_one_method_are_one_run(tmp_path):
    """In folders seed-S of one folder. They may differ in the seed, and in what changes no result."""
    losses = np.arange(6.0).reshape(3, 2) / 10
    seeds = [0, 1, 12]
    for seed in seeds:
        pretrained(tmp_path / "a" / f"seed-{seed}", losses + seed, "--num-workers", str(seed), seed=seed)
    alone = pretrained(tmp_path / "c", losses)
    runs = read_runs([tmp_path / "a", alone, tmp_path / "a" / ".." / "c"])  # one that is named twice is one
    assert [run.name for run in runs] == ["a", "c"]
    a, _ = compare(runs, "sequence_loss")
    assert len(a.run.lines) == a.seeds == 3
    assert [a.mean, a.baseline, a.std] == pytest.approx([0.25 + 13 / 3, 2.9, np.std(seeds, ddof=1)])
    assert np.allclose(a.run.held_out["structure_loss"].mean(0), 2 * (losses.mean(1) + 13 / 3))
    pretrained(tmp_path / "a" / "seed-13", losses, "--lr", "0.1", seed=13)
    with pytest.raises(SiamDiffError, match="a is no run of several seeds: they differ in lr"):
        read_runs([tmp_path / "a"])


# ---- files -----------------------------------------------------------------------------------------------------------


def test_three_runs_of_pretraining_on_a_page_and_in_files(tmp_path):
    """The numbers of the page, the CSV file and the tabular are those of valid.tsv."""
    rng = np.random.default_rng(0)
    proteins = 2 + rng.random((10, 1)) + 0.1 * rng.random((10, 4))
    for name, shifts in {"full": (0.0, 0.02, 0.04), "small": (0.1, 0.12, 0.14), "large": (0.5,)}.items():
        noise = "none" if name == "full" else f"{name}-noise"
        for seed, shift in enumerate(shifts):
            own = proteins + shift + 0.01 * rng.random((10, 1))
            pretrained(tmp_path / name / f"seed-{seed}", own, "--ablation", noise, seed=seed)
    names = ("full", "small", "large")
    paths = [tmp_path / name for name in names]
    page, rows, tabular = reported(tmp_path, paths)
    assert [(row["measure"], row["run"]) for row in rows] == [(measure, run) for measure in MEASURES for run in names]
    full, small, large = rows[:3]
    runs = read_runs(paths)
    gain, interval, *_ = difference(runs[0], runs[1], "sequence_loss")
    found = [float(small[title]) for title in ("difference", "difference low", "difference high")]
    assert found == pytest.approx([gain, *interval]) and 0.05 < found[1] < 0.1
    assert (small["difference over"], large["difference over"]) == ("held-out proteins and seeds", "held-out proteins")

    # On the page: the same, in three digits. Every measure is named once.
    side_by_side = page[page.index("Side by side") : page.index("<h2>Options")]
    for part in (
        f"<td>small<td>3<td>{float(small['mean']):.3g}<td>{float(small['std']):.3g}<td>",
        f"<td>{gain:+.3g}<td>{interval[0]:+.3g} to {interval[1]:+.3g}<td>worse than it",
    ):
        assert part in side_by_side
    assert side_by_side.count("sequence loss") == 1 and "N = 10 held-out proteins" in page and "dots: seeds" in page

    # The tabular: the best bold, the interval behind it, the baseline below; no deviation of one seed.
    mean, std, low, high = (f"{float(full[title]):.3f}" for title in ("mean", "std", "low", "high"))
    best = rf"\textbf{{{mean}$\pm${std}}} {{\scriptsize $[{low}, {high}]$}}"
    assert tabular[1] == ["full", best, tabular[1][2], r"\textbf{1.0}"] and "2.900" in tabular[2]
    assert tabular[5][-1] == "3.0" and r"\pm" not in tabular[5][1]


def scored(folder: Path, task: str, **measures: float) -> Path:
    """A results.json with these means, of two seeds that are .1 apart."""
    folder.mkdir(parents=True)
    seeds = {str(k): {name: mean + 0.1 * k - 0.05 for name, mean in measures.items()} for k in (0, 1)}
    content = {"test": seeds, "mean": measures, "config": {"task": task}, "direction": dict.fromkeys(measures, "max")}
    content |= {"samples": 9, "counts": {"samples": 9, "structures": 9}}
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_mean_ranks_are_those_of_table_2(tmp_path):
    """From the means that the paper prints; equal ones share the better rank. Without one mean there is no rank.

    Folders TASK/METHOD: one method on several tasks is one row.
    """
    paths = []
    expected = {r"a\_b 50\%": "-"}
    for method, (rank, auprc, fmax, auroc, *rho) in [*PAPER["residue"].items()][1:]:
        expected[method] = f"{rank:.1f}"
        paths.append(scored(tmp_path / "ec" / method, "ec", auprc=auprc, fmax=fmax))
        paths.append(scored(tmp_path / "msp" / method, "msp", auroc=auroc))
        paths.append(scored(tmp_path / "psr" / method, "psr", global_spearman=rho[0], mean_spearman=rho[1]))
    paths.append(scored(tmp_path / "ec" / "a_b 50%", "ec", auprc=0.1, fmax=0.1))
    _, _, (titles, *lines) = reported(tmp_path, paths)
    ranks = {line[0].strip(): re.sub(r"\\textbf|[{}]", "", line[-1]) for line in lines[::2]}
    assert ranks == expected and titles[1:4] == ["EC, AUPR", "EC, Fmax", "MSP, AUROC"]
    assert lines[0][1].strip() == r"\textbf{0.878$\pm$0.071}"


def test_two_runs_of_one_name_and_task_share_no_row(tmp_path):
    folders = {"ec": "ec", "ec again": "ec", "msp": "msp"}
    paths = [scored(tmp_path / name / "siamdiff", task, auroc=0.5) for name, task in folders.items()]
    _, _, (_, *lines) = reported(tmp_path, paths)
    assert [line[0].strip() for line in lines[::2]] == [f"{name}/siamdiff" for name in folders]


def test_names_that_latex_would_read_as_commands(tmp_path):
    """A unit such as s^-1, a folder of the user's."""
    path = pretrained(tmp_path / "k_cat ~ s^-1 {50%}", np.ones((3, 1)))
    _, _, (_, (name, *_), _) = reported(tmp_path, [path])
    assert name == r"k\_cat \textasciitilde{} s\textasciicircum{}-1 \{50\%\}"


@pytest.mark.full
def test_the_ablation_of_the_page(tmp_path, enzymes, monkeypatch):
    """The block of docs/commands.md, each run with three steps of stage 2: two methods with intervals."""
    page = (ROOT / "docs" / "commands.md").read_text()
    (block,) = re.findall(r"<!-- run: ablation -->\n```bash\n(.*?)^```$", page, flags=re.M | re.S)
    few = "--level residue --epochs 0 1 --max-steps 3 --num-workers 0 --device cpu --threads 1 --batch-size 2"
    few += f" --data {enzymes} --valid-fraction 0.5"
    said = subprocess.check_output(["bash", "-c", f'siamdiff() {{ echo "$@"; }}\n{block}'], text=True)
    *training, comparing = [shlex.split(line) for line in said.splitlines()]
    assert len(training) == 6
    for _, *options in training:
        run("script in", tmp_path, "train.py", *options, *few.split())
    monkeypatch.chdir(tmp_path)
    command, *options = comparing
    assert cli.run(command, options) == 0
    with open(tmp_path / "ablation.csv", newline="") as file:
        rows = {(row["run"], row["measure"]): row for row in csv.DictReader(file)}
    assert {run for run, _ in rows} == {"none", "small-noise"}
    for measure in MEASURES:
        row = rows["small-noise", measure]
        assert row["seeds"] == "3" and row["difference over"] == "held-out proteins and seeds"
        assert float(row["difference low"]) < float(row["difference"]) < float(row["difference high"])
    assert (tmp_path / "ablation.tex").read_text().count("scriptsize") >= 4
