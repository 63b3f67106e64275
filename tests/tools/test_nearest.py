"""E-values: exact on a scale whose tail is known, right on noise, and small for relatives; what has none is refused."""

import csv
import tarfile
from pathlib import Path

import numpy as np
import pytest

import siamdiff_min
from benchmarks.nearest import read_held_out, table_of_e
from siamdiff_min import cli
from siamdiff_min.files import ConfigError, SiamDiffError, StructureError
from siamdiff_min.reading.sources import bundle_path
from siamdiff_min.tools.nearest.scale import fit_scale, read_scale

ENCODER = np.array(["mine.pt", "c" * 64, "0"])


def write_vectors(path, vectors, **columns):
    """An .npz of chains s0, s1, ... of 100 residues, but for what `columns` say."""
    count = len(vectors)
    usual = {"id": [f"s{k}" for k in range(count)], "residues": [100] * count, "chains": [1] * count}
    np.savez(path, mean=np.array(vectors, dtype=np.float32), **({**usual, "encoder": ENCODER} | columns))
    return str(path)


@pytest.fixture
def scale(tmp_path):
    """10^-4c of the unrelated pairs reach a cosine of c, none 0.9; twice that cosine if both have 500 residues."""
    spread = np.ones((5, 5))
    spread[4, 4] = 2
    arrays = {"mean": np.zeros(3), "deviation": np.ones(3), "axes": np.zeros((1, 3)), "gain": [0], "spread": spread}
    arrays |= {"middle": np.zeros((5, 5)), "quantiles": [0, 0.9], "chance": [1, 10**-3.6], "quartiles": [0, 0, 0.3]}
    np.savez(tmp_path / "mine.npz", encoder=ENCODER[:2], chains=["x"], families=["y"], **arrays)
    return str(tmp_path / "mine.npz")


def at(cosine):
    """A vector with that cosine to (1, 0, 0)."""
    return [cosine, (1 - cosine**2) ** 0.5, 0]


def hits(tmp_path, *argv, status=0):
    """The rows of the table, without those of titles."""
    out = tmp_path / "hits.tsv"
    assert cli.run("nearest", [*argv, "--out", str(out)]) == status
    with open(out) as file:
        return [*csv.DictReader(file, delimiter="\t")]


def test_e_is_the_size_of_the_set_times_the_share_of_unrelated_pairs(tmp_path, scale, capsys):
    """Equal ones stand in the order of the set, one name twice is two rows, and beyond the last pair E is a bound."""
    query = write_vectors(tmp_path / "q.npz", [at(1)], id=["q"])
    names = ["a", "b", "b", "far", "same"]
    vectors = [at(cosine) for cosine in (0.25, 0.5, 0.5, -0.5, 1)]
    among = write_vectors(tmp_path / "v.npz", vectors, id=names)
    found = hits(tmp_path, query, "--among", among, "--scale", scale, "--top", "4")
    assert [row["name"] for row in found] == ["same", "b", "b", "a"]
    assert [float(row["e"]) for row in found] == pytest.approx([5 * 10**-3.6, 5e-2, 5e-2, 0.5], rel=1e-2)
    assert [row["bound"] for row in found] == ["<", "", "", ""]
    assert [float(row["cosine"]) for row in found] == pytest.approx([1, 0.5, 0.5, 0.25], abs=1e-3)
    said = capsys.readouterr().out
    assert "<0.0013  +1.000  same" in said
    assert "5 structures are too few to tell" in said


def test_a_cosine_counts_by_the_lengths_of_both(tmp_path, scale):
    """The cosine of two long chains counts as half of it; beyond 500 residues nothing changes."""
    query = write_vectors(tmp_path / "q.npz", [at(1)], residues=[500])
    among = write_vectors(tmp_path / "v.npz", [at(0.5)] * 3, residues=[100, 500, 800])
    found = hits(tmp_path, query, "--among", among, "--scale", scale)
    assert [row["name"] for row in found] == ["s0", "s1", "s2"]
    assert [float(row["e"]) for row in found] == pytest.approx([3e-2, 0.3, 0.3], rel=1e-2)


def test_a_set_of_one_sort_is_told_and_counts_from_what_is_usual_in_it(tmp_path, scale):
    draw = np.random.default_rng(0)
    query = write_vectors(tmp_path / "q.npz", [at(1)], id=["q"])
    found = []
    for cosines in (draw.uniform(0.5, 0.8, 300), [*draw.uniform(-0.3, 0.3, 300), 0.8]):
        among = write_vectors(tmp_path / "v.npz", [at(c) for c in cosines])
        found.append(hits(tmp_path, query, "--among", among, "--scale", scale)[0])
    of_one_sort, mixed = found
    assert "of one sort" in of_one_sort["note"] and float(of_one_sort["e"]) > 10
    assert mixed["note"] == "" and float(mixed["e"]) == pytest.approx(301 * 10**-3.2, rel=0.3)


def test_what_has_no_e_is_left_out_by_name(tmp_path, scale, capsys):
    """A query of two chains, and short, long and many-chained structures of the set; status 1 for the query."""
    query = write_vectors(tmp_path / "q.npz", [at(1), at(1)], id=["dimer", "q"], chains=[2, 1])
    names = ["short", "30", "800", "long", "two"]
    sizes = {"residues": [29, 30, 800, 801, 99], "chains": [1, 1, 1, 1, 2]}
    among = write_vectors(tmp_path / "v.npz", [at(0.5)] * 5, id=names, **sizes)
    found = hits(tmp_path, query, "--among", among, "--scale", scale, status=1)
    assert [(row["query"], row["name"]) for row in found] == [("q", "30"), ("q", "800")]
    said = capsys.readouterr().err
    for words in ("left out of the queries: 1, ", ": dimer", ": short, long, two"):
        assert words in said


def test_what_cannot_be_compared_ends_with_a_sentence(tmp_path, scale):
    here = write_vectors(tmp_path / "v.npz", [at(1)] * 2)
    other = write_vectors(tmp_path / "o.npz", [at(1)], encoder=np.array(["mine.pt", "d" * 64, "0"]))
    dimers = write_vectors(tmp_path / "d.npz", [at(1)], chains=[2])
    old, none = (str(tmp_path / name) for name in ("old.npz", "none"))
    np.savez(old, id=["a"], mean=np.zeros((1, 3)))
    among = "--among", here
    for argv, kind, sentence in (
        (["none.pdb", *among], ConfigError, "none.pdb: cannot be opened"),
        ([here, "--among", old], StructureError, "old.npz: no vectors that can be compared"),
        ([here, *among], ConfigError, r"no scale for the encoder mine.pt; siamdiff nearest --fit"),
        ([here, *among, "--scale", here], StructureError, "no scale of siamdiff nearest"),
        ([here, "--among", other, "--scale", scale], ConfigError, "is the scale of another encoder"),
        ([other, *among, "--scale", scale], ConfigError, "are of different encoders"),
        ([dimers, *among, "--scale", scale], ConfigError, "no query is left"),
        (["--fit", none, *among], ConfigError, "none: cannot be opened"),
    ):
        with pytest.raises(kind, match=sentence):
            cli.run("nearest", [*argv, "--out", str(tmp_path / "x.tsv")])
    for argv in ([here], [here, *among, "--fit", here], among, [here, *among, "--top", "0"]):
        with pytest.raises(SystemExit):
            cli.run("nearest", argv)


def test_a_scale_of_ones_own_is_right_on_chains_that_it_has_not_seen(tmp_path):
    """Noise with six strong directions and a mean, 300 families of two: how many of new ones are below a level."""
    draw = np.random.default_rng(0)
    spread = np.append(np.full(6, 5.0), np.ones(34))
    noise, new = (draw.normal(size=(count, 40)) * spread + 3 for count in (300, 400))
    vectors = np.repeat(noise, 2, axis=0) + 0.01 * draw.normal(size=(600, 40))
    lengths = draw.integers(40, 700, 600)
    among = write_vectors(tmp_path / "v.npz", vectors, residues=lengths)
    rows = [f"s{k}\tf{k // 2}\t{'1.10.8' if k < 20 else ''}\n" for k in range(600)]
    (tmp_path / "families.tsv").write_text("Name\tFamily\tFolds\n" + "".join(rows))
    out = str(tmp_path / "scale.npz")
    assert cli.run("nearest", ["--fit", str(tmp_path / "families.tsv"), "--among", among, "--out", out]) == 0

    scale = read_scale(out)
    assert len(scale.chains) == len(scale.families) == 300
    assert [*scale.encoder] == [*ENCODER[:2]]
    z, sizes = scale.whiten(new), draw.integers(40, 700, 400)
    chance = scale.probability(scale.standardise(z @ z.T, sizes, sizes))
    chance = chance[np.triu_indices(400, 1)]
    for level in (0.1, 0.01, 0.001):
        assert level / 1.5 < (chance <= level).mean() < 1.5 * level
    found = hits(tmp_path, among, "--among", among, "--scale", out, "--top", "2")
    assert all(float(row["e"]) < 0.1 for row in found)  # of each its copy
    with pytest.raises(SiamDiffError, match="a scale needs 100 families, and these are 99"):
        fit_scale(vectors[:198:2], lengths[:198:2], np.arange(99).astype(str), [set()] * 99)


@pytest.mark.parametrize(
    "encoder, most, least",
    [("siamdiff-residue", 0.1, 0.5), pytest.param("siamdiff-atom", 0.2, 0.2, marks=pytest.mark.full)],
)
def test_bundled_scales_find_the_relatives_of_bundled_chains(tmp_path, encoder, most, least, capsys):
    """Of Ras, two other small GTPases, and none of three strangers. Its own chain is the first of all."""
    names = ["1HE8_A", "1I4D_A", "3CPH_B", "1GCQ_A", "1A19_A", "2WPT_A"]
    paths = [str(tmp_path / f"{name}.pdb.gz") for name in names]
    with tarfile.open(bundle_path() / "structures.tar") as archive:
        archive.extractall(tmp_path, [archive.getmember(Path(path).name) for path in paths], filter="data")
    found = hits(tmp_path, paths[0], "--among", *paths, "--checkpoint", encoder)
    said = capsys.readouterr().err
    assert "seen 6 = embedded 6" in said
    assert "vectors.npz" not in said  # a file that is gone
    first, second, third, *_ = (row["name"] for row in found)
    assert first == names[0]
    assert {second, third} == {*names[1:3]}
    e = [float(row["e"]) for row in found]
    assert max(e[:3]) < most
    assert min(e[3:]) > least
    assert float(found[0]["cosine"]) == pytest.approx(1)


@pytest.mark.parametrize("families, value", [("aabc", "0.00"), ("abcd", "166.67")])
def test_the_table_of_e_counts_hits_of_other_families_alone(tmp_path, scale, families, value):
    """Two of four chains are the same: a sixth of the pairs of two families are hits, .001 is promised."""
    vectors = write_vectors(tmp_path / "v.npz", [at(1), at(1), at(0), at(-1)])
    (tmp_path / "f.tsv").write_text("name\tfamily\n" + "".join(f"s{k}\t{name}\n" for k, name in enumerate(families)))
    head, first, *_ = table_of_e(read_held_out(Path(vectors), tmp_path / "f.tsv", Path(scale)))
    assert head.startswith(f"4 chains of {len({*families})} families") and first.split() == ["100", "0.1", value]


def test_whitened_vectors_have_length_one():
    vectors = np.random.default_rng(0).normal(size=(3, 768))
    white = siamdiff_min.whiten(vectors)
    assert np.allclose(np.linalg.norm(white, axis=1), np.ones(3))
    scale = read_scale(siamdiff_min.names.BUNDLED / "siamdiff-residue.scale.npz")
    assert np.array_equal(white, scale.whiten(vectors))
