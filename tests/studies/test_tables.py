"""The published tables of the studies, computed again from the kept answers: every number of every row."""

import importlib
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kept, probe_report
from studies.__main__ import STUDIES, main

ROOT = Path(__file__).parents[2] / "studies"
NUMBER = re.compile(r"(?<![\w.-])[+-]?(?:\d+(?:,\d{3})+|\d*\.?\d+(?:e-\d+)?)(?![\w-])")


def rows_of(text: str) -> dict[str, set[float]]:
    """Name of a row -> all numbers of the rows of that name; but p below .001, which pages round more."""
    found = defaultdict(set)
    for line in text.splitlines():
        if line.startswith("| "):
            name, _, cells = line.strip("|* ").partition(" |")
            numbers = {float(x.replace(",", "")) for x in NUMBER.findall(cells.replace("*", ""))}
            found[name.strip("*` ")] |= {x for x in numbers if abs(x) >= 1e-3 or x == 0}
    return found


def between(page: str, start: str, end: str) -> str:
    return (ROOT / page).read_text().partition(start)[2].partition(end)[0]


def missing(page: dict[str, set[float]], printed: dict[str, set[float]], names: dict[str, str]) -> dict:
    """What a page says of the rows `names` and the tables do not: none of it."""
    assert set(names) <= set(page), set(names) - set(page)
    return {name: rest for name, ours in names.items() if (rest := page[name] - printed[ours])}


METHODS = {"DiffPreT": "diffpret", "SiamDiff": "siamdiff", "residue types": "residue-type", "scratch": "scratch"}
OTHERS = {name: name for name in ("distance", "angle", "dihedral", "multiview")} | {"score matching": "score-matching"}


@pytest.mark.full
def test_the_study_of_november():
    """Probes of both levels, both fine-tunings, and the real conformers."""
    tables = importlib.import_module("studies.2026-11.tables")
    printed = "\n".join(probe_report.report([tables.RESULTS / "probe"])).split("### ")
    part = {p.splitlines()[0]: rows_of(p) for p in printed if p}
    levels = {"residue level, tiny": ("| residue, tiny", "**Pre-training helps**")}
    levels |= {"atom level, tiny": ("At atom level:", "Minus scratch:")}
    for level, (start, end) in levels.items():
        page = rows_of(between("2026-11/study.md", start, end))
        assert not missing(page, part[level], METHODS | OTHERS | {"geometry": "geometry"}), level
        assert len(page["SiamDiff"]) > 15
    second = rows_of("\n".join(tables.fine_tuned(tables.SECOND)))
    page = rows_of(between("2026-11/study.md", "**Second witness: fine-tuning on", "In global rho of PSR"))
    assert not missing(page, second, METHODS) and len(page["DiffPreT"]) > 10
    first = rows_of("\n".join(tables.fine_tuned(tables.FIRST)))
    page = rows_of(between("2026-11/study.md", "| | RES, accuracy | PIP", "Empty cells were not run."))
    assert not missing(page, first, METHODS | OTHERS | {"torsional": "torsional"})
    names = {kind: f"conf-{kind}" for kind in ("simulated", "models", "both")} | {"random weights": "scratch"}
    page = rows_of(between("2026-11/study.md", "# Real conformers", "| difference"))
    found = rows_of("\n".join([*tables.conformers(), *tables.mobility()]))
    found["scratch"] |= found[tables.RANDOM]
    assert not missing(page, found, names) and len(page["models"]) > 12


@pytest.mark.full
def test_the_study_of_scale():
    """The curve, residue types and nearest neighbours; and one gap added up here."""
    tables = importlib.import_module("studies.2026-11-scale.tables")
    printed = "\n".join(tables.report(tables.RESULTS))
    page = between("2026-11-scale/results.md", "| | chains | runs |", "* **DiffPreT, 5,170")
    for line in page.splitlines()[2:]:
        if line.startswith("| "):
            ours = next(x for x in printed.splitlines() if x.startswith(line[: line.index(" |", 25)]))
            assert set(NUMBER.findall(line)) <= set(NUMBER.findall(ours)), line
    names = {"counts, linear": "counts", "the same with the types of the neighbours": "counts+neighbours"}
    names |= {
        "128 x 6 from scratch": "scratch-atom",
        "128 x 6 from `siamdiff-atom` of 25 November": "diffpret-all-atom",
    }
    types = rows_of("\n".join(tables.residue_types(tables.RESULTS / "res")))
    page = rows_of(between("2026-11-scale/results.md", "## Residue types from", "**`siamdiff-atom` of"))
    assert not missing(page, types, names)
    near = rows_of("\n".join(tables.neighbours(tables.RESULTS / "neighbours.tsv")))
    page = rows_of(between("2026-11-scale/results.md", "**Nearest neighbours**", "## Stability"))
    names = {"best local alignment of the sequences": "alignment", "composition": "composition", "counts": "counts"}
    names |= {"siamdiff-atom": "diffpret-gpu-atom-paper-0", "siamdiff-residue": "clean-all-residue-medium-0"}
    assert not missing(page, near, names)
    rows = {name: probe_report.result_of(row).skill() for name, row in kept.kept(tables.RESULTS / "probe-test")}
    gap = rows["diffpret-gpu-atom-paper-0"] - rows["counts"]
    low, high = np.quantile(gap[1:], (0.025, 0.975))
    assert f"* diffpret-gpu-atom-paper-0 minus counts: {gap[0]:+.3f} ({low:+.3f} to {high:+.3f})" in printed


def test_one_command_prints_them_all(capsys):
    """Of the benchmarks the sets of others are not here, so their tables are left out by name."""
    main(["2026-11-benchmarks"])
    said = capsys.readouterr().out
    assert said.count("Left out without --s") == 5 and "## 2026-11-benchmarks, results.md: Test_60" in said
    with pytest.raises(SystemExit):
        main(["2026-10"])
    assert {path.parent.name for path in ROOT.glob("*/results*")} == STUDIES.keys()


def test_packed_answers_are_those_of_the_folder(tmp_path):
    """The same rows, and the same bytes whoever packs them."""
    folder = tmp_path / "rows"
    (folder / "a").mkdir(parents=True)
    np.savez(folder / "one.npz", x=np.arange(3))
    (folder / "a" / "two.json").write_text("{}")
    before = kept.files(folder)
    kept.pack(folder)
    first = (tmp_path / "rows.zip").read_bytes()
    kept.pack(folder)
    assert (tmp_path / "rows.zip").read_bytes() == first
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    assert kept.files(folder) == before and list(before) == ["a/two.json", "one.npz"]
    assert [(name, row["x"].tolist()) for name, row in kept.kept(folder)] == [("one", [0, 1, 2])]


def test_two_runs_against_two_have_an_interval_over_runs():
    """Wider than over families alone: here families do not differ, and the runs of a row by .02."""
    tables, made = importlib.import_module("studies.2026-11-scale.tables"), {}
    for name, skills in {"diffpret-all": (0.62, 0.64), "diffpret-650": (0.58, 0.60), "siamdiff-all": (0.6,)}.items():
        runs = [{(probe, 100): np.full(2001, skill) for probe in probe_report.PROBES} for skill in skills]
        made[name] = {seed: probe_report.Result(run, run) for seed, run in enumerate(runs)}
    # standard deviation within a row 0.02 / sqrt(2), two degrees of freedom: 4.303 times 0.01 * sqrt(2)
    expected = "+0.040 (-0.021 to +0.101, families and runs)"
    assert tables.gap_of(made, "diffpret-all", "diffpret-650") == expected
    assert tables.gap_of(made, "diffpret-all", "siamdiff-all") == "+0.030 (+0.030 to +0.030, families drawn)"
