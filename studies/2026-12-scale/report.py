"""The curve of this study from its kept answers: tables, differences with intervals, and the figure.

    python -m studies.2026-12-scale.report studies/2026-12-scale/results [--figure docs/scale.png]

FOLDER/probe holds METHOD-CHAINS-atom-small-SEED.npz of `benchmarks.probe --valid`, FOLDER/heldout.tsv what `heldout`
wrote; CHAINS ends in -4e if the run belongs to equal epochs alone. After the curve come the tables of all rows on the
families of COMPARED. Intervals draw families (2,000 draws); where both rows have two runs or more, they hold the spread
of runs too, as in `benchmarks.probe_report`.
"""

import argparse
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.probe_report import PACKAGE, PROBES, SCRATCH, Result, difference, mean_of, read, read_all
from benchmarks.probe_table import rows_of
from siamdiff_min.files import console

CHAINS = {"650": 650, "1300": 1_300, "2600": 2_600, "all": 5_170}
NAMES = {"diffpret": "DiffPreT", "siamdiff": "SiamDiff", "clean": "SiamDiff, clean partner"}
EPOCHS = "-4e"  # 4 epochs of any corpus, in place of equal steps
RUN = rf"({'|'.join(NAMES)})-({'|'.join(CHAINS)})({EPOCHS})?"
OLD = "../../2026-11-benchmarks/results/probe"
COMPARED = {  # title -> folders
    "new validation families": ["probe"],
    "old validation families": ["probe-old-valid"],
    "new test families": ["probe-test"],
    "old test families": ["probe-test-old", OLD],
}
NEW = tuple(f"{run}-{level}-{size}-0" for level, (size, run) in PACKAGE.items())
COUNTS = "counts"
COLOURS = {"diffpret": "#1b6ca8", "siamdiff": "#c8541b"}


def interval(draws: np.ndarray) -> str:
    """The middle 95 % of draws of a difference, with signs."""
    return "{:+.3f} to {:+.3f}".format(*np.quantile(draws, (0.025, 0.975)))


def read_losses(path: Path) -> dict[str, dict[int, np.ndarray]]:
    """METHOD-CHAINS -> seed -> structure loss, sequence loss, types: last checkpoint, new validation chains."""
    last = defaultdict(dict)
    for row in rows_of(path):  # the steps of a run rise
        if (match := re.fullmatch(rf"(?P<name>{RUN})-(?P<seed>\d+)", row["run"])) and row["data"] == "v4":
            last[match["name"]][int(match["seed"])] = np.array([float(row[name]) for name in row if "_" in name])
    return last


def gap_of(rows: dict[str, dict[int, Result]], one: str, other: str) -> str:
    """One row minus another in mean skill, with its interval and what is drawn for it."""
    if min(len(rows[one]), len(rows[other])) > 1:
        value, low, high, _ = difference(rows, one, other, Result.skill)
        return f"{value:+.3f} ({low:+.3f} to {high:+.3f}, families and runs)"
    gap = mean_of(rows[one], Result.skill) - mean_of(rows[other], Result.skill)
    return f"{gap[0]:+.3f} ({interval(gap[1:])}, families drawn)"


def curve(rows: dict[str, dict[int, Result]], losses: dict[str, dict[int, np.ndarray]]) -> list[str]:
    """The table of all runs at `small`, and the differences of the plan."""
    titles = ("", "chains", "runs", "mean skill", "minus random weights", "with the counts")
    titles += ("structure loss", "sequence loss", "types")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    alone = {name: runs for name, runs in rows.items() if name == SCRATCH or re.fullmatch(RUN, name)}
    beside = {name: runs for name, runs in rows.items() if re.fullmatch(RUN + r"\+counts", name)}
    for name in ordered(alone):
        method, corpus, epochs = re.fullmatch(RUN, name).groups()
        counted = beside.get(f"{name}+counts")
        cells = [NAMES[method] + ", 4 epochs" * bool(epochs), f"{CHAINS[corpus]:,}", str(len(alone[name]))]
        cells += [f"{mean_of(alone[name], Result.skill)[0]:.3f}", gap_of(alone, name, SCRATCH)]
        cells += [f"{mean_of(counted, Result.skill)[0]:.3f}" if counted else ""]
        cells += [f"{value:.3f}" for value in np.mean([*losses[name].values()], axis=0)] if name in losses else []
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    pairs = [(f"{method}-all", f"{method}-650") for method in COLOURS] + [("clean-2600", "siamdiff-2600")]
    trained = {name: runs for name, runs in alone.items() if name != SCRATCH}  # the spread of random weights is another
    for kind, end in ((trained, ""), (beside, "+counts")):
        for one, other in ((one + end, other + end) for one, other in pairs):
            if one in kind and other in kind:
                lines.append(f"* {one} minus {other}: mean skill {gap_of(kind, one, other)}")
    for one, other in pairs[:-1]:
        if seeds := sorted(losses.get(one, {}).keys() & losses.get(other, {}).keys()):
            gaps = ", ".join(f"{losses[one][seed][1] - losses[other][seed][1]:+.3f}" for seed in seeds)
            lines.append(f"* {one} minus {other}: sequence loss {gaps} (seeds {', '.join(map(str, seeds))})")
    return lines


def ordered(names) -> list[str]:
    """The runs among some names: by method, equal steps before equal epochs, then by the number of chains."""
    found = [match for name in names if (match := re.fullmatch(RUN, name))]
    key = [(list(NAMES).index(m[1]), bool(m[3]), CHAINS[m[2]], m[0]) for m in found]
    return [name for *_, name in sorted(key)]


def compared(folders: list[Path]) -> list[str]:
    """Scores of all rows of some folders; then those of NEW minus every row, and every row minus the counts."""
    rows = {path.stem: read(path) for folder in folders for path in sorted(folder.glob("*.npz"))}
    lines = [f"| | mean skill | {' | '.join(PROBES)} |", "|---" * (len(PROBES) + 2) + "|"]
    for name, row in rows.items():
        scores = " | ".join(f"{row.scores[probe, 100][0]:.3f}" for probe in PROBES)
        lines.append(f"| {name} | {row.skill()[0]:.3f} | {scores} |")
    lines.append("")
    for name in (name for name in rows if name != COUNTS):
        new = [f"{one}{'+counts' * ('+' in name)}" for one in NEW]
        new = new[: new.index(name)] if name in new else new  # each pair once
        for one, other in (*((one, name) for one in new), (name, COUNTS)):
            if one in rows and other in rows:
                gap = rows[one].skill() - rows[other].skill()
                lines.append(f"* {one} minus {other}: {gap[0]:+.3f} ({interval(gap[1:])})")
    return lines


def figure(path: Path, rows: dict[str, dict[int, Result]], losses: dict[str, dict[int, np.ndarray]]) -> None:
    """Mean skill (with its interval over families) and held-out sequence loss against the number of chains."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(8.2, 3.4), layout="constrained", facecolor="white")
    left, right = canvas.subplots(1, 2)
    for shift, (method, colour) in zip((0.97, 1.03), COLOURS.items()):
        names = [name for name in ordered(rows) if re.fullmatch(rf"{method}-[^-]+", name) and name in losses]
        x = np.array([CHAINS[name.split("-")[1]] for name in names]) * shift
        draws = np.array([mean_of(rows[name], Result.skill) for name in names])
        ends = np.quantile(draws[:, 1:], (0.025, 0.975), axis=1)
        left.errorbar(x, draws[:, 0], abs(ends - draws[:, 0]), fmt="-", color=colour, capsize=3)
        means = [np.mean([run[1] for run in losses[name].values()]) for name in names]
        right.plot(x, means, "-", color=colour)
        for at, name in zip(x, names):  # every run
            left.plot([at] * len(rows[name]), [run.skill()[0] for run in rows[name].values()], "o", color=colour)
            right.plot([at] * len(losses[name]), [run[1] for run in losses[name].values()], "o", color=colour)
        left.plot([], [], "o-", color=colour, label=NAMES[method])
    left.axhline(
        mean_of(rows[SCRATCH], Result.skill)[0], color="#777777", linestyle="--", linewidth=1, label="random weights"
    )
    left.set_ylim(0.5, 0.66)
    left.set_title("mean skill, 95 % over families", loc="left", fontsize=11, fontweight="bold")
    right.set_ylim(2.5, 2.62)
    right.set_title("held-out sequence loss", loc="left", fontsize=11, fontweight="bold")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlim(500, 7_000)
        axes.set_xticks(list(CHAINS.values()), [f"{n:,}" for n in CHAINS.values()])
        axes.minorticks_off()
        axes.set_xlabel("chains of pre-training, equal steps")
        axes.grid(axis="y", color="#dddddd")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=9, loc="lower right")
    canvas.savefig(path, dpi=100, metadata={"Software": None})


def main(argv: list[str] | None = None) -> None:
    """Print the report of one command line."""
    program = "python -m studies.2026-12-scale.report"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figure", type=Path, help="draw it too (matplotlib)")
    args = parser.parse_args(argv)
    rows, losses = read_all([args.folder / "probe"])["atom", "small"], read_losses(args.folder / "heldout.tsv")
    print(*curve(rows, losses), sep="\n")
    for title, folders in COMPARED.items():
        print(f"\n## {title}\n", *compared([args.folder / name for name in folders]), sep="\n")
    if args.figure:
        figure(args.figure, rows, losses)


if __name__ == "__main__":
    with console():
        main()
