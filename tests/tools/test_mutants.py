"""From a structure and measured mutants to the next batch: the model against refits, what the verdict says, the command
as the page prints it.
"""

import csv
import importlib
import re
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import siamdiff_min
from siamdiff_min import ConfigError
from siamdiff_min.cli import main
from siamdiff_min.encoders import ENCODERS
from siamdiff_min.encoders.ops import MLP
from siamdiff_min.encoders.weights import load_encoder
from siamdiff_min.pretraining.diffusion import hide_residues
from siamdiff_min.protein.constants import ONE_LETTER, RESIDUES
from siamdiff_min.reading.structure import Structure, join
from siamdiff_min.tools.mutants import command as command_module
from siamdiff_min.tools.mutants import ranking as ranking_module
from siamdiff_min.tools.mutants import trust as trust_module
from siamdiff_min.tools.mutants.log_odds import log_odds, type_head
from siamdiff_min.tools.mutants.mutation_model import (
    GaussianProcess,
    MutantPrior,
    Mutation,
    PositionFeatures,
    positions_of,
)
from siamdiff_min.tools.mutants.mutation_names import NoSubstitution, Positions
from siamdiff_min.tools.mutants.ranking import features_of, rank_mutants, read_measurements
from siamdiff_min.tools.mutants.trust import FLOOR, MEAN, UNMEASURED, Comparison, trust

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "protein_g.pdb.gz"
EXAMPLE_FILES = EXAMPLE.name, "protein_g.csv"
with (ROOT / "examples" / "protein_g.csv").open() as _file:
    MEASURED = [(row["mutation"], float(row["ddG"])) for row in csv.DictReader(_file)]
STRUCTURE = siamdiff_min.read_structure(EXAMPLE)
POSITIONS_OF_EXAMPLE = Positions.of(STRUCTURE, None)


def shifted(pairs, by: int) -> list:
    return [(f"{name[0]}{int(name[1:-1]) + by}{name[-1]}", value) for name, value in pairs]


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
        other = [(features.wild[i] + rng.integers(1, 20)) % 20 for i in positions]
        found.append(tuple(sorted(Mutation(int(i), int(new)) for i, new in zip(positions, other))))
    return found


@pytest.fixture
def few_tables(monkeypatch):
    """Verdicts by 99 permuted tables in place of 1,000."""
    monkeypatch.setattr(trust_module, "Comparison", partial(Comparison, tables=99))


@pytest.fixture
def quick(monkeypatch, few_tables):
    """Random features, at once; and how often they were asked for."""
    wild = STRUCTURE.protein.residue_type.numpy()
    features = replace(random_features(len(wild)), wild=wild)
    asked = Mock(return_value=features)
    monkeypatch.setattr(ranking_module, "features_of", asked)
    return asked


@pytest.fixture
def rank(quick):
    """`rank_mutants` of the example, by measured mutants."""
    return partial(rank_mutants, STRUCTURE)


# ---- log-odds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "tolerance"), [("siamdiff-residue", 1e-4), ("siamdiff-atom", 0.15)])
def test_log_odds_are_those_of_the_whole_structure_masked_once_for_each_residue(name, tolerance):
    """At residue level this protein lies within the surroundings; at atom level a little is cut off."""
    protein, rows = STRUCTURE.protein, [0, 25]
    encoder = load_encoder(name, "cpu")
    head = type_head(name, encoder)
    expected = []
    with torch.inference_mode():
        for row in rows:
            hidden = encoder.builder.select_nodes(hide_residues(protein, torch.tensor([row]), 4))
            logs = head(encoder(hidden).residue[row]).log_softmax(-1)
            expected.append(logs - logs[protein.residue_type[row]])
    counted = []
    found = log_odds(name, protein, [[row] for row in rows], lambda: counted.append(1)).numpy()
    assert np.abs(found - torch.stack(expected).numpy()).max() < tolerance
    assert sum(counted) == len(rows) and found.std() > 0.5


def test_an_encoder_of_ones_own_ranks_by_its_own_head(tmp_path):
    """In place of both bundled ones; one without a head for residue types is refused."""
    encoder = ENCODERS["gearnet"]("residue", "tiny")
    own, without = tmp_path / "own.pt", tmp_path / "without.pt"
    encoder.save(own, seq_mlp=MLP(encoder.out_dim, 8, 20).state_dict())
    encoder.save(without)
    few = Structure(STRUCTURE.protein.select_residues(torch.arange(56) < 10), ("A",))
    ranking = rank_mutants(few, checkpoint=own)
    expected = log_odds(own, few.protein, [[1]])[0]
    (row,) = [row for row in ranking.rows if row["mutation"] == "T2Y"]
    assert row["log_odds"] == pytest.approx(float(expected[ONE_LETTER.index("Y")]))
    with pytest.raises(ConfigError, match=r"without\.pt has no head for the types of residues, so no log-odds"):
        rank_mutants(STRUCTURE, checkpoint=without)


# ---- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [False, True])
def test_positions_left_out_in_closed_form_are_those_of_a_refit(floor):
    """A multiple mutant leaves with all of its positions."""
    features = random_features(30)
    known = some_mutants(features, 60)
    y = np.random.default_rng(1).normal(size=60)
    model = GaussianProcess(MutantPrior(features, known, floor=floor), y)
    counts = np.array([len(mutant) for mutant in known])
    kernel = model.prior.covariance(known, known, model.noise) + model.noise * np.diag(np.maximum(counts, 1))
    rest = (y - model.centre) / model.scale - model.prior.expected(known)
    for i, mutant in enumerate(known):
        apart = [not positions_of(mutant) & positions_of(other) for other in known]
        stay = np.array(apart) & (np.arange(60) != i)
        weights = np.linalg.solve(kernel[np.ix_(stay, stay)], kernel[stay, i])
        assert model.left_out[i] == pytest.approx(y[i] - model.scale * (rest[i] - weights @ rest[stay]), abs=1e-8)
        variance = kernel[i, i] - weights @ kernel[stay, i]
        assert model.left_out_spread[i] == pytest.approx(model.scale * variance**0.5, abs=1e-8)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def site_saturation(features: PositionFeatures, count: int, each: int, seed: int = 0) -> list:
    """`each` mutants at each of the first `count` positions."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        others = [t for t in range(20) if t != features.wild[i]]
        found += [(Mutation(i, int(t)),) for t in rng.choice(others, each, replace=False)]
    return found


@pytest.mark.parametrize("of_position", [0.0, 1.0])
def test_values_without_meaning_are_seldom_called_better(of_position):
    """2.5 % of tables, nominally: of 40, more than 5 in one of 2,000 runs. Site saturation: 8 positions, 5 types.

    A bootstrap of positions called most of them better than types and burial.
    """
    features = random_features(30)
    known = site_saturation(features, 8, 5)
    against = Comparison(MutantPrior(features, known), tables=39)
    said = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = of_position * np.repeat(rng.normal(size=8), 5) + rng.normal(size=40) * 0.5
        gains = {name: against.gain(name, y) for name in (MEAN, FLOOR, UNMEASURED)}
        said.append([gains[MEAN].is_more and gain.is_more for gain in gains.values()])
    assert (np.sum(said, axis=0) <= 5).all()


def test_what_the_ranking_says_is_better_than_chance_and_no_better_than_without_measurements(few_tables):
    """Its reverse is told too."""
    features = random_features(30)
    known = site_saturation(features, 12, 5)
    ranking = np.array([features.ranking[i, new] for ((i, new),) in known])
    y = ranking + np.random.default_rng(0).normal(size=60) * 0.3
    believed = trust(GaussianProcess(MutantPrior(features, known), y))
    assert believed.better() and believed.better(FLOOR) and not believed.better(UNMEASURED)
    assert not believed.backwards and believed.sentences[2].startswith("better than types and burial: the encoders")
    assert believed.sentences[3].startswith("not told apart from no measurements: the measurements may add nothing yet")
    assert trust(GaussianProcess(MutantPrior(features, known), -y)).backwards


def test_the_number_of_mutations_is_no_reason_to_believe_the_model(few_tables):
    """Every mutation costs 3, and nothing else is to be seen: the mean knows that too."""
    features = random_features(40)
    known = some_mutants(features, 60)[1:]
    y = np.random.default_rng(0).normal(size=59) - 3.0 * np.array([*map(len, known)])
    model = GaussianProcess(MutantPrior(features, known), y)
    believed = trust(model)
    assert believed.explained > 0.5 and not believed.better()
    assert believed.explained == pytest.approx(1 - np.mean((y - model.left_out) ** 2) / y.var())


# ---- the wild type and several mutations -----------------------------------------------------------------------------


def test_the_wild_type_is_not_taken_for_the_mean_of_its_mutants():
    """96 mutants at +2, spread .5; the wild type is 0. Single mutants alone do not say so: the interval is wide."""
    features = random_features(40)
    rng = np.random.default_rng(0)
    singles = []
    for i in range(32):
        singles += [(Mutation(i, int(features.wild[i] + k) % 20),) for k in (3, 9, 14)]
    y = 2 + 0.5 * rng.normal(size=96)
    model = GaussianProcess(MutantPrior(features, singles), y)
    (value,), (half,) = model.predict([()], noise=False)
    assert value - half < 0
    assert value + half > 3

    # Measured once, it is met within the noise; 24 times, closer.
    halves = {}
    for repeats in (1, 24):
        prior = MutantPrior(features, [*singles, ()], np.append(np.ones(96), repeats))
        model = GaussianProcess(prior, np.append(y, 0))
        (value,), (half,) = model.predict([()], noise=False)
        assert abs(value) < 0.2
        assert abs(value) <= half + 1e-6
        halves[repeats] = half
    assert halves[1] > 3 * halves[24]

    # Then a double mutant is as far from the mean as the mean from the wild type.
    doubles = [tuple(sorted((a[0], b[0]))) for a, b in zip(singles[:45:3], singles[45:90:3])]
    value, half_width = model.predict(doubles)
    off = np.abs(value - 4)
    assert off.max() < 1
    assert (off < half_width).all()


@pytest.mark.full
@pytest.mark.repeats
@pytest.mark.parametrize("of_single, doubles, of_wild", [(True, 0, 0), (False, 0, 6), (False, 40, 0)])
def test_intervals_of_new_mutants_hold_85_to_95_percent(of_single, doubles, of_wild):
    """Effects are drawn from the prior and add up, about 2 standard deviations below the wild type.

    New single mutants if singles were measured; new double ones if the wild type was measured, or others.
    """
    features = random_features(40, seed=2)
    singles = [(Mutation(i, t),) for i in range(40) for t in range(20) if t != features.wild[i]]
    covariance = MutantPrior(features, singles[:2]).effect_covariance(singles, singles)
    factor = np.linalg.cholesky(covariance + 1e-8 * np.eye(len(singles)))
    covered = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        effects = -2 + factor @ rng.normal(size=len(singles))
        order = rng.permutation(len(singles))[:, None]
        pairs = [(a, b) for a, b in rng.integers(len(singles), size=(300, 2)) if a // 19 != b // 19]

        # What was measured, with noise, and new mutants: rows of their single ones.
        known, new = [*order[: 100 - doubles], *pairs[:doubles]], order[100:] if of_single else pairs[40:]
        y, truth = (np.array([effects[[*rows]].sum() + 0.5 * rng.normal() for rows in part]) for part in (known, new))
        known, new = ([tuple(sorted(singles[i][0] for i in rows)) for rows in part] for part in (known, new))
        repeats = np.ones(100)
        if of_wild:
            known, repeats = [*known, ()], np.append(repeats, of_wild)
            y = np.append(y, 0.5 / of_wild**0.5 * rng.normal())
        model = GaussianProcess(MutantPrior(features, known, repeats=repeats), y)
        value, half = model.predict(new)
        covered.append(np.mean(np.abs(value - truth) <= half))
    if of_single:
        assert 0.8 < trust(model).covered < 0.97 and np.corrcoef(value, truth)[0, 1] > 0.5
    assert 0.85 <= np.mean(covered) <= 0.95


# ---- mutations as text -----------------------------------------------------------------------------------------------


KEYS = [("A", 52, ""), ("A", 52, "a"), ("A", -3, ""), ("B", 52, "")]
POSITIONS = Positions([[4], [5], [6], [9]], KEYS, "AGLV", {"A": "A", "B": "B"})


@pytest.mark.parametrize(
    ("text", "mutant"),
    [("A52G", "A:A52G"), ("A:A52G", "A:A52G"), ("B:V52W", "B:V52W"), ("G52aK", "A:G52aK"), ("L-3P", "A:L-3P")]
    + [(f"A52G{sign}L-3P", "A:A52G/A:L-3P") for sign in ("/", ":", "+", ",", ";", " ", " / ", ", ", "_", "-")]
    + [(text, "A:A52G/A:L-3P") for text in ("L-3P/A52G", "Ala52Gly-Leu-3Pro", "p.[Ala52Gly;Leu-3Pro]")]
    + [(text, "A:A52G/A:L-3P") for text in ("p.Ala52Gly;p.Leu-3Pro", "NP_1.1:p.[Ala52Gly];[Leu-3Pro]")]
    + [("G52AK", "A:G52aK"), ("g52ak", "A:G52aK"), ("B:Val52Trp", "B:V52W")]
    + [(text, "A:A52G") for text in ("a52g", "Ala52Gly", "p.Ala52Gly", "NP_1.1:p.(Ala52Gly)", "p.[Ala52Gly;Leu-3=]")]
    + [(text, "WT") for text in ("WT", "wild_type", "A52A", "_wt", "_sy", "p.=", "p.(=)", "NP_1.1:p.Ala52=", "A52=")]
    + [("p.Ala52%3D", "WT")],
)
def test_mutations_are_read_as_people_write_them(text, mutant):
    assert POSITIONS.name(POSITIONS.read(text)) == mutant


def test_ranges_of_positions():
    for text, expected in {"52": {0, 1, 3}, "-3-0, B:52": {2, 3}, "A:-9-99": {0, 1, 2}, "": set()}.items():
        assert POSITIONS.within(text) == expected
    for text, wrong in {"52,60-70": "60-70", "x": "x", "A:5-": "A:5-", "C:52": "C:52"}.items():
        with pytest.raises(ConfigError, match=f"^'{wrong}' is no range of the structure's residues, such as 5-60"):
            POSITIONS.within(text)


def test_the_first_met_of_every_chain_stays_unless_it_is_named():
    keys = [*(("A", k, "") for k in (1, 2)), *(("B", k, "") for k in (1, 2))]
    two = Positions([[k] for k in range(4)], keys, "MMMA", {"A": "A", "B": "B"})
    assert two.wanted("", "") == {1, 3} and two.wanted("1", "B:1-2") == {0}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["C52G"],
            r"^1 mutations do not fit the structure: C52G \(the structure has A\); --shift N adds N",
        ),
        (["p.Trp52=", "A53G"], r"^1 mutations .*: Trp52= \(the structure has A\);"),
        (["A52G/A52K", "A52G"], r"A52K \(a second mutation there in A52G/A52K\)"),
        (["A42G", "G42aK", "L-13P"], r"; all fit with --shift 10$"),
        (["A-3G", "G-3aK", "L-58P"], r"^1 mutations .*: A-3G .* has L\); all fit with --shift 55$"),
        (
            ["A42G", "LA38G", "2-Jan"],
            r"^nothing to learn from: 3 left out, no .*: A42G, LA38G, 2-Jan; --name-column says which names",
        ),
    ],
)
def test_misfits_are_one_sentence(texts, message):
    with pytest.raises(ConfigError, match=message):
        read_measurements(POSITIONS, [(text, 1.0) for text in texts], 0)


def test_a_table_of_mavedb_is_read(quick, tmp_path, capsys):
    """Its columns are found; synonymous rows are the wild type, and counted."""
    long = {letter: name.title() for letter, name in zip(ONE_LETTER, RESIDUES)}
    rows = []
    for name, value in MEASURED:
        wild, number, new = name[0], name[1:-1], name[-1]
        rows.append((f"NP_000001.1:p.{long[wild]}{number}{long[new]}", value))
    rows += [("p.=", 0.0), ("p.Gly9=", 0.1), ("p.Gly9Gly", 0.1), ("_wt", 0.0), ("p.Thr2Ter", -3), ("p.Lys99Ala", 2)]
    lines = [f"urn:mavedb:1-a-1#{k},NA,NA,{name},{value}" for k, (name, value) in enumerate(rows)]
    lines = ["accession,hgvs_nt,hgvs_splice,hgvs_pro,score", *lines]
    run(tmp_path, lines)
    said = capsys.readouterr().out
    assert f"{len(MEASURED)} mutants measured" in said
    assert "2 left out, no substitutions of residues in the structure, such as A52G or B:A52G: p.Thr2Ter, p." in said
    assert "3 synonymous, read as WT: p.=, p.Gly9=, p.Gly9Gly" in said
    assert re.search("^wild type .*: measured$", said, re.M)


@pytest.mark.parametrize(
    "text",
    [
        *("p.Ter57Gln", "p.Met1ext-5", "NP_1.1:p.*57Qext*9", "A52*", "p.Ala52Ter", "A52del", "A52_L53del", "delV7"),
        *("p.(Ala52_Leu53)del", "A52_L53insGG", "A52dup", "A52delinsGG", "insA5", "p.?", "NA", "A52Gfs*3", "Ala52fs"),
        *("p.Ala52Xaa", "A52X", "A52G/L-3U", "A20G", "A52G/A20G", "A20=", "C:A52G", "LA52G", "2026-01-02", "A52", ""),
    ],
)
def test_what_is_no_substitution_is_left_out(text):
    with pytest.raises(NoSubstitution, match="is no substitution of a residue that is there, such as A52G"):
        POSITIONS.read(text)


# ---- the ranking, and what it says of itself -------------------------------------------------------------------------


def test_the_example_is_better_than_chance(monkeypatch, few_tables):
    features = features_of(STRUCTURE, POSITIONS_OF_EXAMPLE.residues, ["siamdiff-residue"])
    monkeypatch.setattr(ranking_module, "features_of", lambda *_: features)
    ranking = rank_mutants(STRUCTURE, MEASURED, lower_is_better=True)
    assert ranking.verdict.startswith("better than chance")
    predicted = [row["predicted"] for row in ranking.rows]
    assert predicted == sorted(predicted) and all(row["low"] < row["predicted"] < row["high"] for row in ranking.rows)
    assert len(ranking.rows) == 56 * 19 - len(MEASURED)
    assert not {row["mutation"] for row in ranking.rows} & dict(MEASURED).keys()
    assert len(ranking.next) == 96
    assert max(Counter(row["mutation"][:-1] for row in ranking.next).values()) == 2
    assert ranking.effects[24, ONE_LETTER.index("T")] == 0
    value, double, other, wild_type = (mutant[0] for mutant in ranking.predict("T25E", "T25E/V29K", "V29K", "WT"))
    assert double == pytest.approx(value + other - wild_type)
    assert ranking.effects[24, ONE_LETTER.index("E")] == pytest.approx(value - wild_type)
    assert "--lower-is-better" in rank_mutants(STRUCTURE, MEASURED).trust.sentences[0]


def test_a_few_are_too_few(rank):
    one = rank(MEASURED[:1])
    assert one.verdict.startswith("too few to say") and one.model is None
    few = rank(MEASURED[::8], lower_is_better=True)
    assert few.verdict == "too few to say: it takes 24 mutants at 8 positions" and few.trust is None
    few = rank((f"{own}{new}", k % 7) for own in ("T2", "Y3", "K4", "L5", "I6", "L7") for k, new in enumerate("AGVSE"))
    assert few.verdict.startswith("too few to say") and few.better is None


def test_without_measurements_the_log_odds_rank(rank):
    ranking = rank()
    scores = [row["ranking"] for row in ranking.rows]
    assert scores == sorted(scores, reverse=True) and len(scores) == 56 * 19
    assert ranking.verdict.startswith("nothing measured")
    with pytest.raises(ConfigError, match="nothing was measured"):
        ranking.predict("T25E")


def test_repeats_are_averaged_and_gaps_left_out(rank):
    name, value = MEASURED[0]
    pairs = shifted([*MEASURED, (name, value + 1), ("T25E", np.nan)], 3)
    ranking = rank(pairs, shift=-3)
    assert ranking.measured[name] == pytest.approx(value + 0.5) and "T25E" not in ranking.measured
    assert ranking.notes == [
        "1 mutants were measured more than once, with a scatter of 0.707",
        "results have the structure's numbers: -3 to the table's",
    ]


@pytest.mark.parametrize(
    "measured, message",
    [
        ([*MEASURED, ("T2Y", np.inf)], "'T2Y': inf is no measured mutant"),
        ([*MEASURED, ("T2Y", None)], "'T2Y': None is no measured mutant"),
        ([*MEASURED, (np.nan, 1.0)], "nan: 1.0 is no measured mutant"),
        ([("WT", 0.0), *((text, 1.0) for text, _ in MEASURED)], "all mutants have the value 1: nothing can be"),
    ],
)
def test_values_that_say_nothing_are_refused(rank, measured, message):
    with pytest.raises(ConfigError, match=message):
        rank(measured)


def test_the_next_batch_is_as_it_is_asked_for(rank):
    def batch(**wishes) -> list[str]:
        return [row["mutation"] for row in rank(**wishes).next]

    every = batch(batch=2000, per_position=19)
    assert len(every) == 55 * 19 and not [name for name in every if name.startswith("M1")]  # 2GB1 begins with Met
    assert batch(batch=1) == batch()[:1]
    assert {name[:-1] for name in batch(positions="1")} == {"M1"}
    numbers = {int(name[1:-1]) for name in batch(positions="5-30,40", not_positions="7,9-20")}
    assert numbers == {5, 6, 8, *range(21, 31), 40}
    assert {name[-1] for name in batch(types="DEK", not_types="k")} == {"D", "E"}
    for wishes, message in [
        ({"per_position": 0}, "must have one mutant at least, and one of a position"),
        ({"types": "A,V"}, "'A,V' are no types like AVIL"),
        ({"positions": "5", "not_positions": "1-9"}, "no mutant is left for the next batch"),
    ]:
        with pytest.raises(ConfigError, match=message):
            batch(**wishes)


def test_chains_of_one_sequence_are_one_gene():
    """Two copies of protein G, 200 angstrom apart, and a third chain that lacks residues."""
    copies = []
    for chain, shift, lacks in (("A", 0, 0), ("B", 200, 0), ("C", 400, 10)):
        moved = replace(STRUCTURE.protein, pos=STRUCTURE.protein.pos + shift)
        copies.append(Structure(moved.select_residues(torch.arange(56) >= lacks), (chain,)))
    three = join(copies)
    numbering = Positions.of(three, None)
    assert numbering.copy_of == {"A": "A", "B": "A", "C": "A"} and len(numbering.wild) == 56
    assert [len(rows) for rows in numbering.residues] == [2] * 10 + [3] * 46
    assert numbering.read("B:T25E") == numbering.read("T25E")
    assert numbering.name(numbering.read("C:T25E")) == "T25E"
    odds = log_odds("siamdiff-residue", three.protein, numbering.residues[20:22])
    alone = log_odds("siamdiff-residue", STRUCTURE.protein, [[20], [21]])
    np.testing.assert_allclose(odds, alone, atol=1e-4)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_page_runs_as_printed(tmp_path, monkeypatch, capsys):
    """The numbers of the page are those of the run."""
    page = (ROOT / "docs" / "mutants.md").read_text()
    (command,) = re.findall(r"^siamdiff (mutants .*--measured .*)$", page, flags=re.M)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=lambda _, names: {*names} - {*EXAMPLE_FILES})
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    said = capsys.readouterr().out
    assert all(line in page for line in said.splitlines()[:8])
    assert said.startswith((tmp_path / "protein_g" / "verdict.txt").read_text())
    ranking = rank_mutants(STRUCTURE, MEASURED, lower_is_better=True)
    with open(tmp_path / "protein_g" / "next.tsv", newline="") as file:
        assert [row["mutation"] for row in csv.DictReader(file, delimiter="\t")] == [
            row["mutation"] for row in ranking.next
        ]


def run(tmp_path: Path, lines: list[str], *options: str) -> Path:
    """The folder of the command's results for a table of these lines."""
    tmp_path.mkdir(exist_ok=True)
    out, table = tmp_path / "out", tmp_path / "lab.csv"
    table.write_text("\n".join(lines))
    given = "--measured", str(table), "--out", str(out)
    assert main(["mutants", str(EXAMPLE), *given, *options]) == 0
    return out


def lines_of(pairs) -> list[str]:
    return ["name,value", *(f"{name},{value}" for name, value in pairs)]


def test_values_of_no_use_say_so_above_the_batch(quick, tmp_path, capsys):
    values = np.random.default_rng(1).normal(size=len(MEASURED))
    out = run(tmp_path, lines_of((name, value) for (name, _), value in zip(MEASURED, values)))
    sentence = "not told apart from chance: do not use it at new positions"
    assert capsys.readouterr().out.splitlines()[0] == sentence
    first, header, *rows = (out / "next.tsv").read_text().splitlines()
    assert first == sentence and header.startswith("mutation\tpredicted") and len(rows) == 96
    assert (out / "verdict.txt").read_text().startswith(sentence)


def test_the_wild_type_is_printed(quick, tmp_path, capsys):
    """Three rows WT are repeats."""
    run(tmp_path, lines_of([*MEASURED, ("WT", -0.5), ("WT", -0.3), ("WT", -0.4)]), "--lower-is-better")
    (printed,) = re.findall("^wild type .*: measured$", capsys.readouterr().out, flags=re.M)
    value, low, high = map(float, re.findall(r"-?\d+\.\d+", printed))
    assert low < -0.4 < high < low + 1.5 and abs(value + 0.4) < 0.1


@pytest.fixture
def drawn(monkeypatch) -> dict[str, Mock]:
    """What is drawn on axes: their images, and their lines."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    calls = {name: Mock(side_effect=getattr(axes, name)) for name in ("imshow", "plot")}
    for name, call in calls.items():
        monkeypatch.setattr(axes, name, partialmethod(call))
    return calls


@pytest.mark.parametrize("options", [[], ["--lower-is-better"]])
def test_the_map_is_blue_where_mutants_are_better(quick, drawn, tmp_path, options):
    """The wild type is white and has a cross, measured mutants have a dot."""
    out = run(tmp_path, lines_of([*MEASURED, ("WT", 0.5)]), *options)
    assert (out / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "map.svg").read_text()
    (_, better), how = drawn["imshow"].call_args
    assert how["cmap"] == "RdBu"  # red to blue, white is 0
    assert how["vmin"] == -how["vmax"]

    # Where the marks are.
    crosses, dots = (call.args[1:] for call in drawn["plot"].call_args_list)
    wild, _ = crosses
    position, new, _ = dots
    assert not better[wild, np.arange(56)].any()
    marked = {f"{i + 1}{ONE_LETTER[k]}" for i, k in zip(position, new)}
    assert marked == {name[1:] for name, _ in MEASURED}

    # The best mutant is the bluest of those that were not measured.
    others = better.copy()
    others[new, position] = -np.inf
    k, i = np.unravel_index(others.argmax(), others.shape)
    _, best, *_ = (out / "mutants.tsv").read_text().splitlines()
    assert best.startswith(f"{ONE_LETTER[wild[i]]}{i + 1}{ONE_LETTER[k]}\t")


def test_without_matplotlib_there_is_no_map(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command_module, "find_spec", lambda _: None)
    out = run(tmp_path, lines_of(MEASURED))
    assert "map" not in capsys.readouterr().out.splitlines()[-1]
    assert sorted(path.name for path in out.iterdir()) == ["mutants.tsv", "next.tsv", "verdict.txt"]


@pytest.mark.full
def test_several_properties_are_ranked_one_by_one(quick, tmp_path, capsys):
    """Each as if it were alone, in a folder of its own; `read` has a gap."""
    lines = ["mutation,dG / kcal,read", *(f"{name},{value},{k % 9}" for k, (name, value) in enumerate(MEASURED[:48]))]
    lines[1] = lines[1].rpartition(",")[0] + ","
    out = run(tmp_path, lines, "--value-column", "dG / kcal", "read", "--types", "KRE", "--not", "1-9")
    said = capsys.readouterr()
    assert said.err == "note: read: 1 of 48 rows were not measured\n"
    assert re.findall("^(dG.*|read|[0-9]+ mutants measured)$", said.out, re.M) == [
        *("dG / kcal", "48 mutants measured", "read", "47 mutants measured")
    ]
    together = {path.name: (path / "next.tsv").read_text() for path in out.iterdir()}
    assert together.keys() == {"dG _ kcal", "read"} and quick.call_count == 1
    for title in ("dG / kcal", "read"):
        alone = run(tmp_path / "alone", lines, "--value-column", title, "--types", "KRE", "--not", "1-9")
        assert (alone / "next.tsv").read_text() == together[title.replace("/", "_")]


def test_the_tables_of_the_study_are_those_of_its_answers():
    page = (ROOT / "studies" / "2026-11-mutants" / "results.md").read_text()
    tables = importlib.import_module("studies.2026-11-mutants.tables")
    printed = [line for part in (tables.curves, tables.gains, tables.proteins, tables.verdicts) for line in part()]
    rows = [line for line in [*printed, *tables.zero_shot()] if line.startswith("| ")]
    assert len(rows) > 60 and not [row for row in rows if row not in page]
