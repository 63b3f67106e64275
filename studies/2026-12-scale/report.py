"""The curve of this study from its kept answers: tables, differences with intervals, and the figure.

    python -m studies.2026-12-scale.report studies/2026-12-scale/results [--figure docs/scale.png]

FOLDER/probe holds METHOD-CHAINS-atom-small-SEED.npz of `benchmarks.probe --valid`, FOLDER/heldout.tsv what `heldout`
wrote. After the curve come the tables of all rows on the families of COMPARED. Intervals draw families (2,000 draws);
runs cannot be drawn, since there is one of each.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.probe_report import PROBES, Result, read
from benchmarks.probe_table import rows_of
from siamdiff_min.files import console

CHAINS = {"650": 650, "1300": 1_300, "2600": 2_600, "all": 5_170}
NAMES = {"diffpret": "DiffPreT", "siamdiff": "SiamDiff"}
RUN = r"(diffpret|siamdiff)-(650|1300|2600|all)"
OLD = "../../2026-11-benchmarks/results/probe"
COMPARED = {  # title -> folders
    "new validation families": ["probe"],
    "old validation families": ["probe-old-valid"],
    "new test families": ["probe-test"],
    "old test families": ["probe-test-old", OLD],
}
NEW, COUNTS = "diffpret-all-atom-paper-0", "counts"
COLOURS = {"diffpret": "#1b6ca8", "siamdiff": "#c8541b"}


def interval(draws: np.ndarray) -> str:
    """The middle 95 % of draws of a difference, with signs."""
    return "{:+.3f} to {:+.3f}".format(*np.quantile(draws, (0.025, 0.975)))


def read_probes(folder: Path) -> dict[tuple[str, str], dict[str, Result]]:
    """(method, "" or "+counts") -> corpus -> Result, smaller corpora first."""
    found = defaultdict(dict)
    for path in sorted(folder.glob("*.npz")):
        if match := re.fullmatch(RUN + r"-atom-small-0(\+counts)?", path.stem):
            method, corpus, beside = match.groups()
            found[method, beside or ""][corpus] = read(path)
    return {key: {name: of[name] for name in CHAINS if name in of} for key, of in found.items()}


def read_losses(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    """(method, corpus) -> column -> value, for the last checkpoint of a run, on the new validation chains."""
    last = {}
    for row in rows_of(path):  # the steps of a run rise
        if (match := re.fullmatch(RUN + "-0", row["run"])) and row["data"] == "v4":
            last[match.groups()] = row
    return {key: {name: float(row[name]) for name in row if "_" in name} for key, row in last.items()}


def compared(folders: list[Path]) -> list[str]:
    """Scores of all rows of some folders; then NEW minus every row, and every row minus the counts."""
    rows = {path.stem: read(path) for folder in folders for path in sorted(folder.glob("*.npz"))}
    lines = [f"| | mean skill | {' | '.join(PROBES)} |", "|---" * (len(PROBES) + 2) + "|"]
    for name, row in rows.items():
        scores = " | ".join(f"{row.scores[probe, 100][0]:.3f}" for probe in PROBES)
        lines.append(f"| {name} | {row.skill()[0]:.3f} | {scores} |")
    lines.append("")
    for name in (name for name in rows if name != COUNTS):
        new = NEW + "+counts" * ("+" in name)
        for one, other in ((new, name), (name, COUNTS)):
            if one != other and one in rows and other in rows:
                gap = rows[one].skill() - rows[other].skill()
                lines.append(f"* {one} minus {other}: {gap[0]:+.3f} ({interval(gap[1:])})")
    return lines


def figure(path: Path, probes: dict, losses: dict, random: Result) -> None:
    """Mean skill (with its interval over families) and held-out sequence loss against the number of chains."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8.2, 3.4), layout="constrained", facecolor="white")
    skill, loss = canvas.subplots(1, 2)
    for shift, (method, colour) in zip((0.97, 1.03), COLOURS.items()):
        runs = probes.get((method, ""), {})
        x = [CHAINS[name] * shift for name in runs]
        y = np.array([run.skill()[0] for run in runs.values()])
        ends = np.array([np.quantile(run.skill()[1:], (0.025, 0.975)) for run in runs.values()])
        skill.errorbar(x, y, abs(ends.T - y), fmt="o-", color=colour, capsize=3, label=NAMES[method])
        kept = [name for name in CHAINS if (method, name) in losses]
        values = [losses[method, name]["sequence_loss"] for name in kept]
        loss.plot([CHAINS[name] for name in kept], values, "o-", color=colour, label=NAMES[method])
    skill.axhline(random.skill()[0], color="#777777", linestyle="--", linewidth=1, label="random weights")
    skill.set_ylim(0.5, 0.66)
    skill.set_title("mean skill, 95 % over families", loc="left", fontsize=11, fontweight="bold")
    loss.set_ylim(2.5, 2.62)
    loss.set_title("held-out sequence loss", loc="left", fontsize=11, fontweight="bold")
    for axes in (skill, loss):
        axes.set_xscale("log")
        axes.set_xlim(500, 7_000)
        axes.set_xticks(list(CHAINS.values()), [f"{n:,}" for n in CHAINS.values()])
        axes.minorticks_off()
        axes.set_xlabel("chains of pre-training, equal steps")
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    skill.legend(frameon=False, fontsize=9, loc="lower right")
    canvas.savefig(path, dpi=100, metadata={"Software": None})


def main(argv: list[str] | None = None) -> None:
    """Print the report of one command line."""
    program = "python -m studies.2026-12-scale.report"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figure", type=Path, help="draw it too (matplotlib)")
    args = parser.parse_args(argv)
    probes, losses = read_probes(args.folder / "probe"), read_losses(args.folder / "heldout.tsv")
    random = read(args.folder / "probe" / "random-gearnet-atom-small-0.npz")
    print("| | chains | mean skill | minus random weights | with the counts | structure loss | sequence loss | types |")
    print("|---|---|---|---|---|---|---|---|")
    for (method, beside), runs in probes.items():
        for corpus, run in runs.items() if not beside else ():
            gap = run.skill() - random.skill()
            counted = probes.get((method, "+counts"), {}).get(corpus)
            cells = [NAMES[method], f"{CHAINS[corpus]:,}", f"{run.skill()[0]:.3f}"]
            cells += [f"{gap[0]:+.3f} ({interval(gap[1:])})", f"{counted.skill()[0]:.3f}" if counted else ""]
            cells += [f"{value:.3f}" for value in losses.get((method, corpus), {}).values()]
            print(f"| {' | '.join(cells)} |")
    print()
    for (method, beside), runs in probes.items():
        names = list(runs)
        if len(names) > 1:
            first, last = names[0], names[-1]
            gap = runs[last].skill() - runs[first].skill()
            row = NAMES[method] + " with the counts" * bool(beside)
            chains = f"{CHAINS[last]:,} minus {CHAINS[first]:,} chains"
            print(f"{row}, {chains}: mean skill {gap[0]:+.3f} ({interval(gap[1:])}, families drawn)")
    for title, folders in COMPARED.items():
        print(f"\n## {title}\n", *compared([args.folder / name for name in folders]), sep="\n")
    if args.figure:
        figure(args.figure, probes, losses, random)


if __name__ == "__main__":
    with console():
        main()
