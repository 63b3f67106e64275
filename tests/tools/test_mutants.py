"""From a structure and measured mutants to the next batch: the model against refits, what the verdict says, the command
as the page prints it.
"""

import csv
import importlib
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import siamdiff_min
from siamdiff_min import ConfigError, Protein
from siamdiff_min.cli import main
from siamdiff_min.encoders.ops import MLP
from siamdiff_min.encoders.weights import load_encoder, load_encoder_file
from siamdiff_min.pretraining.diffusion import hide_residues
from siamdiff_min.protein.constants import ONE_LETTER
from siamdiff_min.tools import mutation_model
from siamdiff_min.tools.mutation_model import (
    Effects,
    Mutation,
    PositionFeatures,
    Prior,
    leave_out_errors,
    leaving,
    log_odds,
)
from siamdiff_min.tools.mutation_names import Positions
from siamdiff_min.tools.ranking import Ranking, known_features, rank_mutants
from siamdiff_min.tools.verdict import FLOOR, MEAN, Comparison, Deal, trust

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "protein_g.pdb.gz"
EXAMPLE_FILES = EXAMPLE.name, "protein_g.csv"
with (ROOT / "examples" / "protein_g.csv").open() as _file:
    MEASURED = [(row["mutation"], float(row["ddG"])) for row in csv.DictReader(_file)]


@pytest.fixture(scope="session")
def kept(tmp_path_factory) -> Path:
    """The log-odds of the example: seconds, once."""
    path = tmp_path_factory.mktemp("mutants") / "log-odds.npz"
    structure = siamdiff_min.read_structure(EXAMPLE)
    known_features(structure, Positions.of(structure, None).residues, path)
    return path


@pytest.fixture(scope="session")
def ranking(kept) -> Ranking:
    return rank_mutants(EXAMPLE, MEASURED, lower_is_better=True, kept=kept)


def random_features(num_residues: int = 12, seed: int = 0) -> PositionFeatures:
    rng = np.random.default_rng(seed)
    wild = rng.integers(20, size=num_residues)
    odds = rng.normal(size=(2, num_residues, 20))
    neighbours = rng.integers(3, 30, size=(num_residues, 2)).astype(float)
    return PositionFeatures(wild, neighbours, rng.normal(size=(2, num_residues, 30)), odds)


def some_mutants(features: PositionFeatures, count: int, seed: int = 0) -> list:
    """The wild type, single, double and triple mutants."""
    rng, found = np.random.default_rng(seed), [()]
    while len(found) < count:
        positions = rng.choice(len(features.wild), rng.integers(1, 4), replace=False)
        found.append(
            tuple(sorted(Mutation(int(i), int((features.wild[i] + rng.integers(1, 20)) % 20)) for i in positions))
        )
    return found


# ---- log-odds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tolerance"), [("siamdiff-residue", 1e-4), ("siamdiff-atom", 0.15)])
def test_log_odds_are_those_of_the_whole_structure_masked_once_for_each_residue(name, tolerance):
    """At residue level this protein lies within the surroundings; at atom level a little is cut off."""
    protein, rows = siamdiff_min.read_structure(EXAMPLE).protein, [0, 7, 25, 33, 55]
    encoder, state = load_encoder(name, "cpu"), load_encoder_file(name)["seq_mlp"]
    head = MLP(encoder.out_dim, *[len(x) for key, x in state.items() if key.endswith("weight")])
    head.load_state_dict(state)
    expected = []
    with torch.inference_mode():
        for row in rows:
            hidden = encoder.builder.select_nodes(hide_residues(protein, torch.tensor([row]), 4))
            logs = head(encoder(hidden).residue[row]).log_softmax(-1)
            expected.append(logs - logs[protein.residue_type[row]])
    counted = []
    found = log_odds(name, protein, [[row] for row in rows], lambda: counted.append(1))
    assert np.abs(found - torch.stack(expected).numpy()).max() < tolerance
    assert sum(counted) == len(rows) and found.std() > 0.5


def test_far_residues_change_nothing():
    """Two copies of the protein, 200 angstrom apart."""
    protein = siamdiff_min.read_structure(EXAMPLE).protein
    pos = torch.cat([protein.pos, protein.pos + 200])
    double = Protein.pack([protein, protein])
    double = Protein(**{**vars(double), "pos": pos, "residue_protein": double.residue_protein * 0, "num_proteins": 1})
    one, two = (log_odds("siamdiff-residue", p, [[3], [40]]) for p in (protein, double))
    np.testing.assert_allclose(one, two, atol=1e-4)


# ---- the model -------------------------------------------------------------------------------------------------------


def test_effects_add_up():
    features = random_features()
    known = some_mutants(features, 40)
    model = Effects(Prior(features, known), np.random.default_rng(1).normal(size=40))
    (wild_type, *values), _ = model.predict([(), *known[1:]])
    singles = {x: model.predict([(x,)])[0][0] - wild_type for mutant in known for x in mutant}
    np.testing.assert_allclose(values, [wild_type + sum(singles[x] for x in mutant) for mutant in known[1:]])


@pytest.mark.parametrize("floor", [False, True])
def test_positions_left_out_in_closed_form_are_those_of_a_refit(floor):
    """A multiple mutant leaves with all of its positions."""
    features = random_features(30)
    known = some_mutants(features, 60)
    y = np.random.default_rng(1).normal(size=60)
    model = Effects(Prior(features, known, floor), y)
    kernel = model.covariance(known, known) + model.noise * np.eye(60)
    rest = (y - model.centre) / model.scale - model.prior.expected(known)
    for i, mutant in enumerate(known):
        mine = {x.position for x in mutant}
        stay = [k for k, m in enumerate(known) if not mine & {x.position for x in m} and k != i and (mutant or m)]
        weights = np.linalg.solve(kernel[np.ix_(stay, stay)], kernel[stay, i])
        expected = y[i] - model.scale * (rest[i] - weights @ rest[stay])
        assert model.left_out[i] == pytest.approx(expected, abs=1e-8)
        spread = model.scale * np.sqrt(kernel[i, i] - weights @ kernel[stay, i])
        assert model.left_out_spread[i] == pytest.approx(spread, abs=1e-8)


def test_mutants_of_the_same_positions_leave_alone():
    """If all mutants share a position, nothing would remain without it."""
    features = random_features()
    one, two = features.wild[:2]
    known = [(Mutation(0, int(one + k) % 20), Mutation(1, int(two + k) % 20)) for k in range(1, 20)]
    np.testing.assert_array_equal(leaving(known), np.eye(19))
    errors, variance = leave_out_errors(np.eye(19), leaving(known))
    np.testing.assert_allclose(errors @ np.ones(19), 1)
    np.testing.assert_allclose(variance, 1)


def test_intervals_hold_nine_of_ten_new_values():
    features, held, covered, rho = random_features(40, seed=2), [], [], []
    singles = [(Mutation(i, t),) for i in range(40) for t in range(20) if t != features.wild[i]]
    covariance = Prior(features, singles[:2]).effect_covariance(singles, singles)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = rng.multivariate_normal(np.zeros(len(singles)), covariance) + rng.normal(size=len(singles)) * 0.5
        known, new = np.split(rng.permutation(len(y)), [100])
        model = Effects(Prior(features, [singles[i] for i in known]), y[known])
        value, half = model.predict([singles[i] for i in new])
        held.append(np.mean(np.abs(value - y[new]) <= half))
        covered.append(trust(model).covered)
        rho.append(np.corrcoef(value, y[new])[0, 1])
    assert 0.86 < np.mean(held) < 0.95 and 0.86 < np.mean(covered) < 0.95 and np.mean(rho) > 0.5


# ---- mutations as text -----------------------------------------------------------------------------------------------


POSITIONS = Positions([[4], [5], [6], [9]], [("A", 52, ""), ("A", 52, "a"), ("A", -3, ""), ("B", 52, "")], "AGLV")


@pytest.mark.parametrize(
    ("text", "mutant"),
    [("A52G", "A:A52G"), ("A:A52G", "A:A52G"), ("B:V52W", "B:V52W"), ("G52aK", "A:G52aK"), ("L-3P", "A:L-3P")]
    + [(f"A52G{sign}L-3P", "A:A52G/A:L-3P") for sign in ("/", ":", "+", ",", ";", " ", " / ", ", ")]
    + [("L-3P/A52G", "A:A52G/A:L-3P"), ("WT", "WT"), ("wild type", "WT"), ("A52A", "WT")],
)
def test_mutations_are_read_as_people_write_them(text, mutant):
    assert POSITIONS.name(*POSITIONS.read([text])) == mutant


def test_all_misfits_are_one_sentence():
    with pytest.raises(ConfigError) as error:
        POSITIONS.read(["A52G", "A53G", "C52G", "C:A52G", "A52", "A52G/A52K", "X52A", "A52B"])
    text = str(error.value)
    assert text.startswith("7 mutations do not fit the structure: A53G (no such residue), C52G (the structure has A)")
    assert "C:A52G (chain C is not among those of --chain)" in text
    assert text.endswith("A52K (a second mutation there in A52G/A52K) and 2 more") and "\n" not in text
    with pytest.raises(ConfigError, match=r"structure: A52 \(is no mutation like A52G\)$"):  # no shift would help
        POSITIONS.read(["A52G", "G52aK", "L-3P", "A52"])


def test_the_shift_that_would_fit_is_said():
    structure = siamdiff_min.read_structure(EXAMPLE)
    positions = Positions.of(structure, None)
    shifted = [f"{text[0]}{int(text[1:-1]) + 3}{text[-1]}" for text, _ in MEASURED]
    with pytest.raises(ConfigError, match=r"; all fit if -3 is added to the numbers \(--shift -3\)$"):
        positions.read(shifted)
    assert positions.read(shifted, shift=-3) == positions.read(text for text, _ in MEASURED)


# ---- the ranking, and what it says of itself -------------------------------------------------------------------------


def test_the_example_is_better_than_chance_and_than_its_floor(kept, ranking):
    assert ranking.verdict.startswith("better than chance")
    assert any(line.startswith("better than types and burial") for line in ranking.trust.sentences)
    predicted = [row["predicted"] for row in ranking.rows]
    assert predicted == sorted(predicted) and all(row["low"] < row["predicted"] < row["high"] for row in ranking.rows)
    assert len(ranking.rows) == 56 * 19 - len(MEASURED)
    assert not {row["mutation"] for row in ranking.rows} & dict(MEASURED).keys()
    assert len(ranking.next) == 96 and max(Counter(row["mutation"][:-1] for row in ranking.next).values()) == 2
    (value, low, high), (double, *_), (wild_type, *_) = ranking.predict("T25E", "T25E/V29K", "WT")
    assert low < value < high
    assert double == pytest.approx(value + ranking.predict("V29K")[0][0] - wild_type)
    assert "--lower-is-better" in rank_mutants(EXAMPLE, MEASURED, kept=kept).trust.sentences[-1]


def test_twelve_are_too_few_and_noise_is_not_told_apart_from_chance(kept):
    few = rank_mutants(EXAMPLE, MEASURED[::8], lower_is_better=True, kept=kept)
    assert few.verdict == "too few to say: it takes 24 mutants at 8 positions" and few.trust is None
    said = []
    for seed in range(3):
        shuffled = np.random.default_rng(seed).permutation([y for _, y in MEASURED])
        said.append(rank_mutants(EXAMPLE, zip((x for x, _ in MEASURED), shuffled), kept=kept).verdict)
    assert sum(text.startswith("not told apart from chance: do not use it") for text in said) >= 2


def test_without_measurements_the_log_odds_rank(kept):
    ranking = rank_mutants(EXAMPLE, kept=kept)
    assert [row["ranking"] for row in ranking.rows] == sorted((row["ranking"] for row in ranking.rows), reverse=True)
    assert ranking.verdict.startswith("nothing measured") and len(ranking.rows) == 56 * 19
    with pytest.raises(ConfigError, match="nothing was measured"):
        ranking.predict("T25E")


def test_repeats_are_averaged_gaps_left_out_and_exploring_prefers_wide_intervals(kept):
    pairs = [*MEASURED, (MEASURED[0][0], MEASURED[0][1] + 1), ("T25E", np.nan)]
    pairs = [(f"{text[0]}{int(text[1:-1]) + 3}{text[-1]}", value) for text, value in pairs]
    ranking = rank_mutants(EXAMPLE, pairs, kept=kept, explore=1.0, shift=-3)
    assert ranking.measured[MEASURED[0][0]] == pytest.approx(MEASURED[0][1] + 0.5) and "T25E" not in ranking.measured
    assert ranking.notes == [
        "1 mutants were measured more than once, with a scatter of 0.707",
        "results have the structure's numbers: -3 to the table's",
    ]
    high = [row["high"] for row in ranking.rows]
    assert high == sorted(high, reverse=True)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_page_runs_as_printed(kept, ranking, tmp_path, monkeypatch, capsys):
    """Log-odds that are kept are not computed again. The numbers of the page are those of the run."""
    page = (ROOT / "docs" / "mutants.md").read_text()
    (command,) = re.findall(r"^siamdiff (mutants .*--measured .*)$", page, flags=re.M)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=lambda _, names: {*names} - {*EXAMPLE_FILES})
    (tmp_path / "protein_g").mkdir()
    shutil.copy(kept, tmp_path / "protein_g" / "log-odds.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mutation_model, "log_odds", None)
    assert main(command.split()) == 0
    for line in capsys.readouterr().out.splitlines()[:3]:
        assert line in page
    header, *rows = [line.split("\t") for line in (tmp_path / "protein_g" / "next.tsv").read_text().splitlines()]
    assert header == [*ranking.next[0]] and [row[0] for row in rows] == [row["mutation"] for row in ranking.next]
    with np.load(tmp_path / "protein_g" / "model.npz", allow_pickle=False) as model:
        effect = model["effects"][model["number"].tolist().index("25"), ONE_LETTER.index("E")]
    (value, *_), (wild_type, *_) = ranking.predict("T25E", "WT")
    assert effect == pytest.approx(value - wild_type)
    report = (tmp_path / "protein_g" / "report.html").read_text()
    assert "better than chance" in report and rows[0][0] in report and "The next batch" in report


def test_the_tables_of_the_study_are_those_of_its_answers():
    page = (ROOT / "studies" / "2026-12-mutants" / "results.md").read_text()
    tables = importlib.import_module("studies.2026-12-mutants.tables")
    printed = [line for part in (tables.curves, tables.gains, tables.proteins, tables.verdicts) for line in part()]
    rows = [line for line in [*printed, *tables.zero_shot()] if line.startswith("| ")]
    assert len(rows) > 60 and not [row for row in rows if row not in page]
