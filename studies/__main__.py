"""Every published table of the studies again, from the kept answers.

    python -m studies [2026-11 2026-11-scale ...] [--sites SITES] [--sites315 SITES315] [--stability STABILITY]

Two benchmarks need the sets of others, which may not be kept here: SITES and STABILITY are described in
2026-11-benchmarks/results.md. Without them their tables are left out, and a line says so.
"""

import argparse
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import ddg, mutant_sizes, ppis, probe_report
from siamdiff_min.files import console

HERE = Path(__file__).parent
SCALE = HERE / "2026-11-scale/results"
BENCHMARKS = HERE / "2026-11-benchmarks/results"
Part = tuple[str, Callable[[], list[str]]]  # a title, and what gives the lines below it


def of_2026_11(args: argparse.Namespace) -> Iterator[Part]:
    tables = importlib.import_module("studies.2026-11.tables")
    probe, again, conformers = (tables.RESULTS / name for name in ("probe", "probe-again", "conformers"))
    yield "study.md: probes", lambda: probe_report.report([probe])
    yield "study.md: the repeats in place of the first runs", lambda: probe_report.report([probe, again])
    yield "study.md: the first study", lambda: tables.fine_tuned(tables.FIRST)
    yield "study.md: the first study, further runs", lambda: tables.fine_tuned(tables.FURTHER)
    yield "study.md: second witness", lambda: tables.fine_tuned(tables.SECOND)
    yield "study.md: second witness, corrected", tables.corrected
    yield "study.md: held-out losses", lambda: tables.losses(tables.RESULTS / "pretrain")
    yield "study.md: held-out losses of the repeats", lambda: tables.losses(tables.RESULTS / "pretrain-again")
    yield "study.md: real conformers, minus simulated", lambda: probe_report.report([conformers], "conf-simulated")
    yield "study.md: real conformers, minus random weights", tables.conformers
    yield "study.md: mobility", tables.mobility


def of_2026_11_benchmarks(args: argparse.Namespace) -> Iterator[Part]:
    def sites(data: Path | None, kept: str, *without: str) -> list[str]:
        if not data:
            return ["Left out without --sites and --sites315."]
        return ppis.report(BENCHMARKS / kept, ppis.read_chains(data, test=True), list(without))

    def stability(kept: Path) -> list[str]:
        if not args.stability:
            return ["Left out without --stability."]
        return ddg.report(kept, ddg.read_mutations(args.stability, "s461.tsv"), ddg.PUBLISHED)

    yield "results.md: Test_60", lambda: sites(args.sites, "ppis")
    yield "results.md: Test_60 without three chains", lambda: sites(args.sites, "ppis", "1b6cB", "3cbjA", "1jmoA")
    yield "results.md: Test_315", lambda: sites(args.sites315, "ppis315")
    yield "results.md: S461", lambda: stability(BENCHMARKS / "ddg")
    yield "2026-11-scale/results.md: S461, a second look", lambda: stability(SCALE / "ddg")


def of_scale(args: argparse.Namespace) -> Iterator[Part]:
    tables = importlib.import_module("studies.2026-11-scale.tables")
    yield "results.md: the curve, and all rows", lambda: tables.report(SCALE)
    yield "results.md: residue types", lambda: tables.residue_types(SCALE / "res")
    yield "results.md: nearest neighbours", lambda: tables.neighbours(SCALE / "neighbours.tsv")
    folders = [HERE / "2026-11/results/probe", BENCHMARKS / "probe", SCALE / "probe-test-old"]
    yield "docs/results.md: all encoders, old test families", lambda: probe_report.report(folders)


def of_mutants(args: argparse.Namespace) -> Iterator[Part]:
    tables = importlib.import_module("studies.2026-11-mutants.tables")
    yield "results.md: learning curves", tables.curves
    yield "results.md: the model minus others", tables.gains
    yield "results.md: every assay", tables.proteins
    yield "results.md: verdicts and intervals", tables.verdicts
    yield "results.md: S461 without measurements", tables.zero_shot
    yield "results.md: the verdict of the study, by protein", tables.then_by_protein
    yield "results.md: the verdict of 28 November, by protein", tables.now_by_protein
    yield "results.md: the verdict of 28 November, power", tables.power
    yield "results.md: the verdict of 28 November, intervals", tables.covered
    yield "results.md: the verdict of 28 November, size", lambda: mutant_sizes.report(tables.AGAIN)


STUDIES = {"2026-11": of_2026_11, "2026-11-benchmarks": of_2026_11_benchmarks, "2026-11-scale": of_scale}
STUDIES |= {"2026-11-mutants": of_mutants}


def main(argv: list[str] | None = None) -> None:
    """Print the tables of one command line."""
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES), help=f"of {', '.join(STUDIES)}; default: all")
    for name in ("--sites", "--sites315", "--stability"):
        parser.add_argument(name, type=Path, help="folder of the set")
    args = parser.parse_args(argv)
    if unknown := set(args.studies) - STUDIES.keys():
        parser.error(f"no such study: {', '.join(unknown)}")
    for study in args.studies:
        for title, table in STUDIES[study](args):
            print(f"\n## {study}, {title}\n", flush=True)
            print(*table(), sep="\n")


if __name__ == "__main__":
    with console():
        main()
